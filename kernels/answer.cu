// Answers batches of range-minimum queries: one thread owns a query, groups of threads read chunks for it.
//
// A search begins at the lowest level at which the range spans at most two chunks, and reads the one or two chunks in which the range begins
// and ends. The entries in between are within the range. The first and the last entry also cover values outside the range: the search continues
// in the chunk below one of them only if its minimum is less than the best key found so far. A range too wide for any level begins with two
// entries of the sparse table. Most ranges read one or two cache lines, and few read the two lines of the column that hold their ends.
//
// The threads of a warp put the chunks that they need into a queue (after the paper's warp-local queuing). Groups of threads, each of which reads
// one chunk at a time, process the queue level by level. The number of instructions limits the search, not the latency of memory: prefetching
// the chunks of several tasks per group was slower, as most queues are short.
#include "index.cuh"

constexpr int THREADS = 256;
constexpr int WARPS = THREADS / 32;

// The number of threads that read a chunk together. Eight threads, with one load each, take more instructions per chunk; two threads request more
// lines of the L1 cache at once.
constexpr int LANES = 4;
constexpr int GROUPS = 32 / LANES;

// A range of entries of one chunk, as bit masks with one bit per entry. The entries in `touched` but not in `inner` are the first and the last
// one, which also cover values outside the range.
template <class P> struct alignas(16) Task {
  P chunk;
  u32 inner, touched;
  u32 ends;  // first entry | last entry << 8

  static __device__ __forceinline__ Task make(P chunk, u32 first, u32 last, bool first_is_inner, bool last_is_inner) {
    u32 touched = (2u << last) - (1u << first);
    u32 inner = touched & ~(first_is_inner ? 0 : 1u << first) & ~(last_is_inner ? 0 : 1u << last);
    return {chunk, inner, touched, first | last << 8};
  }
};

// The result of a task.
template <class K> struct alignas(16) Found {
  K least;        // of the inner entries
  K first, last;  // the entries at the ends
  u32 at;         // the offset in the chunk of the leftmost inner minimum
};

// Passes a task and its result between the threads of a warp.
template <class K, class P> union Slot {
  Task<P> task;
  Found<K> found;
  __device__ Slot() {}
};

// Returns one of several values by its index, with select instructions: indexing would use branches or memory.
template <class K, int N> __device__ __forceinline__ K pick(const K (&values)[N], u32 at) {
  if constexpr (N == 1) {
    return values[0];
  } else {
    K half[N / 2];
#pragma unroll
    for (int i = 0; i < N / 2; i++) half[i] = at & 1 ? values[2 * i + 1] : values[2 * i];
    return pick<K, N / 2>(half, at >> 1);
  }
}

// Reads the chunks of one level for `count` tasks and replaces the tasks by their results. A thread loads packs that are LANES packs apart, so
// that the threads of a group read 64 consecutive bytes.
template <class K, class P, int BYTES, bool AT, bool COLUMN>
__device__ __forceinline__ void read_chunks(const void* level, int count, Slot<K, P>* slots, Encoding<K> encoding,
                                            const CachePolicy& policy) {
  constexpr int PACK = Pack<K>::SIZE, LOADS = Chunk<K, BYTES>::PACKS / LANES, MINE = LOADS * PACK;
  int lane = threadIdx.x % 32, sub = lane % LANES, group = lane / LANES;
  for (int done = 0; done < count; done += GROUPS) {
    int slot = done + group;
    Task<P> task;
    task.inner = task.touched = task.ends = 0;
    if (slot < count) task = slots[slot].task;
    const char* chunk = static_cast<const char*>(level) + u64(task.chunk) * BYTES + sub * 16;
    K mine[MINE];
#pragma unroll
    for (int i = 0; i < LOADS; i++) {
      int begin = (i * LANES + sub) * PACK;
      if ((task.touched >> begin & ((1u << PACK) - 1)) != 0) {
        Bits128 bits = COLUMN ? load_once(chunk + i * LANES * 16, policy) : load_kept(chunk + i * LANES * 16, policy);
        memcpy(mine + i * PACK, &bits, 16);
      }
    }
    __syncwarp();  // all have read their tasks
    Least<K> least = {Key<K>::max(), 0};
#pragma unroll
    for (int i = 0; i < LOADS; i++) {
      int begin = (i * LANES + sub) * PACK;
      u32 inner = task.inner >> begin;
#pragma unroll
      for (int j = 0; j < PACK; j++) {
        K key = COLUMN ? encoding.encode(mine[i * PACK + j]) : mine[i * PACK + j];
        bool counts = (inner & 1u << j) != 0;
        if (AT) {
          bool less = counts && Key<K>::less(key, least.key);
          least.key = less ? key : least.key;
          least.at = less ? begin + j : least.at;
        } else {
          if (counts) least.key = Key<K>::min(key, least.key);
        }
      }
    }
    least = least_of_lanes<K, LANES, AT>(least);
    Found<K> found;
    found.least = least.key;
    found.at = least.at;
    if (!COLUMN) {
      u32 first = task.ends & 0xff, last = task.ends >> 8;
      // Entry e is in pack e / PACK, the (e / PACK / LANES)th of thread e / PACK % LANES.
      auto of = [&](u32 e) { return pick<K, MINE>(mine, e % PACK + e / PACK / LANES * PACK); };
      found.first = Key<K>::shuffle(of(first), group * LANES + first / PACK % LANES);
      found.last = Key<K>::shuffle(of(last), group * LANES + last / PACK % LANES);
    }
    if (sub == 0 && slot < count) slots[slot].found = found;
  }
}

template <class K, class P, int BYTES, bool VALUE, bool AT>
__device__ __forceinline__ void answer(const Index& x, u32 m, const P* left, const P* right, K* values, i64* positions, u32* valid) {
  constexpr int CHUNK = Chunk<K, BYTES>::SIZE, SHIFT = Chunk<K, BYTES>::SHIFT;
  __shared__ Slot<K, P> all_slots[WARPS][64];
  Slot<K, P>* slots = all_slots[threadIdx.x / 32];
  u32 q = blockIdx.x * blockDim.x + threadIdx.x;
  int lane = threadIdx.x % 32;
  CachePolicy policy;
  auto encoding = Encoding<K>::of_column(x);

  P l = 1, r = 0;
  if (q < m) {
    l = load_streamed(left + q);
    r = load_streamed(right + q);
  }
  bool some = l <= r;

  // The smallest key so far and its place: an entry of a level, and for an entry of the table its row.
  K best = Key<K>::max();
  P best_entry = 0;
  u32 best_level = 0, best_row = 0;
  int begin = -1;  // the level where the search begins
  bool go_left = false, go_right = false;
  P a = l >> SHIFT * x.top, b = r >> SHIFT * x.top;
  if (some && b - a >= 2) {
    begin = x.top;
    const K* level = static_cast<const K*>(x.level[x.top]);
    u32 row = 31 - __clz(u32(b - a - 1));
    const K* minima = row == 0 ? level : static_cast<const K*>(x.table) + (row - 1) * x.table_stride;
    P one = a + 1, two = b - (P(1) << row);
    K first = level[a], last = level[b], least_one = minima[one], least_two = minima[two];
    bool second = Key<K>::less(least_two, least_one);
    best = second ? least_two : least_one;
    best_entry = second ? two : one;
    best_level = x.top;
    best_row = row;
    go_left = AT ? !Key<K>::less(best, first) : Key<K>::less(first, best);
    go_right = Key<K>::less(last, best);
  } else if (some) {
    begin = x.top - 1;
    while (begin > 0 && (r >> SHIFT * begin) - (l >> SHIFT * begin) <= 1) begin--;
  }

  for (int k = x.top - 1; k >= 0; k--) {
    P chunk_l = l >> SHIFT * (k + 1), chunk_r = r >> SHIFT * (k + 1);
    bool here = k == begin, one = here && chunk_l == chunk_r;
    go_left |= here;
    go_right |= here && !one;
    u32 lefts = __ballot_sync(~0u, go_left), rights = __ballot_sync(~0u, go_right);
    int count = __popc(lefts) + __popc(rights);
    if (count == 0) continue;
    u32 before = (1u << lane) - 1;
    int slot_l = __popc(lefts & before), slot_r = __popc(lefts) + __popc(rights & before);
    u32 entry_l = u32(l >> SHIFT * k) % CHUNK, entry_r = u32(r >> SHIFT * k) % CHUNK;
    if (go_left) slots[slot_l].task = Task<P>::make(chunk_l, entry_l, one ? entry_r : CHUNK - 1, k == 0, k == 0 || !one);
    if (go_right) slots[slot_r].task = Task<P>::make(chunk_r, 0, entry_r, true, k == 0);
    __syncwarp();
    if (k == 0) {
      read_chunks<K, P, BYTES, AT, true>(x.level[0], count, slots, encoding, policy);
    } else {
      read_chunks<K, P, BYTES, AT, false>(x.level[k], count, slots, encoding, policy);
    }
    __syncwarp();

    // Entries at the left end are left of all found so far, those at the right end are right of them.
    K first = Key<K>::max(), last = first;
    if (go_left) {
      const Found<K>& found = slots[slot_l].found;
      if (AT ? !Key<K>::less(best, found.least) : Key<K>::less(found.least, best)) {
        best = found.least;
        if (AT) best_entry = chunk_l * CHUNK + found.at, best_level = k, best_row = 0;
      }
      if (k > 0) first = found.first;
      if (k > 0 && one) last = found.last;
    }
    if (go_right) {
      const Found<K>& found = slots[slot_r].found;
      if (Key<K>::less(found.least, best)) {
        best = found.least;
        if (AT) best_entry = chunk_r * CHUNK + found.at, best_level = k, best_row = 0;
      }
      if (k > 0) last = found.last;
    }
    go_right = (go_right || one) && Key<K>::less(last, best);
    go_left = go_left && (AT ? !Key<K>::less(best, first) : Key<K>::less(first, best));
    __syncwarp();
  }

  u64 position = best_entry;
  if (some && Key<K>::same(best, Key<K>::max())) {
    // All values in the range have the greatest key, or all are NULL.
    position = x.valid_levels ? next_valid(x, l) : l;
    some = position <= r;
  } else if (AT && some && best_level > 0) {
    P entry = best_row > 0 ? P(x.table_at[(best_row - 1) * x.table_stride + best_entry]) : best_entry;
    u32 offset = best_level == 1 ? u32(static_cast<const u8*>(x.offset[1])[entry]) : static_cast<const u32*>(x.offset[best_level])[entry];
    position = (u64(entry) << SHIFT * best_level) + offset;
  }
  if (VALUE && q < m) store_streamed(values + q, Encoding<K>::of(x).decode(best));
  if (AT && q < m) store_streamed(positions + q, some ? i64(position) : 0);
  if (valid != nullptr) {
    u32 word = __ballot_sync(~0u, some);
    if (lane == 0 && q < m) valid[q / 32] = word;
  }
}

#define ANSWER_AS(K, BYTES, P, BITS, WANT, VALUE, AT)                                                                    \
  KERNEL(THREADS) answer_##K##_c##BYTES##_p##BITS##_##WANT(Index x, u32 m, const P* left, const P* right, K* values,        \
                                                           i64* positions, u32* valid) {                               \
    answer<K, P, BYTES, VALUE, AT>(x, m, left, right, values, positions, valid);                   \
  }
#define ANSWER_FOR(K, BYTES, P, BITS)                    \
  ANSWER_AS(K, BYTES, P, BITS, value, true, false)       \
  ANSWER_AS(K, BYTES, P, BITS, position, false, true)    \
  ANSWER_AS(K, BYTES, P, BITS, both, true, true)
#define ANSWER(K, BYTES)           \
  ANSWER_FOR(K, BYTES, u32, 32)    \
  ANSWER_FOR(K, BYTES, u64, 64)

#ifdef RMQ_KEY_U32
ANSWER(u32, 64)
ANSWER(u32, 128)
#endif
#ifdef RMQ_KEY_U64
ANSWER(u64, 128)
#endif
#ifdef RMQ_KEY_U128
ANSWER(u128, 128)
#endif
