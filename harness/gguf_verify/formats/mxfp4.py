"""MXFP4: 32 floats of 4 bits (E2M1) under a scale that is a power of two (E8M0).

Rules: ggml-quants.c, `dequantize_row_mxfp4`, and ggml-impl.h, `ggml_e8m0_to_fp32_half`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..support.arrays import beside
from . import _slow as slow
from ._fp4 import E2M1, SOURCE, nibbles
from ._legacy import NIBBLES
from .block import QK, BlockFormat, Codes, Floats, Structs
from .layout import Bits, Field, each
from .llama_products import LlamaProducts


def _e8m0_half() -> Floats:
    """Return half of 2^(e-127), as llama.cpp decodes it.

    255, NaN in the standard, is the next power; 0 and 1 are subnormal floats.
    """
    return np.ldexp(np.float32(1), np.arange(256) - 128).astype(np.float32)


_SCALES = _e8m0_half()


def _read_codes(structs: Structs) -> Codes:
    qs = structs["qs"]
    return beside(qs, E2M1)[nibbles(qs)]


def _read_scales(structs: Structs) -> Floats:
    scales: Floats = beside(structs["e"], _SCALES)[structs["e"]][..., None]
    return scales


def _read_sound(structs: Structs) -> npt.NDArray[np.bool_]:
    """Return whether no scale is NaN: ggml-quants.c, `validate_e_e8m0`: 255 is NaN by the standard."""
    sound: npt.NDArray[np.bool_] = structs["e"] != 255
    return sound


def _make_finite(structs: Structs, rng: np.random.Generator) -> None:
    """Set scales from 2^-128 to 2^61, so that sums of products are finite floats."""
    structs["e"] = rng.integers(0, 190, len(structs))


def _slow_decode(raw: bytes) -> list[float]:
    """dequantize_row_mxfp4, with ggml_e8m0_to_fp32_half"""
    d = 2.0 ** (raw[0] - 128)
    return [slow.times(slow.e2m1_doubled(b % 16), d) for b in raw[1:]] + [
        slow.times(slow.e2m1_doubled(b // 16), d) for b in raw[1:]
    ]


MXFP4 = BlockFormat(
    name="MXFP4",
    type_id=39,
    file_type=38,
    recipes=("MXFP4_MOE",),
    block_size=QK,
    fields=(Field("e", "u1", 1, "scale: d = 2^(e - 128)", each(1, Bits(8, "exponent of the scale"))), NIBBLES),
    bits=5,
    low=-16,
    source=SOURCE,
    rule="x = d·q, d = 2^(e - 128), q = 2·E2M1",
    read_codes=_read_codes,
    read_scales=_read_scales,
    read_sound=_read_sound,
    make_finite=_make_finite,
    slow_decode=_slow_decode,
    llama=LlamaProducts(cpu="q8_0_cpu", mmvq="q8_1", mmq="mmq_d4", mmvq_tokens_of_experts=7, four_bit_activations=True),
)
