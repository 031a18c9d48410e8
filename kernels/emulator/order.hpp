// The happens-before order of a launch's accesses, by Lamport clocks, with one clock per thread.
//
// The block's barrier orders all threads, __syncwarp the lanes of a warp; named barriers, mbarriers and waits for
// copies order their participants. Shuffles order nothing, but they pass on what a lane has learned from a strong
// operation.
//
// Thread blocks are ordered by an atomic operation after a fence, and a later one at the same address: everything
// visible to the first thread at its fence is ordered before everything that the second thread does from there on. (A
// fence of the second thread is not required, since CUDA's own examples have none.) Without a fence, an atomic
// operation only orders the operations at its own address, which follow from the value that it returns (checks.hpp).
#pragma once

namespace cuda_on_cpu {

// For each thread of a block: the time up to which its accesses are known. Copies come after the threads.
typedef std::vector<uint32_t> Clock;
typedef std::map<uint32_t, Clock> Others;  // by number of the thread block

inline void join(Clock& to, const Clock& from) {
    if (to.size() < from.size()) to.resize(from.size());
    for (size_t i = 0; i < from.size(); ++i) to[i] = std::max(to[i], from[i]);
}
inline void join(Others& to, const Others& from) {
    for (const auto& [block, clock] : from) join(to[block], clock);
}

// What a thread knows about its own block and others.
struct Knowledge {
    Clock own;
    Others others;

    bool empty() const { return own.empty() && others.empty(); }
    void join(const Knowledge& from) {
        cuda_on_cpu::join(own, from.own);
        cuda_on_cpu::join(others, from.others);
    }
};

// A fence of a thread block, or of the whole GPU.
enum Scope : uint32_t { OF_BLOCK = 0, OF_GPU = 1 };
constexpr Scope SCOPES[] = {OF_BLOCK, OF_GPU};

// The knowledge that threads exchange at a synchronization: all they know, and the part that fences have published.
struct Meeting {
    Knowledge known, fenced[2];
};

// The knowledge published by atomic operations at an address: to threads of the same block, and to those of others.
struct Published {
    std::map<uint32_t, Knowledge> in_block;
    Others on_gpu;
};

// A copy in flight counts as a thread of its own, so that even the thread that began it must wait for it.
constexpr uint32_t COPIES = 32;

class Ordering {
  public:
    Ordering(uint32_t block, uint32_t threads)
        : block_(block), count_(threads), own_(threads, 1), base_(threads + COPIES, 0), threads_(threads) {}

    uint32_t time_of(uint64_t t) const { return own_[t]; }
    void tick(uint64_t t) { ++own_[t]; }
    Clock& known(uint64_t t) {
        if (threads_[t].known.empty()) threads_[t].known = base_;
        threads_[t].known[t] = own_[t];
        return threads_[t].known;
    }
    // Whether an access of a thread of the same block, or of another, at some time is ordered before the current one of
    // thread `t`.
    bool knows(uint64_t t, uint32_t thread, uint32_t time) const {
        if (thread == t || base_[thread] >= time) return true;
        const Clock& known = threads_[t].known;
        return !known.empty() && known[thread] >= time;
    }
    bool knows_of(uint64_t t, uint32_t block, uint32_t thread, uint32_t time) const {
        return is_in(base_others_, block, thread, time) || is_in(threads_[t].learned.others, block, thread, time);
    }

    void release(uint64_t t, Meeting& meeting) {
        join(meeting.known.own, known(t));
        join(meeting.known.others, threads_[t].learned.others);
        for (Scope s : SCOPES) meeting.fenced[s].join(threads_[t].fenced[s]);
        tick(t);
    }
    void acquire(uint64_t t, const Meeting& meeting) {
        if (!meeting.known.own.empty()) join(known(t), meeting.known.own);
        join(threads_[t].learned.others, meeting.known.others);
        for (Scope s : SCOPES) threads_[t].fenced[s].join(meeting.fenced[s]);
    }
    void hand_on(uint64_t t, Knowledge& to) const { to.join(threads_[t].learned); }
    void take(uint64_t t, const Knowledge& from) {
        if (from.empty()) return;
        threads_[t].learned.join(from);
        join(known(t), from.own);
    }

    // All threads of the block have met.
    void barrier() {
        for (uint32_t t = 0; t < count_; ++t) {
            Thread& thread = threads_[t];
            for (uint32_t c = 0; c < COPIES && !thread.known.empty(); ++c)
                base_[count_ + c] = std::max(base_[count_ + c], thread.known[count_ + c]);
            thread.known.clear();
            join(base_others_, thread.learned.others);
            thread.learned = Knowledge{};
            for (Scope s : SCOPES) {
                base_fenced_[s].join(thread.fenced[s]);
                thread.fenced[s] = Knowledge{};
            }
            base_[t] = own_[t]++;
        }
    }

    void fence(uint64_t t, Scope scope) {
        Knowledge all{known(t), base_others_};
        join(all.others, threads_[t].learned.others);
        if (scope == OF_GPU) threads_[t].fenced[OF_GPU] = all;
        threads_[t].fenced[OF_BLOCK] = std::move(all);
        tick(t);
    }
    // Called before an atomic operation of thread `t`: it publishes what is fenced.
    void publish(uint64_t t, Scope scope, Published& there) const {
        for (const Knowledge* fenced : {&base_fenced_[OF_BLOCK], &threads_[t].fenced[OF_BLOCK]})
            if (!fenced->empty()) there.in_block[block_].join(*fenced);
        for (const Knowledge* fenced : {&base_fenced_[OF_GPU], &threads_[t].fenced[OF_GPU]}) {
            if (fenced->empty() || scope != OF_GPU) continue;
            join(there.on_gpu[block_], fenced->own);
            join(there.on_gpu, fenced->others);
        }
    }
    // Called after it: the thread learns what others have published there. Returns whether that was anything.
    bool learn(uint64_t t, Scope scope, const Published& there) {
        bool learned = false;
        for (const auto& [block, clock] : there.on_gpu) {
            if (block == block_ || scope != OF_GPU || contains(base_others_, block, clock)) continue;
            join(threads_[t].learned.others[block], clock);
            learned = true;
        }
        const auto own = there.in_block.find(block_);
        if (own == there.in_block.end()) return learned;
        take(t, own->second);
        return true;
    }

  private:
    // What a thread knows in addition to the common knowledge of the block.
    struct Thread {
        Clock known;
        Knowledge learned;  // from strong operations; for its own block, a part of `known`
        Knowledge fenced[2];
    };
    static bool is_in(const Others& others, uint32_t block, uint32_t thread, uint32_t time) {
        const auto found = others.find(block);
        return found != others.end() && found->second.size() > thread && found->second[thread] >= time;
    }
    static bool contains(const Others& others, uint32_t block, const Clock& clock) {
        for (uint32_t t = 0; t < clock.size(); ++t)
            if (clock[t] && !is_in(others, block, t, clock[t])) return false;
        return true;
    }

    uint32_t block_, count_;
    std::vector<uint32_t> own_;  // each thread's time
    Clock base_;                 // what all threads know
    Others base_others_;
    Knowledge base_fenced_[2];
    std::vector<Thread> threads_;
};

}  // namespace cuda_on_cpu
