"""`--identify` of kernels that multiply nothing: by which arithmetic a dequantizer rounds, which encoding a quantizer
makes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from .diagnosis.identify import Candidate, Identification, known_inputs
from .formats import BlockFormat
from .kernels.tasks import Dequantizer, Quantizer, Task
from .rungs.generated_inputs import any_blocks
from .rungs.task_calls import shapes_of
from .semantics.dequantization import ARITHMETICS, BOUNDED, applies, expected_values, rounded_float32
from .semantics.quantization import check_bytes, encoding, encodings, unit_of
from .support.errors import KernelFault, UsageError

if TYPE_CHECKING:
    from .gguf.file import Tensor
    from .rungs import Run

Floats = npt.NDArray[np.float32]


class TaskIdentified(NamedTuple):
    """The fields of `identification.Identified`."""

    type: str
    tensor: str
    m: int
    n: int
    k: int
    who: str
    declared: str
    found: Identification | None
    lines: tuple[str, ...] = ()


#: Least rows and columns of a call.
_ROWS, _COLUMNS, _TOKENS = 64, 1024, 16


def identify_task(run: Run, kernel: Task, tensors: dict[str, Tensor]) -> Iterator[TaskIdentified]:
    """What a kernel computes, for each type that it covers; of a quantizer once.

    Args:
        tensors: type → a matrix of it.

    Raises UsageError for a repacking, which has no definition to be told from others.
    """
    if isinstance(kernel, Dequantizer):
        for tensor in tensors.values():
            if tensor.type.format is not None and kernel.covers(tensor.type.format):
                yield _dequantizer(run, kernel, tensor, tensor.type.format)
    elif isinstance(kernel, Quantizer):
        yield _quantizer(run, kernel, next(iter(tensors.values())))
    else:
        raise UsageError("--identify is of products, dequantizers and quantizers: a repacking has one definition")


def _size(kernel: Task, unit: int, seed: int) -> tuple[int, int, int]:
    """M, N and K of a call, as large as is needed, within the domain. Raises UsageError where there is none."""
    shapes = shapes_of(kernel.domain, unit, seed, brief=True)
    if not shapes:
        raise UsageError("no call of the probe plan is in the kernel's domain")
    return next((s for s in shapes if s[1] >= _ROWS and s[2] >= _COLUMNS), max(shapes, key=lambda s: s[1] * s[2]))


def _dequantizer(run: Run, kernel: Dequantizer, tensor: Tensor, fmt: BlockFormat) -> TaskIdentified:
    _, n, k = _size(kernel, fmt.block_size, run.options.seed)
    rows = any_blocks(fmt, n * k // fmt.block_size, run.options.seed).reshape(n, -1)
    declared = kernel.arithmetic(fmt)
    try:
        values = kernel.dequantize(fmt, rows).reshape(-1, fmt.block_size)
    except KernelFault as error:
        return TaskIdentified(fmt.name, tensor.name, 1, n, k, kernel.name, declared, None, (str(error),))
    blocks, found = rows.reshape(-1, fmt.block_bytes), []
    for name in ARITHMETICS:
        if not applies(name, fmt):
            continue
        expected = expected_values(fmt, blocks, kernel.output, name)
        within = not expected.wrong(values).any()
        finite = np.isfinite(values) & np.isfinite(expected.values)
        a, b = (v[finite].astype(np.float64) for v in (values, expected.values))
        energy = float((b * b).sum())
        nmse = float(((a - b) ** 2).sum()) / energy if energy and finite.any() else float("inf")
        used = expected.utilisation(values)
        found.append(Candidate(name, float(not within) if used is None else used, 0.0, nmse, within))
    # those whose bits are determined say more
    found.sort(key=lambda c: (not c.within, c.name in BOUNDED, c.nmse))
    made = Identification(tuple(found), values.size, len([c for c in found if c.within]) > 1)
    line = () if declared in made.names else (_advice("arithmetic", declared, made.names),)
    return TaskIdentified(fmt.name, tensor.name, 1, n, k, kernel.name, declared, made, line)


def _quantizer(run: Run, kernel: Quantizer, tensor: Tensor) -> TaskIdentified:
    m, _, k = _size(kernel, unit_of(encoding(kernel.encoding)), run.options.seed)
    m = kernel.domain.m.up(max(m, _TOKENS)) or m
    x = rounded_float32(known_inputs(m, k), kernel.takes)
    try:
        got = kernel.quantize(x)
    except KernelFault as error:
        return TaskIdentified("activations", tensor.name, m, 1, k, kernel.name, kernel.encoding, None, (str(error),))
    found = []
    for name in encodings():
        if k % unit_of(encoding(name)) or encoding(name).row_bytes(k) != got.shape[1]:
            continue
        ordered = kernel.ordered and name == kernel.encoding
        checked = check_bytes(encoding(name), x, got, ordered, kernel.fast_math)
        share = checked.n_wrong / max(1, checked.blocks)
        found.append(Candidate(name, share, 0.0, share, not checked.n_wrong))
    found.sort(key=lambda c: (not c.within, c.nmse))
    made = Identification(tuple(found), got.size, len([c for c in found if c.within]) > 1)
    line = () if kernel.encoding in made.names else (_advice("activations", kernel.encoding, made.names),)
    return TaskIdentified("activations", tensor.name, m, 1, k, kernel.name, kernel.encoding, made, line)


def _advice(key: str, declared: str, names: tuple[str, ...]) -> str:
    """What to declare."""
    if not names:
        return f"gives what no known {key} gives (declared: {declared})"
    return f'gives {key} = "{names[0]}", not "{declared}" as declared: declare it, or mend the kernel'
