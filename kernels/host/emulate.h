// The part of CUDA C++ that the kernels use, emulated on a CPU, so that tests run the same sources without a GPU.
//
// Each thread of a block is a fiber. A fiber runs until it waits at a barrier or in a collective of its warp, and continues when the threads
// that it waits for have arrived. A missing barrier gives wrong results under some order of threads, and a barrier that not all threads reach
// is reported as a deadlock. Blocks run one after another, so races between blocks are not detected.
#pragma once
#include <sys/mman.h>
#include <cmath>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>
#ifndef __x86_64__
#include <ucontext.h>
#endif

namespace emulate {

constexpr unsigned WARP = 32, MAX_THREADS = 1024;

struct Dim {
  unsigned x;
};

[[noreturn]] __attribute__((format(printf, 1, 2))) inline void fail(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::fputs("emulation: ", stderr);
  std::vfprintf(stderr, format, arguments);
  std::fputs("\n", stderr);
  std::fflush(nullptr);
  std::_Exit(1);
}

// --- switching stacks ---

#ifdef __x86_64__

// Saves the callee-saved registers on the stack. (swapcontext would also make a system call for the signal mask.)
asm(R"(
.text
emulate_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq (%rsi), %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");
extern "C" void emulate_switch(void** from, void* const* to);

class Context {
  void* top = nullptr;

 public:
  void begin(void* stack, size_t bytes, void (*entry)()) {
    void** slot = reinterpret_cast<void**>(static_cast<char*>(stack) + bytes);
    *--slot = nullptr;  // return address of `entry`, which aligns the stack as after a call
    *--slot = reinterpret_cast<void*>(entry);
    for (int saved = 0; saved < 6; saved++) *--slot = nullptr;
    top = slot;
  }
  void leave_for(Context& other) { emulate_switch(&top, &other.top); }
};

#else

class Context {
  ucontext_t context;

 public:
  void begin(void* stack, size_t bytes, void (*entry)()) {
    getcontext(&context);
    context.uc_stack.ss_sp = stack;
    context.uc_stack.ss_size = bytes;
    context.uc_link = nullptr;
    makecontext(&context, entry, 0);
  }
  void leave_for(Context& other) { swapcontext(&context, &other.context); }
};

#endif

// --- threads, warps, blocks ---

struct Warp;
// Completes a collective when all its lanes have arrived; `lanes` are those of the mask that still run.
using Collective = void (*)(Warp& warp, uint32_t lanes);

struct Thread {
  Context context;
  Dim index;
  Warp* warp;
  unsigned lane;
  bool done, in_barrier;
  // The collective that it waits in (null: none), with its argument and its result.
  Collective waits;
  const char* waits_name;
  uint32_t mask;
  uint64_t value, result;
  unsigned source;
};

struct Warp {
  Thread* threads;
  uint32_t running, waiting;  // a bit a lane; waiting in a collective
};

// The threads that can run, and their order.
class Schedule {
  uint64_t state;
  std::vector<Thread*> ready;
  size_t first = 0;

 public:
  // 0: in the order in which they became ready; 1: the latest first; otherwise random.
  unsigned seed = 0;

  void begin(unsigned new_seed) {
    seed = new_seed;
    state = seed * 0x9e3779b97f4a7c15ull + 1;
    clear();
  }
  void clear() {
    ready.clear();
    first = 0;
  }
  void add(Thread* thread) { ready.push_back(thread); }
  bool empty() const { return first == ready.size(); }
  Thread* next() {
    if (seed == 0) return ready[first++];
    if (seed > 1) {
      state ^= state << 13, state ^= state >> 7, state ^= state << 17;
      std::swap(ready[state % ready.size()], ready.back());
    }
    Thread* thread = ready.back();
    ready.pop_back();
    return thread;
  }
};

class Machine {
  static constexpr size_t STACK = 64 << 10, PAGE = 4 << 10;

  Thread threads[MAX_THREADS];
  Warp warps[MAX_THREADS / WARP];
  unsigned stacks = 0;  // threads that have one already
  Context outside;
  Schedule schedule;
  unsigned running = 0, in_barrier = 0;
  void (*call)(const void*) = nullptr;
  const void* kernel = nullptr;

 public:
  Thread* current = nullptr;
  Dim block_index{0}, block_size{0}, grid_size{0};

  template <class Kernel> void launch(unsigned blocks, unsigned size, unsigned seed, const Kernel& body) {
    if (size == 0 || size > MAX_THREADS) fail("%u threads a block", size);
    call = [](const void* kernel) { (*static_cast<const Kernel*>(kernel))(); };
    kernel = &body;
    block_size = {size};
    grid_size = {blocks};
    schedule.begin(seed);
    while (stacks < size) add_stack(threads[stacks++]);
    for (block_index.x = 0; block_index.x < blocks; block_index.x++) run_block();
  }

  void sync_block() {
    current->in_barrier = true;
    in_barrier++;
    release_barrier();
    if (current->in_barrier) pause();
  }

  uint64_t collective(Collective complete, const char* name, uint32_t mask, uint64_t value, unsigned source) {
    Thread& me = *current;
    if (!(mask >> me.lane & 1)) fail("%s: lane %u is not in its own mask %08x", name, me.lane, mask);
    me.waits = complete;
    me.waits_name = name;
    me.mask = mask;
    me.value = value;
    me.source = source;
    me.warp->waiting |= 1u << me.lane;
    release_collective(*me.warp, mask, &me);
    if (me.waits) pause();
    return me.result;
  }

 private:
  static void main_of_thread();

  void add_stack(Thread& thread) {
    void* memory = mmap(nullptr, STACK + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED || mprotect(memory, PAGE, PROT_NONE) != 0) fail("no memory for stacks");
    // The tops of the stacks are spread, as all would fall on the same lines of the cache.
    size_t spread = (&thread - threads) * 192 % PAGE;
    thread.context.begin(static_cast<char*>(memory) + PAGE, STACK - spread, main_of_thread);
  }

  void run_block() {
    running = block_size.x;
    in_barrier = 0;
    schedule.clear();
    for (unsigned i = 0; i < block_size.x; i++) {
      Thread& thread = threads[i];
      Warp& warp = warps[i / WARP];
      if (i % WARP == 0) warp = {&thread, 0, 0};
      warp.running |= 1u << i % WARP;
      thread.index = {i};
      thread.warp = &warp;
      thread.lane = i % WARP;
      thread.done = thread.in_barrier = false;
      thread.waits = nullptr;
      schedule.add(&thread);
    }
    while (!schedule.empty()) {
      current = schedule.next();
      outside.leave_for(current->context);
    }
    current = nullptr;
    if (running > 0) report_deadlock();
  }

  void pause() {
    current->context.leave_for(outside);
  }

  void end_thread() {
    Thread& me = *current;
    me.done = true;
    running--;
    me.warp->running &= ~(1u << me.lane);
    // Waiting threads wait only for threads that still run.
    release_barrier();
    for (unsigned lane = 0; lane < WARP; lane++) {
      if (!(me.warp->running >> lane & 1)) continue;
      Thread& other = me.warp->threads[lane];
      if (other.waits && (other.mask >> me.lane & 1)) release_collective(*me.warp, other.mask, &other);
    }
  }

  void release_barrier() {
    if (in_barrier == 0 || in_barrier < running) return;
    in_barrier = 0;
    for (unsigned i = 0; i < block_size.x; i++) {
      if (!threads[i].in_barrier) continue;
      threads[i].in_barrier = false;
      if (&threads[i] != current) schedule.add(&threads[i]);
    }
  }

  // Completes the collective that `like` waits in, if all its lanes have arrived.
  void release_collective(Warp& warp, uint32_t mask, const Thread* like) {
    uint32_t lanes = mask & warp.running;
    if (lanes & ~warp.waiting) return;
    for (uint32_t rest = lanes; rest; rest &= rest - 1) {
      const Thread& other = warp.threads[__builtin_ctz(rest)];
      if (other.waits != like->waits || other.mask != mask)
        fail("block %u, lanes %u and %u of a warp meet in %s (mask %08x) and %s (mask %08x)", block_index.x, like->lane, other.lane,
             like->waits_name, mask, other.waits_name, other.mask);
    }
    warp.waiting &= ~lanes;
    like->waits(warp, lanes);
    for (uint32_t rest = lanes; rest; rest &= rest - 1) {
      Thread& other = warp.threads[__builtin_ctz(rest)];
      other.waits = nullptr;
      if (&other != current) schedule.add(&other);
    }
  }

  [[noreturn]] void report_deadlock() {
    std::fprintf(stderr, "emulation: block %u is stuck:\n", block_index.x);
    unsigned told = 0;
    for (unsigned i = 0; i < block_size.x && told < 8; i++) {
      const Thread& thread = threads[i];
      if (thread.done) continue;
      told++;
      std::fprintf(stderr, "  thread %u waits in %s\n", i, thread.waits ? thread.waits_name : "__syncthreads");
    }
    fail("%u threads wait for others", running);
  }
};

inline Machine machine;

// A fiber outlives its thread: the next block's thread of the same index runs on it.
inline void Machine::main_of_thread() {
  for (;;) {
    machine.call(machine.kernel);
    machine.end_thread();
    machine.pause();
  }
}

// Runs `body`, a call of a kernel, on each thread of each block. The seed selects the order in which threads run.
template <class Kernel> void launch(unsigned blocks, unsigned threads, unsigned seed, const Kernel& body) {
  machine.launch(blocks, threads, seed, body);
}

// --- collectives ---

template <class T> uint64_t to_bits(T value) {
  static_assert(sizeof(T) <= 8, "registers are shuffled by 4 or 8 bytes");
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  return bits;
}

template <class T> T from_bits(uint64_t bits) {
  T value;
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

inline void complete_sync(Warp&, uint32_t) {}

inline void complete_shuffle(Warp& warp, uint32_t lanes) {
  constexpr uint64_t NOBODY = 0xdeadbeefdeadbeef;  // the value of a lane that takes no part is undefined
  for (uint32_t rest = lanes; rest; rest &= rest - 1) {
    Thread& thread = warp.threads[__builtin_ctz(rest)];
    thread.result = lanes >> thread.source & 1 ? warp.threads[thread.source].value : NOBODY;
  }
}

template <class Combine> void complete_reduction(Warp& warp, uint32_t lanes, uint64_t all, Combine combine) {
  for (uint32_t rest = lanes; rest; rest &= rest - 1) all = combine(all, warp.threads[__builtin_ctz(rest)]);
  for (uint32_t rest = lanes; rest; rest &= rest - 1) warp.threads[__builtin_ctz(rest)].result = all;
}

inline void complete_ballot(Warp& warp, uint32_t lanes) {
  complete_reduction(warp, lanes, 0, [](uint64_t all, const Thread& t) { return all | t.value << t.lane; });
}

inline void complete_min(Warp& warp, uint32_t lanes) {
  complete_reduction(warp, lanes, ~0ull, [](uint64_t all, const Thread& t) { return t.value < all ? t.value : all; });
}

inline void complete_max(Warp& warp, uint32_t lanes) {
  complete_reduction(warp, lanes, 0, [](uint64_t all, const Thread& t) { return t.value > all ? t.value : all; });
}

inline void complete_match(Warp& warp, uint32_t lanes) {
  for (unsigned a = 0; a < WARP; a++) {
    if (!(lanes >> a & 1)) continue;
    uint64_t same = 0;
    for (unsigned b = 0; b < WARP; b++)
      if (lanes >> b & 1) same |= uint64_t(warp.threads[a].value == warp.threads[b].value) << b;
    warp.threads[a].result = same;
  }
}

template <class T> T shuffle(const char* name, unsigned mask, T value, unsigned source) {
  return from_bits<T>(machine.collective(complete_shuffle, name, mask, to_bits(value), source));
}

inline unsigned lane() { return machine.current->lane; }

}  // namespace emulate

// --- CUDA's names ---

#define __device__
#define __global__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __restrict__ __restrict
#define __shared__ static
#define KERNEL(...) inline void

#define threadIdx (emulate::machine.current->index)
#define blockIdx (emulate::machine.block_index)
#define blockDim (emulate::machine.block_size)
#define gridDim (emulate::machine.grid_size)

inline void __syncthreads() { emulate::machine.sync_block(); }
inline void __syncwarp(unsigned mask = ~0u) { emulate::machine.collective(emulate::complete_sync, "__syncwarp", mask, 0, 0); }
inline void __threadfence() {}

// `width` splits the warp into groups that shuffle among themselves.
template <class T> T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  return emulate::shuffle("__shfl_sync", mask, value, (emulate::lane() & ~(width - 1)) | (source & (width - 1)));
}
template <class T> T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32) {
  unsigned lane = emulate::lane(), source = lane ^ bits;
  return emulate::shuffle("__shfl_xor_sync", mask, value, source / width <= lane / width ? source : lane);
}
template <class T> T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32) {
  unsigned lane = emulate::lane();
  return emulate::shuffle("__shfl_down_sync", mask, value, (lane & (width - 1)) + by < unsigned(width) ? lane + by : lane);
}
template <class T> T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32) {
  unsigned lane = emulate::lane();
  return emulate::shuffle("__shfl_up_sync", mask, value, (lane & (width - 1)) >= by ? lane - by : lane);
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
  return unsigned(emulate::machine.collective(emulate::complete_ballot, "__ballot_sync", mask, predicate != 0, 0));
}
inline int __any_sync(unsigned mask, int predicate) {
  return int(emulate::machine.collective(emulate::complete_max, "__any_sync", mask, predicate != 0, 0));
}
inline int __all_sync(unsigned mask, int predicate) {
  return int(emulate::machine.collective(emulate::complete_min, "__all_sync", mask, predicate != 0, 0));
}
template <class T> unsigned __match_any_sync(unsigned mask, T value) {
  return unsigned(emulate::machine.collective(emulate::complete_match, "__match_any_sync", mask, emulate::to_bits(value), 0));
}
inline unsigned __reduce_min_sync(unsigned mask, unsigned value) {
  return unsigned(emulate::machine.collective(emulate::complete_min, "__reduce_min_sync", mask, value, 0));
}
inline unsigned __reduce_max_sync(unsigned mask, unsigned value) {
  return unsigned(emulate::machine.collective(emulate::complete_max, "__reduce_max_sync", mask, value, 0));
}

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline int __clz(int x) { return x ? __builtin_clz(x) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll(x) : 64; }

inline double __dmul_rn(double x, double y) { return x * y; }
inline double __longlong_as_double(long long bits) { return emulate::from_bits<double>(uint64_t(bits)); }
inline long long __double_as_longlong(double x) { return (long long)emulate::to_bits(x); }

template <class T> T __ldg(const T* p) { return *p; }
template <class T> T __ldcg(const T* p) { return *p; }
template <class T> T __ldcs(const T* p) { return *p; }
template <class T> void __stcg(T* p, T value) { *p = value; }
template <class T> void __stcs(T* p, T value) { *p = value; }

template <class T> T atomicExch(T* p, T value) { return std::exchange(*p, value); }
template <class T> T atomicAdd(T* p, T value) { return std::exchange(*p, T(*p + value)); }
template <class T> T atomicOr(T* p, T value) { return std::exchange(*p, T(*p | value)); }
template <class T> T atomicAnd(T* p, T value) { return std::exchange(*p, T(*p & value)); }
template <class T> T atomicMin(T* p, T value) { return std::exchange(*p, value < *p ? value : *p); }
template <class T> T atomicMax(T* p, T value) { return std::exchange(*p, value > *p ? value : *p); }
template <class T> T atomicCAS(T* p, T expected, T value) { return std::exchange(*p, *p == expected ? value : *p); }

struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(16) ulonglong2 {
  unsigned long long x, y;
};
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline ulonglong2 make_ulonglong2(unsigned long long x, unsigned long long y) { return {x, y}; }

template <class T> T min(T a, T b) { return b < a ? b : a; }
template <class T> T max(T a, T b) { return a < b ? b : a; }
