// From key ranges to positions: where in a sorted segment of keys a range of keys begins and ends.
//
//   bounds_K_P    const K* keys, u32 m, const P* begin, const P* end, const K* low, const K* high, u32 kind, P* left, P* right
//
// Query q asks for the rows of begin[q]..end[q] (the end is past the last) with keys from low[q] to high[q]; `kind` tells of all queries of
// the batch which of both bounds there are and which count as inside. `left` and `right` come out as `answer_*` takes them: inclusive,
// 1 and 0 where no row is inside. Keys are order-preserving (`Encoding`) and ascend within a segment. One thread a query.
#include "index.cuh"

enum BoundKind : u32 {
  HAS_LOW = 1,          // else `low` may be null
  LOW_IS_INSIDE = 2,
  HAS_HIGH = 4,         // else `high` may be null
  HIGH_IS_INSIDE = 8,
};

// Whether a key stands before the first row that is wanted, or before the first row behind them.
template <class K> __device__ __forceinline__ bool before(K key, K bound, bool or_same) {
  return or_same ? !Key<K>::less(bound, key) : Key<K>::less(key, bound);
}

template <class K> __device__ __forceinline__ K load_key(const K* p) { return __ldg(p); }
template <> __device__ __forceinline__ u128 load_key(const u128* p) {
  ulonglong2 bits = __ldg(reinterpret_cast<const ulonglong2*>(p));
  return {bits.x, bits.y};
}

template <class K, class P>
__device__ __forceinline__ void bounds(const K* keys, u32 m, const P* begin, const P* end, const K* low, const K* high, u32 kind, P* left,
                                       P* right) {
  u32 q = blockIdx.x * blockDim.x + threadIdx.x;
  if (q >= m) return;
  P first = load_streamed(begin + q), behind = load_streamed(end + q);
  P l = first, r = first;
  K a = Key<K>::max(), b = Key<K>::max();
  if (kind & HAS_LOW) a = load_key(low + q);
  if (kind & HAS_HIGH) b = load_key(high + q);
  bool a_or_same = !(kind & LOW_IS_INSIDE), b_or_same = kind & HIGH_IS_INSIDE;
  // Both searches go through the same lengths, so that two loads are under way in each step.
  P length = first < behind ? behind - first : 0;
  for (; length > 1; length -= length / 2) {
    P half = length / 2;
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
  store_streamed(left + q, some ? l : P(1));
  store_streamed(right + q, some ? P(r - 1) : P(0));
}

#define BOUNDS(K, P, BITS)                                                                                                     \
  KERNEL(256) bounds_##K##_p##BITS(const K* keys, u32 m, const P* begin, const P* end, const K* low, const K* high, u32 kind,  \
                                   P* left, P* right) {                                                                        \
    bounds<K, P>(keys, m, begin, end, low, high, kind, left, right);                                                           \
  }

BOUNDS(u32, u32, 32)
BOUNDS(u32, u64, 64)
BOUNDS(u64, u32, 32)
BOUNDS(u64, u64, 64)
BOUNDS(u128, u32, 32)
BOUNDS(u128, u64, 64)
