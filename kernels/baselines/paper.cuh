// What the kernels of the paper and of its competitors share: levels of minima, answers.
#pragma once
#include "../index.cuh"

constexpr int PAPER_LEVELS = 12;

// Passed to kernels by value. All levels hold keys and are padded to 16 bytes.
struct PaperIndex {
  Index column;                        // of which n, fold, flip, level[0], keyed and valid are used
  const void* level[PAPER_LEVELS];     // level[0] is the column
  const void* position[PAPER_LEVELS];  // of the leftmost minimum, from level[1] on, of type P; null without positions
  u32 top;                             // the highest level
};

// --- results ---

// Writes the answer to query `q`; returns whether the range has a value.
template <class K, class P, bool AT>
__device__ __forceinline__ bool put(const Index& column, u32 q, P l, P r, K least, P position, K* values, i64* positions) {
  bool some = l <= r;
  u64 at = position;
  if (some && Key<K>::same(least, Key<K>::max())) {
    at = column.valid_levels ? next_valid(column, l) : l;
    some = at <= r;
  }
  if (!AT || values != nullptr) store_streamed(values + q, Encoding<K>::of(column).decode(least));
  if (AT) store_streamed(positions + q, some ? i64(at) : 0);
  return some;
}

template <class K> __device__ __forceinline__ K load_entry(const K* p) { return __ldg(p); }
template <> __device__ __forceinline__ u128 load_entry(const u128* p) {
  ulonglong2 bits = __ldg(reinterpret_cast<const ulonglong2*>(p));
  return {bits.x, bits.y};
}
