// Tests sums of ranges of floats, bit by bit, against the CPU's way of adding: sums of blocks in vectors, descended by recursion.
#include "../float_sums.cu"
#include <algorithm>
#include <cmath>
#include "sorting.h"

namespace cpu {

struct Pair {
  double hi = 0, lo = 0;
};

static Pair two_sum(double a, double b) {
  double sum = a + b, of_b = sum - a;
  return {sum, (a - (sum - of_b)) + (b - of_b)};
}

static void add_all(Pair& sum, const std::vector<double>& values, u64 from, u64 to) {
  double hi = sum.hi, lo = sum.lo;
  for (u64 i = from; i < to; i++) {
    Pair next = two_sum(hi, values[i]);
    hi = next.hi;
    lo += next.lo;
  }
  sum = two_sum(hi, lo);
}

static void add(Pair& sum, Pair other) {
  Pair a = two_sum(sum.hi, other.hi), b = two_sum(sum.lo, other.lo), c = two_sum(a.hi, a.lo + b.hi);
  sum = two_sum(c.hi, c.lo + b.lo);
}

struct Tree {
  std::vector<double> values;
  std::vector<Pair> blocks;
  struct Level {
    std::vector<Pair> until, since;
  };
  std::vector<Level> levels;

  explicit Tree(std::vector<double> all) : values(std::move(all)) {
    blocks.resize(values.size() / 16);
    for (u64 i = 0; i < blocks.size(); i++) add_all(blocks[i], values, i * 16, i * 16 + 16);
    std::vector<Pair> below = blocks;
    while (below.size() > 1) {
      Level level = {below, below};
      std::vector<Pair> above;
      for (u64 first = 0; first < below.size(); first += 16) {
        u64 end = std::min<u64>(first + 16, below.size());
        Pair sum, back;
        for (u64 i = first; i < end; i++) {
          add(sum, below[i]);
          level.until[i] = sum;
        }
        for (u64 i = end; i-- > first;) {
          add(back, below[i]);
          level.since[i] = back;
        }
        if (end == first + 16) above.push_back(sum);
      }
      levels.push_back(std::move(level));
      below = std::move(above);
    }
  }

  Pair block(u64 level, u64 i) const { return level == 0 ? blocks[i] : levels[level - 1].until[i * 16 + 15]; }

  void add_blocks(u64 number, u64 from, u64 to, Pair& sum) const {
    if (number == levels.size()) return add(sum, block(number, from));
    const Level& level = levels[number];
    if (from / 16 == (to - 1) / 16) {
      if (from % 16 == 0) return add(sum, level.until[to - 1]);
      if (to % 16 == 0 || to == level.since.size()) return add(sum, level.since[from]);
      for (u64 i = from; i < to; i++) add(sum, block(number, i));
      return;
    }
    u64 first = (from + 15) / 16, end = to / 16;
    if (from % 16) add(sum, level.since[from]);
    if (first < end) add_blocks(number + 1, first, end, sum);
    if (to % 16) add(sum, level.until[to - 1]);
  }

  Pair sum(u64 from, u64 to) const {
    Pair sum;
    u64 first = (from + 15) / 16, end = to / 16;
    if (first >= end) {
      add_all(sum, values, from, to);
      return sum;
    }
    add_all(sum, values, from, first * 16);
    add_blocks(0, first, end, sum);
    add_all(sum, values, end * 16, to);
    return sum;
  }
};

struct Sums {
  Tree plain, huge;
  std::vector<u64> positions;
  std::vector<double> outliers;

  static bool is_outlier(double x) { return std::isnan(x) || std::fabs(x) >= std::ldexp(1.0, 960); }
  explicit Sums(const std::vector<double>& column) : plain({}), huge({}) {
    std::vector<double> usual, finite;
    for (u64 i = 0; i < column.size(); i++) {
      bool out = is_outlier(column[i]);
      usual.push_back(out ? 0 : column[i]);
      if (!out) continue;
      positions.push_back(i);
      outliers.push_back(column[i]);
      finite.push_back(std::isfinite(column[i]) ? std::ldexp(column[i], -64) : 0);
    }
    plain = Tree(usual);
    huge = Tree(finite);
  }

  Pair sum(u64 from, u64 to) const {
    Pair rest = plain.sum(from, to);
    auto before = [&](u64 end) { return u64(std::lower_bound(positions.begin(), positions.end(), end) - positions.begin()); };
    u64 first = before(from), end = before(to);
    if (first == end) return rest;
    double special = 0;
    for (u64 i = first; i < end; i++) special += std::isfinite(outliers[i]) ? 0 : outliers[i];
    if (std::isnan(special)) return {emulate::from_bits<double>(NOT_A_NUMBER), 0};
    if (std::isinf(special)) return {special, 0};
    Pair all = huge.sum(first, end);
    if (all.hi == 0) return rest;
    add(all, {rest.hi * std::ldexp(1.0, -64), rest.lo * std::ldexp(1.0, -64)});
    all = {std::ldexp(all.hi, 64), std::ldexp(all.lo, 64)};
    return {all.hi, std::isfinite(all.hi) ? all.lo : 0};
  }
};

}  // namespace cpu

static double random_float(Random& random, u64 kind) {
  u64 digits = random.bits() >> 12, sign = random.bits() & SIGN;
  auto of = [&](u64 exponent) { return emulate::from_bits<double>(sign | exponent << 52 | digits); };
  switch (kind) {
    case 0: return double(random.below(1000)) / 8 - 50;  // sums are exact
    case 1: return of(random.between(1000, 1040));
    case 2: return of(random.below(1100));               // all magnitudes, and subnormal numbers
    case 3: return of(random.between(1000, 2046));       // overflow
    case 4: return of(random.one_in(20) ? 2047 : 1023);  // NaN
    default: return random.one_in(20) ? emulate::from_bits<double>(sign | INFINITE) : of(random.between(1975, 2046));
  }
}

// The sums of blocks, as the engine launches them.
struct Blocks {
  Buffer<Sum> blocks, until, since;
  SumTree tree;

  Blocks(const double* values, u64 n, unsigned seed) : blocks(count_of(n)), until(count_of(n)), since(count_of(n)) {
    u64 level = 0, count = n >> WIDTH_BITS;
    emulate::launch(blocks_for(count), 256, seed, [&] { float_sum_values(values, count, blocks.data()); });
    while (count > 0) {
      Sum* here = blocks.data() + level;
      emulate::launch(blocks_for((count + 15) / 16), 256, seed, [&] {
        float_sum_blocks(here, count, until.data() + level, since.data() + level, here + count);
      });
      level += count;
      count >>= WIDTH_BITS;
    }
    tree = {values, blocks.data(), until.data(), since.data(), n};
  }

  static u64 count_of(u64 n) {
    u64 all = 0;
    for (u64 level = n >> WIDTH_BITS; level > 0; level >>= WIDTH_BITS) all += level;
    return all;
  }
};

static Buffer<u32> before_words(Buffer<u32>& bits, u64 words, unsigned seed) {
  Buffer<u32> before(words + 1);
  for (u64 i = 0; i <= words; i++) before[i] = i < words ? u32(__builtin_popcount(bits[i])) : 0;
  prefix_sums(before.data(), words + 1, seed);
  return before;
}

static void expect(bool right, const char* what, u64 at) {
  if (right) return;
  std::printf("float sums: wrong %s at %llu\n", what, at);
  std::exit(1);
}

static void test(Random& random) {
  unsigned seed = unsigned(random.below(6));
  u64 n = random.one_in(8) ? random.between(1, 9000) : random.between(1, 600), kind = random.below(6);
  // Rows in any order, some of which are in no group.
  u64 rows = n + random.below(20);
  Buffer<u64> values(rows);
  Buffer<u32> order(n);
  bool in_order = random.one_in(3), has_nulls = random.one_in(2);
  for (u64 i = 0; i < rows; i++) {
    double value = i > 0 && random.one_in(3) ? -emulate::from_bits<double>(values[random.below(i)]) : random_float(random, kind);
    values[i] = emulate::to_bits(value);
  }
  for (u64 i = 0; i < n; i++) order[i] = u32(i);
  for (u64 i = n; i-- > 1 && !in_order;) std::swap(order[i], order[random.below(i + 1)]);
  u64 words = (n + 31) / 32;
  Buffer<u32> valid(words, 0), found(words), outliers(words);
  std::vector<double> column;
  for (u64 i = 0; i < n; i++) {
    bool is_valid = !has_nulls || !random.one_in(4);
    valid[i / 32] |= u32(is_valid) << i % 32;
    column.push_back(is_valid ? emulate::from_bits<double>(values[in_order ? i : order[i]]) : 0);
  }
  Buffer<u32> valid_before = before_words(valid, words, seed);
  const u32 *order_at = in_order ? nullptr : order.data(), *valid_at = has_nulls ? valid.data() : nullptr;

  cpu::Sums want(column);
  Buffer<double> plain(n);
  emulate::launch(blocks_for(n), 256, seed, [&] {
    float_gather(values.data(), order_at, valid_at, n, reinterpret_cast<u64*>(plain.data()), outliers.data());
  });
  Buffer<u32> outliers_before = before_words(outliers, words, seed);
  u32 count = outliers_before[words];
  expect(count == want.positions.size(), "number of outliers", count);
  Buffer<double> huge(count);
  u64 stride = u64(count) + 1;
  Buffer<u32> specials(3 * stride);
  FloatSums sums = {};
  if (count > 0) {
    emulate::launch(blocks_for(n), 256, seed, [&] {
      float_take_outliers(reinterpret_cast<u64*>(plain.data()), n, outliers.data(), outliers_before.data(), count, huge.data(), specials.data());
    });
    for (u64 k = 0; k < 3; k++) prefix_sums(specials.data() + k * stride, stride, seed);
    sums.outliers = outliers.data();
    sums.outliers_before = outliers_before.data();
    sums.specials = specials.data();
  }
  for (u64 i = 0; i < n; i++) expect(emulate::to_bits(plain[i]) == emulate::to_bits(want.plain.values[i]), "value", i);
  for (u64 i = 0; i < count; i++) expect(emulate::to_bits(huge[i]) == emulate::to_bits(want.huge.values[i]), "huge value", i);
  Blocks blocks(plain.data(), n, seed), huge_blocks(huge.data(), count, seed);
  sums.plain = blocks.tree;
  sums.huge = huge_blocks.tree;

  u32 m = u32(random.between(1, 300));
  Buffer<u32> left(m), right(m), sum_valid((m + 31) / 32), error_valid((m + 31) / 32);
  Buffer<u64> sum(m), error(m);
  for (u32 q = 0; q < m; q++) {
    u64 l = random.below(n), r = random.one_in(3) ? l + random.below(50) : random.below(n);
    if (random.one_in(8)) l = 0, r = n - 1;
    if (random.one_in(4)) l = l / 16 * 16, r = r / 256 * 256 + 255;
    r = std::min(r, n - 1);
    bool some = l <= r;
    left[q] = some ? u32(l) : 1;
    right[q] = some ? u32(r) : 0;
  }
  const u32* before_at = has_nulls ? valid_before.data() : nullptr;
  emulate::launch(blocks_for(m), 256, seed, [&] {
    float_sums(left.data(), right.data(), m, sums, valid_at, before_at, 0, sum.data(), sum_valid.data());
  });
  emulate::launch(blocks_for(m), 256, seed, [&] {
    float_sums(left.data(), right.data(), m, sums, valid_at, before_at, 1, error.data(), error_valid.data());
  });
  for (u32 q = 0; q < m; q++) {
    u32 values_there = 0;
    for (u64 i = left[q]; i <= right[q] && left[q] <= right[q]; i++) values_there += valid[i / 32] >> i % 32 & 1;
    bool some = values_there > 0;
    expect((sum_valid[q / 32] >> q % 32 & 1) == some && (error_valid[q / 32] >> q % 32 & 1) == some, "validity", q);
    if (!some) continue;
    cpu::Pair all = want.sum(left[q], u64(right[q]) + 1);
    expect(sum[q] == emulate::to_bits(all.hi), "sum", q);
    expect(error[q] == emulate::to_bits(all.lo), "error", q);
  }
}

int main(int count, char** arguments) {
  int cases = count > 1 ? std::atoi(arguments[1]) : 500;
  for (int number = 0; number < cases; number++) {
    Random random(number);
    test(random);
  }
  std::printf("%d columns\n", cases);
}
