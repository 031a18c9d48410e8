// What quantizers of the museum's kernels have in common: a block of 32 floats becomes a block of Q8_1, of d, s and codes.
#pragma once

#include "museum.cuh"

__device__ inline float largest(const float* v) {
    float most = 0.0f;
    for (int j = 0; j < 32; ++j) most = v[j] > most ? v[j] : -v[j] > most ? -v[j] : most;
    return most;
}

__device__ inline float sum_of(const float* v) {  // halves of the block are added to each other, again and again
    float s[32];
    for (int j = 0; j < 32; ++j) s[j] = v[j];
    for (int half = 16; half; half /= 2)
        for (int j = 0; j < half; ++j) s[j] += s[j + half];
    return s[0];
}

__device__ inline float rounded(float q) {  // to nearest, halves away from zero; NaN stays
    if (q != q) return q;
    const float magnitude = q < 0.0f ? -q : q, whole = (float)(int)magnitude;
    const float to = magnitude - whole >= 0.5f ? whole + 1.0f : whole;
    return q < 0.0f ? -to : to;
}

// The product of a block of weights and 32 floats by the definition q8_1; `code_of` makes a code of a value and d.
template <class W, class Code>
__device__ inline float quantized_term(const W& w, const float* v, Code code_of) {
    const float d = largest(v) / 127.0f;
    float sum = 0.0f;
    for (int j = 0; j < 32; ++j) sum += code(w, j) * code_of(v[j], d);
    return from_half(w.d) * (from_half(to_half(d)) * sum - 8.0f * from_half(to_half(sum_of(v))));
}
