"""The definitions of llama.cpp's backends for the products with weights of a format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

#: The most tokens of a product by MMVQ (ggml-cuda/mmvq.cuh, MMVQ_MAX_BATCH_SIZE).
MMVQ_TOKENS = 8


@dataclass(frozen=True)
class LlamaProducts:
    """The definitions of llama.cpp's products, each by its name in `gguf_verify.semantics`.

    Read in llama.cpp v0.5.0: the CPU's in ggml-cpu/ggml-cpu.c (`vec_dot_type`), those of CUDA in ggml/src/ggml-cuda:
    ggml-cuda.cu (ggml_cuda_mul_mat, ggml_cuda_mul_mat_id), mmvq.cu (ggml_cuda_should_use_mmvq,
    get_mmvq_mmid_max_batch), mmq.cu (ggml_cuda_should_use_mmq), mmq.cuh (mmq_get_q8_1_ds_layout), mmq-load-tiles.cuh,
    mmq-vec-dot.cuh and vecdotq.cuh. Each was confirmed on outputs measured on an H200.

    Args:
        cpu: the definition of the CPU backend; empty for a format that only activations have.
        mmvq, mmq: the definitions of the CUDA backend's kernels for few and for many tokens; empty if there is none.
        no_mmvq, no_mmq: why there is none, if the reason is not that llama.cpp lacks the kernel.
        mmvq_tokens: compute capability, times ten → the most tokens of MMVQ there, if not `MMVQ_TOKENS`.
        mmvq_tokens_of_experts: the most tokens of a product with experts by MMVQ before compute capability 8.9.
        four_bit_activations: the CUDA backend may multiply with 4-bit activations from compute capability 12.0 on,
            which no definition here describes.
    """

    cpu: str = ""
    mmvq: str = ""
    mmq: str = ""
    no_mmvq: str = ""
    no_mmq: str = ""
    mmvq_tokens: Mapping[int, int] = field(default_factory=dict, hash=False)
    mmvq_tokens_of_experts: int = MMVQ_TOKENS
    four_bit_activations: bool = False
