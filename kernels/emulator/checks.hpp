// What a checked build looks for. The kernel's unit is compiled with -fsanitize=thread,alignment,signed-integer-overflow,
// shift-exponent,integer-divide-by-zero; GCC then calls a function before each access to memory, and where an address, a
// sum, a shift or a divisor is not what it should be; with -fsanitize-coverage=trace-pc, where each block of instructions
// begins (trails.hpp). They are those of callbacks.hpp, in place of the sanitizers' libraries.
//
// A race is two accesses of which one writes, by threads of which no barrier orders one before the other (the happens-
// before of Lamport's clocks; cells as in FastTrack, Flanagan and Freund 2009). The block's barrier orders all threads,
// __syncwarp the lanes of a warp; named barriers, mbarriers and waits for copies those that take part. Shuffles and
// matrix products order nothing. A write that changes nothing races with nobody. Atomic operations, and accesses to what
// is volatile, do not race with each other; they do with others.
//
// Thread blocks are ordered by an atomic operation that follows a fence, and one that comes later at the same address:
// what the first thread knew at its fence comes before all that the second one's block does from there on. (A fence of
// the second thread is not asked for, since CUDA's own examples have none.)
//
// A bulk copy is of the asynchronous proxy (PTX ISA 9.0, 8.1.6 and 9.7.9.25). Accesses to what it overwrites, by loads and
// stores, come before it if a fence of proxies lies between too. An arrival at an mbarrier counts as one, since NVIDIA's
// own pipelines have no other; one that also expects bytes does not, or the copy's own would count.
#pragma once
#include "trails.hpp"

namespace cuda_on_cpu {

// What a thread knows of each: up to which of its times all it did comes before.
typedef std::vector<uint32_t> Clock;

// The runner's side.
uint64_t current_thread();
bool in_kernel();
bool on_a_stack(uint64_t address);
void stop_launch();
uint8_t* shared_of_launch();

// A copy that is under way counts as a thread of its own, so that even the thread that began it has to wait for it.
constexpr uint32_t COPIES = 32, A_COPY = 1 << 16;
struct AsyncWrite {
    Clock known;
    uint32_t thread = 0, clock = 0, at = 0;
};

// By whom a byte was accessed; clock 0: by nobody.
struct Touch {
    uint32_t clock, at, block, thread;
    bool atomic;
};
// What is known of the threads of other thread blocks, by the block's number.
typedef std::map<uint32_t, Clock> Others;
struct Cell {
    Touch write, reads[3];
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

class Checks {
  public:
    bool on = false;

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
        last_ = 0, pending_.size = 0, copy_ = 0;
        published_.clear();
    }
    void end_launch() {
        flush();
        on = false;
        for (Region& r : regions_) free(r.cells);
        regions_.clear();
    }
    void begin_block(uint64_t block, uint64_t threads) {
        flush();
        trails_.begin(threads);
        block_ = (uint32_t)block, threads_ = (uint32_t)threads;
        own_.assign(threads, 1);
        base_.assign(threads + COPIES, 0);
        more_.assign(threads, Clock{});
        arrived_at_.assign(threads, 0);
        others_.clear(), of_block_.clear(), of_card_.clear();
        fenced_.assign(threads, Fenced{});
        any_fence_ = false;
        settled_.assign(threads, 0);
        for (auto i = published_.begin(); i != published_.end();) i = i->second.shared ? published_.erase(i) : ++i;
    }
    void end_thread() { flush(); }

    // ---- order ---------------------------------------------------------------------------------------------------

    void pause() { flush(); }
    // What the running thread did comes before whatever acquires this.
    void release(Clock& clock) {
        flush();
        join(clock, known());
        ++own_[current_thread()];
    }
    void acquire(const Clock& clock) {
        if (!clock.empty()) join(known(), clock);
    }
    void arrive_at_block(uint64_t thread, const void* line) {
        flush();
        arrived_at_[thread] = at_of(line);
    }
    void released_block() {
        for (uint32_t t = 0; t < threads_ && any_fence_; ++t) join(of_block_, fenced_[t].block), join(of_card_, fenced_[t].card);
        for (uint32_t t = 0; t < threads_; ++t) {
            for (uint32_t c = 0; c < COPIES && !more_[t].empty(); ++c)
                base_[threads_ + c] = std::max(base_[threads_ + c], more_[t][threads_ + c]);
            more_[t].clear();
            base_[t] = own_[t]++;
        }
        // CUDA allows the barrier in a branch only if all threads of the block take it
        for (uint32_t t = 0, first = 0; t < threads_; ++t) {
            if (!arrived_at_[t]) continue;
            if (!arrived_at_[first]) first = t;
            if (arrived_at_[t] == arrived_at_[first]) continue;
            Finding f{};
            f.kind = DIVERGENT, f.at[0] = arrived_at_[first], f.at[1] = arrived_at_[t];
            f.thread[0] = first, f.thread[1] = t, f.block[0] = f.block[1] = block_;
            add(f);
        }
        std::fill(arrived_at_.begin(), arrived_at_.end(), 0);
    }

    // The running thread comes to an instruction of its warp, before others of the mask or after them.
    template <class Group>
    void arrive_at_group(Group& group, uint32_t mask, Way way, const void* line) {
        const uint32_t here = at_of(line), thread = (uint32_t)current_thread();
        trails_.arrive(thread);
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
    // The other lanes of the mask have come to it, too, or have exited.
    void leave_group(uint32_t exited, const void* line) {
        if (exited) trails_.without((uint32_t)current_thread(), exited, at_of(line));
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
    // The running thread comes to another place of the kernel.
    void reaches(const void* line) {
        if (!on || !in_kernel()) return;
        const uint32_t thread = (uint32_t)current_thread();
        if (const LeftOut* found = trails_.reach(thread, at_of(line))) {
            Finding f{};
            f.kind = LEFT_OUT, f.at[0] = found->at, f.at[1] = at_of(line), f.thread[0] = thread, f.thread[1] = found->thread;
            f.block[0] = f.block[1] = block_;
            add(f);
        }
    }
    void calls(const void* from) {
        if (on && in_kernel()) trails_.call((uint32_t)current_thread(), at_of(from));
    }
    void returns() {
        if (!on || !in_kernel()) return;
        if (const void* from = trails_.leave((uint32_t)current_thread())) reaches((const void*)((uint64_t)from + library_.base));
    }

    // A fence of proxies: what the running thread knows of comes before later bulk copies.
    void settle() {
        if (!on || !in_kernel()) return;
        flush();
        const Clock& mine = known();
        for (uint32_t t = 0; t < threads_; ++t) settled_[t] = std::max(settled_[t], mine[t]);
        ++own_[current_thread()];
    }
    // A bulk copy begins. Accesses that no barrier orders before it are found as it ends.
    void overwrites(uint64_t at, uint64_t size, const void* line) {
        if (!on || !in_kernel()) return;
        flush();
        const uint32_t here = at_of(line);
        Region* r = within(at, size, true, here);
        if (!r || !r->cells) return;
        const Clock& mine = known();
        const auto unsettled = [&](const Touch& t) {
            return t.clock && t.block == block_ && t.thread < threads_ && t.clock <= mine[t.thread] &&
                   t.clock > settled_[t.thread];
        };
        const Touch copy{0, here, block_, A_COPY, false};
        for (uint64_t i = 0; i < size; ++i) {
            const Cell& c = r->cells_at(at)[i];
            if (unsettled(c.write)) race(c.write, true, copy, true, at + i, 1, UNFENCED);
            for (const Touch& t : c.reads)
                if (unsettled(t)) race(t, false, copy, true, at + i, 1, UNFENCED);
        }
    }

    AsyncWrite begin_copy(void* to, const void* from, int size, const void* line) {
        access((uint64_t)from, (uint64_t)size, false, line);
        within((uint64_t)to, (uint64_t)size, true, at_of(line));
        AsyncWrite write;
        release(write.known);
        write.thread = threads_ + copy_ % COPIES, write.clock = ++copy_, write.at = at_of(line);
        return write;
    }
    void copied(const AsyncWrite& write, void* to, int size) {
        flush();
        const Touch mine{write.clock, write.at, block_, write.thread, false};
        Region* r = within((uint64_t)to, (uint64_t)size, true, write.at);
        if (!r) return;
        Cell* cells = r->cells_at((uint64_t)to);
        for (int i = 0; i < size; ++i) {
            const auto unordered = [&](const Touch& t) {
                return t.clock && t.block == block_ && write.known[t.thread] < t.clock;
            };
            if (unordered(cells[i].write)) race(cells[i].write, true, mine, true, (uint64_t)to + i, 1);
            for (const Touch& t : cells[i].reads)
                if (unordered(t)) race(t, false, mine, true, (uint64_t)to + i, 1);
            cells[i] = Cell{mine, {}};
        }
    }
    void copied_into(const AsyncWrite& write, Clock& gathered) {
        join(gathered, write.known);
        gathered[write.thread] = std::max(gathered[write.thread], write.clock);
    }
    void own_copy(const AsyncWrite& write) {
        Clock& mine = known();
        mine[write.thread] = std::max(mine[write.thread], write.clock);
    }

    // What the running thread knows becomes known to who meets one of its later atomic operations.
    void fence(bool of_card) {
        if (!on || !in_kernel()) return;
        flush();
        Fenced& fenced = fenced_[current_thread()];
        fenced.time = own_[current_thread()];
        fenced.block = known();
        if (of_card) fenced.card = fenced.block;
        ++own_[current_thread()];
        any_fence_ = true;
    }

    void atomic(uint64_t at, uint64_t size, bool reads, const void* line) {
        if (!on || !in_kernel()) return;
        flush();
        reaches(line);
        const uint32_t here = at_of(line);
        if (at % size) {
            add_one(MISALIGNED, at, size, here, "'an atomic operation'", true);
            return stop_launch();
        }
        Region* r = within(at, size, true, here);
        if (!r) return;
        if (r->input) return add_one(INTO_INPUT, at, size, here, nullptr, true);
        Published& there = published_[at];
        there.shared = r->shared;
        for (const auto& [block, clock] : there.of_card)
            if (block != block_) join(others_[block], clock);
        if (there.block == block_) acquire(there.of_block);
        if (any_fence_) publish(there);
        touch_atomically(*r, at, size, reads, true, here);
    }

    // ---- accesses ------------------------------------------------------------------------------------------------

    void access(uint64_t at, uint64_t size, bool writes, const void* line, bool is_volatile = false) {
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
        if (is_volatile) return touch_atomically(*r, at, size, !writes, writes, here);
        const Touch mine{own_[current_thread()], here, block_, (uint32_t)current_thread(), false};
        if (writes) write(*r, at, size, mine);
        else read(*r, at, size, mine);
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
    void divides_by_zero(const void* line) {
        if (!on || !in_kernel()) return;
        flush();
        add_one(DIVISION, 0, 0, at_of(line), nullptr, false);
        stop_launch();
    }

  private:
    // Writes that would race are reported once the bytes have changed: where all threads write the same, all is well.
    struct Pending {
        Region* region = nullptr;
        uint64_t at = 0, size = 0;
        uint8_t bytes[64];
        Touch mine, other;
        bool other_writes = false;
    };

    // What a thread's last fence made known to its block, and to the card.
    struct Fenced {
        uint32_t time = 0;
        Clock block, card;
    };
    // What atomic operations at an address have made known: to `block`, and to others.
    struct Published {
        bool shared = false;
        uint32_t block = 0;
        Clock of_block;
        Others of_card;
    };

    uint32_t at_of(const void* line) const { return (uint32_t)((uint64_t)line - library_.base); }
    void add(const Region& r) { regions_.push_back(r); }

    Clock& known() {
        const uint64_t t = current_thread();
        if (more_[t].empty()) more_[t] = base_;
        more_[t][t] = own_[t];
        return more_[t];
    }
    static void join(Clock& to, const Clock& from) {
        if (to.size() < from.size()) to.resize(from.size());
        for (size_t i = 0; i < from.size(); ++i) to[i] = std::max(to[i], from[i]);
    }
    bool unordered(const Region& r, const Touch& t, const Touch& mine) const {
        if (!t.clock) return false;
        if (t.block != mine.block) {
            const auto known = r.shared ? others_.end() : others_.find(t.block);
            return !r.shared && (known == others_.end() || known->second.size() <= t.thread ||
                                 known->second[t.thread] < t.clock);
        }
        if (t.thread == mine.thread || base_[t.thread] >= t.clock) return false;
        const Clock& more = more_[mine.thread];
        return more.empty() || more[t.thread] < t.clock;
    }

    // The region of an access that may be looked at. Accesses outside all of them end the launch.
    Region* within(uint64_t at, uint64_t size, bool writes, uint32_t here) {
        const auto is_one_of = [&](const Dim3& index) { return at - (uint64_t)&index < sizeof index; };
        if (is_one_of(threadIdx) || is_one_of(blockIdx) || is_one_of(blockDim) || is_one_of(gridDim)) return nullptr;
        if (last_ < regions_.size() && regions_[last_].has(at)) return inside(regions_[last_], at, size, writes, here);
        for (size_t i = 0; i < regions_.size(); ++i)
            if (regions_[i].has(at)) return inside(regions_[last_ = i], at, size, writes, here);
        if (on_a_stack(at) || (library_.image.has(at) && !writes)) return nullptr;
        add_one(OUTSIDE, at, size, here, nullptr, writes);
        stop_launch();
        return nullptr;
    }
    Region* inside(Region& r, uint64_t at, uint64_t size, bool writes, uint32_t here) {
        if (at - r.begin + size <= r.size) return &r;
        add_one(OUTSIDE, r.begin + r.size, at + size - r.begin - r.size, here, nullptr, writes);
        stop_launch();
        return nullptr;
    }

    void read(Region& r, uint64_t at, uint64_t size, const Touch& mine) {
        Cell* cells = r.cells_at(at);
        for (uint64_t i = 0; i < size; ++i) {
            Cell& c = cells[i];
            const bool unset = r.shared && (!c.write.clock || c.write.block != block_);
            if (unset) add_one(UNSET, at + i, size, mine.at, nullptr, false);
            else if (unordered(r, c.write, mine)) race(c.write, true, mine, false, at + i, size);
            for (const Touch& t : c.reads)
                if (t.atomic && unordered(r, t, mine)) race(t, true, mine, false, at + i, size);
            // this read takes the place of one that it makes superfluous, of an empty one, or of any
            Touch* place = &c.reads[mine.thread % 3];
            for (Touch& t : c.reads)
                if (!t.clock || t.thread == mine.thread || (r.shared && t.block != block_)) {
                    place = &t;
                    break;
                }
            *place = mine;
        }
    }
    // An atomic operation, or an access to what is volatile. Of earlier ones that are not ordered some are kept, for
    // accesses that are neither.
    void touch_atomically(Region& r, uint64_t at, uint64_t size, bool reads, bool writes, uint32_t here) {
        const Touch mine{own_[current_thread()], here, block_, (uint32_t)current_thread(), true};
        Cell* cells = r.cells_at(at);
        for (uint64_t i = 0; i < size; ++i) {
            Cell& c = cells[i];
            if (reads && r.shared && (!c.write.clock || c.write.block != block_))
                add_one(UNSET, at + i, size, here, nullptr, false);
            if (!c.write.atomic && unordered(r, c.write, mine)) race(c.write, true, mine, writes, at + i, size);
            for (const Touch& t : c.reads)
                if (writes && !t.atomic && unordered(r, t, mine)) race(t, false, mine, true, at + i, size);
            if (!writes) continue;  // it does not race with atomic writes, and others are seen when they come
            const Touch before = c.write;
            if (before.atomic && unordered(r, before, mine)) {
                Touch* place = &c.reads[before.thread % 3];
                for (Touch& t : c.reads)
                    if (!t.clock || !unordered(r, t, mine)) place = &t;
                *place = before;
            }
            c.write = mine;
        }
    }
    // What fences have made known before the running thread's atomic operation.
    void publish(Published& there) {
        if (there.block != block_) there.of_block.clear();
        there.block = block_;
        join(there.of_block, of_block_);
        join(there.of_card[block_], of_card_);
        const uint32_t t = (uint32_t)current_thread();
        const Clock mine = known();
        for (uint32_t u = t / 32 * 32; u < std::min(t / 32 * 32 + 32, threads_); ++u) {
            const Fenced& fenced = fenced_[u];
            if (fenced.time == 0 || mine[u] < fenced.time) continue;
            join(there.of_block, fenced.block);
            join(there.of_card[block_], fenced.card);
        }
        for (const auto& [block, clock] : others_) join(there.of_card[block], clock);
    }

    void write(Region& r, uint64_t at, uint64_t size, const Touch& mine) {
        Cell* cells = r.cells_at(at);
        const Touch* other = nullptr;
        bool other_writes = false;
        for (uint64_t i = 0; i < size && !other; ++i) {
            if (unordered(r, cells[i].write, mine)) other = &cells[i].write, other_writes = true;
            for (const Touch& t : cells[i].reads)
                if (!other && unordered(r, t, mine)) other = &t;
        }
        if (!other) {
            for (uint64_t i = 0; i < size; ++i) cells[i] = Cell{mine, {}};
            return;
        }
        if (size > sizeof pending_.bytes) return race(*other, other_writes, mine, true, at, size);
        pending_.region = &r, pending_.at = at, pending_.size = size, pending_.mine = mine, pending_.other = *other;
        pending_.other_writes = other_writes;
        memcpy(pending_.bytes, (const void*)at, size);
    }
    void flush() {
        if (!pending_.size) return;
        const uint64_t size = pending_.size;
        pending_.size = 0;
        if (!memcmp(pending_.bytes, (const void*)pending_.at, size)) return;
        race(pending_.other, pending_.other_writes, pending_.mine, true, pending_.at, size);
        Cell* cells = pending_.region->cells_at(pending_.at);
        for (uint64_t i = 0; i < size; ++i) cells[i] = Cell{pending_.mine, {}};
    }

    void race(const Touch& a, bool a_writes, const Touch& b, bool b_writes, uint64_t at, uint64_t size,
              Kind kind = RACE) {
        Finding f{};
        f.kind = kind, f.address = at, f.size = (uint32_t)size;
        f.at[0] = a.at, f.at[1] = b.at, f.writes[0] = a_writes, f.writes[1] = b_writes;
        f.thread[0] = a.thread < threads_ ? a.thread : A_COPY, f.thread[1] = b.thread < threads_ ? b.thread : A_COPY;
        f.block[0] = a.block, f.block[1] = b.block;
        add(f);
    }
    void mask_finding(uint32_t here, const char* text) { add_one(MASK, 0, 0, here, text, false); }
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
        // what ends the launch is always told
        else if (f.kind == OUTSIDE || f.kind == MISALIGNED || f.kind == DIVISION) report_->findings[most - 1] = f;
    }

    Report* report_ = nullptr;
    Library library_{};
    std::vector<Region> regions_;
    size_t last_ = 0;
    uint32_t block_ = 0, threads_ = 0, copy_ = 0;
    std::vector<uint32_t> own_;  // each thread's time
    Clock base_;                 // what all threads know
    std::vector<Clock> more_;    // what a thread knows, where that is more
    std::vector<uint32_t> arrived_at_;
    Others others_;                // what the running block knows of others
    Clock of_block_, of_card_;     // what fences before its last barrier made known
    std::vector<Fenced> fenced_;
    bool any_fence_ = false;
    Clock settled_;                // each thread's time up to which accesses come before later bulk copies
    std::map<uint64_t, Published> published_;
    Pending pending_;
    Trails trails_;
};

static Checks checks;

}  // namespace cuda_on_cpu
