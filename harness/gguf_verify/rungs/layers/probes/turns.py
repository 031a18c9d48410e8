"""Calls of several matrices and shapes in turn: what a kernel keeps of one call must not reach the next."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ....diagnosis.observed import observed
from ....formats.tensor_types import WeightFormat
from ....kernels.interface import Kernel, Weights
from ....results.diagnoses import FaultMatch
from ....semantics.definition import Semantics
from ....semantics.gates import judge
from ...generated_inputs import representable
from ...plan import Probe
from ...run import Run
from .inputs import Exact, ProbeInputs

#: A, B and D have one shape and different values; C has another shape. A, B and C are there together, D only when A was
#: released, so that it may get A's address. E has D's operands but for two blocks of weights that are exchanged, and F
#: but for two blocks of activations: a key of some bytes, or of their sum, is the same.
ORDER = "ABACADEF"


@dataclass(frozen=True)
class Turn:
    """One matrix: weights uint8[N, row bytes], activations float32[M, K], and these as the definition has them."""

    probe: Probe
    rows: npt.NDArray[np.uint8]
    x: npt.NDArray[np.float32]
    encoded: npt.NDArray[np.uint8]


def turns_of(
    shapes: tuple[Probe, Probe], fmt: WeightFormat, semantics: Semantics, inputs: ProbeInputs, seed: int
) -> dict[str, Turn]:  # fmt: skip
    """A to F: C has the second shape, the others the first.

    Args:
        seed: of the blocks that are exchanged.
    """
    turns, rng = dict[str, Turn](), np.random.default_rng(seed)
    for i, (name, probe) in enumerate(zip("ABCD", (shapes[0], shapes[0], shapes[1], shapes[0]), strict=True)):
        others = inputs.others(i)
        rows = others.weights(probe)
        x = representable(semantics, fmt, rows, others.values(probe, rows))
        turns[name] = Turn(probe, rows, x, semantics.bytes_of(x))
    last, takes = turns["D"], semantics.activations
    rows = _exchanged(last.rows, fmt.unit // fmt.block_size * fmt.block_bytes, rng)
    x = _exchanged(last.x, fmt.unit if takes is None else takes.block_size, rng)
    return turns | {
        "E": Turn(last.probe, rows, last.x, last.encoded),
        "F": Turn(last.probe, last.rows, x, semantics.bytes_of(x)),
    }


def _exchanged(values: npt.NDArray[Any], size: int, rng: np.random.Generator) -> npt.NDArray[Any]:
    """A copy in which two blocks that differ are exchanged, neither the first nor the last one if there are others."""
    blocks = values.reshape(-1, size).copy()
    inside = blocks[1:-1] if len(blocks) > 3 else blocks
    first, *others = rng.permutation(len(inside))
    for other in others:
        if (inside[first] != inside[other]).any():
            inside[[first, other]] = inside[[other, first]]
            break
    return blocks.reshape(values.shape)


def called_in_turn(
    run: Run, fmt: WeightFormat, turns: dict[str, Turn]
) -> Iterator[tuple[str, Kernel, npt.NDArray[np.float32]]]:
    """Each name of `ORDER`, the kernel of its shape, and the outputs float32[M, N]. Raises KernelFault."""
    kernels = {name: run.kernel.of(fmt, len(t.x), t.probe.n, t.probe.k) for name, t in turns.items()}
    there: dict[str, Weights] = {name: kernels[name].upload(fmt, turns[name].rows) for name in "ABC"}
    for name in ORDER:
        if name not in there:
            there.pop("A", None)
            there[name] = kernels[name].upload(fmt, turns[name].rows)
        yield name, kernels[name], kernels[name].product(there[name], turns[name].x)


def kept_between(
    turns: dict[str, Turn], called: str, y: npt.NDArray[np.float32], exact: Exact
) -> FaultMatch | None:  # fmt: skip
    """Which operands of an earlier matrix explain the wrong outputs of the last one: what a kernel keeps of a call.

    Args:
        called: the names so far; y is of the last one.
    """
    last = called[-1]
    this = turns[last]
    for name in dict.fromkeys(reversed(called[:-1])):
        other = turns[name]
        if name == last or other.probe != this.probe:
            continue
        for what, rows, encoded in (
            ("weights are", other.rows, this.encoded), ("activations are", this.rows, other.encoded),
            ("weights and activations are", other.rows, other.encoded),
        ):  # fmt: skip
            parts = exact(rows, encoded, None)
            if all(judge(np.ascontiguousarray(y[:, span]), product).passed for span, product in parts):
                return observed("cached-by-shape", f"the {what} those of matrix {name}, which was multiplied before")
    return None
