// Tests the variants of the search on indexes of small columns: every answer is compared with a naive scan.
#include "../baselines/variants.cu"
#include "layout.h"
#include "queries.h"

template <class P> using Search = void (*)(Index, u32, const P*, const P*, u32*, i64*, u32*);

struct Variant {
  const char* name;
  Search<u32> p32[2];  // values, positions; null if there is none
  Search<u64> p64[2];
  bool of_pairs;
};

struct Shape {
  Kernels<u32> build;
  void (*pairs)(Index, u64, KeyAndPlace*);
  std::vector<Variant> variants;
};

void test(const Shape& shape, int cases) {
  u32 chunk = shape.build.chunk_bytes / 4;
  for (int number = 0; number < cases; number++) {
    Random random(u64(number) << 8 | shape.build.chunk_bytes);
    u64 n = random_size(random, 5000);
    Column<u32> column = random_column<u32>(n, random);
    u32 depth = 1;
    for (u64 entries = n; entries > chunk; depth++) entries /= chunk;
    u32 top = u32(random.between(1, depth + 1));
    bool at = random.one_in(2);
    BuiltIndex<u32> built(shape.build, column, top, at, random);
    Index of_pairs = built.index;
    u64 entries = built.index.table_stride;
    Buffer<KeyAndPlace> pairs(at ? built.index.rows * entries : 0);
    if (at) emulate::launch(blocks_for(entries), 256, 0, [&] { shape.pairs(built.index, entries, pairs.data()); });
    of_pairs.table = pairs.data();
    of_pairs.table_at = nullptr;
    for (const Variant& variant : shape.variants) {
      const Index& index = variant.of_pairs ? of_pairs : built.index;
      for (Want want : {VALUE, POSITION}) {
        if (want == POSITION && !at) continue;
        if (variant.p32[want]) ask<u32, u32>(variant.name, want, column, random, variant.p32[want], index);
        if (variant.p64[want]) ask<u32, u64>(variant.name, want, column, random, variant.p64[want], index);
      }
    }
  }
  std::printf("variants_c%u: %d columns\n", shape.build.chunk_bytes, cases);
}

#define BUILD(BYTES)                                                                \
  {"c" #BYTES, BYTES, {build_bottom_u32_c##BYTES, build_bottom_u32_c##BYTES##_at},    \
   {build_level_u32_c##BYTES, build_level_u32_c##BYTES##_at}, {build_table_u32, build_table_u32_at}}
#define NAMED(NAME, BYTES, P, WANT) variant_##NAME##_u32_c##BYTES##_p##P##_##WANT
#define SMALL(NAME) {#NAME " c64", {NAMED(NAME, 64, 32, value), NAMED(NAME, 64, 32, position)}, {}, false}
#define LARGE(NAME)                                                                                                     \
  {#NAME " c128", {NAMED(NAME, 128, 32, value), NAMED(NAME, 128, 32, position)},                                          \
   {NAMED(NAME, 128, 64, value), NAMED(NAME, 128, 64, position)}, false}
#define PAIRS(NAME, BYTES) {#NAME " c" #BYTES, {nullptr, NAMED(NAME, BYTES, 32, position)}, {}, true}

#define EACH(SINGLE, BYTES)                                                                                                            \
  {SINGLE(near_groups_groups), SINGLE(four_threads_groups), SINGLE(near_threads_groups), SINGLE(near_threads_groups_full),               \
   SINGLE(near_threads_groups_two), SINGLE(pack_threads_groups_full), SINGLE(near_threads_threads_full), SINGLE(near_threads_warp_full), \
   SINGLE(pack_threads_warp_full), SINGLE(near_threads_count_full), PAIRS(pair_threads_groups, BYTES), PAIRS(pair_threads_warp_full, BYTES)}

int main(int count, char** arguments) {
  int cases = count > 1 ? std::atoi(arguments[1]) : 500;
  test({BUILD(64), variant_pairs_c64, EACH(SMALL, 64)}, cases);
  test({BUILD(128), variant_pairs_c128, EACH(LARGE, 128)}, cases);
}
