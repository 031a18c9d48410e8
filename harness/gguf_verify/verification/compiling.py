"""Compiling ahead, beside other work, while a run begins: kernels, scanners of the bytes rung, and the steps of exact
products on a device."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial

import numpy as np
import numpy.typing as npt

from ..audit.content import compile_scanners
from ..formats.block import BlockFormat
from ..formats.tensor_types import WeightFormat
from ..gguf.file import Tensor
from ..gguf.matrices import may_be_matrix, rows_of_matrix
from ..hosts.base import Source
from ..hosts.choice import HOSTS
from ..hosts.compiler import RunnerKind, runner_object
from ..hosts.schedule import Schedule
from ..kernels.interface import Kernel
from ..kernels.shipped import ShippedKernel
from ..kernels.tasks import Task
from ..rungs.layers.call import OTHER_M
from ..rungs.plan import plan
from ..rungs.run import Run
from ..semantics.combinations import Combinations, Noise
from ..semantics.definition import Semantics
from ..semantics.device import Device
from ..semantics.order import Order
from ..semantics.result import exact_result
from ..semantics.screen import bilinear, screened
from ..support.paths import kernel_root
from ..support.threads import ahead, beside, is_over

#: Numbers of tokens beside those of the layers rung: of blocks, and of prompts.
_TOKENS = (*OTHER_M, 16, 32)
#: Rows of a column of blocks.
_ROWS = 2048
#: Rows and tokens of products whose steps are taken ahead: enough that NumPy computes a sample of them.
_STEPS = 320, 3
#: Bytes of these rows, at most: a file may claim a matrix of one row.
_MOST_STEPS = 1 << 27


def compile_ahead(run: Run) -> None:
    """Begin to compile for the shapes of the model and of the probe plan. A guess: what is missed, or is not as it was
    guessed, is compiled where it is used."""
    host = run.kernel.host
    if host.compiles_ahead:
        ahead(lambda: host.compile_ahead(_sources(run)))


def _sources(run: Run) -> Iterator[Source]:
    seen: set[tuple[WeightFormat, int, int, int]] = set()
    for problem in _problems(run):
        if problem in seen:
            continue
        seen.add(problem)
        try:
            yield from run.kernel.of(*problem).sources(*problem)
        except Exception:
            continue


def _problems(run: Run) -> Iterator[tuple[WeightFormat, int, int, int]]:
    """Type, M, N and K, in the order of the rungs."""
    shapes = _shapes(run)
    formats = list(dict.fromkeys(fmt for fmt, _, _ in shapes if fmt is not None))
    for fmt in formats:
        yield from ((fmt, m, _ROWS, fmt.unit) for m in (2, 3))
    yield from ((fmt, m, n, k) for fmt, n, k in shapes if fmt is not None for m in _TOKENS)
    for fmt in formats:
        brief = run.options.probes == "brief"
        for probe in plan(run.kernel.domain, fmt.unit, isinstance(fmt, BlockFormat), run.options.seed, brief):
            yield from ((fmt, m, probe.n, probe.k) for m in probe.tokens)


def _shapes(run: Run) -> set[tuple[WeightFormat | None, int, int]]:
    """Type, N and K of the matrices that the kernel covers."""
    chosen = [t for t in run.model.tensors.values() if run.wants(t.name) and may_be_matrix(t)]
    return {(t.type.weights, rows_of_matrix(t), t.k) for t in chosen if run.uncovered(t) is None}


@contextmanager
def _beside(work: Callable[[], object]) -> Iterator[None]:
    """In this block a thread works. A failure is reported where the result is needed."""
    with beside(work):
        yield


def scanners_ahead(run: Run) -> AbstractContextManager[None]:
    """In this block a thread compiles what the bytes rung scans with."""
    return _beside(partial(compile_scanners, run.selected()))


def runners_ahead(run: Run) -> AbstractContextManager[None]:
    """In this block a thread compiles the emulator for checked builds, and for those that note what they compare. It is
    the same for all kernels, and takes longer than a kernel."""
    fmt = next((fmt for fmt, _, _ in _shapes(run) if fmt is not None and run.kernel.is_under_test(fmt)), None)
    if fmt is None or run.options.probes == "brief":
        return nullcontext()
    kernel, kinds = run.kernel, list[RunnerKind]()
    called = kernel if isinstance(kernel, Task) else kernel.of(fmt, 1, 1, fmt.unit)
    if HOSTS[kernel.host.name].emulated and called.under(Schedule(checked=True)) is not None:
        kinds.append("checked")
    if isinstance(called, Kernel) and called.compares == "thread blocks":
        kinds.append("traced")
    return _beside(lambda: [runner_object(kernel_root(), kind) for kind in kinds])


def steps_ahead(run: Run) -> AbstractContextManager[None]:
    """In this block a thread takes the steps of exact products, once for each type of weights, where a device computes
    them: its library compiles a step when it is first taken, which can take longer than all steps of a model."""
    device, _ = run.exact_on
    return nullcontext() if device is None else _beside(partial(_take_steps, run, device))


def _take_steps(run: Run, device: Device) -> None:
    """A failure here is ignored: it occurs again, and is reported, when the step is needed."""
    first = {
        t.type.weights: t for t in reversed([*run.model.tensors.values()]) if run.wants(t.name) and may_be_matrix(t)
    }
    for fmt, tensor in first.items():
        large = _STEPS[0] * tensor.row_bytes > _MOST_STEPS
        if not isinstance(fmt, BlockFormat) or large or run.uncovered(tensor) is not None:
            continue
        with suppress(Exception):
            _take(_steps_of(run, device, fmt, tensor))


def _take(steps: Iterable[Callable[[], object]]) -> None:
    for step in steps:
        if is_over():
            return
        with suppress(Exception):
            step()


def _steps_of(run: Run, device: Device, fmt: BlockFormat, tensor: Tensor) -> Iterator[Callable[[], object]]:
    """The steps for a type of weights, with rows of a tensor of it."""
    n, m = _STEPS
    rows = np.resize(run.row_bytes(tensor)[:n], (n, tensor.row_bytes))
    x = np.random.default_rng(run.options.seed).standard_normal((m, tensor.k), np.float32)
    kernel = run.kernel.of(fmt, m, n, tensor.k)
    if isinstance(kernel, ShippedKernel) and kernel.host.compiles_ahead:  # others take one call at a time
        yield partial(kernel.upload, fmt, rows)
    definitions: list[tuple[Callable[[], Semantics], Order | None]]
    definitions = [(partial(run.semantics, fmt), kernel.order)]
    if not run.backend.learns:
        definitions.append((partial(run.backend.definition, fmt, m), None))
    for definition, order in definitions:
        semantics = definition()  # the kernel's own is there; llama.cpp's may not be known
        encoded = semantics.bytes_of(x)
        yield partial(screened, semantics, fmt, rows, encoded, order, 1, device)
        yield partial(_combine, semantics, fmt, rows, encoded, device)
        yield partial(exact_result, semantics, fmt, rows, encoded, 1, device)


def _combine(
    semantics: Semantics, fmt: BlockFormat, rows: npt.NDArray[np.uint8], x: npt.NDArray[np.uint8], device: Device
) -> None:
    if bilinear(semantics, fmt):
        made = Combinations(fmt, rows, 0, 1, device)
        ones = np.ones(len(x))
        made.suspicious(
            np.ones((len(x), len(rows)), np.float32), made.expected(semantics, x), Noise(ones, ones, math.inf)
        )
