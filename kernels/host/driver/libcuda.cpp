// The part of NVIDIA's driver that the engine calls, with the kernels emulated on the CPU (../emulate.h): the engine's tests run without a GPU.
//
//   kernels/host/driver/build /tmp/driver
//   LD_LIBRARY_PATH=/tmp/driver RMQ_TEST_CUDA=1 RMQ_TEST_SMALL=1 RMQ_TEST_ROWS=100000 cargo test -p rmq-engine --test it cuda
//
// Everything runs when it is enqueued, so missing waits are not found. An access past the end of device memory faults.
// EMULATED_DEVICES is the number of devices (2). With RMQ_BASELINES it has the kernels of the paper's comparison, too.
#include "../../rows.cuh"
#include <sys/mman.h>
#include <map>
#include <mutex>
#include <string>
#include <tuple>

namespace build_kernels {
#include "../../build.cu"
}
#define RMQ_KEY_U32
#define RMQ_KEY_U64
#define RMQ_KEY_U128
namespace answer_kernels {
#include "../../answer.cu"
}
namespace crossing_kernels {
#include "../../crossing.cu"
}
namespace sort_kernels {
#include "../../sort.cu"
}
namespace join_kernels {
#include "../../range_join.cu"
}

namespace float_kernels {
#include "../../float_sums.cu"
}

namespace wavelet_kernels {
#include "../../wavelet_matrix.cu"
}

#ifdef RMQ_BASELINES
#include "baselines.h"
#else
#define ADD_BASELINES
#endif

namespace {

using Result = int;
constexpr Result OK = 0, OUT_OF_MEMORY = 2, NOT_FOUND = 500;

// --- kernels by name ---

struct Kernel {
  void (*call)(const Kernel&, void** arguments, unsigned blocks, unsigned threads);
  void (*function)();
};

template <class... A, size_t... I>
void call_with(void (*function)(A...), void** arguments, unsigned blocks, unsigned threads, std::index_sequence<I...>) {
  std::tuple<A...> values{*static_cast<A*>(arguments[I])...};
  emulate::launch(blocks, threads, 0, [&] { std::apply(function, values); });
}

template <class... A> Kernel kernel_of(void (*function)(A...)) {
  auto call = [](const Kernel& kernel, void** arguments, unsigned blocks, unsigned threads) {
    call_with(reinterpret_cast<void (*)(A...)>(kernel.function), arguments, blocks, threads, std::index_sequence_for<A...>());
  };
  return {call, reinterpret_cast<void (*)()>(function)};
}

const std::map<std::string, Kernel>& kernels() {
  static const std::map<std::string, Kernel> all = {
#define ADD(SPACE, NAME) {#NAME, kernel_of(SPACE::NAME)},
#define ADD_BUILD(K, C)                                                                         \
  ADD(build_kernels, build_bottom_##K##_##C) ADD(build_kernels, build_bottom_##K##_##C##_at)     \
  ADD(build_kernels, build_level_##K##_##C) ADD(build_kernels, build_level_##K##_##C##_at)
#define ADD_ANSWER(K, C, P, R)                                                                                             \
  ADD(answer_kernels, answer_##K##_##C##_##P##_##R##_value) ADD(answer_kernels, answer_##K##_##C##_##P##_##R##_position)       \
  ADD(answer_kernels, answer_##K##_##C##_##P##_##R##_both)
#define ADD_CROSSING(K, C, P) \
  ADD(crossing_kernels, crossing_##K##_##C##_##P##_first) ADD(crossing_kernels, crossing_##K##_##C##_##P##_last)
#define ADD_SHAPE(K, C) \
  ADD_BUILD(K, C) ADD_ANSWER(K, C, p32, threads) ADD_ANSWER(K, C, p64, groups) ADD_CROSSING(K, C, p32) ADD_CROSSING(K, C, p64)
#define ADD_KEY(K)                                                                                                     \
  ADD(build_kernels, build_table_##K) ADD(build_kernels, build_table_##K##_at) \
  ADD(join_kernels, join_check_##K) ADD(join_kernels, join_key_bits_##K) ADD(join_kernels, join_sort_words_##K)          \
  ADD(join_kernels, join_gather_##K) ADD(join_kernels, join_addends_##K) ADD(join_kernels, join_search_##K)              \
  ADD(join_kernels, join_take_##K) ADD(join_kernels, join_first_of_last_##K)
      ADD_SHAPE(u32, c64) ADD_SHAPE(u32, c128) ADD_SHAPE(u64, c128) ADD_SHAPE(u128, c128)
      ADD_ANSWER(u32, c128, p32, groups) ADD_ANSWER(u64, c128, p32, groups) ADD_ANSWER(u128, c128, p32, groups)
      ADD_KEY(u32) ADD_KEY(u64) ADD_KEY(u128)
      ADD(build_kernels, build_valid_words) ADD(build_kernels, build_valid_parent)
      ADD(sort_kernels, sort_count) ADD(sort_kernels, sort_scatter)
      ADD(sort_kernels, scan_reduce_u32) ADD(sort_kernels, scan_reduce_u64) ADD(sort_kernels, scan_apply_u32) ADD(sort_kernels, scan_apply_u64)
      ADD(sort_kernels, scan_reduce_u128) ADD(sort_kernels, scan_apply_u128)
      ADD(join_kernels, join_group_starts) ADD(join_kernels, join_rows) ADD(join_kernels, join_gather_bits) ADD(join_kernels, join_count_bits)
      ADD(join_kernels, join_matched) ADD(join_kernels, join_counts) ADD(join_kernels, join_sums_u64) ADD(join_kernels, join_sums_u128) ADD(join_kernels, join_first_ordered)
      ADD(float_kernels, float_gather) ADD(float_kernels, float_sum_values) ADD(float_kernels, float_sum_blocks)
      ADD(float_kernels, float_take_outliers) ADD(float_kernels, float_sums)
      ADD(wavelet_kernels, wavelet_nth_smallest) ADD(wavelet_kernels, wavelet_count_below)
      ADD_BASELINES
  };
  return all;
}

// --- memory ---

// Blocks that end at a page which cannot be accessed.
class GuardedMemory {
  static constexpr size_t PAGE = 4096;
  struct Block {
    char* map;
    size_t bytes;
  };
  std::map<char*, Block> blocks;
  std::mutex mutex;

 public:
  void* allocate(size_t bytes) {
    size_t used = (bytes + 15) / 16 * 16, pages = (used + PAGE - 1) / PAGE * PAGE;
    void* map = mmap(nullptr, pages + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED) return nullptr;
    mprotect(static_cast<char*>(map) + pages, PAGE, PROT_NONE);
    memset(map, 0xa5, pages);
    char* start = static_cast<char*>(map) + pages - used;
    std::lock_guard lock(mutex);
    blocks[start] = {static_cast<char*>(map), pages + PAGE};
    return start;
  }
  void free(void* start) {
    std::lock_guard lock(mutex);
    auto block = blocks.find(static_cast<char*>(start));
    if (block == blocks.end()) emulate::fail("memory is freed that was not allocated");
    munmap(block->second.map, block->second.bytes);
    blocks.erase(block);
  }
};

GuardedMemory memory;
std::mutex running;  // kernels run one after another

int device_count() {
  const char* count = std::getenv("EMULATED_DEVICES");
  return count ? std::atoi(count) : 2;
}

}  // namespace

extern "C" {
using Address = unsigned long long;

Result cuInit(unsigned) { return OK; }
Result cuDriverGetVersion(int* version) { return *version = 12040, OK; }
Result cuGetErrorName(Result, const char** name) { return *name = "ERROR", OK; }
Result cuGetErrorString(Result, const char** text) { return *text = "an error of the emulated driver", OK; }

Result cuDeviceGetCount(int* count) { return *count = device_count(), OK; }
Result cuDeviceGet(int* device, int ordinal) { return *device = ordinal, OK; }
Result cuDeviceGetName(char* name, int length, int) { return std::snprintf(name, size_t(length), "emulated device"), OK; }
Result cuDeviceTotalMem_v2(size_t* bytes, int) { return *bytes = size_t(4) << 30, OK; }
Result cuDeviceGetAttribute(int* value, int attribute, int) { return *value = attribute == 75 ? 9 : 0, OK; }  // compute capability 9.0
Result cuDevicePrimaryCtxRetain(void** context, int device) { return *context = reinterpret_cast<void*>(Address(device) + 1), OK; }
Result cuDevicePrimaryCtxRelease_v2(int) { return OK; }
Result cuCtxSetCurrent(void*) { return OK; }

Result cuMemGetInfo_v2(size_t* free, size_t* total) { return *free = *total = size_t(4) << 30, OK; }
Result cuMemAlloc_v2(Address* address, size_t bytes) {
  void* start = memory.allocate(bytes);
  *address = reinterpret_cast<Address>(start);
  return start ? OK : OUT_OF_MEMORY;
}
Result cuMemFree_v2(Address address) { return memory.free(reinterpret_cast<void*>(address)), OK; }
Result cuMemHostAlloc(void** start, size_t bytes, unsigned) { return *start = memory.allocate(bytes), *start ? OK : OUT_OF_MEMORY; }
Result cuMemFreeHost(void* start) { return memory.free(start), OK; }
Result cuMemcpyHtoDAsync_v2(Address to, const void* from, size_t bytes, void*) { return memcpy(reinterpret_cast<void*>(to), from, bytes), OK; }
Result cuMemcpyDtoHAsync_v2(void* to, Address from, size_t bytes, void*) { return memcpy(to, reinterpret_cast<void*>(from), bytes), OK; }
Result cuMemcpyDtoD_v2(Address to, Address from, size_t bytes) { return memcpy(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes), OK; }
Result cuCtxSynchronize() { return OK; }
Result cuMemsetD8Async(Address to, unsigned char byte, size_t bytes, void*) { return memset(reinterpret_cast<void*>(to), byte, bytes), OK; }

Result cuStreamCreate(void** stream, unsigned) { return *stream = stream, OK; }
Result cuStreamDestroy_v2(void*) { return OK; }
Result cuStreamSynchronize(void*) { return OK; }
Result cuEventCreate(void** event, unsigned) { return *event = event, OK; }
Result cuEventDestroy_v2(void*) { return OK; }
Result cuEventRecord(void*, void*) { return OK; }
Result cuEventQuery(void*) { return OK; }
Result cuEventSynchronize(void*) { return OK; }
Result cuEventElapsedTime(float* ms, void*, void*) { return *ms = 0, OK; }

Result cuModuleLoadDataEx(void** module, const void*, unsigned, void*, void**) { return *module = module, OK; }
Result cuModuleUnload(void*) { return OK; }
Result cuModuleGetFunction(const Kernel** function, void*, const char* name) {
  auto kernel = kernels().find(name);
  if (kernel == kernels().end()) return std::fprintf(stderr, "emulated driver: no kernel %s\n", name), NOT_FOUND;
  return *function = &kernel->second, OK;
}
Result cuLaunchKernel(const Kernel* kernel, unsigned blocks, unsigned, unsigned, unsigned threads, unsigned, unsigned, unsigned, void*, void** arguments,
                      void**) {
  std::lock_guard lock(running);
  kernel->call(*kernel, arguments, blocks, threads);
  return OK;
}
}
