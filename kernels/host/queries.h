// Queries kernels with random ranges and compares every answer with a naive scan.
#pragma once
#include "columns.h"

enum Want { VALUE, POSITION, BOTH };

// `threads` is the number of threads per query; `garbage` fills the answers before.
template <class K, class P, class Kernel, class AnyIndex>
void ask(const char* name, Want want, const Column<K>& column, Random& random, Kernel kernel, const AnyIndex& index, u32 threads = 1, int garbage = 0xa5) {
  u32 m = u32(random.one_in(4) ? random.between(1, 600) : random.between(1, 100));
  Buffer<P> left(m), right(m);
  for (u32 q = 0; q < m; q++) random_range(random, column.size(), left[q], right[q]);
  Buffer<K> values(want != POSITION ? m : 0, garbage);
  Buffer<i64> positions(want != VALUE ? m : 0);
  bool tells_valid = !random.one_in(4);
  Buffer<u32> valid(tells_valid ? (m + 31) / 32 : 0, threads > 1 ? 0 : 0xa5);
  unsigned seed = unsigned(random.below(6));
  emulate::launch(blocks_for(u64(m) * threads), 256, seed, [&] {
    kernel(index, m, left.data(), right.data(), want != POSITION ? values.data() : nullptr, want != VALUE ? positions.data() : nullptr,
           tells_valid ? valid.data() : nullptr);
  });
  for (u32 q = 0; q < m; q++) {
    i64 expected = column.scan(left[q], right[q]);
    bool there = expected >= 0;
    std::string wrong;
    if (tells_valid && (valid[q / 32] >> q % 32 & 1) != there) wrong = there ? "NULL" : "a value";
    if (there && want != POSITION && wide(values[q]) != wide(column.bits[expected])) wrong = "value " + hex(wide(values[q]));
    if (there && want != VALUE && positions[q] != expected) wrong += " position " + std::to_string(positions[q]);
    if (wrong.empty()) continue;
    std::printf("%s_p%zu_%s, n %zu, nulls %d, seed %u: query %u of %u, [%llu, %llu]: got %s; want %s at %lld\n", name, sizeof(P) * 8,
                want == VALUE ? "value" : want == POSITION ? "position" : "both", column.size(), !column.valid.empty(), seed, q, m,
                u64(left[q]), u64(right[q]), wrong.c_str(), there ? hex(wide(column.bits[expected])).c_str() : "NULL", expected);
    std::exit(1);
  }
}
