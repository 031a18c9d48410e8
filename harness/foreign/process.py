"""The parent's side of a foreign kernel: it runs in a process of its own, and whatever it does there ends in one line.

A fault is a KernelFault, which rungs record; the process is then started again, so that what one call broke does not
reach the next. Nothing that the process says is trusted: sizes are checked, and outputs are judged like any other.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import re
import select
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from ..container import printable
from ..errors import EnvironmentFault, KernelFault, UsageError
from ..formats import BlockFormat, ElementFormat, WeightFormat
from ..hosts import CpuHost, Host
from ..kernels import ELEMENT_KERNELS, Kernel
from ..multiplier import Multiplier, Weights
from ..processes import ChildProcess, Spawned, signal_name
from ..reference import protocol
from ..semantics import SEMANTICS
from .api import Declaration, strings
from .child import PythonRunner, serve
from .cuda import CudaSource

#: Seconds for a call, if nobody says otherwise.
TIME_LIMIT = 60.0
#: Calls that ran into the time limit after which the kernel is not called again: a run must come to its end.
_MOST_HANGS = 3
_MOST_MESSAGE = 1 << 14
_FILE = re.compile(r"(?s)(.*\.(py|cu)):([^:/]+)")
#: Seconds in which a C++ compiler or NVRTC must be done with a kernel, for all of its types.
_COMPILE_LIMIT = 600.0
#: Seconds in which a kernel in Python must be imported, at least: with PyTorch that takes more than many a call.
START_LIMIT = 60.0


def names_foreign(kernel: str) -> bool:
    """Whether this is to be FILE.py:NAME or FILE.cu:SYMBOL, not the name of a shipped kernel."""
    return re.search(r"\.(py|cu)(:|$)", kernel) is not None


class Source(ABC):
    """Where a kernel comes from: how its process is started."""

    name: str
    #: Seconds for its first word; more where a call may take more.
    start_limit: float = START_LIMIT

    @abstractmethod
    def start(self, verbose: bool, stall: float) -> ChildProcess:
        """Start it; the arguments are those of `ChildProcess`."""

    def close(self) -> None:  # noqa: B027 - most leave nothing
        """Leave nothing behind, once it will not be started again."""


class _File(Source):
    """A file, run by a fresh Python.

    Args:
        asked: the first message to it.
        start_limit: seconds for its first word, where no call may take longer.
        close: called when it will not be started again.
    """

    def __init__(
        self,
        name: str,
        asked: dict[str, Any],
        start_limit: float | None = None,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        self.name, self._asked, self._close = name, asked, close
        self.start_limit = START_LIMIT if start_limit is None else start_limit

    def close(self) -> None:
        self._close()

    def start(self, verbose: bool, stall: float) -> ChildProcess:
        process = Spawned("harness.foreign", verbose=verbose, stall=stall)
        with contextlib.suppress(OSError):
            process.link.send_bytes(json.dumps(self._asked).encode())
        return process


class _Object(Source):
    """An object of this process, in a copy of it. A kernel that uses CUDA must be given as a file: CUDA's state does
    not survive a fork."""

    def __init__(self, kernel: Any) -> None:
        self.name = printable(str(getattr(kernel, "__name__", type(kernel).__name__)), 64)
        self._kernel = kernel

    def start(self, verbose: bool, stall: float) -> ChildProcess:
        return _Forked(lambda link: serve(link, lambda: PythonRunner(self._kernel)), verbose, stall)


class _Forked(ChildProcess):
    """A copy of this process that runs a function of its end of the socket."""

    def __init__(self, run: Callable[[Connection], None], verbose: bool, stall: float) -> None:
        self._run = run
        super().__init__(verbose, stall)

    def _start(self, theirs: socket.socket) -> None:
        output = None if self.log is None else self.log.fileno()

        def child() -> None:
            self._ours.close()
            if output is not None:
                os.dup2(output, 1)
                os.dup2(output, 2)
            self._run(Connection(theirs.detach()))

        self._process = multiprocessing.get_context("fork").Process(target=child, daemon=True)
        self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def kill(self) -> None:
        self._process.kill()

    def wait(self, seconds: float | None = None) -> int | None:
        self._process.join(seconds)
        return self._process.exitcode


class ForeignKernel(Multiplier):
    """Somebody else's kernel, in its process.

    Args:
        source: what it is.
        host: where the matrices of types that are not quantized are multiplied, by a shipped kernel.
        time_limit: seconds for a call (which runs the kernel twice), and for loading a matrix.
        verbose: let what the kernel prints through to standard error.

    Raises UsageError where there is no such kernel or it does not declare what it must; EnvironmentFault.
    """

    def __init__(self, source: Source, host: Host, time_limit: float = TIME_LIMIT, verbose: bool = False) -> None:
        self.host = host
        self._source, self._time_limit = source, time_limit
        self._verbose = verbose
        self._process: ChildProcess | None = None
        self._held: Weights | None = None
        self._hangs = 0
        try:
            self.declaration = self._start()
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
    def semantics(self) -> str:
        return self.declaration.semantics

    @property
    def ordered(self) -> int:
        return self.declaration.ordered

    def describe(self) -> str:
        return f"a process of its own, {self._time_limit:g} s a call, each call run twice; {self.host.describe()}"

    def of(self, fmt: WeightFormat, m: int, n: int, k: int) -> Multiplier:
        return self if isinstance(fmt, BlockFormat) else Kernel(ELEMENT_KERNELS[fmt.name], self.host)

    def covers(self, fmt: WeightFormat) -> bool:
        return isinstance(fmt, ElementFormat) or fmt.name in self.declaration.formats

    def quantize(self, x: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
        """By the harness's encoder: the kernel is given what its semantics says that it takes."""
        return SEMANTICS[self.semantics].bytes_of(x)

    def upload(self, fmt: WeightFormat, rows: npt.NDArray[np.uint8]) -> Weights:
        if not self.covers(fmt):
            raise UsageError(f"kernel {self.name} does not cover type {fmt.name}")
        return Weights(fmt, len(rows), rows.shape[1] // fmt.block_bytes * fmt.block_size, rows)

    def product(self, weights: Weights, x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        return self.gemm(weights, self.quantize(x))

    def gemm(self, weights: Weights, x: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        if self._process is None:
            if self._hangs >= _MOST_HANGS:
                raise KernelFault(f"the kernel was not run: it ran into the time limit {_MOST_HANGS} times before")
            try:
                self._start()
            except (UsageError, EnvironmentFault) as error:
                raise KernelFault(f"the kernel could not be started again: {error}") from None
        if self._held is not weights:
            self._held = None
            self._ask({"load": weights.fmt.name, "n": weights.n, "k": weights.k}, weights.buffer)
            self._held = weights
        self._ask({"m": len(x)}, x)
        y = np.empty((len(x), weights.n), np.float32)
        try:
            if self._link.recv_bytes_into(y.reshape(-1).view(np.uint8).data) != y.nbytes:
                self._garbage()
        except multiprocessing.ProcessError:
            self._garbage()
        except (EOFError, OSError):
            self._dead()
        return y

    def close(self) -> None:
        """End the process."""
        self._stop()
        self._source.close()

    # ---- the process ------------------------------------------------------------------------------------------------

    @property
    def _link(self) -> Connection:
        assert self._process is not None
        return self._process.link

    def _start(self) -> Declaration:
        """Start it and hear what it declares. Raises UsageError, EnvironmentFault, KernelFault."""
        # a side that stops in the middle of a message must not hold up the other
        self._process = self._source.start(self._verbose, max(self._time_limit, 1.0))
        said = self._hear(max(self._source.start_limit, self._time_limit), "start")
        try:
            if "environment" in said:
                raise EnvironmentFault(f"kernel {self.name}: {printable(str(said['environment']), 600)}")
            if "usage" in said:
                raise UsageError(f"kernel {self.name}: {printable(str(said['usage']), 600)}")
            return Declaration(strings(said.get("formats"), "formats"), str(said["semantics"]), said["ordered"] is True)
        except KeyError:
            self._garbage()
        except BaseException:
            self._stop()
            raise

    def _ask(self, header: dict[str, Any], array: npt.NDArray[np.uint8]) -> None:
        """Send a request and hear that it was done. Raises KernelFault."""
        try:
            protocol.send(self._link, header, array)
        except OSError:
            self._dead()
        said = self._hear(self._time_limit, "call")
        if "fault" in said:
            self._stop()
            raise KernelFault(printable(str(said["fault"]), 600))
        if said.get("ok") is not True:
            self._garbage()

    def _hear(self, seconds: float, what: str) -> dict[str, Any]:
        """One message. Raises KernelFault where there is none in time or it is none of ours."""
        ready = select.poll()
        ready.register(self._link.fileno(), select.POLLIN)
        if not ready.poll(1000 * seconds):
            self._hangs += 1
            self._stop()
            raise KernelFault(f"the kernel did not {'return' if what == 'call' else 'start'} within {seconds:g} s")
        try:
            said = json.loads(self._link.recv_bytes(_MOST_MESSAGE))
        except (EOFError, OSError):
            self._dead()
        except ValueError:
            self._garbage()
        if not isinstance(said, dict):
            self._garbage()
        return said

    def _garbage(self) -> NoReturn:
        self._stop()
        raise KernelFault("the kernel's process answered what is no answer")

    def _dead(self) -> NoReturn:
        """Say how it ended."""
        assert self._process is not None
        code = self._process.wait(2.0)
        how = "its process stopped answering"
        if code is not None:
            died = signal_name(code)
            how = f"its process died of {died}" if died else f"its process ended with exit code {code}"
        lines = self._process.last_lines(4096)
        said = f"; it said: {printable(lines[-1], 200)}" if lines else ""
        self._stop()
        raise KernelFault(f"the kernel crashed: {how}{said}")

    def _stop(self) -> None:
        process, self._process, self._held = self._process, None, None
        if process is not None:
            process.close(60.0)


def open_kernel(kernel: Any, host: Host, time_limit: float = TIME_LIMIT, verbose: bool = False) -> ForeignKernel:
    """A foreign kernel: FILE.py:NAME, FILE.cu:SYMBOL, or a function or callable object that declares what it is.

    Args:
        host: where CUDA C++ runs, and the shipped kernels of types that are not quantized.
        time_limit, verbose: as `ForeignKernel`.

    Raises UsageError where there is none such, it declares nothing sensible or does not compile; EnvironmentFault.
    """
    if not isinstance(kernel, str):
        return ForeignKernel(_Object(kernel), host, time_limit, verbose)
    found = _FILE.fullmatch(kernel)
    if found is None:
        raise UsageError(f"kernel {printable(kernel, 200)} is neither FILE.py:NAME nor FILE.cu:SYMBOL")
    path, name = Path(found[1]), found[3]
    shown = printable(f"{path.name}:{name}", 100)
    if not path.is_file():
        raise UsageError(f"kernel {shown}: {printable(str(path), 200)} is no file")
    if found[2] == "py":
        source = _File(shown, {"path": os.path.abspath(path), "name": name})
        return ForeignKernel(source, host, time_limit, verbose)
    try:
        cuda = CudaSource(path, name)
    except UsageError as error:
        raise UsageError(f"kernel {shown}: {printable(str(error), 600)}") from None
    threads = host.threads if isinstance(host, CpuHost) else 0
    asked = {"root": str(cuda.root), "name": name, "declared": cuda.declared, "host": host.name, "threads": threads}
    try:
        return ForeignKernel(_File(shown, asked, _COMPILE_LIMIT, cuda.close), host, time_limit, verbose)
    except BaseException:
        cuda.close()
        raise
