// The arithmetic of q8_1.cu for kernels that quantize their activations on the way, with the same bits: four lanes a
// block, eight values a lane. Values meet at the distances 16 (in a lane), 8, 4 (lanes), 2 and 1 (in a lane).
//
// A division by d costs as much as all the rest, so a quotient is first estimated by x·(1/d), which differs from it by
// less than 127·2^-22. Where the estimate is further than that from the middle between two codes, both have the same
// code; else, and where d is extreme or x is not finite, the quotient decides.
#pragma once
#include "../common.cuh"

#ifdef __CUDACC__
__device__ __forceinline__ float about_inverse(float d) {  // to 2^-23 of it
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(d));
    return r;
}
#else
inline float about_inverse(float d) { return 1.0f / d; }
#endif

// The part of a block that lane c of four has.
struct QuantizedPart {
    uint32_t low, high;  // codes 4c … 4c+3 and 16+4c …
    float d, s;          // of the block, before they are rounded to halves
};

// From its values 4c … 4c+3 and 16+4c …; all lanes of a warp take part.
__device__ __forceinline__ QuantizedPart quantize_part(const float4& low, const float4& high) {
    const float v[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    float amax = fabsf(v[0]), sum[4];
#pragma unroll
    for (int i = 1; i < 8; ++i) amax = fmaxf(amax, fabsf(v[i]));
#pragma unroll
    for (int i = 0; i < 4; ++i) sum[i] = __fadd_rn(v[i], v[i + 4]);
#pragma unroll
    for (int lanes = 2; lanes > 0; lanes /= 2) {
        amax = fmaxf(amax, __shfl_xor_sync(0xFFFFFFFF, amax, lanes));
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[i] = __fadd_rn(sum[i], __shfl_xor_sync(0xFFFFFFFF, sum[i], lanes));
    }
    QuantizedPart out;
    out.s = __fadd_rn(__fadd_rn(sum[0], sum[2]), __fadd_rn(sum[1], sum[3]));
    out.d = __fdiv_rn(amax, 127.0f);
    bool sure = amax > 1e-30f && amax < 1e30f;
    const float inverse = about_inverse(out.d);
    uint32_t codes[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const float estimate = __fmul_rn(v[i], inverse), shifted = __fadd_rn(estimate, 12582912.0f);
        codes[i] = __float_as_uint(shifted);  // its low byte is the nearest integer's
        sure = sure && fabsf(__fadd_rn(estimate, -__fadd_rn(shifted, -12582912.0f))) < 0.49995f;
    }
    if (!sure) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const float q = out.d > 0.0f ? roundf(__fdiv_rn(v[i], out.d)) : 0.0f;
            codes[i] = q == q ? (uint32_t)(int)fminf(fmaxf(q, -127.0f), 127.0f) : 0;
        }
    }
    out.low = __byte_perm(__byte_perm(codes[0], codes[1], 0x0040), __byte_perm(codes[2], codes[3], 0x0040), 0x5410);
    out.high = __byte_perm(__byte_perm(codes[4], codes[5], 0x0040), __byte_perm(codes[6], codes[7], 0x0040), 0x5410);
    return out;
}
