"""The bits of an order of integer sums: products of codes times scales, and minima times sums of activations.

A kernel adds some products of codes as integers (`__dp4a`, `mma.sync`), which is exact in any order. Each such sum is a
summand of the output: 32 values have one or more, and those of the minima besides. With D the scale of the block, F the
integer scale of its sub-block, A that of the activations and Σ the integer sum, a summand is D·F·A·Σ. A kernel
multiplies each summand by D, or a sum of some within a superblock, as llama.cpp's MMVQ does.

Minima and offsets that are multiplied by a stored s may be divided among the lanes of 32 values: with p integer sums,
each lane takes m·s/p, or one of them all of it (llama.cpp's ggml-cuda/vecdotq.cuh, vec_dot_q4_0_q8_1_impl).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from ..formats.block import QK, BlockFormat
from ..support.arrays import widened
from .narrow import HALF
from .replay import Arithmetic, Bytes
from .rounding import to_float32
from .subtrees import Key, gather, sizes_within, with_parts
from .summation import Fused, Tree, sum_in
from .sums import Doubles, Floats
from .term import Term
from .terms.codes import CodeTerm
from .values import Activations, term_values


@dataclass(frozen=True)
class Summand:
    """A summand of 32 values.

    Args:
        of_minima: it is m·d_a·Σ q_a or m·s, not d·d_a·Σ q_w·q_a.
        values: whose products are added as integers.
    """

    of_minima: bool
    values: tuple[int, ...]


#: How a lane adds its part of m·s: to its integer sum first; or after it; or it is part of the formula.
Part = Literal["together", "in turn", "inside"]
#: D, F, A, Σ and the part of s, in units of D·F, of a summand → its value before the last rounding.
_Formula = Callable[[Doubles, Doubles, Doubles, Doubles, Doubles], Doubles]

#: The formulas of a summand to which D is multiplied; of one to which it is not; of one to which d_a is not multiplied;
#: of a definition that rounds products of scales to half; and of one with a part of s.
_WITH_D: dict[str, _Formula] = {
    "(d·d_a)·(scale·Σ)": lambda d, f, a, i, s: to_float32(d * a) * (f * i),
    "((d·scale)·d_a)·Σ": lambda d, f, a, i, s: to_float32(d * f * a) * i,
    "(d·scale)·(d_a·Σ)": lambda d, f, a, i, s: d * f * to_float32(a * i),
    "d_a·((d·scale)·Σ)": lambda d, f, a, i, s: a * to_float32(d * f * i),
}
_WITHOUT_D: dict[str, _Formula] = {
    "d_a·(scale·Σ)": lambda d, f, a, i, s: a * (f * i),
    "scale·(d_a·Σ)": lambda d, f, a, i, s: f * to_float32(a * i),
    "(scale·d_a)·Σ": lambda d, f, a, i, s: to_float32(f * a) * i,
}
_WITHOUT_D_A: dict[str, _Formula] = {"(d·scale)·Σ": lambda d, f, a, i, s: to_float32(d * f) * i}
_HALVES: dict[str, _Formula] = {"half(d·d_a)·Σ": lambda d, f, a, i, s: HALF.rounded(d * f * a) * i}
_WITH_S: dict[str, _Formula] = {
    "d·fma(d_a, Σ, {sign}{s})": lambda d, f, a, i, s: d * f * to_float32(a * i + s),
    "d·(d_a·Σ {sign} {s})": lambda d, f, a, i, s: d * f * to_float32(to_float32(a * i) + s),
    "(d·d_a)·Σ {sign} d·{s}": lambda d, f, a, i, s: to_float32(to_float32(d * f * a) * i) + to_float32(d * f * s),
    "fma(d·d_a, Σ, {sign}d·{s})": lambda d, f, a, i, s: to_float32(d * f * a) * i + to_float32(d * f * s),
}
_FUSED: dict[Fused, str] = {"": "rounded", "second": "fused", "first": "fused with the first"}


@dataclass(frozen=True)
class Operands:
    """The operands of the summands of a product.

    Args:
        numbers: of a summand of 32 values, by its place: D [1, n], F [1, n], A [M, 1] and Σ [M, n].
        wholes, factors: D float64[superblocks, n] and F float64[K/32, 32, n], of scales and of minima. If a definition
            rounds scales to half, D is 1 and F is the rounded scale.
    """

    summands: tuple[Summand, ...]
    fmt: BlockFormat
    reads_sum: bool
    q_w: Doubles
    q_a: Doubles
    factors: tuple[Doubles, Doubles]
    wholes: tuple[Doubles, Doubles]
    d_a: Doubles
    s: Doubles
    no_room: tuple[bool, ...]

    @classmethod
    def of(
        cls, summands: tuple[Summand, ...], term: CodeTerm, fmt: BlockFormat, w: Bytes, x: Activations,
        no_room: tuple[bool, ...],
    ) -> Operands:  # fmt: skip
        """Decode weights uint8[n, row bytes]."""
        fmt = term.reads(fmt)
        blocks = w.reshape(len(w), -1, fmt.block_bytes)
        q = term.codes(fmt, blocks).reshape(len(w), -1, QK).transpose(1, 2, 0).astype(np.float64)
        wholes = _wholes(fmt, blocks, term.rounded(fmt) == "scales")
        factors = []
        for of_groups, whole in zip((fmt.scales(blocks), fmt.minima(blocks)), wholes, strict=True):
            scales = term.round_scales(fmt, of_groups.astype(np.float64))
            of_values = np.repeat(scales, fmt.group, axis=-1).reshape(len(w), -1, QK)
            size = np.repeat(whole, fmt.block_size // QK, axis=1)[..., None]
            with np.errstate(all="ignore"):
                factors.append(np.where(size == 0, 0.0, of_values / size).transpose(1, 2, 0))
        terms = QK // x.q.shape[2]
        codes = x.q.reshape(-1, terms, *x.q.shape[1:]).transpose(0, 2, 1, 3).reshape(len(q), -1, QK).astype(np.float64)
        return cls(
            summands, fmt, term.reads_sum(fmt), q, codes, (factors[0], factors[1]), (wholes[0].T, wholes[1].T),
            x.d[::terms], x.s, no_room,
        )  # fmt: skip

    @property
    def per_superblock(self) -> int:
        """Summands of a superblock."""
        return len(self.summands) * (self.fmt.block_size // QK)

    def numbers(self, i: int) -> tuple[Doubles, Doubles, Doubles, Doubles]:
        """Return D [1, n], F [1, n], A [M, 1] and Σ [M, n] of a summand. Where several F are part of Σ, F is 1."""
        b, at = divmod(i, len(self.summands))
        of = self.summands[at]
        d = self.wholes[of.of_minima][i // self.per_superblock][None]
        values = np.array(of.values)
        factor = self.factors[of.of_minima][b][values]
        if of.of_minima and self.reads_sum:
            term = term_of(i, self.summands, len(self.s) // len(self.q_w))
            if not self.no_room[term % len(self.no_room)]:
                return d, factor[:1], self.s[term], np.ones_like(factor[:1])
        codes = np.ones_like(factor) if of.of_minima else self.q_w[b][values]
        if (factor == factor[:1]).all():
            return d, factor[:1], self.d_a[b], self.q_a[b][:, values] @ codes
        return d, np.ones_like(factor[:1]), self.d_a[b], self.q_a[b][:, values] @ (factor * codes)

    def of_sum(self, i: int) -> tuple[Doubles, Doubles]:
        """Return m·s of the 32 values of a summand, and the same in units of D·F, float64[M, n] each."""
        b = i // len(self.summands)
        of_d, of_m = self.factors[0][b][:1], self.factors[1][b][:1]
        with np.errstate(all="ignore"):
            ratio = np.where(of_d == 0, 0.0, of_m / of_d)
        s = self.s[b * (len(self.s) // len(self.q_w))]
        return s * (of_m * self.wholes[1][i // self.per_superblock]), s * ratio


def term_of(i: int, summands: tuple[Summand, ...], terms: int) -> int:
    """Return the term of a row, of `terms` for 32 values, whose sum of activations a summand has."""
    b, at = divmod(i, len(summands))
    return b * terms + summands[at].values[0] * terms // QK


def _wholes(fmt: BlockFormat, blocks: Bytes, rounded: bool) -> tuple[Doubles, Doubles]:
    """Return D of superblocks and of their minima, float64[n, blocks]; 1 for a format that has none, or is rounded."""
    one = np.ones(blocks.shape[:2])
    if rounded or not is_half(fmt, "d"):
        return one, one
    d = fmt.view(blocks)["d"].astype(np.float64)
    own = minimum_of(fmt)
    return d, fmt.view(blocks)[own].astype(np.float64) if own else d


def minimum_of(fmt: BlockFormat) -> str | None:
    """Return the field of the minimum of a block, or of its scale; None if minima are multiples of d, as offsets."""
    return next((name for name in ("m", "dmin") if is_half(fmt, name)), None)


def is_half(fmt: BlockFormat, name: str) -> bool:
    """Return whether a block has a field of this name that is one half."""
    return any(field.name == name and field.dtype == "<f2" and field.count == 1 for field in fmt.fields)


@dataclass(frozen=True)
class SumArithmetic(Arithmetic):
    """The arithmetic of integer sums.

    Args:
        summands: of 32 values.
        formulas: of a summand, and of one of minima.
        most: the most summands of a superblock, or of 32 values, that are added before a scale is multiplied; 0: the
            scales are part of each summand.
        scale: this scale: D of a superblock, or d_a of 32 values.
        inner: how these are added: see `sum_in`.
        shares: of m·s that each of the summands takes; none if m·s is a summand of its own.
        part: how it is added.
        no_room: which sums of activations are not stored: `Encoding.no_room`, of a row's first terms.
    """

    summands: tuple[Summand, ...] = ()
    formulas: tuple[_Formula, ...] = ()
    most: int = 0
    scale: Literal["d", "d_a"] = "d"
    inner: Fused = ""
    no_room: tuple[bool, ...] = (False,)
    shares: tuple[float, ...] = ()
    part: Part = "inside"

    def add(self, tree: Tree, term: Term, fmt: BlockFormat, w: Bytes, x: Activations) -> Floats:
        assert isinstance(term, CodeTerm)
        of = Operands.of(self.summands, term, fmt, w, x, self.no_room)
        size, count = (x.d.shape[1], len(w)), len(self.summands)
        total = count * len(of.q_w)

        def summand(i: int) -> Doubles:
            if i >= total:  # a part of m·s that is added by itself
                return np.broadcast_to(
                    self.shares[i % count] * term.round_products(of.fmt, of.of_sum(i - total)[0]), size
                )
            inside: Doubles = np.zeros((1, 1))
            if self.shares and self.part == "inside":
                inside = self.shares[i % count] * of.of_sum(i)[1]
            formula = self.formulas[self.summands[i % count].of_minima]
            return np.broadcast_to(formula(*of.numbers(i), inside), size)

        if self.shares and self.part != "inside":
            taking = {i for i in range(total) if self.shares[i % count]}
            tree = with_parts(tree, lambda i: i + total if i in taking else None, self.part)
        if not self.most:
            return sum_in(tree, summand, self.fused)

        outer, parts = gather(tree, key_of(self.summands, of.fmt, of.reads_sum, self.no_room, self.scale), self.most)

        def part(i: int) -> Doubles:
            (at, apart), inner = parts[i]
            if self.scale == "d_a" and apart:
                assert isinstance(inner, int)
                d, f, a, whole_sum = of.numbers(inner)
                return np.broadcast_to(d * f * a * whole_sum, size)
            whole: Doubles = of.d_a[at] if self.scale == "d_a" else of.wholes[apart][at][None]
            scaled: Doubles = whole * widened(sum_in(inner, summand, self.inner))
            return scaled

        return sum_in(outer, part, self.fused)

    def others(self, tree: Tree, term: Term, fmt: BlockFormat) -> Iterator[Arithmetic]:
        assert isinstance(term, CodeTerm)
        return arithmetics_of_sums(self.summands, term, fmt, tree, self.no_room)


def key_of(
    summands: tuple[Summand, ...], fmt: BlockFormat, reads_sum: bool, no_room: tuple[bool, ...],
    scale: Literal["d", "d_a"],
) -> Callable[[int], Key]:  # fmt: skip
    """Return the key of a summand: those with one key may be added before a scale is multiplied.

    For "d" it is the superblock, and whether it is of minima; for "d_a" the 32 values, or the summand itself and True
    for a stored s, which has no factor d_a.
    """
    count = len(summands)

    def key(i: int) -> Key:
        of = summands[i % count]
        if scale == "d":
            return i // (count * (fmt.block_size // QK)), of.of_minima
        terms = QK // term_values(fmt)
        stored = of.of_minima and reads_sum and not no_room[term_of(i, summands, terms) % len(no_room)]
        return (i, True) if stored else (i // count, False)

    return key


def arithmetics_of_sums(
    summands: tuple[Summand, ...], term: CodeTerm, fmt: BlockFormat, tree: Tree, no_room: tuple[bool, ...] = (False,)
) -> Iterator[SumArithmetic]:
    """Yield what kernels do with integer sums."""
    fmt = term.reads(fmt)
    for of in _arithmetics(summands, term, fmt, tree, no_room):
        yield replace(of, no_room=no_room)


def _arithmetics(
    summands: tuple[Summand, ...], term: CodeTerm, fmt: BlockFormat, tree: Tree, no_room: tuple[bool, ...]
) -> Iterator[SumArithmetic]:
    count, minima = len(summands), sum(of.of_minima for of in summands)
    besides = f" and {minima} of minima" if minima else ""
    words = f"{count - minima} integer sum{'s' * (count - minima > 1)}{besides} for 32 values, each "
    with_d = _HALVES if term.rounded(fmt) == "products" else _WITH_D
    if term.reads_sum(fmt) and not minima:
        yield from _with_shares(summands, fmt, words, with_d)
        return

    def pairs(known: dict[str, _Formula]) -> Iterator[tuple[str, tuple[_Formula, ...]]]:
        for first, second in itertools.product(known, known):
            if first == second or (minima and not term.reads_sum(fmt)):
                yield first if first == second else f"{first}, of minima {second}", (known[first], known[second])

    for name, formulas in pairs(with_d):
        for fused in _FUSED:
            yield SumArithmetic(f"{words}{name}, {_FUSED[fused]}", fused, summands, formulas)
    gathered: list[tuple[Literal["d", "d_a"], str, dict[str, _Formula]]] = []
    if fmt.block_size > QK and is_half(fmt, "d") and not term.rounded(fmt):
        gathered.append(("d", "of a superblock", _WITHOUT_D))
    if count > 1 and with_d is _WITH_D:
        gathered.append(("d_a", "for 32 values", _WITHOUT_D_A))
    for scale, where, known in gathered:
        sizes = sizes_within(tree, key_of(summands, fmt, term.reads_sum(fmt), no_room, scale))
        for most, (name, formulas) in itertools.product(sizes, pairs(known)):
            sums = f"{scale} times sums of {'all' if most == max(sizes) else 'at most'} {most} {where}"
            for inner, fused in itertools.product(tuple(_FUSED)[: 3 if most > 1 else 1], _FUSED):
                described = f"{words}{name}, {_FUSED[inner]}; {sums}, {_FUSED[fused]}"
                yield SumArithmetic(described, fused, summands, formulas, most, scale, inner)


def _with_shares(
    summands: tuple[Summand, ...], fmt: BlockFormat, words: str, with_d: dict[str, _Formula]
) -> Iterator[SumArithmetic]:
    """Yield the arithmetics of lanes that take parts of m·s: equal ones, or one lane all of it."""
    count, own = len(summands), minimum_of(fmt) is not None
    alone: list[tuple[float, ...]] = [tuple(row) for row in np.eye(count).tolist()] if count > 1 else []
    for shares in [(1 / count,) * count, *alone]:
        of_minimum = ("half(m·s)" if with_d is _HALVES else "m·s") if own else "delta·s"
        sign, s = ("-", f"{fmt.offset * max(shares):g}·s") if fmt.offset else ("+", of_minimum)
        if not fmt.offset and max(shares) < 1:
            s += f"/{count}"
        among = f" (s in sum {shares.index(1.0) + 1})" if shares in alone else ""
        inside: tuple[Fused, ...] = ("", "second")
        for (name, formula), fused in itertools.product(_WITH_S.items() if not own else (), inside):
            described = f"{words}{name.format(sign=sign, s=s)}{among}, {_FUSED[fused]}"
            yield SumArithmetic(described, fused, summands, (formula,), shares=shares)
        beside: tuple[Part, ...] = ("together", "in turn")
        for part, (name, formula), fused in itertools.product(beside, with_d.items(), _FUSED):
            described = f"{words}{name} {sign} {'' if own else 'd·'}{s}{among}, {part}, {_FUSED[fused]}"
            yield SumArithmetic(described, fused, summands, (formula,), shares=shares, part=part)
