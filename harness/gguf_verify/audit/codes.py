"""Codes that a tensor never uses although llama.cpp's quantizer would.

The usual frequency of each code is measured: llama.cpp quantizes random weights of several distributions. In a
distribution with B0 blocks, a share k/B0 of them contains code c. By Hoeffding's inequality, the probability P that a
block contains c is at least L = k/B0 - sqrt(ln(1/α)/(2·B0)), except with probability α; the smallest L over all
distributions is used. If the B blocks of a tensor are independent, none of them contains c with probability at most
(1 - P)^B, and the code is reported as unused if (1 - L)^B < α. Codes that llama.cpp never uses (-128 of Q8_0), or
rarely, have L ≤ 0 and are never reported.

A tensor quantized from already quantized values lacks codes too, because each of its blocks contains few different
values: 16 if they came from four bits. This is reported if none of `DESCRIBED` blocks contains as many different codes
as the median block of llama.cpp does for any weights (probability by chance: 2^-DESCRIBED), while the tensor as a whole
uses more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ..formats.block import BlockFormat
from ..gguf.records import Finding
from ..llama.library import Llama
from ..llama.process import LlamaRefused
from ..support.text import quoted
from .content import DESCRIBED, Content, codes_by_side, finding_at

#: α for each code of each tensor: less than one false report in 10^12 files of 100 tensors and 256 codes.
_ALPHA = 1e-17
#: Number of values per distribution; smaller for superblocks, which contain most codes, and which llama.cpp quantizes
#: slowly for some types. `_FIRST_LOOK` values tell which codes llama.cpp uses at all.
_VALUES, _OF_SUPERBLOCKS, _FIRST_LOOK, _COLUMNS = 1 << 18, 1 << 16, 1 << 14, 256
_MOST_NAMED = 6

if TYPE_CHECKING:  # naming a generator makes NumPy import all of them
    Draw = Callable[[np.random.Generator, tuple[int, int]], npt.NDArray[np.float64]]

#: Distributions of weights, from bounded ones to ones with outliers.
_WEIGHTS: tuple[Draw, ...] = (
    lambda rng, shape: rng.standard_normal(shape),
    lambda rng, shape: rng.uniform(-1, 1, shape),
    lambda rng, shape: rng.laplace(size=shape),
    lambda rng, shape: rng.standard_t(3, shape),
)


def unused_codes(contents: Sequence[Content], llama: Llama) -> Iterator[Finding]:
    """Yield a finding for each type with tensors that lack codes.

    Tensors with codes on one side of zero only are skipped, because they get a finding of their own. Raises
    EnvironmentFault.
    """
    by_type: dict[BlockFormat, list[Content]] = {}
    for content in contents:
        fmt, scan = content.tensor.type.format, content.scan
        if fmt is None or scan is None or (not fmt.has_min and not all(codes_by_side(content))):
            continue
        by_type.setdefault(fmt, []).append(content)
    for fmt, judged in by_type.items():
        lacking = [(content, missing) for content in judged if (missing := _missing(content, fmt)).any()]
        if not lacking:
            continue
        used = _Used(fmt, llama)
        found = [(content, codes) for content, missing in lacking if (codes := used.missed(content, missing)).any()]
        if found:
            yield _finding(fmt, found, len(judged), used)


def _missing(content: Content, fmt: BlockFormat) -> npt.NDArray[np.bool_]:
    """Return bool[2^bits]: the codes that do not occur."""
    assert content.scan is not None
    return np.asarray(content.scan.codes[: 1 << fmt.bits] == 0)


class _Used:
    """The codes that llama.cpp's quantizer uses for weights of a type."""

    def __init__(self, fmt: BlockFormat, llama: Llama) -> None:
        self._fmt, self._llama = fmt, llama
        self._values = _VALUES if fmt.block_size < _COLUMNS else _OF_SUPERBLOCKS
        self._ever = self._blocks(_WEIGHTS[0], _FIRST_LOOK).mean(axis=0) > 0
        self._least: npt.NDArray[np.float64] | None = None
        self._usual = 0.0

    def missed(self, content: Content, missing: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Return the missing codes that llama.cpp would have used."""
        assert content.scan is not None
        if not (missing & self._ever).any():
            return missing & False
        if self._least is None:
            blocks = [self._blocks(draw, self._values) for draw in _WEIGHTS]
            self._least = np.min([held.mean(axis=0) for held in blocks], axis=0)
            self._usual = min(float(np.median(held.sum(axis=1))) for held in blocks)
        n = content.scan.blocks - content.scan.zero_scales
        slack = np.sqrt(-np.log(_ALPHA) / (2 * (self._values // self._fmt.block_size)))
        least = np.clip(self._least - slack, 0.0, 0.999)
        return np.asarray(missing & (n * np.log1p(-least) < np.log(_ALPHA)))

    def few_values(self, content: Content) -> bool:
        """Whether the blocks contain so few different codes that the tensor was quantized from quantized values."""
        if content.different is None or content.scan is None:
            return False
        used = int((content.scan.codes > 0).sum())
        return content.scan.blocks >= DESCRIBED and content.different < min(self._usual, used)

    def _blocks(self, draw: Draw, values: int) -> npt.NDArray[np.bool_]:
        """Return bool[blocks, 2^bits]: the codes that each of llama.cpp's blocks contains."""
        fmt, low = self._fmt, self._fmt.low
        x = draw(np.random.default_rng(0), (values // _COLUMNS, _COLUMNS)).astype(np.float32)
        try:
            made = self._llama.quantize(fmt.type_id, x)
        except LlamaRefused:  # it makes this type only with an importance matrix
            made = self._llama.quantize(fmt.type_id, x, np.ones(_COLUMNS, np.float32))
        codes = np.asarray(fmt.codes(made.reshape(-1, fmt.block_bytes))).reshape(-1, fmt.block_size)
        held = np.zeros((len(codes), 1 << fmt.bits), np.bool_)
        held[np.arange(len(codes))[:, None], codes.astype(np.int64) - low] = True
        return held


def _finding(
    fmt: BlockFormat, found: Sequence[tuple[Content, npt.NDArray[np.bool_]]], n_judged: int, used: _Used
) -> Finding:
    """Make one finding for all tensors of a type that lack codes."""
    first, codes = found[0]
    name = quoted(first.tensor.name)
    if len(found) == 1:
        what = f"{name} ({fmt.name}) never uses"
    elif all((other == codes).all() for _, other in found):
        of = "all" if len(found) == n_judged else f"of {n_judged:,}"
        what = (
            f"all {len(found):,} tensors of {fmt.name} never use"
            if of == "all"
            else (f"{len(found):,} {of} tensors of {fmt.name}, the first {name}, never use")
        )
    else:
        what = f"{len(found):,} of {n_judged:,} tensors of {fmt.name} lack codes: the first, {name}, never uses"
    named = [str(c + fmt.low) for c in np.flatnonzero(codes)]
    some = ", ".join(named[:_MOST_NAMED]) + (" …" if len(named) > _MOST_NAMED else "")
    what += f" code {some}" if len(named) == 1 else f" {len(named)} of {1 << fmt.bits} codes: {some}"
    if again := [content.different for content, _ in found if used.few_values(content)]:
        what += (
            f"; {len(again):,} of {len(found):,} hold at most {max(filter(None, again))} different codes in a block of "
            f"{fmt.block_size}, as tensors quantized from quantized values do"
        )
    return finding_at(first, 0, "codes-unused", "the codes that llama.cpp's quantizer uses for random weights", what)
