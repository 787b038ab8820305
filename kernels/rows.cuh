// Rows in sorted order, bits of them, and ranges of them. Shared by the kernels of range joins.
#pragma once
#include "index.cuh"

__device__ __forceinline__ u64 this_thread() { return u64(blockIdx.x) * blockDim.x + threadIdx.x; }

// Returns the row at a place; `order` may be null for the rows' own order.
__device__ __forceinline__ u64 row_at(const u32* order, u64 place) { return order ? order[place] : place; }

__device__ __forceinline__ bool bit_at(const u32* words, u64 i) { return words[i / 32] >> i % 32 & 1; }

// Returns the number of set bits before bit `end`. `before` holds those before each word, and in all.
__device__ __forceinline__ u32 bits_before(const u32* words, const u32* before, u64 end) {
  u32 rest = end % 32;
  return before[end / 32] + (rest ? __popc(words[end / 32] & ((1u << rest) - 1)) : 0);
}

// Returns how many values of a range, whose ends are inclusive, are not NULL; `valid` may be null.
__device__ __forceinline__ u32 count_valid(const u32* valid, const u32* valid_before, u32 l, u32 r) {
  if (l > r) return 0;
  if (!valid) return r - l + 1;
  return bits_before(valid, valid_before, u64(r) + 1) - bits_before(valid, valid_before, l);
}
