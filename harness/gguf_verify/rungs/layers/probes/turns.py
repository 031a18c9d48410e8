"""Calls of several matrices and shapes in turn: what a kernel keeps of one call must not reach the next."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ....formats.tensor_types import WeightFormat
from ....kernels.interface import Kernel, Weights
from ....semantics.definition import Semantics
from ...generated_inputs import representable
from ...plan import Probe
from ...run import Run
from .inputs import ProbeInputs

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
