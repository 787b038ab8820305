// Baseline: range minima as lowest common ancestors in the Cartesian tree of the column, found in constant time by the inlabel numbers of Schieber
// and Vishkin ("On Finding Lowest Common Ancestors", 1988), as the GPU-RMQ paper compares with.
//
// Nodes are numbered in the tree's order from left to right, so node i has number i + 1, and neither an Euler tour nor a sort is needed (`lca_tour.cu`
// has both). `inlabel` is the number with the most trailing zeros in a subtree. Nodes with the same inlabel are a path, and the position of its lowest
// set bit is its height; `ascendant` has the bits of all paths on the way to the root.
//
//   lca_tree_K           PaperIndex x, LcaIndex t, u32* other: parent, inlabel, and whichever of left and right is not the parent; adds to `level` the
//                        differences between neighbours (0 before); `x` has levels of chunks of 8
//   lca_paths            LcaIndex t, const u32* other, u32* ascendants: the head of each path; adds to `ascendants` the differences between
//                        neighbours (0 before)
//   lca_tile_sums        const u32* values, u32* sums: the sum of each tile of 2048 values; a block per tile
//   lca_scan             u32* values, const u32* sums: replaces each value by the sum of those up to it; `sums` of tiles, themselves scanned, may be
//                        null for one tile; a block per tile
//   lca_labels           LcaIndex t, const u32* ascendants: puts them beside the inlabels
//   lca_answer_K_p32_W   the arguments of `answer_*`, with an LcaIndex instead of the Index
//
// One thread per value or query unless stated otherwise. Columns have at most 2^31 values, which are keys.
#include "lca.cuh"

// Passed to kernels by value.
struct LcaIndex {
  Index column;   // of which n, fold, flip, level[0] and valid are used
  u32* parent;    // NONE for the root
  uint2* labels;  // inlabel and ascendant
  u32* head;      // by inlabel - 1: the node nearest to the root of that path
  u32* level;     // the number of nodes from the root on; padded to whole tiles
};

// --- the tree ---

// Adds `amount` to a difference array, so that its prefix sums grow by it between `left` and `right`, both exclusive.
__device__ __forceinline__ void add_between(u32* differences, u64 n, u32 left, u32 right, u32 amount) {
  atomicAdd(differences + u32(left + 1), amount);  // NONE + 1 is 0
  if (right < n) atomicAdd(differences + right, 0u - amount);
}

template <class K> __device__ __forceinline__ void tree(const PaperIndex& x, const LcaIndex& t, u32* other) {
  u64 i = blockIdx.x * u64(blockDim.x) + threadIdx.x;
  if (i >= x.column.n) return;
  K key = entry_of<K>(x, 0, i);
  u32 left = last_not_greater(x, u32(i), key), right = first_smaller(x, u32(i), key);
  bool right_is_parent = parent_is_right<K>(x, left, right);
  t.parent[i] = right_is_parent ? right : left;
  other[i] = right_is_parent ? left : right;
  u32 first = left + 2, last = right;  // the numbers of the subtree; NONE + 2 is 1
  u32 height = 31 - __clz(int((first - 1) ^ last));
  t.labels[i].x = last >> height << height;
  add_between(t.level, x.column.n, left, right, 1);
}

KERNEL(256) lca_tree_u32(PaperIndex x, LcaIndex t, u32* other) { tree<u32>(x, t, other); }
KERNEL(256) lca_tree_u64(PaperIndex x, LcaIndex t, u32* other) { tree<u64>(x, t, other); }

KERNEL(256) lca_paths(LcaIndex t, const u32* other, u32* ascendants) {
  u64 i = blockIdx.x * u64(blockDim.x) + threadIdx.x;
  if (i >= t.column.n) return;
  u32 parent = t.parent[i], inlabel = t.labels[i].x;
  if (parent != NONE && t.labels[parent].x == inlabel) return;
  t.head[inlabel - 1] = u32(i);
  bool right_is_parent = parent != NONE && parent > i;
  u32 left = right_is_parent ? other[i] : parent, right = right_is_parent ? parent : other[i];
  add_between(ascendants, t.column.n, left, right, inlabel & (0u - inlabel));
}

// --- prefix sums ---

constexpr u32 THREADS = 256, MINE = 8, TILE = THREADS * MINE;

// Returns the sum of `mine` over all threads of the block up to this one.
__device__ __forceinline__ u32 sum_up_to(u32 mine) {
  __shared__ u32 of_warps[THREADS / 32];
  u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
  for (u32 step = 1; step < 32; step *= 2) {
    u32 before = __shfl_up_sync(~0u, mine, step);
    if (lane >= step) mine += before;
  }
  if (lane == 31) of_warps[warp] = mine;
  __syncthreads();
  for (u32 i = 0; i < warp; i++) mine += of_warps[i];
  return mine;
}

__device__ __forceinline__ void load_mine(const u32* values, u32 (&mine)[MINE]) {
  const uint4* packs = reinterpret_cast<const uint4*>(values + blockIdx.x * u64(TILE) + threadIdx.x * MINE);
#pragma unroll
  for (u32 i = 0; i < MINE / 4; i++) {
    uint4 pack = packs[i];
    memcpy(mine + i * 4, &pack, 16);
  }
}

KERNEL(256) lca_tile_sums(const u32* values, u32* sums) {
  u32 mine[MINE], sum = 0;
  load_mine(values, mine);
#pragma unroll
  for (u32 i = 0; i < MINE; i++) sum += mine[i];
  sum = sum_up_to(sum);
  if (threadIdx.x == THREADS - 1) sums[blockIdx.x] = sum;
}

KERNEL(256) lca_scan(u32* values, const u32* sums) {
  u32 mine[MINE], sum = 0;
  load_mine(values, mine);
#pragma unroll
  for (u32 i = 0; i < MINE; i++) {
    sum += mine[i];
    mine[i] = sum;
  }
  u32 before = sum_up_to(sum) - sum;
  if (blockIdx.x > 0 && sums != nullptr) before += sums[blockIdx.x - 1];
  uint4* packs = reinterpret_cast<uint4*>(values + blockIdx.x * u64(TILE) + threadIdx.x * MINE);
#pragma unroll
  for (u32 i = 0; i < MINE; i += 4)
    packs[i / 4] = make_uint4(mine[i] + before, mine[i + 1] + before, mine[i + 2] + before, mine[i + 3] + before);
}

KERNEL(256) lca_labels(LcaIndex t, const u32* ascendants) {
  u64 i = blockIdx.x * u64(blockDim.x) + threadIdx.x;
  if (i < t.column.n) t.labels[i].y = ascendants[i];
}

// --- queries ---

// Returns the node nearest to `node` among its ancestors and itself that is on the path `target`, whose height is `height`.
__device__ __forceinline__ u32 ancestor_on_path(const LcaIndex& t, u32 node, uint2 label, u32 target, u32 height) {
  if (label.x == target) return node;
  // The highest path below the target; the parent of its head is on the target.
  u32 k = 31 - __clz(int(label.y & ((1u << height) - 1)));
  u32 below = (label.x | 1u << k) & ~0u << k;
  return t.parent[t.head[below - 1]];
}

__device__ __forceinline__ u32 lowest_common_ancestor(const LcaIndex& t, u32 a, u32 b) {
  uint2 label_a = t.labels[a], label_b = t.labels[b];
  if (label_a.x != label_b.x) {
    u32 differ = 31 - __clz(int(label_a.x ^ label_b.x));
    u32 height = __ffs(int(label_a.y & label_b.y & ~0u << differ)) - 1;
    u32 target = (label_a.x | 1u << height) & ~0u << height;
    a = ancestor_on_path(t, a, label_a, target, height);
    b = ancestor_on_path(t, b, label_b, target, height);
  }
  return t.level[a] <= t.level[b] ? a : b;
}

template <class K, bool AT>
__device__ __forceinline__ void answer(const LcaIndex& t, u32 m, const u32* left, const u32* right, K* values, i64* positions, u32* valid) {
  u32 q = blockIdx.x * blockDim.x + threadIdx.x;
  bool some = false;
  if (q < m) {
    u32 l = left[q], r = right[q], position = 0;
    K least = Key<K>::max();
    if (l <= r) {
      position = lowest_common_ancestor(t, l, r);
      bool needs_value = !AT || values != nullptr || t.column.valid_levels;
      least = needs_value ? load_entry(static_cast<const K*>(t.column.level[0]) + position) : K(0);  // any but NULL's key
    }
    some = put<K, u32, AT>(t.column, q, l, r, least, position, values, positions);
  }
  u32 word = __ballot_sync(~0u, some);
  if (valid != nullptr && threadIdx.x % 32 == 0 && q < m) valid[q / 32] = word;
}

#define LCA_ANSWER(K, W, AT)                                                                                                            \
  KERNEL(256) lca_answer_##K##_p32_##W(LcaIndex t, u32 m, const u32* left, const u32* right, K* values, i64* positions, u32* valid) {   \
    answer<K, AT>(t, m, left, right, values, positions, valid);                                                                         \
  }

LCA_ANSWER(u32, value, false)
LCA_ANSWER(u32, position, true)
LCA_ANSWER(u64, value, false)
LCA_ANSWER(u64, position, true)
