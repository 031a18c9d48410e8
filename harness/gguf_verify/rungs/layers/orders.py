"""The order of summation of a kernel that declares none: found, replayed, and its bits compared (`--order find`).

The summands are the terms of a row's blocks, two for each block if a minimum is multiplied by s. Masks M and -M are
scales, 2^15 and 2^-24 for the others, in rows of weights of their own: one call tries as many pairs as it has rows
(`semantics.summation`). The tree is found for the same numbers of tokens, rows and columns as the product, if it has at
most MOST summands. Else it is found for shorter rows, recognised as a rule, and tried for random pairs of the product.

The rounding inside a term is one of a list (`semantics.replay`). It is proven by random products of other shapes, of
which every bit must be right. Only then is the product itself compared:

- All bits are equal: the order is that of the kernel, whatever data it gets.
- The bits of some rows differ: the tree is found again in some of these rows. If it is the same there, the output is
  not the sum that the kernel makes elsewhere, which is a failure, even within the bound.
- Most rows differ, or have another tree: the product has no single order. This is reported, and is no failure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...formats.block import BlockFormat
from ...gguf.matrices import matrix_of, where
from ...kernels.interface import Kernel
from ...results.failures import Failure
from ...results.products import OrderRecord
from ...semantics.definition import Semantics
from ...semantics.replay import Arithmetic, FoundOrder, arithmetics, differing, parts_of
from ...semantics.summation import NoOrder, Tree, drawn, find, meeting, recognised
from ...semantics.sums import Doubles, Floats
from ...semantics.terms.codes import CodeTerm
from ...support.errors import KernelFault
from ..generated_inputs import drawn as random_activations
from .call import Outputs
from .gemm import GemmJudge

Bytes = npt.NDArray[np.uint8]

#: Summands of which the tree is found for the product itself; blocks of the rows for which the arithmetic is proven.
MOST, _PROVEN = 64, (5, 12, 33)
#: Rows of these products, and random pairs that are tried for long rows.
_ROWS, _PAIRS = 64, 64
#: The scales of masks and of the others, and the activations that are not zero: their scale is exactly 2^-7.
_MASK, _ONE, _VALUE = 2.0**15, 2.0**-24, 127 * 2.0**-7
#: Rows with other bits of which the tree is found again.
_LOOKED_AT = 4
#: Random blocks among which those of a probe are looked for.
_DRAWN = 4096


def check_order(judged: GemmJudge, made: Outputs) -> None:
    """Find the order of a kernel that declares none, and compare the bits of its output for the graph's activations.

    Raises KernelFault where the kernel's call does.
    """
    fmt, kernel, run, result = judged.matrix.fmt, made.kernel, judged.run, judged.result
    if not isinstance(fmt, BlockFormat) or kernel.order is not None or not run.kernel.is_under_test(fmt):
        return
    m, n, k = judged.gemm.shape
    tensor, shape = judged.matrix.tensor, f"{fmt.name}, M = {m}, N = {n:,}, K = {k:,}"
    try:
        probes = Probes.of(kernel, judged.semantics, fmt, judged.matrix.rows, run.options.seed)
        found = run.resources.get(f"order of {shape}", lambda: probes.order(m, n, k))
        wrong = differing(found, judged.semantics, fmt, judged.matrix.rows, judged.own.encoded, made.own)
        rows = np.flatnonzero(wrong.any(axis=0))
        if 2 * len(rows) > n:
            raise NoOrder(f"at this shape {len(rows):,} of {n:,} rows have other bits than {found.words}")
        looked_at = rows[np.linspace(0, len(rows) - 1, min(len(rows), _LOOKED_AT)).astype(int)]
        places = [(int(wrong[:, row].argmax()), int(row)) for row in looked_at]
        alike = [at for at in places if probes.tree_in(m, n, k, found, *at) == found.tree]
        if places and not alike:
            raise NoOrder(f"row {rows[0]} is added in another order than others, {found.words}")
    except NoOrder as why:
        result.note(f"{shape}: no order could be found: {why}")
        result.details.append(OrderRecord(tensor=tensor.name, type=fmt.name, m=m, n=n, k=k, why=str(why)))
        return
    result.details.append(
        OrderRecord(
            tensor=tensor.name, type=fmt.name, m=m, n=n, k=k, order=found.words, tree=drawn(found.tree),
            differing=int(wrong.sum()),
        )
    )  # fmt: skip
    if not alike:
        result.note(f"{shape}: order found: {found.words}; bits equal ({made.own.size:,} outputs): {drawn(found.tree)}")
        return
    (token, row), *_ = alike
    at = judged.gemm.first_row + row
    result.fail(
        Failure(
            f"{where(tensor, at, token)}: the output has other bits than the kernel's own order of summation gives "
            f"({found.words}), which is found in this row, too", tensor.name, at, token=token,
            got=float(made.own[token, row]), matrix=matrix_of(tensor, at), culprit="kernel", call=judged.call("own"),
        ), int(wrong.sum())
    )  # fmt: skip


@dataclass(frozen=True)
class Probes:
    """The probes of a kernel with weights of a type.

    Args:
        kernel, semantics, fmt: the kernel.
        term: of the definition.
        rows: weights of the file, uint8[N, row bytes], for products that prove the arithmetic.
        blocks: random blocks with d = 1 and m = 0, uint8[blocks, block bytes]; their codes as multiplied are `codes`.
    """

    kernel: Kernel
    semantics: Semantics
    fmt: BlockFormat
    term: CodeTerm
    rows: Bytes
    blocks: Bytes
    codes: npt.NDArray[np.float32]
    seed: int

    @classmethod
    def of(cls, kernel: Kernel, semantics: Semantics, fmt: BlockFormat, rows: Bytes, seed: int) -> Probes:
        """Raises NoOrder for a kernel, a definition or a type of which no order can be found."""
        inner = semantics.inside or semantics
        fields = {field.name: field.dtype for field in fmt.fields}
        if kernel.adds_floats:
            raise NoOrder("it adds floats by atomic operations, or declares that its bits may differ")
        if semantics.oracle is not None or not (semantics.plain and inner.plain):
            raise NoOrder("its definition rounds sums or outputs, fuses operations, or is an oracle")
        if not isinstance(inner.term, CodeTerm) or inner.term.rounded(fmt):
            raise NoOrder("its definition does not multiply sums of integers by scales, block by block")
        if fmt.block_size != 32 or fields.get("d") != "<f2" or fields.get("m", "<f2") != "<f2":
            raise NoOrder(f"blocks of {fmt.name} have no scale of their own that is a half")
        rng = np.random.default_rng(seed)
        blocks = rng.integers(0, 256, (_DRAWN, fmt.block_bytes), np.uint8)
        for name, value in (("d", 1.0), ("m", 0.0)):
            if name in fields:
                _set(fmt, blocks, name, np.full(_DRAWN, value))
        return cls(kernel, semantics, fmt, inner.term, rows, blocks, inner.term.codes(fmt, blocks), seed)

    @property
    def parts(self) -> int:
        return parts_of(self.fmt, self.term)

    def order(self, m: int, n: int, k: int) -> FoundOrder:
        """Find the order of products of this shape. Raises NoOrder."""
        short, unit = dict[int, Tree](), self.fmt.block_size
        shapes = [(m, min(n, _ROWS), of * unit) for of in _PROVEN]
        domain = self.kernel.domain
        shapes = [shape for shape in shapes if domain.outside(*shape[1:]) is None] or [(m, n, k)]
        fitting: list[Arithmetic] | None = None
        for shape in shapes:
            summands = shape[2] // unit * self.parts
            tree = short[summands] = self._tree(*shape)
            fitting = [a for a in fitting or arithmetics(self.fmt, self.term) if self._fits(*shape, tree, a)]
            if not fitting:
                raise NoOrder(f"terms are added as {drawn(tree)}, but no known arithmetic of a term gives the bits")
        assert fitting
        rule, total = recognised(short, self.parts), k // unit * self.parts
        if total <= MOST:
            tree = short.get(total) or self._tree(m, n, k)
            if rule is not None and rule.tree(total, self.parts) != tree:
                rule = recognised({total: tree}, self.parts)
            return FoundOrder(tree, rule, fitting[0])
        if rule is None:
            trees = "; ".join(drawn(tree) for tree in short.values())
            raise NoOrder(f"no rule has the trees of shorter rows, {trees}")
        tree = rule.tree(total, self.parts)
        self._try(m, n, k, tree)
        return FoundOrder(tree, rule, fitting[0])

    def tree_in(self, m: int, n: int, k: int, of: FoundOrder, token: int, row: int) -> Tree:
        """Find the tree of a single output. Raises NoOrder.

        For long rows the tree is the one that was found, if pairs in this row meet where it says.
        """
        total = k // self.fmt.block_size * self.parts
        if total <= MOST:
            return self._tree(m, n, k, (token, row))
        self._try(m, n, k, of.tree, (token, row))
        return of.tree

    def _tree(self, m: int, n: int, k: int, at: tuple[int, int] | None = None) -> Tree:
        total = k // self.fmt.block_size * self.parts
        self._check_blocks(m, n, k)
        return find(total, lambda pairs: self._counted(m, n, k, pairs, at))

    def _try(self, m: int, n: int, k: int, tree: Tree, at: tuple[int, int] | None = None) -> None:
        """Compare where random pairs of a long row meet. Raises NoOrder."""
        total, rng = k // self.fmt.block_size * self.parts, np.random.default_rng((self.seed, n, k))
        count = _PAIRS if at is None else _PAIRS // 8
        pairs = [(0, total - 1), *((int(i), int(j)) for i, j in (rng.choice(total, 2, False) for _ in range(count)))]
        pairs = [(min(pair), max(pair)) for pair in pairs]
        self._check_blocks(m, n, k)
        lost = total - np.rint(self._counted(m, n, k, pairs, at))
        if lost.tolist() != meeting(tree, pairs):
            raise NoOrder("long rows are added in another order than short ones")

    def _fits(self, m: int, n: int, k: int, tree: Tree, arithmetic: Arithmetic) -> bool:
        """Return whether all bits of a random product are those of an order."""
        size = k // self.fmt.block_size * self.fmt.block_bytes
        blocks = self.rows.reshape(-1, self.fmt.block_bytes)
        rng = np.random.default_rng((self.seed, m, n, k))
        w = np.ascontiguousarray(
            blocks[rng.integers(0, len(blocks), n * size // self.fmt.block_bytes)].reshape(n, size)
        )
        x = random_activations((m, k), np.ones((1, 1), np.float32), self.seed)
        of = FoundOrder(tree, None, arithmetic)
        return not differing(of, self.semantics, self.fmt, w, self.semantics.bytes_of(x), self._product(w, x)).any()

    def _product(self, w: Bytes, x: Floats) -> Floats:
        try:
            kernel = self.kernel.of(self.fmt, len(x), len(w), x.shape[1])
            return kernel.product(kernel.upload(self.fmt, w), x)
        except KernelFault as error:
            raise NoOrder(f"a probe ends in a fault: {error}") from None

    def _counted(
        self, m: int, n: int, k: int, pairs: Sequence[tuple[int, int]], at: tuple[int, int] | None
    ) -> npt.NDArray[np.float64]:
        """Return how many summands are in the outputs of pairs: `summation.Counted`.

        Args:
            at: token and row of the output; None: each pair in a row of its own, and all tokens must agree.
        """
        nb, parts = k // self.fmt.block_size, self.parts
        block, x = self._summand(m, k)
        step, found = (n if at is None else 1), list[float]()
        for start in range(0, len(pairs), step):
            some = pairs[start : start + step]
            scales = np.full((n, nb * parts), _ONE)
            rows = range(len(some)) if at is None else [at[1]]
            for row, pair in zip(rows, some, strict=True):
                scales[row, list(pair)] = _MASK, -_MASK
            y = self._product(self._weights(np.broadcast_to(block, (n, nb, len(block))), scales), x)
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
        _set(self.fmt, made, "d", scales[:, :: self.parts])
        if self.parts == 2:
            _set(self.fmt, made, "m", scales[:, 1::2])
        return made.reshape(len(made), -1)

    def _check_blocks(self, m: int, n: int, k: int) -> None:
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
            y = self._product(self._weights(blocks, scales), x)
            counted = np.array([y[token, token - start] for token in some], np.float64) / (_ONE * _VALUE)
            if not (np.abs(counted - (nb - 1)) < 0.01).all():
                raise NoOrder(why)


def _set(fmt: BlockFormat, blocks: Bytes, name: str, values: npt.NDArray[np.float64]) -> None:
    """Write halves into a field of blocks uint8[..., block bytes]."""
    at = fmt.field_offset(name)
    halves = np.ascontiguousarray(values, np.float16)
    blocks[..., at : at + 2] = halves[..., None].view(np.uint8)
