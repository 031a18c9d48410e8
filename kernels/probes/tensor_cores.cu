// One tensor-core instruction, mma.sync.m16n8k16, on operands chosen by the host: d = a·wᵀ + c.
//
// a[16][16] and w[8][16] are the bits of halves (mma_f16) or of bfloat16 (mma_bf16), c[16][8] and d[16][8] are float32.
// `gguf_verify.semantics.tensor_cores.probed` uses it to find L and F of a GPU. Launch one warp.

// Lane l holds rows l/4 and l/4 + 8 of a, c and d, row l/4 of w, and columns 2·(l%4), 2·(l%4) + 1, those of a and w
// also 8 further on (PTX ISA, "Matrix Fragments for mma.m16n8k16").
#define PROBE(NAME, TYPE)                                                                                              \
    extern "C" __global__ void NAME(const unsigned short *a, const unsigned short *w, const float *c, float *d) {      \
        const int row = threadIdx.x / 4, column = threadIdx.x % 4 * 2;                                                 \
        unsigned of_a[4], of_w[2];                                                                                     \
        for (int i = 0; i < 4; ++i) {                                                                                  \
            const unsigned short *at = a + (row + i % 2 * 8) * 16 + column + i / 2 * 8;                                \
            of_a[i] = at[0] | (unsigned)at[1] << 16;                                                                   \
        }                                                                                                              \
        for (int i = 0; i < 2; ++i) {                                                                                  \
            const unsigned short *at = w + row * 16 + column + i * 8;                                                  \
            of_w[i] = at[0] | (unsigned)at[1] << 16;                                                                   \
        }                                                                                                              \
        float of_d[4];                                                                                                 \
        for (int i = 0; i < 4; ++i) of_d[i] = c[(row + i / 2 * 8) * 8 + column + i % 2];                               \
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." TYPE "." TYPE ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "      \
                     "{%8,%9}, {%0,%1,%2,%3};"                                                                         \
                     : "+f"(of_d[0]), "+f"(of_d[1]), "+f"(of_d[2]), "+f"(of_d[3])                                      \
                     : "r"(of_a[0]), "r"(of_a[1]), "r"(of_a[2]), "r"(of_a[3]), "r"(of_w[0]), "r"(of_w[1]));            \
        for (int i = 0; i < 4; ++i) d[(row + i / 2 * 8) * 8 + column + i % 2] = of_d[i];                               \
    }

PROBE(mma_f16, "f16")
PROBE(mma_bf16, "bf16")
