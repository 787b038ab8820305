// Tests indexes of small columns: every answer is compared with a naive scan.
#define RMQ_KEY_U32
#define RMQ_KEY_U64
#define RMQ_KEY_U128
#include "../answer.cu"
#include "layout.h"
#include "queries.h"

template <class K, class P> using Answer = void (*)(Index, u32, const P*, const P*, K*, i64*, u32*);

// The answer kernels of one shape, by the answers that they write.
template <class K> struct Answers {
  Kernels<K> build;
  std::vector<Answer<K, u32>> p32[3];
  Answer<K, u64> p64[3];
};

#define BUILD(K, BYTES)                                                        \
  {#K "_c" #BYTES,                                                             \
   BYTES,                                                                      \
   {build_bottom_##K##_c##BYTES, build_bottom_##K##_c##BYTES##_at},            \
   {build_level_##K##_c##BYTES, build_level_##K##_c##BYTES##_at},              \
   {build_table_##K, build_table_##K##_at}}
#define NAMED(K, BYTES, BITS, READERS, WANT) answer_##K##_c##BYTES##_p##BITS##_##READERS##_##WANT
#define THREADS_ONLY(K, BYTES, WANT) {NAMED(K, BYTES, 32, threads, WANT)}
#define THREADS_AND_GROUPS(K, BYTES, WANT) {NAMED(K, BYTES, 32, threads, WANT), NAMED(K, BYTES, 32, groups, WANT)}
#define ANSWERS(K, BYTES, P32)                                                                   \
  Answers<K> {                                                                                   \
    BUILD(K, BYTES), {P32(K, BYTES, value), P32(K, BYTES, position), P32(K, BYTES, both)},       \
        {NAMED(K, BYTES, 64, groups, value), NAMED(K, BYTES, 64, groups, position), NAMED(K, BYTES, 64, groups, both)}, \
  }

template <class K> void test(const Answers<K>& kernels, int cases) {
  for (int number = 0; number < cases; number++) {
    Random random(u64(number) << 8 | sizeof(K) | kernels.build.chunk_bytes);
    u64 n = random_size(random, 5000);
    Column<K> column = random_column<K>(n, random);
    // From a table right above level 1 to one of a single entry, and beyond.
    u32 depth = 1;
    for (u64 entries = n; entries > kernels.build.chunk_bytes / sizeof(K); depth++) entries /= kernels.build.chunk_bytes / sizeof(K);
    u32 top = u32(random.between(1, depth + 1));
    bool at = random.one_in(2);
    BuiltIndex<K> built(kernels.build, column, top, at, random);
    for (Want want : {VALUE, POSITION, BOTH}) {
      if (want != VALUE && !at) continue;
      for (auto kernel : kernels.p32[want]) ask<K, u32>(kernels.build.name, want, column, random, kernel, built.index);
      ask<K, u64>(kernels.build.name, want, column, random, kernels.p64[want], built.index);
    }
  }
  std::printf("%s: %d columns\n", kernels.build.name, cases);
}

int main(int count, char** arguments) {
  int cases = count > 1 ? std::atoi(arguments[1]) : 500;
  test(ANSWERS(u32, 64, THREADS_ONLY), cases);
  test(ANSWERS(u32, 128, THREADS_AND_GROUPS), cases);
  test(ANSWERS(u64, 128, THREADS_AND_GROUPS), cases);
  test(ANSWERS(u128, 128, THREADS_AND_GROUPS), cases);
}
