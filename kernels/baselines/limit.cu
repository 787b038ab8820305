// What the hardware takes for reads, and what benchmarks need on the device: random reads, copies, workloads, a comparison of answers.
//
//   limit_reads_bB_P              u32 m, const P* left, const P* right, u32* out, const void* column: reads the B aligned
//                                 bytes around each bound of a query, in a column of 4-byte values, and computes their minimum
//   limit_random_{segments,same}_gG const u32* data, u32 segments, u32 reads, u32* out: each group of G threads reads `reads` random segments of
//                                 G words past the L1 cache, one word a thread, or all threads the first; `out` is written if a word is ~0
//   limit_copy                    const uint4* from, uint4* to, u64 count
//   limit_values                  u32* out, u64 n, u64 seed: f32 uniform in [0, 1); any number of threads
//   limit_queries_P               P* left, P* right, u32 m, u64 n, u32 workload, u64 seed; workloads as below
//   limit_least_K                 const K* column, u64 first, u64 end, K* least: minimum of a range by all threads; `least` must be the greatest before
//   limit_leftmost_K              const K* column, u64 first, u64 end, const K* least, u64* position: where it is first; `position` must be the greatest
//   limit_differ_K                const K* a, const K* b, u64 count, u64* differing: adds the number of differing answers
//
// One thread per query or entry unless stated otherwise.
#include "../index.cuh"

// The paper's distributions of range lengths, in a column of n values.
enum Workload : u32 {
  LARGE,   // uniform in [1, n]
  MEDIUM,  // log-normal around n^0.6
  SMALL,   // log-normal around n^0.3
  MIXED,   // a third of each
};

// --- reads ---

template <class P, int BYTES>
__device__ __forceinline__ void reads(u32 m, const P* left, const P* right, u32* out, const void* column) {
  constexpr int LANES = BYTES / 16, VALUES = BYTES / 4;
  u32 q = blockIdx.x * blockDim.x + threadIdx.x;
  int lane = threadIdx.x % LANES;
  P l = 0, r = 0;
  if (q < m) {
    l = left[q];
    r = right[q];
  }
  const uint4* packs = static_cast<const uint4*>(column) + lane;
  u32 mine = 0;
#pragma unroll
  for (int turn = 0; turn < LANES; turn++) {
    P its_l = __shfl_sync(~0u, l, turn, LANES), its_r = __shfl_sync(~0u, r, turn, LANES);
    uint4 a = __ldg(packs + u64(its_l / VALUES) * LANES), b = __ldg(packs + u64(its_r / VALUES) * LANES);
    u32 least = min(min(min(a.x, a.y), min(a.z, a.w)), min(min(b.x, b.y), min(b.z, b.w)));
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2) least = min(least, __shfl_xor_sync(~0u, least, step));
    if (turn == lane) mine = least;
  }
  if (q < m) out[q] = mine;
}

#define READS(BYTES) \
  KERNEL(256) limit_reads_b##BYTES##_p32(u32 m, const u32* left, const u32* right, u32* out, const void* column) {               \
    reads<u32, BYTES>(m, left, right, out, column);                                                                              \
  }                                                                                                                              \
  KERNEL(256) limit_reads_b##BYTES##_p64(u32 m, const u64* left, const u64* right, u32* out, const void* column) {               \
    reads<u64, BYTES>(m, left, right, out, column);                                                                              \
  }

READS(128)

// The segments do not depend on what is read, so that many loads are in flight.
template <int GROUP, bool SAME> __device__ __forceinline__ void random_reads(const u32* data, u32 segments, u32 reads, u32* out) {
  u32 thread = blockIdx.x * blockDim.x + threadIdx.x, lane = SAME ? 0 : threadIdx.x % GROUP;
  u32 state = (thread / GROUP + 1) * 0x9e3779b9u, least = ~0u;
  state = (state ^ state >> 16) * 0x85ebca6bu;
#pragma unroll 8
  for (u32 i = 0; i < reads; i++) {
    state = state * 747796405u + 2891336453u;  // of which the upper bits are random
    u64 segment = u64(state) * segments >> 32;
    least = min(least, __ldcg(data + segment * GROUP + lane));
  }
  if (least == ~0u) out[0] = thread;
}

#define RANDOM(G)                                                                                       \
  KERNEL(256) limit_random_segments_g##G(const u32* data, u32 segments, u32 reads, u32* out) {          \
    random_reads<G, false>(data, segments, reads, out);                                                 \
  }                                                                                                     \
  KERNEL(256) limit_random_same_g##G(const u32* data, u32 segments, u32 reads, u32* out) {              \
    random_reads<G, true>(data, segments, reads, out);                                                  \
  }

RANDOM(1)
RANDOM(2)
RANDOM(4)
RANDOM(8)
RANDOM(16)
RANDOM(32)
RANDOM(64)
RANDOM(128)
RANDOM(256)

// --- copies ---

KERNEL(256) limit_copy(const uint4* from, uint4* to, u64 count) {
  u64 i = blockIdx.x * u64(blockDim.x) + threadIdx.x;
  if (i < count) to[i] = from[i];
}

// --- workloads ---

__device__ __forceinline__ u64 mix(u64 x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
}

// Returns a number in (0, 1).
__device__ __forceinline__ double uniform(u64 seed) { return (double(mix(seed) >> 11) + 0.5) / 9007199254740992.0; }

// Returns the bits of a float in [0, 1), computed without rounding, so that all machines agree.
__device__ __forceinline__ u32 uniform_float(u64 seed) {
  float x = float(mix(seed) >> 40) / 16777216.0f;
  u32 bits;
  memcpy(&bits, &x, 4);
  return bits;
}

KERNEL(256) limit_values(u32* out, u64 n, u64 seed) {
  u64 threads = u64(gridDim.x) * blockDim.x;
  for (u64 i = blockIdx.x * u64(blockDim.x) + threadIdx.x; i < n; i += threads) out[i] = uniform_float(mix(seed) + i);
}

__device__ __forceinline__ double random_length(u32 workload, double n, u64 seed) {
  if (workload == MIXED) workload = u32(mix(seed) % 3);
  if (workload == LARGE) return 1 + floor(uniform(seed + 1) * n);
  double normal = sqrt(-2 * log(uniform(seed + 1))) * cos(6.283185307179586 * uniform(seed + 2));
  return floor(exp(log(n) * (workload == MEDIUM ? 0.6 : 0.3) + 0.3 * normal));
}

template <class P> __device__ __forceinline__ void queries(P* left, P* right, u32 m, u64 n, u32 workload, u64 seed) {
  u32 q = blockIdx.x * blockDim.x + threadIdx.x;
  if (q >= m) return;
  u64 own = mix(seed) + q * 4ull;
  double length = random_length(workload, double(n), own);
  length = length < 1 ? 1 : length > double(n) ? double(n) : length;
  double room = double(n) - length, l = floor(uniform(own + 3) * (room + 1));
  l = l > room ? room : l;
  left[q] = P(l);
  right[q] = P(l + length - 1);
}

KERNEL(256) limit_queries_p32(u32* left, u32* right, u32 m, u64 n, u32 workload, u64 seed) { queries(left, right, m, n, workload, seed); }
KERNEL(256) limit_queries_p64(u64* left, u64* right, u32 m, u64 n, u32 workload, u64 seed) { queries(left, right, m, n, workload, seed); }

// --- scans by all threads ---

template <class K> __device__ __forceinline__ void least_of_range(const K* column, u64 first, u64 end, K* least) {
  u64 threads = u64(gridDim.x) * blockDim.x;
  K mine = Key<K>::max();
  for (u64 i = first + blockIdx.x * u64(blockDim.x) + threadIdx.x; i < end; i += threads) mine = Key<K>::min(column[i], mine);
  if (Key<K>::less(mine, Key<K>::max())) atomicMin(least, mine);
}

template <class K> __device__ __forceinline__ void leftmost_of_range(const K* column, u64 first, u64 end, const K* least, u64* position) {
  u64 threads = u64(gridDim.x) * blockDim.x;
  for (u64 i = first + blockIdx.x * u64(blockDim.x) + threadIdx.x; i < end; i += threads) {
    if (Key<K>::same(column[i], *least)) {
      atomicMin(position, i);
      return;
    }
  }
}

#define SCAN(K)                                                                                                    \
  KERNEL(256) limit_least_##K(const K* column, u64 first, u64 end, K* least) {                                     \
    least_of_range(column, first, end, least);                                                                     \
  }                                                                                                                \
  KERNEL(256) limit_leftmost_##K(const K* column, u64 first, u64 end, const K* least, u64* position) {             \
    leftmost_of_range(column, first, end, least, position);                                                        \
  }

SCAN(u32)
SCAN(u64)

// --- comparison ---

template <class K> __device__ __forceinline__ void differ(const K* a, const K* b, u64 count, u64* differing) {
  u64 i = blockIdx.x * u64(blockDim.x) + threadIdx.x;
  u32 wrong = __ballot_sync(~0u, i < count && !Key<K>::same(a[i], b[i]));
  if (threadIdx.x % 32 == 0 && wrong != 0) atomicAdd(differing, u64(__popc(wrong)));
}

#define DIFFER(K) \
  KERNEL(256) limit_differ_##K(const K* a, const K* b, u64 count, u64* differing) { differ(a, b, count, differing); }

DIFFER(u32)
DIFFER(u64)
DIFFER(u128)
