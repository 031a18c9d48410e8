"""`q8_1_delta`: llama.cpp's CUDA kernels of IQ1_S for few tokens: a part of each weight is a factor of the raw sum.

A weight of IQ1_S is d·(2·scale + 1)·(grid ± 1/8). Kernels store grid + 1, which is not negative, in place of grid:

    d·(2·scale + 1)·(d_a·Σ (grid + 1)·q_a + (±1/8 - 1)·s)

This is llama.cpp's MMVQ (ggml-cuda/vecdotq.cuh, vec_dot_iq1_s_q8_1). For IQ1_M, whose signs belong to 8 values each, it
multiplies ±1/8 - 1 by sums of codes: that product is the one of `sums`.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ...formats.block import BlockFormat, Codes, Structs
from ...formats.iq1_s import IQ1_S
from ..definition import Semantics
from ..encodings.q8_1 import RAW_Q8_1
from ..sums import Floats
from ..terms.codes import CodeTerm

_PART = 32


def _sign(structs: Structs) -> npt.NDArray[np.int8]:
    """Return 1 or -1 where an eighth is added or subtracted, int8[..., 8]."""
    return (1 - 2 * (structs["qh"] >> 15).astype(np.int8)).astype(np.int8)


def _read_codes(structs: Structs) -> Codes:
    eighths = IQ1_S.read_codes(structs).astype(np.int8)
    codes: Codes = (((eighths - np.repeat(_sign(structs), _PART, axis=-1)) >> 3) + 1).astype(np.uint8)  # multiples of 8
    return codes


def _read_scales(structs: Structs) -> Floats:
    assert IQ1_S.read_scales is not None
    return np.float32(8) * IQ1_S.read_scales(structs)


def _read_minima(structs: Structs) -> Floats:
    with np.errstate(invalid="ignore"):
        return _read_scales(structs) * (_sign(structs).astype(np.float32) / np.float32(8) - np.float32(1))


#: IQ1_S as w = d·(2·scale + 1)·(grid + 1) + d·(2·scale + 1)·(±1/8 - 1).
IQ1_S_APART = replace(IQ1_S, bits=2, low=0, read_codes=_read_codes, read_scales=_read_scales, read_minima=_read_minima)


class _DeltaSums(CodeTerm):
    def reads(self, fmt: BlockFormat) -> BlockFormat:
        return IQ1_S_APART if fmt is IQ1_S else fmt

    def meets_sum(self, fmt: BlockFormat) -> bool:
        return fmt.min_times_sum or fmt is IQ1_S_APART


DELTA_SUMS = _DeltaSums(name="delta_sums", title="of IQ1_S d_w·(d_a·Σ (grid + 1)·q_a + (±1/8 - 1)·s); else as `sums`")
Q8_1_DELTA = Semantics(
    name="q8_1_delta",
    title="of IQ1_S d_w·(d_a·Σ (grid + 1)·q_a + (±1/8 - 1)·s), s = half(Σ x) of raw values; else as `q8_1`",
    source="llama.cpp CUDA MMVQ of IQ1_S (ggml-cuda/vecdotq.cuh, vec_dot_iq1_s_q8_1)",
    encoding=RAW_Q8_1,
    term=DELTA_SUMS,
)
