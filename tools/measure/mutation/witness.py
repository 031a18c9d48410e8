"""Guarded mutants at their witnesses: whether a mutant is a wrong kernel at all.

Some thread blocks of the product run alone, over operands that repeat a few blocks with the witness's values, so that
it may have any size. Mutants of the number of the call compute a small product that often. Outputs that differ from
those of the correct kernel are judged by the exact product: an edit that only changes the rounding is no fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

import numpy as np
import numpy.typing as npt

from gguf_verify.kernels.foreign.process import ForeignKernel
from gguf_verify.kernels.launches import Launched, SparseProduct
from gguf_verify.rungs.generated_inputs import any_blocks
from gguf_verify.semantics.exact import product
from gguf_verify.semantics.gates import judge
from gguf_verify.support.errors import KernelFault

from ..inputs import Bytes
from . import probes
from .guarded import GuardedMutant, Witness

Answer = Literal["wrong", "equal", "rounding"]

#: Repeated blocks of weights and repeated 32 activations, primes; the share of blocks with the witness's value.
_WEIGHTS, _ACTIVATIONS, _SHARE = 1021, 2039, 0.25
#: Thread blocks that run beside the first and the last one; outputs that are judged.
_BLOCKS, _JUDGED = 6, 12


def tried(mutant: GuardedMutant, wrong: ForeignKernel, right: ForeignKernel) -> Answer:
    """Run the mutant at its witness.

    Args:
        wrong, right: the mutant and the unchanged kernel.

    Returns "wrong" if an output is outside the bound of the definition, or there is none; "rounding" if bits differ
    within it; "equal" if none differs.
    """
    if mutant.witness.calls is not None:
        return _in_calls(mutant, wrong, right)
    of = _operands(mutant, mutant.witness)
    launched = right.only_launch(of.fmt, of.m, of.n, of.k)
    assert isinstance(launched, Launched)
    found: Answer = "equal"
    for number in _numbers(mutant, launched.blocks):
        expected = right.alone(of, number)
        try:
            written = wrong.alone(of, number)
        except KernelFault:
            return "wrong"
        if not np.array_equal(written.at, expected.at):
            return "wrong"
        differs = _differs(written.words, expected.words)
        if differs.any():
            found = "rounding"
            if any(_outside(mutant, of, at, y) for at, y in _some(written.at, written.words, differs)):
                return "wrong"
    return found


def _in_calls(mutant: GuardedMutant, wrong: ForeignKernel, right: ForeignKernel) -> Answer:
    of = _operands(mutant, mutant.witness)
    rows, tokens = of.rows(range(of.n)), of.tokens(range(of.m))
    found: Answer = "equal"
    ask = _asked(right, mutant, rows, tokens)
    expected = ask()
    again = _asked(wrong, mutant, rows, tokens)
    for _ in range((mutant.witness.calls or 0) + 1):
        try:
            y = again()
        except KernelFault:
            return "wrong"
        differs = _differs(y.view(np.uint32), expected.view(np.uint32)).reshape(-1)
        if differs.any():
            found = "rounding"
            some = _some(np.arange(y.size), y.reshape(-1).view(np.uint32), differs)
            if any(_outside(mutant, of, at, value) for at, value in some):
                return "wrong"
    return found


def _asked(
    kernel: ForeignKernel, mutant: GuardedMutant, rows: Bytes, tokens: Bytes
) -> Callable[[], npt.NDArray[np.float32]]:  # fmt: skip
    weights = kernel.upload(mutant.subject.fmt, rows)
    if mutant.subject.semantics.activations is None:
        x = np.ascontiguousarray(tokens).view(np.float32)
        return lambda: kernel.product(weights, x)
    return lambda: kernel.gemm(weights, tokens)


def _operands(mutant: GuardedMutant, witness: Witness) -> SparseProduct:
    """The product of the witness's size, of random blocks with its values."""
    rng = np.random.default_rng((mutant.seed, mutant.number, 1))
    fmt, takes = mutant.subject.fmt, mutant.subject.semantics.activations
    weights = any_blocks(fmt, _WEIGHTS, int(rng.integers(1 << 32)))
    m, n, k = witness.shape
    if takes is None:
        x = probes.values(rng, 1, 32 * _ACTIVATIONS).view(np.uint8).reshape(-1)
        token = 4 * k
    else:
        x = probes.q8_1_blocks(rng, 1, 32 * _ACTIVATIONS).reshape(-1)
        token = k // takes.block_size * takes.block_bytes
    for (operand, name), value in witness.planted.items():
        planted = fmt if operand == "weights" or takes is None else takes
        blocks = planted.view((weights if planted is fmt else x).reshape(-1, planted.block_bytes))
        blocks[name][rng.random(blocks.shape) < _SHARE] = value
    return SparseProduct(fmt, m, n, k, token, weights.reshape(-1), x)


def _numbers(mutant: GuardedMutant, blocks: int) -> list[int]:
    rng = np.random.default_rng((mutant.seed, mutant.number, 2))
    return sorted({0, blocks - 1, *(int(rng.integers(blocks)) for _ in range(_BLOCKS))})


def _differs(words: npt.NDArray[np.uint32], expected: npt.NDArray[np.uint32]) -> npt.NDArray[np.bool_]:
    """Whether bits differ; all NaN are equal."""
    nan = np.isnan(words.view(np.float32)) & np.isnan(expected.view(np.float32))
    return np.asarray((words != expected) & ~nan)


def _some(
    at: npt.NDArray[np.int64], words: npt.NDArray[np.uint32], differs: npt.NDArray[np.bool_]
) -> Iterator[tuple[int, np.float32]]:  # fmt: skip
    """Some of the outputs that differ: place and value."""
    chosen = np.flatnonzero(differs)
    for i in chosen[:: max(1, len(chosen) // _JUDGED)]:
        yield int(at[i]), words[i : i + 1].view(np.float32)[0]


def _outside(mutant: GuardedMutant, of: SparseProduct, at: int, y: np.float32) -> bool:
    """Whether an output is outside the bound of the definition."""
    m, n = divmod(at, of.n)
    exact = product(mutant.subject.semantics, of.fmt, of.rows([n]), of.tokens([m]))
    return not judge(np.full((1, 1), y, np.float32), exact).passed
