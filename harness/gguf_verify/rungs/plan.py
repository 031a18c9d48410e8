"""The probe plan: at which shapes, weights and activations a kernel runs beside those of the model's own graph.

Models have round sizes, behind which the bounds of a last tile, of a quantizer's last warp, a window of M that another
code path computes, or an index that overflows hide. So the plan is a function of the kernel's domain, of the type's
smallest row and of the seed; it knows nothing of particular kernels. Its version is in every report, so that nights
stay comparable.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from ..formats.element import SLICE
from ..kernels.domain import Domain, Extent
from .field_classes import FINITE_HALVES

#: The version of the plan. 2: indices past 2^31, and grids of 2^20 tokens and rows. 3: fields at each class of their
#: number format, round sizes and those around powers of two. 4: sizes past 2^24, rows of more than 2^16 columns.
#: 5: fields of every encoding of activations, classes of weights in floats; addresses that the operands' types allow.
#: 6: every finite half of each field.
PLAN = 6

#: Sizes of tiles that kernels have, in tokens and in rows.
_TILES = (8, 16, 32, 64, 96, 128, 256)
#: Every number of tokens up to here, and the neighbours of all multiples of the tiles up to there.
_EVERY_M, _MOST_M = 64, 1024
#: Numbers of rows: of vocabularies (Llama 3, Qwen 2.5), past what 16 bits hold, past powers of two.
_MANY_ROWS = (2053, 4099, 8209, 65_537, 128_256, 151_936)
#: The longest rows.
_MOST_K = 32_768
#: Tokens, rows, and slices of 32 values a row: one output; a little more than a tile in one direction and less in the
#: others; K large enough to wrap the pipelines' ring buffers, to take activations in parts and to split sums; more rows
#: than the thread blocks of one launch take at a time; 1 to 7 blocks of activations past a multiple of eight; and whole
#: rounds and tiles, as large models have.
_SHAPES = (
    (1, 1, 1), (2, 7, 9), (5, 129, 1), (33, 257, 2), (131, 33, 2), (1, 34, 200), (2, 40, 90), (3, 65, 300),
    (4, 33, 128), (7, 71, 40), (12, 33, 100), (20, 66, 100), (34, 40, 70), (66, 2100, 1), (1, 4300, 7), (300, 65, 3),
    (1, 4300, 32), (64, 2100, 1), (33, 890, 1), (33, 5500, 1),
)  # fmt: skip
#: The same, for blocks of any bits. Rows of a single block show scales that vanish in a sum with larger ones.
_ANY_BITS = ((6, 70, 24), (6, 1700, 1))
#: Blocks with a field at each class of its number format, as rows of one block: as many as any type has, and a few.
CLASS_ROWS, _CLASS_TOKENS = 560, 4
#: Tokens whose scale or sum is at each class, as values and as blocks; the most calls that take them where a kernel
#: computes few tokens at a time; and the rows beside them.
VALUE_CLASSES, BLOCK_CLASSES, _MOST_PARTS = 28, 424, 28
#: Rows of weights that are not quantized, of numbers at each class.
ELEMENT_CLASSES = 28
_ROWS_OF_CLASSES = 9
#: Halves that a block has at most, of weights and of activations.
MOST_HALVES = 2
#: Tokens, rows and slices of 32 values of the matrices that are multiplied in turn.
_IN_TURN = ((5, 40, 3), (9, 33, 16))
#: Random shapes of each family; the largest size as a power of two; a round size's divisor; and the most
#: multiplications of one call.
_OF_A_FAMILY, _MOST_BITS, _ROUND, _MOST_WORK = 4, 12, 64, 1 << 22

#: Tokens and rows for which grids are evaluated, beside others, and the columns.
_WIDE, _BESIDE = 1 << 20, (64, 1024)

#: The largest sizes at which a product is computed, as models have.
PLANNED = {"M": 4099, "N": max(_MANY_ROWS), "K": _MOST_K}

Blocks = Literal[
    "the model's", "any bits", "each class of each field", "every half of a field", "what its code compares with"
]  # fmt: skip
Values = Literal[
    "drawn",
    "special",
    "codes of -128",
    "classes of scales and sums",
    "classes of encoded fields",
    "every half of a field",
    "what its code compares with",
]
#: Activations that a kernel only gets as blocks, since no quantizer writes them.
ENCODED: tuple[Values, ...] = ("codes of -128", "classes of encoded fields", "every half of a field")


@dataclass(frozen=True)
class Probe:
    """Calls with one matrix.

    Args:
        tokens: the numbers of tokens of the calls, each at least 1.
        n, k: rows and columns.
        blocks: the weights' blocks: the model's, laid out anew; any bits under finite scales; those of
            `field_classes.every_class`, or numbers of `field_classes.numbers_of_classes`; those of
            `field_classes.every_half`, of one number after the other; or those of `data`.
        values: the activations: random ones and ties of codes; special ones (zeros of both signs, tiny and huge
            values); those of `field_classes.values_of_classes`, or, if they are not encoded, of `numbers_of_classes`;
            and, for kernels that take blocks, random ones with codes of -128, and blocks of
            `field_classes.every_class`, or those of `field_classes.every_half`; or those of `data`.
        whole: the kernel runs on the activations' bytes too, and its quantizer is checked.
        first: the first of the activations that are used, or of the blocks with every half.
        because: the comparison in the kernel's code that the shape or the data are a boundary of: FILE:LINE and its
            text; or "".
        data: blocks of weights and of activations (or their values), which are combined: all blocks of rows and tokens,
            and their last one.
        calls: how often each call is made, from the first one of a process on.
    """

    tokens: tuple[int, ...]
    n: int
    k: int
    blocks: Blocks = "the model's"
    values: Values = "drawn"
    whole: bool = False
    first: int = 0
    because: str = ""
    data: tuple[tuple[bytes, bytes], ...] = ()
    calls: int = 1


def plan(domain: Domain, unit: int, quantized: bool, seed: int, brief: bool = False) -> list[Probe]:
    """The probes of one type of weights.

    Args:
        domain: where the kernel promises to work; no probe is outside.
        unit: K is a multiple of this.
        quantized: the weights have blocks, of which any bits can be made.
        seed: of the random sizes.
        brief: only what a change of the kernel most often breaks, and one random size of each dimension, for tests that
            verify many models.
    """
    drawn, sizes = _Drawn.of(seed), _Sizes(domain, unit)
    probes = [sizes.probe((m,), n, slices, whole=True) for m, n, slices in _SHAPES]
    probes.append(sizes.probe((8,), 33, 3, values="special", whole=True))
    probes.append(sizes.probe((8,), 601, 1, values="special"))
    if quantized:
        probes += [sizes.probe((m,), n, slices, blocks="any bits", whole=True) for m, n, slices in _ANY_BITS]
        probes.append(sizes.probe((6,), 33, 3, values="codes of -128"))
        probes.append(sizes.probe((_CLASS_TOKENS,), CLASS_ROWS, 1, blocks="each class of each field"))
        probes += sizes.of_classes(BLOCK_CLASSES, "classes of encoded fields")
    else:
        probes.append(sizes.probe((_CLASS_TOKENS,), ELEMENT_CLASSES, 2, blocks="each class of each field"))
    probes += sizes.of_classes(VALUE_CLASSES, "classes of scales and sums")
    probes += sizes.of_halves() if quantized and not brief else []
    probes += drawn.few_probes(sizes) if brief else _sweeps(sizes, drawn)
    return list(dict.fromkeys(p for p in probes if p is not None and p.tokens))


def shapes_in_turn(domain: Domain, unit: int) -> tuple[Probe, Probe] | None:
    """Two shapes of which several matrices are multiplied in turn; None if the domain has none near."""
    sizes = _Sizes(domain, unit)
    first, other = (sizes.probe((m,), n, slices) for m, n, slices in _IN_TURN)
    return (first, other) if first and other and first.tokens and other.tokens else None


def shapes_of(domain: Domain, unit: int, seed: int, brief: bool) -> list[tuple[int, int, int]]:
    """(M, N, K) of the probe plan, each once."""
    return list(dict.fromkeys((m, p.n, p.k) for p in plan(domain, unit, False, seed, brief) for m in p.tokens))


def wide(domain: Domain, unit: int) -> list[tuple[int, int, int]]:
    """(M, N, K) for which grids are evaluated."""
    sizes, (beside, k) = _Sizes(domain, unit), _BESIDE
    probes = [sizes.probe((m,), n, k // SLICE) for m, n in ((_WIDE, beside), (beside, _WIDE))]
    return [(p.tokens[0], p.n, p.k) for p in probes if p is not None and p.tokens]


@dataclass(frozen=True)
class _Drawn:
    """The random sizes of a seed: tokens, the rows beside them, rows, slices of 32 values a row, and whole shapes."""

    tokens: list[int]
    few_rows: list[int]
    rows: list[int]
    slices: list[int]
    families: list[tuple[int, int, int]]

    @classmethod
    def of(cls, seed: int) -> _Drawn:
        rng = np.random.default_rng((PLAN, seed))
        tokens, few_rows = rng.integers(_EVERY_M, 4 * _MOST_M, 6), rng.permutation([2, 3, 5, 7])
        rows, slices = rng.integers(1024, 20_000, 4), rng.integers(64, _MOST_K // SLICE - 1, 3) | 1
        return cls(
            tokens=tokens.tolist(), few_rows=few_rows.tolist(), rows=rows.tolist(), slices=slices.tolist(),
            families=_families(rng),
        )  # fmt: skip

    def few_probes(self, sizes: _Sizes) -> list[Probe | None]:
        """One of each dimension, with few of the others."""
        return [
            sizes.probe(self.tokens[:1], self.few_rows[0], 1), sizes.probe((1,), self.rows[0], 1),
            sizes.probe((2,), 3, self.slices[0]),
        ]  # fmt: skip


def _families(rng: np.random.Generator) -> list[tuple[int, int, int]]:
    """(M, N, K) of three families, log-uniform: multiples of 64, as large models have, every other with few tokens;
    neighbours of powers of two, where tiles and types of indices end; and arbitrary ones."""
    found = []
    for i in range(_OF_A_FAMILY):
        bits = rng.uniform(0, _MOST_BITS, (3, 3))
        of_round = _ROUND * np.round(2 ** (bits[0] * (1 - np.log2(_ROUND) / _MOST_BITS)))
        near_power = np.maximum(1, 2 ** np.round(bits[1]) + rng.integers(-1, 2, 3))
        for sizes, divisor in ((of_round, _ROUND), (near_power, 1), (2 ** bits[2], 1)):
            m, n, k = (int(size) for size in sizes)
            if divisor > 1 and i % 2:
                m = int(rng.integers(1, 17))
            m = max(1, min(m, _MOST_WORK // (n * max(k, SLICE))))
            n = max(divisor, min(n, _MOST_WORK // (m * max(k, SLICE))) // divisor * divisor)
            found.append((m // divisor * divisor if m >= divisor else m, n, k))
    return found


def _sweeps(sizes: _Sizes, drawn: _Drawn) -> list[Probe | None]:
    """Every M, many N, many K."""
    every = {*range(1, _EVERY_M + 1), *_around(_MOST_M), *drawn.tokens, 2050, 4099}
    tokens = tuple(sorted(every))
    probes = [sizes.probe(tokens[i::3], drawn.few_rows[i], 1 + i % 2) for i in range(3)]
    rows = sorted({*range(1, 34), *_around(512), 1023, 1025, *drawn.rows})
    probes += [sizes.probe((5 if i % 2 else 1,), n, 1) for i, n in enumerate(rows)]
    probes += [sizes.probe((1,), n, 1) for n in _MANY_ROWS]
    probes += [sizes.probe((9,), n, 1) for n in _MANY_ROWS[:3]]
    for i, slices in enumerate(_lengths(drawn)):
        probes.append(sizes.probe((2, 9) if i % 3 == 0 else (1 + i % 2,), 3 + i % 2, slices))
    probes += [sizes.probe((m,), n, -(-k // SLICE)) for m, n, k in drawn.families]
    return probes


def _around(most: int) -> set[int]:
    return {tile * i + d for tile in _TILES for i in range(1, most // tile + 1) for d in (-1, 0, 1) if tile * i + d > 0}


def _lengths(drawn: _Drawn) -> Iterable[int]:
    """Slices of 32 values in a row: few, odd numbers of every size, and the longest."""
    most = _MOST_K // SLICE
    odd = {int(v) | 1 for v in np.geomspace(3, most - 1, 20)}
    return sorted({*range(1, 18), *odd, *drawn.slices, 128, most})


@dataclass(frozen=True)
class _Sizes:
    domain: Domain
    unit: int

    def probe(
        self, tokens: Iterable[int], n: int, slices: int, blocks: Blocks = "the model's", values: Values = "drawn",
        whole: bool = False,
    ) -> Probe | None:  # fmt: skip
        """The nearest probe within the domain; None where there is none near."""
        k = near(self.domain.k, -(-slices * SLICE // self.unit) * self.unit, self.unit)
        rows = near(self.domain.n, n)
        if k is None or rows is None:
            return None
        allowed = {near(self.domain.m, m) for m in tokens}
        return Probe(tuple(sorted(m for m in allowed if m is not None)), rows, k, blocks, values, whole)

    def of_classes(self, total: int, values: Values) -> list[Probe | None]:
        """Calls that take `total` tokens of one block together, as many at a time as the domain allows; of a kernel for
        few tokens, only some of them."""
        probe = self.probe((total,), _ROWS_OF_CLASSES, 1, values=values, whole=values not in ENCODED)
        if probe is None or not probe.tokens:
            return []
        calls = min(_MOST_PARTS, -(-total // probe.tokens[0]))
        return [replace(probe, first=i * total // calls) for i in range(calls)]

    def of_halves(self) -> list[Probe | None]:
        """Calls with every half of each field of the weights, as rows of one block, and of the activations, as tokens
        of one block: in parts where the domain is smaller."""
        of_weights = self.probe((1,), FINITE_HALVES, 1, blocks="every half of a field")
        of_activations = self.probe((FINITE_HALVES,), 1, 1, values="every half of a field")
        found = list[Probe | None]()
        for probe in (of_weights, of_activations):
            if probe is None or not probe.tokens:
                continue
            calls = min(_MOST_PARTS, -(-FINITE_HALVES // (probe.n if probe is of_weights else probe.tokens[0])))
            starts = (FINITE_HALVES * i // calls for i in range(MOST_HALVES * calls))
            found += [replace(probe, first=start) for start in starts]
        return found


def near(extent: Extent, value: int, unit: int = 1) -> int | None:
    """The value, or the next larger or else smaller one of the extent that is a multiple of `unit`."""
    for step in (extent.up, extent.down):
        found = step(value)
        for _ in range(unit):
            if found is None or found % unit == 0:
                break
            found = step(found + (1 if step == extent.up else -1))
        if found is not None and found > 0 and found % unit == 0:
            return found
    return None


def in_words(numbers: Iterable[int]) -> str:
    """Numbers as ranges: "1-66, 71-73, 80"."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in runs)
