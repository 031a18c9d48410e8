"""Calls of several matrices and shapes in turn: what a kernel keeps of one call must not reach the next."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

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
#: released, so that it may get A's address.
ORDER = "ABACAD"


@dataclass(frozen=True)
class Turn:
    """One matrix: weights uint8[N, row bytes], activations float32[M, K], and these as the definition has them."""

    probe: Probe
    rows: npt.NDArray[np.uint8]
    x: npt.NDArray[np.float32]
    encoded: npt.NDArray[np.uint8]


def turns_of(
    shapes: tuple[Probe, Probe], fmt: WeightFormat, semantics: Semantics, inputs: ProbeInputs
) -> dict[str, Turn]:  # fmt: skip
    """A to D: C has the second shape, the others the first."""
    turns = {}
    for i, (name, probe) in enumerate(zip("ABCD", (shapes[0], shapes[0], shapes[1], shapes[0]), strict=True)):
        others = inputs.others(i)
        rows = others.weights(probe)
        x = representable(semantics, fmt, rows, others.values(probe, rows))
        turns[name] = Turn(probe, rows, x, semantics.bytes_of(x))
    return turns


def called_in_turn(
    run: Run, fmt: WeightFormat, turns: dict[str, Turn]
) -> Iterator[tuple[str, Kernel, npt.NDArray[np.float32]]]:
    """Each name of `ORDER`, the kernel of its shape, and the outputs float32[M, N]. Raises KernelFault."""
    kernels = {name: run.kernel.of(fmt, len(t.x), t.probe.n, t.probe.k) for name, t in turns.items()}
    there: dict[str, Weights] = {name: kernels[name].upload(fmt, turns[name].rows) for name in "ABC"}
    for name in ORDER:
        if name not in there:
            del there["A"]
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
