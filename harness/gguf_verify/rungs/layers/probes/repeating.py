"""Products of any size, whose operands repeat a few blocks of the model, and the judgement of some of their outputs.

Rows that are filled up with zeros repeat as whole rows. Fused operands repeat a prime number of random numbers,
whatever rows and tokens they belong to, and the product is judged with these.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ....formats.block import BlockFormat
from ....formats.element import SLICE
from ....formats.tensor_types import WeightFormat
from ....kernels.interface import Kernel
from ....kernels.launches import Needs, Repeated, SparseProduct, prime
from ....semantics.definition import Semantics
from ....semantics.drawn import companions
from ....semantics.epilogue import Epilogue
from ....semantics.exact import product
from ....semantics.gates import judge
from ....semantics.order import Order
from ....support.errors import KernelFault
from ...generated_inputs import any_blocks, drawn, held_by
from ...run import Run

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

#: Blocks that repeat in the weights and in the activations at most, primes; the fewest that the model's are used of.
_REPEATED, _TOKENS_REPEATED, _FEWEST = 8209, 4099, 521
#: Rows and tokens with random numbers, primes.
_ROWS, _TOKENS = 521, 67
#: Pairs of a row and a token that are multiplied exactly at a time: at least these, and as many as have this number of
#: terms where no two share a row or a token.
_PAIRS, _TERMS = 12, 1 << 22


@dataclass(frozen=True)
class Wrong:
    """The first thing that is wrong with a product, in words; at which output, where it is one, and its culprit."""

    words: str
    token: int = 0
    row: int = 0
    got: float | None = None
    expected: float | None = None
    error: KernelFault | None = None


@dataclass(frozen=True)
class Single:
    """One output: what wrote it, in words, its place, and its bits as float32."""

    by: str
    token: int
    row: int
    bits: np.uint32


@dataclass(frozen=True)
class Judged:
    """The first wrong output, and whether the gates could have failed most others."""

    wrong: Wrong | None
    weak: bool


class RepeatingProducts:
    """Products with weights of one type.

    Args:
        run: of the rung.
        units: uint8[…, bytes], blocks of the model.
        like: activations float32[M, K] of the graph, whose size random ones have.
    """

    def __init__(self, run: Run, fmt: WeightFormat, units: Bytes, like: Floats) -> None:
        self._run, self._fmt, self._semantics = run, fmt, run.semantics(fmt)
        takes = self._semantics.activations
        #: Values of a unit of the activations.
        self.of_x = SLICE if takes is None else math.lcm(SLICE, takes.block_size)
        #: K is a multiple of this.
        self.unit = math.lcm(fmt.unit, self.of_x)
        self._fused: dict[int, dict[str, Repeated]] = {}
        self._weights = repeated_units(self._semantics, fmt, units, run.options.seed)
        #: The activations that repeat, float32[1, …], and their bytes.
        self.values = drawn((1, _TOKENS_REPEATED * self.of_x), like, run.options.seed)
        self.x = self._semantics.bytes_of(self.values).reshape(-1)

    @property
    def value_bytes(self) -> tuple[float, float]:
        """Bytes that a weight and an activation take."""
        return self._fmt.block_bytes / self._fmt.block_size, len(self.x) / (_TOKENS_REPEATED * self.of_x)

    @property
    def blocks(self) -> tuple[int, int]:
        """Values of a block of weights and of activations."""
        takes = self._semantics.activations
        return self._fmt.block_size, 1 if takes is None else takes.block_size

    def token_bytes(self, k: int) -> int:
        """Bytes of the activations of a token."""
        return len(self.x) // _TOKENS_REPEATED * (k // self.of_x)

    def sparse(self, kernel: Kernel, shape: tuple[int, int, int], needs: tuple[Needs, ...] = ()) -> SparseProduct:
        """The operands of a product of M, N and K."""
        of = SparseProduct(
            self._fmt, *shape, self.token_bytes(shape[2]), self._weights, self.x, kernel.lies(self._fmt, *shape), needs
        )
        if not isinstance(self._semantics.epilogue, Epilogue) or not isinstance(self._fmt, BlockFormat):
            return of
        if of.k not in self._fused:
            self._fused[of.k] = repeated(of, self._semantics.epilogue, self._fmt, self._semantics.output)
        tails = {name: kernel.tail(self._fmt, *shape, name) for name in self._fused[of.k]}
        return replace(of, fused={n: replace(one, tail=tails[n]) for n, one in self._fused[of.k].items()})

    def judge(self, of: SparseProduct, order: Order | None, outputs: list[Single], at: str) -> Judged:
        """Judge some outputs of a product by the exact product at their places."""
        weak, step = False, max(_PAIRS, math.isqrt(_TERMS // of.k))
        for start in range(0, len(outputs), step):
            judged = self._judge(of, order, outputs[start : start + step], at)
            weak |= judged.weak
            if judged.wrong is not None:
                return Judged(judged.wrong, weak)
        return Judged(None, weak)

    def _judge(self, of: SparseProduct, order: Order | None, outputs: list[Single], at: str) -> Judged:
        tokens, token_of = np.unique([output.token for output in outputs], return_inverse=True)
        rows, row_of = np.unique([output.row for output in outputs], return_inverse=True)
        operands = of.beside(tokens.tolist(), rows.tolist()) if of.fused else None
        whole = product(
            self._semantics, self._fmt, of.rows(rows.tolist()), of.tokens(tokens.tolist()), order,
            self._run.options.threads, operands=operands,
        )  # fmt: skip
        expected = whole.at(token_of, row_of)
        y = np.array([[output.bits for output in outputs]], np.uint32).view(np.float32)
        judgement = judge(y, expected)
        bad = judgement.bad[0]
        if not bad.any():
            return Judged(None, judgement.power.lacking)
        i = int(bad.argmax())
        m, n = outputs[i].token, outputs[i].row
        got, exact = float(y[0, i]), float(expected.exact[0, i])
        words = f"{at}{outputs[i].by} writes {got:.9g} at row {n} token {m}, expected {exact:.9g}"
        return Judged(Wrong(words, m, n, got, exact), judgement.power.lacking)


def repeated_units(semantics: Semantics, fmt: WeightFormat, units: Bytes, seed: int) -> Bytes:
    """Blocks of the model, a prime number of them; where it has few, blocks of any bits that the definition can
    hold."""
    if len(units) < _FEWEST and isinstance(fmt, BlockFormat):
        drawn_units = any_blocks(fmt, _REPEATED, seed)
        held = drawn_units[held_by(semantics, fmt, drawn_units)]
        units = held if len(held) > len(units) else units
    return np.ascontiguousarray(units[: prime(min(len(units), _REPEATED))]).reshape(-1)


def repeated(of: SparseProduct, epilogue: Epilogue, fmt: BlockFormat, output: str) -> dict[str, Repeated]:
    """The repeating numbers in the fused operands.

    Args:
        output: the type of the product's output.
    """
    rows, tokens = of.rows(range(_ROWS)), of.tokens(range(_TOKENS))
    places, found = {operation.operand: operation.place for operation in epilogue.operations}, {}
    for name, values in epilogue.operands(fmt, rows, tokens, output).items():
        if places[name] is None:
            others = companions(fmt, of.weights.reshape(-1, fmt.block_bytes))
            found[name] = Repeated(None, np.roll(others, 1, axis=0).reshape(-1))
            continue
        numbers = values.reshape(-1)
        found[name] = Repeated(places[name], numbers[: prime(max(2, len(numbers)))])
    return found
