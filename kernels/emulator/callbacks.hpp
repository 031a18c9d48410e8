// The functions that GCC's instrumentation calls (gcc/sanitizer.def; the arguments of compiler-rt's ubsan_handlers.h),
// for checks.hpp. An ordinary build of a kernel with volatile accesses is also instrumented (hosts/compiler.py, WAITS),
// so that a thread that polls with such reads lets the awaited thread run.
#pragma once
#include "conversions.hpp"

namespace cuda_on_cpu {

struct TypeMismatch {
    SourceLocation location;
    const TypeDescriptor* type;
    uint8_t log_alignment, kind;
};

struct Shift {
    SourceLocation location;
    const TypeDescriptor *of, *by;
};
// An integer as the sanitizers give it.
inline int64_t value_of(const TypeDescriptor& type, unsigned long value) {
    const unsigned bits = 1u << (type.info >> 1);
    return type.info & 1 && bits < 64 ? (int64_t)(value << (64 - bits)) >> (64 - bits) : (int64_t)value;
}

}  // namespace cuda_on_cpu

extern "C" {
#define HIDDEN __attribute__((visibility("hidden"), used))
#define ACCESS(NAME, SIZE, WRITES)                                                                              \
    HIDDEN void __tsan_##NAME(void* at) {                                                                       \
        CHECKED(cuda_on_cpu::checks.access((uint64_t)at, SIZE, WRITES, __builtin_return_address(0));) (void)at; \
    }
#define ACCESSES(PREFIX, SIZE)              \
    ACCESS(PREFIX##read##SIZE, SIZE, false) \
    ACCESS(PREFIX##write##SIZE, SIZE, true)
// A loop that reads volatile memory may be waiting for another thread.
#define VOLATILE_ACCESS(NAME, SIZE, HOW)                                                                                \
    HIDDEN void __tsan_volatile_##NAME##SIZE(void* at) {                                                                \
        using namespace cuda_on_cpu;                                                                                    \
        if (is_of_all((uint64_t)at)) runner->after_atomic(HOW == STORES);                                               \
        CHECKED(checks.access_strongly((uint64_t)at, SIZE, HOW | OF_ANY_SIZE, __builtin_return_address(0));)            \
    }
#define VOLATILE_ACCESSES(SIZE)          \
    VOLATILE_ACCESS(read, SIZE, LOADS)   \
    VOLATILE_ACCESS(write, SIZE, STORES)
ACCESSES(, 1)
ACCESSES(, 2)
ACCESSES(, 4)
ACCESSES(, 8)
ACCESSES(, 16)
ACCESSES(unaligned_, 2)
ACCESSES(unaligned_, 4)
ACCESSES(unaligned_, 8)
ACCESSES(unaligned_, 16)
VOLATILE_ACCESSES(1)
VOLATILE_ACCESSES(2)
VOLATILE_ACCESSES(4)
VOLATILE_ACCESSES(8)
VOLATILE_ACCESSES(16)
HIDDEN void __tsan_read_range(void* at, unsigned long size) {
    CHECKED(cuda_on_cpu::checks.access((uint64_t)at, size, false, __builtin_return_address(0));) (void)at, (void)size;
}
HIDDEN void __tsan_write_range(void* at, unsigned long size) {
    CHECKED(cuda_on_cpu::checks.access((uint64_t)at, size, true, __builtin_return_address(0));) (void)at, (void)size;
}
// The pointer to a class's virtual functions, which constructors and destructors write.
HIDDEN void __tsan_vptr_update(void** at, void*) {
    CHECKED(cuda_on_cpu::checks.access((uint64_t)at, sizeof *at, true, __builtin_return_address(0));) (void)at;
}
HIDDEN void __tsan_vptr_read(void** at) {
    CHECKED(cuda_on_cpu::checks.access((uint64_t)at, sizeof *at, false, __builtin_return_address(0));) (void)at;
}
HIDDEN void __tsan_init() {}
HIDDEN void __tsan_func_entry(void* from) { CHECKED(cuda_on_cpu::checks.calls(from);) (void)from; }
HIDDEN void __tsan_func_exit(void*) { CHECKED(cuda_on_cpu::checks.returns();) }

#if defined(CUDA_ON_CPU_CHECKS)
HIDDEN void __sanitizer_cov_trace_pc() { cuda_on_cpu::checks.reaches(__builtin_return_address(0)); }

HIDDEN void __ubsan_handle_type_mismatch_v1(cuda_on_cpu::TypeMismatch* said, unsigned long at) {
    const unsigned long alignment = 1ul << said->log_alignment;
    const void* const line = __builtin_return_address(0);
    if (at & (alignment - 1)) cuda_on_cpu::checks.misaligned(at, alignment, line, said->type->name);
    else if (alignment == 1) cuda_on_cpu::checks.leaves_variable(at, said->kind == 1, line, said->type->name);  // object-size
}
#define OVERFLOWING(NAME, WORDS)                                                                       \
    HIDDEN void __ubsan_handle_##NAME##_overflow(void*, unsigned long, unsigned long) {                \
        cuda_on_cpu::checks.overflows(__builtin_return_address(0), WORDS);                             \
    }
OVERFLOWING(add, "sum")
OVERFLOWING(sub, "difference")
OVERFLOWING(mul, "product")
HIDDEN void __ubsan_handle_divrem_overflow(void*, unsigned long, unsigned long by) {
    if (by) cuda_on_cpu::checks.overflows(__builtin_return_address(0), "quotient");
    else cuda_on_cpu::checks.divides_by_zero(__builtin_return_address(0));
}
HIDDEN void __ubsan_handle_shift_out_of_bounds(cuda_on_cpu::Shift* said, unsigned long, unsigned long by) {
    const unsigned bits = 1u << (said->of->info >> 1);
    cuda_on_cpu::checks.shifts(cuda_on_cpu::value_of(*said->by, by), bits, __builtin_return_address(0));
}
HIDDEN void __ubsan_handle_builtin_unreachable(void*) {
    cuda_on_cpu::checks.false_assumption("__builtin_unreachable is reached", __builtin_return_address(0));
    abort();
}
HIDDEN void __ubsan_handle_missing_return(void*) {
    cuda_on_cpu::checks.false_assumption("a function ends without its value", __builtin_return_address(0));
    abort();
}
HIDDEN void __ubsan_handle_negate_overflow(void*, unsigned long) {
    cuda_on_cpu::checks.overflows(__builtin_return_address(0), "negation");
}
#endif
}
