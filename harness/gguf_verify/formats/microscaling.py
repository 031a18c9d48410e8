"""Formats of 4-bit floats (E2M1) under scales of 8 bits: MXFP4 with a power of two (E8M0), NVFP4 with UE4M3.

Layouts: ggml/src/ggml-common.h. Rules: ggml/src/ggml-quants.c, `dequantize_row_mxfp4`, `dequantize_row_nvfp4`, and
ggml-impl.h, `ggml_e8m0_to_fp32_half`, `ggml_ue4m3_to_fp32` (llama.cpp v0.5.0). The codes are twice the floats, which
makes them integers, and the scales are half of what the formats' standards say.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .block import BlockFormat, Bytes, Codes, Field, Floats, Items, Run, Structs, each

_SOURCE = "ggml-common.h, ggml-quants.c, ggml-impl.h (llama.cpp v0.5.0)"
#: Twice the value of each E2M1: a sign, two bits of exponent (bias 1), one of mantissa. -0 is 0.
E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)


def _e8m0_half() -> Floats:
    """Half of 2^(e-127), as llama.cpp decodes it: 255, NaN in the standard, is one power more; 0 and 1 are subnormal
    floats."""
    return np.ldexp(np.float32(1), np.arange(256) - 128).astype(np.float32)


def _ue4m3_half() -> Floats:
    """Half of a float of 4 bits of exponent (bias 7) and 3 of mantissa. The high bit does not count, but for NaN's
    bits: 0x7F is 0, 0xFF is 240."""
    byte = np.arange(256)
    exponent, mantissa = byte >> 3 & 15, byte & 7
    value = np.where(exponent == 0, np.ldexp(mantissa / 8, -6), np.ldexp(1 + mantissa / 8, exponent - 7)) / 2
    value[0x7F] = 0
    return value.astype(np.float32)


_E8M0_HALF, _UE4M3_HALF = _e8m0_half(), _ue4m3_half()


def _nibbles(qs: Bytes) -> Bytes:
    return np.concatenate([qs & 0x0F, qs >> 4], axis=-1)


def _read_mxfp4(structs: Structs) -> Codes:
    return np.asarray(E2M1[_nibbles(structs["qs"])])


def _scales_mxfp4(structs: Structs) -> Floats:
    return np.asarray(_E8M0_HALF[structs["e"]][..., None])


def _sound_mxfp4(structs: Structs) -> npt.NDArray[np.bool_]:
    """ggml-quants.c, `validate_e_e8m0`. (Of NVFP4 all bytes are valid to it, and all values finite.)"""
    return np.asarray(structs["e"] != 255)


MXFP4 = BlockFormat(
    "MXFP4", 39, 32,
    (
        Field("e", "u1", 1, "scale: d = 2^(e - 128)", each(1, Run(8, "exponent of the scale"))),
        Field("qs", "u1", 16, "low nibbles: values 0..15, high nibbles: values 16..31",
              each(16, Run(4, "x", 16), Run(4, "x", 0))),
    ),
    5, 0, _SOURCE, _read_mxfp4, group=32, low=-16, read_scales=_scales_mxfp4, read_sound=_sound_mxfp4,
    rule="x = d·q, d = 2^(e - 128), q = 2·E2M1",
)  # fmt: skip


def _read_nvfp4(structs: Structs) -> Codes:
    """Of each 8 bytes: low nibbles values 0..7 of a group, high nibbles values 8..15."""
    qs = structs["qs"].reshape(*structs.shape, 4, 8)
    return np.asarray(E2M1[_nibbles(qs)]).reshape(*structs.shape, 64)


def _scales_nvfp4(structs: Structs) -> Floats:
    return np.asarray(_UE4M3_HALF[structs["d"]])


NVFP4 = BlockFormat(
    "NVFP4", 40, 64,
    (
        Field("d", "u1", 4, "a scale for each 16 values, UE4M3: exponent of bias 7",
              each(4, Run(1, "unused"), Run(4, "exponent", 0), Run(3, "mantissa", 0))),
        Field("qs", "u1", 32, "of each 8 bytes: low nibbles values 0..7 of 16, high nibbles values 8..15",
              tuple(Items(range(8 * g, 8 * g + 8), (Run(4, "x", 16 * g + 8), Run(4, "x", 16 * g))) for g in range(4))),
    ),
    5, 0, _SOURCE, _read_nvfp4, group=16, low=-16, read_scales=_scales_nvfp4,
    rule="x = d[g]·q, d = UE4M3/2, q = 2·E2M1, g = i // 16",
)  # fmt: skip
