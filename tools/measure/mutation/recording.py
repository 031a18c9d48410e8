"""The rungs' calls of a kernel, recorded once in a real verification and repeated with every mutant.

A subject is a kernel and a weight type. A real model of that type is verified with the shipped kernel, and every call
of the kernel in the blocks and layers rungs is recorded: weights, activations, output.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from gguf_verify.formats.tensor_types import WeightFormat
from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.kernels.interface import Weights
from gguf_verify.kernels.ladder import KERNELS
from gguf_verify.kernels.shipped import ELEMENT_KERNELS, ShippedKernel
from gguf_verify.results.options import Options
from gguf_verify.rungs.schedules import inputs
from gguf_verify.semantics.definition import Semantics
from gguf_verify.semantics.definitions import SEMANTICS
from gguf_verify.semantics.exact import product
from gguf_verify.semantics.gates import judge
from gguf_verify.semantics.sums import Product
from gguf_verify.support.errors import KernelFault
from gguf_verify.support.paths import kernel_root
from gguf_verify.verification import verify

from ..inputs import WEIGHTS, Bytes, Floats, decoded, model_in
from . import probes
from .units import Unit, lines_alive

_T = TypeVar("_T")
_A = TypeVar("_A", bound=npt.NDArray[Any])

#: Two matrices of the model: 128 rows of 256 values, 256 rows of 768.
TENSORS = r"^blk\.0\.(attn_k|ffn_down)\.weight$"
ELEMENTS_KERNEL = "elements"
#: The kind of a product that is compiled like for a GPU older than sm_90; the seed of the schedules.
OLDER, SEED = "older", 0


@dataclass(frozen=True)
class Subject:
    """A kernel, by its name for --kernel (or `elements`, for unquantized weights), and a weight type."""

    kernel: str
    fmt: str

    @property
    def weights(self) -> WeightFormat:
        return WEIGHTS[self.fmt]

    @property
    def definition(self) -> Semantics:
        """The definition that the kernel declares."""
        return SEMANTICS[self.fmt.lower()] if self.kernel == ELEMENTS_KERNEL else KERNELS[self.kernel].definition

    def on(self, host: CpuHost) -> ShippedKernel:
        """Return the kernel on a host."""
        spec = ELEMENT_KERNELS[self.fmt] if self.kernel == ELEMENTS_KERNEL else KERNELS[self.kernel]
        return ShippedKernel(spec, host)

    def __str__(self) -> str:
        return f"{self.kernel} {self.fmt}"


@dataclass
class Call:
    """One call of a kernel.

    Args:
        kind: product, gemm, quantize or older.
        weights: number of the matrix in `Calls.matrices`; -1 for quantize.
        x: float32[M, K], or uint8[M, row bytes] for gemm.
        y: the shipped kernel's output.
        expected: the exact product; None for a probe, and for quantize.
        values: the product of the dequantized weights and the unquantized activations.
        fair: the other checks, and whether the shipped kernel's own output passes them.
        units: the units that run in this call, and those that packed its weights. A mutant of another unit cannot
            change its output.
    """

    kind: str
    weights: int
    x: npt.NDArray[Any]
    y: npt.NDArray[Any]
    expected: Product | None = None
    values: npt.NDArray[np.float64] | None = None
    fair: dict[str, bool] = field(default_factory=dict)
    what: str = ""
    units: frozenset[Unit] = frozenset()

    @property
    def work(self) -> int:
        return int(self.y.size * self.x.shape[1])

    def passed(self, y: Floats) -> dict[str, bool]:
        """Return whether each of the other checks accepts an output."""
        assert self.expected is not None
        assert self.values is not None
        return passed_by(y, self.values, self.expected.exact)

    def caught(self, y: Floats) -> set[str]:
        """Return the fair checks among the others that reject an output."""
        return {name for name, passed in self.passed(y).items() if self.fair[name] and not passed}


@dataclass
class Calls:
    """Matrices uint8[N, row bytes] and the calls that use them."""

    matrices: list[Bytes] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)


class _WatchedHost(CpuHost):
    """A CPU host that records the units and entries that it compiles."""

    def __init__(self, threads: int) -> None:
        super().__init__(threads)
        self.units: dict[Unit, set[str]] = {}
        self._loaded: set[Unit] = set()

    def watched(self, f: Callable[..., _T], *args: Any) -> tuple[_T, frozenset[Unit]]:
        """Call f. Returns its result and the units that it loads."""
        self._loaded = set()
        found = f(*args)
        return found, frozenset(self._loaded)

    def load(self, root: Path, file: str, entry: str, defines: dict[str, str], target: str | None = None) -> Any:
        unit = Unit(file, tuple(defines.items()))
        self.units.setdefault(unit, set()).add(entry)
        self._loaded.add(unit)
        return super().load(root, file, entry, defines, target)


class _Recorder(ShippedKernel):
    """A shipped kernel that records its inputs and outputs."""

    def __init__(self, subject: Subject, host: _WatchedHost) -> None:
        super().__init__(subject.on(host).spec, host)
        self.fmt, self._watched = subject.weights, host.watched
        self.recorded = Calls()
        #: `id` of weights → their number, the units that packed them, and the weights, a reference that keeps the `id`
        #: unique.
        self._known: dict[int, tuple[int, frozenset[Unit], Weights]] = {}

    def of(self, fmt: WeightFormat, m: int, n: int, k: int) -> ShippedKernel:
        assert self.covers(fmt)
        return self

    def covers(self, fmt: WeightFormat) -> bool:
        return fmt.name == self.fmt.name

    def is_under_test(self, fmt: WeightFormat) -> bool:
        return True  # even for unquantized weights

    def upload(self, fmt: WeightFormat, rows: Bytes) -> Weights:
        weights, units = self._watched(super().upload, fmt, rows)
        self._known[id(weights)] = len(self.recorded.matrices), units, weights
        self.recorded.matrices.append(rows.copy())
        return weights

    def _note(self, kind: str, f: Callable[..., _A], weights: Weights | None, x: npt.NDArray[Any], what: str) -> _A:
        number, packed_by = (-1, frozenset[Unit]()) if weights is None else self._known[id(weights)][:2]
        y, units = self._watched(f, *([] if weights is None else [weights]), x)
        self.recorded.calls.append(Call(kind, number, x.copy(), y.copy(), what=what, units=units | packed_by))
        return y

    def quantize(self, x: Floats, what: str = "") -> Bytes:
        if self.semantics not in ("q8_1", "f16"):
            return super().quantize(x)
        return self._note("quantize", super().quantize, None, x, what)

    def gemm(self, weights: Weights, x: Bytes, what: str = "") -> Floats:
        if not len(x):
            return super().gemm(weights, x)
        return self._note("gemm", super().gemm, weights, x, what)

    def product(self, weights: Weights, x: Floats, what: str = "") -> Floats:
        return self._note("product", super().product, weights, x, what)

    def taken(self) -> Calls:
        """Return the calls recorded since the last time, the cheap ones first."""
        done, self.recorded = self.recorded, Calls()
        self._known.clear()
        done.calls.sort(key=lambda c: c.work)
        return done


@dataclass
class Recording:
    """All calls for the mutants of a subject.

    Args:
        rungs: the calls of the blocks and layers rungs, with the brief plan.
        scheduled: the products that the layers rung runs under other schedules.
        probes: further valid inputs that no rung uses.
        units: the units that the host compiled for them, with their entries.
        alive: for each unit, the lines of each file that remain after preprocessing.
    """

    subject: Subject
    rungs: Calls
    scheduled: Calls
    probes: Calls
    units: dict[Unit, tuple[str, ...]]
    alive: dict[Unit, dict[str, frozenset[int]]]

    def number(self, unit: Unit) -> int:
        """The index of a unit."""
        return list(self.units).index(unit)

    @property
    def under_schedules(self) -> frozenset[Unit]:
        """The units that run under other schedules."""
        return frozenset(unit for call in self.scheduled.calls for unit in call.units)


def record(subject: Subject, folder: Path) -> Recording:
    """Verify the real model with the shipped kernel and record its calls. Raises KernelFault if it fails."""
    host = _WatchedHost(1)
    kernel = _Recorder(subject, host)
    options = Options(tensor=TENSORS, threads=1, probes="brief", progress=False, seed=0)
    report = verify(model_in(subject.weights, folder), kernel, rungs=["blocks", "layers"], options=options)
    if report.exit_code:
        problems = [f.what for r in report.rungs for f in r.failures] + [str(r.fault) for r in report.rungs if r.fault]
        raise KernelFault(f"{subject}: the shipped kernel is not verified: {report.verdict}; {problems[:2]}")
    asked = kernel.taken()
    _add_expected(kernel, asked)
    _schedule(kernel, subject, host, asked)
    scheduled = kernel.taken()
    _probe(kernel)
    units = {unit: tuple(sorted(entries)) for unit, entries in host.units.items()}
    alive = {unit: lines_alive(kernel_root(), unit, entries) for unit, entries in units.items()}
    return Recording(subject, asked, scheduled, kernel.taken(), units, alive)


def _add_expected(kernel: _Recorder, calls: Calls) -> None:
    """Compute the expected output of each call, and the other checks that are fair for it."""
    semantics = kernel.definition
    dense = [decoded(kernel.fmt, rows).astype(np.float64) for rows in calls.matrices]
    for call in calls.calls:
        if call.kind == "quantize":
            continue
        own = call.kind == "product"
        x = semantics.bytes_of(call.x) if own else call.x
        call.expected = product(semantics, kernel.fmt, calls.matrices[call.weights], x, kernel.order if own else None)
        if own:
            values = call.x
        elif semantics.activations is None:
            values = semantics.values_of(np.ascontiguousarray(call.x))
        else:
            values = decoded(semantics.activations, call.x)
        call.values = values.astype(np.float64) @ dense[call.weights].T
        assert judge(call.y, call.expected).passed
        call.fair = call.passed(call.y)


def _schedule(kernel: _Recorder, subject: Subject, host: _WatchedHost, asked: Calls) -> None:
    """Make the calls that the layers rung runs under other schedules."""
    older = ShippedKernel(kernel.spec, host, older=True)
    first = next(call for call in asked.calls if call.kind == "product")
    for rows, x in inputs(subject.weights, asked.matrices[first.weights], first.x, SEED):
        kernel.product(kernel.upload(subject.weights, rows), x)
        kernel.recorded.calls.append(replace(kernel.recorded.calls[-1], kind=OLDER))
        kernel.recorded.calls[-1].units = host.watched(
            lambda: older.product(older.upload(subject.weights, rows), x)  # noqa: B023 - it is called at once
        )[1]


def _probe(kernel: _Recorder) -> None:
    """Make the calls of the probes."""
    rng = np.random.default_rng(11)
    fmt = kernel.fmt
    for m, n, k in probes.shapes(fmt):
        weights = kernel.upload(fmt, probes.weights(rng, fmt, n, k))
        x = probes.values(rng, m, k)
        what = f"M={m} N={n} K={k}"
        kernel.product(weights, x, what)
        if kernel.semantics == "q8_1":
            kernel.gemm(weights, probes.q8_1_blocks(rng, m, k), what)
            kernel.quantize(x, f"M={m} K={k}")
    if kernel.semantics == "q8_1":
        for what, x in probes.for_the_quantizer(rng):
            kernel.quantize(x, what)


# ---- other checks ----------------------------------------------------------------------------------------------------
# The checks that gguf-verify is compared with: the usual tests of kernels, on the same outputs.


NMSE_LIMIT, CLOSE_RTOL, CLOSE_ATOL, COSINE_LIMIT = 5e-4, 1e-2, 1e-2, 0.98


def nmse(y: npt.NDArray[Any], o: npt.NDArray[Any]) -> float:
    """Σ(y - o)² / Σ o², as in llama.cpp's test-backend-ops."""
    energy = float((o**2).sum())
    return float(((y - o) ** 2).sum()) / energy if energy else float("inf") if (y != o).any() else 0.0


def cosine(y: npt.NDArray[Any], o: npt.NDArray[Any]) -> float:
    """The cosine between whole outputs as vectors."""
    norm = float(np.linalg.norm(y)) * float(np.linalg.norm(o))
    return float((y * o).sum()) / norm if norm else float(not y.any() and not o.any())


def passed_by(y: Floats, values: npt.NDArray[np.float64], definition: npt.NDArray[np.float64]) -> dict[str, bool]:
    """Return whether each of OTHER_CHECKS accepts an output float32[M, N].

    Args:
        values: the product of the dequantized weights and the unquantized activations.
        definition: the exact product of the kernel's declared definition.
    """
    wide = y.astype(np.float64)
    passed = {}
    with np.errstate(all="ignore"):
        for against, o in (("values", values), ("definition", definition)):
            passed[f"nmse {against}"] = nmse(wide, o) <= NMSE_LIMIT
            passed[f"allclose {against}"] = bool(np.allclose(wide, o, rtol=CLOSE_RTOL, atol=CLOSE_ATOL))
            passed[f"cosine {against}"] = cosine(wide, o) >= COSINE_LIMIT
    return passed
