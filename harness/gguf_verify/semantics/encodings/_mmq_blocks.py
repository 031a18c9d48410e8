"""`block_q8_1_mmq` of llama.cpp's CUDA backend: 128 activations, 16 bytes of scales and sums before their codes.

ggml-cuda/mmq.cuh (v0.5.0) has three layouts of these 16 bytes. DS4: four pairs of half d and half s, of 32 values each.
D4: four float32 scales, of 32 values each. D2S6: two half scales, of 64 values each, then six half sums, of 16 values
each: those of the first 96 values. llama.cpp keeps the blocks of all tokens with the same K side by side; here a
token's blocks are, which the operand of a declaration may transpose.
"""

from __future__ import annotations

import struct
from functools import partial

import numpy as np
import numpy.typing as npt

from ...formats import BlockFormat, Field
from ...formats.block import NO_TYPE_ID
from ...formats.layout import Bits, each

#: Values of a block.
SIZE = 128
Structs = npt.NDArray[np.void]
Floats = npt.NDArray[np.float32]


def _codes(structs: Structs) -> npt.NDArray[np.int8]:
    return np.asarray(structs["qs"])


def _scales(structs: Structs, first: int, step: int, repeat: int) -> Floats:
    d = np.asarray(structs["d" if step == 1 and repeat == 1 else "ds"]).astype(np.float32)
    return np.repeat(d[..., first : first + 4 * step // repeat : step], repeat, axis=-1)


def _slow(raw: bytes, scales: str, per_scale: int, step: int) -> list[float]:
    d = struct.unpack_from(scales, raw, 0)[::step]
    return [float(np.float32(d[i // per_scale]) * np.float32(q)) for i, q in enumerate(struct.unpack_from("<128b", raw, 16))]


def _format(name: str, scales: Field, read: object, slow: object) -> BlockFormat:
    return BlockFormat(
        name=name, type_id=NO_TYPE_ID, block_size=SIZE, group=32, bits=8, low=-128, read_codes=_codes,
        fields=(scales, Field("qs", "i1", SIZE, "codes in order", each(SIZE, Bits(8, "x", 0)))),
        read_scales=read, slow_decode=slow, activations=True,  # type: ignore[arg-type]
        source="ggml-cuda/mmq.cuh, quantize.cu (llama.cpp v0.5.0)",
    )  # fmt: skip


_HALVES = each(8, Bits(16, "scale or sum", 0))
DS4_BLOCK = _format(
    "MMQ_DS4", Field("ds", "<f2", 8, "scale and sum of 32 values, four times", _HALVES),
    partial(_scales, first=0, step=2, repeat=1), partial(_slow, scales="<8e", per_scale=32, step=2),
)  # fmt: skip
D4_BLOCK = _format(
    "MMQ_D4", Field("d", "<f4", 4, "scale of 32 values, four times", each(4, Bits(32, "scale", 0))),
    partial(_scales, first=0, step=1, repeat=1), partial(_slow, scales="<4f", per_scale=32, step=1),
)  # fmt: skip
D2S6_BLOCK = _format(
    "MMQ_D2S6", Field("ds", "<f2", 8, "two scales of 64 values, six sums of 16", _HALVES),
    partial(_scales, first=0, step=1, repeat=2), partial(_slow, scales="<2e", per_scale=64, step=1),
)  # fmt: skip
