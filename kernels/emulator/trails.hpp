// The places of a kernel that its threads reach, to find lanes that a warp instruction names but that do not execute
// it.
//
// All lanes of a mask must execute the instruction, except those that have exited (Programming Guide, "Warp Shuffle
// Functions"). The order of threads does not show whether a lane has exited, or only bypassed the instruction and exits
// later: on a GPU, either may happen first. So the code decides. If a lane, after its last such instruction, reached a
// place that the lanes executing this one reach only later, the two paths join after the instruction: the lane bypassed
// it. A lane that has returned shares only the return with them.
#pragma once

namespace cuda_on_cpu {

// A lane that an instruction at `at` names, and that bypassed it.
struct LeftOut {
    uint32_t thread, at;
};

// A place is the start of a basic block, a memory access, or a return address, together with its call stack.
class Trails {
  public:
    void begin(uint64_t threads) {
        if (trails_.size() < threads) trails_.resize(threads);
        for (Trail& trail : trails_) trail.clear();
    }
    void arrive(uint32_t thread) {
        ++trails_[thread].instructions;
    }
    // Lanes that have exited without executing the instruction at `at`, which names them.
    void without(uint32_t thread, uint32_t exited, uint32_t at) {
        Trail& t = trails_[thread];
        for (uint32_t lane = 0; lane < 32; ++lane)
            if ((exited & ~t.missing) >> lane & 1) t.left_out.push_back({thread / 32 * 32 + lane, at});
        t.missing |= exited;
    }
    // The thread reaches a place; returns a lane that has been there and bypassed an instruction, or null. The place
    // where a lane was last does not count: it returns there, like all.
    const LeftOut* reach(uint32_t thread, uint32_t at) {
        Trail& t = trails_[thread];
        if (t.calls.empty()) return nullptr;  // the kernel has returned
        t.last = t.calls.back().all * 0x9E3779B97F4A7C15 + at;
        if (!t.places.put(t.last, t.instructions)) return nullptr;
        for (const LeftOut& other : t.left_out) {
            Trail& before = trails_[other.thread];
            if (t.last != before.last && before.places.has(t.last, before.instructions)) return &other;
        }
        return nullptr;
    }
    void call(uint32_t thread, uint32_t from) {
        Trail& t = trails_[thread];
        const uint64_t outer = t.calls.empty() ? 0 : t.calls.back().all;
        t.calls.push_back({outer * 0x9E3779B97F4A7C15 + from + 1, from});
    }
    // The call site of the ending call; null: the kernel itself.
    const void* leave(uint32_t thread) {
        Trail& t = trails_[thread];
        if (t.calls.empty()) return nullptr;
        const uint32_t from = t.calls.back().from;
        t.calls.pop_back();
        return t.calls.empty() ? nullptr : (const void*)(uintptr_t)from;
    }
  private:
    struct Call {
        uint64_t all;
        uint32_t from;
    };
    // Places, and after how many warp instructions a thread was there last: a table of a power of two slots, at most
    // half of them in use.
    class Places {
      public:
        void clear() { slots_.assign(64, {}), used_ = 0; }
        // Whether it is new.
        bool put(uint64_t place, uint32_t instructions) {
            Slot* slot = &find(place);
            const bool first = !slot->place;
            if (first && 2 * ++used_ > slots_.size()) grow(), slot = &find(place);
            slot->place = place, slot->instructions = instructions;
            return first;
        }
        bool has(uint64_t place, uint32_t instructions) {
            const Slot& slot = find(place);
            return slot.place && slot.instructions == instructions;
        }

      private:
        struct Slot {
            uint64_t place;  // 0: none
            uint32_t instructions;
        };
        Slot& find(uint64_t place) {
            size_t i = place * 0x9E3779B97F4A7C15 >> 32;
            while (slots_[i &= slots_.size() - 1].place && slots_[i].place != place) ++i;
            return slots_[i];
        }
        void grow() {
            std::vector<Slot> before(2 * slots_.size());
            before.swap(slots_);
            for (const Slot& slot : before)
                if (slot.place) find(slot.place) = slot;
        }
        std::vector<Slot> slots_;
        size_t used_ = 0;
    };
    struct Trail {
        Places places;
        std::vector<Call> calls;
        std::vector<LeftOut> left_out;
        uint32_t instructions = 0, missing = 0;
        uint64_t last = 0;

        void clear() { places.clear(), calls.clear(), left_out.clear(), instructions = missing = 0, last = 0; }
    };
    std::vector<Trail> trails_;
};

}  // namespace cuda_on_cpu
