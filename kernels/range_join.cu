// Builds and queries the build side of a range join: rows sorted by group and key, what answers aggregates of their ranges, and probe rows that
// are searched and answered.
//
// Input rows get a place in sorted order (`order[place]` is a row). Columns are gathered to that order. A row that belongs to no group has the
// id `groups`, so that it is sorted behind all others and never gathered. All kernels take one thread per row, place, word or query.
#include "rows.cuh"

// The rows of a build side as they came. Passed to kernels by value.
struct Rows {
  const void* keys;      // stored bits
  u64 fold[2], flip[2];  // their encoding, see `Index`
  const void* ids;       // group ids; null if all rows are of group 0
  u32 narrow_ids;        // whether ids take 16 bits, otherwise 32
  u32 groups;
  u64 n;
};

__device__ __forceinline__ u32 id_at(const void* ids, u32 narrow, u64 i) {
  if (!ids) return 0;
  return narrow ? static_cast<const unsigned short*>(ids)[i] : static_cast<const u32*>(ids)[i];
}

__device__ __forceinline__ u32 group_of(const Rows& rows, u64 row) { return id_at(rows.ids, rows.narrow_ids, row); }

template <class K> __device__ __forceinline__ K key_of(const Rows& rows, u64 row) {
  K bits = static_cast<const K*>(rows.keys)[row];
  return Key<K>::fold(bits, Key<K>::word(rows.fold), Key<K>::word(rows.flip));
}

__device__ __forceinline__ u64 low_word(u32 key) { return key; }
__device__ __forceinline__ u64 low_word(u64 key) { return key; }
__device__ __forceinline__ u64 low_word(u128 key) { return key.lo; }
__device__ __forceinline__ u64 high_word(u32) { return 0; }
__device__ __forceinline__ u64 high_word(u64) { return 0; }
__device__ __forceinline__ u64 high_word(u128 key) { return key.hi; }

// Returns 32 bits of a key, from bit `from` on; 0 past its end.
template <class K> __device__ __forceinline__ u32 bits_from(K key, u32 from) {
  u64 lo = low_word(key), hi = high_word(key);
  if (from >= 128) return 0;
  if (from >= 64) return u32(hi >> (from - 64));
  return u32(lo >> from | (from > 32 ? hi << 1 << (63 - from) : 0));
}

// --- order ---

// Bits of `join_check`'s result.
enum Disorder : u32 {
  GROUPS_DESCEND = 1,  // a group begins after a greater one
  KEYS_DESCEND = 2,    // a key is below the one before it in its group
  KEYS_DESCEND_ANYWHERE = 4,  // a key is below the one before it, in its group or not
};

// Compares each place with the one before.
template <class K> __device__ __forceinline__ void check(const Rows& rows, const u32* order, u32* disorder) {
  u64 place = this_thread() + 1;
  u32 found = 0;
  if (place < rows.n) {
    u64 row = row_at(order, place), before = row_at(order, place - 1);
    u32 group = group_of(rows, row), group_before = group_of(rows, before);
    if (group < group_before) found |= GROUPS_DESCEND;
    if (Key<K>::less(key_of<K>(rows, row), key_of<K>(rows, before))) {
      found |= KEYS_DESCEND_ANYWHERE;
      if (group == group_before && group < rows.groups) found |= KEYS_DESCEND;
    }
  }
  u32 all = 0;
  for (u32 bit = 1; bit <= KEYS_DESCEND_ANYWHERE; bit *= 2) all |= __any_sync(~0u, (found & bit) != 0) ? bit : 0;
  // Most warps find nothing new.
  if (threadIdx.x % 32 == 0 && (all & ~*static_cast<volatile u32*>(disorder)) != 0) atomicOr(disorder, all);
}

// Sets the bits, in two words, in which any key differs from that of row 0. A thread takes 16 rows.
constexpr u32 KEYS_A_THREAD = 16;
template <class K> __device__ __forceinline__ void key_bits(const Rows& rows, u64* differ) {
  K first = key_of<K>(rows, 0);
  u64 lo = 0, hi = 0;
  u64 row = u64(blockIdx.x) * blockDim.x * KEYS_A_THREAD + threadIdx.x;
  for (u32 k = 0; k < KEYS_A_THREAD; k++, row += blockDim.x) {
    if (row >= rows.n) break;
    K key = key_of<K>(rows, row);
    lo |= low_word(key) ^ low_word(first);
    hi |= high_word(key) ^ high_word(first);
  }
  __syncwarp();
  for (int step = 16; step > 0; step /= 2) {
    lo |= __shfl_xor_sync(~0u, lo, step);
    hi |= __shfl_xor_sync(~0u, hi, step);
  }
  if (threadIdx.x % 32 != 0) return;
  if (lo) atomicOr(&differ[0], lo);
  if (hi) atomicOr(&differ[1], hi);
}

// Writes, for each place, 32 bits to sort by, from bit `from` on of: `width` bits of the key from bit `shift` on, and above them the group id.
template <class K> __device__ __forceinline__ void sort_words(const Rows& rows, const u32* order, u32 shift, u32 width, u32 from, u32* words) {
  u64 place = this_thread();
  if (place >= rows.n) return;
  u64 row = row_at(order, place);
  u32 word = 0;
  if (from < width) {
    word = bits_from(key_of<K>(rows, row), shift + from);
    if (width - from < 32) word &= (1u << (width - from)) - 1;
  }
  u64 group = group_of(rows, row);
  if (from >= width) {
    word |= from - width < 32 ? u32(group >> (from - width)) : 0;
  } else if (width - from < 32) {
    word |= u32(group << (width - from));
  }
  words[place] = word;
}

// Finds the first place of each group; starts[groups] is the end of the last one. One thread per group and one more.
KERNEL(256) join_group_starts(Rows rows, const u32* order, u32* starts) {
  u64 group = this_thread();
  if (group > rows.groups) return;
  u64 from = 0, length = rows.n;
  while (length > 0) {
    u64 half = length / 2;
    bool below = group_of(rows, row_at(order, from + half)) < group;
    from = below ? from + half + 1 : from;
    length = below ? length - half - 1 : half;
  }
  starts[group] = u32(from);
}

// --- columns in sorted order ---

KERNEL(256) join_rows(u64 n, u32* order) {
  u64 place = this_thread();
  if (place < n) order[place] = u32(place);
}

// Gathers values, or, where `fold` and `flip` are not 0, their keys.
template <class K> __device__ __forceinline__ void gather(const K* from, const u32* order, u64 n, K fold, K flip, K* to) {
  u64 place = this_thread();
  if (place < n) to[place] = Key<K>::fold(from[row_at(order, place)], fold, flip);
}

// Gathers bits, a warp a word; the bits past `n` are 0.
KERNEL(256) join_gather_bits(const u32* from, const u32* order, u64 n, u32* to) {
  u64 place = this_thread();
  u32 word = __ballot_sync(~0u, place < n && bit_at(from, row_at(order, place)));
  if (threadIdx.x % 32 == 0 && place < n) to[place / 32] = word;
}

// Counts the bits of each word, and writes 0 behind them: prefix sums of this are the set bits before each word.
KERNEL(256) join_count_bits(const u32* words, u64 count, u32* counts) {
  u64 i = this_thread();
  if (i <= count) counts[i] = i < count ? __popc(words[i]) : 0;
}

// What values of a width are added as.
template <class K> struct Addend {
  using Type = u64;
};
template <> struct Addend<u128> {
  using Type = u128;
};

__device__ __forceinline__ u64 integer(u32 bits, u32 is_signed) { return is_signed ? u64(i64(int(bits))) : bits; }
__device__ __forceinline__ u64 integer(u64 bits, u32) { return bits; }
__device__ __forceinline__ u128 integer(u128 bits, u32) { return bits; }

// Gathers integers as 64 bits, or those of 128 bits as they are, 0 for NULL, and writes 0 behind them: prefix sums of this are the sums before each place. `valid` is in sorted
// order, and null without NULLs.
template <class K>
__device__ __forceinline__ void addends(const K* from, const u32* order, const u32* valid, u64 n, u32 is_signed, typename Addend<K>::Type* to) {
  u64 place = this_thread();
  if (place > n) return;
  bool counts = place < n && (!valid || bit_at(valid, place));
  to[place] = counts ? integer(from[row_at(order, place)], is_signed) : typename Addend<K>::Type{};
}

// --- queries ---

constexpr u32 MAX_BOUNDS = 8;

enum BoundKind : u32 {
  LOWER = 1,         // keys above the bound match, otherwise those below
  AFTER_EQUAL = 2,   // the range begins or ends after the keys that equal the bound
};

// A bound of each query.
struct Bound {
  const void* keys;      // stored bits
  const u32* valid;      // a query with a NULL bound matches nothing; null without NULLs
  u64 fold[2], flip[2];  // the encoding of `keys`
  i64 shift;             // added to the stored bits, which are signed integers of 32 or 64 bits if it is not 0
  u32 kind, unused;
};

// A batch of queries. Passed to the kernel by value.
struct Search {
  const void* keys;    // of the build side in sorted order, encoded
  const u32* starts;   // of groups, and the end of the last one
  const void* ids;     // the group of each query; null if all are of group 0
  u32* overflow;       // set to 1 if a shift moves a bound beyond its type; null if all shifts are 0
  u32 narrow_ids;      // whether ids take 16 bits, otherwise 32
  u32 groups;          // an id that is not below it is of no group
  u32 bounds;
  u32 again;           // whether the search continues with the ranges that an earlier one found
  u32 prevailing;      // whether ranges extend down to the last row at or before the lower bound, of which there is one
  u32 unused;
  Bound bound[MAX_BOUNDS];
};

template <class K> __device__ __forceinline__ K load_key(const K* p) { return __ldg(p); }
template <> __device__ __forceinline__ u128 load_key(const u128* p) {
  ulonglong2 bits = __ldg(reinterpret_cast<const ulonglong2*>(p));
  return {bits.x, bits.y};
}

// Returns the first place in [from, to) whose key is not below the bound, or, if `after_equal`, is above it; `to` if there is none.
template <class K> __device__ __forceinline__ u32 place_of(const K* keys, u32 from, u32 to, K bound, bool after_equal) {
  while (from < to) {
    u32 middle = from + (to - from) / 2;
    K key = load_key(keys + middle);
    bool before = after_equal ? !Key<K>::less(bound, key) : Key<K>::less(key, bound);
    from = before ? middle + 1 : from;
    to = before ? to : middle;
  }
  return from;
}

__device__ __forceinline__ u32 shifted(u32 bits, i64 shift, bool& overflows) {
  i64 sum = i64(int(bits)) + shift;
  overflows |= sum != i64(int(sum));
  return u32(sum);
}
__device__ __forceinline__ u64 shifted(u64 bits, i64 shift, bool& overflows) {
  u64 sum = bits + u64(shift);
  overflows |= i64((bits ^ sum) & (u64(shift) ^ sum)) < 0;
  return sum;
}
__device__ __forceinline__ u128 shifted(u128 bits, i64, bool&) { return bits; }

// Returns the key of a query's bound, which is not NULL.
template <class K> __device__ __forceinline__ K bound_of(const Bound& bound, u32 q, bool& overflows) {
  K bits = shifted(static_cast<const K*>(bound.keys)[q], bound.shift, overflows);
  return Key<K>::fold(bits, Key<K>::word(bound.fold), Key<K>::word(bound.flip));
}

// Finds the range of each query: inclusive places, as `answer_*` takes them; 1 and 0 if it is empty.
template <class K> __device__ __forceinline__ void search(const Search& s, u32 m, u32* left, u32* right) {
  u32 q = u32(this_thread());
  if (q >= m) return;
  const K* keys = static_cast<const K*>(s.keys);
  u32 first = 0, behind = 0;
  if (s.again) {
    first = left[q];
    behind = right[q] + 1;
  } else {
    u32 group = id_at(s.ids, s.narrow_ids, q);
    if (group < s.groups) {
      first = s.starts[group];
      behind = s.starts[group + 1];
    }
  }
  u32 l = first, r = behind;
  bool is_valid = true, overflows = false;
  for (u32 b = 0; b < s.bounds; b++) {
    const Bound& bound = s.bound[b];
    if (bound.valid && !bit_at(bound.valid, q)) {
      is_valid = false;
      break;
    }
    u32 place = place_of(keys, l, r, bound_of<K>(bound, q, overflows), (bound.kind & AFTER_EQUAL) != 0);
    if (bound.kind & LOWER) {
      l = place;
    } else {
      r = place;
    }
  }
  if (s.prevailing && is_valid) {
    K low = Key<K>::max();
    for (u32 b = 0; b < s.bounds; b++)
      if (s.bound[b].kind & LOWER) low = bound_of<K>(s.bound[b], q, overflows);
    bool opens = true;
    for (u32 b = 0; b < s.bounds; b++)
      if (!(s.bound[b].kind & LOWER)) opens = opens && !Key<K>::less(bound_of<K>(s.bound[b], q, overflows), low);
    u32 after = opens ? place_of(keys, first, behind, low, true) : first;
    if (after > first) {
      bool empty = l >= r;
      l = empty || l > after - 1 ? after - 1 : l;
      r = empty ? after : r;
    }
  }
  if (overflows) atomicOr(s.overflow, 1u);
  bool some = is_valid && l < r;
  left[q] = some ? l : 1u;
  right[q] = some ? r - 1 : 0u;
}

// Tells which ranges are not empty.
KERNEL(256) join_matched(const u32* left, const u32* right, u32 m, u32* matched) {
  u32 q = u32(this_thread());
  u32 word = __ballot_sync(~0u, q < m && left[q] <= right[q]);
  if (threadIdx.x % 32 == 0 && q < m) matched[q / 32] = word;
}

// Counts the values of each range that are not NULL, or, if `valid` is null, all of them.
KERNEL(256) join_counts(const u32* left, const u32* right, u32 m, const u32* valid, const u32* valid_before, u64* counts) {
  u32 q = u32(this_thread());
  if (q < m) store_streamed(counts + q, u64(count_valid(valid, valid_before, left[q], right[q])));
}

__device__ __forceinline__ u64 minus(u64 a, u64 b) { return a - b; }
__device__ __forceinline__ u128 minus(u128 a, u128 b) { return {a.lo - b.lo, a.hi - b.hi - (a.lo < b.lo)}; }

// Sums each range; `sums` holds the sum before each place. A sum of no value is NULL.
template <class T>
__device__ __forceinline__ void sum_ranges(const u32* left, const u32* right, u32 m, const T* sums, const u32* valid, const u32* valid_before, T* to,
                                           u32* to_valid) {
  u32 q = u32(this_thread());
  bool some = false;
  if (q < m) {
    u32 l = left[q], r = right[q];
    some = count_valid(valid, valid_before, l, r) > 0;
    store_streamed(to + q, some ? minus(sums[u64(r) + 1], sums[l]) : T{});
  }
  u32 word = __ballot_sync(~0u, some);
  if (threadIdx.x % 32 == 0 && q < m) to_valid[q / 32] = word;
}

KERNEL(256)
join_sums_u64(const u32* left, const u32* right, u32 m, const u64* sums, const u32* valid, const u32* valid_before, u64* to, u32* to_valid) {
  sum_ranges(left, right, m, sums, valid, valid_before, to, to_valid);
}

KERNEL(256)
join_sums_u128(const u32* left, const u32* right, u32 m, const u128* sums, const u32* valid, const u32* valid_before, u128* to, u32* to_valid) {
  sum_ranges(left, right, m, sums, valid, valid_before, to, to_valid);
}

// Finds the first of the rows of each range with the greatest key; 0 where the range is empty.
template <class K> __device__ __forceinline__ void first_of_last(const K* keys, const u32* left, const u32* right, u32 m, u32* places) {
  u32 q = u32(this_thread());
  if (q >= m) return;
  u32 l = left[q], r = right[q];
  places[q] = l <= r ? place_of(keys, l, r, load_key(keys + r), false) : 0;
}

// Finds the first row of each range in the order of a column: that of its extreme, which `found` holds where `is_found`, or without one the
// first of the range. If `nulls_first`, the first NULL comes before all. 0 where the range is empty.
KERNEL(256)
join_first_ordered(const u32* left, const u32* right, u32 m, const i64* found, const u32* is_found, const u32* valid, const u32* valid_before,
                   u32 nulls_first, u32* places) {
  u32 q = u32(this_thread());
  if (q >= m) return;
  u32 l = left[q], r = right[q];
  u32 place = l <= r ? l : 0;
  if (bit_at(is_found, q)) place = u32(found[q]);
  if (nulls_first && valid && l <= r && count_valid(valid, valid_before, l, r) <= r - l) {
    // The first place up to which not all values are valid.
    u32 first = l, last = r;
    while (first < last) {
      u32 middle = first + (last - first) / 2;
      if (count_valid(valid, valid_before, l, middle) <= middle - l) {
        last = middle;
      } else {
        first = middle + 1;
      }
    }
    place = first;
  }
  places[q] = place;
}

__device__ __forceinline__ void set_zero(u32& x) { x = 0; }
__device__ __forceinline__ void set_zero(u64& x) { x = 0; }
__device__ __forceinline__ void set_zero(u128& x) { x = {0, 0}; }

enum Place : u32 { FIRST = 0, LAST = 1, FOUND = 2 };

// Takes the value at one place of each range: its first, its last (or any that `right` holds), or the one that `found` holds where `is_found`. It is NULL where the range
// is empty, nothing is found, or the value is NULL (`valid` may be null).
template <class K>
__device__ __forceinline__ void take(const u32* left, const u32* right, u32 m, u32 which, const i64* found, const u32* is_found,
                                     const K* values, const u32* valid, K* to, u32* to_valid) {
  u32 q = u32(this_thread());
  bool some = false;
  if (q < m) {
    u32 l = left[q], r = right[q];
    u64 place = which == LAST ? r : l;
    some = l <= r;
    if (which == FOUND) {
      some = bit_at(is_found, q);
      place = u64(found[q]);
    }
    K value;
    set_zero(value);
    if (some) {
      some = !valid || bit_at(valid, place);
      value = values[place];
    }
    store_streamed(to + q, value);
  }
  u32 word = __ballot_sync(~0u, some);
  if (threadIdx.x % 32 == 0 && q < m) to_valid[q / 32] = word;
}

#define JOIN(K)                                                                                                                               \
  KERNEL(256) join_check_##K(Rows rows, const u32* order, u32* disorder) { check<K>(rows, order, disorder); }                                  \
  KERNEL(256) join_key_bits_##K(Rows rows, u64* differ) { key_bits<K>(rows, differ); }                                                         \
  KERNEL(256) join_sort_words_##K(Rows rows, const u32* order, u32 shift, u32 width, u32 from, u32* words) {                                   \
    sort_words<K>(rows, order, shift, width, from, words);                                                                                    \
  }                                                                                                                                           \
  KERNEL(256) join_gather_##K(const K* from, const u32* order, u64 n, K fold, K flip, K* to) { gather<K>(from, order, n, fold, flip, to); }     \
  KERNEL(256) join_addends_##K(const K* from, const u32* order, const u32* valid, u64 n, u32 is_signed, Addend<K>::Type* to) {                 \
    addends<K>(from, order, valid, n, is_signed, to);                                                                                         \
  }                                                                                                                                           \
  KERNEL(256) join_first_of_last_##K(const K* keys, const u32* left, const u32* right, u32 m, u32* places) {                                   \
    first_of_last<K>(keys, left, right, m, places);                                                                                           \
  }                                                                                                                                           \
  KERNEL(256) join_search_##K(Search s, u32 m, u32* left, u32* right) { search<K>(s, m, left, right); }                                        \
  KERNEL(256) join_take_##K(const u32* left, const u32* right, u32 m, u32 which, const i64* found, const u32* is_found, const K* values,       \
                            const u32* valid, K* to, u32* to_valid) {                                                                         \
    take<K>(left, right, m, which, found, is_found, values, valid, to, to_valid);                                                             \
  }

JOIN(u32)
JOIN(u64)
JOIN(u128)
