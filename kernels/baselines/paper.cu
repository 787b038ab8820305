// Baselines: the kernels of "GPU-RMQ: Accelerating Range Minimum Queries on Modern GPUs" (Kreis et al., 2026).
//
// Level k + 1 holds the minima of chunks of c entries of level k, up to a level of at most t entries (the cutoff). A search scans the partial
// chunks at both ends of the range and goes up with the whole chunks in between, until few are left or the top is reached, and scans those.
//
//   paper_keys_K                    Index x: encodes the column as keys, NULL as the greatest; one thread per value
//   paper_build_K_{value,P}         PaperIndex x, u32 k, u32 shift: level k of chunks of 1 << shift; one thread per entry
//   paper_coalesced_K_gG_cC_P_W     (CL) G threads scan a chunk together; each warp reads 32 queries at once and its groups take turns
//                                   (warp-local queuing); one thread per query
//   paper_multi_load_K_gG_cC_P_W    (CL) without the queue: all threads of a group load the query; G threads per query
//   paper_no_shuffle_K_gG_cC_P_W    (CL) the groups take turns, and all threads of a group load the query of each turn; one thread per query
//   paper_atomic_min_K_gG_cC_P_W    (CL) the same without warp intrinsics: they combine their minima by atomicMin in global memory
//   paper_vector_K_cC_P_W           (VL) one thread per query, 16-byte loads
//   paper_one_sided_K_cC_P_W        (VL) the same as its authors write it: of a partial chunk, only the end within it is compared with
//   paper_full_scan_K_P_W           no index, as published: one thread per query, one value a load
//   paper_warp_scan_K_P_W           no index: a warp per query, 16-byte loads
//
// The answering kernels take the arguments of `answer_*`, with a PaperIndex instead of the Index. `position` also writes values if `values` is not
// null. `no_shuffle`, `atomic_min` and `one_sided` answer with values only. `atomic_min` and `one_sided` need a column without NULLs and leave values
// as keys, and `atomic_min` expects the greatest key in all of `values`. For `multi_load` and `warp_scan`, `valid` must be 0 before the launch. In the scans the column may
// hold the original bits. With RMQ_HEAT_MAP this compiles to CL and VL with every G and C, for values of 32 bits only; otherwise G is 16 and C is 32
// (CL) or 8 (VL).
#include "paper.cuh"

// The smallest key that a thread has seen. If AT, entries must be seen from left to right, and the leftmost minimum's entry is recorded.
template <class K, class P, bool AT> struct Seen {
  K key = Key<K>::max();
  P entry = 0;
  u32 level = 0;

  __device__ __forceinline__ void see(K other, P other_entry, u32 other_level) {
    if (AT) {
      if (Key<K>::less(other, key)) key = other, entry = other_entry, level = other_level;
    } else {
      key = Key<K>::min(other, key);
    }
  }
  __device__ __forceinline__ P position(const PaperIndex& x) const {
    return level == 0 ? entry : static_cast<const P*>(x.position[level])[entry];
  }
};

// --- minima of groups ---

// Returns the minimum over the threads of a group to all of them.
template <class K, class P, int GROUP, bool AT>
__device__ __forceinline__ K least_of_group(const PaperIndex& x, const Seen<K, P, AT>& seen, P& position) {
  K least = seen.key;
#pragma unroll
  for (int step = GROUP / 2; step > 0; step /= 2) least = Key<K>::min(Key<K>::shuffle_xor(least, step), least);
  if (AT) {
    position = ~P(0);
    if (Key<K>::same(seen.key, least) && Key<K>::less(least, Key<K>::max())) position = seen.position(x);
#pragma unroll
    for (int step = GROUP / 2; step > 0; step /= 2) position = Key<P>::min(Key<P>::shuffle_xor(position, step), position);
  }
  return least;
}

// --- CL: a group of threads reads neighbouring entries ---

// Scans entries first..end of one chunk.
template <class K, class P, int GROUP, int CHUNK, bool AT>
__device__ __forceinline__ void scan_chunk(const PaperIndex& x, u32 k, P first, P end, int lane, Seen<K, P, AT>& seen) {
  const K* level = static_cast<const K*>(x.level[k]);
  P start = (first & ~P(CHUNK - 1)) + lane;
#pragma unroll
  for (int step = 0; step < CHUNK; step += GROUP) {
    P i = start + step;
    if (i >= first && i < end) seen.see(load_entry(level + i), i, k);
  }
}

// Scans any number of entries first..end.
template <class K, class P, int GROUP, bool AT>
__device__ __forceinline__ void scan(const PaperIndex& x, u32 k, P first, P end, int lane, Seen<K, P, AT>& seen) {
  const K* level = static_cast<const K*>(x.level[k]);
  for (P start = first & ~P(GROUP - 1); start < end; start += GROUP) {
    P i = start + lane;
    if (i >= first && i < end) seen.see(load_entry(level + i), i, k);
  }
}

// Searches values l..r (r is exclusive).
template <class K, class P, int GROUP, int CHUNK, bool AT>
__device__ __forceinline__ Seen<K, P, AT> search_coalesced(const PaperIndex& x, P l, P r, int lane) {
  constexpr int SHIFT = CHUNK == 8 ? 3 : CHUNK == 16 ? 4 : CHUNK == 32 ? 5 : CHUNK == 64 ? 6 : 7;
  static_assert(1 << SHIFT == CHUNK && CHUNK >= GROUP, "a group reads a chunk in whole steps");
  Seen<K, P, AT> seen;
  u32 k = 0;
  P first = l, end = r;
  for (; k < x.top && end - first > 2 * CHUNK; k++) {
    P inner_first = (first + CHUNK - 1) & ~P(CHUNK - 1), inner_end = end & ~P(CHUNK - 1);
    scan_chunk<K, P, GROUP, CHUNK, AT>(x, k, first, inner_first, lane, seen);
    if (!AT) scan_chunk<K, P, GROUP, CHUNK, AT>(x, k, inner_end, end, lane, seen);
    first = inner_first >> SHIFT;
    end = inner_end >> SHIFT;
  }
  scan<K, P, GROUP, AT>(x, k, first, end, lane, seen);
  // In the order from left to right, the right ends come last.
  while (AT && k > 0) {
    k--;
    end = r >> SHIFT * k;
    scan_chunk<K, P, GROUP, CHUNK, AT>(x, k, end & ~P(CHUNK - 1), end, lane, seen);
  }
  return seen;
}

template <class K, class P, int GROUP, int CHUNK, bool AT>
__device__ __forceinline__ void coalesced(const PaperIndex& x, u32 m, const P* left, const P* right, K* values, i64* positions, u32* valid) {
  u32 q = blockIdx.x * blockDim.x + threadIdx.x;
  int lane = threadIdx.x % GROUP;
  P l = 1, r = 0;
  if (q < m) {
    l = left[q];
    r = right[q];
  }
  K mine = Key<K>::max();
  P my_position = 0;
  for (int turn = 0; turn < GROUP; turn++) {
    P its_l = __shfl_sync(~0u, l, turn, GROUP), its_r = __shfl_sync(~0u, r, turn, GROUP);
    Seen<K, P, AT> seen;
    if (its_l <= its_r) seen = search_coalesced<K, P, GROUP, CHUNK, AT>(x, its_l, its_r + 1, lane);
    P position = 0;
    K least = least_of_group<K, P, GROUP, AT>(x, seen, position);
    if (turn == lane) {
      mine = least;
      my_position = position;
    }
  }
  bool some = q < m && put<K, P, AT>(x.column, q, l, r, mine, my_position, values, positions);
  u32 word = __ballot_sync(~0u, some);
  if (valid != nullptr && threadIdx.x % 32 == 0 && q < m) valid[q / 32] = word;
}

template <class K, class P, int GROUP, int CHUNK, bool AT>
__device__ __forceinline__ void multi_load(const PaperIndex& x, u32 m, const P* left, const P* right, K* values, i64* positions, u32* valid) {
  u32 q = (blockIdx.x * u64(blockDim.x) + threadIdx.x) / GROUP;
  int lane = threadIdx.x % GROUP;
  P l = 1, r = 0;
  if (q < m) {
    l = left[q];
    r = right[q];
  }
  Seen<K, P, AT> seen;
  if (l <= r) seen = search_coalesced<K, P, GROUP, CHUNK, AT>(x, l, r + 1, lane);
  P position = 0;
  K least = least_of_group<K, P, GROUP, AT>(x, seen, position);
  if (lane == 0 && q < m) {
    bool some = put<K, P, AT>(x.column, q, l, r, least, position, values, positions);
    if (some && valid != nullptr) atomicOr(valid + q / 32, 1u << q % 32);
  }
}

template <class K, class P, int GROUP, int CHUNK>
__device__ __forceinline__ void no_shuffle(const PaperIndex& x, u32 m, const P* left, const P* right, K* values, i64*, u32* valid) {
  u32 q = blockIdx.x * blockDim.x + threadIdx.x;
  int lane = threadIdx.x % GROUP;
  K mine = Key<K>::max();
  P my_l = 1, my_r = 0;
  for (int turn = 0; turn < GROUP; turn++) {
    u32 its = q - lane + turn;
    P l = 1, r = 0;
    if (its < m) {
      l = left[its];
      r = right[its];
    }
    Seen<K, P, false> seen;
    if (l <= r) seen = search_coalesced<K, P, GROUP, CHUNK, false>(x, l, r + 1, lane);
    P position = 0;
    K least = least_of_group<K, P, GROUP, false>(x, seen, position);
    if (turn == lane) {
      mine = least;
      my_l = l;
      my_r = r;
    }
  }
  bool some = q < m && put<K, P, false>(x.column, q, my_l, my_r, mine, P(0), values, nullptr);
  u32 word = __ballot_sync(~0u, some);
  if (valid != nullptr && threadIdx.x % 32 == 0 && q < m) valid[q / 32] = word;
}

template <class K, class P, int GROUP, int CHUNK>
__device__ __forceinline__ void atomic_min(const PaperIndex& x, u32 m, const P* left, const P* right, K* values, i64*, u32* valid) {
  u32 q = blockIdx.x * blockDim.x + threadIdx.x;
  int lane = threadIdx.x % GROUP;
  for (int turn = 0; turn < GROUP; turn++) {
    u32 its = q - lane + turn;
    if (its >= m) continue;
    P l = left[its], r = right[its];
    if (l > r) continue;
    K least = search_coalesced<K, P, GROUP, CHUNK, false>(x, l, r + 1, lane).key;
    atomicMin(values + its, least);
  }
  if (valid == nullptr) return;
  u32 word = __ballot_sync(~0u, q < m && left[q] <= right[q]);
  if (threadIdx.x % 32 == 0 && q < m) valid[q / 32] = word;
}

// --- VL: a thread reads 16 bytes at a time ---

// Scans entries first..end of the pack that begins at `start`.
template <class K, class P, bool AT>
__device__ __forceinline__ void scan_pack(const PaperIndex& x, u32 k, P start, P first, P end, Seen<K, P, AT>& seen) {
  uint4 bits = __ldg(reinterpret_cast<const uint4*>(static_cast<const K*>(x.level[k]) + start));
  Pack<K> pack;
  memcpy(&pack, &bits, 16);
#pragma unroll
  for (int j = 0; j < Pack<K>::SIZE; j++) {
    if (start + j >= first && start + j < end) seen.see(pack.at[j], start + j, k);
  }
}

// Scans entries first..end of one chunk.
template <class K, class P, int CHUNK, bool AT>
__device__ __forceinline__ void scan_chunk_by_packs(const PaperIndex& x, u32 k, P first, P end, Seen<K, P, AT>& seen) {
  P chunk = first & ~P(CHUNK - 1);
#pragma unroll
  for (int step = 0; step < CHUNK; step += Pack<K>::SIZE) {
    P start = chunk + step;
    if (start + Pack<K>::SIZE > first && start < end) scan_pack<K, P, AT>(x, k, start, first, end, seen);
  }
}

template <class K, class P, int CHUNK, bool AT>
__device__ __forceinline__ void vector(const PaperIndex& x, u32 m, const P* left, const P* right, K* values, i64* positions, u32* valid) {
  constexpr int PACK = Pack<K>::SIZE, SHIFT = CHUNK == 4 ? 2 : CHUNK == 8 ? 3 : CHUNK == 16 ? 4 : 5;
  static_assert(1 << SHIFT == CHUNK && CHUNK >= PACK, "a thread reads a chunk in whole packs");
  u32 q = blockIdx.x * blockDim.x + threadIdx.x;
  bool some = false;
  if (q < m) {
    P l = left[q], r = right[q];
    Seen<K, P, AT> seen;
    if (l <= r) {
      u32 k = 0;
      P first = l, end = r + 1;
      for (; k < x.top && end - first > CHUNK; k++) {
        P inner_first = (first + CHUNK - 1) & ~P(CHUNK - 1), inner_end = end & ~P(CHUNK - 1);
        if (inner_end < inner_first) break;
        scan_chunk_by_packs<K, P, CHUNK, AT>(x, k, first, inner_first, seen);
        if (!AT) scan_chunk_by_packs<K, P, CHUNK, AT>(x, k, inner_end, end, seen);
        first = inner_first >> SHIFT;
        end = inner_end >> SHIFT;
      }
      for (P start = first & ~P(PACK - 1); start < end; start += PACK) scan_pack<K, P, AT>(x, k, start, first, end, seen);
      // In the order from left to right, the right ends come last.
      while (AT && k > 0) {
        k--;
        end = (r + 1) >> SHIFT * k;
        scan_chunk_by_packs<K, P, CHUNK, AT>(x, k, end & ~P(CHUNK - 1), end, seen);
      }
    }
    P position = AT && Key<K>::less(seen.key, Key<K>::max()) ? seen.position(x) : 0;
    some = put<K, P, AT>(x.column, q, l, r, seen.key, position, values, positions);
  }
  u32 word = __ballot_sync(~0u, some);
  if (valid != nullptr && threadIdx.x % 32 == 0 && q < m) valid[q / 32] = word;
}

// Sees entries of the pack that begins at `start`: those from `bound` on, or those before it.
template <class K, class P, bool BEFORE>
__device__ __forceinline__ void see_pack(const K* level, P start, P bound, Seen<K, P, false>& seen) {
  uint4 bits = __ldg(reinterpret_cast<const uint4*>(level + start));
  Pack<K> pack;
  memcpy(&pack, &bits, 16);
#pragma unroll
  for (int j = 0; j < Pack<K>::SIZE; j++) {
    if (BEFORE ? start + j < bound : start + j >= bound) seen.see(pack.at[j], start + j, 0);
  }
}

template <class K, class P, int CHUNK>
__device__ __forceinline__ K least_one_sided(const PaperIndex& x, P first, P end) {
  constexpr int PACK = Pack<K>::SIZE, SHIFT = CHUNK == 4 ? 2 : CHUNK == 8 ? 3 : CHUNK == 16 ? 4 : 5;
  static_assert(1 << SHIFT == CHUNK && CHUNK >= PACK, "a thread reads a chunk in whole packs");
  Seen<K, P, false> seen;
  u32 k = 0;
  for (; k < x.top && end - first > CHUNK; k++) {
    P inner_first = (first + CHUNK - 1) & ~P(CHUNK - 1), inner_end = end & ~P(CHUNK - 1);
    if (inner_end < inner_first) break;
    const K* level = static_cast<const K*>(x.level[k]);
#pragma unroll
    for (int step = 0; step < CHUNK; step += PACK) {
      P start = (first & ~P(CHUNK - 1)) + step;
      if (start + PACK > first && start < inner_first) see_pack<K, P, false>(level, start, first, seen);
    }
#pragma unroll
    for (int step = 0; step < CHUNK; step += PACK) {
      P start = inner_end + step;
      if (start < end) see_pack<K, P, true>(level, start, end, seen);
    }
    first = inner_first >> SHIFT;
    end = inner_end >> SHIFT;
  }
  for (P start = first & ~P(PACK - 1); start < end; start += PACK) scan_pack<K, P, false>(x, k, start, first, end, seen);
  return seen.key;
}

template <class K, class P, int CHUNK>
__device__ __forceinline__ void one_sided(const PaperIndex& x, u32 m, const P* left, const P* right, K* values, i64*, u32* valid) {
  u32 q = blockIdx.x * blockDim.x + threadIdx.x;
  P l = 1, r = 0;
  if (q < m) {
    l = left[q];
    r = right[q];
    values[q] = l <= r ? least_one_sided<K, P, CHUNK>(x, l, r + 1) : Key<K>::max();
  }
  if (valid == nullptr) return;
  u32 word = __ballot_sync(~0u, l <= r);
  if (threadIdx.x % 32 == 0 && q < m) valid[q / 32] = word;
}

// --- full scans ---

template <class K, class P, bool AT>
__device__ __forceinline__ void full_scan(const PaperIndex& x, u32 m, const P* left, const P* right, K* values, i64* positions, u32* valid) {
  u32 q = blockIdx.x * blockDim.x + threadIdx.x;
  bool some = false;
  if (q < m) {
    P l = left[q], r = right[q];
    auto encoding = Encoding<K>::of_column(x.column);
    const K* column = static_cast<const K*>(x.column.level[0]);
    Seen<K, P, AT> seen;
    for (u64 i = l; i <= r; i++) seen.see(encoding.encode(load_entry(column + i)), P(i), 0);
    some = put<K, P, AT>(x.column, q, l, r, seen.key, seen.entry, values, positions);
  }
  u32 word = __ballot_sync(~0u, some);
  if (valid != nullptr && threadIdx.x % 32 == 0 && q < m) valid[q / 32] = word;
}

template <class K, class P, bool AT>
__device__ __forceinline__ void warp_scan(const PaperIndex& x, u32 m, const P* left, const P* right, K* values, i64* positions, u32* valid) {
  constexpr int PACK = Pack<K>::SIZE, AHEAD = 4;
  u32 q = (blockIdx.x * u64(blockDim.x) + threadIdx.x) / 32;
  if (q >= m) return;
  int lane = threadIdx.x % 32;
  P l = left[q], r = right[q];
  auto encoding = Encoding<K>::of_column(x.column);
  const uint4* column = static_cast<const uint4*>(x.column.level[0]);
  Seen<K, P, AT> seen;
  for (u64 base = l / PACK; l <= r && base * PACK <= r; base += 32 * AHEAD) {
    uint4 bits[AHEAD];
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
      u64 pack = base + i * 32 + lane;
      if (pack * PACK <= r) bits[i] = __ldg(column + pack);
    }
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
      u64 start = (base + i * 32 + lane) * PACK;
      Pack<K> keys;
      memcpy(&keys, &bits[i], 16);
#pragma unroll
      for (int j = 0; j < PACK; j++) {
        if (start + j >= l && start + j <= r) seen.see(encoding.encode(keys.at[j]), P(start + j), 0);
      }
    }
  }
  P position = 0;
  K least = least_of_group<K, P, 32, AT>(x, seen, position);
  if (lane == 0) {
    bool some = put<K, P, AT>(x.column, q, l, r, least, position, values, positions);
    if (some && valid != nullptr) atomicOr(valid + q / 32, 1u << q % 32);
  }
}

// --- levels ---

template <class K> __device__ __forceinline__ void keys(const Index& x) {
  u64 i = blockIdx.x * u64(blockDim.x) + threadIdx.x;
  if (i >= x.n) return;
  K* column = static_cast<K*>(const_cast<void*>(x.level[0]));
  bool there = x.valid_levels == 0 || (x.valid[0][i / 32] >> i % 32 & 1);
  column[i] = there ? Encoding<K>::of(x).encode(column[i]) : Key<K>::max();
}

// P is the type of positions if AT.
template <class K, class P, bool AT> __device__ __forceinline__ void build(const PaperIndex& x, u32 k, u32 shift) {
  u64 i = blockIdx.x * u64(blockDim.x) + threadIdx.x;
  u64 below = (x.column.n + (1ull << shift * (k - 1)) - 1) >> shift * (k - 1);
  u64 first = i << shift, end = first + (1ull << shift) < below ? first + (1ull << shift) : below;
  if (first >= below) return;
  const K* entries = static_cast<const K*>(x.level[k - 1]);
  Seen<K, u64, AT> seen;
  seen.entry = first;
  for (u64 start = first; start < end; start += Pack<K>::SIZE) {
    Pack<K> pack = *reinterpret_cast<const Pack<K>*>(entries + start);
#pragma unroll
    for (int j = 0; j < Pack<K>::SIZE; j++) {
      if (start + j < end) seen.see(pack.at[j], start + j, 0);
    }
  }
  static_cast<K*>(const_cast<void*>(x.level[k]))[i] = seen.key;
  if (AT) {
    P position = k == 1 ? P(seen.entry) : static_cast<const P*>(x.position[k - 1])[seen.entry];
    static_cast<P*>(const_cast<void*>(x.position[k]))[i] = position;
  }
}

// --- the kernels ---

#define ASK(NAME, FUNCTION, K, P, ...)                                                                                        \
  KERNEL(256) NAME(PaperIndex x, u32 m, const P* left, const P* right, K* values, i64* positions, u32* valid) {               \
    FUNCTION<K, P, __VA_ARGS__>(x, m, left, right, values, positions, valid);                                                 \
  }

#define COALESCED(K, G, C, P, BITS, W, AT)                                                       \
  ASK(paper_coalesced_##K##_g##G##_c##C##_p##BITS##_##W, coalesced, K, P, G, C, AT)              \
  ASK(paper_multi_load_##K##_g##G##_c##C##_p##BITS##_##W, multi_load, K, P, G, C, AT)

#define VECTOR(K, C, P, BITS, W, AT) ASK(paper_vector_##K##_c##C##_p##BITS##_##W, vector, K, P, C, AT)

#ifdef RMQ_HEAT_MAP

#define HEAT(G, C) COALESCED(u32, G, C, u32, 32, value, false)
#define HEAT_64_UP(G) HEAT(G, 64) HEAT(G, 128)
#define HEAT_16_UP(G) HEAT(G, 16) HEAT(G, 32) HEAT_64_UP(G)
HEAT(1, 8) HEAT_16_UP(1)
HEAT(2, 8) HEAT_16_UP(2)
HEAT(4, 8) HEAT_16_UP(4)
HEAT(8, 8) HEAT_16_UP(8)
HEAT_16_UP(16)
HEAT(32, 32) HEAT_64_UP(32)
VECTOR(u32, 4, u32, 32, value, false)
VECTOR(u32, 8, u32, 32, value, false)
VECTOR(u32, 16, u32, 32, value, false)
VECTOR(u32, 32, u32, 32, value, false)

#else

#define SCANS(K, P, BITS, W, AT)                                      \
  ASK(paper_full_scan_##K##_p##BITS##_##W, full_scan, K, P, AT)       \
  ASK(paper_warp_scan_##K##_p##BITS##_##W, warp_scan, K, P, AT)

// What the authors compare CL with, and VL as they write it.
#define STEPS(K, P, BITS)                                                                   \
  ASK(paper_no_shuffle_##K##_g16_c32_p##BITS##_value, no_shuffle, K, P, 16, 32)             \
  ASK(paper_atomic_min_##K##_g16_c32_p##BITS##_value, atomic_min, K, P, 16, 32)             \
  ASK(paper_one_sided_##K##_c8_p##BITS##_value, one_sided, K, P, 8)

#define ALL_AS(K, P, BITS, W, AT)        \
  COALESCED(K, 16, 32, P, BITS, W, AT)   \
  VECTOR(K, 8, P, BITS, W, AT)           \
  SCANS(K, P, BITS, W, AT)

#define ALL(K)                                                                                                   \
  KERNEL(256) paper_keys_##K(Index x) { keys<K>(x); }                                                            \
  KERNEL(256) paper_build_##K##_value(PaperIndex x, u32 k, u32 shift) { build<K, u32, false>(x, k, shift); }     \
  KERNEL(256) paper_build_##K##_p32(PaperIndex x, u32 k, u32 shift) { build<K, u32, true>(x, k, shift); }        \
  KERNEL(256) paper_build_##K##_p64(PaperIndex x, u32 k, u32 shift) { build<K, u64, true>(x, k, shift); }        \
  ALL_AS(K, u32, 32, value, false)                                                                               \
  ALL_AS(K, u32, 32, position, true)                                                                             \
  ALL_AS(K, u64, 64, value, false)                                                                               \
  ALL_AS(K, u64, 64, position, true)

ALL(u32)
ALL(u64)
ALL(u128)
STEPS(u32, u32, 32)
STEPS(u32, u64, 64)
STEPS(u64, u32, 32)
STEPS(u64, u64, 64)

#endif
