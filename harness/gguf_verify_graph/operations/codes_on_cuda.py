"""Deviations of CUDA's products of codes from the definitions of `semantics`; see `products_on_cuda`.

quotients   T = ⌊(Σ_g s[g]·S[g] + ⌊Σ_g S[g]/2⌋)/D⌋ instead of Σ_g (2·s[g] + 1)·S[g]/(2·D). |T| is at most
            Σ_g (2·s[g] + 1)·Σ|q_w·q_a|/(2·D), so bound and spread of the exact quotient remain valid.
choices     for a code, |w|·d_a; for a scale that may be one of two halves, their distance times Σ|w|·|q_a|; for a
            float32 scale, WINDOW·d_a·Σ|w|·|q_a|. Here w is the factor of the code: d_w·q_w, plus the minimum unless
            that is multiplied by the stored sum. With integer quotients a choice may also move two units d·d_a.
flushing    scales, and products of scales, below 2^-126 may be flushed to zero: 2^-126·(1 + d_a)·Σ|q_w|·|q_a|
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt

from gguf_verify.formats.block import BlockFormat
from gguf_verify.llama.node import Bytes, Doubles
from gguf_verify.semantics.definition import Semantics
from gguf_verify.semantics.definitions.q8_1_delta import DELTA_SUMS
from gguf_verify.semantics.fast_math import WINDOW
from gguf_verify.semantics.sums import Product

from .arithmetic import NORMAL
from .definition import Definition, Floats

_BLOCK = 32
#: Formats whose integers MMVQ divides, with D.
_DIVISORS = {"IQ2_XXS": 4, "IQ2_XS": 4, "IQ2_S": 4, "IQ3_XXS": 2}
#: Number of elements of a (blocks, M, n) array of quotients.
_TILE = 1 << 20


def definition_of_codes(semantics: Semantics, fmt: BlockFormat, few: bool) -> Definition:
    """Return the definition of MMVQ (`few` columns) or of MMQ.

    Args:
        semantics: that of the format, as named by `products_of`.
    """
    read = DELTA_SUMS.reads(fmt)
    divisor = _DIVISORS.get(fmt.name) if few else None
    slack = partial(_slack, semantics, read, divisor is not None)
    if divisor is None:
        return Definition(semantics, read, slack=slack)
    name = f"{semantics.name}, integer quotients"
    return Definition(semantics, read, name, adjusted=partial(_cut, semantics, read, divisor), slack=slack)


def products_of(fmt: BlockFormat) -> tuple[str, str]:
    """Return the names of the definitions of MMVQ and of MMQ in `semantics`; "" where there is none."""
    if fmt.name in _DIVISORS:
        return "q8_1", fmt.llama.mmq
    others = {"IQ1_S": ("mmq_older", "mmq"), "Q2_K": (fmt.llama.mmvq, "mmq_d2s6")}
    return others.get(fmt.name, (fmt.llama.mmvq, fmt.llama.mmq))


# ---- integer quotients -----------------------------------------------------------------------------------------------


def _cut(semantics: Semantics, fmt: BlockFormat, divisor: int, w: Bytes, a: Bytes, product: Product) -> Product:
    """Return the product with integer quotients."""
    operands = semantics.encoding.operands(a, fmt.group)
    q_a = np.asarray(operands.q, np.float32)  # [groups, M, values]
    d_a = operands.d[:: _BLOCK // fmt.group, :, 0]  # [blocks, M]
    exact = product.exact.copy()
    step = max(1, _TILE // max(1, len(q_a) * len(a)))
    for start in range(0, len(w), step):
        exact[:, start : start + step] += _remainders(semantics, fmt, divisor, w[start : start + step], q_a, d_a)
    return replace(product, exact=exact, of_rows=None)


def _remainders(semantics: Semantics, fmt: BlockFormat, divisor: int, w: Bytes, q_a: Floats, d_a: Doubles) -> Doubles:
    """Return the change of some rows' outputs by integer division, float64[M, n]."""
    blocks = w.reshape(len(w), -1, fmt.block_bytes)
    q_w = semantics.term.codes(fmt, blocks).reshape(len(w), -1, fmt.group).transpose(1, 2, 0)
    sums = np.matmul(q_a, q_w).astype(np.int64)  # below 2^24: exact
    per = _BLOCK // fmt.group
    sums = sums.reshape(-1, per, *sums.shape[1:])  # [blocks, groups of a block, M, n]
    d, s = _scales_and_steps(fmt, divisor, blocks)
    steps = s.T.reshape(-1, per, 1, len(w))
    whole = (steps * sums).sum(axis=1) + np.trunc(sums.sum(axis=1) / 2).astype(np.int64)
    exact = ((2 * steps + 1) * sums).sum(axis=1) / (2 * divisor)
    off = np.trunc(whole / divisor) - exact
    scale = np.repeat(d, fmt.block_size // _BLOCK, axis=1).T  # [blocks, n]
    with np.errstate(invalid="ignore"):
        return np.asarray(np.einsum("bmn,bm,bn->mn", off, d_a, scale))


def _scales_and_steps(fmt: BlockFormat, divisor: int, blocks: Bytes) -> tuple[Doubles, npt.NDArray[np.int64]]:
    """Return d float64[n, superblocks] and s int64[n, groups of a row] of the scales d·(2·s + 1)/(2·divisor)."""
    structs = fmt.view(blocks)
    plain = np.array(structs)
    plain["d"] = 1
    of_one = fmt.scales(plain.view(np.uint8).reshape(blocks.shape)).astype(np.float64)
    s = np.rint((of_one * 2 * divisor - 1) / 2).astype(np.int64)
    return structs["d"].astype(np.float64), s.reshape(len(blocks), -1)


# ---- freedom of fast math --------------------------------------------------------------------------------------------


def _slack(semantics: Semantics, fmt: BlockFormat, cut: bool, w: Bytes, x: Floats) -> tuple[Doubles, int]:
    """Return the slack; see `Definition.slack`."""
    encoding = semantics.encoding
    size = encoding.values_per_scale
    wide = np.pad(x.astype(np.float64), ((0, 0), (0, -x.shape[1] % size)))
    parts = wide.reshape(len(x), -1, size)
    largest = np.abs(parts).max(axis=-1, keepdims=True)
    ratio = np.abs(127 * np.divide(parts, largest, out=np.zeros_like(parts), where=largest > 0))
    d = largest / 127
    either = np.abs(ratio % 1 - 0.5) <= WINDOW * ratio
    apart, choices = _scales_apart(d, encoding.name)
    moved = (either * d + apart * np.rint(ratio)).reshape(len(x), -1)[:, : x.shape[1]]
    found = int(either.sum()) + choices
    blocks = w.reshape(len(w), -1, fmt.block_bytes)
    tiny = _tiny(fmt.scales(blocks), d)
    if not moved.any() and not tiny:
        return np.zeros((len(x), len(w))), found
    scales, codes = (of.astype(np.float64) for of in (fmt.scales(blocks), np.abs(semantics.term.codes(fmt, blocks))))
    values = codes.reshape(*codes.shape[:2], fmt.groups, -1) * np.abs(scales)[..., None]
    if fmt.has_min and not semantics.uses_sum(fmt):
        values = values + np.abs(fmt.minima(blocks)).astype(np.float64)[..., None]
    slack = moved @ np.nan_to_num(values).reshape(len(w), -1).T
    if tiny:
        met = (np.rint(ratio) * (1 + d)).reshape(len(x), -1)[:, : x.shape[1]]
        slack = slack + NORMAL * (met @ codes.reshape(len(w), -1).T)
    if cut:
        units = np.nan_to_num(np.abs(fmt.view(blocks)["d"].astype(np.float64)))
        chosen = either.any(axis=-1) * d[..., 0]
        per = fmt.block_size // size
        slack = slack + 2 * chosen.reshape(len(x), -1, per).sum(axis=-1) @ units.T
    return slack, found


def _tiny(scales: Floats, d: Doubles) -> bool:
    """Return whether a scale of the weights, or its product with an activation's scale, may be subnormal."""
    size = np.abs(scales[scales != 0])
    return bool(size.size and d.any() and size.min() * min(1.0, d[d > 0].min()) < NORMAL)


def _scales_apart(d: Doubles, encoding: str) -> tuple[Doubles, int]:
    """Return the largest distance of right scales, in the shape of d, and how many may be one of two halves."""
    with np.errstate(all="ignore"):
        if encoding.startswith("mmq_d4"):
            return np.where(d <= 2.0**-126, d, WINDOW * d), 0
        low, high = ((d * (1 + sign * WINDOW)).astype(np.float16).astype(np.float64) for sign in (-1, 1))
        apart = np.nan_to_num(high - low, nan=0.0, posinf=0.0)
    return apart, int((apart != 0).sum())
