// Sums of ranges of floats, bit for bit those of the CPU (`src/range_agg/`: `double_double.rs`, `sum_tree.rs`, `outliers.rs`), which are as
// accurate as if they were added exactly and rounded once.
//
// A sum is two floats: the rounded sum and its rounding error. Every 16 values in sorted order form a block, every 16 blocks one of the next
// level. The sum of a range is composed of the values beside whole blocks, and at each level of two sums of consecutive blocks that are
// within one block of the next level. Values that blocks can't
// contain (NaN, infinities, values of which a few overflow) are outliers: they are moved to a column of their own and leave zeros.
//
// The additions are those of the CPU in the same order. The compiler must not contract them with products, which are written as `__dmul_rn`.
#include "rows.cuh"

struct alignas(16) Sum {
  double hi, lo;
};

// Adds two floats: the rounded sum, and its exact rounding error (Knuth's TwoSum).
__device__ __forceinline__ Sum two_sum(double a, double b) {
  double sum = a + b, of_b = sum - a;
  return {sum, (a - (sum - of_b)) + (b - of_b)};
}

// Adds values `from` to `to`, of which none is an outlier.
__device__ __forceinline__ void add_values(Sum& sum, const double* values, u64 from, u64 to) {
  // The errors are added apart, so that the additions to `hi` don't wait for them.
  Sum here = sum;
  for (u64 i = from; i < to; i++) {
    Sum next = two_sum(here.hi, __ldg(values + i));
    here.hi = next.hi;
    here.lo += next.lo;
  }
  sum = two_sum(here.hi, here.lo);
}

// Adds another sum. Each step is renormalized: after a large sum cancels out, its former error is all that is left.
__device__ __forceinline__ void add_sum(Sum& sum, Sum other) {
  Sum high = two_sum(sum.hi, other.hi), low = two_sum(sum.lo, other.lo);
  Sum both = two_sum(high.hi, high.lo + low.hi);
  sum = two_sum(both.hi, both.lo + low.lo);
}

// Multiplies by a power of two.
__device__ __forceinline__ Sum scaled(Sum sum, double factor) { return {__dmul_rn(sum.hi, factor), __dmul_rn(sum.lo, factor)}; }

// --- blocks ---

constexpr u32 WIDTH_BITS = 4, WIDTH = 1 << WIDTH_BITS;

// Values without outliers and the sums of their blocks. Passed to kernels by value.
struct SumTree {
  const double* values;
  const Sum* blocks;  // of whole blocks of 16 values, then of 16 such blocks, and so on
  const Sum* until;   // for each block: from the first block of the next level's block to this one
  const Sum* since;   // for each block: from this one to the last of the next level's block
  u64 n;              // values
};

// Sums each whole block of values.
KERNEL(256) float_sum_values(const double* values, u64 blocks, Sum* to) {
  u64 block = this_thread();
  if (block >= blocks) return;
  Sum sum = {0, 0};
  add_values(sum, values, block * WIDTH, (block + 1) * WIDTH);
  to[block] = sum;
}

__device__ __forceinline__ Sum load_sum(const Sum* p) {
  ulonglong2 bits = __ldg(reinterpret_cast<const ulonglong2*>(p));
  return {__longlong_as_double(i64(bits.x)), __longlong_as_double(i64(bits.y))};
}

// Sums the blocks of each block of the next level, also of the last one, which may not be whole: from its first one, and to its last one.
KERNEL(256) float_sum_blocks(const Sum* blocks, u64 count, Sum* until, Sum* since, Sum* to) {
  u64 first = this_thread() * WIDTH;
  if (first >= count) return;
  u64 end = min(first + WIDTH, count);
  Sum sum = {0, 0};
  for (u64 i = first; i < end; i++) {
    add_sum(sum, load_sum(blocks + i));
    until[i] = sum;
  }
  if (end == first + WIDTH) to[first / WIDTH] = sum;
  sum = {0, 0};
  for (u64 i = end; i-- > first;) {
    add_sum(sum, load_sum(blocks + i));
    since[i] = sum;
  }
}

// Sums the values `from` to `to`.
__device__ __forceinline__ Sum sum_of(const SumTree& tree, u64 from, u64 to) {
  Sum sum = {0, 0};
  u64 first = (from + WIDTH - 1) / WIDTH, end = to / WIDTH;
  if (first >= end) {
    add_values(sum, tree.values, from, to);
    return sum;
  }
  add_values(sum, tree.values, from, first * WIDTH);
  // Up to the level at which no whole block of the next one is left, then down again.
  u64 level = 0;  // its first block among those of all levels
  u32 shift = WIDTH_BITS;
  for (;;) {
    u64 last = end - 1;
    if (first / WIDTH == last / WIDTH) {
      if (first % WIDTH == 0) add_sum(sum, load_sum(tree.until + level + last));
      else if (end % WIDTH == 0 || end == tree.n >> shift) add_sum(sum, load_sum(tree.since + level + first));
      else
        for (u64 i = first; i < end; i++) add_sum(sum, load_sum(tree.blocks + level + i));
      break;
    }
    if (first % WIDTH != 0) add_sum(sum, load_sum(tree.since + level + first));
    u64 above = (first + WIDTH - 1) / WIDTH, above_end = end / WIDTH;
    if (above >= above_end) {
      if (end % WIDTH != 0) add_sum(sum, load_sum(tree.until + level + last));
      break;
    }
    first = above;
    end = above_end;
    level += tree.n >> shift;
    shift += WIDTH_BITS;
  }
  while (shift > WIDTH_BITS) {
    shift -= WIDTH_BITS;
    level -= tree.n >> shift;
    u64 here_end = to >> shift;
    if (here_end % WIDTH != 0) add_sum(sum, load_sum(tree.until + level + here_end - 1));
  }
  add_values(sum, tree.values, to / WIDTH * WIDTH, to);
  return sum;
}

// --- outliers ---

constexpr u64 SIGN = 1ull << 63, INFINITE = 0x7ff0000000000000, NOT_A_NUMBER = 0x7ff8000000000000;
constexpr u64 HUGE_BITS = u64(1023 + 960) << 52;  // 2^960: fewer than 2^32 values below this can't overflow
constexpr u64 SCALE_BITS = u64(1023 + 64) << 52;  // 2^64: huge values are divided by this so that their sums don't overflow
constexpr u64 UNSCALE_BITS = u64(1023 - 64) << 52;

__device__ __forceinline__ bool is_outlier(u64 bits) { return (bits & ~SIGN) >= HUGE_BITS; }

// Gathers values, zeros for NULLs, and a bit for each outlier, a warp a word. `valid` is in sorted order, and null without NULLs.
KERNEL(256) float_gather(const u64* from, const u32* order, const u32* valid, u64 n, u64* to, u32* outliers) {
  u64 place = this_thread();
  bool outlier = false;
  if (place < n) {
    u64 bits = !valid || bit_at(valid, place) ? from[row_at(order, place)] : 0;
    to[place] = bits;
    outlier = is_outlier(bits);
  }
  u32 word = __ballot_sync(~0u, outlier);
  if (threadIdx.x % 32 == 0 && place < n) outliers[place / 32] = word;
}

// Moves outliers out of the values, of which zeros are left: to `huge` the finite ones divided by 2^64, and zeros for the others. `specials`
// gets whether each outlier is NaN, then whether each is infinite, then negative infinite, with a 0 behind each of the three: prefix sums of
// these count them.
KERNEL(256) float_take_outliers(u64* values, u64 n, const u32* outliers, const u32* outliers_before, u32 count, double* huge, u32* specials) {
  u64 place = this_thread(), stride = u64(count) + 1;
  if (place < 3) specials[place * stride + count] = 0;
  if (place >= n || !bit_at(outliers, place)) return;
  u64 bits = values[place];
  values[place] = 0;
  u64 magnitude = bits & ~SIGN;
  u32 at = bits_before(outliers, outliers_before, place);
  specials[at] = magnitude > INFINITE;
  specials[stride + at] = bits == INFINITE;
  specials[2 * stride + at] = bits == (INFINITE | SIGN);
  huge[at] = magnitude < INFINITE ? __dmul_rn(__longlong_as_double(i64(bits)), __longlong_as_double(UNSCALE_BITS)) : 0;
}

// The sums of a column. Passed to kernels by value.
struct FloatSums {
  SumTree plain;
  const u32* outliers;         // a bit for each value that is one; null without any
  const u32* outliers_before;  // the outliers before each word of that, and in all
  const u32* specials;         // the number of NaNs before each outlier and in all, then of infinities, then of negative infinities
  SumTree huge;                // finite outliers divided by 2^64
};

// Adds the outliers of the places `from` to `to` to the sum of the other values.
__device__ __forceinline__ Sum add_outliers(const FloatSums& sums, Sum plain, u64 from, u64 to) {
  u64 first = bits_before(sums.outliers, sums.outliers_before, from), end = bits_before(sums.outliers, sums.outliers_before, to);
  if (first == end) return plain;
  u64 stride = sums.huge.n + 1;
  auto has = [&](u32 kind) { return sums.specials[kind * stride + end] > sums.specials[kind * stride + first]; };
  bool infinite = has(1), negative = has(2);
  if (has(0) || (infinite && negative)) return {__longlong_as_double(NOT_A_NUMBER), 0};
  if (infinite || negative) return {__longlong_as_double(i64(infinite ? INFINITE : INFINITE | SIGN)), 0};
  Sum sum = sum_of(sums.huge, first, end);
  // If they cancel out: scaling the other values might lose digits.
  if (sum.hi == 0) return plain;
  add_sum(sum, scaled(plain, __longlong_as_double(UNSCALE_BITS)));
  sum = scaled(sum, __longlong_as_double(SCALE_BITS));
  bool is_finite = (u64(__double_as_longlong(sum.hi)) & ~SIGN) < INFINITE;
  return {sum.hi, is_finite ? sum.lo : 0};
}

// Sums each range, or returns the rounding error of its sum. A sum of no value is NULL.
KERNEL(256)
float_sums(const u32* left, const u32* right, u32 m, FloatSums sums, const u32* valid, const u32* valid_before, u32 error, u64* to,
           u32* to_valid) {
  u32 q = u32(this_thread());
  bool some = false;
  if (q < m) {
    u32 l = left[q], r = right[q];
    some = count_valid(valid, valid_before, l, r) > 0;
    Sum sum = {0, 0};
    if (some) {
      sum = sum_of(sums.plain, l, u64(r) + 1);
      if (sums.outliers) sum = add_outliers(sums, sum, l, u64(r) + 1);
    }
    store_streamed(to + q, u64(__double_as_longlong(error ? sum.lo : sum.hi)));
  }
  u32 word = __ballot_sync(~0u, some);
  if (threadIdx.x % 32 == 0 && q < m) to_valid[q / 32] = word;
}
