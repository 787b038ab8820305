// Random columns with difficult patterns, and random ranges.
#pragma once
#include <vector>
#include "testing.h"

// The encoding of values: the bits that turn them into keys.
template <class K> struct Storage {
  Wide fold, flip;
  Wide key(K bits) const {
    constexpr int WIDTH = sizeof(K) * 8;
    Wide x = wide(bits), all = ~Wide(0) >> (128 - WIDTH);
    bool sign = x >> (WIDTH - 1) & 1;
    return (x ^ (sign ? fold : 0) ^ flip) & all;
  }
};

// A column to index.
template <class K> struct Column {
  Storage<K> storage;
  std::vector<K> bits;
  std::vector<bool> valid;  // empty without NULLs
  size_t size() const { return bits.size(); }
  bool is_valid(size_t i) const { return valid.empty() || valid[i]; }
  // The position of the leftmost minimum of a range by a naive scan, or -1.
  i64 scan(u64 left, u64 right) const {
    i64 at = -1;
    for (u64 i = left; left <= right && i <= right; i++) {
      if (is_valid(i) && (at < 0 || storage.key(bits[i]) < storage.key(bits[at]))) at = i64(i);
    }
    return at;
  }
};

template <class K> Column<K> random_column(u64 n, Random& random) {
  constexpr int WIDTH = sizeof(K) * 8;
  const Wide all = ~Wide(0) >> (128 - WIDTH), sign = Wide(1) << (WIDTH - 1);
  Column<K> column;
  const Storage<K> kinds[] = {{0, 0}, {0, sign}, {all ^ sign, sign}};  // unsigned, signed, floating
  column.storage = kinds[random.below(3)];
  if (random.one_in(2)) column.storage.flip ^= all;  // for maxima

  // The key of value i.
  u64 shape = random.below(8), few = random.between(1, 5);
  auto anything = [&] { return (Wide(random.bits()) << 64 | random.bits()) & all; };
  Wide constant = anything();
  auto key_of = [&](u64 i) -> Wide {
    switch (shape) {
      case 0: return constant;
      case 1: return all;                                               // NULL's key everywhere
      case 2: return random.one_in(n / 8 + 1) ? anything() : all;       // almost everywhere
      case 3: return constant ^ random.below(few);                      // ties
      case 4: return constant ^ (Wide(random.below(few)) << WIDTH / 2);  // ties in the lower half
      case 5: return all / (n + 1) * (i + 1);                           // ascending
      case 6: return all / (n + 1) * (n - i);                           // descending
      default: return anything();
    }
  };
  // Decodes a key: a negative float has its other bits folded, and folding again undoes that.
  auto stored = [&](Wide key) {
    Wide x = (key ^ column.storage.flip) & all;
    return narrow<K>(x & sign ? x ^ column.storage.fold : x);
  };
  for (u64 i = 0; i < n; i++) column.bits.push_back(stored(key_of(i)));

  if (random.one_in(2)) {
    u64 nulls = random.below(4), run = random.between(1, n);
    bool valid = true;
    for (u64 i = 0; i < n; i++) {
      if (nulls == 0) valid = false;                                    // all of them
      if (nulls == 1) valid = random.one_in(2);
      if (nulls == 2 && random.one_in(run)) valid = !valid;              // in runs
      if (nulls == 3) valid = random.one_in(n / 3 + 1);                 // almost all
      column.valid.push_back(valid);
    }
  }
  return column;
}

// Sizes around those of chunks, tiles and bitmap words, and arbitrary ones.
inline u64 random_size(Random& random, u64 most) {
  static const u64 EDGES[] = {8, 16, 32, 64, 256, 512, 1024, 2048, 4096};
  u64 edge = EDGES[random.below(9)];
  switch (random.below(4)) {
    case 0: return random.between(1, 40);
    case 1: return edge > most ? most : random.between(edge - 2, edge + 2);
    default: return random.between(1, most);
  }
}

// Inclusive bounds within a column, some empty.
template <class P> void random_range(Random& random, u64 n, P& left, P& right) {
  u64 l = random.below(n), r = random.below(n);
  switch (random.below(8)) {
    case 0: r = l; break;
    case 1: l = 0, r = n - 1; break;
    case 2: r = l + random.below(40); break;
    case 3: l = l / 8 * 8, r = r / 8 * 8 + 7; break;  // whole chunks of u128
    case 4: l = l / 32 * 32, r = r / 32 * 32 + 31; break;
    default: break;
  }
  if (r >= n) r = n - 1;
  if (l > r && !random.one_in(10)) {
    u64 swap = l;
    l = r;
    r = swap;
  }
  left = P(l);
  right = P(r);
}
