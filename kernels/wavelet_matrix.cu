// Answers batches of order statistics of ranges with a wavelet matrix, which the CPU builds (`crates/rmq-engine/src/cpu/wavelet_matrix`).
//
// One thread takes a query down the levels: on each it counts the ones before the start of its range and before the end, with one read of 32
// bytes for both. The next level's reads depend on them. A device hides that by the many queries that are on their way.
#include "rows.cuh"

// 192 bits of a level, after the ones of all blocks before (32 bits) and, in a byte for each word of bits, those of this block before the word.
struct alignas(32) Block {
  u64 counts, bits[3];
};

constexpr u32 POSITIONS = 192;

// Passed to kernels by value. Pointers are device addresses.
struct WaveletMatrix {
  const Block* blocks;  // of all levels, that of the highest bit of ranks first
  const u32* zeros;     // positions of each level whose bit is 0
  u32 per_level;        // blocks
  u32 levels;
};

// The positions before `position` whose bit is 1.
__device__ __forceinline__ u32 ones_before(const Block* level, u32 position) {
  const Block* block = level + position / POSITIONS;
  u32 within = position % POSITIONS, word = within / 64;
  u64 counts = __ldg(&block->counts), bits = __ldg(block->bits + word) & ~(~0ull << within % 64);
  return u32(counts) + (u32(counts >> (32 + 8 * word)) & 0xff) + u32(__popcll(bits));
}

// A query's range on a level: half-open.
struct Range {
  u32 start, end;
};

// What a query sees of a level: the positions before the ends of its range whose bit is 0, and whose bit is 1.
struct Step {
  Range zeros, ones;

  __device__ __forceinline__ Step(const Block* level, Range range) {
    ones = {ones_before(level, range.start), ones_before(level, range.end)};
    zeros = {range.start - ones.start, range.end - ones.end};
  }

  __device__ __forceinline__ u32 zeros_within() const { return zeros.end - zeros.start; }

  // The range on the next level, which has those whose bit is 1 after the `all_zeros` others.
  __device__ __forceinline__ Range next(bool takes_ones, u32 all_zeros) const {
    return takes_ones ? Range{all_zeros + ones.start, all_zeros + ones.end} : zeros;
  }
};

// Finds the rank of each range's row that has `smaller[q]` rows before it, if the range's rows are sorted by rank; ~0 if it has too few.
KERNEL(256) wavelet_nth_smallest(WaveletMatrix matrix, u32 m, const u32* left, const u32* right, const u32* smaller, u32* ranks) {
  u64 q = this_thread();
  if (q >= m) return;
  Range range = {left[q], right[q] + 1};
  u32 target = smaller[q], rank = 0;
  if (target >= range.end - range.start) {
    ranks[q] = ~0u;
    return;
  }
  const Block* level = matrix.blocks;
  for (u32 i = 0; i < matrix.levels; i++, level += matrix.per_level) {
    Step step(level, range);
    bool takes_ones = target >= step.zeros_within();
    if (takes_ones) target -= step.zeros_within();
    rank = rank << 1 | takes_ones;
    range = step.next(takes_ones, __ldg(matrix.zeros + i));
  }
  ranks[q] = rank;
}

// Counts the rows of each range whose rank is below `ranks[q]`.
KERNEL(256) wavelet_count_below(WaveletMatrix matrix, u32 m, const u32* left, const u32* right, const u32* ranks, u32* counts) {
  u64 q = this_thread();
  if (q >= m) return;
  Range range = {left[q], right[q] + 1};
  u32 rank = ranks[q], count = 0;
  if (u64(rank) >> matrix.levels != 0) {
    // All ranks are below.
    counts[q] = range.end - range.start;
    return;
  }
  const Block* level = matrix.blocks;
  for (u32 i = 0; i < matrix.levels && range.start < range.end; i++, level += matrix.per_level) {
    Step step(level, range);
    bool takes_ones = rank >> (matrix.levels - 1 - i) & 1;
    if (takes_ones) count += step.zeros_within();
    range = step.next(takes_ones, __ldg(matrix.zeros + i));
  }
  counts[q] = count;
}
