// Runs the blocks of a launch of a kernel on the CPU.
//
// A block's threads run one after another on one operating-system thread. A thread that reaches a barrier or a warp
// exchange must wait for others that have not run yet, so each runs on a fiber: a stack of its own, switched manually.
// A fiber that never had to wait goes straight on with the next thread, so a kernel without barriers costs one fiber
// per block and runs at the speed of plain calls. Blocks are spread over operating-system threads.
//
// A GPU guarantees no order of threads, warps and blocks, and an asynchronous copy may take until its wait. So a launch
// has a schedule (Request). Ascending: thread 0 first, and all copies and products at once. Descending: the last thread
// and block first, and copies and products as late as waits allow. Seeded: every choice is pseudo-random. A kernel
// without races gives the same bits in each.
#pragma once
#include "cuda_on_cpu.hpp"
#if defined(__linux__)
#include <sys/auxv.h>
#endif

#if defined(CUDA_ON_CPU_CHECKS)
#include "of_thread.hpp"
#define CHECKED(...) __VA_ARGS__
#define KERNELS_LINE __builtin_return_address(0)
#else
#define CHECKED(...)
#endif

// A unit that is compiled to count what it executes (hosts/compiler.py, `COUNTS`) has one entry in this section, and
// libgcov is linked with it.
struct gcov_info;
extern "C" __attribute__((weak, visibility("hidden"))) const gcov_info* const __start_gguf_verify_counters[];
extern "C" __attribute__((weak, visibility("hidden"))) const gcov_info* const __stop_gguf_verify_counters[];
// Exists if its counters lie at their address + the base of segment GS.
extern "C" __attribute__((weak, visibility("hidden"))) const char gguf_verify_own_counters;

namespace cuda_on_cpu {

// This library's zero-initialized thread-local variables of this thread: the shared memory of its blocks and, except in
// a checked build, `crash_report`. Empty except on Linux.
struct Bytes {
    char* begin = nullptr;
    size_t size = 0;
    bool has(uint64_t at) const { return at - (uint64_t)begin < size; }
};
struct Library {
    void (*inside)();
    uint64_t base = 0;
    Bytes shared, image, data;
    uint64_t thread_local_base = 0;
};
inline Library library_of(void (*inside)()) {
    Library found{inside};
#if defined(__linux__)
    const auto look = [](dl_phdr_info* library, size_t, void* to) {
        Library& found = *(Library*)to;
        const ElfW(Phdr) *tls = nullptr;
        Bytes image, data;
        bool ours = false;
        for (int i = 0; i < library->dlpi_phnum; ++i) {
            const auto& part = library->dlpi_phdr[i];
            if (part.p_type == PT_TLS) tls = &part;
            if (part.p_type != PT_LOAD) continue;
            char* const begin = (char*)library->dlpi_addr + part.p_vaddr;
            if ((uintptr_t)found.inside - (uintptr_t)begin < part.p_memsz) ours = true;
            if (!image.begin) image.begin = begin;
            image.size = begin + part.p_memsz - image.begin;
            if (part.p_flags & PF_W) data = {begin, part.p_memsz};
        }
        if (!ours) return 0;
        found.base = library->dlpi_addr, found.image = image, found.data = data;
        found.thread_local_base = (uint64_t)library->dlpi_tls_data;
        if (tls && library->dlpi_tls_data)
            found.shared = {(char*)library->dlpi_tls_data + tls->p_filesz, tls->p_memsz - tls->p_filesz};
        return 1;
    };
    dl_iterate_phdr(look, &found);
#endif
    return found;
}

// ---- context switch ------------------------------------------------------------------------------------------------

#if defined(__x86_64__)
#if defined(__AVX512F__)
#define CUDA_ON_CPU_AVX512                                                                                             \
    , "xmm16", "xmm17", "xmm18", "xmm19", "xmm20", "xmm21", "xmm22", "xmm23", "xmm24", "xmm25", "xmm26", "xmm27",      \
        "xmm28", "xmm29", "xmm30", "xmm31", "k1", "k2", "k3", "k4", "k5", "k6", "k7"
#else
#define CUDA_ON_CPU_AVX512
#endif
// Stores the stack pointer in *from and continues at `to`; or with a function that does not return, on the stack that
// ends there. The compiler saves the registers that are in use, except rbp; the 128 bytes below the stack pointer may
// hold variables. A jump instead of a return: calls and returns stay paired for the processor, which predicts them.
inline __attribute__((always_inline)) void switch_stacks(void** from, void* to, void (*begin)()) {
    asm volatile(R"(
        leaq -128(%%rsp), %%rsp
        pushq %%rbp
        leaq 1f(%%rip), %%rcx
        pushq %%rcx
        movq %%rsp, (%%rdi)
        movq %%rsi, %%rsp
        testq %%rax, %%rax
        jnz 2f
        popq %%rcx
        jmp *%%rcx
     2: call *%%rax
        ud2
     1: popq %%rbp
        leaq 128(%%rsp), %%rsp
     3:)"
                 : "+D"(from), "+S"(to), "+a"(begin)
                 :
                 : "rbx", "rcx", "rdx", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "cc", "memory", "xmm0",
                   "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12",
                   "xmm13", "xmm14", "xmm15" CUDA_ON_CPU_AVX512);
}
#undef CUDA_ON_CPU_AVX512
#endif

#if defined(__SANITIZE_ADDRESS__)
extern "C" void __sanitizer_start_switch_fiber(void** fake_stack, const void* bottom, size_t size);
extern "C" void __sanitizer_finish_switch_fiber(void* fake_stack, const void** bottom, size_t* size);
extern "C" void __asan_unpoison_memory_region(const volatile void* at, size_t size);
#endif

struct Context {
#if defined(__x86_64__)
    void* sp = nullptr;
    void (*entry)() = nullptr;  // until it has begun
#else
    ucontext_t context;
#endif
#if defined(__SANITIZE_ADDRESS__)
    void* fake_stack = nullptr;
    const void* bottom = nullptr;
    size_t size = 0;
#endif

    void prepare(char* stack, size_t stack_size, void (*entry)()) {
#if defined(__SANITIZE_ADDRESS__)
        bottom = stack;
        size = stack_size;
        fake_stack = nullptr;
        // Frames that never returned may have left their poisoned redzones there.
        __asan_unpoison_memory_region(stack, stack_size);
#endif
#if defined(__x86_64__)
        sp = (void*)((uintptr_t)(stack + stack_size) & ~(uintptr_t)15), this->entry = entry;
#else
        getcontext(&context);
        context.uc_stack.ss_sp = stack;
        context.uc_stack.ss_size = stack_size;
        context.uc_link = nullptr;
        makecontext(&context, entry, 0);
#endif
    }

    __attribute__((always_inline)) void switch_to(Context& next) {
#if defined(__SANITIZE_ADDRESS__)
        __sanitizer_start_switch_fiber(&fake_stack, next.bottom, next.size);
#endif
#if defined(__x86_64__)
        void (*const entry)() = next.entry;
        next.entry = nullptr;
        switch_stacks(&sp, next.sp, entry);
#else
        swapcontext(&context, &next.context);
#endif
#if defined(__SANITIZE_ADDRESS__)
        __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#endif
    }
};


}  // namespace cuda_on_cpu
#if defined(CUDA_ON_CPU_CHECKS)
#include "checks.hpp"
#endif
namespace cuda_on_cpu {

// ---- schedules -----------------------------------------------------------------------------------------------------

// The bits of one number, mixed (the finalizer of splitmix64).
inline uint64_t mixed(uint64_t v) {
    v = (v ^ v >> 30) * 0xBF58476D1CE4E5B9;
    v = (v ^ v >> 27) * 0x94D049BB133111EB;
    return v ^ v >> 31;
}

// Pseudo-random choices by seed and position.
struct Draw {
    uint64_t state = 0;
    uint64_t next() { return mixed(state += 0x9E3779B97F4A7C15); }
    uint64_t below(uint64_t n) { return (uint64_t)((unsigned __int128)next() * n >> 64); }
    bool once_in(uint64_t n) { return below(n) == 0; }
    template <class T>
    void shuffle(T* values, size_t n) {
        for (size_t i = n; i > 1; --i) std::swap(values[i - 1], values[below(i)]);
    }
};

// ---- barriers ------------------------------------------------------------------------------------------------------

struct Barrier {
    int alive = 0, arrived = 0;
    unsigned generation = 0;
#if defined(CUDA_ON_CPU_CHECKS)
    Meeting gathered;  // of those that have arrived
    bool whole = false;
#endif

    bool arrive() {  // true for the last one: nobody needs to wait
        if (++arrived < alive) return false;
        release();
        return true;
    }
    void leave() {  // nobody waits for an exited thread
        if (--alive > 0 && arrived == alive) release();
    }
    void release() {
        arrived = 0;
        ++generation;
#if defined(CUDA_ON_CPU_CHECKS)
        if (whole) checks.released_block();
#endif
    }
};

struct Phases : Barrier {
    int pending = 0;  // bytes that are expected and have not been copied

    void end_phase() {
        if (arrived >= alive && pending == 0) release();
    }
};

// Lanes that exchange values.
struct Group : Barrier {
    // Two sets of slots: a lane may already write its next value while others still read this one's. The last slot says
    // which lanes have passed one; the slots of the others hold the schedule's fill.
    uint64_t slots[2][33];
    // All 32 lanes pass values, so that each slot is overwritten, unless one passes without a value: a checked build
    // reports that.
    bool full = false;
#if defined(CUDA_ON_CPU_CHECKS)
    Way way = SYNC;  // what the first lane executes, and where
    uint32_t thread = 0, at = 0;
#endif
};
// Lanes that query which of them are at the same place.
struct Asked : Barrier {
    uint32_t lanes = 0, found = 0;
    void answer() { found = lanes, lanes = 0, ++generation; }
};
struct Fiber;
struct Warp : Group {
    uint32_t lanes = 0, exited = 0;  // present at its start, and exited since; one bit each
    Fiber* first = nullptr;          // the one that began first
    // How many of its threads wait at the block's barrier, in this generation of it.
    int at_block = 0;
    unsigned generation_of_block = 0;
};

// A copy that is not done yet.
struct Copy {
    void* to;
    const void* from;
    uint64_t bytes, zeros;  // total size, and how many of the last become 0
    unsigned group;
    Phases* phases;              // of a bulk copy
    std::vector<uint8_t> taken;  // what it read when it was issued, if it did
#if defined(CUDA_ON_CPU_CHECKS)
    AsyncWrite write;
#endif

    void complete() const {
        memcpy(to, taken.empty() ? from : taken.data(), bytes - zeros);
        memset((uint8_t*)to + (bytes - zeros), 0, zeros);
    }
    void take() { taken.assign((const uint8_t*)from, (const uint8_t*)from + (bytes - zeros)); }
};

struct alignas(64) Fiber {
    Context context;
    const Barrier* waits_for = nullptr;
    unsigned generation = 0;
    Dim3 index;  // threadIdx
    Warp* warp = nullptr;
    uint64_t thread = 0;
    Fiber* next = nullptr;  // the one that began after it
    uint64_t may_wait = 0;  // when it yielded after a strong operation that changed nothing, above all ranks
    char* stack = nullptr;
    size_t place = 0;  // in the order in which fibers began
    std::vector<Copy> copies;
    unsigned copy_groups = 0, product_groups = 0;
};

// ---- one block on one operating-system thread ----------------------------------------------------------------------

#if defined(__SANITIZE_ADDRESS__)
constexpr size_t STACK_BYTES = 512 << 10;
#else
constexpr size_t STACK_BYTES = 64 << 10;
#endif

// Dynamic shared memory: the most that any GPU gives a block, and what precedes and follows it here.
constexpr size_t MOST_SHARED = 232448, SHARED_GUARD = 4096;

// A stack and its guard page are two mappings, of which Linux allows a process 65,530: with blocks of 1024 threads, 32
// workers would need more. So the workers are limited, rather than leaving stacks unguarded.
constexpr uint64_t MOST_FIBERS = 24000;

constexpr size_t GUARD = 68 << 10;

// Stacks outlive their launch: mapping and unmapping them took a quarter of the time of small launches. One pool serves
// all libraries of the process whose stacks have the same size (an inline variable does so), since mappings are scarce.
template <size_t BYTES>
class Stacks {
  public:
    char* take() {
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            if (char* stack = first_) return first_ = next(stack), --kept_, stack;
        }
        void* p = mmap(nullptr, GUARD + BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED || mprotect(p, GUARD, PROT_NONE) != 0) {
            fputs("cuda_on_cpu: no memory for a thread's stack\n", stderr);
            abort();
        }
        return (char*)p + GUARD;
    }
    void give_back(char* stack) {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (kept_ == MOST_KEPT) return (void)munmap(stack - GUARD, GUARD + BYTES);
        next(stack) = first_, first_ = stack, ++kept_;
    }

  private:
    static constexpr int MOST_KEPT = 2048;
    // an unused stack holds the pointer to the next one, in memory that was touched before
    static char*& next(char* stack) { return *(char**)(stack + BYTES - sizeof(char*)); }
    std::mutex mutex_;
    char* first_ = nullptr;
    int kept_ = 0;
};
template <size_t BYTES>
inline __attribute__((visibility("default"))) Stacks<BYTES> stacks;

class BlockRunner {
  public:
    BlockRunner(const Request& request, void (*body)(const void*), const void* argument)
        : request_(request), call_(body), argument_(argument) {}
    ~BlockRunner() {
        for (Fiber* f : fibers_) {
#if defined(__SANITIZE_ADDRESS__)
            // A fiber never returns, so its last frames keep their poisoned redzones, which would outlive the mapping.
            __asan_unpoison_memory_region(f->stack, STACK_BYTES);
#endif
            stacks<STACK_BYTES>.give_back(f->stack);
            delete f;
        }
    }

    // Begins block number b of the launch.
    void begin(uint64_t b) {
        number = b;
        blockIdx = gridDim.at(b);
        block_dim_ = blockDim, next_index_ = {0, 0, 0};
        threads_ = block_dim_.count();
        next_ = finished_ = 0;
        block_ = Barrier{};
        block_.alive = (int)threads_;
        for (Barrier& b : named_) b = Barrier{};
        warps_.assign((threads_ + 31) / 32, Warp{});
        for (uint64_t w = 0; w < warps_.size(); ++w) {
            warps_[w].alive = (int)std::min<uint64_t>(32, threads_ - 32 * w);
            warps_[w].lanes = ~0u >> (32 - warps_[w].alive);
            warps_[w].full = warps_[w].alive == 32;
        }
        parts_.clear(), asked_.clear();
        used_ = 0;
        if (later_) copies_.clear(), products_.assign(warps_.size(), {});
        stopped_ = DONE, idle_ = 0;
#if defined(CUDA_ON_CPU_CHECKS)
        block_.whole = true;
        checks.begin_block(b, threads_);
#endif
        if (request_.order == ASCENDING) return;
        draw_.state = mixed(request_.seed) ^ mixed(b + 1);
        make_order();
        ranked_ = seeded_ && draw_.once_in(2);
    }
    // Runs it to its end, or until it WAITS for other blocks. STUCK if threads wait for a barrier that the others never
    // reach.
    Outcome go_on() { return seeded_ ? run_as_drawn() : run_in_order(); }

    uint64_t number = 0;
    // Whether a thread of the running block has changed something with a strong operation since this was set to false.
    bool changed = false;

    void wait(Barrier& barrier) {
        Fiber* f = current_;
        unsigned generation = barrier.generation;
        if (barrier.arrive()) {
            if (__builtin_expect(!seeded_, 1) || draw_.once_in(2)) return;
            generation = barrier.generation - 1;  // it may resume, but others may do so first
        }
        f->waits_for = &barrier;
        f->generation = generation;
        if (&barrier == &block_) {
            Warp& warp = *f->warp;
            if (warp.generation_of_block != generation) warp.generation_of_block = generation, warp.at_block = 0;
            ++warp.at_block;
        }
        pause(f);
    }

    // Of those that have passed a value, any may resume first.
    const uint64_t* gather(Group& group, uint64_t value) {
        uint64_t* slots = group.slots[group.generation & 1];
        const uint64_t lane = current_->thread % 32;
        if (!group.arrived) {
            if (__builtin_expect(!group.full, 0)) memset(slots, (int)request_.fill, sizeof *group.slots);
            slots[32] = 0;
        }
        slots[lane] = value;
        slots[32] |= 1ull << lane;
        wait(group);
        return slots;
    }

    // The running thread's warp, or the lanes of it in a mask that excludes some.
    Group& group(uint32_t mask) {
        Warp& warp = this->warp();
        if (__builtin_expect((mask & warp.lanes) == warp.lanes, 1)) return warp;
        return part(mask & warp.lanes, warp);
    }
    __attribute__((noinline)) Group& part(uint32_t mask, const Warp& warp) {
        const auto [found, fresh] = parts_.try_emplace(current_->thread / 32 << 32 | mask);
        if (fresh) found->second.alive = __builtin_popcount(mask & ~warp.exited);
        return found->second;
    }
    // The lanes of the warp that reach the same place before nothing else of the block can run.
    uint32_t active(const void* place) {
        Asked& asked = asked_[{current_->thread / 32, place}];
        asked.lanes |= 1u << current_->thread % 32;
        if (asked.lanes != (warp().lanes & ~warp().exited)) sleep(asked);
        else asked.answer();
        return asked.found;
    }
    bool answer() {
        bool any = false;
        for (auto& [_, asked] : asked_)
            if (asked.lanes) asked.answer(), any = true;
        return any;
    }

    uint32_t count(bool value) {
        unsigned& count = counts_[block_.generation & 1];
        if (!block_.arrived) count = 0;
        count += value;
        wait(block_);
        return count;
    }

    // A loop over strong operations may be waiting for another thread, so from time to time the others run: those of
    // the block and, if nothing changes for long, other blocks. In a seeded order other blocks may run in any case.
    void after_atomic(bool has_changed) {
        if (__builtin_expect(request_.some != 0, 0)) stop(WAITING);
        if (has_changed) changed = true, idle_ = 0;
        else ++idle_;
        if (seeded_ ? !draw_.once_in(8) : ++atomics_ % 32) return;
        if (seeded_ && draw_.once_in(4)) idle_ = IDLE;
        Fiber* f = current_;
        f->waits_for = &block_;
        f->generation = block_.generation - 1;
        f->may_wait = has_changed ? 0 : 1ull << 63 | ++turn_;
        gave_way_ = true;
        f->context.switch_to(main_);
        f->may_wait = 0;
    }

    // Until the barrier's next phase, without arriving at it.
    void sleep(const Barrier& barrier) {
        current_->waits_for = &barrier;
        current_->generation = barrier.generation;
        pause(current_);
    }

    Barrier& block() { return block_; }
    Barrier& named(int id, int threads) {
        named_[id & 15].alive = threads ? threads : (int)threads_;
        return named_[id & 15];
    }
    Warp& warp() { return *current_->warp; }
    // The products of the running thread's warp that are not computed yet; none if all are computed at once.
    std::vector<WarpProduct>* products() { return later_ ? &products_[current_->thread / 32] : nullptr; }
    int lane() const { return (int)(current_->thread % 32); }
    Fiber& fiber() { return *current_; }
    uint64_t thread() const { return current_->thread; }

    std::map<const void*, Phases> phases;  // of the running block; the next one's init takes their places

    // Whether asynchronous operations complete later than they are issued.
    bool later() { return request_.order == DESCENDING || (seeded_ && draw_.once_in(2)); }
    bool reads_at_once() { return seeded_ && draw_.once_in(2); }
    std::vector<Copy>& copies() { return copies_; }

    // Completes one of the bulk copies in flight, if there is one.
    bool complete_a_copy() {
        if (copies_.empty()) return false;
        const size_t which = seeded_ ? draw_.below(copies_.size()) : copies_.size() - 1;
        const Copy copy = std::move(copies_[which]);
        copies_.erase(copies_.begin() + (ptrdiff_t)which);
        finish(copy);
        return true;
    }
    void finish(const Copy& copy) {
        copy.complete();
#if defined(CUDA_ON_CPU_CHECKS)
        checks.copied(copy.write, copy.to, copy.bytes);
        checks.copied_into(copy.write, copy.phases->gathered);
#endif
        copy.phases->pending -= (int)copy.bytes;
        copy.phases->end_phase();
    }

    // Handles a fault in the kernel, on its fiber's stack or another: this thread never resumes.
    bool in_kernel() const { return inside_; }
    const Request& request() const { return request_; }
    void stop(Outcome why) {
        stopped_ = why;
        current_->context.switch_to(main_);
        abort();
    }
    // Memory that is no input and no variable of the running thread.
    bool is_of_all(uint64_t at) const {
        const auto has = [&](const Range& range) { return !range.output && at - range.begin < range.size; };
        return at - (uint64_t)current_->stack >= STACK_BYTES &&
               std::none_of(request_.ranges, request_.ranges + request_.n_ranges, has);
    }
    bool in_stack_guard(uint64_t at) const { return at - ((uint64_t)current_->stack - GUARD) < GUARD; }
    // The kernel's own variables, and what warps exchange.
    bool in_a_stack(uint64_t at) const {
        if (at - (uint64_t)current_->stack < STACK_BYTES) return true;
        if (at - (uint64_t)warps_.data() < warps_.size() * sizeof(Warp)) return true;
        for (const auto& [_, part] : parts_)
            if (at - (uint64_t)&part < sizeof part) return true;
        for (size_t i = 0; i < used_; ++i)
            if (at - (uint64_t)fibers_[i]->stack < STACK_BYTES) return true;
        return false;
    }

    uint8_t* dynamic_shared() {
        if (!shared_) {
            // beyond the guards is memory that nobody may touch
            const auto room = [] {
                return mmap(nullptr, SHARED_WALL + SHARED_ROOM + SHARED_WALL, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            };
            void* p = room();
            const uint32_t begin = (uint32_t)(uintptr_t)p;
            // an unconverted address is in neither of them
            if (p != MAP_FAILED && (near_variables(begin) || near_variables(begin + SHARED_WINDOW) ||
                                    near_variables(begin - SHARED_WINDOW))) {
                void* const taken = p;
                p = room();
                munmap(taken, SHARED_WALL + SHARED_ROOM + SHARED_WALL);
            }
            if (p == MAP_FAILED || mprotect((uint8_t*)p + SHARED_WALL, SHARED_ROOM, PROT_READ | PROT_WRITE) != 0) {
                fputs("cuda_on_cpu: no memory for shared memory\n", stderr);
                abort();
            }
            shared_.reset((uint8_t*)p + SHARED_WALL);
            memset(shared_.get(), (int)request_.fill, SHARED_ROOM);
        }
        return shared_.get() + SHARED_GUARD;
    }
    void* of_shared_address(uint32_t address) {
        address -= SHARED_WINDOW;
        if (shared_) {
            const uint8_t* const dynamic = shared_.get() + SHARED_GUARD;
            const int64_t from = (int32_t)(address - (uint32_t)(uintptr_t)dynamic);
            if (from >= -(int64_t)SHARED_WALL && from < (int64_t)(SHARED_ROOM + SHARED_WALL)) return (void*)(dynamic + from);
        }
        return variables.begin + (int32_t)(address - (uint32_t)(uintptr_t)variables.begin);
    }
    Bytes variables;  // in shared memory

    // The contents left by the previous block must not be visible to this one.
    void unset_dynamic_shared(size_t shared) {
        if (shared_) memset(shared_.get() + SHARED_GUARD, (int)request_.fill, std::min(shared, MOST_SHARED));
    }
    // Whether no block has written outside the dynamic shared memory that it was given.
    bool kept_within(size_t shared) const {
        if (!shared_) return true;
        const auto unset = [&](uint8_t byte) { return byte == request_.fill; };
        const uint8_t *all = shared_.get(), *begin = all + SHARED_GUARD;
        return std::all_of(all, begin, unset) &&
               std::all_of(begin + std::min(shared, MOST_SHARED), all + SHARED_ROOM, unset);
    }

  private:
    static constexpr size_t SHARED_ROOM = SHARED_GUARD + MOST_SHARED + SHARED_GUARD;
    static constexpr size_t SHARED_WALL = 8 << 20;  // a multiple of any page's size
    // Whether the lower halves of such addresses could be confused with those of variables in shared memory.
    bool near_variables(uint32_t begin) const {
        return (uint32_t)(uintptr_t)variables.begin + (uint32_t)variables.size - begin <
               SHARED_WALL + SHARED_ROOM + SHARED_WALL + (uint32_t)variables.size;
    }
    struct Unmap {
        void operator()(uint8_t* p) const { munmap(p - SHARED_WALL, SHARED_WALL + SHARED_ROOM + SHARED_WALL); }
    };

    // Starts threads one after another; those that wait resume in the order in which they were started, and a warp runs
    // until all its lanes wait for other warps: its stacks then stay in the processor's nearest cache. Asynchronous
    // operations complete when nothing else can run.
    Outcome run_in_order() {
        while (finished_ < threads_) {
            bool moved = false;
            for (size_t first = 0, end; first < used_ || next_ < threads_; first = end) {
                uint64_t warp = first < used_ ? fibers_[first]->thread / 32 : next_thread() / 32;
                gave_way_ = false;
                for (bool again = true; again && !gave_way_;) {
                    again = false;
                    for (end = first; end < used_ && fibers_[end]->thread / 32 == warp; ++end) {
                        if (!can_resume(fibers_[end])) continue;
                        next_warp_ = nullptr, may_go_on_ = true;
                        resume(fibers_[end]);
                        may_go_on_ = false;
                        if (__builtin_expect(stopped_ != DONE, 0)) return stopped_;
                        again = moved = true;
                        if (next_warp_) first = end = next_warp_->place, warp = number_of_next_warp_;
                    }
                    if (end < used_) continue;
                    while (next_ < threads_ && next_thread() / 32 == warp) {
                        resume(fresh());
                        if (__builtin_expect(stopped_ != DONE, 0)) return stopped_;
                        again = moved = true;
                    }
                    end = used_;
                }
            }
            if (!moved && !complete_a_copy() && !answer()) return STUCK;
            if (waits()) return WAITING;
        }
        return DONE;
    }
    bool can_resume(const Fiber* f) const { return f->waits_for->generation != f->generation; }
    uint64_t next_thread() const { return order_.empty() ? next_ : order_[next_]; }

    // The running thread waits. In order, the next thread of its warp resumes or begins without a detour, and after the
    // last one the first; or, if all of the warp wait at the block's barrier, the first one of the next warp.
    void pause(Fiber* f) {
        Context& waiting = f->context;
#if !defined(__SANITIZE_ADDRESS__)  // a fiber begins from main_, whose stack it notes
        if (!seeded_) {
            Fiber* next = f->next;
            if (!next && next_ < threads_ && next_thread() / 32 == f->thread / 32) {
                next = fresh();
            } else {
                if (!next || next->warp != f->warp) next = f->warp->first;
                if (!can_resume(next) || next->warp != f->warp) next = after_warp(f);
            }
            if (__builtin_expect(next != nullptr, 1)) {
                fetch_after(next);
                current_ = next;
                index_ = next->index;
                return waiting.switch_to(next->context);
            }
        }
#endif
        waiting.switch_to(main_);
    }

    // The thread after the last one of a warp, if it begins a warp and is what `run_in_order` would resume: nothing of
    // this warp can.
    Fiber* after_warp(const Fiber* f) {
        const Warp& warp = *f->warp;
        Fiber* const next = f->next;
        if (!may_go_on_ || warp.at_block != warp.alive || warp.generation_of_block != block_.generation) return nullptr;
        if (!next || next->warp == &warp || next->warp->first != next || !can_resume(next)) return nullptr;
        gave_way_ = false;
        number_of_next_warp_ = next->thread / 32;
        return next_warp_ = next;
    }
    // Has the processor load what the switch after that to a fiber reads: the stacks of a block exceed the nearest
    // cache. The fiber behind was fetched before, so reading its stack pointer does not wait.
    static __attribute__((always_inline)) void fetch_after(const Fiber* f) {
#if defined(__x86_64__)
        const Fiber* const after = f->next;
        if (!after) return;
        __builtin_prefetch(after->next);
        const char* const sp = (const char*)after->context.sp;
        __builtin_prefetch(sp);
        for (int line = 2; line < 5; ++line) __builtin_prefetch(sp + 64 * line);  // behind 128 bytes that are not read
#endif
        (void)f;
    }

    // Every choice is pseudo-random. In half of the blocks some warps always precede others: they run as far ahead as
    // barriers let them.
    Outcome run_as_drawn() {
        while (finished_ < threads_) {
            if (!copies_.empty() && draw_.once_in(8)) complete_a_copy();
            Fiber* best = ranked_ ? first_ranked() : any_thread();
            if (!best && next_ < threads_) best = fresh();
            if (best) resume(best);
            else if (!complete_a_copy() && !answer()) return STUCK;
            if (stopped_ != DONE) return stopped_;
            if (waits()) return WAITING;
        }
        return DONE;
    }
    // The one with the lowest rank of those that can resume; none if the next one to begin precedes them.
    Fiber* first_ranked() {
        Fiber* best = nullptr;
        uint64_t best_key = next_ < threads_ ? rank_[order_[next_]] : ~0ull;
        for (size_t i = 0; i < used_; ++i) {
            Fiber* f = fibers_[i];
            if (!can_resume(f)) continue;
            // those that may wait for others come after them, in turn, or some would never run
            const uint64_t key = f->may_wait ? f->may_wait : rank_[f->thread];
            if (key < best_key) best = f, best_key = key;
        }
        return best;
    }
    // One of those that can resume or begin, each with the same probability; none if it is to begin.
    Fiber* any_thread() {
        constexpr int TRIES = 8;  // cheaper than a list while many can
        for (int i = 0; i < TRIES && used_ + (threads_ - next_); ++i) {
            const uint64_t which = draw_.below(used_ + (threads_ - next_));
            if (which >= used_) return nullptr;
            if (can_resume(fibers_[which])) return fibers_[which];
        }
        can_.clear();
        for (size_t i = 0; i < used_; ++i)
            if (can_resume(fibers_[i])) can_.push_back(fibers_[i]);
        const uint64_t which = can_.empty() ? 0 : draw_.below(can_.size() + (threads_ - next_));
        return which < can_.size() ? can_[which] : nullptr;
    }
    // Whether strong operations have changed nothing for so long that other blocks should run.
    bool waits() {
        if (idle_ < IDLE || finished_ == threads_) return false;
        idle_ = 0;
        return true;
    }

    void make_order() {
        order_.resize(threads_), rank_.resize(threads_);
        for (uint64_t i = 0; i < threads_; ++i) order_[i] = (uint32_t)(seeded_ ? i : threads_ - 1 - i);
        if (!seeded_) return;
        draw_.shuffle(order_.data(), threads_);
        std::vector<uint32_t> warps(warps_.size());
        for (size_t i = 0; i < warps.size(); ++i) warps[i] = (uint32_t)i;
        draw_.shuffle(warps.data(), warps.size());
        for (uint64_t i = 0; i < threads_; ++i) rank_[order_[i]] = warps[order_[i] / 32] << 16 | (uint32_t)i;
    }

    Fiber* fresh() {
        if (used_ == fibers_.size()) {
            auto* f = new Fiber;
            f->stack = stacks<STACK_BYTES>.take();
            fibers_.push_back(f);
        }
        Fiber* f = fibers_[used_];
        f->next = nullptr, f->place = used_;
        if (used_++) fibers_[used_ - 2]->next = f;
        // stacks that begin at the same offset in a page would share a few cache lines
        f->context.prepare(f->stack, STACK_BYTES - used_ % 16 * 256, &BlockRunner::fiber_main);
        return f;
    }

    void resume(Fiber* f) {
        current_ = f;
        index_ = f->index;
        inside_ = true;
        main_.switch_to(f->context);
        inside_ = false;
    }

    void begin_thread(Fiber* f) {
        f->thread = next_thread();
        ++next_;
        f->warp = &warps_[f->thread / 32];
        if (!f->warp->first) f->warp->first = f;
        index_ = f->index = order_.empty() ? next_index_ : block_dim_.at(f->thread);
        if (++next_index_.x == block_dim_.x) {  // cheaper than divisions
            next_index_.x = 0;
            if (++next_index_.y == block_dim_.y) next_index_.y = 0, ++next_index_.z;
        }
        if (!later_) return;
        f->copy_groups = f->product_groups = 0;
        f->copies.clear();
    }

    void leave_warp(Warp& warp, uint64_t thread) {
        if (warp.arrived) memset(&warp.slots[warp.generation & 1][thread % 32], (int)request_.fill, sizeof **warp.slots);
        warp.full = false;
        warp.leave();
        warp.exited |= 1u << thread % 32;
        for (auto& [which, part] : parts_)
            if (which >> 32 == thread / 32 && which >> thread % 32 & 1) part.leave();
    }

    static void fiber_main() {
        BlockRunner* self = runner;
        Fiber* f = self->current_;
#if defined(__SANITIZE_ADDRESS__)
        __sanitizer_finish_switch_fiber(nullptr, &self->main_.bottom, &self->main_.size);
#endif
        do {
            self->begin_thread(f);
            self->call_(self->argument_);
#if defined(CUDA_ON_CPU_CHECKS)
            checks.end_thread();
#endif
            ++self->finished_;
            self->changed = true;
            self->block_.leave();
            self->leave_warp(*f->warp, f->thread);
        } while (self->next_ < self->threads_ && !self->seeded_);
        f->waits_for = &self->never_, f->generation = 0;
        self->pause(f);
        abort();  // a finished fiber is never resumed
    }

    const Request request_;
    void (*const call_)(const void*);
    const void* const argument_;
    const bool seeded_ = request_.order == SEEDED, later_ = request_.order != ASCENDING CHECKED(|| true);
    uint64_t threads_ = 0, next_ = 0, finished_ = 0;
    Dim3 block_dim_, next_index_;  // the latter: of thread `next_`, in ascending order
    static constexpr unsigned IDLE = 256;
    unsigned atomics_ = 0, idle_ = 0;  // strong operations; those since the last one that changed something
    bool ranked_ = false;
    bool may_go_on_ = false;  // whether a warp may follow one that was resumed, without a detour
    Fiber* next_warp_ = nullptr;  // the first thread of the last one that did
    uint64_t number_of_next_warp_ = 0;
    bool gave_way_ = false;  // a thread that may be waiting for others, in the warp that runs
    uint64_t turn_ = 0;
    std::vector<uint32_t> order_, rank_;  // the thread that is started as number i; empty: thread i
    Draw draw_;
    Outcome stopped_ = DONE;
    bool inside_ = false;
    Barrier block_, named_[16], never_;
    std::vector<Warp> warps_;
    std::map<uint64_t, Group> parts_;  // of warps, by the warp's number and their lanes
    std::map<std::pair<uint64_t, const void*>, Asked> asked_;
    unsigned counts_[2];
    std::vector<Fiber*> fibers_, can_;
    size_t used_ = 0;
    Fiber* current_ = nullptr;
    Dim3& index_ = threadIdx;  // of the operating-system thread that runs the block
    Context main_;
    std::vector<Copy> copies_;  // bulk copies that are not done yet
    std::vector<std::vector<WarpProduct>> products_;  // of each warp
    std::unique_ptr<uint8_t, Unmap> shared_;
};

// Whether other threads may write there, so that the running one may be waiting for it.
inline bool is_of_all(uint64_t at) { return runner && runner->in_kernel() && runner->is_of_all(at); }

// ---- what kernels call ---------------------------------------------------------------------------------------------

IN_RUNNER void sync_block() {
    CHECKED(checks.arrive_at_block(runner->thread(), KERNELS_LINE);)
    runner->wait(runner->block());
}
IN_RUNNER uint32_t sync_block_count(bool value) {
    CHECKED(checks.arrive_at_block(runner->thread(), KERNELS_LINE);)
    const uint32_t count = runner->count(value);
    return count;
}
IN_RUNNER void sync_warp(uint32_t mask) {
    Group& group = runner->group(mask);
    CHECKED(checks.arrive_at_group(group, mask, SYNC, KERNELS_LINE);)
    CHECKED(checks.release(group.gathered);)
    const uint64_t* got = runner->gather(group, 0);
    CHECKED(checks.acquire(group.gathered);)
    CHECKED(checks.leave_group(mask & runner->warp().lanes & ~(uint32_t)got[32], KERNELS_LINE);)
    (void)got;
}
IN_RUNNER void sync_named(int id, int threads) {
    CHECKED(checks.named_barrier(id, threads, false, KERNELS_LINE);)
    Barrier& barrier = runner->named(id, threads);
    CHECKED(checks.release(barrier.gathered);)
    runner->wait(barrier);
    CHECKED(checks.acquire(barrier.gathered);)
}
IN_RUNNER void arrive_named(int id, int threads) {
    CHECKED(checks.named_barrier(id, threads, true, KERNELS_LINE);)
    Barrier& barrier = runner->named(id, threads);
    CHECKED(checks.release(barrier.gathered);)
    barrier.arrive();
}
IN_RUNNER int lane() { return runner->lane(); }
IN_RUNNER uint32_t active_lanes() {
    CHECKED(checks.pause();)
    const uint32_t found = runner->active(__builtin_return_address(0));
    return found;
}
TO_RUNNER uint64_t exchange_at(BlockRunner& of, uint64_t value, int source_lane, uint32_t mask, Way way, const void* line) {
    Group& group = of.group(mask);
    CHECKED(checks.hand_on(group.gathered.known);)
    CHECKED(checks.arrive_at_group(group, mask, way, line);)
    const uint64_t* got = of.gather(group, value);
    CHECKED(checks.take(group.gathered.known);)
    CHECKED(checks.leave_group(mask & of.warp().lanes & ~(uint32_t)got[32], line);)
    CHECKED(if (!(got[32] >> (source_lane & 31) & 1)) checks.no_value((uint32_t)source_lane & 31, line);)
    (void)way, (void)line;
    return got[source_lane & 31];
}
IN_RUNNER uint64_t exchange(uint64_t value, int source_lane, uint32_t mask, Way way) {
    return exchange_at(*runner, value, source_lane, mask, way, __builtin_return_address(0));
}
// PTX ISA, shfl.sync: a lane of an earlier part of the warp can be read, but not one of a later part.
inline int source_of(Way way, int self, int operand, int width) {
    const int first = self & ~(width - 1), last = self | (width - 1), by = operand & 31;
    const auto within = [&](int lane) { return lane <= last ? lane : self; };
    switch (way) {
        case SHUFFLE_UP: return self - by >= first ? self - by : self;
        case SHUFFLE_DOWN: return within(self + by);
        case SHUFFLE_XOR: return within(self ^ by);
        default: return first | (operand & (width - 1));
    }
}
IN_RUNNER uint64_t shuffle(uint64_t value, int operand, uint32_t mask, Way way, int width) {
    BlockRunner& of = *runner;
    CHECKED(if (width < 1 || width > 32 || width & (width - 1)) checks.wrong_width(width, KERNELS_LINE);)
    return exchange_at(of, value, source_of(way, of.lane(), operand, width), mask, way, __builtin_return_address(0));
}
IN_RUNNER const uint64_t* gather(uint64_t value, uint32_t mask, Way way) {
    Group& group = runner->group(mask);
    CHECKED(checks.hand_on(group.gathered.known);)
    CHECKED(checks.arrive_at_group(group, mask, way, KERNELS_LINE);)
    const uint64_t* got = runner->gather(group, value);
    CHECKED(checks.take(group.gathered.known);)
    CHECKED(checks.leave_group(mask & runner->warp().lanes & ~(uint32_t)got[32], KERNELS_LINE);)
    if (way == MATRIX && (uint32_t)got[32] != ~0u) {
        CHECKED(checks.not_whole((uint32_t)got[32], KERNELS_LINE);)
        trap("an instruction of a whole warp (mma, ldmatrix, wgmma) that not all 32 lanes execute");
    }
    return got;
}
IN_RUNNER uint64_t clock_now() {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    runner->after_atomic(false);  // a thread that waits for time to pass yields
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}
IN_RUNNER void may_wait(const void* at) {
    if (is_of_all((uint64_t)at)) runner->after_atomic(false);
}
IN_RUNNER uint8_t* dynamic_shared() { return runner->dynamic_shared(); }
IN_RUNNER void* of_shared_address(uint32_t address) { return runner->of_shared_address(address); }

IN_RUNNER void copy_later(void* to, const void* from, uint64_t bytes, uint64_t zeros, bool past_l1) {
    CHECKED(checks.copies(to, from, bytes, zeros, past_l1, KERNELS_LINE);) (void)past_l1;
    zeros = std::min(zeros, bytes);
    CHECKED(AsyncWrite write = checks.begin_copy(to, bytes, from, bytes - zeros, KERNELS_LINE);)
    Fiber& f = runner->fiber();
    Copy copy{to, from, bytes, zeros, f.copy_groups, nullptr, {} CHECKED(, std::move(write))};
    if (CHECKED(!checks.on &&) !runner->later()) return copy.complete();
    if (runner->reads_at_once()) copy.take();
    f.copies.push_back(std::move(copy));
}
IN_RUNNER void commit_copies() { ++runner->fiber().copy_groups; }
IN_RUNNER void wait_copies(unsigned pending) {
    Fiber& f = runner->fiber();
    if (f.copies.empty()) return;
    const auto done = [&](const Copy& copy) { return copy.group + pending < f.copy_groups; };
    for (const Copy& copy : f.copies)
        if (done(copy)) {
            copy.complete();
            CHECKED(checks.copied(copy.write, copy.to, copy.bytes), checks.own_copy(copy.write);)
        }
    f.copies.erase(std::remove_if(f.copies.begin(), f.copies.end(), done), f.copies.end());
}

#if defined(CUDA_ON_CPU_CHECKS)
IN_RUNNER void must_align(const void* at, uint64_t bytes) {
    checks.must_align(at, bytes, "an access to", bytes, KERNELS_LINE);
}
IN_RUNNER void must_lie_in(Space space, const void* at) { checks.must_lie_in(space, (uint64_t)at, KERNELS_LINE); }
IN_RUNNER void read_as_constant(const void* at, uint64_t bytes) {
    checks.read_as_constant((uint64_t)at, bytes, KERNELS_LINE);
}
IN_RUNNER void false_assumption() { checks.false_assumption("the condition of __builtin_assume is false", KERNELS_LINE); }
IN_RUNNER void* assume_aligned(const void* at, uint64_t alignment, uint64_t past) {
    if (alignment && ((uint64_t)at - past) % alignment) {
        char text[64];
        snprintf(text, sizeof text, "an address is no multiple of %llu", (unsigned long long)alignment);
        checks.false_assumption(text, KERNELS_LINE);
    }
    return (void*)at;
}
#endif

IN_RUNNER Phases* phases(const void* at, int arrivals) {
    Phases& found = runner->phases[at];
    found = Phases{};
    found.alive = arrivals;
    return &found;
}
IN_RUNNER void arrive(Phases* phases, int bytes) {
    CHECKED(if (!bytes) checks.settle();)
    CHECKED(checks.release(phases->gathered);)
    phases->pending += bytes;
    ++phases->arrived;
    phases->end_phase();
}
IN_RUNNER void wait_phase(Phases* phases, int parity) {
    // the phase of parity p has ended once an odd (p = 0) or even number of phases has, the first at least
    CHECKED(checks.pause();)
    while ((int)(phases->generation & 1) == parity) runner->sleep(*phases);
    CHECKED(checks.acquire(phases->gathered);)
}
IN_RUNNER void bulk_copy(void* to, const void* from, int bytes, Phases* phases) {
    CHECKED(checks.copies_bulk(to, from, bytes, KERNELS_LINE);)
    CHECKED(checks.overwrites((uint64_t)to, (uint64_t)bytes, KERNELS_LINE);)
    CHECKED(AsyncWrite write = checks.begin_copy(to, (uint64_t)bytes, from, (uint64_t)bytes, KERNELS_LINE);)
    Copy copy{to, from, (uint64_t)bytes, 0, 0, phases, {} CHECKED(, std::move(write))};
    if (CHECKED(!checks.on &&) !runner->later()) return runner->finish(copy);
    if (runner->reads_at_once()) copy.take();
    runner->copies().push_back(std::move(copy));
}

IN_RUNNER void before_atomic(const void* at, int size, uint32_t how) {
    CHECKED(checks.atomic((uint64_t)at, (uint64_t)size, how, KERNELS_LINE);)
    (void)at, (void)size, (void)how;
}
IN_RUNNER void after_atomic(bool changed) { runner->after_atomic(changed); }
IN_RUNNER void proxy_fence() {
    CHECKED(checks.settle();)
}
IN_RUNNER void fence(bool of_gpu) {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    CHECKED(checks.fence(of_gpu);)
    (void)of_gpu;
}

IN_RUNNER void multiply(WarpProduct& product) {
    product.group = runner->fiber().product_groups;
    std::vector<WarpProduct>* later = runner->products();
    if (!later || (later->empty() && !runner->later())) product.compute(product);
    else later->push_back(product);
}
IN_RUNNER void commit_products() { ++runner->fiber().product_groups; }
IN_RUNNER void wait_products(unsigned pending) {
    if (!runner->products() || runner->products()->empty()) return;
    std::vector<WarpProduct>& products = *runner->products();
    const unsigned groups = runner->fiber().product_groups;
    const auto done = [&](const WarpProduct& product) { return product.group + pending < groups; };
    for (const WarpProduct product : products)  // a copy, on the kernel's stack
        if (done(product)) product.compute(product);
    products.erase(std::remove_if(products.begin(), products.end(), done), products.end());
}

// ---- launch --------------------------------------------------------------------------------------------------------

// A fault of the kernel that would normally end a process ends its launch here.
static PER_THREAD Report* crash_report = nullptr;
constexpr int FAULTS[3] = {SIGSEGV, SIGBUS, SIGFPE};
static struct sigaction actions_before[3];

// Creates the page of sparse memory at an address, if the address is in sparse memory and the page does not exist yet.
inline bool make_page(const Request& request, Report& report, uint64_t address) {
    const uint64_t page = address / request.page * request.page;
    for (uint32_t i = 0; i < request.n_ranges; ++i) {
        const Range& range = request.ranges[i];
        if (!range.content || address - range.begin >= (range.size + request.page - 1) / request.page * request.page)
            continue;
        for (uint32_t made = 0; made < report.n_made; ++made)
            if (request.made[made] == page) return false;  // an input, which may not be written
        if (report.n_made == request.most_made) {
            if (runner->in_kernel()) runner->stop(TOO_MUCH);
            return false;
        }
        if (mprotect((void*)page, request.page, PROT_READ | PROT_WRITE)) return false;
        uint64_t from = (page - range.begin + range.period - range.lead % range.period) % range.period;
        for (uint64_t at = 0; at < request.page;) {
            const uint64_t count = std::min(request.page - at, range.period - from);
            memcpy((char*)page + at, range.content + from, count);
            at += count, from = 0;
        }
        const uint64_t zeros = range.begin + range.size - range.zeros;
        if (range.zeros && zeros < page + request.page) {
            const uint64_t at = std::max(page, zeros);
            memset((void*)at, 0, page + request.page - at);
        }
        if (!range.output) mprotect((void*)page, request.page, PROT_READ);
        request.made[report.n_made++] = page;
        return true;
    }
    return false;
}

inline void on_fault(int signal, siginfo_t* info, void* context) {
    if (runner && crash_report && signal == SIGSEGV && runner->request().most_made &&
        make_page(runner->request(), *crash_report, (uint64_t)info->si_addr))
        return;  // the access is repeated
    if (!runner || !runner->in_kernel() || !crash_report) {  // not ours: as if this handler were not installed
        for (int i = 0; i < 3; ++i)
            if (FAULTS[i] == signal) sigaction(signal, &actions_before[i], nullptr);
        return;
    }
    crash_report->signal = signal;
    crash_report->address = (uint64_t)info->si_addr;
    crash_report->access = runner->in_stack_guard(crash_report->address) ? OF_STACK : READS;
#if defined(__x86_64__) && defined(__linux__)
    if (crash_report->access != OF_STACK && ((ucontext_t*)context)->uc_mcontext.gregs[REG_ERR] & 2)
        crash_report->access = WRITES;
#endif
    runner->stop(CRASHED);
}

[[noreturn]] IN_RUNNER void trap(const char* why) {
    snprintf(crash_report->why, sizeof crash_report->why, "%s", why);
    runner->stop(TRAPPED);
    abort();
}

inline void ends_unlike_a_gpu(const char* file, uint32_t line) {
    if (!runner || !runner->in_kernel() || runner->request().converts) return;
    snprintf(crash_report->why, sizeof crash_report->why, "%s:%u", file, line);
    runner->stop(UNLIKE_A_GPU);
}

class FaultHandlers {
  public:
    FaultHandlers() {
#if !defined(__SANITIZE_ADDRESS__)
        struct sigaction action {};
        action.sa_sigaction = on_fault;
        action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;  // a handler does not return
        sigemptyset(&action.sa_mask);
        for (int i = 0; i < 3; ++i) sigaction(FAULTS[i], &action, &actions_before[i]);
#endif
    }
    ~FaultHandlers() {
#if !defined(__SANITIZE_ADDRESS__)
        for (int i = 0; i < 3; ++i) sigaction(FAULTS[i], &actions_before[i], nullptr);
#endif
    }
};

// A stack for handlers on this thread: the fiber's own may be full.
class HandlerStack {
  public:
    HandlerStack() {
        stack_t own{};
        own.ss_sp = room_.get(), own.ss_size = SIZE;
        sigaltstack(&own, &before_);
    }
    ~HandlerStack() { sigaltstack(&before_, nullptr); }

  private:
    static constexpr size_t SIZE = 64 << 10;
    std::unique_ptr<char[]> room_{new char[SIZE]};
    stack_t before_{};
};

// Some of the block numbers, ascending: the grid's corners, and as many from its border, where bounds are checked, as
// from its inside, if these have so many. And the writers of watched numbers: the border of the outputs is another one.
inline std::vector<uint32_t> some_blocks(const Request& request, Dim3 grid) {
    const unsigned sizes[] = {grid.x, grid.y, grid.z};
    double inside = 1;
    for (unsigned size : sizes) inside *= size == 1 ? 1 : size - 2.0;
    const double border = (double)grid.count() - inside;
    const double of_border = std::min(border, std::max(request.some / 2.0, request.some - inside));
    const double shares[] = {(request.some - of_border) / inside, of_border / border};
    std::vector<uint32_t> chosen;
    for (uint64_t b = 0; b < grid.count(); ++b) {
        const Dim3 index = grid.at(b);
        const unsigned at[] = {index.x, index.y, index.z};
        int ends = 0, dimensions = 0;
        for (int i = 0; i < 3; ++i) {
            dimensions += sizes[i] > 1;
            ends += sizes[i] > 1 && (at[i] == 0 || at[i] == sizes[i] - 1);
        }
        const double share = ends == dimensions ? 1 : shares[ends > 0];
        if ((double)(mixed(mixed(request.seed) ^ (b + 1)) >> 11) * 0x1p-53 < share) chosen.push_back((uint32_t)b);
    }
    for (uint64_t i = 0; i < request.n_writers; ++i)
        if (request.writers[i] < grid.count()) chosen.push_back((uint32_t)request.writers[i]);
    std::sort(chosen.begin(), chosen.end());
    chosen.erase(std::unique(chosen.begin(), chosen.end()), chosen.end());
    return chosen;
}

inline bool counts() {
    return __start_gguf_verify_counters && __start_gguf_verify_counters != __stop_gguf_verify_counters;
}

// Counters of one operating-system thread, in a copy of the library's data of which nothing else is used. Threads with
// the same counters would wait for each other at each count.
class OwnCounters {
  public:
    static bool possible(const Bytes& data) {
#if defined(__x86_64__) && defined(__linux__)
        constexpr unsigned long SETS_GS = 2;  // HWCAP2_FSGSBASE, since Linux 5.9
        return &gguf_verify_own_counters && data.size && data.size <= MOST && (getauxval(AT_HWCAP2) & SETS_GS);
#else
        return (void)data, false;
#endif
    }

    explicit OwnCounters(const Bytes& data) : data_(data), own_(data.size / 8 + 1 + 2 * PAGE / 8) {
        begin_ = ((uint64_t)own_.data() + PAGE - 1) / PAGE * PAGE + (uint64_t)data.begin % PAGE;  // aligned alike
    }
    // The running thread uses them from now on.
    void use() const {
#if defined(__x86_64__)
        asm volatile("wrgsbase %0" ::"r"(begin_ - (uint64_t)data_.begin));
#endif
    }
    void add_to_all() const {
        const uint64_t* const own = (const uint64_t*)(begin_ / 8 * 8);
        uint64_t* const all = (uint64_t*)((uint64_t)data_.begin / 8 * 8);
        for (size_t i = 0; i < data_.size / 8; ++i)
            if (own[i]) all[i] += own[i];
    }

  private:
    static constexpr size_t MOST = 1 << 20, PAGE = 4096;
    const Bytes data_;
    std::vector<uint64_t> own_;
    uint64_t begin_;
};

// The block numbers in the order in which they run; none: all, in ascending order.
inline std::vector<uint32_t> order_of_blocks(const Request& request, Dim3 grid) {
    const uint64_t blocks = grid.count();
    std::vector<uint32_t> order;
    if (request.order == ASCENDING && request.some && request.some < blocks && blocks <= ~0u)
        return some_blocks(request, grid);
    if (request.order == ASCENDING || blocks > 1 << 22) return order;
    for (uint64_t i = 0; i < blocks; ++i) order.push_back((uint32_t)(blocks - 1 - i));
    Draw draw{mixed(request.seed)};
    if (request.order == SEEDED) draw.shuffle(order.data(), blocks);
    return order;
}

// The arguments of a launch.
struct Launched {
    Dim3 grid, block;
    size_t shared;
    void (*body)(const void*);
    const void* argument;
    void (*here)();
    const Request& request;
    const std::vector<uint32_t>& order;
    uint64_t blocks, chunk;
    int workers;
};

// Watched numbers, and the blocks at whose end one operating-system thread finds them changed. If others run too, one of
// theirs may be the writer: each finds its own.
class Watch {
  public:
    explicit Watch(const Request& request) {
        for (uint64_t i = 0; i < request.n_watched; ++i) left_.push_back({request.watched[i], at(request.watched[i])});
    }
    void look(uint64_t block) {
        const auto changed = [](const Watched& one) { return at(one.address) != one.before; };
        const auto begin = std::remove_if(left_.begin(), left_.end(), changed);
        if (begin != left_.end()) writers.push_back(block), left_.erase(begin, left_.end());
    }
    std::vector<uint64_t> writers;

  private:
    struct Watched {
        uint64_t address;
        uint16_t before;  // of a number of any size
    };
    static uint16_t at(uint64_t address) { return *(const volatile uint16_t*)address; }
    std::vector<Watched> left_;
};

// The blocks that one operating-system thread runs. A block that waits for others is set aside, and others begin or
// resume: in ascending order as many as a GPU runs at once, in other orders as many as there is room for.
class Blocks {
  public:
    Blocks(const Launched& launched, Report& report, std::atomic<uint64_t>& next, const Watch& watch)
        : watch(watch), launched_(launched), request_(launched.request), report_(report), next_(next) {
        crash_report = &report;  // now this thread has the library's variables
        runner = fresh();
        library_ = library_of(launched.here);
        const uint64_t room = MOST_FIBERS / std::max<uint64_t>(1, launched.block.count());
        const uint64_t most = request_.order == ASCENDING ? std::min(AT_ONCE, room) / launched.workers : room;
        most_ = std::max<uint64_t>(1, most);
        take(runner);
        CHECKED(checks.begin_launch(request_, report_, library_, launched.shared);)
    }
    ~Blocks() {
        CHECKED(checks.end_launch();)
        runner = nullptr, crash_report = nullptr;
    }

    Outcome run() {
        for (;;) {
            const bool begins = waiting_.empty() || (waiting_.size() < most_ && !turn_of_waiting_);
            turn_of_waiting_ = false;
            if (uint64_t b; begins && next(b)) begin(b);
            else if (!waiting_.empty()) restore();
            else break;
            const Outcome outcome = runner->go_on();
            if (outcome == WAITING && !request_.alone && !request_.some && !stalled()) put_aside();
            else if (outcome != DONE) return outcome;
            else end();
        }
        const auto kept = [&](const auto& of) { return of->kept_within(launched_.shared); };
        return std::all_of(runners_.begin(), runners_.end(), kept) ? DONE : OUTSIDE_SHARED;
    }
    // The number of the block that ran last.
    uint64_t number() const { return runner ? runner->number : launched_.blocks; }
    Watch watch;

  private:
    // The multiprocessors of an H100: a block need not run before one that waits for it and has a lower number.
    static constexpr uint64_t AT_ONCE = 132;
    // How often all waiting blocks resume without any change before they are known never to end.
    static constexpr uint64_t MOST_QUIET = 1000;
    struct Waiting {
        BlockRunner* runner;
        std::vector<char> shared;  // its static shared memory
    };

    BlockRunner* fresh() {
        runners_.push_back(std::make_unique<BlockRunner>(request_, launched_.body, launched_.argument));
        return runners_.back().get();
    }
    // Makes it the running one, in unwritten shared memory.
    void take(BlockRunner* next) {
        if (library_.shared.size) memset(library_.shared.begin, (int)request_.fill, library_.shared.size);
        set(next);
        runner->variables = library_.shared;
    }
    void set(BlockRunner* next) {
        runner = next, crash_report = &report_, gridDim = launched_.grid, blockDim = launched_.block;
    }
    bool next(uint64_t& b) {
        if (at_ == end_) {
            at_ = next_.fetch_add(launched_.chunk);
            end_ = std::min(at_ + launched_.chunk, launched_.blocks);
            if (at_ >= launched_.blocks) return at_ = end_ = 0, false;
        }
        b = request_.alone ? request_.alone - 1 : launched_.order.empty() ? at_ : launched_.order[at_];
        return ++at_, true;
    }
    void begin(uint64_t b) {
        quiet_ = 0;
        if (!runner) {
            const bool is_new = idle_.empty();
            if (is_new) idle_.push_back(fresh());
            take(idle_.back()), idle_.pop_back();
            CHECKED(if (is_new && launched_.shared) checks.add_shared(runner->dynamic_shared(), launched_.shared);)
        } else if (request_.order != ASCENDING && begun_) {
            take(runner);
        }
        if (begun_ && request_.order != ASCENDING) runner->unset_dynamic_shared(launched_.shared);
        begun_ = true;
        runner->begin(b);
    }
    void put_aside() {
        const Bytes& shared = library_.shared;
        waiting_.push_back({runner, std::vector<char>(shared.begin, shared.begin + shared.size)});
        runner = nullptr;
    }
    void restore() {
        if (runner) idle_.push_back(runner);
        Waiting next = std::move(waiting_.front());
        waiting_.pop_front();
        if (!next.shared.empty()) memcpy(library_.shared.begin, next.shared.data(), next.shared.size());
        set(next.runner);
        blockIdx = gridDim.at(runner->number);
        CHECKED(checks.go_on_with(runner->number);)
        if (launched_.workers > 1) std::this_thread::yield();  // another thread may have to change something
    }
    void end() {
        CHECKED(checks.end_block();)
        watch.look(runner->number);
        quiet_ = 0, turn_of_waiting_ = true;
    }
    // Whether all blocks that have begun wait, and no other can begin. In ascending order, this is left to the time
    // limit.
    bool stalled() {
        quiet_ = runner->changed ? 0 : quiet_ + 1;
        runner->changed = false;
        return request_.order != ASCENDING && quiet_ > MOST_QUIET * (waiting_.size() + 1);
    }

    const Launched& launched_;
    const Request& request_;
    Report& report_;
    std::atomic<uint64_t>& next_;
    HandlerStack handler_stack_;
    Library library_{};
    std::vector<std::unique_ptr<BlockRunner>> runners_;
    std::vector<BlockRunner*> idle_;
    std::deque<Waiting> waiting_;
    uint64_t at_ = 0, end_ = 0, most_ = 1, quiet_ = 0;
    bool turn_of_waiting_ = false, begun_ = false;
};

#if defined(CUDA_ON_CPU_CHECKS)
uint64_t current_thread() { return runner->thread(); }
bool in_kernel() { return runner && runner->in_kernel(); }
bool on_a_stack(uint64_t address) { return runner->in_a_stack(address); }
void stop_launch() { runner->stop(FOUND); }
uint8_t* shared_of_launch() { return runner->dynamic_shared(); }
#endif

#if defined(CUDA_ON_CPU_CHECKS)
// The findings of a launch in the opposite order, where an atomic operation may have come first by chance. Memory
// remains as the launch left it.
inline void run_backwards(const Launched& forwards, Report& report) {
    if (forwards.request.order != ASCENDING || forwards.request.alone) return;
    const auto made = checks.undo();
    Request request = forwards.request;
    request.order = DESCENDING;
    const std::vector<uint32_t> order = order_of_blocks(request, forwards.grid);
    const Launched backwards{forwards.grid, forwards.block, forwards.shared, forwards.body, forwards.argument,
                             forwards.here, request, order, forwards.blocks, forwards.blocks, 1};
    std::atomic<uint64_t> next{0};
    Blocks(backwards, report, next, Watch(Request{})).run();
    checks.undo();
    for (const auto& [at, byte] : made) *at = byte;
}
#endif

IN_RUNNER int launch_blocks(Dim3 grid, Dim3 block, size_t shared, int threads, void (*body)(const void*),
                            const void* argument, void (*here)(), const Request* request, Report* report) {
    const std::vector<uint32_t> order = order_of_blocks(*request, grid);
    const uint64_t blocks = request->alone ? 1 : order.empty() ? grid.count() : order.size();
    const uint64_t most = std::min<uint64_t>(blocks / 4, MOST_FIBERS / std::max<uint64_t>(1, block.count()));
    const bool alone = request->in_turn || request->order != ASCENDING CHECKED(|| true);  // so that the schedule is one
    const Bytes data = !alone && counts() ? library_of(here).data : Bytes{};
    const bool in_turn = alone || (counts() && !OwnCounters::possible(data));
    const int workers = in_turn ? 1 : (int)std::max<uint64_t>(1, std::min<uint64_t>(threads, most));
    const uint64_t chunk = alone ? blocks : std::max<uint64_t>(1, blocks / (16 * (uint64_t)workers));
    const Launched launched{grid, block, shared, body, argument, here, *request, order, blocks, chunk, workers};
    std::atomic<uint64_t> next{0};
    std::vector<int> outcomes(workers, DONE);
    std::vector<uint64_t> numbers(workers);
    std::vector<Report> reports(workers);
    const Watch watch(*request);
    std::vector<std::vector<uint64_t>> writers(workers);
    const auto work = [&](int i) {
        Blocks own(launched, reports[i], next, watch);
        outcomes[i] = own.run();
        numbers[i] = outcomes[i] == OUTSIDE_SHARED ? blocks : own.number();  // known when all blocks have ended
        writers[i] = own.watch.writers;
    };
    FaultHandlers handlers;
    std::vector<std::thread> pool;
    std::deque<OwnCounters> own;
    for (int i = 1; i < workers; ++i) {
        if (counts()) own.emplace_back(data);
        pool.emplace_back([&, i, counters = own.empty() ? nullptr : &own.back()] {
            if (counters) counters->use();
            work(i);
        });
    }
    work(0);
    for (auto& t : pool) t.join();
    for (const OwnCounters& counters : own) counters.add_to_all();
    uint64_t n = 0;
    for (const auto& found : writers)
        for (uint64_t block : found)
            if (n < request->n_writers) request->writers[n++] = block;
    CHECKED(if (outcomes[0] == DONE && !reports[0].n_findings && checks.by_chance) run_backwards(launched, reports[0]);)
    // The first block that failed, whichever thread ran it; of those that crashed, if one did.
    const auto rank = [&](int i) { return std::make_pair(outcomes[i] == CRASHED ? 0 : outcomes[i] != DONE ? 1 : 2, numbers[i]); };
    int first = 0;
    for (int i = 1; i < workers; ++i)
        if (rank(i) < rank(first)) first = i;
    *report = reports[first];
    // findings from before the launch ended also hold for a GPU
    const int outcome = outcomes[first];
    return (outcome == DONE || outcome == UNLIKE_A_GPU) && report->n_findings ? FOUND : outcome;
}

}  // namespace cuda_on_cpu

// ---- the code that was executed ------------------------------------------------------------------------------------

extern "C" __attribute__((weak)) void __gcov_info_to_gcda(const gcov_info* info, void (*name)(const char*, void*),
                                                          void (*write)(const void*, unsigned, void*),
                                                          void* (*allocate)(unsigned, void*), void* context);

// Writes the counters as gcov reads them, as far as there is room, and returns their size in bytes; 0: nothing counts.
extern "C" __attribute__((visibility("default"))) uint64_t cuda_on_cpu_counters(uint8_t* to, uint64_t room) {
    struct Writer {
        uint8_t* to;
        uint64_t room, size;
    } writer{to, room, 0};
    const auto write = [](const void* bytes, unsigned size, void* context) {
        Writer& w = *(Writer*)context;
        if (w.size + size <= w.room) memcpy(w.to + w.size, bytes, size);
        w.size += size;
    };
    const auto name = [](const char*, void*) {};
    const auto allocate = [](unsigned size, void*) { return malloc(size); };
    if (__gcov_info_to_gcda && cuda_on_cpu::counts())
        __gcov_info_to_gcda(*__start_gguf_verify_counters, name, write, allocate, &writer);
    return writer.size;
}
#include "callbacks.hpp"
#if defined(CUDA_ON_CPU_COMPARISONS)
#include "comparisons.hpp"
#endif
