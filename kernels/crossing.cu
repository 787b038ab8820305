// Answers batches of threshold searches: the first, or last, row of each range whose key is at most a threshold.
//
// The search begins where that for minima does (answer.cu): at the lowest level at which the range spans at most two chunks, or with the sparse
// table. It goes from one end of the range, the near one, to the other, the far one. An entry is of interest if it is at most the threshold.
//
// 1. The nearest entry of interest that is within the range has a row; the search remembers it as its node.
// 2. The entry at the near end also covers values outside the range. If it is of interest, the search continues in the chunk below it, where it may
//    find a nearer node.
// 3. Without a node, it continues below the entry at the far end likewise.
// 4. Below the node, each chunk has an entry of interest; the nearest ones lead to the row.
//
// A group of threads reads the chunks of one query after another, of as many queries as it has threads.
#include "index.cuh"

constexpr int THREADS = 256;

// The number of threads that read a chunk together.
constexpr int LANES = 4;

// The lanes of this thread's group.
__device__ __forceinline__ u32 group_lanes() { return ((1u << LANES) - 1) << (threadIdx.x % 32 / LANES * LANES); }

// Returns the entries of a chunk that are at most `threshold`, of those in `mask`, one bit per entry, to all threads of the group.
template <class K, int BYTES, bool COLUMN>
__device__ __forceinline__ u32 at_most(const void* level, u64 chunk, u32 mask, K threshold, Encoding<K> encoding,
                                       const CachePolicy& policy) {
  constexpr int PACK = Pack<K>::SIZE, PACKS = Chunk<K, BYTES>::PACKS;
  int sub = threadIdx.x % LANES;
  const char* from = static_cast<const char*>(level) + chunk * BYTES;
  u32 hits = 0;
#pragma unroll
  for (int pack = sub; pack < PACKS; pack += LANES) {
    if ((mask >> pack * PACK & ((1u << PACK) - 1)) == 0) continue;
    Bits128 bits = COLUMN ? load_once(from + pack * 16, policy) : load_kept(from + pack * 16, policy);
    K keys[PACK];
    memcpy(keys, &bits, 16);
#pragma unroll
    for (int j = 0; j < PACK; j++) {
      K key = COLUMN ? encoding.encode(keys[j]) : keys[j];
      if (!Key<K>::less(threshold, key)) hits |= 1u << (pack * PACK + j);
    }
  }
#pragma unroll
  for (int step = LANES / 2; step > 0; step /= 2) hits |= __shfl_xor_sync(group_lanes(), hits, step);
  return hits & mask;
}

// The entries of a chunk from `entry` on, to the right or to the left.
template <int CHUNK> __device__ __forceinline__ u32 from_entry(u32 entry, bool right) {
  u32 all = CHUNK == 32 ? ~0u : (1u << CHUNK) - 1;
  return right ? all & ~0u << entry : (2u << entry) - 1;
}

// The entry of `hits`, which is not empty, that is nearest to the end where the search begins.
template <bool FIRST> __device__ __forceinline__ u32 nearest(u32 hits) { return FIRST ? __ffs(hits) - 1 : 31 - __clz(hits); }

// Returns the position of the last value up to `from` that is not NULL; n if there is none.
__device__ inline u64 previous_valid(const Index& x, u64 from) {
  u64 i = from;
  for (u32 up = 0; up < x.valid_levels; up++) {
    u32 word = x.valid[up][i / 32] & ((2u << i % 32) - 1);
    if (word != 0) {
      i = i / 32 * 32 + 31 - __clz(word);
      while (up > 0) {
        up--;
        i = i * 32 + 31 - __clz(x.valid[up][i]);
      }
      return i;
    }
    if (i < 32) return x.n;
    i = i / 32 - 1;
  }
  return x.n;
}

// Returns the row of one query, whose range is not empty, to all threads of its group; n if there is none.
template <class K, class P, int BYTES, bool FIRST>
__device__ __forceinline__ u64 search(const Index& x, P l, P r, K threshold, Encoding<K> encoding, const CachePolicy& policy) {
  constexpr int CHUNK = Chunk<K, BYTES>::SIZE, SHIFT = Chunk<K, BYTES>::SHIFT;
  if (x.valid_levels != 0 && Key<K>::same(threshold, Key<K>::max())) {
    // Such a threshold does not tell NULL from the greatest key. All other rows are at most that.
    u64 at = FIRST ? next_valid(x, l) : previous_valid(x, r);
    return at >= l && at <= r ? at : x.n;
  }
  P near = FIRST ? l : r, far = FIRST ? r : l;
  bool found = false, go_near = true, go_far = false;
  u64 node = 0;
  u32 node_level = 0;
  int begin;  // the level where the chunks at the ends are read first
  P a = l >> SHIFT * x.top, b = r >> SHIFT * x.top;
  if (b - a >= 2) {
    const K* level = static_cast<const K*>(x.level[x.top]);
    auto entry = [&](u32 row, P at) {
      const K* minima = row == 0 ? level : static_cast<const K*>(x.table) + (row - 1) * x.table_stride;
      return !Key<K>::less(threshold, minima[at]);
    };
    u32 row = 31 - __clz(u32(b - a - 1));
    P one = a + 1, two = b - (P(1) << row);
    // Where the half nearer to the end has none, the part of the other one that overlaps with it has none either.
    bool in_one = entry(row, one), in_two = entry(row, two);
    P at = (FIRST ? in_one : !in_two) ? one : two;
    found = in_one || in_two;
    if (found) {
      while (row > 0) {
        row--;
        P half = P(1) << row;
        if (FIRST ? !entry(row, at) : entry(row, at + half)) at += half;
      }
      node = at;
      node_level = x.top;
    }
    begin = x.top - 1;
    go_near = entry(0, near >> SHIFT * x.top);
    go_far = entry(0, far >> SHIFT * x.top);
  } else {
    begin = x.top - 1;
    while (begin > 0 && (r >> SHIFT * begin) - (l >> SHIFT * begin) <= 1) begin--;
    P near_chunk = near >> SHIFT * (begin + 1), far_chunk = far >> SHIFT * (begin + 1);
    go_far = near_chunk != far_chunk;
    if (!go_far) {
      u32 near_entry = u32(near >> SHIFT * begin) % CHUNK, far_entry = u32(far >> SHIFT * begin) % CHUNK;
      u32 mask = from_entry<CHUNK>(near_entry, FIRST) & from_entry<CHUNK>(far_entry, !FIRST);
      if (begin == 0) {
        u32 hits = at_most<K, BYTES, true>(x.level[0], near_chunk, mask, threshold, encoding, policy);
        return hits == 0 ? x.n : u64(near_chunk) * CHUNK + nearest<FIRST>(hits);
      }
      // Above the column, the two entries differ.
      u32 hits = at_most<K, BYTES, false>(x.level[begin], near_chunk, mask, threshold, encoding, policy);
      u32 inner = hits & ~(1u << near_entry) & ~(1u << far_entry);
      found = inner != 0;
      if (found) node = u64(near_chunk) * CHUNK + nearest<FIRST>(inner), node_level = begin;
      go_near = (hits >> near_entry & 1) != 0;
      go_far = (hits >> far_entry & 1) != 0;
      begin--;
    }
  }
  for (int k = begin; k >= 0 && go_near; k--) {
    P chunk = near >> SHIFT * (k + 1);
    u32 entry = u32(near >> SHIFT * k) % CHUNK, mask = from_entry<CHUNK>(entry, FIRST);
    u32 hits = k == 0 ? at_most<K, BYTES, true>(x.level[0], chunk, mask, threshold, encoding, policy)
                      : at_most<K, BYTES, false>(x.level[k], chunk, mask, threshold, encoding, policy);
    u32 inner = k == 0 ? hits : hits & ~(1u << entry);
    if (inner != 0) found = true, node = u64(chunk) * CHUNK + nearest<FIRST>(inner), node_level = k;
    go_near = (hits >> entry & 1) != 0;
  }
  for (int k = begin; k >= 0 && go_far && !found; k--) {
    P chunk = far >> SHIFT * (k + 1);
    u32 entry = u32(far >> SHIFT * k) % CHUNK, mask = from_entry<CHUNK>(entry, !FIRST);
    u32 hits = k == 0 ? at_most<K, BYTES, true>(x.level[0], chunk, mask, threshold, encoding, policy)
                      : at_most<K, BYTES, false>(x.level[k], chunk, mask, threshold, encoding, policy);
    u32 inner = k == 0 ? hits : hits & ~(1u << entry);
    if (inner != 0) found = true, node = u64(chunk) * CHUNK + nearest<FIRST>(inner), node_level = k;
    go_far = (hits >> entry & 1) != 0;
  }
  if (!found) return x.n;
  // The chunks below the node are within the range.
  for (int k = int(node_level) - 1; k >= 0; k--) {
    u32 all = from_entry<CHUNK>(0, true);
    u32 hits = k == 0 ? at_most<K, BYTES, true>(x.level[0], node, all, threshold, encoding, policy)
                      : at_most<K, BYTES, false>(x.level[k], node, all, threshold, encoding, policy);
    node = node * CHUNK + nearest<FIRST>(hits);
  }
  return node;
}

template <class K, class P, int BYTES, bool FIRST>
__device__ __forceinline__ void crossing(const Index& x, u32 m, const P* left, const P* right, const K* thresholds, i64* positions,
                                         u32* valid) {
  u32 q = blockIdx.x * blockDim.x + threadIdx.x;
  int lane = threadIdx.x % 32, sub = lane % LANES, group = lane / LANES * LANES;
  auto encoding = Encoding<K>::of_column(x);
  CachePolicy policy;
  P l = 1, r = 0;
  K threshold = Key<K>::max();
  if (q < m) {
    l = load_streamed(left + q);
    r = load_streamed(right + q);
    threshold = thresholds[q];
  }
  u64 at = x.n;
#pragma unroll 1
  for (int turn = 0; turn < LANES; turn++) {
    P from = __shfl_sync(~0u, l, group + turn), to = __shfl_sync(~0u, r, group + turn);
    K limit = Key<K>::shuffle(threshold, group + turn);
    u64 found = x.n;
    if (from <= to) found = search<K, P, BYTES, FIRST>(x, from, to, limit, encoding, policy);
    if (turn == sub) at = found;
    __syncwarp();
  }
  bool some = at < x.n;
  if (q < m) store_streamed(positions + q, some ? i64(at) : 0);
  u32 word = __ballot_sync(~0u, some);
  if (lane == 0 && q < m) valid[q / 32] = word;
}

#define CROSSING_AS(K, BYTES, P, BITS, END, FIRST)                                                                        \
  KERNEL(THREADS) crossing_##K##_c##BYTES##_p##BITS##_##END(Index x, u32 m, const P* left, const P* right,                  \
                                                            const K* thresholds, i64* positions, u32* valid) {            \
    crossing<K, P, BYTES, FIRST>(x, m, left, right, thresholds, positions, valid);                                        \
  }
#define CROSSING(K, BYTES)                       \
  CROSSING_AS(K, BYTES, u32, 32, first, true)    \
  CROSSING_AS(K, BYTES, u32, 32, last, false)    \
  CROSSING_AS(K, BYTES, u64, 64, first, true)    \
  CROSSING_AS(K, BYTES, u64, 64, last, false)

#ifdef RMQ_KEY_U32
CROSSING(u32, 64)
CROSSING(u32, 128)
#endif
#ifdef RMQ_KEY_U64
CROSSING(u64, 128)
#endif
#ifdef RMQ_KEY_U128
CROSSING(u128, 128)
#endif
