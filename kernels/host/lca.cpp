// Tests the lowest common ancestors on small columns: the tree with a stack on the host, every answer with a naive scan.
#include "paper_levels.h"
#include "../baselines/lca.cu"
#include "queries.h"

template <class K> class Tree {
  using Array = Buffer<u32>;
  PaperLevels<K, u32> levels;
  Buffer<uint2> labels;
  Array parent, head, level, other, ascendants;

  static u64 padded(u64 n) { return rounded_up(n, TILE) * TILE; }

  static void scan(u32* values, u64 n, unsigned seed) {
    u64 tiles = rounded_up(n, TILE);
    Array sums(padded(tiles), 0);
    if (tiles > 1) {
      emulate::launch(unsigned(tiles), 256, seed, [&] { lca_tile_sums(values, sums.data()); });
      scan(sums.data(), tiles, seed);
    }
    emulate::launch(unsigned(tiles), 256, seed, [&] { lca_scan(values, tiles > 1 ? sums.data() : nullptr); });
  }

 public:
  LcaIndex index = {};

  Tree(const Column<K>& from, Random& random)
      : levels(from, SHIFT, CHUNK, false, true, random),
        labels(from.size()),
        parent(from.size()),
        head(from.size()),
        level(padded(from.size()), 0),
        other(from.size()),
        ascendants(padded(from.size()), 0) {
    u64 n = from.size();
    unsigned seed = unsigned(random.below(6));
    index = {levels.index.column, parent.data(), labels.data(), head.data(), level.data()};
    emulate::launch(blocks_for(n), 256, seed, [&] { tree<K>(levels.index, index, other.data()); });
    emulate::launch(blocks_for(n), 256, seed, [&] { lca_paths(index, other.data(), ascendants.data()); });
    scan(ascendants.data(), n, seed);
    emulate::launch(blocks_for(n), 256, seed, [&] { lca_labels(index, ascendants.data()); });
    scan(level.data(), n, seed);
  }

  // Compares parents and levels with those of a stack.
  void check(const Column<K>& column) {
    u64 n = column.size();
    auto key = [&](u64 i) { return wide(static_cast<const K*>(index.column.level[0])[i]); };
    std::vector<u32> up(n, NONE), stack;
    for (u32 i = 0; i < n; i++) {
      u32 below = NONE;
      while (!stack.empty() && key(stack.back()) > key(i)) below = stack.back(), stack.pop_back();
      if (below != NONE) up[below] = i;
      if (!stack.empty()) up[i] = stack.back();
      stack.push_back(i);
    }
    for (u32 i = 0; i < n; i++) {
      u32 depth = 0;
      for (u32 at = i; at != NONE && depth < 100; at = up[at]) depth++;
      bool same_depth = depth == 100 || depth == level[i];
      if (parent[i] == up[i] && same_depth) continue;
      std::printf("tree of %llu values, node %u: parent %u, level %u; want %u and %u\n", n, i, parent[i], level[i], up[i], depth);
      std::exit(1);
    }
  }
};

template <class K> void test_width(Random& random, u64 most) {
  Column<K> column = random_column<K>(random_size(random, most), random);
  Tree<K> built(column, random);
  built.check(column);
  ask<K, u32>("lca", VALUE, column, random, answer<K, false>, built.index);
  ask<K, u32>("lca", BOTH, column, random, answer<K, true>, built.index);
  ask<K, u32>("lca", POSITION, column, random, answer<K, true>, built.index);
}

int main(int count, char** arguments) {
  int cases = (count > 1 ? std::atoi(arguments[1]) : 500) / 4;
  for (int number = 0; number < cases; number++) {
    Random random(number);
    u64 most = number % 16 == 0 ? 20000 : 3000;
    test_width<u32>(random, most);
    test_width<u64>(random, most);
  }
  std::printf("%d columns per width\n", cases);
}
