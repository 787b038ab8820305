// Tests searches in segments of sorted keys: every result is compared with a scan of the segment.
#include "../bounds.cu"
#include <algorithm>
#include <vector>
#include "testing.h"

template <class K, class Kernel> void test(const char* name, Random& random, Kernel kernel) {
  u64 n = random.between(1, 2000), few = random.one_in(2) ? random.between(1, 20) : ~0ull;
  Buffer<K> keys(n);
  auto any_key = [&] {
    if (random.one_in(16)) return Key<K>::max();
    Wide x = Wide(random.below(few)) << random.below(sizeof(K) * 4);
    return narrow<K>(random.one_in(2) ? x : ~x);
  };
  for (u64 i = 0; i < n; i++) keys[i] = any_key();
  for (u64 from = 0, to; from < n; from = to) {
    to = random.between(from + 1, n);
    std::sort(keys.data() + from, keys.data() + to, Key<K>::less);
  }
  // One segment of all, or several where the keys ascend.
  bool whole = random.one_in(4);
  if (whole) std::sort(keys.data(), keys.data() + n, Key<K>::less);
  std::vector<u64> starts;
  for (u64 i = 0; i < n; i++)
    if (i == 0 || Key<K>::less(keys[i], keys[i - 1])) starts.push_back(i);
  starts.push_back(n);

  u32 m = u32(random.between(1, 300)), kind = u32(random.below(16));
  Buffer<u32> begin(m), end(m), left(m), right(m);
  Buffer<K> low(m), high(m);
  for (u32 q = 0; q < m; q++) {
    u64 segment = random.below(starts.size() - 1);
    begin[q] = u32(starts[segment]);
    end[q] = u32(!whole && random.one_in(8) ? begin[q] : starts[segment + 1]);
    low[q] = random.one_in(2) ? keys[random.below(n)] : any_key();
    high[q] = random.one_in(2) ? keys[random.below(n)] : any_key();
  }
  emulate::launch(blocks_for(m), 256, unsigned(random.below(6)), [&] {
    kernel(keys.data(), u32(n), m, whole ? nullptr : begin.data(), whole ? nullptr : end.data(), kind & HAS_LOW ? low.data() : nullptr,
           kind & HAS_HIGH ? high.data() : nullptr, kind, left.data(), right.data());
  });
  for (u32 q = 0; q < m; q++) {
    u64 l = 1, r = 0;
    bool some = false;
    for (u64 i = begin[q]; i < end[q]; i++) {
      Wide key = wide(keys[i]), a = wide(low[q]), b = wide(high[q]);
      if ((kind & HAS_LOW) && (kind & LOW_IS_INSIDE ? key < a : key <= a)) continue;
      if ((kind & HAS_HIGH) && (kind & HIGH_IS_INSIDE ? key > b : key >= b)) continue;
      if (!some) l = i;
      some = true;
      r = i;
    }
    if (left[q] == l && right[q] == r) continue;
    std::printf("%s: n %llu, kind %u, segment %llu..%llu, keys %s to %s: got [%llu, %llu], want [%llu, %llu]\n", name, n, kind, u64(begin[q]),
                u64(end[q]), hex(wide(low[q])).c_str(), hex(wide(high[q])).c_str(), u64(left[q]), u64(right[q]), l, r);
    std::exit(1);
  }
}

int main(int count, char** arguments) {
  int cases = count > 1 ? std::atoi(arguments[1]) : 500;
  for (int number = 0; number < cases; number++) {
    Random random(number);
    test<u32>("bounds_u32", random, bounds_u32);
    test<u64>("bounds_u64", random, bounds_u64);
    test<u128>("bounds_u128", random, bounds_u128);
  }
  std::printf("%d columns per kernel\n", cases);
}
