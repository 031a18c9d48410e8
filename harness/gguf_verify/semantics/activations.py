"""How activations are quantized: the encoders of each semantics, bit for bit, from float32[M, K] to a row of blocks.

A row of K values becomes K/32 blocks. Codes, scales and sums follow the sources that each function names.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..formats.c_arithmetic import round_half_away, signed_max
from ..formats.q8_0 import Q8_0
from ..formats.q8_1 import Q8_1
from ..formats.q8_1_d4 import Q8_1_D4
from ..formats.q8_k import Q8_K

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

QK = 32


def _blocks(x: Floats, size: int = QK) -> Floats:
    m, k = x.shape
    if k % size:
        raise ValueError(f"a row of {k} activations is not a whole number of blocks of {size}")
    return np.ascontiguousarray(x, np.float32).reshape(m, k // size, size)


def _amax(blocks: Floats) -> Floats:
    """Largest magnitude; NaN is not counted beside a number, as C's fmaxf has it."""
    return np.asarray(np.fmax.reduce(np.abs(blocks), axis=-1))


def _half(x: Floats) -> npt.NDArray[np.float16]:
    with np.errstate(over="ignore"):
        return x.astype(np.float16)


def butterfly_sum(blocks: Floats) -> Floats:
    """Σ of 32 values in the order of a warp's reduction: lanes at distance 16, 8, 4, 2, 1 are added in float32."""
    total = blocks
    with np.errstate(over="ignore", invalid="ignore"):
        for distance in (16, 8, 4, 2, 1):
            total = total[..., :distance] + total[..., distance : 2 * distance]
    return total[..., 0]


def encode_q8_1(x: Floats) -> Bytes:
    """Semantics `q8_1`: d = max|x|/127, q = round-half-away(x/d) with d before its rounding, s = half(Σx).

    Source: llama.cpp v0.5.0, ggml-cuda/quantize.cu, quantize_q8_1, with IEEE division. NaN and values over a zero d
    have code 0; codes are clamped to ±127, which only a subnormal d can need.

    Returns:
        uint8[M, K/32·36].
    """
    blocks = _blocks(x)
    d = _amax(blocks) / np.float32(127)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        q = np.where(d[..., None] > 0, round_half_away(blocks / d[..., None]), np.float32(0))
    q = np.where(np.isnan(q), np.float32(0), np.clip(q, -127, 127)).astype(np.int8)
    return Q8_1.pack(d=_half(d), s=_half(butterfly_sum(blocks)), qs=q).reshape(len(x), -1)


def _mmq_codes(blocks: Floats) -> tuple[Floats, npt.NDArray[np.int8]]:
    """d = 1/(127/max) and q = round-half-away(x·(127/max)), each step rounded to float32.

    Source: llama.cpp v0.5.0, ggml-cuda/quantize.cu, quantize_mmq_q8_1, with IEEE division. A block of zeros has d = 0;
    so has one with max below 3.7e-37, where 127/max overflows: its codes, here 0, mean nothing.
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        inverse = np.float32(127) / _amax(blocks)
        q = round_half_away(blocks * inverse[..., None])
        d = np.float32(1) / inverse
    q = np.where(np.isfinite(q), np.clip(np.nan_to_num(q), -128, 127), np.float32(0))
    return d, q.astype(np.int8)


def encode_mmq(x: Floats) -> Bytes:
    """Semantics `mmq`: d as a half, s = half(Σx), summed by fours and then over lanes at distance 4, 2 and 1.

    The layout DS4 of quantize_mmq_q8_1, each of its blocks as one of Q8_1.

    Returns:
        uint8[M, K/32·36].
    """
    blocks = _blocks(x)
    d, q = _mmq_codes(blocks)
    fours = blocks.reshape(*blocks.shape[:-1], 8, 4)
    with np.errstate(over="ignore", invalid="ignore"):
        total = fours[..., 0] + fours[..., 1] + fours[..., 2] + fours[..., 3]
        for distance in (4, 2, 1):
            total = total[..., :distance] + total[..., distance : 2 * distance]
    return Q8_1.pack(d=_half(d), s=_half(total[..., 0]), qs=q).reshape(len(x), -1)


def encode_mmq_d4(x: Floats) -> Bytes:
    """Semantics `mmq_d4`: d as a float32, no sum. The layout D4 of quantize_mmq_q8_1.

    Returns:
        uint8[M, K/32·36].
    """
    d, q = _mmq_codes(_blocks(x))
    return Q8_1_D4.pack(d=d, qs=q).reshape(len(x), -1)


def _cpu_codes(blocks: Floats) -> tuple[Floats, npt.NDArray[np.int8], Floats]:
    """d, q and the unrounded s of the x86 code in ggml-cpu/arch/x86/quants.c: q = round-half-even(x·(127/max)).

    Where 127/max overflows (max below 3.7e-37, so that half(d) is 0), cvtps2dq gives INT_MIN: codes saturate to -128
    when they are packed, and the sum wraps.
    """
    amax = _amax(blocks)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        inverse = np.where(amax != 0, np.float32(127) / amax, np.float32(0)).astype(np.float32)
        rounded = np.rint(blocks * inverse[..., None])
        d = amax / np.float32(127)
        wide = np.where(np.isfinite(rounded), rounded, np.float32(-(2.0**31))).astype(np.int32)
        s = wide.sum(axis=-1, dtype=np.int32).astype(np.float32) * d
    return d, np.clip(wide, -128, 127).astype(np.int8), s


def encode_q8_0_cpu(x: Floats) -> Bytes:
    """Semantics `q8_0_cpu`: d = half(max|x|/127), no sum. llama.cpp v0.5.0, ggml-cpu, quantize_row_q8_0 (SIMD).

    Returns:
        uint8[M, K/32·34].
    """
    d, q, _ = _cpu_codes(_blocks(x))
    return Q8_0.pack(d=_half(d), qs=q).reshape(len(x), -1)


def encode_q8_1_cpu(x: Floats) -> Bytes:
    """Semantics `q8_1_cpu`: as `q8_0_cpu`, and s = half(d·Σq) with d before its rounding. quantize_row_q8_1 (SIMD).

    Returns:
        uint8[M, K/32·36].
    """
    d, q, s = _cpu_codes(_blocks(x))
    return Q8_1.pack(d=_half(d), s=_half(s), qs=q).reshape(len(x), -1)


def encode_q8_k(x: Floats) -> Bytes:
    """Semantics `q8_k_cpu`: q = round-half-even(x·i), at most 127, with i = -127/(signed max); d = 1/i, a float32.

    Source: llama.cpp v0.5.0, ggml-quants.c, quantize_row_q8_K_ref. NaN is not counted beside a number.

    Returns:
        uint8[M, K/256·292].
    """
    blocks = _blocks(x, Q8_K.block_size)
    extreme = signed_max(np.where(np.isnan(blocks), np.float32(0), blocks))
    zero = extreme == 0
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        inverse = np.float32(-127) / extreme
        # the addition rounds to a whole number; its low bits are the code (nearest_int)
        shifted = (blocks * inverse[..., None] + np.float32(12582912.0)).view(np.int32)
        q = np.minimum((shifted & 0x007FFFFF) - 0x00400000, 127)
        d = np.float32(1) / inverse
    q = np.where(zero[..., None], 0, q).astype(np.int8)
    sums = q.reshape(*q.shape[:-1], 16, 16).sum(axis=-1, dtype=np.int16)
    return Q8_K.pack(d=np.where(zero, np.float32(0), d), qs=q, bsums=sums).reshape(len(x), -1)
