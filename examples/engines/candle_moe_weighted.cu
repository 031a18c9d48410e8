// candle's moe_gemm_gguf_kernel (candle-kernels/src/moe/moe_gguf.cu) with weights of a router: experts by lists.
// `build.py` beside this file lays candle's source into `built`. With these weights, each slot has its own activations.
//
// [gguf-verify]
// formats = ["Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"]
// computes = "experts"
// semantics = "q8_1"
// epilogue = ["token_scale"]
// experts = { activations = "slot", top_k = { most = 8 } }
// domain = { M = { most = 8191 } }
// parameters = [
//     "weights", "activations", "sorted_token_ids", "expert_ids", "token_scale", "output", "int32 E", "int32 TOP_K",
//     "int32 M * TOP_K", "int32 N", "int32 K", "int32 ceil(K, 512) * 512",
// ]
// block = [32, 4]
// grid = ["ceil(N, 4)", "M * TOP_K"]
// shared = "4 * K / BLOCK * BYTES + 1024"
// macros.Q8_0 = { OF = "QK8_0, QI8_0, block_q8_0, VDR_Q8_0_Q8_1_MMVQ, vec_dot_q8_0_q8_1" }
// macros.Q2_K = { OF = "QK_K, QI2_K, block_q2_K, VDR_Q2_K_Q8_1_MMVQ, vec_dot_q2_K_q8_1" }
// macros.Q3_K = { OF = "QK_K, QI3_K, block_q3_K, VDR_Q3_K_Q8_1_MMVQ, vec_dot_q3_K_q8_1" }
// macros.Q4_K = { OF = "QK_K, QI4_K, block_q4_K, VDR_Q4_K_Q8_1_MMVQ, vec_dot_q4_K_q8_1" }
// macros.Q5_K = { OF = "QK_K, QI5_K, block_q5_K, VDR_Q5_K_Q8_1_MMVQ, vec_dot_q5_K_q8_1" }
// macros.Q6_K = { OF = "QK_K, QI6_K, block_q6_K, VDR_Q6_K_Q8_1_MMVQ, vec_dot_q6_K_q8_1" }
// [operands.activations]
// columns = "ceil(K, 512) * 512"
// [operands.weights]
// tail = "512 / BLOCK * BYTES"
// [/gguf-verify]
#include "built/candle/moe/moe_gguf.cu"
