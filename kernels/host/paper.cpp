// Tests the paper's kernels on small columns: every answer is compared with a naive scan.
#include "paper_levels.h"
#include "queries.h"

template <class K, class P, class Kernel>
void test_one(const char* name, Random& random, u32 shift, bool at, Kernel kernel, u32 threads, bool keyed = true) {
  u64 n = random_size(random, 5000);
  Column<K> column = random_column<K>(n, random);
  if (!column.valid.empty()) keyed = true;
  PaperLevels<K, P> built(column, shift, random.between(1 << shift, 300), at, keyed, random);
  ask<K, P>(name, at ? BOTH : VALUE, column, random, kernel, built.index, threads);
}

template <class K, class P, bool AT> void test_shape(Random& random) {
  test_one<K, P>("coalesced", random, 5, AT, coalesced<K, P, 16, 32, AT>, 1);
  test_one<K, P>("multi_load", random, 5, AT, multi_load<K, P, 16, 32, AT>, 16);
  test_one<K, P>("vector", random, 3, AT, vector<K, P, 8, AT>, 1);
  test_one<K, P>("full_scan", random, 5, AT, full_scan<K, P, AT>, 1, random.one_in(2));
  test_one<K, P>("warp_scan", random, 5, AT, warp_scan<K, P, AT>, 32, random.one_in(2));
  if constexpr (!AT) test_one<K, P>("no_shuffle", random, 5, AT, no_shuffle<K, P, 16, 32>, 1);
}

// Columns whose bits are keys, as `atomic_min` and `one_sided` need; the former also needs `values` filled.
template <class K, class P, class Kernel> void test_keys(const char* name, Random& random, u32 shift, Kernel kernel) {
  Column<K> column = random_column<K>(random_size(random, 5000), random);
  column.storage = {0, 0};
  column.valid.clear();
  PaperLevels<K, P> built(column, shift, random.between(1 << shift, 300), false, true, random);
  ask<K, P>(name, VALUE, column, random, kernel, built.index, 1, 0xff);
}

template <class K, class P> void test_keys(Random& random) {
  test_keys<K, P>("atomic_min", random, 5, atomic_min<K, P, 16, 32>);
  test_keys<K, P>("one_sided", random, 3, one_sided<K, P, 8>);
}

template <class K> void test_width(Random& random) {
  test_shape<K, u32, false>(random);
  test_shape<K, u32, true>(random);
  test_shape<K, u64, false>(random);
  test_shape<K, u64, true>(random);
}

template <int GROUP, int CHUNK> void test_heat_map(Random& random) {
  constexpr u32 SHIFT = __builtin_ctz(CHUNK);
  test_one<u32, u32>("coalesced, heat map", random, SHIFT, false, coalesced<u32, u32, GROUP, CHUNK, false>, 1);
  if (GROUP == 1) return;  // differs only in `valid`
  test_one<u32, u32>("multi_load, heat map", random, SHIFT, false, multi_load<u32, u32, GROUP, CHUNK, false>, GROUP);
}

int main(int count, char** arguments) {
  int cases = (count > 1 ? std::atoi(arguments[1]) : 500) / 8;
  for (int number = 0; number < cases; number++) {
    Random random(number);
    test_width<u32>(random);
    test_width<u64>(random);
    test_width<u128>(random);
    test_keys<u32, u32>(random);
    test_keys<u32, u64>(random);
    test_keys<u64, u32>(random);
    test_keys<u64, u64>(random);
    test_heat_map<1, 8>(random);
    test_heat_map<2, 16>(random);
    test_heat_map<4, 128>(random);
    test_heat_map<8, 8>(random);
    test_heat_map<32, 32>(random);
    test_heat_map<32, 64>(random);
    test_one<u32, u32>("vector, heat map", random, 2, false, vector<u32, u32, 4, false>, 1);
    test_one<u32, u32>("vector, heat map", random, 4, false, vector<u32, u32, 16, false>, 1);
    test_one<u32, u32>("vector, heat map", random, 5, false, vector<u32, u32, 32, false>, 1);
  }
  std::printf("%d columns per kernel\n", cases);
}
