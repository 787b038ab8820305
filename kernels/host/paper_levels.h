// The paper's levels of minima in memory, built by its kernels.
#pragma once
#include "../baselines/paper.cu"
#include "layout.h"

// The levels of chunks of 1 << shift, up to one of at most `cutoff` entries.
template <class K, class P> class PaperLevels {
  Buffer<K> column;
  ValidTree valid;
  std::vector<Buffer<K>> levels;
  std::vector<Buffer<P>> positions;

 public:
  PaperIndex index = {};

  PaperLevels(const Column<K>& from, u32 shift, u64 cutoff, bool at, bool keyed, Random& random)
      : column(padded(from.size())) {
    u64 entries = from.size();
    unsigned seed = unsigned(random.below(6));
    Index& head = index.column;
    head.n = entries;
    head.level[0] = index.level[0] = column.data();
    head.keyed = keyed;
    for (int word = 0; word < 2; word++) {
      head.fold[word] = u64(from.storage.fold >> 64 * word);
      head.flip[word] = u64(from.storage.flip >> 64 * word);
    }
    memcpy(static_cast<void*>(column.data()), from.bits.data(), entries * sizeof(K));
    if (!from.valid.empty()) valid.build(from, head, random, seed);
    if (!keyed) return;
    emulate::launch(blocks_for(entries), 256, seed, [&] { keys<K>(head); });
    while (entries > cutoff) {
      entries = (entries + (1 << shift) - 1) >> shift;
      u32 k = ++index.top;
      levels.emplace_back(padded(entries));
      index.level[k] = levels.back().data();
      if (at) {
        positions.emplace_back(entries);
        index.position[k] = positions.back().data();
      }
      emulate::launch(blocks_for(entries), 256, seed, [&] { at ? build<K, P, true>(index, k, shift) : build<K, P, false>(index, k, shift); });
    }
  }

 private:
  static u64 padded(u64 entries) { return (entries * sizeof(K) + 15) / 16 * 16 / sizeof(K); }
};
