"""The definitions of "quantized weights × activations" that exist, as data (one row of the table a record).

A weight is w = d_w·q + m_w. A definition says how activations become codes q_a with scale d_a and sum s, and whether a
format's offset is applied to the integer codes (then m_w is not used) or reaches the result through m_w·s.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ..formats import BlockFormat, WeightFormat
from ..formats.q8_0 import Q8_0
from ..formats.q8_1 import Q8_1
from ..formats.q8_1_d4 import Q8_1_D4
from ..formats.q8_k import Q8_K
from .activations import (
    Bytes,
    Floats,
    encode_mmq,
    encode_mmq_d4,
    encode_q8_0_cpu,
    encode_q8_1,
    encode_q8_1_cpu,
    encode_q8_k,
)

Doubles = npt.NDArray[np.float64]

_OFFSET_FORMATS = frozenset({"Q4_0", "Q5_0"})
_MIN_FORMATS = frozenset({"Q4_1", "Q5_1"})


class Oracle(Protocol):
    """The exact result that somebody else's kernel means to compute, as two matrices: y = a·wᵀ, in L columns."""

    def weights(self, fmt: BlockFormat, rows: Bytes) -> Doubles:
        """float64[n, L] of weights uint8[n, row bytes]. Raises KernelFault."""

    def activations(self, x: Bytes) -> Doubles:
        """float64[M, L] of activations uint8[M, row bytes] as the kernel takes them. Raises KernelFault."""


@dataclass(frozen=True)
class Semantics:
    """One definition of the product.

    Args:
        name: its name in reports and in a kernel's declaration.
        activations: format of the quantized activations, None where they are given as float32.
        encode: float32[M, K] → uint8[M, row bytes] in that format; None likewise.
        integer_offset: formats whose offset is subtracted from the codes before the integer product.
        half_products: formats whose products d_w·d_a and m_w·s are rounded to half.
        half_scales: superblocks whose scales and minima, multiplied out, are rounded to half, and whose minima meet the
            stored s.
        title: the block term in one line.
        source: who computes so.
        zero_apart: the zero point of codes may be multiplied by the activations' codes apart, in lanes where the two
            parts do not cancel, as llama.cpp's SIMD code does.
        inside: the definition of a kernel that takes float32 activations and quantizes them itself; its products are
            that one's, of what its `encode` gives.
        oracle: what says the exact result, where none of the above does.
    """

    name: str
    activations: BlockFormat | None
    encode: Callable[[Floats], Bytes] | None
    integer_offset: frozenset[str]
    half_products: frozenset[str]
    title: str
    source: str
    zero_apart: bool = False
    half_scales: frozenset[str] = frozenset()
    inside: Semantics | None = None
    oracle: Oracle | None = None

    def bytes_of(self, x: Floats) -> Bytes:
        """Activations float32[M, K] as its products take them, uint8[M, row bytes]."""
        return self.encode(x) if self.encode else np.ascontiguousarray(x, np.float32).view(np.uint8)

    def uses_sum(self, fmt: BlockFormat) -> bool:
        """Whether the product of this weight format reads the activations' s. Raises ValueError where there is none."""
        if self.activations is None or fmt.name in self.integer_offset:
            return False
        needed = (fmt.min_times_sum or fmt.name in self.half_scales) and (fmt.has_min or fmt.offset != 0)
        if needed and not any(field.name == "s" for field in self.activations.fields):
            raise ValueError(f"{self.name} has no sum s, which {fmt.name} needs: the pair has no definition")
        return needed


F32 = Semantics(
    "f32", None, None, frozenset(), frozenset(),
    "Σ a·w, w dequantized to float32", "dequantize and multiply; W4A16, W8A16 kernels; llama.cpp CPU for F32",
)  # fmt: skip
F16 = Semantics(
    "f16", None, None, frozenset(), frozenset(),
    "Σ half(a)·w", "llama.cpp CPU for F16 (ggml-cpu/vec.cpp, llamafile/sgemm.cpp)",
)  # fmt: skip
BF16 = Semantics(
    "bf16", None, None, frozenset(), frozenset(),
    "Σ bfloat16(a)·w", "llama.cpp CPU for BF16 (ggml-cpu/vec.cpp, llamafile/sgemm.cpp)",
)  # fmt: skip
Q8_1_RAW = Semantics(
    "q8_1", Q8_1, encode_q8_1, frozenset(), frozenset(),
    "d_w·d_a·Σ q_w·q_a + m_w·s, s = half(Σ x) of raw values; Q4_0: d_w·(d_a·Σ q_w·q_a - 8·s), Q5_0: - 16·s; minima "
    "of superblocks: m_w·d_a·Σ q_a",
    "this project's kernels; llama.cpp CUDA MMVQ for Q4_0, Q5_0, Q8_0 (ggml-cuda/vecdotq.cuh, quantize.cu)",
)  # fmt: skip
Q8_0_CPU = Semantics(
    "q8_0_cpu", Q8_0, encode_q8_0_cpu, _OFFSET_FORMATS, frozenset(),
    "d_w·d_a·Σ (q_w - offset)·q_a",
    "llama.cpp CPU for Q4_0, Q5_0, Q8_0, and other blocks of 32 to 128 (ggml-cpu/arch/x86/quants.c)",
    zero_apart=True,
)  # fmt: skip
Q8_1_CPU = Semantics(
    "q8_1_cpu", Q8_1, encode_q8_1_cpu, frozenset(), frozenset(),
    "d_w·d_a·Σ q_w·q_a + m_w·s, s = half(d_a·Σ q_a)", "llama.cpp CPU for Q4_1, Q5_1 (ggml-cpu/arch/x86/quants.c)",
)  # fmt: skip

Q8_K_CPU = Semantics(
    "q8_k_cpu", Q8_K, encode_q8_k, frozenset(), frozenset(),
    "d_w·d_a·Σ q_w·q_a + m_w·d_a·Σ q_a, activations in blocks of 256",
    "llama.cpp CPU for K-quants, I-quants of 256, TQ1_0, TQ2_0 (ggml-cpu/arch/x86/quants.c)", zero_apart=True,
)  # fmt: skip

Q8_1_HALF = Semantics(
    "q8_1_half", Q8_1, encode_q8_1, frozenset(), _MIN_FORMATS,
    "half(d_w·d_a)·Σ q_w·q_a + half(m_w·s), s = half(Σ x) of raw values",
    "llama.cpp CUDA MMVQ for Q4_1, Q5_1 on GPUs with fast half (ggml-cuda/vecdotq.cuh, __hmul2)",
)  # fmt: skip
MMQ = Semantics(
    "mmq", Q8_1, encode_mmq, frozenset({"Q4_0"}), frozenset(),
    "Q4_0: d_w·d_a·Σ (q_w - 8)·q_a; else d_w·d_a·Σ q_w·q_a + m_w·s, s = half(Σ x) of raw values, d_w and m_w of "
    "superblocks rounded to half; q_a = round(x·(127/max)), d_a = half(1/(127/max))",
    "llama.cpp CUDA MMQ on tensor cores for Q4_0, Q4_1, Q5_1, Q4_K, Q5_K (ggml-cuda/mmq.cuh, layout DS4; quantize.cu)",
    half_scales=frozenset({"Q4_K", "Q5_K"}),
)  # fmt: skip
MMQ_D4 = Semantics(
    "mmq_d4", Q8_1_D4, encode_mmq_d4, frozenset({"Q5_0"}), frozenset(),
    "d_w·d_a·Σ (q_w - offset)·q_a; q_a = round(x·(127/max)), d_a = 1/(127/max), a float32",
    "llama.cpp CUDA MMQ on tensor cores for Q5_0, Q8_0 and others (ggml-cuda/mmq.cuh, layout D4; quantize.cu)",
)  # fmt: skip

SEMANTICS: dict[str, Semantics] = {
    s.name: s
    for s in (F32, Q8_1_RAW, Q8_1_HALF, MMQ, MMQ_D4, Q8_0_CPU, Q8_1_CPU, Q8_K_CPU, F16, BF16)
}  # fmt: skip

#: Definitions whose s is the sum of raw values, rounded to half.
RAW_SUMS = frozenset(s.name for s in (Q8_1_RAW, Q8_1_HALF, MMQ))
#: The name of definitions that are somebody else's.
OWN = "own"


def quantized_inside(semantics: Semantics) -> Semantics:
    """The same definition of kernels that take float32 activations."""
    return replace(semantics, activations=None, encode=None, inside=semantics)


def by_oracle(oracle: Oracle, takes: Semantics) -> Semantics:
    """A definition of its own, of kernels that take activations as another definition has them."""
    return Semantics(
        OWN, takes.activations, takes.encode, frozenset(), frozenset(), "what an oracle of its author says",
        "its author", oracle=oracle,
    )  # fmt: skip


def llama_cpu_semantics(fmt: WeightFormat) -> Semantics:
    """What llama.cpp's CPU backend computes for a weight format (its `vec_dot_type`, checked against the library)."""
    return SEMANTICS[fmt.llama.cpu]
