// The checks of a checked build. The kernel's unit is compiled with -fsanitize=thread,alignment,
// signed-integer-overflow,shift-exponent,integer-divide-by-zero,unreachable,return,object-size. GCC then calls a
// function before each memory access, and where an address, a sum, a shift or a divisor is invalid; with
// -fsanitize-coverage=trace-pc, also at the start of each basic block (trails.hpp). The functions are those of
// callbacks.hpp, which replace the sanitizers' libraries.
//
// A race is two accesses, at least one of them a write, that are not ordered (order.hpp). Each byte of shared and of
// global memory has a cell with its last plain write, its last plain reads and its last atomic operations (as in
// FastTrack, Flanagan and Freund 2009), so that a plain access and an atomic one are both kept, in either order. A
// write that changes nothing does not race with plain accesses.
//
// Atomic operations, volatile accesses, and ld and st that are relaxed, acquire or release are strong (PTX ISA 9.0,
// 8.6): strong operations do not race with each other, but they race with plain accesses. There are two exceptions:
// overlapping atomic operations of different sizes, and block-scoped operations (atomicAdd_block) from different
// blocks. A thread that reads a value with a strong operation is ordered after the operations before it at that
// address: their order is that of the values, and needs no fence. So the last thread block may reset a counter with a
// plain store.
//
// A bulk copy belongs to the asynchronous proxy (PTX ISA 9.0, 8.1.6 and 9.7.9.25). Loads and stores of memory that it
// overwrites are ordered before it only if there is also a proxy fence in between. An arrival at an mbarrier counts as
// one, since NVIDIA's own pipelines have no other; an arrival that also expects bytes does not, or the copy's own would
// count.
#pragma once
#include "order.hpp"
#include "trails.hpp"

namespace cuda_on_cpu {

// The interface of the runner.
uint64_t current_thread();
bool in_kernel();
bool on_a_stack(uint64_t address);
void stop_launch();
uint8_t* shared_of_launch();

// The name in reports of a copy that is one of two accesses.
constexpr uint32_t A_COPY = 1 << 16;
struct AsyncWrite {
    Clock known;
    uint32_t thread = 0, clock = 0, at = 0;
};

// The thread and time of an access to a byte; clock 0: none. Threads from the block's size on are copies.
struct Touch {
    uint32_t clock, at, block;
    uint16_t thread;
    uint8_t how;    // Strong; 0: a plain access
    uint8_t piece;  // size of an atomic operation and index of this byte in it; 0: any size
    uint32_t turn;  // of strong operations, in the order of their values
};
// The last accesses of a byte that are not known to be ordered before later ones.
struct Cell {
    Touch write, reads[3], strong[3];
    uint32_t written;  // 1 + the number of the last block that wrote it; 0: none
};

struct Region {
    uint64_t begin, size;
    bool shared, input;
    Cell* cells;

    bool has(uint64_t at) const { return at - begin < size; }
    Cell* cells_at(uint64_t at) {
        if (!cells) cells = (Cell*)calloc(size, sizeof(Cell));
        if (!cells) abort();
        return cells + (at - begin);
    }
};

// The variables of the kernel's unit: the start of each in the library, or in its thread-local memory, and its size.
// hosts/extents.py writes them here. The bytes after each belong to no variable. `warps`: whether the unit calls an
// instruction of a warp; if none does, no lane can be left out.
struct Extents {
    uint64_t count, padding, warps;
    struct {
        uint64_t begin;
        uint32_t size, shared;
    } all[2048];
};
extern "C" __attribute__((visibility("hidden"), used)) const volatile Extents cuda_on_cpu_extents = {0, 1, 1, {}};

// A variable's bytes.
struct Extent {
    uint64_t begin, end;
    bool operator<(const Extent& other) const { return begin < other.begin; }
};

class Checks {
  public:
    bool on = false;
    // Whether strong operations have ordered threads in the last launch: with a different order of threads and blocks
    // they might not have, unless one waits for the other.
    bool by_chance = false;

    void begin_launch(const Request& request, Report& report, const Library& library, size_t shared) {
        on = true, report_ = &report, library_ = library;
        regions_.clear();
        if (shared) add({(uint64_t)shared_of_launch(), shared, true, false, nullptr});
        if (library.shared.size) add({(uint64_t)library.shared.begin, library.shared.size, true, false, nullptr});
        for (uint32_t i = 0; i < request.n_ranges; ++i) {
            const Range& range = request.ranges[i];
            add({range.begin, range.size, false, range.output == 0, nullptr});
        }
        if (library.data.size) add({(uint64_t)library.data.begin, library.data.size, false, false, nullptr});
        variables_.clear();
        for (uint64_t i = 0; i < cuda_on_cpu_extents.count; ++i) {
            const auto& v = cuda_on_cpu_extents.all[i];
            const uint64_t begin = v.begin + (v.shared ? library.thread_local_base : library.base);
            variables_.push_back({begin, begin + v.size});
        }
        std::sort(variables_.begin(), variables_.end());
        last_ = 0, pending_.size = 0, copy_ = turn_ = 0;
        published_.clear(), replaced_.clear();
        by_chance = false;
    }
    void end_launch() {
        flush();
        on = false;
        for (auto& [_, block] : blocks_) free_all(block.cells);
        blocks_.clear(), now_ = nullptr;
        for (Region& r : regions_) free(r.cells);
        regions_.clear();
    }
    // Block number `block` begins; others may be waiting.
    void begin_block(uint64_t block, uint64_t threads) {
        leave_block();
        threads_ = (uint32_t)threads, block_ = (uint32_t)block;
        now_ = &blocks_.try_emplace(block_, block_, threads_).first->second;
        if (cuda_on_cpu_extents.warps) {
            if (spare_.empty()) spare_.push_back(std::make_unique<Trails>());
            now_->trails = std::move(spare_.back()), spare_.pop_back();
            now_->trails->begin(threads);
        }
        for (auto i = published_.begin(); i != published_.end();) i = i->second.shared ? published_.erase(i) : ++i;
    }
    // It resumes after others.
    void go_on_with(uint64_t block) {
        if (now_ && block_ == block) return;
        leave_block();
        block_ = (uint32_t)block;
        now_ = &blocks_.at(block_);
        size_t i = 0;
        for (Region& r : regions_) {
            if (!r.shared) continue;
            free(r.cells);
            r.cells = i < now_->cells.size() ? now_->cells[i] : nullptr, ++i;
        }
        now_->cells.clear();
    }
    void end_block() {
        flush();
        if (now_->trails) spare_.push_back(std::move(now_->trails));
        blocks_.erase(block_), now_ = nullptr;
    }
    // Restores the global memory that the last launch overwrote; returns what the launch had written.
    std::vector<std::pair<uint8_t*, uint8_t>> undo() {
        std::vector<std::pair<uint8_t*, uint8_t>> made;
        for (const auto& [at, before] : replaced_) {
            made.emplace_back(at, *at);
            *at = before;
        }
        replaced_.clear();
        return made;
    }
    // Dynamic shared memory of blocks that run while others wait.
    void add_shared(const uint8_t* begin, size_t size) {
        if (size) add({(uint64_t)begin, size, true, false, nullptr});
    }
    void end_thread() { flush(); }

    // ---- order ---------------------------------------------------------------------------------------------------

    void pause() { flush(); }
    // Releases the running thread's accesses to whatever acquires this.
    void release(Meeting& meeting) {
        flush();
        order().release(current_thread(), meeting);
    }
    void acquire(const Meeting& meeting) { order().acquire(current_thread(), meeting); }
    void hand_on(Knowledge& to) {
        flush();
        order().hand_on(current_thread(), to);
    }
    void take(const Knowledge& from) { order().take(current_thread(), from); }
    void arrive_at_block(uint64_t thread, const void* line) {
        flush();
        now_->arrived_at[thread] = at_of(line);
    }
    void released_block() {
        order().barrier();
        // CUDA allows the barrier in a branch only if all threads of the block take it
        std::vector<uint32_t>& arrived_at = now_->arrived_at;
        for (uint32_t t = 0, first = 0; t < threads_; ++t) {
            if (!arrived_at[t]) continue;
            if (!arrived_at[first]) first = t;
            if (arrived_at[t] == arrived_at[first]) continue;
            Finding f{};
            f.kind = DIVERGENT, f.at[0] = arrived_at[first], f.at[1] = arrived_at[t];
            f.thread[0] = first, f.thread[1] = t, f.block[0] = f.block[1] = block_;
            add(f);
        }
        std::fill(arrived_at.begin(), arrived_at.end(), 0);
    }

    // The running thread reaches an instruction of its warp, before or after other lanes of the mask.
    template <class Group>
    void arrive_at_group(Group& group, uint32_t mask, Way way, const void* line) {
        const uint32_t here = at_of(line), thread = (uint32_t)current_thread();
        if (!now_->trails) abort();  // the table says that there is no such instruction
        now_->trails->arrive(thread);
        if (!(mask >> thread % 32 & 1)) mask_finding(here, "names other lanes, but not the lane that executes it");
        if (!group.arrived) {
            group.way = way, group.thread = thread, group.at = here;
        } else if (group.way != way) {
            Finding f{};
            f.kind = MASK, f.at[0] = group.at, f.at[1] = here, f.thread[0] = group.thread, f.thread[1] = thread;
            f.block[0] = f.block[1] = block_;
            add(f);
        }
    }
    // The other lanes of the mask have also reached it, or have exited.
    void leave_group(uint32_t exited, const void* line) {
        if (exited) now_->trails->without((uint32_t)current_thread(), exited, at_of(line));
    }
    void no_value(uint32_t lane, const void* line) {
        add_one(NO_VALUE, lane, 0, at_of(line), nullptr, false);
    }
    void wrong_width(int width, const void* line) {
        char text[64];
        snprintf(text, sizeof text, "has a width of %d, which is not 1, 2, 4, 8, 16 or 32", width);
        mask_finding(at_of(line), text);
    }
    void not_whole(uint32_t lanes, const void* line) {
        char text[64];
        snprintf(text, sizeof text, "needs all 32 lanes, and %d execute it", __builtin_popcount(lanes));
        mask_finding(at_of(line), text);
        stop_launch();
    }
    // The running thread reaches another place in the kernel.
    void reaches(const void* line) {
        if (!leaves_trails()) return;
        const uint32_t thread = (uint32_t)current_thread();
        if (const LeftOut* found = now_->trails->reach(thread, at_of(line))) {
            Finding f{};
            f.kind = LEFT_OUT, f.at[0] = found->at, f.at[1] = at_of(line), f.thread[0] = thread, f.thread[1] = found->thread;
            f.block[0] = f.block[1] = block_;
            add(f);
        }
    }
    void calls(const void* from) {
        if (leaves_trails()) now_->trails->call((uint32_t)current_thread(), at_of(from));
    }
    void returns() {
        if (!leaves_trails()) return;
        if (const void* from = now_->trails->leave((uint32_t)current_thread())) reaches((const void*)((uint64_t)from + library_.base));
    }

    // A proxy fence: everything visible to the running thread is ordered before later bulk copies.
    void settle() {
        if (!on || !in_kernel()) return;
        flush();
        const Clock& mine = order().known(current_thread());
        for (uint32_t t = 0; t < threads_; ++t) now_->settled[t] = std::max(now_->settled[t], mine[t]);
        order().tick(current_thread());
    }
    // A bulk copy begins. Accesses that no barrier orders before it are reported when it ends.
    void overwrites(uint64_t at, uint64_t size, const void* line) {
        if (!on || !in_kernel()) return;
        flush();
        const uint32_t here = at_of(line);
        Region* r = within(at, size, true, here);
        if (!r || !r->cells) return;
        const Clock& mine = order().known(current_thread());
        const auto unsettled = [&](const Touch& t) {
            return t.clock && t.block == block_ && t.thread < threads_ && t.clock <= mine[t.thread] &&
                   t.clock > now_->settled[t.thread];
        };
        const Touch copy{0, here, block_, (uint16_t)threads_, 0, 0, 0};
        for (uint64_t i = 0; i < size; ++i)
            for_each(r->cells_at(at)[i], [&](const Touch& t, bool wrote) {
                if (unsettled(t)) race(t, wrote, copy, true, at + i, 1, UNFENCED);
            });
    }

    // The size of an asynchronous copy (PTX ISA 9.0, 9.7.9.25: cp.async) or a bulk copy, and that both addresses are
    // multiples of it, or of 16.
    void copies(const void* to, const void* from, uint64_t bytes, uint64_t zeros, bool past_l1, const void* line) {
        if (past_l1 && bytes != 16) illegal_operand(line, "copies %lld bytes, and cp.async.cg copies 16", (long long)bytes);
        if (bytes != 4 && bytes != 8 && bytes != 16)
            illegal_operand(line, "copies %lld bytes, and CUDA copies 4, 8 or 16", (long long)bytes);
        if (zeros > bytes)
            illegal_operand(line, "sets more than its %lld bytes to zero, or fewer than none", (long long)bytes);
        for (const void* at : {from, to}) must_align(at, bytes, "an asynchronous copy of", bytes, line);
        if (bytes > zeros) must_lie_in(GLOBAL, (uint64_t)from, line);
        must_lie_in(SHARED, (uint64_t)to, line);
    }
    void copies_bulk(const void* to, const void* from, int bytes, const void* line) {
        if (bytes <= 0 || bytes % 16) illegal_operand(line, "copies %lld bytes, which is no multiple of 16", bytes);
        for (const void* at : {from, to}) must_align(at, 16, "a bulk copy of", (uint64_t)bytes, line);
        must_lie_in(GLOBAL, (uint64_t)from, line), must_lie_in(SHARED, (uint64_t)to, line);
    }
    // An address in none of these spaces. Addresses outside all memory are reported on access.
    void must_lie_in(uint32_t spaces, uint64_t at, const void* line) {
        if (!on || !in_kernel()) return;
        const uint32_t found = spaces_of(at);
        const bool generic = !found && spaces == SHARED && spaces_of(as_generic(at)) == SHARED;
        if (found & spaces || (!found && !generic)) return;
        flush();
        const char* const got = found & SHARED ? "shared" : found & LOCAL ? "local" : found & GLOBAL ? "global" : "";
        const char* const needed = spaces == SHARED     ? "shared memory (.shared)"
                                   : spaces == GLOBAL   ? "global memory (.global)"
                                   : spaces == LOCAL    ? "local memory (.local, .param)"
                                   : spaces == CONSTANT ? "constant memory (.const)"
                                                        : "global or shared memory";
        char text[96];
        snprintf(text, sizeof text, "needs an address in %s, and gets one in %s memory", needed, got);
        add_one(OPERAND, 0, 0, at_of(line), generic ? UNCONVERTED : text, false);
        stop_launch();
    }
    void must_align(const void* at, uint64_t alignment, const char* what, uint64_t bytes, const void* line) {
        if ((uint64_t)at % alignment == 0) return;
        char text[64];
        snprintf(text, sizeof text, "'%s %llu bytes'", what, (unsigned long long)bytes);
        misaligned((uint64_t)at, alignment, line, text);
    }
    // PTX ISA 9.0, 9.7.13.1 (barrier).
    void named_barrier(int id, int threads, bool arrives, const void* line) {
        if (id < 0 || id > 15) illegal_operand(line, "names barrier %lld of 0 to 15", id);
        if (threads < 0 || threads % 32) illegal_operand(line, "is of %lld threads, which are no whole warps", threads);
        if (!threads && arrives) illegal_operand(line, "arrives at a barrier of %lld threads", threads);
    }
    // A promise to the compiler does not hold: compiled for a GPU, the kernel may do anything.
    void false_assumption(const char* text, const void* line) {
        if (!on || !in_kernel()) return;
        flush();
        add_one(ASSUMPTION, 0, 0, at_of(line), text, false);
        stop_launch();
    }
    // The instruction does not have such an operand.
    void illegal_operand(const void* line, const char* format, long long value) {
        if (!on || !in_kernel()) return;
        flush();
        char text[96];
        snprintf(text, sizeof text, format, value);
        add_one(OPERAND, 0, 0, at_of(line), text, false);
        stop_launch();
    }
    AsyncWrite begin_copy(void* to, uint64_t size, const void* from, uint64_t read, const void* line) {
        access((uint64_t)from, read, false, line);
        within((uint64_t)to, size, true, at_of(line));
        flush();
        AsyncWrite write;
        write.known = order().known(current_thread());
        order().tick(current_thread());
        write.thread = threads_ + copy_ % COPIES, write.clock = ++copy_, write.at = at_of(line);
        return write;
    }
    void copied(const AsyncWrite& write, void* to, uint64_t size) {
        flush();
        const Touch mine{write.clock, write.at, block_, (uint16_t)write.thread, 0, 0, 0};
        Region* r = within((uint64_t)to, size, true, write.at);
        if (!r) return;
        Cell* cells = r->cells_at((uint64_t)to);
        for (uint64_t i = 0; i < size; ++i) {
            for_each(cells[i], [&](const Touch& t, bool wrote) {
                if (t.clock && t.block == block_ && write.known[t.thread] < t.clock)
                    race(t, wrote, mine, true, (uint64_t)to + i, 1);
            });
            written(cells[i], mine);
        }
    }
    void copied_into(const AsyncWrite& write, Meeting& meeting) {
        join(meeting.known.own, write.known);
        meeting.known.own[write.thread] = std::max(meeting.known.own[write.thread], write.clock);
    }
    void own_copy(const AsyncWrite& write) {
        Clock& mine = order().known(current_thread());
        mine[write.thread] = std::max(mine[write.thread], write.clock);
    }

    // Publishes what the running thread knows to threads that synchronize with one of its later strong operations.
    void fence(bool of_gpu) {
        if (!on || !in_kernel()) return;
        flush();
        order().fence(current_thread(), of_gpu ? OF_GPU : OF_BLOCK);
    }

    // An atomic operation, or a strong load or store; `how`: Strong.
    void atomic(uint64_t at, uint64_t size, uint32_t how, const void* line) {
        if (!on || !in_kernel()) return;
        if ((how & LOADS) && (how & STORES)) must_lie_in(GLOBAL | SHARED, at, line);
        if (at % size == 0) return access_strongly(at, size, how, line);
        flush();
        add_one(MISALIGNED, at, size, at_of(line), "'an atomic operation'", true);
        stop_launch();
    }
    void access_strongly(uint64_t at, uint64_t size, uint32_t how, const void* line) {
        if (!on || !in_kernel()) return;
        flush();
        reaches(line);
        const uint32_t here = at_of(line);
        Region* r = within(at, size, how & STORES, here);
        if (!r) return;
        if (!r->input) strong(*r, at, size, how, here);
        else if (how & STORES) add_one(INTO_INPUT, at, size, here, nullptr, true);
    }

    // ---- accesses ------------------------------------------------------------------------------------------------

    void access(uint64_t at, uint64_t size, bool writes, const void* line) {
        if (!on || !in_kernel() || !size) return;
        flush();
        reaches(line);
        const uint32_t here = at_of(line);
        Region* r = within(at, size, writes, here);
        if (!r) return;
        if (r->input) {
            if (writes) add_one(INTO_INPUT, at, size, here, nullptr, true);
            return;
        }
        if (writes) keep(*r, at, size), write(*r, at, size, touch(here));
        else read(*r, at, size, touch(here));
    }

    // A load that may return the contents from before the launch, even if it is ordered after a store (PTX ISA 9.0,
    // ld.global.nc).
    void read_as_constant(uint64_t at, uint64_t size, const void* line) {
        if (!on || !in_kernel()) return;
        must_lie_in(GLOBAL, at, line);
        flush();
        const uint32_t here = at_of(line);
        Region* r = within(at, size, false, here);
        if (!r || r->input) return;
        const Cell* cells = r->cells_at(at);
        for (uint64_t i = 0; i < size; ++i)
            for_each(cells[i], [&](const Touch& t, bool wrote) {
                if (t.clock && wrote) race(t, true, touch(here), false, at + i, size, RACE, STALE);
            });
    }

    void misaligned(uint64_t at, uint64_t alignment, const void* line, const char* type) {
        if (!on || !in_kernel()) return;
        flush();
        add_one(MISALIGNED, at, alignment, at_of(line), type, false);
        stop_launch();
    }
    void overflows(const void* line, const char* what) {
        if (!on || !in_kernel()) return;
        flush();
        add_one(OVERFLOWS, 0, 0, at_of(line), what, false);
    }
    void shifts(int64_t by, uint64_t bits, const void* line) {
        if (!on || !in_kernel()) return;
        flush();
        add_one(SHIFT, (uint64_t)by, bits, at_of(line), nullptr, false);
    }
    // An access through the address of a variable that is outside the variable.
    void leaves_variable(uint64_t at, bool writes, const void* line, const char* type) {
        if (!on || !in_kernel()) return;
        flush();
        add_one(PAST_VARIABLE, at, 0, at_of(line), type, writes);
        stop_launch();
    }
    void divides_by_zero(const void* line) {
        if (!on || !in_kernel()) return;
        flush();
        add_one(DIVISION, 0, 0, at_of(line), nullptr, false);
        stop_launch();
    }

  private:
    bool leaves_trails() const { return on && now_ && now_->trails && in_kernel(); }
    static constexpr char UNCONVERTED[] =
        "needs an address in shared memory (.shared) as cvta.to.shared gives it, not a generic one";
    static constexpr char STALE[] = "but ld.global.nc (__ldg) is for what a launch never writes";

    // Conflicting writes are reported only if they change the bytes: it is no race if all threads write the same value.
    struct Pending {
        Region* region = nullptr;
        uint64_t at = 0, size = 0;
        uint8_t bytes[64];
        Touch mine, other;
        bool other_writes = false;
    };

    // A thread block that has begun and not ended.
    struct Block {
        Block(uint32_t number, uint32_t threads) : order(number, threads), arrived_at(threads, 0), settled(threads, 0) {}
        Ordering order;
        std::vector<uint32_t> arrived_at;
        Clock settled;             // each thread's time up to which accesses come before later bulk copies
        std::vector<Cell*> cells;  // of its shared memory, while another block runs
        std::unique_ptr<Trails> trails;  // null: the unit has no instruction of a warp
    };
    // The knowledge published by strong operations at an address.
    struct PublishedAt : Published {
        bool shared = false;
    };

    uint32_t at_of(const void* line) const { return (uint32_t)((uint64_t)line - library_.base); }
    void add(const Region& r) { regions_.push_back(r); }
    static void free_all(std::vector<Cell*>& cells) {
        for (Cell* c : cells) free(c);
        cells.clear();
    }
    Ordering& order() { return now_->order; }
    void leave_block() {
        flush();
        if (!now_) return;
        for (Region& r : regions_)
            if (r.shared) now_->cells.push_back(r.cells), r.cells = nullptr;
    }

    Touch touch(uint32_t here) {
        const uint64_t t = current_thread();
        return {order().time_of(t), here, block_, (uint16_t)t, 0, 0, 0};
    }
    bool unordered(const Region& r, const Touch& t, const Touch& mine) const {
        if (!t.clock) return false;
        if (t.block == mine.block) return !now_->order.knows(mine.thread, t.thread, t.clock);
        return !r.shared && !now_->order.knows_of(mine.thread, t.block, t.thread, t.clock);
    }

    Region* region_of(uint64_t at) {
        if (last_ < regions_.size() && regions_[last_].has(at)) return &regions_[last_];
        for (size_t i = 0; i < regions_.size(); ++i)
            if (regions_[i].has(at)) return &regions_[last_ = i];
        return nullptr;
    }
    // 0: it is outside all memory.
    uint32_t spaces_of(uint64_t at) {
        if (const Region* r = region_of(at)) return r->shared ? SHARED : library_.data.has(at) ? GLOBAL | CONSTANT : GLOBAL;
        return on_a_stack(at) ? LOCAL : library_.image.has(at) ? GLOBAL | CONSTANT : 0;
    }
    // The generic address that corresponds to an address in .shared.
    static uint64_t as_generic(uint64_t at) {
        return (uint64_t)of_shared_address(to_shared_address((const void*)(uintptr_t)to_shared_address((const void*)at)));
    }

    // The region that an access may touch. Accesses outside all regions end the launch.
    Region* within(uint64_t at, uint64_t size, bool writes, uint32_t here) {
        const auto is_one_of = [&](const Dim3& index) { return at - (uint64_t)&index < sizeof index; };
        if (is_one_of(threadIdx) || is_one_of(blockIdx) || is_one_of(blockDim) || is_one_of(gridDim)) return nullptr;
        if ((library_.image.has(at) || library_.shared.has(at)) && leaves_variable_of_unit(at, size)) {
            char text[32];
            snprintf(text, sizeof text, "'%llu bytes'", (unsigned long long)size);
            add_one(PAST_VARIABLE, at, size, here, text, writes);
            stop_launch();
        }
        if (Region* r = region_of(at)) return inside(*r, at, size, writes, here);
        if (on_a_stack(at) || (library_.image.has(at) && !writes)) return nullptr;
        add_one(OUTSIDE, at, size, here, nullptr, writes);
        stop_launch();
        return nullptr;
    }
    // Memory that is neither in a variable nor after one belongs to the compiler.
    bool leaves_variable_of_unit(uint64_t at, uint64_t size) const {
        auto next = std::upper_bound(variables_.begin(), variables_.end(), Extent{at, 0});
        if (next == variables_.begin()) return false;
        const uint64_t end = (--next)->end;
        return at < end ? at + size > end : at < end + cuda_on_cpu_extents.padding;
    }
    Region* inside(Region& r, uint64_t at, uint64_t size, bool writes, uint32_t here) {
        if (at - r.begin + size <= r.size) return &r;
        add_one(OUTSIDE, r.begin + r.size, at + size - r.begin - r.size, here, nullptr, writes);
        stop_launch();
        return nullptr;
    }

    template <class Each>
    static void for_each(const Cell& c, Each each) {
        each(c.write, true);
        for (const Touch& t : c.reads) each(t, false);
        for (const Touch& t : c.strong) each(t, (t.how & STORES) != 0);
    }
    // Called before a write to global memory, whose bytes undo() restores.
    void keep(Region& r, uint64_t at, uint64_t size) {
        if (r.shared) return;
        Cell* cells = r.cells_at(at);
        for (uint64_t i = 0; i < size; ++i)
            if (!cells[i].written) cells[i].written = 1, replaced_.emplace_back((uint8_t*)at + i, ((uint8_t*)at)[i]);
    }
    // A write that is ordered after all recorded accesses.
    static void written(Cell& c, const Touch& mine) {
        c = Cell{};
        c.write = mine, c.written = mine.block + 1;
    }
    bool unset(const Region& r, const Cell& c) const { return r.shared && c.written != block_ + 1; }

    // Whether a plain access is not ordered after a strong one.
    bool races(const Region& r, const Cell& c, const Touch& t, const Touch& mine) {
        if (!unordered(r, t, mine)) return false;
        for (const Touch& later : c.strong)  // it read the value of `t` and is ordered before `mine`
            if (later.clock && later.how & LOADS && later.turn > t.turn && !unordered(r, later, mine))
                return by_chance = true, false;
        return true;
    }
    void read(Region& r, uint64_t at, uint64_t size, const Touch& mine) {
        Cell* cells = r.cells_at(at);
        for (uint64_t i = 0; i < size; ++i) {
            Cell& c = cells[i];
            if (unset(r, c)) add_one(UNSET, at + i, size, mine.at, nullptr, false);
            else if (unordered(r, c.write, mine)) race(c.write, true, mine, false, at + i, size);
            for (const Touch& t : c.strong)
                if (t.how & STORES && races(r, c, t, mine)) race(t, true, mine, false, at + i, size);
            *place_of_read(r, c, mine) = mine;
        }
    }
    // A record that this read makes redundant, an empty one, one of the same warp, or any.
    Touch* place_of_read(const Region& r, Cell& c, const Touch& mine) const {
        Touch* place = &c.reads[mine.thread % 3];
        for (Touch& t : c.reads) {
            if (!unordered(r, t, mine)) return &t;
            if (t.block == mine.block && t.thread / 32 == mine.thread / 32) place = &t;
        }
        return place;
    }

    void strong(Region& r, uint64_t at, uint64_t size, uint32_t how, uint32_t here) {
        const uint64_t thread = current_thread();
        const Scope scope = how & OF_ONE_BLOCK ? OF_BLOCK : OF_GPU;
        PublishedAt& there = published_[at];
        there.shared = r.shared;
        if (how & LOADS && order().learn(thread, scope, there)) by_chance = true;
        if (how & STORES) order().publish(thread, scope, there), keep(r, at, size);
        Touch mine = touch(here);
        mine.how = (uint8_t)how, mine.turn = ++turn_;
        const uint64_t part = how & IN_HALVES ? 2 : size;  // each of two halves is updated separately
        Cell* cells = r.cells_at(at);
        for (uint64_t i = 0; i < size; ++i) {
            Cell& c = cells[i];
            mine.piece = how & OF_ANY_SIZE ? 0 : (uint8_t)(part << 4 | i % part);
            if (how & LOADS && !(how & UNREAD) && unset(r, c)) add_one(UNSET, at + i, size, here, nullptr, false);
            if (unordered(r, c.write, mine)) race(c.write, true, mine, how & STORES, at + i, size);
            for (const Touch& t : c.reads)
                if (how & STORES && unordered(r, t, mine)) race(t, false, mine, true, at + i, size);
            for (const Touch& t : c.strong)
                if (const char* why = not_atomic(t, mine); why && unordered(r, t, mine))
                    race(t, t.how & STORES, mine, how & STORES, at + i, size, RACE, why);
            *place_of_strong(r, c, mine) = mine;
            if (how & STORES) c.written = block_ + 1;
        }
    }
    // Why two strong operations are not atomic with respect to each other, or null.
    static const char* not_atomic(const Touch& a, const Touch& b) {
        if (!a.clock || !((a.how | b.how) & STORES)) return nullptr;
        if (a.piece && b.piece && a.piece != b.piece) return "atomic operations of other sizes that overlap";
        if (a.block != b.block && (a.how | b.how) & OF_ONE_BLOCK) return "one is atomic in its thread block alone";
        return nullptr;
    }
    // An earlier operation that is visible to this one; or the initial value, if a load.
    Touch* place_of_strong(const Region& r, Cell& c, const Touch& mine) const {
        Touch* place = nullptr;
        for (Touch& t : c.strong) {
            const bool covered = mine.how & STORES || !(t.how & STORES);
            if (!t.clock || (covered && !unordered(r, t, mine))) return &t;
            const auto rank = [](const Touch& of) { return std::make_pair((of.how & STORES) != 0, of.turn); };
            if (!place || rank(t) < rank(*place)) place = &t;
        }
        return place;
    }

    void write(Region& r, uint64_t at, uint64_t size, const Touch& mine) {
        Cell* cells = r.cells_at(at);
        const Touch *plain = nullptr, *strong = nullptr;
        for (uint64_t i = 0; i < size && !strong; ++i)
            for_each(cells[i], [&](const Touch& t, bool) {
                if (!t.how && !plain && unordered(r, t, mine)) plain = &t;
                if (t.how && !strong && races(r, cells[i], t, mine)) strong = &t;
            });
        const Touch* other = strong ? strong : plain;
        const bool writes = other && (strong ? strong->how & STORES : is_write(cells, size, plain));
        if (other && !strong && size <= sizeof pending_.bytes) {
            pending_.region = &r, pending_.at = at, pending_.size = size, pending_.mine = mine, pending_.other = *other;
            pending_.other_writes = writes;
            memcpy(pending_.bytes, (const void*)at, size);
            return;
        }
        if (other) race(*other, writes, mine, true, at, size);
        for (uint64_t i = 0; i < size; ++i) written(cells[i], mine);
    }
    static bool is_write(const Cell* cells, uint64_t size, const Touch* t) {
        return std::any_of(cells, cells + size, [&](const Cell& c) { return &c.write == t; });
    }
    void flush() {
        if (!pending_.size) return;
        const uint64_t size = pending_.size;
        pending_.size = 0;
        if (!memcmp(pending_.bytes, (const void*)pending_.at, size)) return;
        race(pending_.other, pending_.other_writes, pending_.mine, true, pending_.at, size);
        Cell* cells = pending_.region->cells_at(pending_.at);
        for (uint64_t i = 0; i < size; ++i) written(cells[i], pending_.mine);
    }

    void race(const Touch& a, bool a_writes, const Touch& b, bool b_writes, uint64_t at, uint64_t size,
              Kind kind = RACE, const char* why = "") {
        Finding f{};
        f.kind = kind, f.address = at, f.size = (uint32_t)size;
        f.at[0] = a.at, f.at[1] = b.at, f.writes[0] = does(a, a_writes), f.writes[1] = does(b, b_writes);
        strncpy(f.text, why, sizeof f.text - 1);
        f.thread[0] = a.thread < threads_ ? a.thread : A_COPY, f.thread[1] = b.thread < threads_ ? b.thread : A_COPY;
        f.block[0] = a.block, f.block[1] = b.block;
        add(f);
    }
    void mask_finding(uint32_t here, const char* text) { add_one(MASK, 0, 0, here, text, false); }
    static Does does(const Touch& t, bool writes) {
        return (t.how & (LOADS | STORES)) == (LOADS | STORES) ? UPDATES : writes ? WROTE : READ;
    }
    void add_one(Kind kind, uint64_t at, uint64_t size, uint32_t here, const char* text, bool writes) {
        Finding f{};
        f.kind = kind, f.address = at, f.size = (uint32_t)size, f.at[0] = here, f.writes[0] = writes;
        f.thread[0] = (uint32_t)current_thread(), f.block[0] = block_;
        if (text) strncpy(f.text, text, sizeof f.text - 1);
        add(f);
    }
    void add(const Finding& f) {
        for (uint32_t i = 0; i < report_->n_findings; ++i) {
            const Finding& g = report_->findings[i];
            if (g.kind == f.kind && g.at[0] == f.at[0] && g.at[1] == f.at[1]) return;
        }
        const uint32_t most = sizeof report_->findings / sizeof *report_->findings;
        if (report_->n_findings < most) report_->findings[report_->n_findings++] = f;
        // faults that end the launch are always reported
        else if (f.kind == OUTSIDE || f.kind == MISALIGNED || f.kind == DIVISION || f.kind >= OPERAND)
            report_->findings[most - 1] = f;
    }

    Report* report_ = nullptr;
    Library library_{};
    std::vector<Region> regions_;
    std::vector<Extent> variables_;  // of the kernel's unit
    size_t last_ = 0;
    uint32_t block_ = 0, threads_ = 0, copy_ = 0, turn_ = 0;
    std::map<uint32_t, Block> blocks_;
    Block* now_ = nullptr;
    std::map<uint64_t, PublishedAt> published_;
    std::vector<std::pair<uint8_t*, uint8_t>> replaced_;  // bytes of global memory, as they were before the launch
    Pending pending_;
    std::vector<std::unique_ptr<Trails>> spare_;  // of blocks that have ended
};

static Checks checks;

}  // namespace cuda_on_cpu
