// The index as kernels get it: keys, levels, table, validity. Shared by all kernels; the host's counterpart is
// `crates/rmq-engine/src/cuda/rmq/layout.rs`.
//
//   level[top]   o o o o o o          + table: row j holds the minima of 2^j neighbours of level[top]
//   ...
//   level[1]     o o o o o o o o o    minima of chunks of level[0]
//   level[0]     x x x x x x x x x x x x x x x x x x   the column
//
// A chunk is one cache line of 128 bytes (64 in the index of a small column). Levels hold keys (unsigned, order-preserving);
// the column holds the original bits, or, if it has NULLs (`keyed`), keys with the greatest key for NULL.
#pragma once
#include "device.cuh"

using u8 = unsigned char;
using u32 = unsigned int;
using u64 = unsigned long long;
using i64 = long long;

struct alignas(16) u128 {
  u64 lo, hi;
};

__device__ __forceinline__ void store_streamed(u128* p, u128 v) {
  store_streamed(&p->lo, v.lo);
  store_streamed(&p->hi, v.hi);
}

constexpr int MAX_LEVELS = 8;
constexpr int MAX_VALID_LEVELS = 8;

// Passed to kernels by value. Pointers are device addresses.
struct Index {
  u64 n;                           // values in the column
  u64 fold[2], flip[2];            // key = x ^ (x >> arithmetic (W - 1) & fold) ^ flip, low word first
  const void* level[MAX_LEVELS];   // level[k][i] is the minimum of chunk i of level[k - 1]
  // The offset of the leftmost minimum of level[k][i] from the first value that the entry covers: u8 for k = 1, u32 above. Null in an index
  // without positions.
  const void* offset[MAX_LEVELS];
  const void* table;               // keys; row j >= 1 begins at (j - 1) * table_stride, row 0 is level[top]
  const u32* table_at;             // the entry of level[top] with that minimum, the leftmost; null without positions
  u64 table_stride;                // entries from row to row
  // Bit i of valid[0] is set if value i is not NULL; bit i of valid[k] is set if word i of valid[k - 1] is not 0. Null without NULLs.
  const u32* valid[MAX_VALID_LEVELS];
  u32 top;                         // at least 1
  u32 rows;                        // rows of the table, including row 0
  u32 valid_levels;                // 0 without NULLs
  u32 keyed;                       // whether level[0] holds keys
};

// --- keys of three widths ---

template <class K> struct Key;

template <> struct Key<u32> {
  static __device__ __forceinline__ u32 max() { return ~0u; }
  static __device__ __forceinline__ bool less(u32 a, u32 b) { return a < b; }
  static __device__ __forceinline__ bool same(u32 a, u32 b) { return a == b; }
  static __device__ __forceinline__ u32 min(u32 a, u32 b) { return a < b ? a : b; }
  static __device__ __forceinline__ u32 fold(u32 x, u32 fold, u32 flip) { return x ^ (u32(int(x) >> 31) & fold) ^ flip; }
  static __device__ __forceinline__ u32 word(const u64* w) { return u32(w[0]); }
  static __device__ __forceinline__ u32 flipped(u32 x, u32 flip) { return x ^ flip; }
  static __device__ __forceinline__ u32 shuffle(u32 x, int lane) { return __shfl_sync(~0u, x, lane); }
  static __device__ __forceinline__ u32 shuffle_xor(u32 x, int lane) { return __shfl_xor_sync(~0u, x, lane); }
};

template <> struct Key<u64> {
  static __device__ __forceinline__ u64 max() { return ~0ull; }
  static __device__ __forceinline__ bool less(u64 a, u64 b) { return a < b; }
  static __device__ __forceinline__ bool same(u64 a, u64 b) { return a == b; }
  static __device__ __forceinline__ u64 min(u64 a, u64 b) { return a < b ? a : b; }
  static __device__ __forceinline__ u64 fold(u64 x, u64 fold, u64 flip) { return x ^ (u64(i64(x) >> 63) & fold) ^ flip; }
  static __device__ __forceinline__ u64 word(const u64* w) { return w[0]; }
  static __device__ __forceinline__ u64 flipped(u64 x, u64 flip) { return x ^ flip; }
  static __device__ __forceinline__ u64 shuffle(u64 x, int lane) { return __shfl_sync(~0u, x, lane); }
  static __device__ __forceinline__ u64 shuffle_xor(u64 x, int lane) { return __shfl_xor_sync(~0u, x, lane); }
};

template <> struct Key<u128> {
  static __device__ __forceinline__ u128 max() { return {~0ull, ~0ull}; }
  static __device__ __forceinline__ bool less(u128 a, u128 b) { return a.hi < b.hi || (a.hi == b.hi && a.lo < b.lo); }
  static __device__ __forceinline__ bool same(u128 a, u128 b) { return a.hi == b.hi && a.lo == b.lo; }
  static __device__ __forceinline__ u128 min(u128 a, u128 b) { return less(b, a) ? b : a; }
  static __device__ __forceinline__ u128 fold(u128 x, u128 fold, u128 flip) {
    u64 sign = u64(i64(x.hi) >> 63);
    return {x.lo ^ (sign & fold.lo) ^ flip.lo, x.hi ^ (sign & fold.hi) ^ flip.hi};
  }
  static __device__ __forceinline__ u128 word(const u64* w) { return {w[0], w[1]}; }
  static __device__ __forceinline__ u128 flipped(u128 x, u128 flip) { return {x.lo ^ flip.lo, x.hi ^ flip.hi}; }
  static __device__ __forceinline__ u128 shuffle(u128 x, int lane) {
    return {__shfl_sync(~0u, x.lo, lane), __shfl_sync(~0u, x.hi, lane)};
  }
  static __device__ __forceinline__ u128 shuffle_xor(u128 x, int lane) {
    return {__shfl_xor_sync(~0u, x.lo, lane), __shfl_xor_sync(~0u, x.hi, lane)};
  }
};

// Encodes stored bits as keys, and decodes keys.
template <class K> struct Encoding {
  K fold, flip;
  static __device__ __forceinline__ Encoding of(const Index& x) { return {Key<K>::word(x.fold), Key<K>::word(x.flip)}; }
  // The encoding of level[0]: the identity if it holds keys.
  static __device__ __forceinline__ Encoding of_column(const Index& x) {
    u64 none[2] = {0, 0};
    return x.keyed ? Encoding{Key<K>::word(none), Key<K>::word(none)} : of(x);
  }
  __device__ __forceinline__ K encode(K bits) const { return Key<K>::fold(bits, fold, flip); }
  // `fold` does not change the sign, so folding twice is the identity.
  __device__ __forceinline__ K decode(K key) const {
    u64 none[2] = {0, 0};
    return Key<K>::fold(Key<K>::flipped(key, flip), fold, Key<K>::word(none));
  }
};

// The values of one 16-byte load.
template <class K> struct alignas(16) Pack {
  static constexpr int SIZE = 16 / sizeof(K);
  K at[SIZE];
};

// A chunk of BYTES bytes: 128 (a cache line) or 64.
template <class K, int BYTES> struct Chunk {
  static constexpr int PACKS = BYTES / 16;
  static constexpr int SIZE = BYTES / sizeof(K);
  static constexpr int SHIFT = SIZE == 4 ? 2 : SIZE == 8 ? 3 : SIZE == 16 ? 4 : 5;
  static_assert(1 << SHIFT == SIZE && SIZE <= 32, "a value's chunk is a shift away, a chunk's entries have a bit each in a word");
};

// --- the minimum of several threads ---

// The smallest key that a thread has seen, and its position.
template <class K> struct Least {
  K key;
  u32 at;
};

// Returns the minimum of LANES neighbouring threads to all of them; if AT, of equal keys the one with the smallest `at`.
template <class K, int LANES, bool AT> __device__ __forceinline__ Least<K> least_of_lanes(Least<K> mine) {
  Least<K> least = mine;
#pragma unroll
  for (int step = LANES / 2; step > 0; step /= 2) least.key = Key<K>::min(Key<K>::shuffle_xor(least.key, step), least.key);
  if (AT) {
    least.at = Key<K>::same(mine.key, least.key) ? mine.at : ~0u;
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2) least.at = Key<u32>::min(__shfl_xor_sync(~0u, least.at, step), least.at);
  }
  return least;
}

// --- validity ---

// Returns the position of the first value at or after `from` that is not NULL; n or more if there is none.
__device__ inline u64 next_valid(const Index& x, u64 from) {
  u64 i = from;
  for (u32 up = 0; up < x.valid_levels; up++) {
    u64 bits = (x.n + (1ull << 5 * up) - 1) >> 5 * up;
    if (i >= bits) return x.n;
    u32 word = x.valid[up][i / 32] & ~0u << i % 32;
    if (word != 0) {
      i = i / 32 * 32 + __ffs(word) - 1;
      while (up > 0) {
        up--;
        i = i * 32 + __ffs(x.valid[up][i]) - 1;
      }
      return i;
    }
    i = i / 32 + 1;
  }
  return x.n;
}
