// candle's mmvq_gguf_*_f16_plain_cuda2 (candle-kernels/src/mmvq_gguf.cu): two tokens, outputs in float16.
// `build.py` beside this file lays candle's source into `built`; a macro gives the kernel of each type one name.
// On a GPU take candle_products.py, which has all types.
//
// [gguf-verify]
// formats = ["Q4_0", "Q5_1", "Q4_K", "Q6_K"]
// output = "float16"
// semantics = "q8_1"
// domain = { M = { least = 2, most = 2 } }
// parameters = ["weights", "activations", "output", "int32 K", "int32 N", "int32 ceil(K, 512) * 16", "int32 N"]
// block = [32, 4]
// grid = "ceil(N, 2)"
// macros.Q4_0 = { mmvq_gguf_q4_0_f16_plain_cuda2 = "product" }
// macros.Q5_1 = { mmvq_gguf_q5_1_f16_plain_cuda2 = "product" }
// macros.Q4_K = { mmvq_gguf_q4_k_f16_plain_cuda2 = "product" }
// macros.Q6_K = { mmvq_gguf_q6_k_f16_plain_cuda2 = "product" }
// [operands.activations]
// columns = "ceil(K, 512) * 512"
// [operands.weights]
// tail = "512 / BLOCK * BYTES"
// [/gguf-verify]
#include "built/candle/mmvq_gguf.cu"
