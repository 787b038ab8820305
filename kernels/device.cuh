// Loads and stores with cache policies. With EMULATE the sources compile for a CPU, on which tests run them (`host/emulate.h`).
#pragma once
#ifdef EMULATE
#include "host/emulate.h"
#else
// Threads a block at most, and blocks that a multiprocessor holds at least, if that is given.
#define KERNEL(...) extern "C" __global__ void __launch_bounds__(__VA_ARGS__)
#endif

// --- loads and stores with a cache policy ---
// Data that is read once must not evict data that all queries read from the L2 cache.

struct CachePolicy {
  unsigned long long once, kept;

  __device__ __forceinline__ CachePolicy() {
#ifdef EMULATE
    once = kept = 0;
#else
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(once));
    asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(kept));
#endif
  }
};

struct alignas(16) Bits128 {
  unsigned int at[4];
};

// Loads 16 bytes that are not expected to be read again soon.
__device__ __forceinline__ Bits128 load_once(const void* p, const CachePolicy& policy) {
#ifdef EMULATE
  return *static_cast<const Bits128*>(p);
#else
  Bits128 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32 {%0,%1,%2,%3}, [%4], %5;"
               : "=r"(v.at[0]), "=r"(v.at[1]), "=r"(v.at[2]), "=r"(v.at[3]) : "l"(p), "l"(policy.once));
  return v;
#endif
}

// Loads 16 bytes that are expected to be read again soon.
__device__ __forceinline__ Bits128 load_kept(const void* p, const CachePolicy& policy) {
#ifdef EMULATE
  return *static_cast<const Bits128*>(p);
#else
  Bits128 v;
  asm volatile("ld.global.nc.L2::cache_hint.v4.u32 {%0,%1,%2,%3}, [%4], %5;"
               : "=r"(v.at[0]), "=r"(v.at[1]), "=r"(v.at[2]), "=r"(v.at[3]) : "l"(p), "l"(policy.kept));
  return v;
#endif
}

template <class T> __device__ __forceinline__ T load_streamed(const T* p) {
#ifdef EMULATE
  return *p;
#else
  return __ldcs(p);
#endif
}

template <class T> __device__ __forceinline__ void store_streamed(T* p, T v) {
#ifdef EMULATE
  *p = v;
#else
  __stcs(p, v);
#endif
}
