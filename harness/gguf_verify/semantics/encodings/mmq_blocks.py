"""`block_q8_1_mmq` of llama.cpp's CUDA backend: 128 activations, 16 bytes of scales and sums before their codes.

ggml-cuda/mmq.cuh (v0.5.0) has three layouts of these 16 bytes. DS4: four pairs of half d and half s, of 32 values each.
D4: four float32 scales, of 32 values each. D2S6: two half scales, of 64 values each, then six half sums, of 16 values
each: those of the first 96 values. llama.cpp stores the blocks of all tokens with the same K side by side; here a
token's blocks are adjacent, which the operand of a declaration may transpose.
"""

from __future__ import annotations

import struct
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ...formats.block import NO_TYPE_ID, BlockFormat
from ...formats.layout import Bits, Field, each

#: Values of a block.
SIZE = 128
Structs = npt.NDArray[np.void]
Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


def _codes(structs: Structs) -> npt.NDArray[np.int8]:
    return np.asarray(structs["qs"])


def _ds4(structs: Structs) -> Floats:
    return np.asarray(structs["ds"])[..., ::2].astype(np.float32)


def _d4(structs: Structs) -> Floats:
    return np.asarray(structs["d"]).astype(np.float32)


def _d2s6(structs: Structs) -> Floats:
    return np.repeat(np.asarray(structs["ds"])[..., :2].astype(np.float32), 2, axis=-1)


def _slow(raw: bytes, scales: str, per_scale: int, step: int) -> list[float]:
    d = struct.unpack_from(scales, raw, 0)[::step]
    codes = struct.unpack_from("<128b", raw, 16)
    return [float(np.float32(d[i // per_scale]) * np.float32(q)) for i, q in enumerate(codes)]


def _format(name: str, scales: Field, read: Any, slow: Any) -> BlockFormat:
    return BlockFormat(
        name=name,
        type_id=NO_TYPE_ID,
        block_size=SIZE,
        group=32,
        bits=8,
        low=-128,
        read_codes=_codes,
        fields=(scales, Field("qs", "i1", SIZE, "codes in order", each(SIZE, Bits(8, "x", 0)))),
        read_scales=read,
        slow_decode=slow,
        activations=True,
        source="ggml-cuda/mmq.cuh, quantize.cu (llama.cpp v0.5.0)",
    )


def packed(blocks: Bytes) -> Bytes:
    """Pack blocks of 32 values, uint8[M, K/32·36] with 4 bytes before their codes, by fours: uint8[M, ceil(K/128)·144].

    The last four are padded with zeros.
    """
    fours = np.pad(blocks, ((0, 0), (0, -blocks.shape[1] % 144))).reshape(len(blocks), -1, 4, 36)
    head = fours[..., :4].reshape(*fours.shape[:2], 16)
    return np.concatenate([head, fours[..., 4:].reshape(*fours.shape[:2], SIZE)], axis=-1).reshape(len(blocks), -1)


_HALVES = each(8, Bits(16, "scale or sum", 0))
DS4_BLOCK = _format(
    "MMQ_DS4",
    Field("ds", "<f2", 8, "scale and sum of 32 values, four times", _HALVES),
    _ds4,
    partial(_slow, scales="<8e", per_scale=32, step=2),
)
D4_BLOCK = _format(
    "MMQ_D4",
    Field("d", "<f4", 4, "scale of 32 values, four times", each(4, Bits(32, "scale", 0))),
    _d4,
    partial(_slow, scales="<4f", per_scale=32, step=1),
)
D2S6_BLOCK = _format(
    "MMQ_D2S6",
    Field("ds", "<f2", 8, "two scales of 64 values, six sums of 16", _HALVES),
    _d2s6,
    partial(_slow, scales="<2e", per_scale=64, step=1),
)
