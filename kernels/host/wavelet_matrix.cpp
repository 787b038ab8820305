// Tests order statistics of ranges: counts and ranks are compared with those of the range's sorted rows.
#include <algorithm>
#include <vector>
#include "../wavelet_matrix.cu"
#include "testing.h"

// The matrix of some ranks, as the CPU builds it.
struct Built {
  Buffer<Block> blocks;
  Buffer<u32> zeros;
  WaveletMatrix matrix;

  Built(std::vector<u32> ranks, u32 levels)
      : blocks(levels * (ranks.size() / POSITIONS + 1)),
        zeros(levels),
        matrix{blocks.data(), zeros.data(), u32(ranks.size() / POSITIONS + 1), levels} {
    for (u32 level = 0; level < levels; level++) {
      auto is_one = [&](u32 rank) { return rank >> (levels - 1 - level) & 1; };
      u32 ones = 0;
      for (u32 i = 0; i < matrix.per_level; i++) {
        Block block = {ones, {0, 0, 0}};
        u32 in_block = 0;
        for (u32 word = 0; word < 3; word++) {
          block.counts |= u64(in_block) << (32 + 8 * word);
          for (u32 bit = 0; bit < 64; bit++) {
            size_t at = size_t(i) * POSITIONS + word * 64 + bit;
            if (at < ranks.size() && is_one(ranks[at])) block.bits[word] |= 1ull << bit, in_block++;
          }
        }
        ones += in_block;
        blocks[level * matrix.per_level + i] = block;
      }
      zeros[level] = u32(ranks.size()) - ones;
      std::stable_partition(ranks.begin(), ranks.end(), [&](u32 rank) { return !is_one(rank); });
    }
  }
};

int main(int count, char** arguments) {
  int cases = count > 1 ? std::atoi(arguments[1]) : 500;
  for (int number = 0; number < cases; number++) {
    Random random(u64(number) << 8);
    u32 levels = u32(random.between(1, 12));
    std::vector<u32> ranks(random.between(1, 3000));
    for (u32& rank : ranks) rank = u32(random.below(1ull << levels));
    Built built(ranks, levels);
    u32 m = u32(random.between(1, 700));
    Buffer<u32> left(m), right(m), targets(m), counts(m), nth(m);
    for (u32 q = 0; q < m; q++) {
      left[q] = u32(random.below(ranks.size()));
      right[q] = u32(random.between(left[q], ranks.size() - 1));
      // An empty range.
      if (random.one_in(10)) left[q] = 1, right[q] = 0;
      targets[q] = random.one_in(10) ? ~0u : u32(random.below(2ull << levels));
    }
    unsigned seed = unsigned(random.below(6));
    auto launch = [&](auto kernel, Buffer<u32>& to) {
      emulate::launch(blocks_for(m), 256, seed, [&] { kernel(built.matrix, m, left.data(), right.data(), targets.data(), to.data()); });
    };
    launch(wavelet_count_below, counts);
    launch(wavelet_nth_smallest, nth);
    for (u32 q = 0; q < m; q++) {
      std::vector<u32> rows(ranks.begin() + std::min<size_t>(left[q], ranks.size()), ranks.begin() + right[q] + 1);
      if (left[q] > right[q]) rows.clear();
      std::sort(rows.begin(), rows.end());
      u32 below = u32(std::lower_bound(rows.begin(), rows.end(), targets[q]) - rows.begin());
      u32 rank = targets[q] < rows.size() ? rows[targets[q]] : ~0u;
      if (counts[q] == below && nth[q] == rank) continue;
      std::printf("case %d, %zu rows, %u levels: query %u, [%u, %u], %u: got %u and %u; want %u and %u\n", number, ranks.size(), levels, q,
                  left[q], right[q], targets[q], counts[q], nth[q], below, rank);
      return 1;
    }
  }
  std::printf("%d matrices\n", cases);
}
