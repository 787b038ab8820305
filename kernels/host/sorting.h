// Sorts and sums as the engine does it: the launches of `crates/rmq-engine/src/cuda/range_join/{sort,prefix_sums}.rs`.
#pragma once
#include "../sort.cu"
#include <vector>
#include "testing.h"

// Replaces each value by the sum of those before it.
template <class T> void prefix_sums(T* values, u64 n, unsigned seed) {
  auto reduce_tiles = [&](T* sums) {
    if constexpr (sizeof(T) == 4) scan_reduce_u32(values, n, sums);
    else if constexpr (sizeof(T) == 8) scan_reduce_u64(values, n, sums);
    else scan_reduce_u128(values, n, sums);
  };
  auto apply = [&](const T* starts) {
    if constexpr (sizeof(T) == 4) scan_apply_u32(values, n, starts);
    else if constexpr (sizeof(T) == 8) scan_apply_u64(values, n, starts);
    else scan_apply_u128(values, n, starts);
  };
  unsigned tiles = unsigned((n + SCAN_TILE - 1) / SCAN_TILE);
  if (tiles <= 1) {
    emulate::launch(tiles, THREADS, seed, [&] { apply(nullptr); });
    return;
  }
  Buffer<T> starts(tiles);
  emulate::launch(tiles, THREADS, seed, [&] { reduce_tiles(starts.data()); });
  prefix_sums(starts.data(), tiles, seed);
  emulate::launch(tiles, THREADS, seed, [&] { apply(starts.data()); });
}

// Sorts rows by the lowest `width` bits of their words. `rows` may be null: row i is then i.
inline void sort_by_words(const u32* words, const u32* rows, u32 n, u32 width, u32* sorted, unsigned seed) {
  u32 tiles = (n + TILE - 1) / TILE, passes = (width + 7) / 8;
  Buffer<u32> word_buffers[2] = {Buffer<u32>(n), Buffer<u32>(n)}, row_buffers[2] = {Buffer<u32>(n), Buffer<u32>(n)};
  for (u32 pass = 0, shift = 0; pass < passes; pass++) {
    u32 bits = (width - shift + passes - pass - 1) / (passes - pass);
    Buffer<u32> counts(u64(tiles) << bits);
    emulate::launch(tiles, THREADS, seed, [&] { sort_count(words, n, shift, bits, tiles, counts.data()); });
    prefix_sums(counts.data(), counts.size(), seed);
    u32 *to_words = word_buffers[pass % 2].data(), *to_rows = pass + 1 == passes ? sorted : row_buffers[pass % 2].data();
    emulate::launch(tiles, THREADS, seed, [&] { sort_scatter(words, rows, n, shift, bits, tiles, counts.data(), to_words, to_rows); });
    words = to_words;
    rows = to_rows;
    shift += bits;
  }
}
