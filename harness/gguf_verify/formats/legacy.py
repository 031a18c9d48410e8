"""Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0, and the activation format Q8_1: 32 values and one or two half scales a block.

Layouts: ggml/src/ggml-common.h. Rules: ggml/src/ggml-quants.c, `quantize_row_*_ref` and `dequantize_row_*`
(llama.cpp v0.5.0). Where each bit belongs is data, of which `diagram.py` draws the bit diagrams.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .block import BlockFormat, Bytes, Codes, Field, Floats, Run, each

QK = 32

_D = Field("d", "<f2", 1, "scale", each(1, Run(16, "scale")))
_M = Field("m", "<f2", 1, "minimum", each(1, Run(16, "minimum")))
_S = Field("s", "<f2", 1, "sum: d·Σq on the CPU, Σx of raw values on CUDA", each(1, Run(16, "sum")))
_QH = Field(
    "qh", "<u4", 1, "fifth bits: bit j belongs to value j", each(1, *(Run(1, "x", j, low=4) for j in range(31, -1, -1)))
)
_QS = Field(
    "qs", "u1", 16, "low nibbles: values 0..15, high nibbles: values 16..31", each(16, Run(4, "x", 16), Run(4, "x", 0))
)
_QS8 = Field("qs", "i1", 32, "codes in order", each(32, Run(8, "x", 0)))


def _read_nibbles(structs: npt.NDArray[np.void]) -> npt.NDArray[np.uint8]:
    qs = structs["qs"]
    return np.concatenate([qs & 0x0F, qs >> 4], axis=-1)


def _read_nibbles_and_high_bits(structs: npt.NDArray[np.void]) -> Codes:
    q = _read_nibbles(structs)
    qh = np.ascontiguousarray(structs["qh"])[..., None].view(np.uint8)
    q |= np.unpackbits(qh, axis=-1, bitorder="little") << 4
    return q


def _read_bytes(structs: npt.NDArray[np.void]) -> Codes:
    return np.asarray(structs["qs"])


def c_int8(x: Floats) -> npt.NDArray[np.int8]:
    """C's `(int8_t) x` as x86 compiles it: truncate to int32 (INT_MIN where it does not fit), keep the low byte."""
    fits = np.abs(x) < 2.0**31
    return np.where(fits, np.trunc(np.where(fits, x, 0)), 0).astype(np.int32).astype(np.int8)


def round_half_away(x: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
    """C's `roundf`. x + 0.5 could round up in floating point, so the fraction is compared instead."""
    whole = np.trunc(x)
    return np.asarray(whole + np.where(np.abs(x - whole) >= 0.5, np.copysign(np.ones_like(x), x), np.zeros_like(x)))


def signed_max(x: Floats) -> Floats:
    """The first value of the greatest magnitude, with its sign, `[...]`; +0 for zeros, where C's search begins."""
    return _at(x, np.abs(x).argmax(axis=-1)) + np.float32(0)


def _at(x: Floats, index: npt.NDArray[np.intp]) -> Floats:
    return np.asarray(np.take_along_axis(x, index[..., None], axis=-1)[..., 0])


def _inverse(d: Floats) -> Floats:
    with np.errstate(divide="ignore", over="ignore"):
        return np.where(d != 0, np.float32(1) / d, np.float32(0)).astype(np.float32)


def _split(q: npt.NDArray[np.integer]) -> dict[str, npt.ArrayLike]:
    """Codes in order → the members qs and qh."""
    q = q.astype(np.uint8)
    qs = (q[..., :16] & 0x0F) | (q[..., 16:] & 0x0F) << 4
    qh = np.packbits((q >> 4) & 1, axis=-1, bitorder="little").view("<u4")[..., 0]
    return {"qs": qs, "qh": qh}


def _half(x: Floats) -> npt.NDArray[np.float16]:
    with np.errstate(over="ignore"):
        return x.astype(np.float16)


def _encode_symmetric(bits: int, x: Floats) -> tuple[Floats, npt.NDArray[np.integer]]:
    """Scale: signed max over -2^(bits-1), so that the extreme value has code 0 and is exact."""
    half_range = 1 << (bits - 1)
    d = signed_max(x) / np.float32(-half_range)
    with np.errstate(invalid="ignore", over="ignore"):
        q = c_int8(x * _inverse(d)[..., None] + np.float32(half_range + 0.5))
    return d, np.minimum(q, 2 * half_range - 1)


def _encode_affine(bits: int, x: Floats) -> tuple[Floats, Floats, npt.NDArray[np.integer]]:
    """Scale and minimum: (max - min) over 2^bits - 1, so that both ends are codes."""
    top = (1 << bits) - 1
    low, high = _at(x, x.argmin(axis=-1)), _at(x, x.argmax(axis=-1))  # the first of +0 and -0, as C keeps it
    with np.errstate(invalid="ignore", over="ignore"):
        d = (high - low) / np.float32(top)
        q = c_int8((x - low[..., None]) * _inverse(d)[..., None] + np.float32(0.5))
    return d, low, np.minimum(q, top) if bits == 4 else q.astype(np.uint8)


def _encode_q4_0(x: Floats) -> Bytes:
    d, q = _encode_symmetric(4, x)
    return Q4_0.pack(d=_half(d), qs=_split(q)["qs"])


def _encode_q4_1(x: Floats) -> Bytes:
    d, m, q = _encode_affine(4, x)
    return Q4_1.pack(d=_half(d), m=_half(m), qs=_split(q)["qs"])


def _encode_q5_0(x: Floats) -> Bytes:
    d, q = _encode_symmetric(5, x)
    return Q5_0.pack(d=_half(d), **_split(q))


def _encode_q5_1(x: Floats) -> Bytes:
    d, m, q = _encode_affine(5, x)
    return Q5_1.pack(d=_half(d), m=_half(m), **_split(q))


def _encode_q8_0(x: Floats) -> Bytes:
    d = np.abs(x).max(axis=-1) / np.float32(127)
    with np.errstate(invalid="ignore", over="ignore"):
        q = c_int8(round_half_away(x * _inverse(d)[..., None]).astype(np.float32))
    return Q8_0.pack(d=_half(d), qs=q)


def _encode_q8_1(x: Floats) -> Bytes:
    """`quantize_row_q8_1_ref`: s is half(d·Σq), not the sum of the raw values that CUDA stores."""
    d = np.abs(x).max(axis=-1) / np.float32(127)
    with np.errstate(invalid="ignore", over="ignore"):
        q = c_int8(round_half_away(x * _inverse(d)[..., None]).astype(np.float32))
        s = q.sum(axis=-1, dtype=np.int32).astype(np.float32) * d
    return Q8_1.pack(d=_half(d), s=_half(s), qs=q)


_SOURCE = "ggml-common.h, ggml-quants.c (llama.cpp v0.5.0)"

Q4_0 = BlockFormat("Q4_0", 2, QK, (_D, _QS), 4, 8, _SOURCE, _read_nibbles, _encode_q4_0, rule="x = d·(q - 8)")
Q4_1 = BlockFormat("Q4_1", 3, QK, (_D, _M, _QS), 4, 0, _SOURCE, _read_nibbles, _encode_q4_1, rule="x = d·q + m")
Q5_0 = BlockFormat(
    "Q5_0", 6, QK, (_D, _QH, _QS), 5, 16, _SOURCE, _read_nibbles_and_high_bits, _encode_q5_0, rule="x = d·(q - 16)"
)
Q5_1 = BlockFormat(
    "Q5_1", 7, QK, (_D, _M, _QH, _QS), 5, 0, _SOURCE, _read_nibbles_and_high_bits, _encode_q5_1, rule="x = d·q + m"
)
Q8_0 = BlockFormat("Q8_0", 8, QK, (_D, _QS8), 8, 0, _SOURCE, _read_bytes, _encode_q8_0, low=-128)
Q8_1 = BlockFormat("Q8_1", 9, QK, (_D, _S, _QS8), 8, 0, _SOURCE, _read_bytes, _encode_q8_1, low=-128)
#: One of the four blocks in a `block_q8_1_mmq` of llama.cpp's CUDA backend in the layout D4 (ggml-cuda/mmq.cuh), its
#: scale and its codes put together. No file holds it, and ggml has no number for it.
Q8_1_D4 = BlockFormat(
    "Q8_1_D4", -1, QK, (Field("d", "<f4", 1, "scale", each(1, Run(32, "scale"))), _QS8), 8, 0,
    "ggml-cuda/mmq.cuh, quantize.cu (llama.cpp v0.5.0)", _read_bytes, low=-128,
)  # fmt: skip
