// `wgmma` of halves with more widths than in hopper.cuh, and with both operands in shared memory (PTX ISA 9.0, section
// 9.7.15.5). The order of rows, columns and registers is that of hopper.cuh.
#pragma once
#include "../../hopper.cuh"

#ifdef __CUDACC__
#define OUT_4(I) "+f"(d[I]), "+f"(d[I + 1]), "+f"(d[I + 2]), "+f"(d[I + 3])
#define OUT_16(I) OUT_4(I), OUT_4(I + 4), OUT_4(I + 8), OUT_4(I + 12)
#define OUT_64(I) OUT_16(I), OUT_16(I + 16), OUT_16(I + 32), OUT_16(I + 48)

template <bool ADD>
__device__ __forceinline__ void wgmma(float (&d)[4], const uint32_t (&a)[4], SharedMatrix b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {"
        "%0,%1,%2,%3"
        "}, {%4,%5,%6,%7}, %8, %9, 1, 1, 0;"
        : OUT_4(0)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.descriptor), "n"((int)ADD));
}

template <bool ADD>
__device__ __forceinline__ void wgmma(float (&d)[64], const uint32_t (&a)[4], SharedMatrix b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
        "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
        "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
        "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
        "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
        "}, {%64,%65,%66,%67}, %68, %69, 1, 1, 0;"
        : OUT_64(0)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.descriptor), "n"((int)ADD));
}

template <bool ADD>
__device__ __forceinline__ void wgmma(float (&d)[128], const uint32_t (&a)[4], SharedMatrix b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 {"
        "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
        "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
        "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
        "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,"
        "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,"
        "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,"
        "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,"
        "%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
        "}, {%128,%129,%130,%131}, %132, %133, 1, 1, 0;"
        : OUT_64(0), OUT_64(64)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.descriptor), "n"((int)ADD));
}

// The first operand is also in shared memory: 64 rows of 64 halves, in the layout of the second.
template <bool ADD>
__device__ __forceinline__ void wgmma(float (&d)[128], SharedMatrix a, SharedMatrix b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 {"
        "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
        "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
        "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
        "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,"
        "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,"
        "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,"
        "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,"
        "%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
        "}, %128, %129, %130, 1, 1, 0, 0;"
        : OUT_64(0), OUT_64(64)
        : "l"(a.descriptor), "l"(b.descriptor), "n"((int)ADD));
}

#undef OUT_4
#undef OUT_16
#undef OUT_64
#else
// Like wgmma_of_warp of hopper_on_cpu.hpp, with the 16 rows of a in shared memory, at the address in p.a[0].
template <bool ADD, int COUNT>
void wgmma_of_shared(const cuda_on_cpu::WarpProduct& p) {
    uint32_t fragments[32][4];
    cuda_on_cpu::WarpProduct with_fragments = p;
    for (int l = 0; l < 32; ++l) {
        for (int i = 0; i < 4; ++i) {
            const uintptr_t at = (uintptr_t)p.a[0] + (l / 4 + 8 * (i % 2)) * 128 + 16 * (i / 2) + 4 * (l % 4);
            memcpy(&fragments[l][i], (const void*)(at ^ (at >> 7 & 7) << 4), 4);
        }
        with_fragments.a[l] = fragments[l];
    }
    wgmma_of_warp<ADD, COUNT>(with_fragments);
}

template <bool ADD, int COUNT>
void wgmma(float (&d)[COUNT], SharedMatrix a, SharedMatrix b) {
    WgmmaLane own{(const uint32_t*)(a.start + threadIdx.x % 128 / 32 * 16 * 128), d, false};
    const uint64_t* given = cuda_on_cpu::gather((uint64_t)(uintptr_t)&own);
    if (own.done) return;
    cuda_on_cpu::WarpProduct product{&wgmma_of_shared<ADD, COUNT>, {}, {}, b.start, 0};
    for (int l = 0; l < 32; ++l) {
        WgmmaLane* lane = (WgmmaLane*)(uintptr_t)given[l];
        product.a[l] = lane->a, product.d[l] = lane->d;
        lane->done = true;
    }
    cuda_on_cpu::multiply(product);
}
#endif
