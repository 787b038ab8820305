// Finds the positions at which a range of keys begins and ends in a sorted segment.
//
//   bounds_K    const K* keys, u32 n, u32 m, const u32* begin, const u32* end, const K* low, const K* high, u32 kind, u32* left, u32* right
//
// Query q searches rows begin[q]..end[q] (the end is exclusive; both null: all n rows) for keys from low[q] to high[q]. `kind` tells for the
// whole batch which bounds there are and which are inclusive. `left` and `right` are inclusive positions, as `answer_*` takes them: 1 and 0 if no
// row matches. Keys are order-preserving (`Encoding`) and ascend within a segment. One thread per query.
#include "index.cuh"

enum BoundKind : u32 {
  HAS_LOW = 1,          // otherwise `low` may be null
  LOW_IS_INSIDE = 2,
  HAS_HIGH = 4,         // otherwise `high` may be null
  HIGH_IS_INSIDE = 8,
};

// Whether a key precedes the bound, or, if `or_same`, equals it.
template <class K> __device__ __forceinline__ bool before(K key, K bound, bool or_same) {
  return or_same ? !Key<K>::less(bound, key) : Key<K>::less(key, bound);
}

template <class K> __device__ __forceinline__ K load_key(const K* p) { return __ldg(p); }
template <> __device__ __forceinline__ u128 load_key(const u128* p) {
  ulonglong2 bits = __ldg(reinterpret_cast<const ulonglong2*>(p));
  return {bits.x, bits.y};
}

template <class K>
__device__ __forceinline__ void bounds(const K* keys, u32 n, u32 m, const u32* begin, const u32* end, const K* low, const K* high, u32 kind,
                                       u32* left, u32* right) {
  u32 q = blockIdx.x * blockDim.x + threadIdx.x;
  if (q >= m) return;
  u32 first = begin ? load_streamed(begin + q) : 0, behind = end ? load_streamed(end + q) : n;
  u32 l = first, r = first;
  K a = Key<K>::max(), b = Key<K>::max();
  if (kind & HAS_LOW) a = load_key(low + q);
  if (kind & HAS_HIGH) b = load_key(high + q);
  bool a_or_same = !(kind & LOW_IS_INSIDE), b_or_same = kind & HIGH_IS_INSIDE;
  // Both searches use the same lengths, so that two loads are in flight in each step.
  u32 length = first < behind ? behind - first : 0;
  for (; length > 1; length -= length / 2) {
    u32 half = length / 2;
    K at_l = load_key(keys + (l + half - 1)), at_r = load_key(keys + (r + half - 1));
    l += before(at_l, a, a_or_same) ? half : 0;
    r += before(at_r, b, b_or_same) ? half : 0;
  }
  if (length == 1) {
    l += before(load_key(keys + l), a, a_or_same);
    r += before(load_key(keys + r), b, b_or_same);
  }
  if (!(kind & HAS_LOW)) l = first;
  if (!(kind & HAS_HIGH)) r = behind;
  bool some = first < behind && l < r;
  store_streamed(left + q, some ? l : 1u);
  store_streamed(right + q, some ? r - 1 : 0u);
}

#define BOUNDS(K)                                                                                                                    \
  KERNEL(256) bounds_##K(const K* keys, u32 n, u32 m, const u32* begin, const u32* end, const K* low, const K* high, u32 kind,       \
                         u32* left, u32* right) {                                                                                    \
    bounds<K>(keys, n, m, begin, end, low, high, kind, left, right);                                                                 \
  }

BOUNDS(u32)
BOUNDS(u64)
BOUNDS(u128)
