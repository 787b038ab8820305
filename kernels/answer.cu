// Answers batches of range-minimum queries: one thread owns a query, groups of threads read chunks for it.
//
// A search begins at the lowest level at which the range spans at most two chunks, and reads the one or two chunks in which the range begins
// and ends. The entries in between are within the range. The first and the last entry also cover values outside the range: the search continues
// in the chunk below one of them only if its minimum is less than the best key found so far. A range too wide for any level begins with four
// entries of the sparse table. Most ranges read one or two cache lines, and few read the two lines of the column that hold their ends.
//
// The four entries are of one row, in two places. Let a and b be the entries of the highest level at the ends of the range, and row j the one of which two
// entries cover all between. Entry a of row j covers a and otherwise only what is between, so it is less than the minimum of that
// exactly if level[top][a] is, and then equal to it. The same holds for the entry that ends with b. Neighbours are mostly in one sector, so the
// L2 cache gets little more than two requests; with the entries of the highest level they were four.
//
// Who reads the levels above the column, the name of a kernel tells:
// - `threads`: each thread for its own query, 16 bytes a load. That needs no queue, and a range touches few entries of a level.
// - `groups` of threads. A load of a group gets 64 bytes at once, where a thread gets one sector after the other, each of which waits for the
//   device's memory if the level is there. `crates/rmq-engine/src/cuda/rmq/shape.rs` chooses.
//
// Groups read the column in either case. The threads of a warp put the chunks that they need into a queue (after the paper's warp-local queuing). Groups of
// threads, each of which reads one chunk at a time, process the queue. The number of instructions limits the search, not the latency of memory: prefetching
// the chunks of several tasks per group was slower, as most queues are short.
#include "index.cuh"

constexpr int THREADS = 256;
constexpr int WARPS = THREADS / 32;

// The number of threads that read a chunk together. Eight threads, with one load each, take more instructions per chunk; two threads request more
// lines of the L1 cache at once.
constexpr int LANES = 4;
constexpr int GROUPS = 32 / LANES;

// Chunks and entries of levels have 32 bits: no device has memory for 2^32 chunks.

// The entries of a chunk of the column that are within a range, one bit per entry.
struct alignas(8) ColumnTask {
  u32 chunk, inner;

  static __device__ __forceinline__ ColumnTask make(u32 chunk, u32 first, u32 last) { return {chunk, (2u << last) - (1u << first)}; }
  __device__ __forceinline__ u32 touched() const { return inner; }
};

// A range of entries of a chunk of a level above. The first or the last one, which also cover values outside the range, are not in `inner`.
struct alignas(16) LevelTask {
  u32 chunk, inner, all;
  u32 ends;  // first entry | last entry << 8

  static __device__ __forceinline__ LevelTask make(u32 chunk, u32 first, u32 last, bool first_is_inner, bool last_is_inner) {
    u32 all = (2u << last) - (1u << first);
    u32 inner = all & ~(first_is_inner ? 0 : 1u << first) & ~(last_is_inner ? 0 : 1u << last);
    return {chunk, inner, all, first | last << 8};
  }
  __device__ __forceinline__ u32 touched() const { return all; }
};

// The result of a task: the least of the inner entries, and the offset in the chunk of the leftmost one with that key.
template <class K> struct ColumnFound {
  K least;
  u32 at;
};

template <class K> struct LevelFound {
  K least;
  K first, last;  // the entries at the ends
  u32 at;
};

// Passes a task and its result between the threads of a warp.
template <class Task, class Found> union Slot {
  Task task;
  Found found;
  __device__ Slot() {}
};
template <class K> using ColumnSlot = Slot<ColumnTask, ColumnFound<K>>;
template <class K> using LevelSlot = Slot<LevelTask, LevelFound<K>>;

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

// Reads chunks of the column, or of a level above, for `count` tasks and replaces the tasks by their results. A thread loads packs that are LANES
// packs apart, so that the threads of a group read 64 consecutive bytes.
template <class K, int BYTES, bool AT, class Task, class Found>
__device__ __forceinline__ void read_chunks(const void* level, int count, Slot<Task, Found>* slots, Encoding<K> encoding, const CachePolicy& policy) {
  constexpr bool COLUMN = sizeof(Task) == sizeof(ColumnTask);
  constexpr int PACK = Pack<K>::SIZE, LOADS = Chunk<K, BYTES>::PACKS / LANES, MINE = LOADS * PACK;
  int lane = threadIdx.x % 32, sub = lane % LANES, group = lane / LANES;
  for (int done = 0; done < count; done += GROUPS) {
    int slot = done + group;
    Task task = {};
    if (slot < count) task = slots[slot].task;
    const char* chunk = static_cast<const char*>(level) + u64(task.chunk) * BYTES + sub * 16;
    K mine[MINE];
#pragma unroll
    for (int i = 0; i < LOADS; i++) {
      int begin = (i * LANES + sub) * PACK;
      if ((task.touched() >> begin & ((1u << PACK) - 1)) != 0) {
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
    Found found;
    found.least = least.key;
    found.at = least.at;
    if constexpr (!COLUMN) {
      u32 first = task.ends & 0xff, last = task.ends >> 8;
      // Entry e is in pack e / PACK, the (e / PACK / LANES)th of thread e / PACK % LANES.
      auto of = [&](u32 e) { return pick<K, MINE>(mine, e % PACK + e / PACK / LANES * PACK); };
      found.first = Key<K>::shuffle(of(first), group * LANES + first / PACK % LANES);
      found.last = Key<K>::shuffle(of(last), group * LANES + last / PACK % LANES);
    }
    if (sub == 0 && slot < count) slots[slot].found = found;
  }
}

// What a thread finds in consecutive entries.
template <class K, class P> struct Run {
  K least;        // of the entries that count
  P at;           // the leftmost entry with that key, if positions are wanted
  K first, last;  // the entries at the ends
};

// Adds the entries of a pack whose bits are set in `counts`.
template <bool AT, class K, class P> __device__ __forceinline__ void add(Run<K, P>& run, const Pack<K>& pack, u32 counts, P start) {
#pragma unroll
  for (int j = 0; j < Pack<K>::SIZE; j++) {
    K key = counts >> j & 1 ? pack.at[j] : Key<K>::max();
    if (AT) {
      bool less = Key<K>::less(key, run.least);
      run.at = less ? start + j : run.at;
      run.least = less ? key : run.least;
    } else {
      run.least = Key<K>::min(key, run.least);
    }
  }
}

// Reads entries first..=last of the column, or of a level above, by one thread. The first and the last count for the minimum unless they are skipped.
template <class K, class P, bool AT, bool COLUMN>
__device__ __forceinline__ Run<K, P> read_run(const void* level, P first, P last, bool skip_first, bool skip_last, Encoding<K> encoding,
                                              const CachePolicy& policy) {
  constexpr int SIZE = Pack<K>::SIZE;
  auto load = [&](P pack) {
    const Pack<K>* from = static_cast<const Pack<K>*>(level) + pack;
    Bits128 bits = COLUMN ? load_once(from, policy) : load_kept(from, policy);
    Pack<K> keys;
    memcpy(&keys, &bits, 16);
    return keys;
  };
  auto encode = [&](Pack<K>& pack) {
#pragma unroll
    for (int e = 0; e < SIZE; e++) pack.at[e] = encoding.encode(pack.at[e]);
  };
  P from = first / SIZE, to = last / SIZE;
  Pack<K> a = load(from), b = a;
  bool two = from != to;
  if (two) b = load(to);
  u32 i = u32(first) % SIZE, j = u32(last) % SIZE;
  u32 up_to_last = (1u << (j + !skip_last)) - 1;
  u32 of_a = ~0u << (i + skip_first) & (two ? ~0u : up_to_last), of_b = two ? up_to_last : 0;
  if (COLUMN) encode(a), encode(b);
  Run<K, P> run = {Key<K>::max(), 0, pick<K, SIZE>(a.at, i), pick<K, SIZE>(b.at, j)};
  add<AT>(run, a, of_a, from * SIZE);
  // More copies of this loop would make divergent threads run one after another.
#pragma unroll 1
  for (P p = from + 1; p < to; p += 2) {
    bool both = p + 1 < to;
    Pack<K> c = load(p), d = c;
    if (both) d = load(p + 1);
    if (COLUMN) encode(c), encode(d);
    add<AT>(run, c, ~0u, p * SIZE);
    add<AT>(run, d, ~0u, (p + both) * SIZE);
  }
  add<AT>(run, b, of_b, to * SIZE);
  return run;
}

// The smallest key that a search has found, and its place: an entry of a level, and for an entry of the table its row.
template <class K, class P> struct Best {
  K key;
  P entry;
  u32 level, row;

  // Takes a key from the left of all found so far, which wins if it is the same, or from the right of them.
  template <bool AT> __device__ __forceinline__ void take_left(K other, P at, u32 of_level) {
    if (AT ? !Key<K>::less(key, other) : Key<K>::less(other, key)) take<AT>(other, at, of_level);
  }
  template <bool AT> __device__ __forceinline__ void take_right(K other, P at, u32 of_level) {
    if (Key<K>::less(other, key)) take<AT>(other, at, of_level);
  }

 private:
  template <bool AT> __device__ __forceinline__ void take(K other, P at, u32 of_level) {
    key = other;
    if (AT) entry = at, level = of_level, row = 0;
  }
};

// The tasks of a warp at one level: those at the left ends of ranges, then those at right ends.
struct Queue {
  int count, left, right;  // all tasks; the places of this thread's

  __device__ __forceinline__ Queue(bool go_left, bool go_right) {
    u32 lefts = __ballot_sync(~0u, go_left), rights = __ballot_sync(~0u, go_right);
    u32 before = (1u << threadIdx.x % 32) - 1;
    count = __popc(lefts) + __popc(rights);
    left = __popc(lefts & before);
    right = __popc(lefts) + __popc(rights & before);
  }
};

template <class K, class P, int BYTES, bool VALUE, bool AT, bool BY_GROUPS>
__device__ __forceinline__ void answer(const Index& x, u32 m, const P* left, const P* right, K* values, i64* positions, u32* valid) {
  constexpr int CHUNK = Chunk<K, BYTES>::SIZE, SHIFT = Chunk<K, BYTES>::SHIFT;
  // Tasks at levels take more than those of the column. What shared memory leaves is cache.
  union Slots {
    ColumnSlot<K> column[64];
    LevelSlot<K> level[BY_GROUPS ? 64 : 1];
    __device__ Slots() {}
  };
  __shared__ Slots all_slots[WARPS];
  Slots& slots = all_slots[threadIdx.x / 32];
  u32 q = blockIdx.x * blockDim.x + threadIdx.x;
  CachePolicy policy;
  auto encoding = Encoding<K>::of_column(x);

  P l = 1, r = 0;
  if (q < m) {
    l = load_streamed(left + q);
    r = load_streamed(right + q);
  }
  bool some = l <= r;

  Best<K, P> best = {Key<K>::max(), 0, 0, 0};
  bool narrow = some;  // no level has been read for it
  bool go_left = false, go_right = false;
  // Whether the entry at an end of the range may cover the minimum of the range.
  auto is_open = [&](K first) { return AT ? !Key<K>::less(best.key, first) : Key<K>::less(first, best.key); };

  u32 a = u32(l >> SHIFT * x.top), b = u32(r >> SHIFT * x.top);
  if (some && b - a >= 2) {
    narrow = false;
    u32 row = 31 - __clz(b - a - 1), one = a + 1, two = b - (1u << row);
    const K* minima = row == 0 ? static_cast<const K*>(x.level[x.top]) : static_cast<const K*>(x.table) + (row - 1) * x.table_stride;
    K first = minima[a], last = minima[two + 1], least_one = minima[one], least_two = minima[two];
    bool second = Key<K>::less(least_two, least_one);
    best = {second ? least_two : least_one, second ? two : one, x.top, row};
    go_left = Key<K>::less(first, best.key);
    go_right = Key<K>::less(last, best.key);
    if (AT && Key<K>::same(first, best.key)) {
      // The leftmost minimum is at the end or inside.
      u32 entry = row == 0 ? a : x.table_at[(row - 1) * x.table_stride + a];
      go_left = entry == a;
      if (!go_left) best.entry = entry, best.row = 0;
    }
  }

  for (int k = x.top - 1; k > 0; k--) {
    u32 entry_l = u32(l >> SHIFT * k), entry_r = u32(r >> SHIFT * k);
    bool here = narrow && entry_r - entry_l >= 2;
    narrow &= !here;
    // Where a run reads both ends at once, the right one is not read again.
    bool one = here && (!BY_GROUPS || entry_l / CHUNK == entry_r / CHUNK);
    go_left |= here;
    go_right |= here && !one;
    K first = Key<K>::max(), last = first;
    u32 chunk_l = entry_l / CHUNK * CHUNK, chunk_r = entry_r / CHUNK * CHUNK;
    if constexpr (BY_GROUPS) {
      Queue queue(go_left, go_right);
      if (queue.count == 0) continue;
      if (go_left) {
        u32 end = one ? entry_r % CHUNK : CHUNK - 1;
        slots.level[queue.left].task = LevelTask::make(chunk_l / CHUNK, entry_l % CHUNK, end, false, !one);
      }
      if (go_right) slots.level[queue.right].task = LevelTask::make(chunk_r / CHUNK, 0, entry_r % CHUNK, true, false);
      __syncwarp();
      read_chunks<K, BYTES, AT>(x.level[k], queue.count, slots.level, encoding, policy);
      __syncwarp();
      if (go_left) {
        const LevelFound<K>& found = slots.level[queue.left].found;
        best.template take_left<AT>(found.least, chunk_l + found.at, k);
        first = found.first;
        if (one) last = found.last;
      }
      if (go_right) {
        const LevelFound<K>& found = slots.level[queue.right].found;
        best.template take_right<AT>(found.least, chunk_r + found.at, k);
        last = found.last;
      }
      __syncwarp();
    } else {
      if (go_left) {
        u32 end = one ? entry_r : entry_l | (CHUNK - 1);
        Run<K, u32> run = read_run<K, u32, AT, false>(x.level[k], entry_l, end, true, one, encoding, policy);
        best.template take_left<AT>(run.least, run.at, k);
        first = run.first;
        if (one) last = run.last;
      }
      if (go_right) {
        Run<K, u32> run = read_run<K, u32, AT, false>(x.level[k], chunk_r, entry_r, false, true, encoding, policy);
        best.template take_right<AT>(run.least, run.at, k);
        last = run.last;
      }
    }
    go_left = go_left && is_open(first);
    go_right = (go_right || one) && Key<K>::less(last, best.key);
  }

  u32 chunk_l = u32(l >> SHIFT), chunk_r = u32(r >> SHIFT);
  bool one = narrow && chunk_l == chunk_r;
  go_left |= narrow;
  go_right |= narrow && !one;
  Queue queue(go_left, go_right);
  if (queue.count > 0) {
    if (go_left) slots.column[queue.left].task = ColumnTask::make(chunk_l, u32(l) % CHUNK, one ? u32(r) % CHUNK : CHUNK - 1);
    if (go_right) slots.column[queue.right].task = ColumnTask::make(chunk_r, 0, u32(r) % CHUNK);
    __syncwarp();
    read_chunks<K, BYTES, AT>(x.level[0], queue.count, slots.column, encoding, policy);
    __syncwarp();
    if (go_left) {
      const ColumnFound<K>& found = slots.column[queue.left].found;
      best.template take_left<AT>(found.least, P(chunk_l) * CHUNK + found.at, 0);
    }
    if (go_right) {
      const ColumnFound<K>& found = slots.column[queue.right].found;
      best.template take_right<AT>(found.least, P(chunk_r) * CHUNK + found.at, 0);
    }
  }

  u64 position = best.entry;
  if (some && Key<K>::same(best.key, Key<K>::max())) {
    // All values in the range have the greatest key, or all are NULL.
    position = x.valid_levels ? next_valid(x, l) : l;
    some = position <= r;
  } else if (AT && some && best.level > 0) {
    P entry = best.row > 0 ? P(x.table_at[(best.row - 1) * x.table_stride + best.entry]) : best.entry;
    u32 offset = best.level == 1 ? u32(static_cast<const u8*>(x.offset[1])[entry]) : static_cast<const u32*>(x.offset[best.level])[entry];
    position = (u64(entry) << SHIFT * best.level) + offset;
  }
  if (VALUE && q < m) store_streamed(values + q, Encoding<K>::of(x).decode(best.key));
  if (AT && q < m) store_streamed(positions + q, some ? i64(position) : 0);
  if (valid != nullptr) {
    u32 word = __ballot_sync(~0u, some);
    if (threadIdx.x % 32 == 0 && q < m) valid[q / 32] = word;
  }
}

#define ANSWER_AS(K, BYTES, P, BITS, READERS, BY_GROUPS, WANT, VALUE, AT)                                                          \
  KERNEL(THREADS, BLOCKS<K, BY_GROUPS, AT>) answer_##K##_c##BYTES##_p##BITS##_##READERS##_##WANT(                                   \
      Index x, u32 m, const P* left, const P* right, K* values, i64* positions, u32* valid) {                                      \
    answer<K, P, BYTES, VALUE, AT, BY_GROUPS>(x, m, left, right, values, positions, valid);                                        \
  }
#define ANSWER(K, BYTES, P, BITS, READERS, BY_GROUPS)                           \
  ANSWER_AS(K, BYTES, P, BITS, READERS, BY_GROUPS, value, true, false)          \
  ANSWER_AS(K, BYTES, P, BITS, READERS, BY_GROUPS, position, false, true)       \
  ANSWER_AS(K, BYTES, P, BITS, READERS, BY_GROUPS, both, true, true)

// Blocks that a multiprocessor holds at least, which limits the registers: with 8 it holds as many threads as it can.
template <class K, bool BY_GROUPS, bool AT>
constexpr int BLOCKS = sizeof(K) == 4 && !BY_GROUPS ? (AT ? 6 : 8) : sizeof(K) == 16 && BY_GROUPS ? 4 : AT ? 5 : 6;

// Positions take 64 bits only where level 1 is large.
#define ANSWER_ALL(K)                               \
  ANSWER(K, 128, u32, 32, threads, false)           \
  ANSWER(K, 128, u32, 32, groups, true)             \
  ANSWER(K, 128, u64, 64, groups, true)

#ifdef RMQ_KEY_U32
ANSWER_ALL(u32)
ANSWER(u32, 64, u32, 32, threads, false)
ANSWER(u32, 64, u64, 64, groups, true)
#endif
#ifdef RMQ_KEY_U64
ANSWER_ALL(u64)
#endif
#ifdef RMQ_KEY_U128
ANSWER_ALL(u128)
#endif
