"""The reasons why a product has no finite value: the number of the block that is out of range, and the party to blame.

A bare NaN sends people to the wrong place. No kernel is at fault if the result that it must compute is not finite:
either the file holds a number that is not finite, or the definition keeps a number in a type that cannot hold it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from ..formats.block import QK, BlockFormat
from ..formats.element import ElementFormat
from ..formats.tensor_types import WeightFormat
from ..support.arrays import widened
from .activations import blocks_of, butterfly_sum, largest
from .definition import Semantics
from .elements import round_to
from .encoding import Encoding
from .exact import product
from .narrow import NARROW, stored

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

LARGEST_HALF = 65504.0
LARGEST_FLOAT = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class RangeProblem:
    """The first number of a row of weights or of activations that is out of range.

    Args:
        what: the kind of number: "weight scale" is a scale or minimum, "product" one of d_w·d_a and m_w·s, "sum" that
            of a half accumulator, "output" the result.
        block: the block that it belongs to; for weights and activations that are not quantized, the value.
        value: its value, or the value in a type without limits; not finite if not known.
        limit: the largest number of its type.
        to_blame: "file", or "definition" for a number that the definition cannot represent.
        words: the problem in a phrase.
    """

    what: Literal["weight", "weight scale", "activation", "d", "s", "product", "sum", "output"]
    block: int
    value: float
    limit: float
    to_blame: Literal["file", "definition"]
    words: str

    @property
    def ratio(self) -> float:
        """The number divided by the limit; not finite if the number is not known."""
        return abs(self.value) / self.limit


def range_problem(
    semantics: Semantics, fmt: WeightFormat, w: Bytes, x: Bytes, values: Floats | None = None
) -> RangeProblem | None:
    """Return the first number out of range in a row of weights and one of activations; None if there is none.

    Args:
        w: uint8[row bytes] of the weights.
        x: uint8[row bytes] of the activations, in the definition's format.
        values: float32[K] that x was quantized from, if known.
    """
    if isinstance(fmt, ElementFormat):
        return _of_elements(fmt, w, x.view(np.float32))
    with np.errstate(all="ignore"):
        return (
            _of_weights(semantics, fmt, w)
            or _of_activations(semantics, fmt, w, x, values)
            or _of_result(semantics, fmt, w, x)
        )


def overflow_reason(
    semantics: Semantics, fmt: WeightFormat, w: Bytes, x: Bytes, values: Floats | None = None
) -> str | None:
    """Return `range_problem` in words."""
    problem = range_problem(semantics, fmt, w, x, values)
    return None if problem is None else problem.words


def largest_half(semantics: Semantics, x: Bytes) -> tuple[str, int, int, float] | None:
    """Return the largest finite half among d and s of activations uint8[M, row bytes]: name, token, block and value.
    None if the definition has no such halves.
    """
    definition = semantics.inside or semantics
    encoding, form = definition.encoding, definition.encoding.format
    if form is None:
        return None
    if semantics.inside is not None:
        x = definition.bytes_of(semantics.values_of(x))
    half_scale = any(item.dtype == "<f2" for item in form.fields)
    found: tuple[str, int, int, float] | None = None
    for name, numbers in (("d", encoding.scales(x) if half_scale else None), ("s", encoding.sums(x))):
        if numbers is not None:
            sizes = np.where(np.isfinite(numbers), np.abs(numbers), -1.0)
            m, b = np.unravel_index(int(sizes.argmax()), sizes.shape)
            if sizes[m, b] >= 0 and (found is None or sizes[m, b] > abs(found[3])):
                found = name, int(m), int(b), float(numbers[m, b])
    return found


def _of_weights(semantics: Semantics, fmt: BlockFormat, w: Bytes) -> RangeProblem | None:
    blocks = w.reshape(-1, fmt.block_bytes)
    if (at := _first(~fmt.finite(blocks))) is not None:
        numbers = np.concatenate([fmt.scales(blocks[at]).ravel(), fmt.minima(blocks[at]).ravel()])
        value = float(numbers[np.argmin(np.isfinite(numbers))])
        words = f"the scale or minimum of weight block {at} is not finite"
        return RangeProblem("weight scale", at, value, LARGEST_HALF, "file", words)
    definition = semantics.inside or semantics
    for what, numbers in (("scale", fmt.scales(blocks)), ("minimum", fmt.minima(blocks))):
        held = np.isfinite(definition.term.round_scales(fmt, widened(numbers))).all(axis=-1)
        if (at := _first(~held)) is not None:
            value = float(numbers[at][np.argmax(np.abs(numbers[at]))])
            words = f"a {what} of weight block {at} overflows here: {_of_half(value)}"
            return RangeProblem("weight scale", at, value, LARGEST_HALF, "definition", words)
    narrow = NARROW.get(definition.term.weights)
    if narrow is not None:
        values = fmt.decode(blocks)
        if (at := _first((np.abs(values) >= narrow.overflows).any(axis=-1))) is not None:
            value = float(values[at][np.argmax(np.abs(values[at]))])
            words = f"a value of weight block {at}, {value:.6g}, overflows here: it is a {narrow.title}"
            return RangeProblem("weight", at, value, narrow.overflows, "definition", words)
    return None


def _of_activations(
    semantics: Semantics, fmt: BlockFormat, w: Bytes, x: Bytes, values: Floats | None
) -> RangeProblem | None:
    inside = semantics.inside
    if inside is not None or semantics.activations is None:
        values = semantics.values_of(x[None])[0]
        if (at := _first(~np.isfinite(values))) is not None:
            narrow = NARROW.get(semantics.encoding.dtype)
            as_type = "" if narrow is None else f" as {narrow.title}"
            limit = LARGEST_FLOAT if narrow is None else narrow.overflows
            words = f"an activation is not finite{as_type}"
            return RangeProblem("activation", at, float(values[at]), limit, "definition", words)
        if inside is None:
            return None
        semantics, x = inside, inside.bytes_of(values[None])[0]
    encoding, form = semantics.encoding, semantics.activations
    assert form is not None
    scales, sums = encoding.scales(x[None])[0], encoding.sums(x[None])
    half_scale = any(item.dtype == "<f2" for item in form.fields)
    if sums is not None:
        missing = encoding.no_room(sums.shape[1])
        sums = np.where(missing, np.float32(0), sums)
    found: tuple[tuple[Literal["d", "s"], Floats | None, bool], ...] = (
        ("d", scales, half_scale),
        ("s", None if sums is None else sums[0], True),
    )
    for what, numbers, half in found:
        if numbers is None or (at := _first(~np.isfinite(numbers))) is None:
            continue
        value = _meant(encoding, x, what, at, values)
        meaning = "the scale d" if what == "d" else "s"
        how = _of_half(value) if half else "it is a float32"
        words = f"{meaning} of activation block {at} overflows here: {how}"
        return RangeProblem(what, at, value, LARGEST_HALF if half else LARGEST_FLOAT, "definition", words)
    return _of_products(semantics, fmt, w, x)


def _meant(encoding: Encoding, x: Bytes, name: str, at: int, values: Floats | None) -> float:
    """Return the value of d or s of activation block `at` in a type without limits."""
    form = encoding.format
    assert form is not None
    size = encoding.values_per_scale if name == "d" else encoding.values_per_sum
    of_values = None if values is None else blocks_of(values[None], size)[0, at]
    if name == "d":
        return float("inf") if of_values is None else float(largest(of_values) / np.float32(127))
    if of_values is not None and encoding.raw_sum:
        return float(butterfly_sum(of_values) if size == QK else of_values.sum())
    codes = form.codes(x.reshape(-1, form.block_bytes)).reshape(-1, size)[at]
    d = float(encoding.scales(x[None])[0, at * size // encoding.values_per_scale])
    if of_values is not None:
        d = float(largest(of_values)) / 127
    return d * float(codes.astype(np.int64).sum())


def _of_products(semantics: Semantics, fmt: BlockFormat, w: Bytes, x: Bytes) -> RangeProblem | None:
    """Check the products of scales that the definition rounds to half."""
    encoding = semantics.encoding
    if semantics.term.is_bilinear(fmt) or fmt.block_size != encoding.values_per_scale:
        return None
    blocks = w.reshape(-1, fmt.block_bytes)
    if x.size != encoding.row_bytes(len(blocks) * fmt.block_size):  # a product of other columns than the row's
        return None
    factors = [(fmt.scales(blocks)[..., 0], encoding.scales(x[None])[0], "d_w·d_a")]
    if semantics.uses_sum(fmt):
        sums = encoding.sums(x[None])
        assert sums is not None
        factors.append((fmt.minima(blocks)[..., 0], sums[0], "m_w·s"))
    for of_weights, of_activations, words in factors:
        made = of_weights.astype(np.float64) * of_activations.astype(np.float64)
        if (at := _first(~np.isfinite(semantics.term.round_products(fmt, made)))) is not None:
            value = float(made[at])
            said = f"{words} of block {at} overflows here: {_of_half(value)}"
            return RangeProblem("product", at, value, LARGEST_HALF, "definition", said)
    return None


def _of_result(semantics: Semantics, fmt: BlockFormat, w: Bytes, x: Bytes) -> RangeProblem | None:
    """Check the result, in the type of the output, or the sum of all magnitudes, in a half accumulator."""
    if semantics.oracle is not None:
        return None
    k = w.size // fmt.block_bytes * fmt.block_size
    if x.size != semantics.encoding.row_bytes(k):  # a product of other columns than the row's
        return None
    narrow = NARROW.get(semantics.output)
    plain = product(replace(semantics, output="float32"), fmt, w[None], x[None])
    if not np.isfinite(plain.exact).all():
        in_half = (semantics.inside or semantics).accumulation.name == "float16"
        kind, limit = ("half", LARGEST_HALF) if in_half else ("float32", LARGEST_FLOAT)
        words = f"the sum overflows here: it is added up in {kind}, and some order of its terms may pass {limit:.6g}"
        return RangeProblem("sum", 0, float("inf"), limit, "definition", words)
    if narrow is None or np.isfinite(stored(plain, semantics.output).exact).all():
        return None
    value = float(plain.exact[0, 0])
    words = f"the output overflows {narrow.title} here: it would be {value:.6g}, up to rounding"
    return RangeProblem("output", 0, value, narrow.overflows, "definition", words)


def _first(bad: npt.NDArray[np.bool_] | np.bool_) -> int | None:
    """Return the number of the first one that is True; None if none is."""
    return int(np.argmax(bad)) if bad.any() else None


def _of_half(value: float) -> str:
    limit = f"it is a half, at most {LARGEST_HALF:.0f}"
    if not np.isfinite(value):
        return limit
    return f"{limit}, and would be {value:.6g} ({abs(value) / LARGEST_HALF:.3g} times as large)"


def _of_elements(fmt: ElementFormat, w: Bytes, x: Floats) -> RangeProblem | None:
    blocks = w.reshape(-1, fmt.block_bytes)
    if (at := _first(~fmt.finite(blocks))) is not None:
        value = float(fmt.decode(blocks[at : at + 1]).ravel()[0])
        return RangeProblem("weight", at, value, float(fmt.largest), "file", f"weight {at} is not finite")
    if (at := _first(~np.isfinite(x))) is not None:
        return RangeProblem("activation", at, float(x[at]), LARGEST_FLOAT, "definition", "an activation is not finite")
    rounded = round_to(fmt.name, x)
    if (at := _first(~np.isfinite(rounded))) is not None:
        limit = f", whose largest value is {fmt.largest:g}" if fmt.missing_range else ""
        words = f"activation {at}, {x[at]:g}, overflows as {fmt.name}{limit}"
        return RangeProblem("activation", at, float(x[at]), float(fmt.largest), "definition", words)
    return None
