// Tests threshold searches in indexes of small columns: every row found is compared with a naive scan.
#define RMQ_KEY_U32
#define RMQ_KEY_U64
#define RMQ_KEY_U128
#include "../crossing.cu"
#include "layout.h"

template <class K, class P> using Crossing = void (*)(Index, u32, const P*, const P*, const K*, i64*, u32*);

// The kernels of one shape: for first rows, and for last ones.
template <class K> struct Crossings {
  Kernels<K> build;
  Crossing<K, u32> p32[2];
  Crossing<K, u64> p64[2];
};

#define CROSSINGS(K, BYTES)                                                                          \
  Crossings<K> {                                                                                     \
    {#K "_c" #BYTES,                                                                                 \
     BYTES,                                                                                          \
     {build_bottom_##K##_c##BYTES, build_bottom_##K##_c##BYTES##_at},                                \
     {build_level_##K##_c##BYTES, build_level_##K##_c##BYTES##_at},                                  \
     {build_table_##K, build_table_##K##_at}},                                                       \
        {crossing_##K##_c##BYTES##_p32_first, crossing_##K##_c##BYTES##_p32_last},                   \
        {crossing_##K##_c##BYTES##_p64_first, crossing_##K##_c##BYTES##_p64_last},                   \
  }

// The first or last valid row of a range whose key is at most the threshold, by a naive scan; -1 if there is none.
template <class K> i64 scan(const Column<K>& column, u64 left, u64 right, Wide threshold, bool first) {
  i64 found = -1;
  for (u64 i = left; left <= right && i <= right; i++) {
    if (!column.is_valid(i) || column.storage.key(column.bits[i]) > threshold) continue;
    found = i64(i);
    if (first) break;
  }
  return found;
}

template <class K, class P>
void ask(const char* name, const Column<K>& column, Random& random, Crossing<K, P> kernel, bool first, const Index& index) {
  const Wide all = ~Wide(0) >> (128 - sizeof(K) * 8);
  u32 m = u32(random.one_in(4) ? random.between(1, 600) : random.between(1, 100));
  Buffer<P> left(m), right(m);
  Buffer<K> thresholds(m);
  // The least of some keys is at most few, so that searches reach far.
  u64 samples = random.between(1, 50);
  for (u32 q = 0; q < m; q++) {
    random_range(random, column.size(), left[q], right[q]);
    Wide least = all;
    for (u64 i = 0; i < samples; i++) {
      Wide key = column.storage.key(column.bits[random.below(column.size())]);
      least = key < least ? key : least;
    }
    switch (random.below(8)) {
      case 0: least = all; break;
      case 1: least = 0; break;
      case 2: least = least == 0 ? 0 : least - 1; break;
      default: break;
    }
    thresholds[q] = narrow<K>(least);
  }
  Buffer<i64> positions(m);
  Buffer<u32> valid((m + 31) / 32);
  unsigned seed = unsigned(random.below(6));
  emulate::launch(blocks_for(m), 256, seed, [&] {
    kernel(index, m, left.data(), right.data(), thresholds.data(), positions.data(), valid.data());
  });
  for (u32 q = 0; q < m; q++) {
    i64 expected = scan(column, left[q], right[q], wide(thresholds[q]), first);
    bool there = valid[q / 32] >> q % 32 & 1;
    if (there == (expected >= 0) && positions[q] == (there ? expected : 0)) continue;
    std::printf("%s_p%zu_%s, n %zu, nulls %d, top %u, seed %u: query %u of %u, [%llu, %llu] at most %s: got %lld, valid %d; want %lld\n", name,
                sizeof(P) * 8, first ? "first" : "last", column.size(), !column.valid.empty(), index.top, seed, q, m, u64(left[q]),
                u64(right[q]), hex(wide(thresholds[q])).c_str(), positions[q], there, expected);
    std::exit(1);
  }
}

template <class K> void test(const Crossings<K>& kernels, int cases) {
  for (int number = 0; number < cases; number++) {
    Random random(u64(number) << 8 | sizeof(K) | kernels.build.chunk_bytes);
    u64 n = random_size(random, 5000);
    Column<K> column = random_column<K>(n, random);
    u32 depth = 1;
    for (u64 entries = n; entries > kernels.build.chunk_bytes / sizeof(K); depth++) entries /= kernels.build.chunk_bytes / sizeof(K);
    u32 top = u32(random.between(1, depth + 1));
    BuiltIndex<K> built(kernels.build, column, top, random.one_in(2), random);
    for (int last = 0; last < 2; last++) {
      ask<K, u32>(kernels.build.name, column, random, kernels.p32[last], !last, built.index);
      ask<K, u64>(kernels.build.name, column, random, kernels.p64[last], !last, built.index);
    }
  }
  std::printf("%s: %d columns\n", kernels.build.name, cases);
}

int main(int count, char** arguments) {
  int cases = count > 1 ? std::atoi(arguments[1]) : 500;
  test(CROSSINGS(u32, 64), cases);
  test(CROSSINGS(u32, 128), cases);
  test(CROSSINGS(u64, 128), cases);
  test(CROSSINGS(u128, 128), cases);
}
