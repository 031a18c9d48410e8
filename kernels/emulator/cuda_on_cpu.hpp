// Runs CUDA C++ kernels on the CPU: enough of the language for this folder, with the same bits as a GPU.
//
// A block's threads run one after the other on one operating-system thread. A thread that reaches a barrier or a warp
// exchange must wait for others that have not run yet, so each runs on a fiber: a stack of its own, switched by hand.
// A fiber that never had to wait goes straight on with the next thread, so a kernel without barriers costs one
// fiber a block and runs at the speed of plain calls. Blocks are spread over operating-system threads.
//
// Compile with -ffp-contract=off: every rounding here is one that the kernel asked for.
#pragma once
#pragma GCC diagnostic ignored "-Wunknown-pragmas"  // #pragma unroll is nvcc's

#include "standard.hpp"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __restrict__ __restrict
// One block at a time runs on an operating-system thread, so its shared memory is that thread's. A launch begins with
// UNSET in it: what no thread has written is a NaN, a large word or -1, as good as what a GPU has there.
#define __shared__ static thread_local
// Bytes at a multiple of 1024, as many as the launch was given.
#define DYNAMIC_SHARED(NAME) uint8_t* const NAME = cuda_on_cpu::runner->dynamic_shared()

// An address in the library that this is compiled into, whatever others have been loaded.
[[maybe_unused]] static void cuda_on_cpu_here() {}

namespace cuda_on_cpu {

struct Dim3 {
    unsigned x = 1, y = 1, z = 1;
    uint64_t count() const { return (uint64_t)x * y * z; }
    Dim3 at(uint64_t i) const { return {(unsigned)(i % x), (unsigned)(i / x % y), (unsigned)(i / x / y)}; }
};

// ---- context switch ------------------------------------------------------------------------------------------------

#if defined(__x86_64__)
// Saves what the System V ABI preserves across a call, stores the stack pointer in *from, continues at `to`.
extern "C" void cuda_on_cpu_switch(void** from, void* to);
asm(R"(
.text
.weak cuda_on_cpu_switch
.type cuda_on_cpu_switch, @function
cuda_on_cpu_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size cuda_on_cpu_switch, .-cuda_on_cpu_switch
)");

inline void* first_frame(char* top, void (*entry)()) {
    void** sp = (void**)((uintptr_t)top & ~(uintptr_t)15);
    *--sp = nullptr;         // entry never returns; keeps the stack aligned as after a call
    *--sp = (void*)entry;    // popped by ret
    for (int i = 0; i < 6; ++i) *--sp = nullptr;
    return sp;
}
#endif

#if defined(__SANITIZE_ADDRESS__)
extern "C" void __sanitizer_start_switch_fiber(void** fake_stack, const void* bottom, size_t size);
extern "C" void __sanitizer_finish_switch_fiber(void* fake_stack, const void** bottom, size_t* size);
extern "C" void __asan_unpoison_memory_region(const volatile void* at, size_t size);
#endif

struct Context {
#if defined(__x86_64__)
    void* sp = nullptr;
#else
    ucontext_t context;
#endif
    void* fake_stack = nullptr;
    const void* bottom = nullptr;
    size_t size = 0;

    void prepare(char* stack, size_t stack_size, void (*entry)()) {
        bottom = stack;
        size = stack_size;
        fake_stack = nullptr;
#if defined(__SANITIZE_ADDRESS__)
        // Frames that never returned may have left their marks there.
        __asan_unpoison_memory_region(stack, stack_size);
#endif
#if defined(__x86_64__)
        sp = first_frame(stack + stack_size, entry);
#else
        getcontext(&context);
        context.uc_stack.ss_sp = stack;
        context.uc_stack.ss_size = stack_size;
        context.uc_link = nullptr;
        makecontext(&context, entry, 0);
#endif
    }

    void switch_to(Context& next) {
#if defined(__SANITIZE_ADDRESS__)
        __sanitizer_start_switch_fiber(&fake_stack, next.bottom, next.size);
#endif
#if defined(__x86_64__)
        cuda_on_cpu_switch(&sp, next.sp);
#else
        swapcontext(&context, &next.context);
#endif
#if defined(__SANITIZE_ADDRESS__)
        __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#endif
    }
};

// ---- barriers ------------------------------------------------------------------------------------------------------

struct Barrier {
    int alive = 0, arrived = 0;
    unsigned generation = 0;

    bool arrive() {  // true for the last one: nobody needs to wait
        if (++arrived < alive) return false;
        release();
        return true;
    }
    void leave() {  // an exited thread is not waited for
        if (--alive > 0 && arrived == alive) release();
    }
    void release() {
        arrived = 0;
        ++generation;
    }
};

struct Warp : Barrier {
    // Two sets of slots: a lane may already write its next value while others still read this one's.
    uint64_t slots[2][32];
};

struct Fiber {
    Context context;
    char* stack = nullptr;
    const Barrier* waits_for = nullptr;
    unsigned generation = 0;
    uint64_t thread = 0;
    bool idle = true;
};

// ---- one block on one operating-system thread ----------------------------------------------------------------------

#if defined(__SANITIZE_ADDRESS__)
constexpr size_t STACK_BYTES = 512 << 10;
#else
constexpr size_t STACK_BYTES = 64 << 10;
#endif

constexpr int UNSET = 0xFF;  // of each byte

// Dynamic shared memory: the most that any card gives a block, and what lies before and after it here.
constexpr size_t MOST_SHARED = 232448, SHARED_GUARD = 4096;

// Fills this library's zero-initialized thread-local variables with UNSET: the shared memory of this thread's blocks,
// and `runner`, which is to be set again. Elsewhere than on Linux they stay as they are.
inline void unset_shared() {
#if defined(__linux__)
    const auto fill = [](dl_phdr_info* library, size_t, void* inside) {
        const ElfW(Phdr) *tls = nullptr;
        bool ours = false;
        for (int i = 0; i < library->dlpi_phnum; ++i) {
            const auto& part = library->dlpi_phdr[i];
            if (part.p_type == PT_TLS) tls = &part;
            if (part.p_type == PT_LOAD && (uintptr_t)inside - library->dlpi_addr - part.p_vaddr < part.p_memsz) ours = true;
        }
        if (!ours) return 0;
        if (tls && library->dlpi_tls_data)
            memset((char*)library->dlpi_tls_data + tls->p_filesz, UNSET, tls->p_memsz - tls->p_filesz);
        return 1;
    };
    dl_iterate_phdr(fill, (void*)&cuda_on_cpu_here);
#endif
}

// A stack and its guard page are two mappings, of which Linux grants a process 65,530: with blocks of 1024 threads, 32
// workers would need more. So workers are limited, not stacks unguarded.
constexpr uint64_t MOST_FIBERS = 24000;

// Thread-local variables are static: an inline one would be that of the first library that the process loaded, and
// writing it would not make the loader give this thread those of this library, which unset_shared() fills.
class BlockRunner;
static thread_local BlockRunner* runner = nullptr;

}  // namespace cuda_on_cpu

static thread_local cuda_on_cpu::Dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace cuda_on_cpu {

class BlockRunner {
  public:
    ~BlockRunner() {
        for (Fiber* f : fibers_) {
#if defined(__SANITIZE_ADDRESS__)
            // A fiber never returns, so its last frames keep their marks, and they would outlive the mapping.
            __asan_unpoison_memory_region(f->stack, STACK_BYTES);
#endif
            munmap(f->stack - GUARD, STACK_BYTES + GUARD);
            delete f;
        }
    }

    // Returns false where threads wait for a barrier that the others never reach.
    template <class Call>
    bool run(const Call& call) {
        call_ = [](const void* c) { (*(const Call*)c)(); };
        argument_ = &call;
        threads_ = blockDim.count();
        next_ = finished_ = 0;
        block_ = Barrier{(int)threads_};
        for (Barrier& b : named_) b = Barrier{};
        warps_.assign((threads_ + 31) / 32, Warp{});
        for (uint64_t w = 0; w < warps_.size(); ++w) warps_[w].alive = (int)std::min<uint64_t>(32, threads_ - 32 * w);
        used_ = 0;
        while (finished_ < threads_) {
            bool moved = false;
            for (size_t i = 0; i < used_; ++i) {
                Fiber* f = fibers_[i];
                if (f->idle || f->waits_for->generation == f->generation) continue;
                resume(f);
                moved = true;
            }
            while (next_ < threads_) {
                resume(fresh());
                moved = true;
            }
            if (!moved) return false;
        }
        return true;
    }

    void wait(Barrier& barrier) {
        Fiber* f = current_;
        f->waits_for = &barrier;
        f->generation = barrier.generation;
        if (barrier.arrive()) return;
        f->context.switch_to(main_);
    }

    uint64_t exchange(uint64_t value, int source_lane) {
        Warp& warp = warps_[current_->thread / 32];
        uint64_t* slots = warp.slots[warp.generation & 1];
        slots[current_->thread % 32] = value;
        wait(warp);
        return slots[source_lane & 31];
    }

    // What all lanes of the warp have given; valid until the lane's exchange after the next. The last lane to arrive
    // goes on first.
    const uint64_t* gather(uint64_t value) {
        Warp& warp = warps_[current_->thread / 32];
        uint64_t* slots = warp.slots[warp.generation & 1];
        slots[current_->thread % 32] = value;
        wait(warp);
        return slots;
    }

    // Until the barrier's next phase, without arriving at it.
    void sleep(const Barrier& barrier) {
        current_->waits_for = &barrier;
        current_->generation = barrier.generation;
        current_->context.switch_to(main_);
    }

    Barrier& block() { return block_; }
    Barrier& named(int id, int threads) {
        named_[id].alive = threads;
        return named_[id];
    }
    Warp& warp() { return warps_[current_->thread / 32]; }
    int lane() const { return (int)(current_->thread % 32); }

    std::map<const void*, Barrier> mbarriers;  // of the running block; the next one's init takes their places

    uint8_t* dynamic_shared() {
        if (!shared_) {
            // further away than the guards lies memory that nobody may touch
            void* p = mmap(nullptr, SHARED_WALL + SHARED_ROOM + SHARED_WALL, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            if (p == MAP_FAILED || mprotect((uint8_t*)p + SHARED_WALL, SHARED_ROOM, PROT_READ | PROT_WRITE) != 0) {
                fputs("cuda_on_cpu: no memory for shared memory\n", stderr);
                abort();
            }
            shared_.reset((uint8_t*)p + SHARED_WALL);
            memset(shared_.get(), UNSET, SHARED_ROOM);
        }
        return shared_.get() + SHARED_GUARD;
    }
    // Whether no block has written outside the bytes of dynamic shared memory that it was given.
    bool kept_within(size_t shared) const {
        if (!shared_) return true;
        const auto unset = [](uint8_t byte) { return byte == UNSET; };
        const uint8_t *all = shared_.get(), *begin = all + SHARED_GUARD;
        return std::all_of(all, begin, unset) &&
               std::all_of(begin + std::min(shared, MOST_SHARED), all + SHARED_ROOM, unset);
    }

  private:
    static constexpr size_t GUARD = 4096, SHARED_ROOM = SHARED_GUARD + MOST_SHARED + SHARED_GUARD;
    static constexpr size_t SHARED_WALL = 8 << 20;  // a multiple of any page's size
    struct Unmap {
        void operator()(uint8_t* p) const { munmap(p - SHARED_WALL, SHARED_WALL + SHARED_ROOM + SHARED_WALL); }
    };

    Fiber* fresh() {
        if (used_ == fibers_.size()) {
            auto* f = new Fiber;
            void* p = mmap(nullptr, STACK_BYTES + GUARD, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            if (p == MAP_FAILED || mprotect(p, GUARD, PROT_NONE) != 0) {
                fputs("cuda_on_cpu: no memory for a thread's stack\n", stderr);
                abort();
            }
            f->stack = (char*)p + GUARD;
            fibers_.push_back(f);
        }
        Fiber* f = fibers_[used_++];
        f->context.prepare(f->stack, STACK_BYTES, &BlockRunner::fiber_main);
        f->idle = false;
        return f;
    }

    void resume(Fiber* f) {
        current_ = f;
        threadIdx = blockDim.at(f->thread);
        main_.switch_to(f->context);
    }

    static void fiber_main() {
        BlockRunner* self = runner;
        Fiber* f = self->current_;
#if defined(__SANITIZE_ADDRESS__)
        __sanitizer_finish_switch_fiber(nullptr, &self->main_.bottom, &self->main_.size);
#endif
        while (self->next_ < self->threads_) {
            f->thread = self->next_++;
            threadIdx = blockDim.at(f->thread);
            self->call_(self->argument_);
            ++self->finished_;
            self->block_.leave();
            self->warps_[f->thread / 32].leave();
        }
        f->idle = true;
        f->context.switch_to(self->main_);
        abort();  // a finished fiber is never resumed
    }

    void (*call_)(const void*) = nullptr;
    const void* argument_ = nullptr;
    uint64_t threads_ = 0, next_ = 0, finished_ = 0;
    Barrier block_, named_[16];
    std::vector<Warp> warps_;
    std::vector<Fiber*> fibers_;
    size_t used_ = 0;
    Fiber* current_ = nullptr;
    Context main_;
    std::unique_ptr<uint8_t, Unmap> shared_;
};

// ---- launch --------------------------------------------------------------------------------------------------------

enum Outcome { DONE = 0, STUCK = 1, OUTSIDE_SHARED = 2 };

template <class... Args, size_t... I>
Outcome run_blocks(void (*kernel)(Args...), void** args, std::index_sequence<I...>, Dim3 grid, Dim3 block,
                   size_t shared, std::atomic<uint64_t>& next, uint64_t chunk) {
    BlockRunner own;
    runner = &own;  // now this thread has the variables
    unset_shared();
    runner = &own;
    gridDim = grid;
    blockDim = block;
    const auto call = [&] { kernel(*(std::remove_reference_t<Args>*)args[I]...); };
    const uint64_t blocks = grid.count();
    bool ok = true;
    for (uint64_t first; ok && (first = next.fetch_add(chunk)) < blocks;) {
        for (uint64_t b = first; ok && b < std::min(first + chunk, blocks); ++b) {
            blockIdx = grid.at(b);
            ok = own.run(call);
        }
    }
    runner = nullptr;
    return !ok ? STUCK : own.kept_within(shared) ? DONE : OUTSIDE_SHARED;
}

// args[i] points to the value of parameter i, as in cuLaunchKernel; `shared` bytes of dynamic shared memory. Returns
// an Outcome: STUCK after a barrier that some threads of a block never reached.
template <class... Args>
int launch(void (*kernel)(Args...), const unsigned* grid3, const unsigned* block3, void** args, unsigned shared,
           int threads) {
    const Dim3 grid{grid3[0], grid3[1], grid3[2]}, block{block3[0], block3[1], block3[2]};
    const uint64_t blocks = grid.count();
    const uint64_t most = std::min<uint64_t>(blocks / 4, MOST_FIBERS / std::max<uint64_t>(1, block.count()));
    const int workers = (int)std::max<uint64_t>(1, std::min<uint64_t>(threads, most));
    const uint64_t chunk = std::max<uint64_t>(1, blocks / (16 * (uint64_t)workers));
    std::atomic<uint64_t> next{0};
    std::atomic<int> worst{DONE};
    const auto work = [&] {
        const int found = run_blocks(kernel, args, std::index_sequence_for<Args...>{}, grid, block, shared, next, chunk);
        if (found != DONE) worst = found;
    };
    std::vector<std::thread> pool;
    for (int i = 1; i < workers; ++i) pool.emplace_back(work);
    work();
    for (auto& t : pool) t.join();
    return worst;
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

// Gives kernel NAME an entry point that the harness can call.
#define CPU_KERNEL(NAME)                                                                                        \
    extern "C" int NAME##_launch(const unsigned* grid, const unsigned* block, void** args, unsigned shared,     \
                                 int threads) {                                                                 \
        return cuda_on_cpu::launch(NAME, grid, block, args, shared, threads);                                   \
    }

// ---- the built-in functions ----------------------------------------------------------------------------------------
// Warp functions take part with every lane that has not exited; the mask is the caller's promise of just that.

inline void __syncthreads() { cuda_on_cpu::runner->wait(cuda_on_cpu::runner->block()); }
inline void __syncwarp(unsigned = 0xFFFFFFFF) { cuda_on_cpu::runner->wait(cuda_on_cpu::runner->warp()); }

template <class T>
T __shfl_sync(unsigned, T v, int lane, int width = 32) {
    const int self = cuda_on_cpu::runner->lane();
    return cuda_on_cpu::from_slot<T>(
        cuda_on_cpu::runner->exchange(cuda_on_cpu::to_slot(v), (self & ~(width - 1)) | (lane & (width - 1))));
}

template <class T>
T __shfl_xor_sync(unsigned, T v, int mask) {
    const int self = cuda_on_cpu::runner->lane();
    return cuda_on_cpu::from_slot<T>(cuda_on_cpu::runner->exchange(cuda_on_cpu::to_slot(v), self ^ mask));
}

template <class T>
T __shfl_down_sync(unsigned, T v, unsigned delta, int width = 32) {
    const int self = cuda_on_cpu::runner->lane();
    const int source = (self & (width - 1)) + (int)delta < width ? self + (int)delta : self;
    return cuda_on_cpu::from_slot<T>(cuda_on_cpu::runner->exchange(cuda_on_cpu::to_slot(v), source));
}

inline float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fdiv_rn(float a, float b) { return a / b; }

inline float __uint_as_float(uint32_t u) {
    float f;
    memcpy(&f, &u, 4);
    return f;
}

inline uint32_t __float_as_uint(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

struct alignas(8) uint2 { uint32_t x, y; };
struct alignas(16) uint4 { uint32_t x, y, z, w; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };

// Bytes of a (0…3) and b (4…7) that the nibbles of `selector` name, the lowest first.
inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t selector) {
    const uint64_t both = a | (uint64_t)b << 32;
    uint32_t d = 0;
    for (int i = 0; i < 4; ++i) d |= (uint32_t)(both >> 8 * (selector >> 4 * i & 7) & 0xFF) << 8 * i;
    return d;
}

// Sum of four products of signed bytes, added to c.
inline int __dp4a(int a, int b, int c) {
#if defined(__SSE4_1__)
    const __m128i pairs = _mm_madd_epi16(_mm_cvtepi8_epi16(_mm_cvtsi32_si128(a)), _mm_cvtepi8_epi16(_mm_cvtsi32_si128(b)));
    const int64_t two = _mm_cvtsi128_si64(pairs);
    return c + (int)two + (int)(two >> 32);
#endif
    for (int shift = 0; shift < 32; shift += 8) c += (int)(int8_t)(a >> shift) * (int)(int8_t)(b >> shift);
    return c;
}

inline float half_to_float(uint16_t h) {
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16, magnitude = h & 0x7FFF;
    float f;
    if (magnitude >= 0x7C00) {  // infinity, NaN
        const uint32_t bits = sign | 0x7F800000 | (magnitude & 0x3FF) << 13;
        memcpy(&f, &bits, 4);
        return f;
    }
    // Exponent and significand in place are the value times 2^-112, also for subnormals.
    uint32_t bits = magnitude << 13;
    memcpy(&f, &bits, 4);
    f *= 0x1p112f;
    memcpy(&bits, &f, 4);
    bits |= sign;  // not a branch: the sign of a scale is as good as random
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
