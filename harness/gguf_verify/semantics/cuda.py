"""Which definition of the product llama.cpp's CUDA backend takes, by weight format, number of tokens and GPU.

Read in llama.cpp v0.5.0, ggml/src/ggml-cuda: ggml-cuda.cu (ggml_cuda_mul_mat, ggml_cuda_mul_mat_id), mmvq.cu
(ggml_cuda_should_use_mmvq, get_mmvq_mmid_max_batch), mmq.cu (ggml_cuda_should_use_mmq), mmq.cuh
(mmq_get_q8_1_ds_layout), mmq-load-tiles.cuh, mmq-vec-dot.cuh, vecdotq.cuh; and confirmed on an H200, format by format.
"""

from __future__ import annotations

from ..formats import ElementFormat, WeightFormat
from .definitions import MMQ, MMQ_D4, Q8_1_HALF, Q8_1_RAW, Semantics

#: The most tokens that MMVQ takes (mmvq.cuh, MMVQ_MAX_BATCH_SIZE).
MMVQ_TOKENS = 8

#: Why F32, F16 and BF16 have no definition (mmvf.cu, mmf.cu; cuBLAS may even add up halves).
OF_ELEMENTS = "llama.cpp's CUDA backend multiplies it by cuBLAS, or in ways chosen by shape"

_HALF = frozenset({"Q4_1", "Q5_1"})
_MMVQ = frozenset(
    {"Q4_0", "Q5_0", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ1_M", "IQ3_S", "IQ4_NL", "IQ4_XS", "Q1_0",
     "Q2_0", "MXFP4", "NVFP4"}
)  # fmt: skip
_DS4 = frozenset({"Q4_0", "Q4_1", "Q5_1", "Q4_K", "Q5_K"})
_D4 = frozenset(
    {"Q5_0", "Q8_0", "Q3_K", "Q6_K", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS", "Q1_0",
     "Q2_0", "MXFP4", "NVFP4"}
)  # fmt: skip
_TRUNCATED = "MMVQ of this type divides integer sums and drops the remainder (vecdotq.cuh)"
#: Why there is no definition, where MMVQ and where MMQ would be used.
_NOT_MMVQ = {
    "IQ2_XXS": _TRUNCATED, "IQ2_XS": _TRUNCATED, "IQ2_S": _TRUNCATED, "IQ3_XXS": _TRUNCATED,
    "IQ1_S": "MMVQ of this type adds a part of the raw sum s (vecdotq.cuh)",
}  # fmt: skip
_NOT_MMQ = {
    "Q2_K": "MMQ of this type sums activations by sixteens (mmq.cuh, layout D2S6)",
    "IQ1_S": "MMQ of this type rounds a part of the scale to half (mmq-load-tiles.cuh)",
    "IQ1_M": "there is no MMQ of this type: it is dequantized for cuBLAS",
}
#: Where more than 8 tokens are not what MMQ begins with: compute capability → type → the most tokens of MMVQ.
_FEWER_TOKENS = {
    70: {"Q2_K": 4, "Q3_K": 6, "Q4_K": 5, "Q5_K": 6, "Q6_K": 7},
    87: {"Q2_K": 1, "Q3_K": 1, "Q4_K": 1, "Q5_K": 1, "Q6_K": 1},
    89: {"Q2_K": 4, "Q3_K": 6},
    120: {"Q2_K": 5, "Q3_K": 5, "Q4_K": 5, "Q5_K": 6, "Q6_K": 7},
    121: {"Q2_K": 6},
}
#: The same of products with experts, before compute capability 8.9.
_FEWER_TOKENS_OF_EXPERTS = {
    "IQ2_S": 7, "IQ3_S": 6, "IQ3_XXS": 7, "MXFP4": 7, "Q2_K": 7, "Q3_K": 5,
}  # fmt: skip
_TURING, _ADA, _BLACKWELL = 75, 89, 120


class NoDefinition(ValueError):
    """llama.cpp's CUDA backend computes such a product in a way that no definition here describes."""


def mmvq_tokens(fmt: WeightFormat, sm: int, experts: bool = False) -> int:
    """The most tokens with which a product of such weights goes to MMVQ.

    Args:
        sm: ten times the GPU's compute capability.
        experts: it is a MUL_MAT_ID.
    """
    if experts:
        return MMVQ_TOKENS if sm >= _ADA else _FEWER_TOKENS_OF_EXPERTS.get(fmt.name, MMVQ_TOKENS)
    return _FEWER_TOKENS.get(sm, {}).get(fmt.name, MMVQ_TOKENS)


def llama_cuda_semantics(fmt: WeightFormat, m: int, sm: int = 90, experts: bool = False) -> Semantics:
    """What llama.cpp's CUDA backend computes for weights of a format and m tokens.

    Args:
        m: columns of the activations; of a MUL_MAT_ID the tokens that are routed, to whichever expert.
        sm: ten times the GPU's compute capability.
        experts: it is a MUL_MAT_ID.

    Raises:
        NoDefinition: with the reason.
    """
    if isinstance(fmt, ElementFormat):
        raise NoDefinition(f"{fmt.name}: {OF_ELEMENTS}")
    if sm < _TURING:
        raise NoDefinition(f"GPUs before compute capability 7.5 are not covered, this one has {sm / 10:.1f}")
    if fmt.name in ("MXFP4", "NVFP4") and sm >= _BLACKWELL:
        raise NoDefinition(f"GPUs of compute capability {sm / 10:.1f} may multiply {fmt.name} with 4-bit activations")
    if m <= mmvq_tokens(fmt, sm, experts):
        if fmt.name in _HALF:
            return Q8_1_HALF
        if fmt.name in _MMVQ:
            return Q8_1_RAW
        raise NoDefinition(_NOT_MMVQ.get(fmt.name, f"llama.cpp's CUDA backend has no MMVQ of {fmt.name}"))
    if fmt.name in _DS4:
        return MMQ
    if fmt.name in _D4:
        return MMQ_D4
    raise NoDefinition(_NOT_MMQ.get(fmt.name, f"llama.cpp's CUDA backend has no MMQ of {fmt.name}"))
