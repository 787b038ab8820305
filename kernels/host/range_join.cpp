// Tests build sides of range joins: sorted order, groups, gathered columns, ranges and their answers, compared with scans of the rows.
#include "../range_join.cu"
#include <algorithm>
#include "columns.h"
#include "sorting.h"

// Whether the bits, as a signed integer, can be moved so.
inline bool can_shift(u32 bits, i64 by) {
  bool overflows = false;
  shifted(bits, by, overflows);
  return !overflows;
}
inline bool can_shift(u64 bits, i64 by) {
  bool overflows = false;
  shifted(bits, by, overflows);
  return !overflows;
}
inline bool can_shift(u128, i64 by) { return by == 0; }

template <class K> struct JoinKernels {
  const char* name;
  void (*check)(Rows, const u32*, u32*);
  void (*key_bits)(Rows, u64*);
  void (*sort_words)(Rows, const u32*, u32, u32, u32, u32*);
  void (*gather)(const K*, const u32*, u64, K, K, K*);
  void (*addends)(const K*, const u32*, const u32*, u64, u32, typename Addend<K>::Type*);
  void (*sums)(const u32*, const u32*, u32, const typename Addend<K>::Type*, const u32*, const u32*, typename Addend<K>::Type*, u32*);
  void (*search)(Search, u32, u32*, u32*);
  void (*first_of_last)(const K*, const u32*, const u32*, u32, u32*);
  void (*take)(const u32*, const u32*, u32, u32, const i64*, const u32*, const K*, const u32*, K*, u32*);
};

#define KERNELS(K, SUM)                                                                                                                       \
  JoinKernels<K> {                                                                                                                       \
    #K, join_check_##K, join_key_bits_##K, join_sort_words_##K, join_gather_##K, join_addends_##K, join_sums_##SUM, join_search_##K, join_first_of_last_##K, join_take_##K         \
  }

static void set_words(u64* words, Wide x) {
  words[0] = u64(x);
  words[1] = u64(x >> 64);
}

static Wide shifted(Wide x, u32 by) { return by >= 128 ? 0 : x >> by; }

// The rows of a build side, and what a plain sort makes of them.
template <class K> struct Side {
  Column<K> keys;
  std::vector<u32> ids;  // empty without groups
  u32 groups = 1;
  std::vector<u32> order;   // rows in sorted order
  std::vector<u32> starts;  // of groups

  u32 group(u32 row) const { return ids.empty() ? 0 : ids[row]; }
  Wide key(u32 row) const { return keys.storage.key(keys.bits[row]); }
  bool before(u32 a, u32 b) const { return group(a) != group(b) ? group(a) < group(b) : key(a) < key(b); }

  Side(u64 n, Random& random) {
    do keys = random_column<K>(n, random);
    while (!keys.valid.empty());
    if (!random.one_in(4)) {
      groups = u32(random.one_in(3) ? random.between(1, 3 * n) : random.between(1, 5));
      bool some_left_out = random.one_in(2);
      for (u64 i = 0; i < n; i++) ids.push_back(some_left_out && random.one_in(5) ? groups : u32(random.below(groups)));
    }
    u64 shape = random.below(4);
    if (shape == 0) arrange([&](u32 a, u32 b) { return before(a, b); });    // sorted already
    if (shape == 1) arrange([&](u32 a, u32 b) { return key(a) < key(b); });  // sorted by key
    for (u32 i = 0; i < n; i++) order.push_back(i);
    std::stable_sort(order.begin(), order.end(), [&](u32 a, u32 b) { return before(a, b); });
    for (u32 g = 0; g <= groups; g++)
      starts.push_back(u32(std::count_if(order.begin(), order.end(), [&](u32 row) { return group(row) < g; })));
  }

 private:
  template <class Before> void arrange(const Before& before) {
    std::vector<u32> rows;
    for (u32 i = 0; i < keys.size(); i++) rows.push_back(i);
    std::stable_sort(rows.begin(), rows.end(), before);
    auto bits = keys.bits;
    auto old_ids = ids;
    for (size_t i = 0; i < rows.size(); i++) {
      keys.bits[i] = bits[rows[i]];
      if (!ids.empty()) ids[i] = old_ids[rows[i]];
    }
  }
};

template <class T> Buffer<T> copy_of(const std::vector<T>& from) {
  Buffer<T> to(from.size());
  if (!from.empty()) memcpy(static_cast<void*>(to.data()), from.data(), from.size() * sizeof(T));
  return to;
}

static Buffer<u32> bitmap_of(const std::vector<bool>& bits) {
  Buffer<u32> words((bits.size() + 31) / 32);
  for (size_t i = 0; i < bits.size(); i++) words[i / 32] = (words[i / 32] & ~(1u << i % 32)) | u32(bits[i]) << i % 32;
  return words;
}

static void expect(bool right, const char* name, const char* what, u64 at) {
  if (right) return;
  std::printf("join %s: wrong %s at %llu\n", name, what, at);
  std::exit(1);
}

static u32 bits_of(Wide x) {
  u32 bits = 0;
  for (; x; x >>= 1) bits++;
  return bits;
}

template <class K> void test(const JoinKernels<K>& kernels, Random& random) {
  u64 n = random.one_in(10) ? random.between(1, 5000) : random.between(1, 200);
  unsigned seed = unsigned(random.below(6));
  const char* name = kernels.name;
  Side<K> side(n, random);
  auto keys = copy_of(side.keys.bits);
  auto wide_ids = copy_of(side.ids);
  bool narrow_rows = side.groups < 0xffff && random.one_in(2);
  Buffer<unsigned short> narrow_ids(side.ids.size());
  for (size_t i = 0; i < side.ids.size(); i++) narrow_ids[i] = (unsigned short)side.ids[i];
  Rows rows = {};
  rows.keys = keys.data();
  set_words(rows.fold, side.keys.storage.fold);
  set_words(rows.flip, side.keys.storage.flip);
  rows.ids = side.ids.empty() ? nullptr : narrow_rows ? static_cast<void*>(narrow_ids.data()) : wide_ids.data();
  rows.narrow_ids = narrow_rows;
  rows.groups = side.groups;
  rows.n = n;

  // The order as it comes.
  Buffer<u32> disorder(1, 0);
  emulate::launch(blocks_for(n), 256, seed, [&] { kernels.check(rows, nullptr, disorder.data()); });
  u32 want = 0;
  for (u32 i = 1; i < n; i++) {
    if (side.group(i) < side.group(i - 1)) want |= GROUPS_DESCEND;
    if (!(side.key(i) < side.key(i - 1))) continue;
    want |= KEYS_DESCEND_ANYWHERE;
    if (side.group(i) == side.group(i - 1) && side.group(i) < side.groups) want |= KEYS_DESCEND;
  }
  expect(disorder[0] == want, name, "order check", disorder[0]);

  // Sort by all differing bits.
  Buffer<u64> differ(2, 0);
  emulate::launch(blocks_for((n + KEYS_A_THREAD - 1) / KEYS_A_THREAD), 256, seed, [&] { kernels.key_bits(rows, differ.data()); });
  Wide bits = Wide(differ[1]) << 64 | differ[0], all = 0;
  for (u32 i = 0; i < n; i++) all |= side.key(i) ^ side.key(0);
  expect(bits == all, name, "differing bits", 0);
  u32 shift = 0;
  while (bits && !(bits >> shift & 1)) shift++;
  u32 width = bits_of(shifted(bits, shift)), total = width + bits_of(side.ids.empty() ? 0 : side.groups);
  Buffer<u32> words(n), order(n);
  const u32* sorted = nullptr;
  Buffer<u32> other(n);
  for (u32 from = 0; from < total; from += 32) {
    emulate::launch(blocks_for(n), 256, seed, [&] { kernels.sort_words(rows, sorted, shift, width, from, words.data()); });
    u32* to = sorted == order.data() ? other.data() : order.data();
    sort_by_words(words.data(), sorted, u32(n), std::min(32u, total - from), to, seed);
    sorted = to;
  }
  for (u32 i = 0; i < n && sorted; i++) expect(sorted[i] == side.order[i] || side.group(sorted[i]) == side.groups, name, "row", i);
  Buffer<u32> starts(u64(side.groups) + 1);
  emulate::launch(blocks_for(side.groups + 1), 256, seed, [&] { join_group_starts(rows, sorted, starts.data()); });
  for (u32 g = 0; g <= side.groups; g++) expect(starts[g] == side.starts[g], name, "group start", g);
  u32 places = starts[side.groups];
  if (places == 0) return;

  // Columns in sorted order.
  Column<K> column = random_column<K>(n, random);
  bool nulls = !column.valid.empty();
  auto values = copy_of(column.bits);
  Buffer<u32> bitmap = bitmap_of(column.valid), valid(nulls ? (places + 31) / 32 : 0), valid_before(nulls ? (places + 31) / 32 + 1 : 0);
  Buffer<K> sorted_keys(places), sorted_values(places);
  K none, fold, flip;
  set_zero(none);
  fold = narrow<K>(side.keys.storage.fold);
  flip = narrow<K>(side.keys.storage.flip);
  emulate::launch(blocks_for(places), 256, seed, [&] { kernels.gather(keys.data(), sorted, places, fold, flip, sorted_keys.data()); });
  emulate::launch(blocks_for(places), 256, seed, [&] { kernels.gather(values.data(), sorted, places, none, none, sorted_values.data()); });
  if (nulls) {
    emulate::launch(blocks_for(places), 256, seed, [&] { join_gather_bits(bitmap.data(), sorted, places, valid.data()); });
    emulate::launch(blocks_for(valid.size() + 1), 256, seed, [&] { join_count_bits(valid.data(), valid.size(), valid_before.data()); });
    prefix_sums(valid_before.data(), valid_before.size(), seed);
  }
  const u32 *some_valid = nulls ? valid.data() : nullptr, *some_before = nulls ? valid_before.data() : nullptr;
  u32 is_signed = u32(random.below(2));
  using Integer = typename Addend<K>::Type;
  Buffer<Integer> sums(u64(places) + 1);
  emulate::launch(blocks_for(places + 1), 256, seed, [&] { kernels.addends(values.data(), sorted, some_valid, places, is_signed, sums.data()); });
  prefix_sums(sums.data(), sums.size(), seed);
  auto row_of = [&](u32 place) { return sorted ? sorted[place] : place; };
  for (u32 i = 0; i < places; i++) {
    expect(wide(sorted_keys[i]) == side.key(row_of(i)), name, "key", i);
    expect(wide(sorted_values[i]) == wide(column.bits[row_of(i)]), name, "value", i);
  }

  // Queries.
  u32 m = u32(random.between(1, 200)), count = u32(random.below(4));
  bool prevailing = random.one_in(3);
  std::vector<Buffer<K>> bounds, unshifted;
  std::vector<Buffer<u32>> masks;
  std::vector<std::vector<bool>> is_valid;
  std::vector<u32> kinds;
  Search search = {};
  bool has_lower = false;
  for (u32 b = 0; b < count; b++) {
    u32 kind = u32(random.below(4));
    if (prevailing && has_lower) kind &= ~u32(LOWER);
    has_lower |= (kind & LOWER) != 0;
    bounds.emplace_back(m);
    is_valid.emplace_back();
    unshifted.emplace_back(m);
    i64 shift = random.one_in(3) ? 0 : i64(random.bits()) >> random.between(1, 60);
    if (sizeof(K) == 4) shift = int(shift);
    for (u32 q = 0; q < m; q++) {
      bounds[b][q] = random.one_in(8) ? column.bits[random.below(n)] : side.keys.bits[random.below(n)];
      is_valid[b].push_back(!random.one_in(10));
      // A NULL may be anything, also moved beyond its type.
      if (is_valid[b][q] && !can_shift(bounds[b][q], -shift)) shift = 0;
    }
    for (u32 q = 0; q < m; q++) {
      bool ignored = false;
      unshifted[b][q] = shifted(bounds[b][q], -shift, ignored);
    }
    masks.push_back(bitmap_of(is_valid[b]));
    search.bound[b].keys = unshifted[b].data();
    search.bound[b].shift = shift;
    search.bound[b].valid = masks[b].data();
    set_words(search.bound[b].fold, side.keys.storage.fold);
    set_words(search.bound[b].flip, side.keys.storage.flip);
    search.bound[b].kind = kind;
    kinds.push_back(kind);
  }
  prevailing = prevailing && has_lower;
  Buffer<u32> ids(m), left(m), right(m);
  for (u32 q = 0; q < m; q++) ids[q] = random.one_in(10) ? ~0u : u32(random.below(side.groups));
  bool has_ids = !side.ids.empty();
  search.keys = sorted_keys.data();
  search.starts = starts.data();
  search.ids = has_ids ? ids.data() : nullptr;
  u32 overflow = 0;
  search.overflow = &overflow;
  search.groups = side.groups;
  search.bounds = count;
  search.prevailing = prevailing;
  bool twice = !prevailing && count > 1 && random.one_in(2);
  if (twice) search.bounds = 1;
  emulate::launch(blocks_for(m), 256, seed, [&] { kernels.search(search, m, left.data(), right.data()); });
  if (twice) {
    search.again = 1;
    search.bounds = count - 1;
    for (u32 b = 1; b < count; b++) search.bound[b - 1] = search.bound[b];
    emulate::launch(blocks_for(m), 256, seed, [&] { kernels.search(search, m, left.data(), right.data()); });
  }
  expect(overflow == 0, name, "no overflow", 0);
  Buffer<u64> counts(m);
  Buffer<Integer> sums_found(m);
  Buffer<u32> matched((m + 31) / 32), sums_valid((m + 31) / 32), last_valid((m + 31) / 32), found_valid((m + 31) / 32), is_found((m + 31) / 32);
  Buffer<i64> found(m);
  Buffer<K> last(m), taken(m);
  for (u32 q = 0; q < m; q++) {
    bool some = left[q] <= right[q] && !random.one_in(4);
    is_found[q / 32] = (is_found[q / 32] & ~(1u << q % 32)) | u32(some) << q % 32;
    found[q] = some ? i64(random.between(left[q], right[q])) : -1;
  }
  auto run = [&](auto&& body) { emulate::launch(blocks_for(m), 256, seed, body); };
  run([&] { join_matched(left.data(), right.data(), m, matched.data()); });
  run([&] { join_counts(left.data(), right.data(), m, some_valid, some_before, counts.data()); });
  run([&] { kernels.sums(left.data(), right.data(), m, sums.data(), some_valid, some_before, sums_found.data(), sums_valid.data()); });
  Buffer<u32> first_of_last(m), first_ordered(m);
  u32 nulls_first = u32(random.below(2));
  run([&] { kernels.first_of_last(sorted_keys.data(), left.data(), right.data(), m, first_of_last.data()); });
  run([&] {
    join_first_ordered(left.data(), right.data(), m, found.data(), is_found.data(), some_valid, some_before, nulls_first, first_ordered.data());
  });
  run([&] { kernels.take(left.data(), right.data(), m, LAST, nullptr, nullptr, sorted_values.data(), some_valid, last.data(), last_valid.data()); });
  run([&] { kernels.take(left.data(), right.data(), m, FOUND, found.data(), is_found.data(), sorted_values.data(), some_valid, taken.data(), found_valid.data()); });

  for (u32 q = 0; q < m; q++) {
    u32 group = has_ids ? ids[q] : 0;
    // The places that match, by a scan of the group's.
    std::vector<u32> match;
    i64 prevails = -1;
    bool there = true, opens = true;
    Wide low = 0;
    for (u32 b = 0; b < count; b++) {
      there = there && is_valid[b][q];
      if (kinds[b] & LOWER) low = side.keys.storage.key(bounds[b][q]);
    }
    for (u32 b = 0; b < count; b++) opens = opens && (kinds[b] & LOWER || low <= side.keys.storage.key(bounds[b][q]));
    for (u32 place = 0; place < places && there; place++) {
      if (side.group(row_of(place)) != group) continue;
      Wide key = side.key(row_of(place));
      bool inside = true;
      for (u32 b = 0; b < count; b++) {
        Wide bound = side.keys.storage.key(bounds[b][q]);
        switch (kinds[b]) {
          case LOWER: inside = inside && key >= bound; break;
          case LOWER | AFTER_EQUAL: inside = inside && key > bound; break;
          case AFTER_EQUAL: inside = inside && key <= bound; break;
          default: inside = inside && key < bound;
        }
      }
      if (inside) match.push_back(place);
      if (prevailing && opens && key <= low) prevails = place;
    }
    if (prevails >= 0 && (match.empty() || match[0] > u64(prevails))) match.insert(match.begin(), u32(prevails));
    if (prevails >= 0 && !match.empty()) {
      u32 from = match.front(), to = match.back();
      match.clear();
      for (u32 place = from; place <= to; place++) match.push_back(place);
    }
    bool some = !match.empty();
    expect((matched[q / 32] >> q % 32 & 1) == some, name, "match", q);
    expect(some ? left[q] == match.front() && right[q] == match.back() : left[q] == 1 && right[q] == 0, name, "range", q);
    u64 valid_count = 0;
    Wide sum = 0;
    for (u32 place : match) {
      if (!column.is_valid(row_of(place))) continue;
      valid_count++;
      sum += wide(integer(column.bits[row_of(place)], is_signed));
    }
    expect(counts[q] == valid_count, name, "count", q);
    expect((sums_valid[q / 32] >> q % 32 & 1) == (valid_count > 0) && (valid_count == 0 || wide(sums_found[q]) == wide(narrow<Integer>(sum))), name, "sum", q);
    u64 last_key = some ? match.back() : 0, ordered = some ? match.front() : 0;
    while (some && last_key > match.front() && side.key(row_of(u32(last_key - 1))) == side.key(row_of(match.back()))) last_key--;
    expect(first_of_last[q] == last_key, name, "first row with the last key", q);
    if (is_found[q / 32] >> q % 32 & 1) ordered = u64(found[q]);
    for (auto place = match.rbegin(); nulls_first && place != match.rend(); place++)
      if (!column.is_valid(row_of(*place))) ordered = *place;
    expect(first_ordered[q] == ordered, name, "first row in order", q);
    auto value_at = [&](bool any, u64 place, Buffer<K>& got, Buffer<u32>& got_valid, const char* what) {
      bool want = any && column.is_valid(row_of(u32(place)));
      expect((got_valid[q / 32] >> q % 32 & 1) == want && (!want || wide(got[q]) == wide(column.bits[row_of(u32(place))])), name, what, q);
    };
    value_at(some, some ? match.back() : 0, last, last_valid, "last value");
    bool any = is_found[q / 32] >> q % 32 & 1;
    value_at(any, any ? u64(found[q]) : 0, taken, found_valid, "value at a place");
  }
}

// Values at the ends of a type, moved within it and beyond.
template <class K, class Int> void test_shifts() {
  constexpr i64 low = std::numeric_limits<Int>::min(), high = std::numeric_limits<Int>::max();
  auto overflows = [](i64 value, i64 shift) {
    bool found = false;
    K moved = shifted(K(value), shift, found);
    expect(found || i64(Int(moved)) == value + shift, "shift", "value", u64(value));
    return found;
  };
  for (i64 by : {i64(1), i64(1000), high}) {
    expect(!overflows(low, by) && !overflows(high, -by) && !overflows(0, by) && !overflows(-1, -by), "shift", "within", u64(by));
    expect(overflows(high, by) && overflows(low, -by), "shift", "beyond", u64(by));
  }
  expect(overflows(-1, low) && !overflows(0, low) && !overflows(high, low), "shift", "by the least", 0);
}

int main(int count, char** arguments) {
  int cases = count > 1 ? std::atoi(arguments[1]) : 500;
  for (int number = 0; number < cases; number++) {
    Random random(number);
    test(KERNELS(u32, u64), random);
    test(KERNELS(u64, u64), random);
    test(KERNELS(u128, u128), random);
  }
  test_shifts<u32, int>();
  test_shifts<u64, i64>();
  std::printf("%d build sides per key width\n", cases);
}
