// Baseline: range minima as lowest common ancestors as Polak et al. find them ("Euler Meets GPU", 2021), whom the GPU-RMQ paper compares with: the
// tree is numbered by an Euler tour, and ranges and answers are mapped to its numbers and back by kernels of their own. `lca.cu` needs neither.
//
// The tree of n nodes is given by the parents of positions. Each node but the root has two edges: number e < n - 1 goes up to its parent, where e
// is the node's position, less one after the root's; e + n - 1 goes down. The tour follows an edge with the next one that leaves its end, in the
// order of a sort by where edges begin, and goes from that list to places by list ranking (Wei and JaJa): threads walk sublists between random
// edges, whose lengths are then summed. Sums of +1 and -1 along the tour are numbers in preorder, sizes of subtrees, and levels.
//
//   tour_tree_K        PaperIndex x, u32* parent, u32* root: the parent of each position, NONE for the root; `x` has levels of chunks of 8
//   tour_edges         u32 n, const u32* parent, const u32* root, u32* from, u32* words: where each edge begins, twice, as a sort moves `words`
//   tour_links         u32 edges, const u32* from, const u32* sorted, u32* first, u32* next: the first edge of each node, and the next one of the
//                      same node after each, which is NONE before; both of `from` and `sorted` are in sorted order
//   tour_successors    u32 n, const u32* from, const u32* first, const u32* next, const u32* root, u32* successor: of each edge in the tour
//   tour_split         u32 edges, u32 splits, const u32* first, const u32* root, u32* successor, u32* heads: cuts the list; a thread per cut
//   tour_walk          u32 sublists, const u32* heads, const u32* successor, u32* place, u32* sublist, u32* lengths, u32* after
//   tour_offsets       u32 sublists, const u32* after, u32* lengths: replaces lengths by the places where sublists begin; one thread
//   tour_places        u32 edges, const u32* sublist, const u32* offsets, u32* place: the place of each edge in the tour
//   tour_steps         u32 n, const u32* place, u32* down, u32* depth: what an edge adds to numbers and to levels, in the tour's order
//   tour_numbers       TourIndex t, const u32* root, const u32* place, const u32* down, const u32* depth: number, level and inlabel; `down` and
//                      `depth` are summed by `lca_scan`
//   tour_nodes_K       TourIndex t, const K* column, const u32* parent, const u32* root, const u32* place, u32* down: parent, value and head by
//                      number, and in `down` the bits of paths that edges enter and leave
//   tour_ascendants    TourIndex t, const u32* root, const u32* place, const u32* down: `down` is summed
//   tour_nodes_of      TourIndex t, u32 m, const u32* left, const u32* right, uint2* nodes: one thread per query, as for the following
//   tour_ancestors     TourIndex t, u32 m, const uint2* nodes, u32* found
//   tour_values_K      TourIndex t, u32 m, const u32* found, K* values
//
// One thread per position, edge or query unless stated otherwise. Columns have at most 2^30 values, which are keys, and ranges are not empty.
#include "lca.cuh"

// By a node's number in preorder, from 0 on, unless stated otherwise. Passed to kernels by value.
struct TourIndex {
  u32 n;
  u32* number;     // of each position
  u32* parent;     // NONE for the root
  u32* level;
  u32* inlabel;
  u32* ascendant;
  u32* head;       // by inlabel
  void* values;    // of type K
};

// The end of a sublist: the number of the one that follows, or LAST.
constexpr u32 END = 1u << 31, LAST = END - 1;

__device__ __forceinline__ u32 thread_number() { return blockIdx.x * blockDim.x + threadIdx.x; }

// The edge from a position to its parent; not for the root.
__device__ __forceinline__ u32 edge_up(u32 position, u32 root) { return position - (position > root); }

// --- the tour ---

template <class K> __device__ __forceinline__ void tour_tree(const PaperIndex& x, u32* parent, u32* root) {
  u32 i = thread_number();
  if (i >= x.column.n) return;
  K key = entry_of<K>(x, 0, i);
  u32 left = last_not_greater(x, i, key), right = first_smaller(x, i, key);
  parent[i] = parent_is_right<K>(x, left, right) ? right : left;
  if (parent[i] == NONE) *root = i;
}

KERNEL(256) tour_tree_u32(PaperIndex x, u32* parent, u32* root) { tour_tree<u32>(x, parent, root); }
KERNEL(256) tour_tree_u64(PaperIndex x, u32* parent, u32* root) { tour_tree<u64>(x, parent, root); }

KERNEL(256) tour_edges(u32 n, const u32* parent, const u32* root, u32* from, u32* words) {
  u32 i = thread_number();
  if (i >= n || i == *root) return;
  u32 up = edge_up(i, *root), down = up + n - 1;
  from[up] = words[up] = i;
  from[down] = words[down] = parent[i];
}

KERNEL(256) tour_links(u32 edges, const u32* from, const u32* sorted, u32* first, u32* next) {
  u32 i = thread_number();
  if (i >= edges) return;
  if (i == 0 || from[i - 1] != from[i]) {
    first[from[i]] = sorted[i];
  } else {
    next[sorted[i - 1]] = sorted[i];
  }
}

KERNEL(256) tour_successors(u32 n, const u32* from, const u32* first, const u32* next, const u32* root, u32* successor) {
  u32 edge = thread_number();
  if (edge >= 2 * (n - 1)) return;
  u32 back = edge < n - 1 ? edge + n - 1 : edge - (n - 1);
  u32 follows = next[back] == NONE ? first[from[back]] : next[back];
  successor[edge] = follows == first[*root] ? END | LAST : follows;
}

// --- list ranking ---

// A random number (the finalizer of MurmurHash3).
__device__ __forceinline__ u32 mixed(u32 x) {
  x = (x ^ x >> 16) * 0x85ebca6b;
  x = (x ^ x >> 13) * 0xc2b2ae35;
  return x ^ x >> 16;
}

KERNEL(256) tour_split(u32 edges, u32 splits, const u32* first, const u32* root, u32* successor, u32* heads) {
  u32 i = thread_number();
  if (i >= splits) return;
  u32 among = edges / splits, begin = i * among, cut;
  u32 seed = i;
  do {
    seed = mixed(seed + 1);
    cut = begin + seed % among;
  } while (successor[cut] == (END | LAST));
  heads[i + 1] = successor[cut];
  successor[cut] = END | (i + 1);
  if (i == 0) heads[0] = first[*root];
}

KERNEL(256) tour_walk(u32 sublists, const u32* heads, const u32* successor, u32* place, u32* sublist, u32* lengths, u32* after) {
  u32 i = thread_number();
  if (i >= sublists) return;
  u32 length = 0, edge = heads[i];
  for (; !(edge & END); edge = successor[edge]) {
    place[edge] = length++;
    sublist[edge] = i;
  }
  lengths[i] = length;
  after[i] = edge & ~END;
}

KERNEL(256) tour_offsets(u32 sublists, const u32* after, u32* lengths) {
  if (thread_number() > 0) return;
  u32 sum = 0, at = 0;
  for (u32 i = 0; i < sublists; i++) {
    u32 length = lengths[at];
    lengths[at] = sum;
    sum += length;
    at = after[at];
  }
}

KERNEL(256) tour_places(u32 edges, const u32* sublist, const u32* offsets, u32* place) {
  u32 edge = thread_number();
  if (edge < edges) place[edge] += offsets[sublist[edge]];
}

// --- numbers ---

KERNEL(256) tour_steps(u32 n, const u32* place, u32* down, u32* depth) {
  u32 edge = thread_number();
  if (edge >= 2 * (n - 1)) return;
  bool goes_up = edge < n - 1;
  down[place[edge]] = !goes_up;
  depth[place[edge]] = goes_up ? ~0u : 1;
}

KERNEL(256) tour_numbers(TourIndex t, const u32* root, const u32* place, const u32* down, const u32* depth) {
  u32 i = thread_number();
  if (i >= t.n) return;
  u32 number = 1, last = t.n, level = 0;  // in the subtree are the numbers from the node's to the last, counted from 1
  if (i != *root) {
    u32 up = edge_up(i, *root), entered = place[up + t.n - 1];
    number = down[entered] + 1;
    last = down[place[up]] + 1;
    level = depth[entered];
  }
  u32 height = 31 - __clz(int((number - 1) ^ last));
  t.number[i] = number - 1;
  t.level[number - 1] = level;
  t.inlabel[number - 1] = last >> height << height;
}

template <class K>
__device__ __forceinline__ void tour_nodes(const TourIndex& t, const K* column, const u32* parent, const u32* root, const u32* place, u32* down) {
  u32 i = thread_number();
  if (i >= t.n) return;
  u32 node = t.number[i], inlabel = t.inlabel[node];
  static_cast<K*>(t.values)[node] = load_entry(column + i);
  if (i == *root) {
    t.parent[node] = NONE;
    t.head[inlabel] = node;
    return;
  }
  u32 above = t.number[parent[i]], up = edge_up(i, *root), path = 0;
  t.parent[node] = above;
  if (inlabel != t.inlabel[above]) {
    t.head[inlabel] = node;
    path = inlabel & (0u - inlabel);
  }
  down[place[up + t.n - 1]] = path;
  down[place[up]] = 0u - path;
}

KERNEL(256) tour_nodes_u32(TourIndex t, const u32* column, const u32* parent, const u32* root, const u32* place, u32* down) {
  tour_nodes<u32>(t, column, parent, root, place, down);
}
KERNEL(256) tour_nodes_u64(TourIndex t, const u64* column, const u32* parent, const u32* root, const u32* place, u32* down) {
  tour_nodes<u64>(t, column, parent, root, place, down);
}

KERNEL(256) tour_ascendants(TourIndex t, const u32* root, const u32* place, const u32* down) {
  u32 i = thread_number();
  if (i >= t.n) return;
  u32 of_root = 1u << (31 - __clz(int(t.n)));
  u32 below = i == *root ? 0 : down[place[edge_up(i, *root) + t.n - 1]];
  t.ascendant[t.number[i]] = of_root + below;
}

// --- queries ---

KERNEL(256) tour_nodes_of(TourIndex t, u32 m, const u32* left, const u32* right, uint2* nodes) {
  u32 q = thread_number();
  if (q < m) nodes[q] = make_uint2(t.number[left[q]], t.number[right[q]]);
}

// Returns the node nearest to `node` among its ancestors and itself that is on the path `target`, whose height is `height`.
__device__ __forceinline__ u32 ancestor_on(const TourIndex& t, u32 node, u32 inlabel, u32 ascendant, u32 target, u32 height) {
  if (inlabel == target) return node;
  u32 k = 31 - __clz(int(ascendant & ((1u << height) - 1)));
  return t.parent[t.head[(inlabel | 1u << k) & ~0u << k]];
}

KERNEL(256) tour_ancestors(TourIndex t, u32 m, const uint2* nodes, u32* found) {
  u32 q = thread_number();
  if (q >= m) return;
  u32 a = nodes[q].x, b = nodes[q].y;
  u32 inlabel_a = t.inlabel[a], inlabel_b = t.inlabel[b];
  if (inlabel_a != inlabel_b) {
    u32 ascendant_a = t.ascendant[a], ascendant_b = t.ascendant[b];
    u32 differ = 31 - __clz(int(inlabel_a ^ inlabel_b));
    u32 height = __ffs(int(ascendant_a & ascendant_b & ~0u << differ)) - 1;
    u32 target = (inlabel_b | 1u << height) & ~0u << height;
    a = ancestor_on(t, a, inlabel_a, ascendant_a, target, height);
    b = ancestor_on(t, b, inlabel_b, ascendant_b, target, height);
  }
  found[q] = t.level[a] < t.level[b] ? a : b;
}

KERNEL(256) tour_values_u32(TourIndex t, u32 m, const u32* found, u32* values) {
  u32 q = thread_number();
  if (q < m) values[q] = static_cast<const u32*>(t.values)[found[q]];
}
KERNEL(256) tour_values_u64(TourIndex t, u32 m, const u32* found, u64* values) {
  u32 q = thread_number();
  if (q < m) values[q] = static_cast<const u64*>(t.values)[found[q]];
}
