// The Cartesian tree of a column, as both searches by lowest common ancestors have it: the nearest smaller values, found in levels of minima.
//
// A node of the tree is a value, and its subtree is the values between the last one before it that is not greater (`left`) and the first one after
// it that is smaller (`right`). Its parent is the greater of these two.
#pragma once
#include "paper.cuh"

constexpr u32 NONE = ~0u;

// Levels of minima have chunks of 8.
constexpr u32 CHUNK = 8, SHIFT = 3;

template <class K> __device__ __forceinline__ K entry_of(const PaperIndex& x, u32 k, u64 i) {
  return load_entry(static_cast<const K*>(x.level[k]) + i);
}

// Returns the last position before `i` whose key is not greater than `key`, or NONE.
template <class K> __device__ __forceinline__ u32 last_not_greater(const PaperIndex& x, u32 i, K key) {
  u32 k = 0;
  u64 end = i;  // no entry from here on is the one, nor covers it
  for (;;) {
    u64 first = k == x.top ? 0 : end & ~u64(CHUNK - 1);
    while (end > first && Key<K>::less(key, entry_of<K>(x, k, end - 1))) end--;
    if (end > first) break;
    if (k == x.top) return NONE;
    end >>= SHIFT;
    k++;
  }
  while (k > 0) {
    k--;
    end <<= SHIFT;
    while (Key<K>::less(key, entry_of<K>(x, k, end - 1))) end--;
  }
  return u32(end - 1);
}

// Returns the first position after `i` whose key is smaller than `key`, or n.
template <class K> __device__ __forceinline__ u32 first_smaller(const PaperIndex& x, u32 i, K key) {
  u32 k = 0;
  u64 begin = i + u64(1);
  for (;;) {
    u64 entries = ((x.column.n - 1) >> SHIFT * k) + 1;
    u64 end = (begin + CHUNK - 1) & ~u64(CHUNK - 1);
    if (k == x.top || end > entries) end = entries;
    while (begin < end && !Key<K>::less(entry_of<K>(x, k, begin), key)) begin++;
    if (begin < end) break;
    if (k == x.top || begin >= entries) return u32(x.column.n);
    begin >>= SHIFT;
    k++;
  }
  while (k > 0) {
    k--;
    begin <<= SHIFT;
    while (!Key<K>::less(entry_of<K>(x, k, begin), key)) begin++;
  }
  return u32(begin);
}

// Whether `right` is the parent of a node between `left` and `right`: of equal ones the right is below the left.
template <class K> __device__ __forceinline__ bool parent_is_right(const PaperIndex& x, u32 left, u32 right) {
  return right < x.column.n && (left == NONE || !Key<K>::less(entry_of<K>(x, 0, right), entry_of<K>(x, 0, left)));
}
