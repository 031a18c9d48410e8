"""Faults of an epilogue: an operation that is omitted, applied twice, or applied before another.

No fault of the catalogue is replayed behind an epilogue: a change of the weights' bytes would also change the operands,
whose random values are derived from them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ..formats.block import BlockFormat
from ..results.diagnoses import FaultMatch
from ..semantics.definition import Semantics
from ..semantics.drawn import companions
from ..semantics.epilogue import Epilogue
from ..semantics.epilogues import OPERATIONS, Operation
from ..semantics.exact import product
from ..semantics.gates import judge
from ..semantics.narrow import stored
from ..semantics.sums import Product
from .observed import observed
from .operands import Bytes, Floats


def faults_of(
    y: Floats, fmt: BlockFormat, semantics: Semantics, rows: Bytes, x: Bytes, threads: int = 1
) -> tuple[FaultMatch, ...]:
    """Return the faults that explain all outputs float32[M, N].

    Args:
        semantics: the definition that the kernel declares, with its epilogue.
        rows, x: weights uint8[N, row bytes] and activations uint8[M, row bytes] as the kernel got them.
    """
    epilogue = semantics.epilogue
    if not isinstance(epilogue, Epilogue):
        return ()
    plain = replace(semantics, epilogue=None, output="float32")

    def multiply(weights: Bytes) -> Product:
        return product(plain, fmt, weights, x, threads=threads)

    made = multiply(rows)
    found = []
    for words, operations in _variants(epilogue.operations):
        fused = epilogue.applied(made, fmt, rows, x, multiply, operations)
        found.append((words, fused))
    if any(operation.place is None for operation in epilogue.operations):
        swapped = epilogue.applied(multiply(companions(fmt, rows)), fmt, rows, x, lambda _: made)
        found.append(("gate and up are exchanged", swapped))
    right = epilogue.applied(made, fmt, rows, x, multiply)
    return tuple(
        observed("epilogue", words, explained=1.0, everywhere=True)
        for words, fused in found
        if judge(y, stored(fused, semantics.output)).passed and _apart(fused, right)
    )


def _variants(operations: tuple[Operation, ...]) -> Iterator[tuple[str, tuple[Operation, ...]]]:
    """Yield each fault in words, with the operations of a kernel that has it."""
    for i, one in enumerate(operations):
        before, behind = operations[:i], operations[i + 1 :]
        yield f"{one.name} is omitted", (*before, *behind)
        if one.place is not None:
            yield f"{one.name} is done twice", (*before, one, one, *behind)
        if behind:
            yield f"{behind[0].name} comes before {one.name}", (*before, behind[0], one, *behind[1:])
    if len(operations) > 1:
        yield "no fused operation is applied", ()
    for gate in (o for o in OPERATIONS.values() if o.place is None and any(p.place is None for p in operations)):
        other = tuple(gate if one.place is None else one for one in operations)
        if other != operations:
            yield f"the gate is {gate.title.split('(')[0]}", other


def _apart(a: Product, b: Product) -> npt.NDArray[np.bool_]:
    """Return whether two results differ by more than their bounds somewhere."""
    with np.errstate(all="ignore"):
        return np.asarray((np.abs(a.exact - b.exact) > a.bound + b.bound).any())
