// Runs CUDA C++ kernels on the CPU: enough of the language for this folder, with the same bits as a GPU.
//
// This file is the language; runner.hpp runs the blocks. Each is a translation unit of its own, so that the runner, which
// takes four fifths of the compiler's time, is compiled once for all kernels. In a checked build (checks.hpp), the
// kernel's unit is instrumented and the runner's is not.
//
// Compile with -ffp-contract=off: every rounding here must be one that the kernel wrote.
#pragma once
#pragma GCC diagnostic ignored "-Wunknown-pragmas"  // #pragma unroll is nvcc's

#include "standard.hpp"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __maxnreg__(...)
#define __cluster_dims__(...)
#define __grid_constant__
#define __managed__
#define __constant__
#define __align__(...) __attribute__((aligned(__VA_ARGS__)))
#define __builtin_align__(...) __attribute__((aligned(__VA_ARGS__)))
// A promise of the kernel to the compiler. A checked build evaluates it (and -fsanitize=unreachable,return).
#if defined(CUDA_ON_CPU_CHECKS)
#define __builtin_assume(...) ((__VA_ARGS__) ? (void)0 : ::cuda_on_cpu::false_assumption())
#define __builtin_assume_aligned(...) ::cuda_on_cpu::assume_aligned(__VA_ARGS__)
#else
#define __builtin_assume(...) ((void)0)
#endif
#define __assume(...) __builtin_assume(__VA_ARGS__)
#define __nv_pure__
// An operating-system thread runs one block at a time, so the block's shared memory is thread-local. A launch begins
// with all of it set to a byte chosen by the schedule: unwritten memory is as arbitrary as on a GPU.
#define __shared__ static thread_local
// The dynamic shared memory of the launch, aligned to 1024.
#define DYNAMIC_SHARED(NAME) uint8_t* const NAME = cuda_on_cpu::dynamic_shared()

// An address in the library that this is compiled into, even if others are loaded.
[[maybe_unused]] static void cuda_on_cpu_here() {}

// Attributes for functions of the runner, here and there, and for functions that call them: a checked build must find
// the kernel's line in their return address.
#define IN_RUNNER __attribute__((visibility("hidden"), noinline))
#define TO_RUNNER inline __attribute__((always_inline))

// A checked build runs on one operating-system thread. Otherwise each such thread runs blocks; `__thread` instead of
// thread_local: these need no constructor, and so no check for one on each use.
#if defined(CUDA_ON_CPU_CHECKS)
#define PER_THREAD
#define OF_THREAD __attribute__((visibility("hidden")))
#else
#define PER_THREAD __thread
#define OF_THREAD __thread __attribute__((visibility("default"), tls_model("initial-exec")))
#endif

namespace cuda_on_cpu {

struct Dim3 {
    unsigned x = 1, y = 1, z = 1;
    uint64_t count() const { return (uint64_t)x * y * z; }
    Dim3 at(uint64_t i) const { return {(unsigned)(i % x), (unsigned)(i / x % y), (unsigned)(i / x / y)}; }
    template <class T, class = decltype(T{1u, 1u, 1u}.z)>
    operator T() const { return T{x, y, z}; }  // uint3, dim3
};

// ---- what the runner does for a kernel -------------------------------------------------------------------------------

IN_RUNNER void sync_block();
IN_RUNNER void sync_warp(uint32_t mask);
// The number of the block's threads that pass true, once all that have not exited have called it.
IN_RUNNER uint32_t sync_block_count(bool value);
// Barrier `id` (0 … 15) of a number of threads, in whole warps; 0: all threads.
IN_RUNNER void sync_named(int id, int threads);
IN_RUNNER void arrive_named(int id, int threads);
IN_RUNNER int lane();
IN_RUNNER uint32_t active_lanes();  // lanes of the warp at the same place, one bit each
// Instructions of a warp that all lanes of a mask must execute, unless they have exited. MATRIX needs all 32.
enum Way : uint32_t {
    SYNC, SHUFFLE, SHUFFLE_UP, SHUFFLE_DOWN, SHUFFLE_XOR, BALLOT, ANY, ALL, MATCH_ANY, MATCH_ALL, REDUCE, MATRIX
};
// The value of another lane of the mask.
IN_RUNNER uint64_t exchange(uint64_t value, int source_lane, uint32_t mask, Way way);
// The value of the lane that a shuffle names in parts of the warp of `width` lanes, by its number, the distance to it or
// the bits in which the two differ.
IN_RUNNER uint64_t shuffle(uint64_t value, int operand, uint32_t mask, Way way, int width);
// The values of all lanes of the mask, and in [32] the lanes that passed one; valid until the lane's exchange after the
// next.
IN_RUNNER const uint64_t* gather(uint64_t value, uint32_t mask = ~0u, Way way = MATRIX);
// The kernel ends its launch, with a reason in words.
[[noreturn]] IN_RUNNER void trap(const char* why);
IN_RUNNER uint64_t clock_now();
IN_RUNNER uint8_t* dynamic_shared();
// Shared memory is within 2^31 bytes of its start, so an address in it is identified by its lower half. The .shared
// window is elsewhere, so that an unconverted address is not a valid generic address.
constexpr uint32_t SHARED_WINDOW = 0x5A000000;
inline uint32_t to_shared_address(const void* p) { return (uint32_t)(uintptr_t)p + SHARED_WINDOW; }
IN_RUNNER void* of_shared_address(uint32_t address);

// Copies of this thread, in groups; the last `zeros` bytes become 0. `past_l1`: cp.async.cg, which only copies 16
// bytes.
IN_RUNNER void copy_later(void* to, const void* from, uint64_t bytes, uint64_t zeros = 0, bool past_l1 = false);
IN_RUNNER void commit_copies();
IN_RUNNER void wait_copies(unsigned pending);

// State spaces of memory (PTX ISA 9.0, 5.1), one bit each. LOCAL includes parameters.
enum Space : uint32_t { GENERIC = 0, GLOBAL = 1, SHARED = 2, LOCAL = 4, CONSTANT = 8 };

// An access to a number of bytes, whose address must be a multiple of it, even if it is made in parts.
#if defined(CUDA_ON_CPU_CHECKS)
IN_RUNNER void must_align(const void* at, uint64_t bytes);
// An instruction that names a space needs addresses in it (PTX ISA 9.0, 6.4.1).
IN_RUNNER void must_lie_in(Space space, const void* at);
// ld.global.nc: reads memory that the launch does not write.
IN_RUNNER void read_as_constant(const void* at, uint64_t bytes);
IN_RUNNER void false_assumption();
IN_RUNNER void* assume_aligned(const void* at, uint64_t alignment, uint64_t past = 0);
#else
inline void must_align(const void*, uint64_t) {}
inline void must_lie_in(Space, const void*) {}
inline void read_as_constant(const void*, uint64_t) {}
#endif

// A barrier with phases; a phase ends when all threads have arrived and all expected bytes have been copied.
struct Phases;
IN_RUNNER Phases* phases(const void* at, int arrivals);
IN_RUNNER void arrive(Phases* phases, int bytes);
IN_RUNNER void wait_phase(Phases* phases, int parity);
IN_RUNNER void bulk_copy(void* to, const void* from, int bytes, Phases* phases);

// A product of a warp whose operands are read and whose sums are written at some time before the wait for its group.
struct WarpProduct {
    void (*compute)(const WarpProduct&);
    const uint32_t* a[32];
    float* d[32];
    const uint8_t* b;
    unsigned group;
};
IN_RUNNER void multiply(WarpProduct& product);
IN_RUNNER void commit_products();
IN_RUNNER void wait_products(unsigned pending);

// The kind of a strong operation: atomic, or a load or store that is volatile, relaxed, acquire or release. UNREAD: its
// result does not depend on the old value. OF_ONE_BLOCK: it is atomic only among threads of its block. IN_HALVES: each
// 2 bytes are updated separately. OF_ANY_SIZE: it may overlap with those of other sizes.
enum Strong : uint32_t { LOADS = 1, STORES = 2, UNREAD = 4, OF_ONE_BLOCK = 8, IN_HALVES = 16, OF_ANY_SIZE = 32 };

// Called before and after a strong operation: if it changed nothing, this thread may be waiting for others, which then
// run. And fences, of the whole GPU or of a thread block.
IN_RUNNER void before_atomic(const void* at, int size, uint32_t how);
IN_RUNNER void after_atomic(bool changed);
// Called before a load that may be repeated until another thread changes the value.
IN_RUNNER void may_wait(const void* at);
IN_RUNNER void fence(bool of_gpu);
// fence.proxy.async: everything visible to this thread is ordered before later bulk copies.
IN_RUNNER void proxy_fence();

// ---- launch --------------------------------------------------------------------------------------------------------

// The memory passed to a launch. hosts/cpu_host.py has the same structs. With a `content`, the memory is sparse: pages
// are created on first access, and the content repeats in it every `period` bytes, up to its last `zeros` bytes, which
// are zero. Inputs then cannot be written. It begins at a page, the operand `lead` bytes behind.
struct Range {
    uint64_t begin, size;
    const uint8_t* content;
    uint64_t period, zeros;
    uint32_t output, lead;
};

enum Order : uint32_t { ASCENDING = 0, DESCENDING = 1, SEEDED = 2 };

// The order in which threads and blocks run, and when asynchronous copies and products complete.
struct Request {
    uint32_t order;
    uint32_t fill;  // the byte in unwritten shared memory
    uint64_t seed;
    const Range* ranges;
    uint32_t n_ranges, page;  // bytes of a page
    uint64_t alone;           // 1 + the number of the only block that runs; 0: all run
    uint64_t* made;           // addresses of the created pages of sparse memory, up to `most_made`
    uint64_t most_made;
    uint32_t in_turn;         // blocks run one after another, because the order of their float additions matters
    uint32_t converts;        // convert floats to integers like this processor, even where a GPU differs
    uint64_t some;            // about how many blocks run in ascending order, chosen by the seed; 0: all. It ends as
                              // WAITING if one might depend on others: at its first strong operation
    const uint64_t* watched;  // addresses of numbers, `n_watched`
    uint64_t* writers;        // of a launch without `some`, set to the blocks that may have changed them; with it, these
    uint64_t n_watched, n_writers;  // blocks run too
};

// UNFENCED: a race with a bulk copy that barriers do not end.
enum Kind : uint32_t {
    RACE = 1, OUTSIDE = 2, UNSET = 3, MISALIGNED = 4, OVERFLOWS = 5, DIVERGENT = 6, INTO_INPUT = 7, UNFENCED = 8,
    SHIFT = 9, DIVISION = 10, NO_VALUE = 11, LEFT_OUT = 12, MASK = 13, OPERAND = 14, ASSUMPTION = 15,
    PAST_VARIABLE = 16
};

// The kind of an access. UPDATES: an atomic operation.
enum Does : uint32_t { READ = 0, WROTE = 1, UPDATES = 2 };

struct Finding {
    uint32_t kind, writes[2], thread[2], block[2], size;
    uint64_t address, at[2];  // addresses of instructions are relative to the library
    char text[96];
};

enum Access : uint32_t { READS = 0, WRITES = 1, OF_STACK = 2 };

// The fault that ended a launch: a signal and the address that the kernel accessed; or the finding of a checked build.
struct Report {
    int32_t signal;
    uint32_t access, n_findings, n_made;
    uint64_t address;
    Finding findings[16];
    uint32_t adds_floats, unused;  // the kernel may add floats by atomic operations, in an undefined order
    char why[200];                 // of TRAPPED and UNLIKE_A_GPU
};

// WAITING: thread blocks wait for others that do not run. UNLIKE_A_GPU: the kernel does something for which this
// processor and a GPU differ.
enum Outcome {
    DONE = 0, STUCK = 1, OUTSIDE_SHARED = 2, CRASHED = 3, FOUND = 4, TOO_MUCH = 5, TRAPPED = 6, WAITING = 7,
    UNLIKE_A_GPU = 8
};

// A thread of the kernel: body(argument).
IN_RUNNER int launch_blocks(Dim3 grid, Dim3 block, size_t shared, int threads, void (*body)(const void*),
                            const void* argument, void (*here)(), const Request* request, Report* report);

// Writing it makes the loader allocate the library's thread-local variables, its shared memory, for this thread.
static thread_local volatile char has_thread_locals;

// Whether a function of this unit adds floats by atomic operations: set when the library is loaded.
static bool adds_floats = false;
struct AddsFloats {
    AddsFloats() { adds_floats = true; }
};

template <class... Args>
struct Launch {
    void (*kernel)(Args...);
    void** args;

    template <size_t... I>
    __attribute__((no_sanitize("thread"), no_profile_instrument_function)) void call(std::index_sequence<I...>) const {
        kernel(*(std::remove_reference_t<Args>*)args[I]...);
    }
    __attribute__((no_sanitize("thread"), no_profile_instrument_function)) static void body(const void* launch) {
        ((const Launch*)launch)->call(std::index_sequence_for<Args...>{});
    }
};

// args[i] points to the value of parameter i, as in cuLaunchKernel; `shared` bytes of dynamic shared memory. Returns an
// Outcome: STUCK after a barrier that some threads of a block never reached.
template <class... Args>
__attribute__((no_sanitize("thread"))) int launch(void (*kernel)(Args...), const unsigned* grid, const unsigned* block,
                                                  void** args, unsigned shared, int threads, const Request* request,
                                                  Report* report) {
    has_thread_locals = 0;
    const Launch<Args...> one{kernel, args};
    Request as_asked = *request;
    as_asked.in_turn = adds_floats;
    const int outcome = launch_blocks({grid[0], grid[1], grid[2]}, {block[0], block[1], block[2]}, shared, threads,
                                      &Launch<Args...>::body, &one, &cuda_on_cpu_here, &as_asked, report);
    report->adds_floats = adds_floats;
    return outcome;
}

template <class T>
uint64_t to_slot(T v) {
    static_assert(sizeof(T) <= 8, "a warp exchanges words of at most 8 bytes");
    uint64_t slot = 0;
    memcpy(&slot, &v, sizeof v);
    return slot;
}

template <class T>
T from_slot(uint64_t slot) {
    T v;
    memcpy(&v, &slot, sizeof v);
    return v;
}

}  // namespace cuda_on_cpu

// Defined in of_thread.hpp.
extern OF_THREAD cuda_on_cpu::Dim3 threadIdx, blockIdx, blockDim, gridDim;
namespace cuda_on_cpu {
class BlockRunner;
extern OF_THREAD BlockRunner* runner;
}  // namespace cuda_on_cpu

// Defines an entry point for kernel NAME that the harness can call.
#define CPU_KERNEL(NAME)                                                                              \
    extern "C" __attribute__((visibility("default"))) int NAME##_launch(                              \
        const unsigned* grid, const unsigned* block, void** args, unsigned shared, int threads,       \
        const cuda_on_cpu::Request* request, cuda_on_cpu::Report* report) {                           \
        return cuda_on_cpu::launch(NAME, grid, block, args, shared, threads, request, report);        \
    }

// ---- the built-in functions ----------------------------------------------------------------------------------------

TO_RUNNER void __syncthreads() { cuda_on_cpu::sync_block(); }
#include "warp.hpp"

#include "cuda_math.hpp"
#include "cuda_simd.hpp"

namespace cuda_on_cpu {

inline float half_to_float(uint16_t h) {
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16, magnitude = h & 0x7FFF;
    float f;
    if (magnitude >= 0x7C00) {  // infinity, NaN
        const uint32_t bits = sign | 0x7F800000 | (magnitude & 0x3FF) << 13;
        memcpy(&f, &bits, 4);
        return f;
    }
    // Read as a float, exponent and significand are the value times 2^-112, also for subnormals.
    uint32_t bits = magnitude << 13;
    memcpy(&f, &bits, 4);
    f *= 0x1p112f;
    memcpy(&bits, &f, 4);
    bits |= sign;  // not a branch: the sign of a scale is practically random
    memcpy(&f, &bits, 4);
    return f;
}

inline uint16_t float_to_half(float f) {
    uint32_t bits;
    memcpy(&bits, &f, 4);
    const uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7FFFFFFF;
    if (magnitude > 0x7F800000) return 0x7FFF;                        // NaN, as cvt.rn.f16.f32 writes it
    if (magnitude >= 0x477FF000) return (uint16_t)(sign | 0x7C00);    // 65520 and up round to infinity
    if (magnitude < 0x38800000) {                                     // below 2^-14: a subnormal half, or zero
        float shifted;                                                // 0.5 has an ulp of 2^-24, a subnormal half's
        memcpy(&shifted, &magnitude, 4);
        shifted += 0.5f;
        uint32_t low;
        memcpy(&low, &shifted, 4);
        return (uint16_t)(sign | (low - 0x3F000000));
    }
    const uint32_t odd = magnitude >> 13 & 1;                         // ties go to even
    return (uint16_t)(sign | ((magnitude - 0x38000000 + 0xFFF + odd) >> 13));
}

}  // namespace cuda_on_cpu

#include "atomics.hpp"
