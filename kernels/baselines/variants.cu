// Variants of the search of `answer.cu`, to be compared with it by `rmq-bench --measure variants`. Names: `variant_{WIDE}_{LEVELS}_{COLUMN}_` and
// then as those of `answer_*`, whose arguments they have.
//
// WIDE, how a range too wide for any level begins:
// - `four` (as in `answer.cu`): two entries of the table for the inside, two entries of the highest level for the ends.
// - `near`: four entries of the same row of the table, in two places. With row j and inside a + 1 ..= b - 1, entry a of the row covers the end a and
//   else only the inside, so it is less than the inside's minimum exactly if level[top][a] is, and then equal to it. The same holds for the
//   entry that ends in b. Neighbours are mostly in the same sector, so the L2 cache gets little more than two requests instead of four.
// - `pack`: as `near`, with a 16-byte load in each place, and another one where a place crosses 16 bytes.
// - `pair`: for positions. The table's entries are pairs of a minimum and its position, for rows 0 and up (`variant_pairs`). Two of them cover the
//   range with its ends; a minimum within the range is the answer. Otherwise as `near`. With `warp`, a chunk at an end whose minimum is within the
//   range, as its offset tells, is not read.
// LEVELS, who reads entries of levels 1 and up: `groups` of threads after queuing (as in `answer.cu`), or each of the `threads` for its own query.
// COLUMN, the same for the column; or `warp`: each thread for itself if its range spans at most two chunks, and otherwise the warp, one chunk after
// the other, with one entry a thread; or `count`: as `warp`, but `groups` if there are more than MANY chunks.
#include "../answer.cu"

enum Start { FOUR, NEAR, PACK, PAIR };
enum Readers { GROUPS_OF_THREADS, THREADS_ALONE, WHOLE_WARP, BY_COUNT };

// Chunks of the column that a warp reads one after the other at most.
constexpr int MANY = 8;

struct alignas(8) KeyAndPlace {
  u32 key, at;
};

template <class K> __device__ __forceinline__ Pack<K> load_pack(const Pack<K>* p, bool once, const CachePolicy& policy) {
  Bits128 bits = once ? load_once(p, policy) : load_kept(p, policy);
  Pack<K> pack;
  memcpy(&pack, &bits, 16);
  return pack;
}

// Loads an entry of the column that is not expected to be read again soon.
__device__ __forceinline__ u32 load_once(const u32* p, const CachePolicy& policy) {
#ifdef EMULATE
  return *p;
#else
  u32 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.u32 %0, [%1], %2;" : "=r"(v) : "l"(p), "l"(policy.once));
  return v;
#endif
}

// What a thread finds in consecutive entries.
template <class K, class P> struct Run {
  K least;        // of the entries that count
  P at;           // the leftmost entry with that key, if positions are wanted
  K first, last;  // the entries at the ends
};

// Adds the entries of a pack whose bits are set in `counts`.
template <class K, class P, bool AT> __device__ __forceinline__ void add(Run<K, P>& run, const K (&keys)[Pack<K>::SIZE], u32 counts, P start) {
#pragma unroll
  for (int j = 0; j < Pack<K>::SIZE; j++) {
    K key = counts >> j & 1 ? keys[j] : Key<K>::max();
    if (AT) {
      bool less = Key<K>::less(key, run.least);
      run.at = less ? start + j : run.at;
      run.least = less ? key : run.least;
    } else {
      run.least = Key<K>::min(key, run.least);
    }
  }
}

// Reads entries first..=last by one thread. The first and the last count for the minimum unless they are skipped.
template <class K, class P, bool AT, bool COLUMN>
__device__ __forceinline__ Run<K, P> read_run(const void* level, P first, P last, bool skip_first, bool skip_last, Encoding<K> encoding,
                                              const CachePolicy& policy) {
  constexpr int SIZE = Pack<K>::SIZE;
  const Pack<K>* packs = static_cast<const Pack<K>*>(level);
  P from = first / SIZE, to = last / SIZE;
  Pack<K> a = load_pack(packs + from, COLUMN, policy), b = a;
  bool two = from != to;
  if (two) b = load_pack(packs + to, COLUMN, policy);
  u32 i = u32(first) % SIZE, j = u32(last) % SIZE;
  u32 up_to_last = (1u << (j + !skip_last)) - 1;
  u32 of_a = ~0u << (i + skip_first) & (two ? ~0u : up_to_last), of_b = two ? up_to_last : 0;
  auto encode = [&](Pack<K>& pack) {
#pragma unroll
    for (int e = 0; e < SIZE; e++) pack.at[e] = encoding.encode(pack.at[e]);
  };
  if (COLUMN) encode(a), encode(b);
  Run<K, P> run = {Key<K>::max(), 0, pick<K, SIZE>(a.at, i), pick<K, SIZE>(b.at, j)};
  add<K, P, AT>(run, a.at, of_a, from * SIZE);
  // More copies of this loop would make divergent threads run one after another.
#pragma unroll 1
  for (P p = from + 1; p < to; p += 2) {
    bool both = p + 1 < to;
    Pack<K> c = load_pack(packs + p, COLUMN, policy), d = c;
    if (both) d = load_pack(packs + p + 1, COLUMN, policy);
    if (COLUMN) encode(c), encode(d);
    add<K, P, AT>(run, c.at, ~0u, p * SIZE);
    add<K, P, AT>(run, d.at, ~0u, (p + both) * SIZE);
  }
  add<K, P, AT>(run, b.at, of_b, to * SIZE);
  return run;
}

// Reads a part of one chunk of the column for each thread of `asking`, all threads together: from `end` on, or if RIGHT up to it. Two chunks are in
// flight at once.
template <class P, int CHUNK, bool AT, bool RIGHT>
__device__ __forceinline__ Run<u32, P> read_by_warp(const u32* column, u32 asking, P end, Encoding<u32> encoding, const CachePolicy& policy) {
  u32 lane = threadIdx.x % 32;
  Run<u32, P> mine = {~0u, 0, 0, 0};
  while (asking != 0) {
    int thread[2] = {-1, -1};
    P start[2];
    u32 bits[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
      if (asking == 0) continue;
      thread[i] = __ffs(asking) - 1;
      asking &= asking - 1;
      P its = __shfl_sync(~0u, end, thread[i]);
      start[i] = RIGHT ? its & ~P(CHUNK - 1) : its;
      P last = RIGHT ? its : its | (CHUNK - 1), at = start[i] + lane;
      // Threads past the last entry read it again.
      bits[i] = load_once(column + (at < last ? at : last), policy);
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
      if (thread[i] < 0) continue;
      u32 key = encoding.encode(bits[i]), least = __reduce_min_sync(~0u, key);
      u32 at = AT ? u32(__ffs(__ballot_sync(~0u, key == least)) - 1) : 0;
      if (int(lane) == thread[i]) mine.least = least, mine.at = start[i] + at;
    }
  }
  return mine;
}

// Entries i and i + 1 of an array of 4-byte keys, whose place in 16 bytes is arbitrary.
__device__ __forceinline__ void load_near(const u32* array, u64 i, u32& one, u32& next, const CachePolicy& policy) {
  u64 address = reinterpret_cast<u64>(array + i);
  Pack<u32> pack = load_pack(reinterpret_cast<const Pack<u32>*>(address & ~15ull), false, policy);
  u32 at = u32(address) / 4 % 4;
  one = pick<u32, 4>(pack.at, at);
  next = at == 3 ? array[i + 1] : pick<u32, 4>(pack.at, (at + 1) % 4);
}

// Answers query q, whose bounds are l and r.
template <class K, class P, int BYTES, bool VALUE, bool AT, Start WIDE, Readers LEVELS, Readers COLUMN>
__device__ __forceinline__ void search(const Index& x, u32 m, u32 q, P l, P r, K* values, i64* positions, u32* valid) {
  constexpr int CHUNK = Chunk<K, BYTES>::SIZE, SHIFT = Chunk<K, BYTES>::SHIFT;
  // Whether an end whose minimum is within the range is taken instead of searched, at level 1 as in the table.
  constexpr bool KNOWS_ENDS = WIDE == PAIR && COLUMN == WHOLE_WARP;
  constexpr bool QUEUES = LEVELS == GROUPS_OF_THREADS || COLUMN == GROUPS_OF_THREADS || COLUMN == BY_COUNT;
  __shared__ Slot<K, P> all_slots[QUEUES ? WARPS : 1][QUEUES ? 64 : 1];
  Slot<K, P>* slots = all_slots[QUEUES ? threadIdx.x / 32 : 0];
  int lane = threadIdx.x % 32;
  CachePolicy policy;
  auto encoding = Encoding<K>::of_column(x);
  bool some = l <= r;

  // The smallest key so far and its place: an entry of a level, and for an entry of the table its row.
  K best = Key<K>::max();
  P best_entry = 0;
  u32 best_level = 0, best_row = 0;
  bool narrow = some;  // its levels are not reached yet
  bool go_left = false, go_right = false;
  // No device has memory for 2^32 chunks, so entries of levels have 32 bits.
  u32 a = u32(l >> SHIFT * x.top), b = u32(r >> SHIFT * x.top);
  if (some && b - a >= 2) {
    narrow = false;
    u32 row = 31 - __clz(b - a - 1);
    u32 one = a + 1, two = b - (1u << row);
    best_level = x.top;
    if constexpr (WIDE == PAIR) {
      // The range with its ends.
      const KeyAndPlace* pairs = static_cast<const KeyAndPlace*>(x.table);
      u32 covering = 31 - __clz(b - a + 1);
      const KeyAndPlace* minima = pairs + covering * x.table_stride;
      KeyAndPlace here = minima[a], there = minima[b + 1 - (1u << covering)];
      if (there.key < here.key) here = there;
      best = here.key;
      best_entry = here.at;
      best_level = 0;
      if (here.at < l || here.at > r) {
        minima = pairs + row * x.table_stride;
        KeyAndPlace first = minima[a], inside = minima[one], second = minima[two], last = minima[two + 1];
        if (second.key < inside.key) inside = second;
        best = inside.key;
        best_entry = inside.at;
        // An end whose minimum is within the range needs no search.
        go_left = first.key < best || (first.key == best && first.at < inside.at);
        if (go_left && first.at >= l) {
          best = first.key;
          best_entry = first.at;
          go_left = false;
        }
        go_right = last.key < best;
        if (go_right && last.at <= r && !go_left) {
          best = last.key;
          best_entry = last.at;
          go_right = false;
        }
      }
    } else {
      const K* level = static_cast<const K*>(x.level[x.top]);
      const K* minima = row == 0 ? level : static_cast<const K*>(x.table) + (row - 1) * x.table_stride;
      K first, last, least_one, least_two;
      if constexpr (WIDE == FOUR) {
        first = level[a], last = level[b], least_one = minima[one], least_two = minima[two];
      } else if constexpr (WIDE == NEAR) {
        first = minima[a], last = minima[two + 1], least_one = minima[one], least_two = minima[two];
      } else {
        load_near(minima, a, first, least_one, policy);
        load_near(minima, two, least_two, last, policy);
      }
      bool second = Key<K>::less(least_two, least_one);
      best = second ? least_two : least_one;
      best_entry = second ? two : one;
      best_row = row;
      go_left = Key<K>::less(first, best);
      go_right = Key<K>::less(last, best);
      if (AT && WIDE == FOUR) go_left = !Key<K>::less(best, first);
      if (AT && WIDE != FOUR && Key<K>::same(first, best)) {
        // The leftmost minimum is at the end or in the inside.
        best_entry = row == 0 ? a : x.table_at[(row - 1) * x.table_stride + a];
        go_left = best_entry == a;
        if (go_left) best_entry = second ? two : one;
        if (!go_left) best_row = 0;
      }
    }
  }

  for (int k = x.top - 1; k > 0; k--) {
    u32 entry_l = u32(l >> SHIFT * k), entry_r = u32(r >> SHIFT * k);
    bool here = narrow && entry_r - entry_l >= 2;
    narrow &= !here;
    K first = Key<K>::max(), last = first;
    if constexpr (LEVELS == THREADS_ALONE) {
      if (here || go_left) {
        u32 end = here ? entry_r : entry_l | (CHUNK - 1);
        Run<K, u32> run = read_run<K, u32, AT, false>(x.level[k], entry_l, end, true, here, encoding, policy);
        if (AT ? !Key<K>::less(best, run.least) : Key<K>::less(run.least, best)) {
          best = run.least;
          if (AT) best_entry = run.at, best_level = k, best_row = 0;
        }
        first = run.first;
        if (here) last = run.last;
      }
      if (go_right) {
        Run<K, u32> run = read_run<K, u32, AT, false>(x.level[k], entry_r & ~u32(CHUNK - 1), entry_r, false, true, encoding, policy);
        if (Key<K>::less(run.least, best)) {
          best = run.least;
          if (AT) best_entry = run.at, best_level = k, best_row = 0;
        }
        last = run.last;
      }
      go_left = (here || go_left) && (AT ? !Key<K>::less(best, first) : Key<K>::less(first, best));
      go_right = (here || go_right) && Key<K>::less(last, best);
      if (KNOWS_ENDS && k == 1) {
        const u8* offsets = static_cast<const u8*>(x.offset[1]);
        if (go_left && (P(entry_l) << SHIFT) + offsets[entry_l] >= l) {
          best = first;
          best_entry = entry_l, best_level = 1, best_row = 0;
          go_left = false;
          go_right = go_right && Key<K>::less(last, best);
        }
        if (go_right && (P(entry_r) << SHIFT) + offsets[entry_r] <= r) {
          best = last;
          best_entry = entry_r, best_level = 1, best_row = 0;
          go_right = false;
        }
      }
    } else {
      P chunk_l = entry_l >> SHIFT, chunk_r = entry_r >> SHIFT;
      bool one = here && chunk_l == chunk_r;
      go_left |= here;
      go_right |= here && !one;
      u32 lefts = __ballot_sync(~0u, go_left), rights = __ballot_sync(~0u, go_right);
      int count = __popc(lefts) + __popc(rights);
      if (count == 0) continue;
      u32 before = (1u << lane) - 1;
      int slot_l = __popc(lefts & before), slot_r = __popc(lefts) + __popc(rights & before);
      if (go_left) slots[slot_l].task = Task<P>::make(chunk_l, entry_l % CHUNK, one ? entry_r % CHUNK : CHUNK - 1, false, !one);
      if (go_right) slots[slot_r].task = Task<P>::make(chunk_r, 0, entry_r % CHUNK, true, false);
      __syncwarp();
      read_chunks<K, P, BYTES, AT, false>(x.level[k], count, slots, encoding, policy);
      __syncwarp();
      if (go_left) {
        const Found<K>& found = slots[slot_l].found;
        if (AT ? !Key<K>::less(best, found.least) : Key<K>::less(found.least, best)) {
          best = found.least;
          if (AT) best_entry = chunk_l * CHUNK + found.at, best_level = k, best_row = 0;
        }
        first = found.first;
        if (one) last = found.last;
      }
      if (go_right) {
        const Found<K>& found = slots[slot_r].found;
        if (Key<K>::less(found.least, best)) {
          best = found.least;
          if (AT) best_entry = chunk_r * CHUNK + found.at, best_level = k, best_row = 0;
        }
        last = found.last;
      }
      go_right = (go_right || one) && Key<K>::less(last, best);
      go_left = go_left && (AT ? !Key<K>::less(best, first) : Key<K>::less(first, best));
      __syncwarp();
    }
  }

  if constexpr (COLUMN != GROUPS_OF_THREADS) {
    if (narrow || (COLUMN == THREADS_ALONE && go_left)) {
      Run<K, P> run = read_run<K, P, AT, true>(x.level[0], l, narrow ? r : l | (CHUNK - 1), false, false, encoding, policy);
      if (AT ? !Key<K>::less(best, run.least) : Key<K>::less(run.least, best)) {
        best = run.least;
        if (AT) best_entry = run.at, best_level = 0, best_row = 0;
      }
    }
    if (COLUMN == THREADS_ALONE && go_right) {
      Run<K, P> run = read_run<K, P, AT, true>(x.level[0], r & ~P(CHUNK - 1), r, false, false, encoding, policy);
      if (Key<K>::less(run.least, best)) {
        best = run.least;
        if (AT) best_entry = run.at, best_level = 0, best_row = 0;
      }
    }
  }
  if constexpr (COLUMN != THREADS_ALONE) {
    if (COLUMN != GROUPS_OF_THREADS) narrow = false;  // its entries are read
    P chunk_l = l >> SHIFT, chunk_r = r >> SHIFT;
    bool one = narrow && chunk_l == chunk_r;
    go_left |= narrow;
    go_right |= narrow && !one;
    u32 lefts = __ballot_sync(~0u, go_left), rights = __ballot_sync(~0u, go_right);
    int count = __popc(lefts) + __popc(rights);
    if (COLUMN == WHOLE_WARP || (COLUMN == BY_COUNT && count <= MANY)) {
      const K* column = static_cast<const K*>(x.level[0]);
      Run<K, P> run = read_by_warp<P, CHUNK, AT, false>(column, lefts, l, encoding, policy);
      if (go_left && (AT ? !Key<K>::less(best, run.least) : Key<K>::less(run.least, best))) {
        best = run.least;
        if (AT) best_entry = run.at, best_level = 0, best_row = 0;
      }
      run = read_by_warp<P, CHUNK, AT, true>(column, rights, r, encoding, policy);
      if (go_right && Key<K>::less(run.least, best)) {
        best = run.least;
        if (AT) best_entry = run.at, best_level = 0, best_row = 0;
      }
    } else if (count > 0) {
      u32 before = (1u << lane) - 1;
      int slot_l = __popc(lefts & before), slot_r = __popc(lefts) + __popc(rights & before);
      if (go_left) slots[slot_l].task = Task<P>::make(chunk_l, u32(l) % CHUNK, one ? u32(r) % CHUNK : CHUNK - 1, true, true);
      if (go_right) slots[slot_r].task = Task<P>::make(chunk_r, 0, u32(r) % CHUNK, true, true);
      __syncwarp();
      read_chunks<K, P, BYTES, AT, true>(x.level[0], count, slots, encoding, policy);
      __syncwarp();
      if (go_left) {
        const Found<K>& found = slots[slot_l].found;
        if (AT ? !Key<K>::less(best, found.least) : Key<K>::less(found.least, best)) {
          best = found.least;
          if (AT) best_entry = chunk_l * CHUNK + found.at, best_level = 0, best_row = 0;
        }
      }
      if (go_right) {
        const Found<K>& found = slots[slot_r].found;
        if (Key<K>::less(found.least, best)) {
          best = found.least;
          if (AT) best_entry = chunk_r * CHUNK + found.at, best_level = 0, best_row = 0;
        }
      }
    }
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

// Answers queries, QUERIES a thread, whose bounds are all loaded before the first search.
template <class K, class P, int BYTES, bool VALUE, bool AT, Start WIDE, Readers LEVELS, Readers COLUMN, int QUERIES>
__device__ __forceinline__ void search_all(const Index& x, u32 m, const P* left, const P* right, K* values, i64* positions, u32* valid) {
  u32 first = blockIdx.x * (THREADS * QUERIES) + threadIdx.x;
  P l[QUERIES], r[QUERIES];
#pragma unroll
  for (int i = 0; i < QUERIES; i++) {
    u32 q = first + i * THREADS;
    l[i] = 1, r[i] = 0;
    if (q < m) {
      l[i] = load_streamed(left + q);
      r[i] = load_streamed(right + q);
    }
  }
#pragma unroll 1
  for (int i = 0; i < QUERIES; i++) {
    if (i > 0) __syncwarp();  // all have read the slots of the query before
    search<K, P, BYTES, VALUE, AT, WIDE, LEVELS, COLUMN>(x, m, first + i * THREADS, l[0], r[0], values, positions, valid);
    // The bounds of the next query move to the front, as registers have no index.
#pragma unroll
    for (int j = 1; j < QUERIES; j++) l[j - 1] = l[j], r[j - 1] = r[j];
  }
}

// Makes the table of `pair` from that of `answer.cu`: rows 0 and up, each of `table_stride` entries. One thread per entry of level[top].
template <int BYTES> __device__ __forceinline__ void pairs(const Index& x, u64 entries, KeyAndPlace* to) {
  constexpr int SHIFT = Chunk<u32, BYTES>::SHIFT;
  u64 i = blockIdx.x * u64(blockDim.x) + threadIdx.x;
  if (i >= entries) return;
  for (u32 row = 0; row < x.rows; row++) {
    if (i + (1ull << row) > entries) return;
    u64 of_row = row == 0 ? i : (row - 1) * x.table_stride + i;
    u32 key = row == 0 ? static_cast<const u32*>(x.level[x.top])[i] : static_cast<const u32*>(x.table)[of_row];
    u64 entry = row == 0 ? i : x.table_at[of_row];
    u32 offset = x.top == 1 ? u32(static_cast<const u8*>(x.offset[1])[entry]) : static_cast<const u32*>(x.offset[x.top])[entry];
    to[row * x.table_stride + i] = {key, u32(entry << SHIFT * x.top) + offset};
  }
}

KERNEL(256) variant_pairs_c64(Index x, u64 entries, KeyAndPlace* to) { pairs<64>(x, entries, to); }
KERNEL(256) variant_pairs_c128(Index x, u64 entries, KeyAndPlace* to) { pairs<128>(x, entries, to); }

// Positions and bounds of 64 bits need more registers.
#define BLOCKS_FOR(BLOCKS, AT, BITS) BLOCKS == 1 || (!AT && BITS == 32) ? BLOCKS : AT && BITS == 64 ? 5 : 6

#define VARIANT_AS(NAME, WIDE, LEVELS, COLUMN, QUERIES, BLOCKS, BYTES, P, BITS, WANT, VALUE, AT)                                        \
  KERNEL(THREADS, BLOCKS_FOR(BLOCKS, AT, BITS)) variant_##NAME##_u32_c##BYTES##_p##BITS##_##WANT(Index x, u32 m, const P* left, const P* right, u32* values,  \
                                                                           i64* positions, u32* valid) {                             \
    search_all<u32, P, BYTES, VALUE, AT, WIDE, LEVELS, COLUMN, QUERIES>(x, m, left, right, values, positions, valid);                 \
  }
#define VARIANT_FOR(NAME, WIDE, LEVELS, COLUMN, QUERIES, BLOCKS, BYTES, P, BITS)                        \
  VARIANT_AS(NAME, WIDE, LEVELS, COLUMN, QUERIES, BLOCKS, BYTES, P, BITS, value, true, false)           \
  VARIANT_AS(NAME, WIDE, LEVELS, COLUMN, QUERIES, BLOCKS, BYTES, P, BITS, position, false, true)
#define VARIANT(NAME, WIDE, LEVELS, COLUMN, QUERIES, BLOCKS)                     \
  VARIANT_FOR(NAME, WIDE, LEVELS, COLUMN, QUERIES, BLOCKS, 64, u32, 32)          \
  VARIANT_FOR(NAME, WIDE, LEVELS, COLUMN, QUERIES, BLOCKS, 128, u32, 32)         \
  VARIANT_FOR(NAME, WIDE, LEVELS, COLUMN, QUERIES, BLOCKS, 128, u64, 64)
#define VARIANT_OF_POSITIONS(NAME, WIDE, LEVELS, COLUMN, QUERIES, BLOCKS)                                   \
  VARIANT_AS(NAME, WIDE, LEVELS, COLUMN, QUERIES, BLOCKS, 64, u32, 32, position, false, true)               \
  VARIANT_AS(NAME, WIDE, LEVELS, COLUMN, QUERIES, BLOCKS, 128, u32, 32, position, false, true)

// `two`: two queries a thread. `full`: as many registers as 64 warps a multiprocessor leave, for values and bounds of 32 bits.
VARIANT(near_groups_groups, NEAR, GROUPS_OF_THREADS, GROUPS_OF_THREADS, 1, 1)
VARIANT(four_threads_groups, FOUR, THREADS_ALONE, GROUPS_OF_THREADS, 1, 1)
VARIANT(near_threads_groups, NEAR, THREADS_ALONE, GROUPS_OF_THREADS, 1, 1)
VARIANT(near_threads_groups_full, NEAR, THREADS_ALONE, GROUPS_OF_THREADS, 1, 8)
VARIANT(near_threads_groups_two, NEAR, THREADS_ALONE, GROUPS_OF_THREADS, 2, 1)
VARIANT(pack_threads_groups_full, PACK, THREADS_ALONE, GROUPS_OF_THREADS, 1, 8)
VARIANT(near_threads_threads_full, NEAR, THREADS_ALONE, THREADS_ALONE, 1, 8)
VARIANT(near_threads_warp_full, NEAR, THREADS_ALONE, WHOLE_WARP, 1, 8)
VARIANT(pack_threads_warp_full, PACK, THREADS_ALONE, WHOLE_WARP, 1, 8)
VARIANT(near_threads_count_full, NEAR, THREADS_ALONE, BY_COUNT, 1, 8)
VARIANT_OF_POSITIONS(pair_threads_groups, PAIR, THREADS_ALONE, GROUPS_OF_THREADS, 1, 1)
VARIANT_OF_POSITIONS(pair_threads_warp_full, PAIR, THREADS_ALONE, WHOLE_WARP, 1, 8)
