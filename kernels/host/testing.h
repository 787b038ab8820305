// Random numbers, guarded buffers and wide integers for the tests.
#pragma once
#include <sys/mman.h>
#include <cstdio>
#include <cstdlib>
#include <string>
#include "../index.cuh"

// Pseudo-random numbers, the same in every run (splitmix64).
class Random {
  u64 state;

 public:
  explicit Random(u64 seed) : state(seed) {}
  u64 bits() {
    u64 x = state += 0x9e3779b97f4a7c15;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
  }
  u64 below(u64 bound) { return bits() % bound; }
  u64 between(u64 low, u64 high) { return low + below(high - low + 1); }
  bool one_in(u64 n) { return below(n) == 0; }
};

// Memory as a kernel gets it from the device: filled with garbage. An access past its end faults.
template <class T> class Buffer {
  static constexpr size_t PAGE = 4 << 10;
  char* memory;
  size_t pages;
  T* first;
  size_t count;

 public:
  explicit Buffer(size_t count, int garbage = 0xa5) : count(count) {
    size_t bytes = count * sizeof(T);
    pages = (bytes + PAGE - 1) / PAGE * PAGE;
    memory = static_cast<char*>(mmap(nullptr, pages + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (memory == MAP_FAILED || mprotect(memory + pages, PAGE, PROT_NONE) != 0) std::perror("mmap"), std::exit(1);
    memset(memory, garbage, pages);
    first = reinterpret_cast<T*>(memory + pages - bytes);
  }
  Buffer(Buffer&& other) : memory(other.memory), pages(other.pages), first(other.first), count(other.count) { other.memory = nullptr; }
  Buffer(const Buffer&) = delete;
  ~Buffer() {
    if (memory) munmap(memory, pages + PAGE);
  }
  T* data() { return first; }
  size_t size() const { return count; }
  T& operator[](size_t i) { return first[i]; }
};

// The number of blocks of 256 threads for `threads` threads.
inline unsigned blocks_for(u64 threads) { return unsigned((threads + 255) / 256); }

// Keys and bits of every width, as numbers.
using Wide = unsigned __int128;
inline Wide wide(u32 x) { return x; }
inline Wide wide(u64 x) { return x; }
inline Wide wide(u128 x) { return Wide(x.hi) << 64 | x.lo; }
template <class K> K narrow(Wide x);
template <> inline u32 narrow(Wide x) { return u32(x); }
template <> inline u64 narrow(Wide x) { return u64(x); }
template <> inline u128 narrow(Wide x) { return {u64(x), u64(x >> 64)}; }

inline std::string hex(Wide x) {
  char text[40];
  std::snprintf(text, sizeof text, "%llx:%016llx", u64(x >> 64), u64(x));
  return text;
}
