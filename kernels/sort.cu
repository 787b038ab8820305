// Sorts row numbers by words of 32 bits, stably, and computes prefix sums.
//
// A radix sort from the lowest digit up, after LeCun's and Satish's block-wise scheme: each pass counts the digits of every tile
// (`sort_count`), turns the counts, digit by digit, into the places where tiles begin (`scan_*`), and moves the tiles there (`sort_scatter`).
// A tile is first put in order in shared memory, so that neighbours are written together.
#include "index.cuh"

constexpr int THREADS = 256;
constexpr int WARPS = THREADS / 32;

// --- sort ---

constexpr int RADIX = 256;  // the most digits of a pass: 8 bits
constexpr int ITEMS = 16;   // rows of a thread
constexpr int TILE = THREADS * ITEMS;

__device__ __forceinline__ u32 digit_of(u32 word, u32 shift, u32 bits) { return word >> shift & ((1u << bits) - 1); }

// --- addition of three widths ---

__device__ __forceinline__ u32 plus(u32 a, u32 b) { return a + b; }
__device__ __forceinline__ u64 plus(u64 a, u64 b) { return a + b; }
__device__ __forceinline__ u128 plus(u128 a, u128 b) {
  u64 lo = a.lo + b.lo;
  return {lo, a.hi + b.hi + (lo < a.lo)};
}

__device__ __forceinline__ u32 shuffle_up(u32 x, u32 by) { return __shfl_up_sync(~0u, x, by); }
__device__ __forceinline__ u64 shuffle_up(u64 x, u32 by) { return __shfl_up_sync(~0u, x, by); }
__device__ __forceinline__ u128 shuffle_up(u128 x, u32 by) { return {shuffle_up(x.lo, by), shuffle_up(x.hi, by)}; }

// Returns the sum of `mine` over the threads of the block before this one, and in `all` with `mine`. `sums` is shared, and can be used again after a barrier.
template <class T> __device__ __forceinline__ T sum_before(T mine, T* sums, T* all = nullptr) {
  u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  T through = mine;
#pragma unroll
  for (u32 step = 1; step < 32; step *= 2) {
    T below = shuffle_up(through, step);
    if (lane >= step) through = plus(through, below);
  }
  if (lane == 31) sums[warp] = through;
  __syncthreads();
  T before{};
  for (u32 w = 0; w < warp; w++) before = plus(before, sums[w]);
  if (all) *all = plus(before, through);
  T below = shuffle_up(through, 1);
  return lane > 0 ? plus(before, below) : before;
}

// Counts the digits of tile blockIdx.x: counts[digit * tiles + tile].
KERNEL(THREADS) sort_count(const u32* words, u32 n, u32 shift, u32 bits, u32 tiles, u32* counts) {
  __shared__ u32 histogram[RADIX];
  histogram[threadIdx.x] = 0;
  __syncthreads();
  u64 first = u64(blockIdx.x) * TILE + threadIdx.x;
#pragma unroll
  for (int k = 0; k < ITEMS; k++) {
    u64 i = first + k * THREADS;
    if (i < n) atomicAdd(&histogram[digit_of(words[i], shift, bits)], 1u);
  }
  __syncthreads();
  if (threadIdx.x < 1u << bits) counts[u64(threadIdx.x) * tiles + blockIdx.x] = histogram[threadIdx.x];
}

// Moves the words and rows of tile blockIdx.x to their places. `starts` are the prefix sums of `sort_count`'s counts. `rows` may be null: row i
// is then i.
KERNEL(THREADS)
sort_scatter(const u32* words, const u32* rows, u32 n, u32 shift, u32 bits, u32 tiles, const u32* starts, u32* to_words, u32* to_rows) {
  // For each warp and digit: the rows of that digit so far; then the place in the tile of the first one.
  __shared__ u32 places[WARPS][RADIX];
  __shared__ u32 tile_words[TILE], tile_rows[TILE];
  // What to add to a place in the tile, by digit.
  __shared__ u32 offsets[RADIX];
  __shared__ u32 sums[WARPS];
  u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, below = (1u << lane) - 1;
#pragma unroll
  for (int w = 0; w < WARPS; w++) places[w][threadIdx.x] = 0;
  __syncthreads();

  // A warp takes consecutive rows, 32 at a time, so that it meets the rows of a digit in their order.
  u64 tile = u64(blockIdx.x) * TILE, first = tile + warp * (32 * ITEMS) + lane;
  u32 word[ITEMS], row[ITEMS], rank[ITEMS];
#pragma unroll
  for (int k = 0; k < ITEMS; k++) {
    u64 i = first + k * 32;
    word[k] = i < n ? words[i] : 0;
    row[k] = i < n && rows ? rows[i] : u32(i);
  }
#pragma unroll
  for (int k = 0; k < ITEMS; k++) {
    bool here = first + k * 32 < n;
    u32 digit = digit_of(word[k], shift, bits);
    u32 same = __ballot_sync(~0u, here);
    for (u32 bit = 0; bit < bits; bit++) {
      u32 set = __ballot_sync(~0u, digit >> bit & 1);
      same &= digit >> bit & 1 ? set : ~set;
    }
    rank[k] = places[warp][digit] + __popc(same & below);
    __syncwarp();
    if (here && (same & below) == 0) places[warp][digit] += __popc(same);
    __syncwarp();
  }
  __syncthreads();

  // Thread d takes digit d.
  u32 count = 0;
#pragma unroll
  for (int w = 0; w < WARPS; w++) count += places[w][threadIdx.x];
  u32 place = sum_before(count, sums);
  if (threadIdx.x < 1u << bits) offsets[threadIdx.x] = starts[u64(threadIdx.x) * tiles + blockIdx.x] - place;
#pragma unroll
  for (int w = 0; w < WARPS; w++) {
    u32 some = places[w][threadIdx.x];
    places[w][threadIdx.x] = place;
    place += some;
  }
  __syncthreads();
#pragma unroll
  for (int k = 0; k < ITEMS; k++) {
    if (first + k * 32 >= n) continue;
    u32 at = places[warp][digit_of(word[k], shift, bits)] + rank[k];
    tile_words[at] = word[k];
    tile_rows[at] = row[k];
  }
  __syncthreads();
  u32 here = n - tile < TILE ? u32(n - tile) : TILE;
  for (u32 at = threadIdx.x; at < here; at += THREADS) {
    u32 moved = tile_words[at], to = offsets[digit_of(moved, shift, bits)] + at;
    to_words[to] = moved;
    to_rows[to] = tile_rows[at];
  }
}

// --- prefix sums ---

constexpr int SCAN_ITEMS = 8;
constexpr int SCAN_TILE = THREADS * SCAN_ITEMS;

// Writes the sum of each tile.
template <class T> __device__ __forceinline__ void reduce(const T* values, u64 n, T* tile_sums) {
  __shared__ T sums[WARPS];
  u64 first = u64(blockIdx.x) * SCAN_TILE + threadIdx.x;
  T mine{}, all;
#pragma unroll
  for (int k = 0; k < SCAN_ITEMS; k++) {
    u64 i = first + k * THREADS;
    if (i < n) mine = plus(mine, values[i]);
  }
  sum_before(mine, sums, &all);
  if (threadIdx.x == THREADS - 1) tile_sums[blockIdx.x] = all;
}

// Replaces each value by the sum of those before it. `tile_starts` holds the sum of those before each tile; null if there is one tile.
template <class T> __device__ __forceinline__ void scan(T* values, u64 n, const T* tile_starts) {
  __shared__ T sums[WARPS];
  u64 first = u64(blockIdx.x) * SCAN_TILE + threadIdx.x * SCAN_ITEMS;
  T at[SCAN_ITEMS], mine{};
#pragma unroll
  for (int k = 0; k < SCAN_ITEMS; k++) {
    at[k] = first + k < n ? values[first + k] : T{};
    mine = plus(mine, at[k]);
  }
  T before = sum_before(mine, sums);
  if (tile_starts) before = plus(before, tile_starts[blockIdx.x]);
#pragma unroll
  for (int k = 0; k < SCAN_ITEMS; k++) {
    if (first + k < n) values[first + k] = before;
    before = plus(before, at[k]);
  }
}

KERNEL(THREADS) scan_reduce_u32(const u32* values, u64 n, u32* tile_sums) { reduce(values, n, tile_sums); }
KERNEL(THREADS) scan_reduce_u64(const u64* values, u64 n, u64* tile_sums) { reduce(values, n, tile_sums); }
KERNEL(THREADS) scan_reduce_u128(const u128* values, u64 n, u128* tile_sums) { reduce(values, n, tile_sums); }
KERNEL(THREADS) scan_apply_u32(u32* values, u64 n, const u32* tile_starts) { scan(values, n, tile_starts); }
KERNEL(THREADS) scan_apply_u64(u64* values, u64 n, const u64* tile_starts) { scan(values, n, tile_starts); }
KERNEL(THREADS) scan_apply_u128(u128* values, u64 n, const u128* tile_starts) { scan(values, n, tile_starts); }
