"""`q8_k_cpu`: llama.cpp's CPU backend for superblocks of 256 values."""

from __future__ import annotations

import numpy as np

from ...formats.c_arithmetic import signed_max
from ...formats.q8_k import Q8_K
from ..activations import Bytes, Floats, blocks_of, padded
from ..definition import Semantics
from ..encoding import Encoding
from ..terms.codes import INTEGERS_APART


def ratios(blocks: Floats) -> tuple[Floats, Floats]:
    """Return x·i and d = 1/i with i = -127/(signed max)."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        inverse = np.float32(-127) / signed_max(np.where(np.isnan(blocks), np.float32(0), blocks))
        return blocks * inverse[..., None], np.float32(1) / inverse


def encode_q8_k(x: Floats) -> Bytes:
    """Encode q = round-half-even(x·i), at most 127, with i = -127/(signed max); d = 1/i, a float32.

    Source: llama.cpp v0.5.0, ggml-quants.c, quantize_row_q8_K_ref. NaN is ignored beside a number.

    Returns:
        uint8[M, ceil(K/256)·292]; values past K are zeros.
    """
    blocks = blocks_of(padded(x, Q8_K.block_size), Q8_K.block_size)
    zero = signed_max(np.where(np.isnan(blocks), np.float32(0), blocks)) == 0
    ratio, d = ratios(blocks)
    with np.errstate(invalid="ignore", over="ignore"):
        # The addition rounds to a whole number; its low bits are the code (nearest_int).
        shifted = (ratio + np.float32(12582912.0)).view(np.int32)
        q = np.minimum((shifted & 0x007FFFFF) - 0x00400000, 127)
    q = np.where(zero[..., None], 0, q).astype(np.int8)
    sums = q.reshape(*q.shape[:-1], 16, 16).sum(axis=-1, dtype=np.int16)
    return Q8_K.pack(d=np.where(zero, np.float32(0), d), qs=q, bsums=sums).reshape(len(x), -1)


CPU_Q8_K = Encoding(
    name="q8_k_cpu",
    title="Q8_K: blocks of 256, q = round(x·i), d = 1/i, a float32, i = -127/(signed max)",
    source="llama.cpp CPU (ggml-quants.c, quantize_row_q8_K)",
    encode=encode_q8_k,
    format=Q8_K,
    ratios=ratios,
    values_per_scale=256,
)

Q8_K_CPU = Semantics(
    name="q8_k_cpu",
    title="d_w·d_a·Σ q_w·q_a + m_w·d_a·Σ q_a, activations in blocks of 256",
    source="llama.cpp CPU (ggml-cpu/arch/x86/quants.c)",
    encoding=CPU_Q8_K,
    term=INTEGERS_APART,
)
