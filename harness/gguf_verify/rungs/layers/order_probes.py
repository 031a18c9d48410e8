"""Probes of the order in which a kernel adds: products of which each output says how many summands are in it.

Of a definition that multiplies codes, the summands are the terms of a row's blocks, two for each block if a minimum is
multiplied by s. Masks M and -M are scales, 2^15 and 2^-24 for the others, in rows of weights of their own: one call
tries as many pairs as it has rows (`semantics.summation`). `value_probes` has those of a definition that multiplies
values, `superblock_probes` those of sums within superblocks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count

import numpy as np
import numpy.typing as npt

from ...formats.block import BlockFormat
from ...kernels.interface import Kernel
from ...semantics.definition import Semantics
from ...semantics.replay import Arithmetic, FoundOrder, arithmetics, differing, parts_of
from ...semantics.summation import NoOrder, Rule, Tree, drawn, find, meeting, recognised, rules
from ...semantics.sums import Doubles, Floats
from ...semantics.terms.codes import CodeTerm
from ...support.errors import KernelFault
from ..generated_inputs import drawn as random_activations

Bytes = npt.NDArray[np.uint8]

#: Products that are made for one product of the model: 8 times as many as for any order that was found in tests.
MOST_PRODUCTS = 1 << 14
#: Summands of which the tree is found for the product itself.
MOST = 64
#: Rows of the products that prove the arithmetic, and random pairs that are tried for long rows.
_ROWS, _PAIRS = 64, 64
#: Rules that are tried for long rows.
_MOST_RULES = 32


@dataclass(frozen=True)
class Probes(ABC):
    """The probes of a kernel with weights of a type.

    Args:
        kernel, semantics, fmt: the kernel.
        rows: weights of the file, uint8[N, row bytes], for products that prove the arithmetic.
    """

    kernel: Kernel
    semantics: Semantics
    fmt: BlockFormat
    rows: Bytes
    seed: int
    #: The numbers of its products.
    _numbers: Iterator[int] = field(default_factory=partial(count, 1), kw_only=True, repr=False, compare=False)

    @abstractmethod
    def order(self, m: int, n: int, k: int) -> FoundOrder:
        """Find the order of products of this shape. Raises NoOrder."""

    @abstractmethod
    def tree_in(self, m: int, n: int, k: int, of: FoundOrder, token: int, row: int) -> Tree:
        """Find the tree of a single output, for long rows as far as random summands tell it. Raises NoOrder."""

    def fitting(self, m: int, n: int, k: int, orders: Iterable[FoundOrder]) -> Iterator[FoundOrder]:
        """Yield the orders that give all bits of random products. Raises NoOrder.

        In one of them all activations are positive: the sums of most blocks are large, and so is what rounds them.
        """
        size = k // self.fmt.block_size * self.fmt.block_bytes
        blocks = self.rows.reshape(-1, self.fmt.block_bytes)
        rng = np.random.default_rng((self.seed, m, n, k))
        w = np.ascontiguousarray(
            blocks[rng.integers(0, len(blocks), n * size // self.fmt.block_bytes)].reshape(n, size)
        )
        x = random_activations((m, k), np.ones((1, 1), np.float32), self.seed)
        made = [(self.semantics.bytes_of(of), self.product(w, of)) for of in (x, np.abs(x))]
        return (of for of in orders if not any(differing(of, self.semantics, self.fmt, w, *one).any() for one in made))

    def product(self, w: Bytes, x: Floats) -> Floats:
        """Return the kernel's product of weights uint8[N, row bytes] and activations float32[M, K]. Raises NoOrder."""
        if next(self._numbers) > MOST_PRODUCTS:
            raise NoOrder(f"it is not found by {MOST_PRODUCTS:,} products")
        try:
            kernel = self.kernel.of(self.fmt, len(x), len(w), x.shape[1])
            return kernel.product(kernel.upload(self.fmt, w), x)
        except KernelFault as error:
            raise NoOrder(f"a probe ends in a fault: {error}") from None


@dataclass(frozen=True)
class PairProbes(Probes):
    """Probes by pairs of masks.

    The arithmetic is proven, and the rule is recognised, for products of a few numbers of columns (`short`).
    """

    #: Summands of a block that have rules of their own.
    parts = 1

    @property
    @abstractmethod
    def short(self) -> Iterable[int]:
        """The columns of the products for which the arithmetic is proven, and the rule is recognised."""

    @property
    @abstractmethod
    def arithmetics(self) -> Iterable[Arithmetic]:
        """What kernels do with a summand."""

    @abstractmethod
    def rules(self) -> Iterable[Rule]:
        """The rules that are known, the simplest first."""

    @abstractmethod
    def summands(self, k: int) -> int:
        """The number of summands of an output of K columns."""

    @abstractmethod
    def check(self, m: int, n: int, k: int) -> None:
        """Check that the summands are what they are taken for. Raises NoOrder."""

    @abstractmethod
    def counted(
        self, m: int, n: int, k: int, pairs: Sequence[tuple[int, int]], at: tuple[int, int] | None
    ) -> npt.NDArray[np.float64]:
        """Return how many summands are in the outputs of pairs: `summation.Counted`. Raises NoOrder.

        Args:
            at: token and row of the output; None: any, and all tokens or rows beside it must agree.
        """

    def order(self, m: int, n: int, k: int) -> FoundOrder:
        trees, domain = dict[int, Tree](), self.kernel.domain
        shapes = [(m, min(n, _ROWS), of) for of in self.short if domain.outside(min(n, _ROWS), of) is None]
        fitting: list[Arithmetic] | None = None
        for shape in shapes or [(m, n, k)]:
            tree = trees[self.summands(shape[2])] = self._tree(*shape)
            orders = (FoundOrder(tree, None, of) for of in fitting or self.arithmetics)
            fitting = [of.arithmetic for of in self.fitting(*shape, orders)]
            if not fitting:
                raise NoOrder(f"terms are added as {drawn(tree)}, but no known arithmetic of a term gives the bits")
        assert fitting
        known, total = recognised(trees, self.rules(), self.parts), self.summands(k)
        if total <= MOST:
            tree = trees.get(total) or self._tree(m, n, k)
            of_tree = recognised({**trees, total: tree}, self.rules(), self.parts)
            rule = next(of_tree, None) or next(recognised({total: tree}, self.rules(), self.parts), None)
            return FoundOrder(tree, rule, fitting[0])
        pairs, met = self._met(m, n, k)
        for tries, rule in enumerate(known, 1):
            if meeting(tree := rule.tree(total, self.parts), pairs) == met:
                return FoundOrder(tree, rule, fitting[0])
            if tries == _MOST_RULES:
                break
        found = "; ".join(drawn(tree) for tree in trees.values())
        raise NoOrder(f"no rule has the trees of shorter rows, {found}, and of long ones")

    def tree_in(self, m: int, n: int, k: int, of: FoundOrder, token: int, row: int) -> Tree:
        if self.summands(k) <= MOST:
            return self._tree(m, n, k, (token, row))
        pairs, met = self._met(m, n, k, (token, row))
        if met != meeting(of.tree, pairs):
            raise NoOrder("this output is added in another order than others")
        return of.tree

    def _tree(self, m: int, n: int, k: int, at: tuple[int, int] | None = None) -> Tree:
        self.check(m, n, k)
        return find(self.summands(k), lambda pairs: self.counted(m, n, k, pairs, at))

    def _met(
        self, m: int, n: int, k: int, at: tuple[int, int] | None = None
    ) -> tuple[list[tuple[int, int]], list[float]]:
        """Return random pairs of a long row, and how many summands meet where each pair does. Raises NoOrder."""
        total, rng = self.summands(k), np.random.default_rng((self.seed, n, k))
        count = _PAIRS if at is None else _PAIRS // 8
        pairs = [(0, total - 1), *((int(i), int(j)) for i, j in (rng.choice(total, 2, False) for _ in range(count)))]
        pairs = [(min(pair), max(pair)) for pair in pairs]
        self.check(m, n, k)
        lost: list[float] = (total - np.rint(self.counted(m, n, k, pairs, at))).tolist()
        return pairs, lost


# ---- sums of blocks --------------------------------------------------------------------------------------------------

#: The scales of masks and of the others, and the activations that are not zero: their scale is exactly 2^-7.
_MASK, _ONE, _VALUE = 2.0**15, 2.0**-24, 127 * 2.0**-7
#: Random blocks among which those of a probe are looked for.
_DRAWN = 4096


@dataclass(frozen=True)
class BlockProbes(PairProbes):
    """The probes of a definition that multiplies the sum of a block's products of integers by scales.

    Args:
        term: of the definition.
        blocks: random blocks with d = 1 and m = 0, uint8[blocks, block bytes]; their codes as multiplied are `codes`.
    """

    term: CodeTerm
    blocks: Bytes
    codes: npt.NDArray[np.float32]

    @classmethod
    def of(
        cls, kernel: Kernel, semantics: Semantics, fmt: BlockFormat, rows: Bytes, seed: int, term: CodeTerm
    ) -> BlockProbes:
        fields = {field.name for field in fmt.fields}
        rng = np.random.default_rng(seed)
        blocks = rng.integers(0, 256, (_DRAWN, fmt.block_bytes), np.uint8)
        for name, value in (("d", 1.0), ("m", 0.0)):
            if name in fields:
                set_halves(fmt, blocks, name, np.full(_DRAWN, value))
        return cls(kernel, semantics, fmt, rows, seed, term, blocks, term.codes(fmt, blocks))

    @property
    def parts(self) -> int:  # type: ignore[override]
        return parts_of(self.fmt, self.term)

    @property
    def short(self) -> Iterable[int]:
        return [blocks * self.fmt.block_size for blocks in (5, 12, 33)]

    @property
    def arithmetics(self) -> Iterable[Arithmetic]:
        return arithmetics(self.fmt, self.term)

    def rules(self) -> Iterable[Rule]:
        return rules(self.parts)

    def summands(self, k: int) -> int:
        return k // self.fmt.block_size * self.parts

    def counted(
        self, m: int, n: int, k: int, pairs: Sequence[tuple[int, int]], at: tuple[int, int] | None
    ) -> npt.NDArray[np.float64]:
        nb, parts = k // self.fmt.block_size, self.parts
        block, x = self._summand(m, k)
        step, found = (n if at is None else 1), list[float]()
        for start in range(0, len(pairs), step):
            some = pairs[start : start + step]
            scales = np.full((n, nb * parts), _ONE)
            rows = range(len(some)) if at is None else [at[1]]
            for row, pair in zip(rows, some, strict=True):
                scales[row, list(pair)] = _MASK, -_MASK
            y = self.product(self._weights(np.broadcast_to(block, (n, nb, len(block))), scales), x)
            found += self._count(y[:, list(rows)] if at is None else y[at[0] : at[0] + 1, list(rows)], block)
        return np.array(found)

    def _count(self, y: Floats, block: Bytes) -> list[float]:
        """Return the number of ones in each row of outputs [M, rows]. Raises NoOrder if tokens differ."""
        if not (y == y[:1]).all():
            raise NoOrder("it adds the terms of tokens in different orders")
        q = float(self.term.codes(self.fmt, block[None])[0, 0]) if self.parts == 2 else self._difference(block)
        return [float(value) for value in y[0].astype(np.float64) / (_ONE * _VALUE * q)]

    def _difference(self, block: Bytes) -> float:
        q = self.term.codes(self.fmt, block[None])[0]
        return float(q[0] - q[1])

    def _summand(self, m: int, k: int) -> tuple[Bytes, Floats]:
        """Return a block and activations float32[m, k] with which each summand is the scale times a factor.

        With one summand a block they add up to zero, so that s does not matter; with two, the first code is 1.
        """
        x, q = np.zeros((m, k // self.fmt.block_size, self.fmt.block_size), np.float32), self.codes
        x[..., 0] = _VALUE
        if self.parts == 1:
            x[..., 1] = -_VALUE
        fits = q[:, 0] == 1 if self.parts == 2 else q[:, 0] != q[:, 1]
        return self.blocks[int(fits.argmax())], x.reshape(m, k)

    def _weights(self, blocks: Bytes, scales: Doubles) -> Bytes:
        """Return weights uint8[n, row bytes] of blocks [n, nb, block bytes] with these factors of their summands."""
        made = blocks.copy()
        set_halves(self.fmt, made, "d", scales[:, :: self.parts])
        if self.parts == 2:
            set_halves(self.fmt, made, "m", scales[:, 1::2])
        return made.reshape(len(made), -1)

    def check(self, m: int, n: int, k: int) -> None:
        """Check that a block is one summand, or two. Raises NoOrder.

        In the first block of a row, two products of a code and an activation are M and -M. If these are added as
        integers, or before they meet another term, nothing is lost.
        """
        nb, size = k // self.fmt.block_size, self.fmt.block_size
        of_pair = self.codes[:, 1:] == self.codes[:, :1]
        x = np.zeros((m, nb, size), np.float32)
        x[..., 0] = _VALUE
        for start in range(1, size, m):
            places = [start + i if start + i < size else 1 for i in range(m)]
            x[..., 1:] = 0
            for token, place in enumerate(places):
                x[token, :, place] = -_VALUE
            masks = [self._find(of_pair[:, p - 1] & (self.codes[:, 0] != 0)) for p in places]
            ones = [self._find(self.codes[:, 0] - self.codes[:, p] == 1) for p in places]
            self._check_pairs(x.reshape(m, k), masks, ones, n)
        if self.term.reads_sum(self.fmt) and self.fmt.offset:
            x[...] = 0
            x[..., 0] = _VALUE
            offset = self.fmt.offset
            masks, ones = ([self._find(self.codes[:, 0] == offset + more)] * m for more in (0, 1))
            self._check_pairs(x.reshape(m, k), masks, ones, n, "it adds the product of the offset by itself")

    def _find(self, fits: npt.NDArray[np.bool_]) -> Bytes:
        if not fits.any():
            raise NoOrder("no block has the codes of a probe")
        block: Bytes = self.blocks[int(fits.argmax())]
        return block

    def _check_pairs(
        self, x: Floats, masks: list[Bytes], ones: list[Bytes], n: int,
        why: str = "it adds parts of a block by themselves, in several lanes",
    ) -> None:  # fmt: skip
        """Check that tokens lose nothing, each with weights of its own in a row. Raises NoOrder with this reason."""
        nb, m = x.shape[1] // self.fmt.block_size, len(x)
        for start in range(0, m, n):
            some = range(start, min(start + n, m))
            blocks = np.empty((n, nb, self.fmt.block_bytes), np.uint8)
            scales = np.full((n, nb * self.parts), 0.0)
            scales[:, :: self.parts] = _ONE
            for row in range(n):
                token = start + row if start + row < m else start
                blocks[row] = ones[token]
                blocks[row, nb // 2] = masks[token]
            scales[:, nb // 2 * self.parts] = _MASK
            y = self.product(self._weights(blocks, scales), x)
            counted = np.array([y[token, token - start] for token in some], np.float64) / (_ONE * _VALUE)
            if not (np.abs(counted - (nb - 1)) < 0.01).all():
                raise NoOrder(why)


def set_halves(fmt: BlockFormat, blocks: Bytes, name: str, values: npt.NDArray[np.float64]) -> None:
    """Write halves into a field of blocks uint8[..., block bytes]."""
    at = fmt.field_offset(name)
    halves = np.ascontiguousarray(values, np.float16)
    blocks[..., at : at + 2] = halves[..., None].view(np.uint8)
