// The operands of the comparisons that a kernel makes, for a traced build (hosts/compiler.py, TRACES): GCC calls these
// functions before each comparison and each switch. One operating-system thread; nothing is allocated.
#pragma once

namespace cuda_on_cpu {

// One comparison of the code, or one case of a switch. Integers are read as signed: those that depend on a shape are
// far from the limits, and a range test, which GCC makes of one unsigned comparison, stays linear.
struct Comparison {
    uint64_t at;                 // the call's return address; relative to the library when it is reported
    uint64_t times;              // how often it was made
    uint32_t which;              // 0, or 1 + the number of a case; or CONVERTS + `floats` of `cuda_on_cpu_narrows`
    uint32_t outcomes;           // bit 0: a < b, 1: a = b, 2: a > b; 3 to 5: of integers read as unsigned
    double a[2], b[2], apart[2];  // the smallest and the largest of each operand, and of a - b
};

constexpr uint32_t CONVERTS = 1u << 31;

class Comparisons {
  public:
    void note(const void* line, uint32_t which, uint32_t outcome, double a, double b) {
        if (!(std::isfinite(a) && std::isfinite(b))) return;
        const uint64_t at = (uint64_t)line;
        for (uint64_t i = (at ^ at >> 12) + 97 * which, tried = 0; tried < MOST; ++i, ++tried) {
            Comparison& one = table_[i % MOST];
            if (!one.at) one = {at, 0, which, 0, {a, a}, {b, b}, {a - b, a - b}};
            if (one.at != at || one.which != which) continue;
            widen(one.a, a), widen(one.b, b), widen(one.apart, a - b);
            ++one.times, one.outcomes |= outcome;
            return;
        }
    }
    // Writes the comparisons since the last call, as far as there is room, and returns how many it wrote.
    uint64_t take(Comparison* to, uint64_t room, uint64_t base) {
        uint64_t n = 0;
        for (Comparison& one : table_) {
            if (one.at && n < room) to[n] = one, to[n++].at -= base;
            one.at = 0;
        }
        return n;
    }

  private:
    static void widen(double (&range)[2], double value) {
        if (value < range[0]) range[0] = value;
        if (value > range[1]) range[1] = value;
    }
    static constexpr uint64_t MOST = 4096;
    Comparison table_[MOST];
};
static Comparisons comparisons;  // of this library, not of all

template <class CudaNumber>
uint32_t outcome_of(CudaNumber a, CudaNumber b) {
    return a < b ? 1 : a == b ? 2 : 4;
}

}  // namespace cuda_on_cpu

extern "C" __attribute__((visibility("default"))) uint64_t cuda_on_cpu_comparisons(cuda_on_cpu::Comparison* to,
                                                                                   uint64_t room) {
    using namespace cuda_on_cpu;
    return comparisons.take(to, room, library_of([] {}).base);
}

extern "C" {
#define COMPARES(NAME, TYPE, OUTCOME)                                                                              \
    __attribute__((visibility("hidden"), used)) void __sanitizer_cov_trace_##NAME(TYPE a, TYPE b) {                \
        using cuda_on_cpu::outcome_of;                                                                             \
        cuda_on_cpu::comparisons.note(__builtin_return_address(0), 0, OUTCOME, (double)a, (double)b);              \
    }
#define COMPARES_INTEGERS(NAME, TYPE)                                                                              \
    COMPARES(NAME, TYPE, (outcome_of(a, b) | outcome_of((u##TYPE)a, (u##TYPE)b) << 3))
COMPARES_INTEGERS(cmp1, int8_t)
COMPARES_INTEGERS(cmp2, int16_t)
COMPARES_INTEGERS(cmp4, int32_t)
COMPARES_INTEGERS(cmp8, int64_t)
COMPARES_INTEGERS(const_cmp1, int8_t)
COMPARES_INTEGERS(const_cmp2, int16_t)
COMPARES_INTEGERS(const_cmp4, int32_t)
COMPARES_INTEGERS(const_cmp8, int64_t)
COMPARES(cmpf, float, outcome_of(a, b))
COMPARES(cmpd, double, outcome_of(a, b))
// of a value that a type of fewer bits gets (foreign.hpp), and the largest number that the type holds; floats: 1 if it
// is one, 2 if the type is
__attribute__((visibility("hidden"), used)) void cuda_on_cpu_narrows(double value, double most,
                                                                            uint32_t floats, bool is_signed) {
    using namespace cuda_on_cpu;
    if (is_signed && value < 0) value = -1 - value;
    comparisons.note(__builtin_return_address(0), CONVERTS | floats, outcome_of(value, most), value, most);
}
// cases: their number, the bits of the value, and the values
__attribute__((visibility("hidden"), used)) void __sanitizer_cov_trace_switch(uint64_t value, const uint64_t* cases) {
    const unsigned left = cases[1] < 64 ? 64 - (unsigned)cases[1] : 0;
    const auto of = [left](uint64_t v) { return (double)((int64_t)(v << left) >> left); };
    for (uint64_t i = 0; i < cases[0]; ++i) {
        const double a = of(value), b = of(cases[2 + i]);
        const uint32_t outcome = cuda_on_cpu::outcome_of(a, b);
        cuda_on_cpu::comparisons.note(__builtin_return_address(0), (uint32_t)i + 1, outcome, a, b);
    }
}
}
