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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ..formats.block import QK, BlockFormat
from ..support.arrays import widened
from .replay import Arithmetic, Bytes
from .rounding import to_float32
from .summation import Fused, Joining, Tree, both, fold, joined, leaves_of, sum_in
from .sums import Doubles, Floats
from .term import Term
from .terms.codes import CodeTerm
from .values import Activations


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

#: The formulas of a summand to which D is multiplied; of one to which it is not; and of one with a part of s.
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
        wholes, factors: D float64[superblocks, n] and F float64[K/32, 32, n], of scales and of minima. Scales that a
            definition rounds to half are D, and F is 1.
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

    @classmethod
    def of(cls, summands: tuple[Summand, ...], term: CodeTerm, fmt: BlockFormat, w: Bytes, x: Activations) -> Operands:
        """Decode weights uint8[n, row bytes]."""
        fmt = term.reads(fmt)
        blocks = w.reshape(len(w), -1, fmt.block_bytes)
        q = term.codes(fmt, blocks).reshape(len(w), -1, QK).transpose(1, 2, 0).astype(np.float64)
        wholes = _wholes(fmt, blocks, bool(term.rounded(fmt)))
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
            x.d[::terms], x.s[::terms],
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
            return d, factor[:1], self.s[b], np.ones_like(factor[:1])
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
        return self.s[b] * (of_m * self.wholes[1][i // self.per_superblock]), self.s[b] * ratio


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
        most: the most summands of a superblock that are added before D is multiplied; 0: D is part of each summand.
        inner: how these are added: see `sum_in`.
        shares: of m·s that each of the summands takes; none if m·s is a summand of its own.
        part: how it is added.
    """

    summands: tuple[Summand, ...] = ()
    formulas: tuple[_Formula, ...] = ()
    most: int = 0
    inner: Fused = ""
    shares: tuple[float, ...] = ()
    part: Part = "inside"

    def add(self, tree: Tree, term: Term, fmt: BlockFormat, w: Bytes, x: Activations) -> Floats:
        assert isinstance(term, CodeTerm)
        of = Operands.of(self.summands, term, fmt, w, x)
        size, count = (x.d.shape[1], len(w)), len(self.summands)
        total = count * len(of.q_w)

        def summand(i: int) -> Doubles:
            if i >= total:  # a part of m·s that is added by itself
                return np.broadcast_to(self.shares[i % count] * of.of_sum(i - total)[0], size)
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

        def key(i: int) -> tuple[int, bool]:
            return i // of.per_superblock, self.summands[i % count].of_minima

        outer, parts = gather(tree, key, self.most)

        def part(i: int) -> Doubles:
            (superblock, of_minima), inner = parts[i]
            whole: Doubles = of.wholes[of_minima][superblock][None]
            scaled: Doubles = whole * widened(sum_in(inner, summand, self.inner))
            return scaled

        return sum_in(outer, part, self.fused)

    def others(self, tree: Tree, term: Term, fmt: BlockFormat) -> Iterator[Arithmetic]:
        assert isinstance(term, CodeTerm)
        return arithmetics_of_sums(self.summands, term, fmt, tree)


def with_parts(tree: Tree, part_of: Callable[[int], int | None], how: Part) -> Tree:
    """Return a tree with a second leaf beside some leaves: added to them, or after them to the sum before."""

    def own(node: Tree) -> Tree:
        second = part_of(node) if isinstance(node, int) else None
        return node if second is None else (node, second)

    def join(a: Tree, b: Tree) -> Tree:
        if how == "together":
            return own(a), own(b)
        leaf, before = (b, own(a)) if isinstance(b, int) else (a, b)
        second = part_of(leaf) if isinstance(leaf, int) else None
        return (before, leaf) if second is None else ((before, leaf), second)

    made = fold(tree, lambda leaf: leaf, join)
    return own(made)


def gather(
    tree: Tree, key: Callable[[int], tuple[int, bool]], most: int
) -> tuple[Tree, list[tuple[tuple[int, bool], Tree]]]:
    """Replace the largest subtrees whose leaves have one key, and are at most `most`, by leaves: their numbers."""
    parts: list[tuple[tuple[int, bool], Tree]] = []
    Node = tuple[Tree, tuple[int, bool] | None, int]

    def closed(of: Node) -> Tree:
        node, same, _ = of
        if same is None:
            return node
        parts.append((same, node))
        return len(parts) - 1

    def join(a: Node, b: Node) -> Node:
        if a[1] is not None and a[1] == b[1] and a[2] + b[2] <= most:
            return (a[0], b[0]), a[1], a[2] + b[2]
        return (closed(a), closed(b)), None, 0

    made = fold(tree, lambda leaf: (leaf, key(leaf), 1), join)
    return closed(made), parts


def arithmetics_of_sums(
    summands: tuple[Summand, ...], term: CodeTerm, fmt: BlockFormat, tree: Tree
) -> Iterator[SumArithmetic]:
    """Yield what kernels do with integer sums."""
    fmt = term.reads(fmt)
    count, minima = len(summands), sum(of.of_minima for of in summands)
    besides = f" and {minima} of minima" if minima else ""
    words = f"{count - minima} integer sum{'s' * (count - minima > 1)}{besides} for 32 values, each "
    if term.reads_sum(fmt) and not minima:
        yield from _with_shares(summands, fmt, words)
        return

    def pairs(known: dict[str, _Formula]) -> Iterator[tuple[str, tuple[_Formula, ...]]]:
        for first, second in itertools.product(known, known):
            if first == second or (minima and not term.reads_sum(fmt)):
                yield first if first == second else f"{first}, of minima {second}", (known[first], known[second])

    for name, formulas in pairs(_WITH_D):
        for fused in _FUSED:
            yield SumArithmetic(f"{words}{name}, {_FUSED[fused]}", fused, summands, formulas)
    if fmt.block_size == QK or not is_half(fmt, "d") or term.rounded(fmt):
        return
    per_superblock = count * (fmt.block_size // QK)
    sizes = sizes_within(tree, lambda i: (i // per_superblock, summands[i % count].of_minima))
    for most, (name, formulas) in itertools.product(sizes, pairs(_WITHOUT_D)):
        sums = f"d times sums of {'all' if most == max(sizes) else 'at most'} {most} of a superblock"
        for inner, fused in itertools.product(tuple(_FUSED)[: 3 if most > 1 else 1], _FUSED):
            described = f"{words}{name}, {_FUSED[inner]}; {sums}, {_FUSED[fused]}"
            yield SumArithmetic(described, fused, summands, formulas, most, inner)


def _with_shares(summands: tuple[Summand, ...], fmt: BlockFormat, words: str) -> Iterator[SumArithmetic]:
    """Yield the arithmetics of lanes that take parts of m·s: equal ones, or one lane all of it."""
    count, own = len(summands), minimum_of(fmt) is not None
    alone: list[tuple[float, ...]] = [tuple(row) for row in np.eye(count).tolist()] if count > 1 else []
    for shares in [(1 / count,) * count, *alone]:
        sign, s = ("-", f"{fmt.offset * max(shares):g}·s") if fmt.offset else ("+", "m·s" if own else "delta·s")
        if not fmt.offset and max(shares) < 1:
            s += f"/{count}"
        among = f" (s in sum {shares.index(1.0) + 1})" if shares in alone else ""
        inside: tuple[Fused, ...] = ("", "second")
        for (name, formula), fused in itertools.product(_WITH_S.items() if not own else (), inside):
            described = f"{words}{name.format(sign=sign, s=s)}{among}, {_FUSED[fused]}"
            yield SumArithmetic(described, fused, summands, (formula,), shares=shares)
        beside: tuple[Part, ...] = ("together", "in turn")
        for part, (name, formula), fused in itertools.product(beside, _WITH_D.items(), _FUSED):
            described = f"{words}{name} {sign} {'' if own else 'd·'}{s}{among}, {part}, {_FUSED[fused]}"
            yield SumArithmetic(described, fused, summands, (formula,), shares=shares, part=part)


def sizes_within(tree: Tree, key: Callable[[int], tuple[int, bool]]) -> list[int]:
    """Return the sizes of the subtrees whose leaves have one key, the largest first."""
    found = {1}
    Node = tuple[tuple[int, bool] | None, int]

    def join(a: Node, b: Node) -> Node:
        if a[0] is None or a[0] != b[0]:
            return None, 0
        found.add(a[1] + b[1])
        return a[0], a[1] + b[1]

    fold(tree, lambda leaf: (key(leaf), 1), join)
    return sorted(found, reverse=True)


def expand(tree: Tree, clusters: Mapping[int, Sequence[int]], how: Joining, count: int) -> Tree:
    """Replace leaves by sums of several, of which the order cannot be seen.

    They are joined in the order that others of the `count` summands of 32 values have, or in pairs.
    """
    alone = [leaf for leaf in leaves_of(tree) if len(clusters[leaf]) == 1]
    last = [leaf % count for leaf in alone if leaf // count == max(of // count for of in alone)] if alone else []

    def key(leaf: Tree) -> tuple[int, int]:
        assert isinstance(leaf, int)
        return last.index(leaf % count) if leaf % count in last else count, leaf

    return fold(tree, lambda leaf: joined(list[Tree](sorted(clusters[leaf], key=key)), how), both)
