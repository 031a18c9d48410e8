// The header of the one weight format that is compiled, with -DFORMAT=<a name below> and -DBLOCK_BYTES=<the size that
// the harness derives from its own description of the format>. No `#pragma once`: a unit may define FORMAT anew and
// include this again.
#define HEADER_Q4_0 "q4_0.cuh"
#define HEADER_Q4_1 "q4_1.cuh"
#define HEADER_Q5_0 "q5_0.cuh"
#define HEADER_Q5_1 "q5_1.cuh"
#define HEADER_Q8_0 "q8_0.cuh"
#define HEADER_Q2_K "q2_k.cuh"
#define HEADER_Q3_K "q3_k.cuh"
#define HEADER_Q4_K "q4_k.cuh"
#define HEADER_Q5_K "q5_k.cuh"
#define HEADER_Q6_K "q6_k.cuh"
#define HEADER_IQ1_S "iq1_s.cuh"
#define HEADER_IQ1_M "iq1_m.cuh"
#define HEADER_IQ2_XXS "iq2_xxs.cuh"
#define HEADER_IQ2_XS "iq2_xs.cuh"
#define HEADER_IQ2_S "iq2_s.cuh"
#define HEADER_IQ3_XXS "iq3_xxs.cuh"
#define HEADER_IQ3_S "iq3_s.cuh"
#define HEADER_IQ4_NL "iq4_nl.cuh"
#define HEADER_IQ4_XS "iq4_xs.cuh"
#define HEADER_TQ1_0 "tq1_0.cuh"
#define HEADER_TQ2_0 "tq2_0.cuh"
#define HEADER_Q1_0 "q1_0.cuh"
#define HEADER_Q2_0 "q2_0.cuh"
#define HEADER_MXFP4 "mxfp4.cuh"
#define HEADER_NVFP4 "nvfp4.cuh"

#define HEADER_NAMED(NAME) HEADER_##NAME
#define HEADER_OF(NAME) HEADER_NAMED(NAME)  // once more, since ## does not expand FORMAT
#include HEADER_OF(FORMAT)

static_assert(sizeof(FORMAT) == BLOCK_BYTES, "the harness and the kernels disagree about the size of a block");
