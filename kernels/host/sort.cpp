// Tests the radix sort and prefix sums: compared with the standard library's stable sort and a loop.
#include "sorting.h"
#include <algorithm>

static void fail(const char* what, u64 n, u64 at, u64 got, u64 want) {
  std::printf("%s of %llu: at %llu got %llu, want %llu\n", what, n, at, got, want);
  std::exit(1);
}

static void test_sort(Random& random) {
  u32 n = u32(random.one_in(4) ? random.between(1, 3 * TILE + 5) : random.between(1, 600)), width = u32(random.between(1, 32));
  // Few distinct digits give many ties.
  u64 few = random.one_in(2) ? random.between(1, 6) : ~0ull;
  Buffer<u32> words(n), rows(n), sorted(n);
  for (u32 i = 0; i < n; i++) words[i] = u32(random.below(few) * 0x9e3779b9), rows[i] = n - 1 - i;
  bool identity = random.one_in(2);
  sort_by_words(words.data(), identity ? nullptr : rows.data(), n, width, sorted.data(), unsigned(random.below(6)));
  std::vector<u32> places(n);
  for (u32 i = 0; i < n; i++) places[i] = i;
  u32 mask = width == 32 ? ~0u : (1u << width) - 1;
  std::stable_sort(places.begin(), places.end(), [&](u32 a, u32 b) { return (words[a] & mask) < (words[b] & mask); });
  for (u32 i = 0; i < n; i++) {
    u32 want = identity ? places[i] : rows[places[i]];
    if (sorted[i] != want) fail("a sort", n, i, sorted[i], want);
  }
}

template <class T> void test_sums(Random& random) {
  u64 n = random.one_in(4) ? random.between(1, 3 * SCAN_TILE) : random.between(1, 300);
  Buffer<T> values(n);
  std::vector<T> before(n);
  Wide sum = 0;
  for (u64 i = 0; i < n; i++) {
    values[i] = narrow<T>(Wide(random.bits()) << 64 | random.bits());
    before[i] = narrow<T>(sum);
    sum += wide(values[i]);
  }
  prefix_sums(values.data(), n, unsigned(random.below(6)));
  for (u64 i = 0; i < n; i++)
    if (wide(values[i]) != wide(before[i])) fail("prefix sums", n, i, u64(wide(values[i])), u64(wide(before[i])));
}

int main(int count, char** arguments) {
  int cases = count > 1 ? std::atoi(arguments[1]) : 500;
  for (int number = 0; number < cases; number++) {
    Random random(number);
    test_sort(random);
    test_sums<u32>(random);
    test_sums<u64>(random);
    test_sums<u128>(random);
  }
  std::printf("%d sorts and prefix sums\n", cases);
}
