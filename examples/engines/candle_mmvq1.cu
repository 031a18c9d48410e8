// candle's mmvq_gguf_*_f32_plain_cuda1 (candle-kernels/src/mmvq_gguf.cu): one token.
// `build.py` beside this file lays candle's source into `built`; a macro gives the kernel of each type one name.
// On a GPU take candle_products.py, which has all types.
//
// [gguf-verify]
// formats = ["Q4_0", "Q5_1", "Q4_K", "Q6_K"]
// semantics = "q8_1"
// domain = { M = 1 }
// parameters = ["weights", "activations", "output", "int32 K", "int32 N", "int32 ceil(K, 512) * 16", "int32 N"]
// block = [32, 4]
// grid = "N"
// macros.Q4_0 = { mmvq_gguf_q4_0_f32_plain_cuda1 = "product" }
// macros.Q5_1 = { mmvq_gguf_q5_1_f32_plain_cuda1 = "product" }
// macros.Q4_K = { mmvq_gguf_q4_k_f32_plain_cuda1 = "product" }
// macros.Q6_K = { mmvq_gguf_q6_k_f32_plain_cuda1 = "product" }
// [operands.activations]
// columns = "ceil(K, 512) * 512"
// [operands.weights]
// tail = "512 / BLOCK * BYTES"
// [/gguf-verify]
#include "built/candle/mmvq_gguf.cu"
