"""The parent's side of a foreign kernel, which runs in a process of its own.

Whatever the kernel does there becomes a KernelFault of one line, which rungs record. Nothing that the process sends is
trusted: sizes are checked, and outputs are judged like any other. Where the kernel is judged by its author's oracle,
the oracle runs in a second process.
"""

from __future__ import annotations

import copy
import hashlib
import os
import platform
import re
from collections.abc import Iterator
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from ...formats import BlockFormat, ElementFormat, WeightFormat
from ...gguf import printable
from ...hosts import Host
from ...hosts.base import MOST_ALONE, Written
from ...hosts.schedule import Schedule
from ...processes.sandbox import Sandbox
from ...results import HostInfo
from ...semantics import ASCENDING, F32, OWN, SEMANTICS, Order, Semantics, by_oracle, quantized_inside
from ...semantics.exact import exact_weights
from ...support.errors import KernelFault, OracleFault, UsageError
from ..domain import Domain, Extent, domain_of
from ..interface import Kernel, Weights
from ..launches import Launched, SparseProduct
from ..operands import fitting, whole_blocks, whole_rows
from ..shipped import element_kernel
from .api import FLOAT32, Declaration, strings
from .child import MOST_UNSET, Fault
from .conversation import Conversation
from .cuda import CudaDeclaration, CudaSource
from .sources import File, Object, Source

Doubles = npt.NDArray[np.float64]

#: Seconds for a call, by default.
TIME_LIMIT = 60.0
_FILE = re.compile(r"(?s)(.*\.(py|cu)):([^:/]+)")
#: Seconds for the C++ compiler or NVRTC to compile a kernel for all of its types.
_COMPILE_LIMIT = 600.0


def names_foreign(kernel: str) -> bool:
    """Whether this means FILE.py:NAME or FILE.cu:SYMBOL, not a shipped kernel."""
    return re.search(r"\.(py|cu)(:|$)", kernel) is not None


class ForeignOracle:
    """The oracle of a kernel's author, in a process of its own: a `semantics.Oracle`.

    Args:
        takes: the definition whose activations the kernel takes.
    """

    def __init__(self, source: Source, takes: Semantics, time_limit: float, verbose: bool) -> None:
        self._takes = takes
        self._conversation = Conversation(
            "the kernel's oracle", source.name,
            lambda: source.start(verbose, max(time_limit, 1.0), oracle=True), time_limit, source.start_limit,
            OracleFault,
        )  # fmt: skip
        self._last: dict[str, tuple[bytes, Doubles]] = {}
        try:
            #: The functions that it gives.
            self.gives = strings(self._conversation.begin().get("gives"), "the names of its functions")
        except KernelFault as error:
            raise UsageError(f"kernel {source.name}: {error}") from None
        except BaseException:
            self._conversation.stop()
            raise

    def weights(self, fmt: BlockFormat, rows: npt.NDArray[np.uint8]) -> Doubles:
        """float64[n, L]. Raises KernelFault."""
        k = rows.shape[1] // fmt.block_bytes * fmt.block_size
        if "weights" not in self.gives:
            return exact_weights(fmt, rows.reshape(len(rows), -1, fmt.block_bytes)).reshape(len(rows), k)
        return self._asked({"weights": fmt.name}, rows, k)

    def activations(self, x: npt.NDArray[np.uint8]) -> Doubles:
        """float64[M, L]. Raises KernelFault."""
        fmt = self._takes.activations
        if "activations" not in self.gives:
            if fmt is None:
                return np.ascontiguousarray(x).view(np.float32).astype(np.float64)
            return exact_weights(fmt, x.reshape(len(x), -1, fmt.block_bytes)).reshape(len(x), -1)
        k = x.shape[1] // 4 if fmt is None else x.shape[1] // fmt.block_bytes * fmt.block_size
        return self._asked({"activations": fmt is None}, x, k)

    def _asked(self, header: dict[str, Any], given: npt.NDArray[np.uint8], k: int) -> Doubles:
        """Ask a function. Its last answer is kept, since products of one matrix follow each other."""
        what = next(iter(header))
        given = np.ascontiguousarray(given)
        key = hashlib.sha256(f"{header}{given.shape}".encode() + given.tobytes()).digest()
        if what in self._last and self._last[what][0] == key:
            return self._last[what][1]
        self._conversation.ready()
        said = self._conversation.ask(header, given)
        columns = said.get("columns")
        if type(columns) is not int or not k <= columns <= 2 * k:
            self._conversation.garbage()
        out = np.empty((len(given), columns), np.float64)
        self._conversation.receive(out)
        if not np.isfinite(out).all():
            self._conversation.garbage()
        self._last[what] = key, out
        return out

    def close(self) -> None:
        """End the process."""
        self._conversation.stop()


class ForeignKernel(Kernel):
    """A kernel that is not this project's, in a process of its own.

    Args:
        source: where it comes from.
        host: where shipped kernels multiply the matrices whose types are not quantized.
        time_limit: seconds for a call (which runs the kernel twice), and for loading a matrix.
        verbose: what the kernel prints goes to standard error.
        cuda: what a kernel in CUDA C++ declares.

    Raises UsageError where there is no such kernel or it does not declare what it must; EnvironmentFault.
    """

    def __init__(
        self, source: Source, host: Host, time_limit: float = TIME_LIMIT, verbose: bool = False,
        cuda: CudaDeclaration | None = None,
    ) -> None:  # fmt: skip
        self.host = host
        self._source, self._time_limit = source, time_limit
        #: What a file in CUDA C++ declares.
        self._cuda = cuda
        #: The sparse product whose contents the process holds.
        self._sparse: SparseProduct | None = None
        #: What the process holds, for this kernel under any schedule.
        self._held: list[Weights] = []
        self._schedule: dict[str, Any] | None = None
        self._oracle: ForeignOracle | None = None
        # a side that stops in the middle of a message must not hold up the other
        self._conversation = Conversation(
            "the kernel", source.name, lambda: source.start(verbose, max(time_limit, 1.0)), time_limit,
            source.start_limit,
        )  # fmt: skip
        try:
            self.declaration = _declared(self._conversation)
            if self.declaration.semantics == OWN:
                self._oracle = ForeignOracle(source, self._takes, time_limit, verbose)
        except KernelFault as error:
            self.close()
            raise UsageError(f"kernel {source.name} cannot be started: {error}") from None
        except BaseException:
            self.close()
            raise

    @property
    def name(self) -> str:
        return self._source.name

    @property
    def sandbox(self) -> Sandbox:
        return self._source.sandbox

    @property
    def semantics(self) -> str:
        return self.declaration.semantics

    @property
    def _takes(self) -> Semantics:
        """The definition whose activations it takes."""
        return F32 if self.declaration.given == FLOAT32 else SEMANTICS[self.declaration.given]

    @cached_property
    def definition(self) -> Semantics:
        if self._oracle is not None:
            return by_oracle(self._oracle, self._takes)
        declared = SEMANTICS[self.semantics]
        as_declared = declared.activations is None or self.declaration.given == self.semantics
        return declared if as_declared else quantized_inside(declared)

    @property
    def judged_by(self) -> str | None:
        if self.definition.inside is not None:
            return f"{self.semantics} of the float32 activations that it takes, quantized by IEEE arithmetic"
        if self._oracle is None:
            return None
        own = ", ".join(self._oracle.gives) or "nothing: the exact product"
        return f"an oracle of its author (its own: {own})"

    @property
    def domain(self) -> Domain:
        return self.declaration.domain

    @property
    def order(self) -> Order | None:
        return ASCENDING if self.declaration.ordered else None

    def runs_on(self) -> HostInfo:
        if self._source.on_host:
            return msgspec.structs.replace(self.host.info(), own_process=True)
        python = f"python {platform.python_version()}"
        return HostInfo(name="", device=python, own_process=True, chosen="by the kernel")

    def of(self, fmt: WeightFormat, m: int, n: int, k: int) -> Kernel:
        return self if isinstance(fmt, BlockFormat) else element_kernel(fmt, self.host)

    def covers(self, fmt: WeightFormat) -> bool:
        return isinstance(fmt, ElementFormat) or fmt.name in self.declaration.formats

    def under(self, schedule: Schedule) -> ForeignKernel | None:
        if not self._source.on_host or self.host.under(schedule) is None:
            return None
        scheduled = copy.copy(self)  # which shares the process
        scheduled._schedule = asdict(schedule)
        return scheduled

    def launches(self, fmt: WeightFormat, m: int, n: int, k: int) -> tuple[Launched, ...] | None:
        if self._cuda is None:
            return None
        try:
            return (self._cuda.launched(m, n, k),)
        except Fault as error:
            raise KernelFault(str(error)) from None

    def only_launch(self, fmt: WeightFormat, m: int, n: int, k: int) -> Launched | str:
        launched = self.launches(fmt, m, n, k)
        if launched is None:
            return super().only_launch(fmt, m, n, k)
        return launched[0] if self.host.runs_alone else f"the {self.host.name} host cannot run single thread blocks"

    def alone(self, product: SparseProduct, number: int) -> Written:
        if not self._conversation.ready() or self._sparse is not product:
            contents = np.concatenate([product.weights, product.x])
            self._conversation.ask({"contents": len(product.weights)}, contents)
            self._sparse = product
        shape = [product.m, product.n, product.k]
        asked = {"alone": number, "type": product.fmt.name, "shape": shape, "sizes": product.sizes}
        n = self._conversation.ask(asked, np.zeros(0, np.uint8)).get("written")
        if type(n) is not int or not 0 <= n <= MOST_ALONE // 4:
            self._conversation.garbage()
        raw = np.empty(12 * n, np.uint8)
        self._conversation.receive(raw)
        written = Written(raw[: 8 * n].view(np.int64), raw[8 * n :].view(np.uint32))
        if (np.diff(written.at) <= 0).any() or (n and not 0 <= written.at[0] <= written.at[-1] < product.m * product.n):
            self._conversation.garbage()
        return written

    def quantize(self, x: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
        """By this project's encoder: the kernel is given the activations that it declares to take."""
        whole_blocks(x, self._takes.activations)
        return self._takes.bytes_of(x)

    def upload(self, fmt: WeightFormat, rows: npt.NDArray[np.uint8]) -> Weights:
        if not self.covers(fmt):
            raise UsageError(f"kernel {self.name} does not cover type {fmt.name}")
        whole_rows(rows, fmt)
        return Weights(fmt, len(rows), rows.shape[1] // fmt.block_bytes * fmt.block_size, rows)

    def product(self, weights: Weights, x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        fitting(x, weights, self._takes.activations, quantized=False)
        return self.gemm(weights, self.quantize(x))

    def gemm(self, weights: Weights, x: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        """Inside its domain alone: tokens are given in calls of an allowed number, the last ones with repeated tokens;
        weights of fewer rows than it takes with repeated rows, and of fewer columns with repeated blocks that meet
        activations of zero."""
        fitting(x, weights, self._takes.activations, quantized=True)
        if not self._conversation.ready() or not (self._held and self._held[0] is weights):
            self._held.clear()
            rows = weights.buffer
            n, k = self._called_with(weights)
            if (n, k) != (weights.n, weights.k):
                width = rows.shape[1] * k // weights.k
                rows = np.take(np.tile(rows, (1, -(-k // weights.k)))[:, :width], np.arange(n) % len(rows), axis=0)
            self._conversation.ask({"load": weights.fmt.name, "n": n, "k": k}, np.ascontiguousarray(rows))
            self._held.append(weights)
        n, k = self._called_with(weights)
        y = np.empty((len(x), weights.n), np.float32)
        at = 0
        for wanted, given in self.domain.m.parts(len(x)) if len(x) else ((0, 0),):
            part = x[at + np.arange(given) % max(1, wanted)]
            if k != weights.k:
                part = np.pad(part, ((0, 0), (0, x.shape[1] * k // weights.k - x.shape[1])))
            schedule = {"schedule": self._schedule} if self._schedule else {}
            said = self._conversation.ask({"m": given, **schedule}, np.ascontiguousarray(part))
            self.adds_floats = self.adds_floats or said.get("adds_floats") is True
            unset = said.get("unset")
            told = [printable(str(place), 100) for place in unset[:MOST_UNSET]] if isinstance(unset, list) else []
            self.unset = tuple(dict.fromkeys((*self.unset, *told)))
            made = np.empty((given, n), np.float32)
            self._conversation.receive(made)
            y[at : at + wanted] = made[:wanted, : weights.n]
            at += wanted
        return y

    def _called_with(self, weights: Weights) -> tuple[int, int]:
        """Rows and columns of a call for such weights: their own, or the next ones that its domain holds."""
        unit = Extent(multiple=weights.fmt.unit)
        k = next((k for k in _multiples(self.domain.k, weights.k) if k in unit), None)
        n = self.domain.n.up(weights.n)
        if k is None or n is None:
            raise KernelFault(f"no call of {weights.n} rows and {weights.k} columns is in its domain")
        return n, k

    def close(self) -> None:
        """End its processes."""
        self._conversation.stop()
        if self._oracle is not None:
            self._oracle.close()
        self._source.close()


def _multiples(extent: Extent, value: int) -> Iterator[int]:
    """The values of an extent from `value` on, as many as decide whether one is a multiple of a superblock."""
    found = extent.up(value)
    for _ in range(1 << 8):
        if found is None:
            return
        yield found
        found = extent.up(found + 1)


def _declared(conversation: Conversation) -> Declaration:
    """Start the process; returns what the kernel declares. Raises UsageError, EnvironmentFault, KernelFault."""
    said = conversation.begin()
    try:
        formats = strings(said.get("formats"), "formats")
        return Declaration(
            formats,
            str(said["semantics"]),
            said["ordered"] is True,
            takes=str(said["takes"]),
            domain=domain_of(said["domain"]),
        )
    except KeyError:
        conversation.garbage()


def open_foreign(kernel: Any, host: Host, time_limit: float = TIME_LIMIT, verbose: bool = False) -> ForeignKernel:
    """A foreign kernel: FILE.py:NAME, FILE.cu:SYMBOL, or a function or callable object that declares what it is.

    Args:
        host: where CUDA C++ runs, and the shipped kernels of types that are not quantized.
        time_limit, verbose: as `ForeignKernel`.

    Raises UsageError where there is no such kernel, its declaration is not valid, or it does not compile;
    EnvironmentFault.
    """
    if not isinstance(kernel, str):
        return ForeignKernel(Object(kernel), host, time_limit, verbose)
    found = _FILE.fullmatch(kernel)
    if found is None:
        raise UsageError(f"kernel {printable(kernel, 200)} is neither FILE.py:NAME nor FILE.cu:SYMBOL")
    path, name = Path(found[1]), found[3]
    shown = printable(f"{path.name}:{name}", 100)
    if not path.is_file():
        raise UsageError(f"kernel {shown}: {printable(str(path), 200)} is not a file")
    if found[2] == "py":
        where = {"path": os.path.abspath(path), "name": name}
        return ForeignKernel(File(shown, where, {**where, "oracle": True}), host, time_limit, verbose)
    try:
        cuda = CudaSource(path, name)
    except UsageError as error:
        raise UsageError(f"kernel {shown}: {printable(str(error), 600)}") from None
    threads = host.threads or 0
    asked = {"root": str(cuda.root), "name": name, "declared": cuda.declared, "host": host.name, "threads": threads}
    oracle = {"path": os.path.abspath(cuda.oracle[0]), "name": cuda.oracle[1], "oracle": True} if cuda.oracle else {}
    try:
        return ForeignKernel(
            File(shown, asked, oracle, _COMPILE_LIMIT, cuda.close, on_host=True), host, time_limit, verbose,
            cuda.declaration,
        )  # fmt: skip
    except BaseException:
        cuda.close()
        raise
