"""NVFP4: 64 floats of 4 bits (E2M1); each 16 have a scale of 8 bits (UE4M3).

Rules: ggml-quants.c, `dequantize_row_nvfp4`, and ggml-impl.h, `ggml_ue4m3_to_fp32`. For llama.cpp all bytes are valid
and all values finite.
"""

from __future__ import annotations

import numpy as np

from ..support.arrays import beside
from . import _slow as slow
from ._fp4 import E2M1, SOURCE, nibbles
from .block import BlockFormat, Codes, Floats, Structs
from .layout import Bits, Field, Items, each
from .llama_products import LlamaProducts


def _ue4m3_half() -> Floats:
    """Return half of a float of 4 bits of exponent (bias 7) and 3 of mantissa.

    The high bit is ignored, except in the bits of NaN: 0x7F is 0, 0xFF is 240.
    """
    byte = np.arange(256)
    exponent, mantissa = byte >> 3 & 15, byte & 7
    value = np.where(exponent == 0, np.ldexp(mantissa / 8, -6), np.ldexp(1 + mantissa / 8, exponent - 7)) / 2
    value[0x7F] = 0
    return value.astype(np.float32)


_SCALES = _ue4m3_half()


def _read_codes(structs: Structs) -> Codes:
    """Return the codes: in each 8 bytes, low nibbles are values 0..7 of a group, high nibbles values 8..15."""
    qs = structs["qs"].reshape(*structs.shape, 4, 8)
    return beside(qs, E2M1)[nibbles(qs)].reshape(*structs.shape, 64)


def _read_scales(structs: Structs) -> Floats:
    scales: Floats = beside(structs["d"], _SCALES)[structs["d"]]
    return scales


def _slow_decode(raw: bytes) -> list[float]:
    """dequantize_row_nvfp4"""
    values = []
    for i in range(64):
        byte = raw[4 + i // 16 * 8 + i % 8]
        values.append(
            slow.times(slow.e2m1_doubled(byte // 16 if i % 16 > 7 else byte % 16), slow.ue4m3_halved(raw[i // 16]))
        )
    return values


NVFP4 = BlockFormat(
    name="NVFP4",
    type_id=40,
    file_type=39,
    not_quantized_alone="llama.cpp quantizes nothing to it",
    block_size=64,
    fields=(
        Field(
            "d",
            "u1",
            4,
            "a scale for each 16 values, UE4M3: exponent of bias 7",
            each(4, Bits(1, "unused"), Bits(4, "exponent", 0), Bits(3, "mantissa", 0)),
        ),
        Field(
            "qs",
            "u1",
            32,
            "of each 8 bytes: low nibbles values 0..7 of 16, high nibbles values 8..15",
            tuple(Items(range(8 * g, 8 * g + 8), (Bits(4, "x", 16 * g + 8), Bits(4, "x", 16 * g))) for g in range(4)),
        ),
    ),
    bits=5,
    group=16,
    low=-16,
    source=SOURCE,
    rule="x = d[g]·q, d = UE4M3/2, q = 2·E2M1, g = i // 16",
    read_codes=_read_codes,
    read_scales=_read_scales,
    slow_decode=_slow_decode,
    llama=LlamaProducts(cpu="q8_0_cpu", mmvq="q8_1", mmq="mmq_d4", four_bit_activations=True),
)
