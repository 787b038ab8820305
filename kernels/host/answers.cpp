// Builds indexes of small columns and compares every answer with a scan.
#define RMQ_KEY_U32
#define RMQ_KEY_U64
#define RMQ_KEY_U128
#include "../answer.cu"
#include "../build.cu"
#include "columns.h"

template <class K, class P> using Answer = void (*)(Index, u32, const P*, const P*, K*, i64*, u32*);

// The answer kernels of one shape, by what is wanted.
template <class K> struct Answers {
  Kernels<K> build;
  Answer<K, u32> p32[3];
  Answer<K, u64> p64[3];
};

#define ANSWERS(K, BYTES)                                                                                                     \
  Answers<K> {                                                                                                                \
    {#K "_c" #BYTES,                                                                                                          \
     BYTES,                                                                                                                   \
     {build_bottom_##K##_c##BYTES, build_bottom_##K##_c##BYTES##_at},                                                         \
     {build_level_##K##_c##BYTES, build_level_##K##_c##BYTES##_at},                                                           \
     {build_table_##K, build_table_##K##_at}},                                                                                \
        {answer_##K##_c##BYTES##_p32_value, answer_##K##_c##BYTES##_p32_position, answer_##K##_c##BYTES##_p32_both},           \
        {answer_##K##_c##BYTES##_p64_value, answer_##K##_c##BYTES##_p64_position, answer_##K##_c##BYTES##_p64_both},           \
  }

enum Want { VALUE, POSITION, BOTH };

// The position of the leftmost least value of the range, or -1.
template <class K> i64 scan(const Column<K>& column, u64 left, u64 right) {
  i64 at = -1;
  for (u64 i = left; i <= right && left <= right; i++) {
    if (column.is_valid(i) && (at < 0 || column.storage.key(column.bits[i]) < column.storage.key(column.bits[at]))) at = i64(i);
  }
  return at;
}

template <class K, class P>
void ask(const char* name, Answer<K, P> answer, Want want, const Column<K>& column, const Index& index, Random& random) {
  u32 m = u32(random.one_in(4) ? random.between(1, 600) : random.between(1, 100));
  Buffer<P> left(m), right(m);
  for (u32 q = 0; q < m; q++) random_range(random, column.size(), left[q], right[q]);
  Buffer<K> values(want != POSITION ? m : 0);
  Buffer<i64> positions(want != VALUE ? m : 0);
  bool tells_valid = !random.one_in(4);
  Buffer<u32> valid(tells_valid ? (m + 31) / 32 : 0);
  unsigned seed = unsigned(random.below(6));
  emulate::launch(blocks_for(m), 256, seed, [&] {
    answer(index, m, left.data(), right.data(), want != POSITION ? values.data() : nullptr, want != VALUE ? positions.data() : nullptr,
           tells_valid ? valid.data() : nullptr);
  });
  for (u32 q = 0; q < m; q++) {
    i64 expected = scan(column, left[q], right[q]);
    bool there = expected >= 0;
    std::string wrong;
    if (tells_valid && (valid[q / 32] >> q % 32 & 1) != there) wrong = there ? "NULL" : "a value";
    if (there && want != POSITION && wide(values[q]) != wide(column.bits[expected])) wrong = "value " + hex(wide(values[q]));
    if (there && want != VALUE && positions[q] != expected) wrong += " position " + std::to_string(positions[q]);
    if (wrong.empty()) continue;
    std::printf("answer_%s_p%zu_%s, n %llu, top %u, nulls %d, seed %u: query %u of %u, [%llu, %llu]: got %s; want %s at %lld\n", name,
                sizeof(P) * 8, want == VALUE ? "value" : want == POSITION ? "position" : "both", index.n, index.top,
                !column.valid.empty(), seed, q, m, u64(left[q]), u64(right[q]), wrong.c_str(),
                there ? hex(wide(column.bits[expected])).c_str() : "NULL", expected);
    std::exit(1);
  }
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
      ask<K, u32>(kernels.build.name, kernels.p32[want], want, column, built.index, random);
      ask<K, u64>(kernels.build.name, kernels.p64[want], want, column, built.index, random);
    }
  }
  std::printf("%s: %d columns\n", kernels.build.name, cases);
}

int main(int count, char** arguments) {
  int cases = count > 1 ? std::atoi(arguments[1]) : 500;
  test(ANSWERS(u32, 64), cases);
  test(ANSWERS(u32, 128), cases);
  test(ANSWERS(u64, 128), cases);
  test(ANSWERS(u128, 128), cases);
}
