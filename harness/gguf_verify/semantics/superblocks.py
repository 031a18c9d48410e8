"""The bits of an order of summation of sub-blocks: superblocks times blocks of 32 quantized activations.

A kernel adds some products of codes as integers (`__dp4a`, `mma.sync`), which is exact in any order. Each such sum is a
summand of the output: 32 values have one or more, and those of the minima of superblocks besides. With D the scale of
the superblock, F the integer scale of the sub-block, A that of the activations and Σ the integer sum, a summand is
D·F·A·Σ. A kernel multiplies each summand by D, or a sum of some within a superblock, as llama.cpp's MMVQ does.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

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


#: D, F, A and Σ of a summand → its value before the last rounding.
_Formula = Callable[[Doubles, Doubles, Doubles, Doubles], Doubles]

#: The formulas of a summand to which D is multiplied; and of one to which it is not.
_WITH_D: dict[str, _Formula] = {
    "(d·d_a)·(scale·Σ)": lambda d, f, a, i: to_float32(d * a) * (f * i),
    "((d·scale)·d_a)·Σ": lambda d, f, a, i: to_float32(d * f * a) * i,
    "(d·scale)·(d_a·Σ)": lambda d, f, a, i: d * f * to_float32(a * i),
    "d_a·((d·scale)·Σ)": lambda d, f, a, i: a * to_float32(d * f * i),
}
_WITHOUT_D: dict[str, _Formula] = {
    "d_a·(scale·Σ)": lambda d, f, a, i: a * (f * i),
    "scale·(d_a·Σ)": lambda d, f, a, i: f * to_float32(a * i),
    "(scale·d_a)·Σ": lambda d, f, a, i: to_float32(f * a) * i,
}
_FUSED: dict[Fused, str] = {"": "rounded", "second": "fused", "first": "fused with the first"}


@dataclass(frozen=True)
class Operands:
    """The operands of the summands of a product.

    Args:
        numbers: of a summand of 32 values, by its place: D [1, n], F [1, n], A [M, 1] and Σ [M, n].
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
        blocks = w.reshape(len(w), -1, fmt.block_bytes)
        q = term.codes(fmt, blocks).reshape(len(w), -1, QK).transpose(1, 2, 0).astype(np.float64)
        wholes = _wholes(fmt, blocks)
        factors = []
        for of_groups, whole in zip((fmt.scales(blocks), fmt.minima(blocks)), wholes, strict=True):
            of_values = np.repeat(of_groups.astype(np.float64), fmt.group, axis=-1).reshape(len(w), -1, QK)
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


def _wholes(fmt: BlockFormat, blocks: Bytes) -> tuple[Doubles, Doubles]:
    """Return the scales of superblocks and of their minima, float64[n, blocks]; 1 for a format that has none."""
    fields = {field.name: field for field in fmt.fields}
    one = np.ones(blocks.shape[:2])
    made = [fmt.view(blocks)[name].astype(np.float64) if is_half(fmt, name) else one for name in ("d", "dmin")]
    return made[0], made[1] if "dmin" in fields else made[0]


def is_half(fmt: BlockFormat, name: str) -> bool:
    """Return whether a block has a field of this name that is one half."""
    return any(field.name == name and field.dtype == "<f2" and field.count == 1 for field in fmt.fields)


@dataclass(frozen=True)
class SuperblockArithmetic(Arithmetic):
    """The arithmetic of summands of sub-blocks.

    Args:
        summands: of 32 values.
        formulas: of a summand, and of one of minima.
        most: the most summands of a superblock that are added before D is multiplied; 0: D is part of each summand.
        inner: how these are added: see `sum_in`.
    """

    summands: tuple[Summand, ...] = ()
    formulas: tuple[_Formula, ...] = ()
    most: int = 0
    inner: Fused = ""

    def add(self, tree: Tree, term: Term, fmt: BlockFormat, w: Bytes, x: Activations) -> Floats:
        assert isinstance(term, CodeTerm)
        of = Operands.of(self.summands, term, fmt, w, x)
        size = len(w), x.d.shape[1]

        def summand(i: int) -> Doubles:
            formula = self.formulas[self.summands[i % len(self.summands)].of_minima]
            value: Doubles = np.broadcast_to(formula(*of.numbers(i)), (size[1], size[0]))
            return value

        if not self.most:
            return sum_in(tree, summand, self.fused)

        def key(i: int) -> tuple[int, bool]:
            return i // of.per_superblock, self.summands[i % len(self.summands)].of_minima

        outer, parts = gather(tree, key, self.most)

        def part(i: int) -> Doubles:
            (superblock, of_minima), inner = parts[i]
            whole: Doubles = of.wholes[of_minima][superblock][None]
            scaled: Doubles = whole * widened(sum_in(inner, summand, self.inner))
            return scaled

        return sum_in(outer, part, self.fused)


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


def arithmetics_of_summands(
    summands: tuple[Summand, ...], fmt: BlockFormat, tree: Tree
) -> Iterator[SuperblockArithmetic]:
    """Yield what kernels do with summands of sub-blocks."""
    count, minima = len(summands), any(of.of_minima for of in summands)
    words = f"{count} integer sum{'s' * (count > 1)} for 32 values, each "

    def pairs(known: dict[str, _Formula]) -> Iterator[tuple[str, tuple[_Formula, ...]]]:
        for first, second in itertools.product(known, known):
            if first == second or minima:
                yield first if first == second else f"{first}, of minima {second}", (known[first], known[second])

    for name, formulas in pairs(_WITH_D):
        for fused in _FUSED:
            yield SuperblockArithmetic(f"{words}{name}, {_FUSED[fused]}", fused, None, summands, formulas)
    if not is_half(fmt, "d"):
        return
    per_superblock = count * (fmt.block_size // QK)
    sizes = sizes_within(tree, lambda i: (i // per_superblock, summands[i % count].of_minima))
    for most, (name, formulas) in itertools.product(sizes, pairs(_WITHOUT_D)):
        sums = f"d times sums of {'all' if most == max(sizes) else 'at most'} {most} of a superblock"
        for inner, fused in itertools.product(tuple(_FUSED)[: 3 if most > 1 else 1], _FUSED):
            told = f"{words}{name}, {_FUSED[inner]}; {sums}, {_FUSED[fused]}"
            yield SuperblockArithmetic(told, fused, None, summands, formulas, most, inner)


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
