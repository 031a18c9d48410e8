"""Values as tensors of each type store them: the conversions of rows and copies.

    f32 → f16, bf16    to nearest even (simd-mappings.h, GGML_CPU_FP32_TO_FP16; ggml-impl.h, ggml_compute_fp32_to_bf16)
    f32 → i32          towards zero, as C casts; values out of range have no definition
    f32 → blocks       see below
    … → f32            exact; blocks as decoded by llama.cpp's `to_float`: at most one rounding, for adding the minimum,
                       so every backend must give the same bits, except for the sign of a zero
                       (llama.cpp v0.5.0)

A NaN must stay a NaN, with any bits. On Vulkan a conversion to half may also round towards zero and flush subnormal
numbers, where the device does not support the mode that llama.cpp requests.

Quantized blocks written by SET_ROWS and CPY: the CPU's bytes, and other codes and scales that are equally right.

The types are those of a cache: Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, IQ4_NL, in blocks of 32 values x.

    Q4_0, Q5_0    d = (signed max)/-2^(b-1)      code = min(⌊x/d + 2^(b-1) + ½⌋, 2^b - 1)      b = 4, 5 bits
    Q4_1, Q5_1    d = (max - min)/(2^b - 1)      code = ⌊(x - min)/d + ½⌋,  m = min
    Q8_0          d = max|x|/127                 code = round(x/d)
    IQ4_NL        d₀ = (signed max)/-127         code = the nearest of 16 values v to x/d₀;  d = Σx³v / Σx²v²

The scale is then rounded to half; codes use the scale before that rounding, by multiplication with its inverse
(ggml-quants.c, quantize_row_*_ref; ggml-cuda/cpy-utils.cuh; vulkan-shaders/copy_to_quant.comp; llama.cpp v0.5.0). The
CPU's bytes are exact: those of the reference quantizers and, for Q8_0, of its vector code (ggml-cpu/arch/x86/quants.c:
127/max, ties to even). Several results are correct in these cases:

    CPU       x·(1/d) may be fused with the addition after it, and the compiler chooses the order of IQ4_NL's sums.
    others    Two divisions, with the backend's ulps, and a product form the ratio; a sum rounds once more. So a code is
              any whose interval comes within (2·division + ½) ulps of the ratio and u·(the largest sum). A scale is any
              half between those of d's two ends; Vulkan may also round to half towards zero and flush small halves.
    IQ4_NL    A term of its sums is rounded three times and added at most 32 times: an error of (35·u)·Σ|t| each.
    open      Codes that C does not define: those with a scale whose inverse is not finite, or is flushed; and on the
              CPU those of a block of IQ4_NL below 1e-15, whose codes llama.cpp leaves unset.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gguf_verify.formats.c_arithmetic import at_index, inverse, signed_max
from gguf_verify.formats.grids import kvalues
from gguf_verify.formats.tensor_types import ELEMENTS, FORMATS
from gguf_verify.llama.node import (
    BF16,
    F16,
    F32,
    I32,
    Array,
    Bytes,
    Doubles,
    NoDefinition,
    Operand,
    block_format,
    demand,
)
from gguf_verify.semantics.definitions import ENCODINGS
from gguf_verify.semantics.sums import UNIT_ROUNDOFF
from gguf_verify.support.array_types import Bools, Floats

from .arithmetic import NORMAL, ULP, arithmetic


@dataclass(frozen=True)
class Stored:
    """Values stored in a type.

    Args:
        definition: in words.
        data: one correct answer.
        allowed: the same, but with the backend's own values where those are equally right.
    """

    definition: str
    data: Array
    allowed: Array


def floats_of(data: Array, type_id: int) -> Floats:
    """Return rows of a type, in the layout of `Operand.data`, as float32. Raises NoDefinition."""
    if type_id == F32:
        return data
    if type_id == BF16:
        return (data.astype(np.uint32) << 16).view(np.float32)
    if type_id in (F16, I32):
        return data.astype(np.float32)
    fmt = block_format(type_id)
    blocks = np.ascontiguousarray(data).reshape(-1, fmt.block_bytes)
    return fmt.decode(blocks).reshape(*data.shape[:-1], data.shape[-1] // fmt.block_bytes * fmt.block_size)


def store(x: Floats, operand: Operand, got: Array, backend: str) -> Stored:
    """Store rows float32[..., values] in the operand's type.

    Args:
        got: the rows as the backend stored them, with the same leading shape.

    Raises NoDefinition, also for a backend with unknown arithmetic.
    """
    arithmetic(backend)
    type_id = operand.type_id
    with np.errstate(all="ignore"):
        if type_id == F32:
            signs = (x == 0) & (got == 0) & (backend != "CPU")
            return Stored("f32", x, np.where(signs | (np.isnan(x) & np.isnan(got)), got, x))
        if type_id == F16:
            return _half(x, got, backend)
        if type_id == BF16:
            bits = (ELEMENTS["BF16"].round(np.ascontiguousarray(x)).view(np.uint32) >> 16).astype(np.uint16)
            is_nan = np.isnan(x) & ((got & np.uint16(0x7FFF)) > 0x7F80)
            return Stored("rounded to bf16", bits, np.where(is_nan, got, bits))
        if type_id == I32:
            if not (np.abs(x) < 2.0**31).all():
                raise NoDefinition("numbers out of int32's range")
            whole = np.trunc(x).astype(np.int32)
            return Stored("cut to i32", whole, whole)
    demand(operand.type in QUANTIZED, f"quantizing to {operand.type}")
    if not np.isfinite(x).all():
        raise NoDefinition("quantizing NaN or infinities")
    demand(x.shape[-1] % 32 == 0, f"rows of {x.shape[-1]} values in {operand.type}")
    size = block_format(type_id).block_bytes
    flat = np.ascontiguousarray(x, np.float32).reshape(-1, 32)
    data, allowed = quantized(operand.type, flat, np.ascontiguousarray(got).reshape(-1, size), backend)
    return Stored(f"quantized to {operand.type}", data.reshape(got.shape), allowed.reshape(got.shape))


def _half(x: Floats, got: Array, backend: str) -> Stored:
    data = x.astype(np.float16)
    allowed = np.where(np.isnan(x) & np.isnan(got), got, data)
    if backend == "Vulkan":
        beyond = np.abs(data.astype(np.float32)) > np.abs(x)
        cut = np.where(beyond, np.nextafter(data, np.float16(0)), data)
        flushed = (np.abs(data) < np.float16(2.0**-14)) & (got == 0)
        allowed = np.where((got == cut) | flushed, got, allowed)
    return Stored("rounded to f16", data, allowed)


#: The smallest normal half.
_LEAST_HALF = 2.0**-14
#: Below this llama.cpp's CPU backend treats a block of IQ4_NL as zeros (GROUP_MAX_EPS).
_NOTHING = 1e-15
#: Above this the sums of IQ4_NL may overflow: 32·127·x³ < 2^128.
_MOST = 2.0**36


@dataclass(frozen=True)
class Quantizer:
    """Codes that are linear in x.

    Args:
        offset: added to the ratio before its fraction is cut off.
        least, top: range of the codes.
        scaled: returns, for blocks [n, 32] of either precision, x - m, d and m.
        affine: whether there is a minimum, whose subtraction rounds.
    """

    offset: float
    least: int
    top: int
    scaled: Callable[[Array], tuple[Array, Array, Array]]
    affine: bool = False


def _symmetric(bits: int) -> Quantizer:
    half = 1 << (bits - 1)

    def scaled(x: Array) -> tuple[Array, Array, Array]:
        d = signed_max(x) / x.dtype.type(-half)
        return x, d, np.zeros_like(d)

    return Quantizer(half + 0.5, 0, 2 * half - 1, scaled)


def _affine(bits: int) -> Quantizer:
    top = (1 << bits) - 1

    def scaled(x: Array) -> tuple[Array, Array, Array]:
        low, high = at_index(x, x.argmin(axis=-1)), at_index(x, x.argmax(axis=-1))
        return x - low[:, None], (high - low) / x.dtype.type(top), low

    return Quantizer(0.5, 0, top, scaled, affine=True)


def _eight_bits(x: Array) -> tuple[Array, Array, Array]:
    d = np.abs(x).max(axis=-1) / x.dtype.type(127)
    return x, d, np.zeros_like(d)


_LINEAR = {
    "Q4_0": _symmetric(4), "Q5_0": _symmetric(5), "Q4_1": _affine(4), "Q5_1": _affine(5),
    "Q8_0": Quantizer(0.5, -127, 127, _eight_bits),
}  # fmt: skip
QUANTIZED = (*_LINEAR, "IQ4_NL")


def quantized(name: str, x: Floats, got: Bytes, backend: str) -> tuple[Bytes, Bytes]:
    """Quantize finite values float32[n, 32] to a type of `QUANTIZED`.

    Returns the bytes, and the same with values of `got` where these are equally right: uint8[n, block bytes] each.
    Raises NoDefinition for a backend with unknown arithmetic.
    """
    arithmetic(backend)
    with np.errstate(all="ignore"):
        return _table(x, got, backend) if name == "IQ4_NL" else _linear(name, x, got, backend)


def _linear(name: str, x: Floats, got: Bytes, backend: str) -> tuple[Bytes, Bytes]:
    fmt, made, on_cpu = FORMATS[name], _LINEAR[name], backend == "CPU"
    expected = ENCODINGS["q8_0_cpu"].encode(x) if on_cpu and name == "Q8_0" else fmt.encode(x)
    theirs, ours = fmt.view(got), fmt.view(expected)
    codes, right = (fmt.codes(blocks).astype(int) for blocks in (got, expected))
    base, d, m = made.scaled(x.astype(np.float64))
    if on_cpu:
        allowed, scales = codes == right, {}
        if name != "Q8_0":
            near, d32, _ = made.scaled(x)
            fused = near.astype(np.float64) * inverse(d32)[:, None] + made.offset
            allowed |= codes == np.clip(np.trunc(fused.astype(np.float32)), made.least, made.top)
            allowed |= ((d != 0) & ~np.isfinite(inverse(d32)))[:, None]
    else:
        a = arithmetic(backend)
        error = (2 * a.division + 0.5 + made.affine) * ULP
        ratio = np.where(d[:, None] != 0, base / d[:, None], 0.0)
        window = error * np.abs(ratio) + UNIT_ROUNDOFF * (made.offset + made.top)
        low, high = (np.floor(ratio + made.offset + sign * window) for sign in (-1, 1))
        allowed = (np.clip(low, made.least, made.top) <= codes) & (codes <= np.clip(high, made.least, made.top))
        allowed |= _open(d)[:, None]
        scales = {"d": (d, (a.division + made.affine) * ULP)} | ({"m": (m, 0.0)} if made.affine else {})
    answer = ours.copy()
    for field, (value, off) in scales.items():
        answer[field] = np.where(_halves(value, off, theirs[field], backend), theirs[field], ours[field])
    whole = allowed.all(axis=-1)
    for field in ("qs", "qh"):
        if field in (fmt.dtype.names or ()):
            answer[field][whole] = theirs[field][whole]
    return expected, answer.view(np.uint8).reshape(expected.shape)


def _open(d: Doubles) -> Bools:
    """Return which scales are flushed to zero, or have an inverse that is."""
    size = np.abs(d)
    return np.asarray((d != 0) & ((size < NORMAL * (1 + 16 * ULP)) | (size > 2.0**126 * (1 - 16 * ULP))))


def _halves(value: Doubles, off: Doubles | float, got: Array, backend: str) -> Bools:
    """Return which of the halves `got` a number with a relative error of at most `off` may be rounded to."""
    size = np.abs(value)
    low, high = _to_half(size * (1 - off)), _to_half(size * (1 + off))
    if backend == "Vulkan":
        below = np.where(low.astype(np.float64) > size * (1 - off), np.nextafter(low, np.float16(0)), low)
        low = np.where(below.astype(np.float64) < _LEAST_HALF, np.float16(0), below)
    signed = (np.signbit(got) == np.signbit(value)) | ((got == 0) & (backend != "CPU"))
    return np.asarray((low <= np.abs(got)) & (np.abs(got) <= high) & signed)


def _to_half(values: Doubles) -> npt.NDArray[np.float16]:
    return values.astype(np.float16)


def _nearest(v: Array) -> npt.NDArray[np.intp]:
    """Return the index of the nearest value of IQ4_NL; the larger of two at equal distance."""
    values = kvalues().astype(v.dtype)
    above = np.clip(np.searchsorted(values, v, side="right"), 1, 15)
    return np.asarray(above - (v - values[above - 1] < values[above] - v), np.intp)


def _table(x: Floats, got: Bytes, backend: str) -> tuple[Bytes, Bytes]:
    fmt, a, on_cpu = FORMATS["IQ4_NL"], arithmetic(backend), backend == "CPU"
    theirs = fmt.view(got)
    codes = np.concatenate([theirs["qs"] & 0x0F, theirs["qs"] >> 4], axis=-1).astype(int)
    wide = x.astype(np.float64)
    largest = np.abs(wide).max(axis=-1)
    scale = signed_max(x) / np.float32(-127)
    d0 = signed_max(x).astype(np.float64) / -127
    ratio = x * inverse(scale)[:, None]
    right = _nearest(ratio)
    # in addition to the ratio, the two compared differences are rounded: they are below 50
    window = (0.5 if on_cpu else 2 * a.division + 0.5) * ULP * np.abs(ratio) + 50 * UNIT_ROUNDOFF
    exact = np.where(d0[:, None] != 0, wide / d0[:, None], 0.0) if not on_cpu else ratio.astype(np.float64)
    allowed: Bools = np.asarray((_nearest(exact - window) <= codes) & (codes <= _nearest(exact + window)))
    nothing: Bools = np.asarray(np.logical_and(largest < _NOTHING, on_cpu))
    whole: Bools = np.asarray(allowed.all(axis=-1) | (nothing if on_cpu else _open(d0)))

    ours, _ = _weighted(wide, right, d0, nothing, a.division)
    expected = fmt.pack(d=_to_half(ours), qs=(right[:, :16] | right[:, 16:] << 4).astype(np.uint8))
    answer = fmt.view(expected).copy()
    answer["qs"][whole] = theirs["qs"][whole]
    chosen, off = _weighted(wide, np.where(whole[:, None], codes, right), d0, nothing, a.division)
    right_scale = _halves(chosen, off, theirs["d"], backend) | ((largest > _MOST) & ~np.isfinite(theirs["d"]))
    answer["d"] = np.where(right_scale, theirs["d"], answer["d"])
    return expected, answer.view(np.uint8).reshape(expected.shape)


def _weighted(
    x: Doubles, codes: npt.NDArray[np.intp], d0: Doubles, nothing: Bools, division: float
) -> tuple[Doubles, Doubles]:
    """Return the scale with the least error Σx²(x - d·v)² for these codes, and its relative error."""
    v = kvalues().astype(np.float64)[codes]
    terms, squares = x**3 * v, x**2 * v**2
    total, size = terms.sum(axis=-1), squares.sum(axis=-1)
    d = np.where(size > 0, total / size, d0)
    condition = np.where(total != 0, np.abs(terms).sum(axis=-1) / np.abs(total), 1.0)
    return np.where(nothing, 0.0, d), 35 * UNIT_ROUNDOFF * (condition + 1) + division * ULP
