"""The definition of llama.cpp's CUDA backend, by weight format, number of tokens and GPU.

Each format's record names the definitions of its MMVQ and its MMQ kernel: see `gguf_verify.formats.llama_products`.
"""

from __future__ import annotations

from ..formats.block import BlockFormat
from ..formats.llama_products import MMVQ_TOKENS
from ..formats.tensor_types import WeightFormat
from .definition import Semantics
from .definitions import SEMANTICS

_TURING, _ADA, _BLACKWELL = 75, 89, 120


class NoDefinition(ValueError):
    """No definition here describes such a product of llama.cpp's CUDA backend."""


def mmvq_tokens(fmt: WeightFormat, sm: int, experts: bool = False) -> int:
    """Return the most tokens of a product with such weights that goes to MMVQ.

    Args:
        sm: ten times the GPU's compute capability.
        experts: whether it is a MUL_MAT_ID.
    """
    if experts:
        return MMVQ_TOKENS if sm >= _ADA else fmt.llama.mmvq_tokens_of_experts
    return fmt.llama.mmvq_tokens.get(sm, MMVQ_TOKENS)


def llama_cuda_semantics(fmt: WeightFormat, m: int, sm: int = 90, experts: bool = False) -> Semantics:
    """Return the definition of llama.cpp's CUDA backend for weights of a format and m tokens.

    Args:
        m: columns of the activations; for a MUL_MAT_ID the tokens that are routed, to whichever expert.
        sm: ten times the GPU's compute capability.
        experts: whether it is a MUL_MAT_ID.

    Raises:
        NoDefinition: with the reason.
    """
    llama = fmt.llama
    if not isinstance(fmt, BlockFormat):
        raise NoDefinition(f"{fmt.name}: {llama.no_mmvq}")
    if sm < _TURING:
        raise NoDefinition(f"GPUs before compute capability 7.5 are not covered, this one has {sm / 10:.1f}")
    if llama.four_bit_activations and sm >= _BLACKWELL:
        raise NoDefinition(f"GPUs of compute capability {sm / 10:.1f} may multiply {fmt.name} with 4-bit activations")
    few = m <= mmvq_tokens(fmt, sm, experts)
    path, name, why = ("MMVQ", llama.mmvq, llama.no_mmvq) if few else ("MMQ", llama.mmq, llama.no_mmq)
    if not name:
        raise NoDefinition(why or f"llama.cpp's CUDA backend has no {path} of {fmt.name}")
    return SEMANTICS[name]
