// Tests the kernels that measure reads: they stay within their memory, and a group reads whole segments.
#include "../baselines/limit.cu"
#include "testing.h"

template <int GROUP, bool SAME> void test_reads(Random& random) {
  u32 segments = u32(random.between(1, 200)), reads = u32(random.between(1, 40));
  size_t count = size_t(segments) * GROUP;
  Buffer<u32> data(count, 0xff);
  // Where all threads of a group read the first word of a segment, the others are not seen.
  for (size_t i = 0; SAME && i < count; i++) data[i] = i % GROUP == 0 ? ~0u : 0;
  Buffer<u32> out(1, 0);
  unsigned seed = unsigned(random.below(6));
  auto run = [&] { emulate::launch(2, 256, seed, [&] { random_reads<GROUP, SAME>(data.data(), segments, reads, out.data()); }); };
  run();
  if (out[0] == 0) std::printf("%d threads, same %d: the greatest values are not seen\n", GROUP, SAME), std::exit(1);
  // A thread that reads nothing would report the greatest value.
  memset(static_cast<void*>(data.data()), 0, count * 4);
  out[0] = 0;
  run();
  if (out[0] != 0) std::printf("%d threads, same %d: thread %u did not read\n", GROUP, SAME, out[0]), std::exit(1);
}

// Two reads of a query are the lines that hold its ends.
template <class P> void test_two_reads(Random& random) {
  u64 n = random.between(1, 3000), lines = (n + 31) / 32;
  u32 m = u32(random.between(1, 300));
  Buffer<u32> column(lines * 32), out(m);
  for (u64 i = 0; i < lines * 32; i++) column[i] = u32(random.bits());
  Buffer<P> left(m), right(m);
  for (u32 q = 0; q < m; q++) left[q] = P(random.below(n)), right[q] = P(random.between(left[q], n - 1));
  emulate::launch(blocks_for(m), 256, unsigned(random.below(6)), [&] { reads<P, 128>(m, left.data(), right.data(), out.data(), column.data()); });
  for (u32 q = 0; q < m; q++) {
    u32 least = ~0u;
    for (u64 end : {u64(left[q]), u64(right[q])})
      for (u64 i = end / 32 * 32; i < end / 32 * 32 + 32; i++) least = min(least, column[i]);
    if (out[q] != least) std::printf("two reads of query %u: %x, want %x\n", q, out[q], least), std::exit(1);
  }
}

int main(int count, char** arguments) {
  int cases = (count > 1 ? std::atoi(arguments[1]) : 500) / 4;
  for (int number = 0; number < cases; number++) {
    Random random(number);
    test_reads<1, false>(random);
    test_reads<8, false>(random);
    test_reads<256, false>(random);
    test_reads<2, true>(random);
    test_reads<64, true>(random);
    test_two_reads<u32>(random);
    test_two_reads<u64>(random);
  }
  std::printf("%d cases per kernel\n", cases);
}
