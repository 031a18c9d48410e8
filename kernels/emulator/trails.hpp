// Which places of a kernel its threads come to, for lanes that a warp's instruction names and that do not execute it.
//
// All lanes of a mask must execute the instruction, but those that have exited (Programming Guide, "Warp Shuffle
// Functions"). Whether a lane has exited, or has only gone round the instruction and exits later, the order of threads
// does not tell: on a GPU, either may happen first. So the code tells. Where a lane came, after its last such
// instruction, to a place that the lanes which execute this one come to only later, the two ways meet behind the
// instruction: the lane went round it. A lane that has returned shares nothing with them but the return.
#pragma once

namespace cuda_on_cpu {

// A lane that an instruction at `at` names, and that went round it.
struct LeftOut {
    uint32_t thread, at;
};

// A place is where a block of instructions begins, or memory is accessed, or a function returns to; in whichever calls.
class Trails {
  public:
    void begin(uint64_t threads) {
        if (trails_.size() < threads) trails_.resize(threads);
        for (Trail& trail : trails_) trail.clear();
    }
    void arrive(uint32_t thread) {
        ++trails_[thread].instructions;
    }
    // The lanes that have exited did not execute the instruction at `at`, and it names them.
    void without(uint32_t thread, uint32_t exited, uint32_t at) {
        Trail& t = trails_[thread];
        for (uint32_t lane = 0; lane < 32; ++lane)
            if ((exited & ~t.missing) >> lane & 1) t.left_out.push_back({thread / 32 * 32 + lane, at});
        t.missing |= exited;
    }
    // The thread comes to a place; a lane that has been there and went round an instruction, or null. The place where a
    // lane was last is none: it returns there, as all do.
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
    // Where the call is that ends; null: the kernel's own.
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
    // Places, and after how many instructions of the warp a thread was there last: a table of a power of two slots, at
    // most half of them in use.
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
