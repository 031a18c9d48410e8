"""Values as tensors of each type store them: the conversions of rows and copies.

    f32 → f16, bf16    to nearest even (simd-mappings.h, GGML_CPU_FP32_TO_FP16; ggml-impl.h, ggml_compute_fp32_to_bf16)
    f32 → i32          towards zero, as C casts; values out of range have no definition
    f32 → blocks       see `quantizers`
    … → f32            exact; blocks as decoded by llama.cpp's `to_float`: at most one rounding, for adding the minimum,
                       so every backend must give the same bits, except for the sign of a zero
                       (llama.cpp v0.5.0)

A NaN must stay a NaN, with any bits. On Vulkan a conversion to half may also round towards zero and flush subnormal
numbers, where the device does not support the mode that llama.cpp requests.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gguf_verify.formats import ELEMENTS, BlockFormat
from gguf_verify.llama.node import BF16, F16, F32, I32, Array, Bytes, NoDefinition, Operand, block_format

from .arithmetic import arithmetic
from .quantizers import QUANTIZED, Floats, quantized


@dataclass(frozen=True)
class Stored:
    """Values stored in a type.

    Args:
        definition: in words.
        data: one right answer.
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
    if operand.type not in QUANTIZED:
        raise NoDefinition(f"quantizing to {operand.type}")
    if not np.isfinite(x).all():
        raise NoDefinition("quantizing NaN or infinities")
    if x.shape[-1] % 32:
        raise NoDefinition(f"rows of {x.shape[-1]} values in {operand.type}")
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


def drawn_blocks(rng: np.random.Generator, fmt: BlockFormat, n: int) -> Bytes:
    """Return random codes with finite scales, uint8[n, block bytes]."""
    blocks = rng.integers(0, 256, (n, fmt.block_bytes), dtype=np.uint8)
    structs = fmt.view(blocks)
    for item in fmt.fields:
        if item.dtype == "<f2":
            shape = structs[item.name].shape
            bits = rng.integers(0, 0x7C00, shape) | rng.integers(0, 2, shape) << 15
            structs[item.name] = bits.astype("<u2").view("<f2")
    if fmt.make_finite is not None:
        fmt.make_finite(structs, rng)
    return blocks
