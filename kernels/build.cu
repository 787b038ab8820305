// Builds an index from a column: levels of chunk minima, a sparse table over the highest level, a tree of validity bits.
//
// `build_bottom` reads the column once and writes two levels: a warp takes a tile of CHUNK * CHUNK values, whose CHUNK minima are one chunk of
// level 1 and whose minimum is one entry of level 2. The levels above have a thousandth of the column's size.
#include "index.cuh"

// Loads tiles of the column and writes their levels 1 and 2, and, if `x.keyed`, the column itself as keys.
template <class K, int BYTES, bool AT> __device__ __forceinline__ void bottom(const Index& x, u64 first, u64 tiles) {
  constexpr int LANES = Chunk<K, BYTES>::PACKS, PACK = Pack<K>::SIZE, CHUNK = Chunk<K, BYTES>::SIZE, TILE = CHUNK * CHUNK;
  constexpr int CHUNKS_A_LOAD = 32 / LANES, LOADS = CHUNK / CHUNKS_A_LOAD;
  u64 tile = blockIdx.x * u64(blockDim.x / 32) + threadIdx.x / 32;
  if (tile >= tiles) return;
  tile += first;
  int lane = threadIdx.x % 32;
  u64 start = tile * TILE;
  u64 here = x.n - start < TILE ? x.n - start : TILE;  // values of the tile
  Pack<K>* column = static_cast<Pack<K>*>(const_cast<void*>(x.level[0])) + start / PACK;
  auto encoding = Encoding<K>::of(x);

  // All loads are issued before the first one is used. The column is padded to whole chunks.
  Pack<K> packs[LOADS];
#pragma unroll
  for (int i = 0; i < LOADS; i++) {
    if (u32(i * 32 + lane) * PACK < here) packs[i] = column[i * 32 + lane];
  }

  // Thread t will hold entry t of the tile's chunk of level 1.
  Least<K> entry = {Key<K>::max(), 0};
  bool all_there = here == TILE && !x.valid_levels;
#pragma unroll
  for (int i = 0; i < LOADS; i++) {
    u32 begin = u32(i * 32 + lane) * PACK;
#pragma unroll
    for (int j = 0; j < PACK; j++) packs[i].at[j] = encoding.encode(packs[i].at[j]);
    if (!all_there) {
      u32 valid = ~0u;
      if (x.valid_levels && begin < here) valid = x.valid[0][(start + begin) / 32] >> ((start + begin) % 32);
#pragma unroll
      for (int j = 0; j < PACK; j++) {
        if (begin + j >= here || !(valid >> j & 1)) packs[i].at[j] = Key<K>::max();
      }
      if (x.keyed && begin < here) column[i * 32 + lane] = packs[i];
    }
    Least<K> least = {packs[i].at[0], u32(lane % LANES) * PACK};
#pragma unroll
    for (int j = 1; j < PACK; j++) {
      if (AT) {
        bool less = Key<K>::less(packs[i].at[j], least.key);
        least.key = less ? packs[i].at[j] : least.key;
        least.at = less ? u32(lane % LANES) * PACK + j : least.at;
      } else {
        least.key = Key<K>::min(packs[i].at[j], least.key);
      }
    }
    least = least_of_lanes<K, LANES, AT>(least);
    // Every thread of a group now has its chunk's minimum; entry t comes from load t / CHUNKS_A_LOAD.
    int group = lane % CHUNKS_A_LOAD;
    K key = Key<K>::shuffle(least.key, group * LANES);
    u32 at = AT ? __shfl_sync(~0u, least.at, group * LANES) : 0;
    if (lane / CHUNKS_A_LOAD == i) entry = {key, at};
  }
  if (lane < CHUNK) {
    static_cast<K*>(const_cast<void*>(x.level[1]))[tile * CHUNK + lane] = entry.key;
    if (AT) static_cast<u8*>(const_cast<void*>(x.offset[1]))[tile * CHUNK + lane] = u8(entry.at);
  }
  if (x.top < 2) return;
  if (AT) entry.at += lane * CHUNK;
  entry = least_of_lanes<K, 32, AT>(entry);
  if (lane == 0) {
    static_cast<K*>(const_cast<void*>(x.level[2]))[tile] = entry.key;
    if (AT) static_cast<u32*>(const_cast<void*>(x.offset[2]))[tile] = entry.at;
  }
}

// Computes entry i of level k from chunk i of level k - 1, which is padded with the greatest key; k >= 3.
template <class K, int BYTES, bool AT> __device__ __forceinline__ void level(const Index& x, u32 k) {
  constexpr int CHUNK = Chunk<K, BYTES>::SIZE, SHIFT = Chunk<K, BYTES>::SHIFT;
  u64 i = blockIdx.x * u64(blockDim.x) + threadIdx.x;
  u64 entries = (x.n + (1ull << SHIFT * k) - 1) >> SHIFT * k;
  if (i >= entries) return;
  const K* below = static_cast<const K*>(x.level[k - 1]) + i * CHUNK;
  K least = below[0];
  u32 at = 0;
  for (int j = 1; j < CHUNK; j++) {
    if (Key<K>::less(below[j], least)) {
      least = below[j];
      at = j;
    }
  }
  static_cast<K*>(const_cast<void*>(x.level[k]))[i] = least;
  if (AT) {
    u32 offset = static_cast<const u32*>(x.offset[k - 1])[i * CHUNK + at];
    static_cast<u32*>(const_cast<void*>(x.offset[k]))[i] = (at << SHIFT * (k - 1)) + offset;
  }
}

// Computes rows row + 1, row + 2 and row + 3 of the table from row `row`; row 0 is level[top].
template <class K, bool AT> __device__ __forceinline__ void table(const Index& x, u64 entries, u32 row) {
  u64 i = blockIdx.x * u64(blockDim.x) + threadIdx.x;
  K* keys = static_cast<K*>(const_cast<void*>(x.table));
  u32* ats = const_cast<u32*>(x.table_at);
  const K* from = row == 0 ? static_cast<const K*>(x.level[x.top]) : keys + (row - 1) * x.table_stride;
  const u32* from_at = row == 0 ? nullptr : ats + (row - 1) * x.table_stride;
  K least = Key<K>::max();
  u32 at = 0;
  u32 seen = 0;
  for (u32 up = 1; up <= 3 && row + up < x.rows; up++) {
    u64 width = 1ull << (row + up);
    if (i + width > entries) return;
    for (; seen < 1u << up; seen++) {
      u64 j = i + (u64(seen) << row);
      if (seen == 0 || Key<K>::less(from[j], least)) {
        least = from[j];
        if (AT) at = row == 0 ? u32(j) : from_at[j];
      }
    }
    keys[(row + up - 1) * x.table_stride + i] = least;
    if (AT) ats[(row + up - 1) * x.table_stride + i] = at;
  }
}

#define BOTTOM(K, BYTES)                                                                                                      \
  KERNEL(256) build_bottom_##K##_c##BYTES(Index x, u64 first, u64 tiles) { bottom<K, BYTES, false>(x, first, tiles); }         \
  KERNEL(256) build_bottom_##K##_c##BYTES##_at(Index x, u64 first, u64 tiles) { bottom<K, BYTES, true>(x, first, tiles); }      \
  KERNEL(256) build_level_##K##_c##BYTES(Index x, u32 k) { level<K, BYTES, false>(x, k); }                                     \
  KERNEL(256) build_level_##K##_c##BYTES##_at(Index x, u32 k) { level<K, BYTES, true>(x, k); }

#define TABLE(K)                                                                                              \
  KERNEL(256) build_table_##K(Index x, u64 entries, u32 row) { table<K, false>(x, entries, row); }             \
  KERNEL(256) build_table_##K##_at(Index x, u64 entries, u32 row) { table<K, true>(x, entries, row); }

BOTTOM(u32, 64)
BOTTOM(u32, 128)
BOTTOM(u64, 128)
BOTTOM(u128, 128)
TABLE(u32)
TABLE(u64)
TABLE(u128)

// --- validity ---

// Shifts Arrow's bitmap, in which value 0 has bit `bit_offset`, to words of 32 bits in which value 0 has bit 0.
KERNEL(256) build_valid_words(const u8* bitmap, u64 bit_offset, u64 n, u32* words) {
  u64 i = blockIdx.x * u64(blockDim.x) + threadIdx.x;
  if (i * 32 >= n) return;
  u64 first = bit_offset + i * 32;
  u32 bits = n - i * 32 < 32 ? u32(n - i * 32) : 32;
  u64 last_byte = (first + bits - 1) / 8;
  u64 gathered = 0;
  for (u64 byte = first / 8; byte <= last_byte; byte++) gathered |= u64(bitmap[byte]) << (byte - first / 8) * 8;
  u32 word = u32(gathered >> first % 8);
  words[i] = bits == 32 ? word : word & ((1u << bits) - 1);
}

// Sets bit i of `above` if word i of `below` is not 0. Launched with whole warps.
KERNEL(256) build_valid_parent(const u32* below, u64 count, u32* above) {
  u64 i = blockIdx.x * u64(blockDim.x) + threadIdx.x;
  u32 word = __ballot_sync(~0u, i < count && below[i] != 0);
  if (i % 32 == 0 && i < count) above[i / 32] = word;
}
