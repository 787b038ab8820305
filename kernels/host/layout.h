// An index in memory, laid out and built as the engine does it.
#pragma once
#include "../build.cu"
#include "columns.h"

inline u64 rounded_up(u64 a, u64 b) { return (a + b - 1) / b; }

// The validity tree, built from a bitmap with any bit offset.
class ValidTree {
  std::vector<Buffer<u32>> levels;

 public:
  template <class K> void build(const Column<K>& from, Index& index, Random& random, unsigned seed) {
    u64 n = from.size(), bit_offset = random.below(70);
    Buffer<u8> bitmap((bit_offset + n + 7) / 8);
    for (u64 i = 0; i < n; i++) {
      u64 bit = bit_offset + i;
      bitmap[bit / 8] = u8((bitmap[bit / 8] & ~(1 << bit % 8)) | from.valid[i] << bit % 8);
    }
    u64 words = rounded_up(n, 32);
    levels.emplace_back(words);
    emulate::launch(blocks_for(words), 256, seed, [&] { build_valid_words(bitmap.data(), bit_offset, n, levels[0].data()); });
    while (words > 1) {
      u64 parents = rounded_up(words, 32);
      levels.emplace_back(parents);
      u32 *below = levels[levels.size() - 2].data(), *above = levels.back().data();
      emulate::launch(blocks_for(words), 256, seed, [&] { build_valid_parent(below, words, above); });
      words = parents;
    }
    for (size_t k = 0; k < levels.size(); k++) index.valid[k] = levels[k].data();
    index.valid_levels = u32(levels.size());
    index.keyed = 1;
  }
};

// The kernels that build an index of one key width and chunk size.
template <class K> struct Kernels {
  const char* name;
  u32 chunk_bytes;
  void (*bottom[2])(Index, u64, u64);  // without positions, with them
  void (*level[2])(Index, u32);
  void (*table[2])(Index, u64, u32);
};

template <class K> class BuiltIndex {
  Buffer<K> column;
  std::vector<Buffer<K>> levels;
  Buffer<u8> offset_1;
  std::vector<Buffer<u32>> offsets;
  ValidTree valid;
  Buffer<K> table;
  Buffer<u32> table_at;

  static u64 padded(u64 entries, u64 to) { return (entries + to - 1) / to * to; }

 public:
  Index index = {};

  // `random` chooses what varies between engines: how the column is split into launches, the bit offset of its bitmap.
  BuiltIndex(const Kernels<K>& kernels, const Column<K>& from, u32 top, bool at, Random& random)
      : column(padded(from.size(), kernels.chunk_bytes / sizeof(K))),
        offset_1(at ? padded(from.size(), tile(kernels)) / chunk(kernels) : 0),
        table(table_size(kernels, from.size(), top)),
        table_at(at ? table_size(kernels, from.size(), top) : 0) {
    u64 n = from.size(), c = chunk(kernels);
    unsigned seed = unsigned(random.below(6));
    memcpy(static_cast<void*>(column.data()), from.bits.data(), n * sizeof(K));
    index.n = n;
    set_words(index.fold, from.storage.fold);
    set_words(index.flip, from.storage.flip);
    index.top = top;
    index.level[0] = column.data();
    index.offset[1] = at ? offset_1.data() : nullptr;
    u64 entries = n;
    for (u32 k = 1; k <= top; k++) {
      entries = rounded_up(entries, c);
      // The padding has the greatest key, so that it does not change the minimum of the last chunk.
      levels.emplace_back(padded(entries, c), k == 1 ? 0xa5 : 0xff);
      index.level[k] = levels.back().data();
      if (at && k > 1) {
        offsets.emplace_back(padded(entries, c));
        index.offset[k] = offsets.back().data();
      }
    }
    index.table = table.data();
    index.table_at = at ? table_at.data() : nullptr;
    index.table_stride = entries;
    index.rows = rows(entries);

    if (!from.valid.empty()) valid.build(from, index, random, seed);
    u64 tiles = rounded_up(n, tile(kernels));
    for (u64 first = 0, some; first < tiles; first += some) {
      some = random.between(1, tiles - first);
      emulate::launch(blocks_for(some * 32), 256, seed, [&] { kernels.bottom[at](index, first, some); });
    }
    for (u32 k = 3; k <= top; k++) {
      u64 count = n;
      for (u32 i = 0; i < k; i++) count = rounded_up(count, c);
      emulate::launch(blocks_for(count), 256, seed, [&] { kernels.level[at](index, k); });
    }
    for (u32 row = 0; row + 1 < index.rows; row += 3)
      emulate::launch(blocks_for(entries), 256, seed, [&] { kernels.table[at](index, entries, row); });
  }

 private:
  static u64 chunk(const Kernels<K>& kernels) { return kernels.chunk_bytes / sizeof(K); }
  static u64 tile(const Kernels<K>& kernels) { return chunk(kernels) * chunk(kernels); }
  static u32 rows(u64 entries) { return 64 - __clzll(entries); }
  static u64 table_size(const Kernels<K>& kernels, u64 n, u32 top) {
    for (u32 k = 0; k < top; k++) n = rounded_up(n, chunk(kernels));
    return (rows(n) - 1) * n;
  }
  static void set_words(u64* words, Wide x) {
    words[0] = u64(x);
    words[1] = u64(x >> 64);
  }
};
