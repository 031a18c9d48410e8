"""Comparison of llama.cpp's CUDA quantizers with IEEE division: the differences of correct quantizers, and faults.

llama.cpp builds them with fast math: divisions and reciprocals have errors of an ulp or two, and subnormal results are
flushed to zero. So a code may differ by one step from that of IEEE division, and only if x·(127/max) lies within WINDOW
of a half: such codes are *ambiguous*. A half scale may be the neighbour if max/127 lies within WINDOW of the midpoint
of both, and a float32 scale must be within WINDOW of max/127. Sums are not divided, so they must have the same bits.
(CUDA's programming guide allows 2 ulps for a division of this kind and 1 for a reciprocal. Measured on an H200: codes
differ where they lie within 0.7 ulps of a half, float32 scales by up to 1.6 ulps.)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..formats.block import QK
from ..formats.q8_1 import Q8_1
from ..formats.q8_1_d4 import Q8_1_D4
from .activations import Bytes, Floats, butterfly_sum
from .definition import Semantics

#: A relative distance: four units in the last place of a float32.
WINDOW = 2.0**-21
_SMALLEST = 2.0**-126


def ambiguous_codes(x: Floats) -> npt.NDArray[np.bool_]:
    """Return which values of float32[M, K] may get either of two codes, bool[M, K]."""
    ratio = np.abs(_ratio(x.reshape(len(x), -1, QK)))
    return np.asarray(np.abs(ratio % 1 - 0.5) <= WINDOW * ratio).reshape(x.shape)


def _ratio(blocks: Floats) -> npt.NDArray[np.float64]:
    """Return 127·x/max in float64, whose own error is negligible here; 0 in a block of zeros."""
    wide = blocks.astype(np.float64)
    largest = np.abs(wide).max(axis=-1, keepdims=True)
    return np.asarray(127 * np.divide(wide, largest, out=np.zeros_like(wide), where=largest > 0))


@dataclass(frozen=True)
class Agreement:
    """llama.cpp's activation bytes compared with those of the harness's encoder.

    Args:
        codes: the number of compared codes: those under a scale that is not zero.
        ambiguous: the number of these that a quantizer may round in two ways.
        differing: the number of these that differ, by one step.
        scales: the number of compared blocks.
        differing_scales: the number of these with another half scale: the neighbour, which fast math may give.
        unexplained: (m, block, the kind of difference) of the first block that fast math does not explain; None if all
            are explained.
    """

    codes: int
    ambiguous: int
    differing: int
    scales: int
    differing_scales: int
    unexplained: tuple[int, int, str] | None

    def __add__(self, other: Agreement) -> Agreement:
        return Agreement(
            self.codes + other.codes,
            self.ambiguous + other.ambiguous,
            self.differing + other.differing,
            self.scales + other.scales,
            self.differing_scales + other.differing_scales,
            self.unexplained or other.unexplained,
        )

    @property
    def per_million(self) -> float:
        """Codes that differ from those of IEEE division, per million."""
        return 1e6 * self.differing / self.codes if self.codes else 0.0


def compare_activations(semantics: Semantics, x: Floats, theirs: Bytes) -> Agreement:
    """Compare activations float32[M, K] as llama.cpp quantized them, uint8[M, K/32·36], with a definition.

    The definition is one of llama.cpp's CUDA backend, with a `cuda_path`.
    """
    fmt = semantics.activations
    assert fmt is not None
    blocks = np.ascontiguousarray(x, np.float32).reshape(len(x), -1, QK)
    got, expected = (
        fmt.view(raw.reshape(*blocks.shape[:2], fmt.block_bytes)) for raw in (theirs, semantics.bytes_of(x))
    )
    exact = np.abs(blocks.astype(np.float64)).max(axis=-1) / 127
    with np.errstate(all="ignore"):
        d, d_ieee = (part["d"].astype(np.float64) for part in (got, expected))
        if fmt is Q8_1_D4:
            other_scale = np.zeros(d.shape, bool)
            flushed = (d == 0) & (exact <= _SMALLEST * (1 + WINDOW))
            wrong_scale = ~((np.abs(d - exact) <= WINDOW * exact) | flushed)
        else:
            other_scale = ~((d == d_ieee) | ~np.isfinite(d_ieee))
            off = np.abs(np.abs(d - exact) - np.abs(d_ieee - exact))
            wrong_scale = other_scale & ~(off <= 2 * WINDOW * exact)  # two halves at equal distance are neighbours
        known = np.isfinite(d) & (d != 0)
    step = got["qs"].astype(int) - expected["qs"]
    ambiguous = ambiguous_codes(x).reshape(blocks.shape) & known[..., None]
    differs = (step != 0) & known[..., None]
    wrong_code = (differs & ~(ambiguous & (np.abs(step) == 1))).any(axis=-1)
    unexplained = _first(wrong_scale, "scale") or _first(wrong_code, "code")
    if fmt is Q8_1 and unexplained is None:
        same = (got["s"].view(np.uint16) == expected["s"].view(np.uint16)) | ~np.isfinite(expected["s"])
        unexplained = _first(~same, "sum")
    return Agreement(
        int(known.sum()) * QK,
        int(ambiguous.sum()),
        int(differs.sum()),
        int(known.sum()),
        int((other_scale & ~wrong_scale).sum()),
        unexplained,
    )


def _first(wrong: npt.NDArray[np.bool_], what: str) -> tuple[int, int, str] | None:
    if not wrong.any():
        return None
    m, block = (int(i) for i in np.argwhere(wrong)[0])
    return m, block, what


def as_q8_1(theirs: Bytes, x: Floats) -> Bytes:
    """Convert blocks of Q8_1_D4 to those of `q8_1`: the same codes, the scale rounded to half, s = half(Σx)."""
    blocks = np.ascontiguousarray(x, np.float32).reshape(len(x), -1, QK)
    view = Q8_1_D4.view(theirs.reshape(*blocks.shape[:2], Q8_1_D4.block_bytes))
    with np.errstate(over="ignore"):
        d, s = view["d"].astype(np.float16), butterfly_sum(blocks).astype(np.float16)
    return Q8_1.pack(d=d, s=s, qs=view["qs"]).reshape(len(x), -1)
