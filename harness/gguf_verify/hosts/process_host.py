"""A host whose kernels run in a separate process, so that a crash or a hang becomes one line of a report.

Its sources are compiled there, and buffers live there. Uploads are copied once, into memory that both processes map; so
are downloads. After a crash the next call gets a fresh process. Uploads are then repeated; results of kernels are lost,
and calls that need them fail.
"""

from __future__ import annotations

import itertools
import math
import os
import re
import select
import signal
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

import msgspec
import numpy as np
import numpy.typing as npt

from ..processes.child import Spawned
from ..results.environment import HostInfo
from ..support import protocol
from ..support.errors import EnvironmentFault, FindingKind, KernelFault, KernelFinding, NotRun
from ..support.records import record
from ..support.text import printable
from .base import Artefact, Blocks, Grid, Host, Placed, Sparse, Written
from .compilation import Compilation, ForeignUnit
from .process_child import SHARED_FROM, UNANSWERED, Bytes, receive_bytes, send_bytes, send_shared, shared_memory
from .schedule import Schedule

#: The last line of a process that lacked memory or threads: of the emulator, and of C++'s library.
_LIMIT = re.compile(r"cuda_on_cpu: no memory for .+|what\(\):\s+(std::bad_alloc|Resource temporarily unavailable)")

#: Seconds for anything but a launch, which includes compilation and the start of Python.
_PATIENCE = 600.0
#: After this many launches that exceeded the time limit, no more launches are made, so that the run ends.
_MOST_HANGS = 3
#: A launch has the time limit for each such number of products that its operands can have. (The slowest of the emulated
#: kernels makes some 6e7 a second on one core.)
_PRODUCTS = 1e9


class _Said(msgspec.Struct):
    """An answer: a result, or a fault in one line.

    A kernel may have overwritten the process's memory, so the answer is validated before any use.
    """

    ok: bool | Annotated[int, msgspec.Meta(ge=0, le=1 << 62)] | None = None
    kernel: str | None = None
    finding: FindingKind | None = None
    not_run: bool = False
    environment: str | None = None


class _Held:
    """An object that the process holds under a number: a kernel or a buffer.

    Args:
        request: makes it, and makes it again in a fresh process; None if that is impossible.
        source: the bytes of an upload; `handle` is their shared memory, if they are many.
    """

    def __init__(self, number: int, request: dict[str, Any] | None, nbytes: int = 0) -> None:
        self.number, self.request, self.nbytes = number, request, nbytes
        self.source: Bytes | None = None
        self.handle: int | None = None
        self.process: Spawned | None = None


def _given(argument: Any) -> list[Any]:
    """Return an argument of a launch in the form of `process_child.Server`."""
    if isinstance(argument, Sparse):
        number = None if argument.content is None else argument.content.number
        return ["sparse", argument.nbytes, number, argument.what, argument.role]
    if isinstance(argument, _Held):
        return ["buffer", argument.number]
    return [np.asarray(argument).dtype.str, np.asarray(argument).item()]


class ProcessHost(Host):
    """A host in a separate process.

    Args:
        inner: a host of the same kind in this process.
        time_limit: seconds for a launch of up to `_PRODUCTS` products; longer for more.
    """

    def __init__(self, inner: Host, time_limit: float) -> None:
        self.name, self.sm, self.threads, self.chosen = inner.name, inner.sm, inner.threads, inner.chosen
        self._inner, self._time_limit = inner, time_limit
        self._numbers = itertools.count(1)
        self._free: list[int] = []
        self._kernels: dict[tuple[Any, ...], _Held] = {}
        self._asking = threading.RLock()
        self._hangs = 0
        self._process: Spawned | None = self._start()  # it loads its modules while the caller opens a model

    def _start(self) -> Spawned:
        return Spawned(*self._command())

    def _command(self) -> tuple[str, ...]:
        """Return the module that the process runs, and its arguments."""
        fill = "" if self.fill is None else str(self.fill)
        return "gguf_verify.hosts", self.name, str(self.threads or 0), self.placement, fill

    @property
    def pid(self) -> int | None:
        """The id of the process that the next call uses, if it was started."""
        return None if self._process is None else self._process.pid

    def close(self) -> None:
        """End the process; a later call starts another one."""
        process, self._process = self._process, None
        if process is not None:
            process.close(60.0)

    # ---- the host ----------------------------------------------------------------------------------------------------

    def check(self) -> None:
        self._inner.check()

    def info(self) -> HostInfo:
        return self._inner.info()

    def offers(self, schedule: Schedule) -> bool:
        return self._inner.offers(schedule)

    def scheduled(self, schedule: Schedule) -> Host:
        """Return the scheduled host in this process: each scheduled launch ends at its first bad access."""
        return self._inner.scheduled(schedule)

    def check_fault(self) -> str | None:
        return self._inner.check_fault()

    def load(self, root: Path, file: str, entry: str, defines: dict[str, str], target: str | None = None) -> _Held:
        kernel = [str(root), file, entry, defines, target]
        return self._loaded((root, file, entry, target, *sorted(defines.items())), {"ask": "load", "kernel": kernel})

    def build_all(self, unit: ForeignUnit, schedule: Schedule | None = None) -> tuple[dict[str, Artefact], Compilation]:
        """Build in this process, since nothing is loaded."""
        return self._inner.build_all(unit, schedule)

    def load_placed(self, placed: Placed) -> _Held:
        request = {"ask": "load_placed", "entry": placed.entry, "parts": placed.parts}
        return self._loaded((placed.entry, *sorted(placed.parts.items())), request)

    def _loaded(self, key: tuple[Any, ...], request: dict[str, Any]) -> _Held:
        held = self._kernels.get(key)
        if held is None:
            held = self._kernels[key] = _Held(next(self._numbers), request)
        with self._asking:
            self._there(held)
        return held

    def upload(self, array: npt.NDArray[Any], what: str = "input") -> _Held:
        raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        held = self._new({"ask": "upload"}, raw.nbytes)
        if raw.nbytes < SHARED_FROM:
            held.source = raw.copy()
        else:
            held.handle, shared = shared_memory(raw.nbytes)
            weakref.finalize(held, os.close, held.handle)
            shared[:] = raw
        with self._asking:
            self._there(held)
        return held

    def output(self, nbytes: int, what: str = "output") -> _Held:
        held = self._new({"ask": "output", "nbytes": nbytes}, nbytes)
        with self._asking:
            self._there(held)
            held.request = None  # the writes of kernels cannot be repeated
        return held

    def begin(self, output: _Held, content: npt.NDArray[np.uint8]) -> None:
        with self._asking:
            self._there(output)
            self._ask({"ask": "begin", "id": output.number}, np.ascontiguousarray(content))

    def contents(self, buffer: _Held) -> npt.NDArray[np.uint8]:
        return self._bytes_of("contents", buffer)

    def download(self, output: _Held) -> npt.NDArray[np.uint8]:
        return self._bytes_of("download", output)

    def _read(self, output: Any) -> npt.NDArray[np.uint8]:
        raise NotImplementedError("the process checks the guards itself")

    def launch(
        self, kernel: _Held, grid: Grid, block: Grid, args: Sequence[Any], shared: int = 0, overlaps: bool = False
    ) -> None:
        limit = self._limit([a.nbytes for a in args if isinstance(a, _Held)])
        self._launch("launch", Blocks(kernel, grid, block, args, shared, ()), limit, overlaps=overlaps)

    @property
    def runs_alone(self) -> bool:  # type: ignore[override]
        return self._inner.runs_alone

    def launch_alone(self, launches: Sequence[Blocks]) -> Written:
        *before, last = launches
        if before:
            raise EnvironmentFault("earlier launches cannot run by single thread blocks here")
        n, made = self._launch("alone", last, self._time_limit, number=last.numbers[0])
        raw = np.zeros(0, np.uint8) if made is None else made
        if raw.nbytes != 12 * n:  # a place and a word each
            self._garbled("it says that it wrote as many words as it does not send")
        return Written(raw[: 8 * n].view(np.int64), raw[8 * n :].view(np.uint32))

    def _launch(self, ask: str, of: Blocks, limit: float, **more: Any) -> tuple[int, Bytes | None]:
        if self._hangs >= _MOST_HANGS:
            raise NotRun(f"the kernel was not run: it exceeded the time limit {_MOST_HANGS} times before")
        with self._asking:
            contents = [a.content if isinstance(a, Sparse) else a for a in of.args]
            for held in (of.kernel, *(a for a in contents if isinstance(a, _Held))):
                self._there(held)
            request = {
                "ask": ask, "kernel": of.kernel.number, "grid": of.grid, "block": of.block,
                "args": list(map(_given, of.args)), "shared": of.shared, **more,
            }  # fmt: skip
            return self._ask(request, limit=limit)

    def resident(self, kernel: _Held, threads: int, shared: int) -> int:
        with self._asking:
            self._there(kernel)
            said, _ = self._ask({"ask": "resident", "kernel": kernel.number, "threads": threads, "shared": shared})
        return said

    def _limit(self, sizes: list[int]) -> float:
        """Return the seconds for a launch.

        The number of products of [M, N] outputs and [M, K] and [N, K] operands is the root of the product of the three
        sizes.
        """
        products = math.sqrt(math.prod(float(size) for size in sorted(sizes)[-3:]))
        return self._time_limit * max(1.0, products / _PRODUCTS)

    # ---- the process -------------------------------------------------------------------------------------------------

    def _new(self, request: dict[str, Any], nbytes: int) -> _Held:
        held = _Held(next(self._numbers), request, nbytes)
        weakref.finalize(held, self._free.append, held.number)
        return held

    def _there(self, held: _Held) -> None:
        """Make an object in the process, unless the present process holds it. Raises KernelFault, EnvironmentFault."""
        if self._process is None:
            self._process = self._start()
        if held.process is self._process:
            return
        if held.request is None:
            raise KernelFault("what the kernel had computed was lost when its process ended in an earlier call")
        self._ask({**held.request, "id": held.number}, held.source, held.handle, held.nbytes)
        held.process = self._process

    def _bytes_of(self, what: str, held: _Held) -> npt.NDArray[np.uint8]:
        with self._asking:
            self._there(held)
            _, made = self._ask({"ask": what, "id": held.number})
        if made is None or made.nbytes != held.nbytes:
            self._garbled("a buffer has another size")
        return made

    def _ask(
        self,
        request: dict[str, Any],
        array: Bytes | None = None,
        handle: int | None = None,
        nbytes: int = 0,
        limit: float | None = None,
    ) -> tuple[int, Bytes | None]:
        """Send a request; return its answer, a number and bytes. Raises KernelFault, EnvironmentFault."""
        process = self._process
        assert process is not None
        freed, self._free[:] = list(self._free), []
        request = {**request, "free": freed}
        try:
            if handle is None:
                send_bytes(process.link, request, array)
            else:
                send_shared(process.link, request, handle, nbytes)
            if request["ask"] in UNANSWERED:
                return 0, None
            ready = select.poll()
            ready.register(process.link.fileno(), select.POLLIN)
            if not ready.poll(1000 * (_PATIENCE if limit is None else limit)):
                self._hung(request["ask"], _PATIENCE if limit is None else limit)
            header, made = receive_bytes(process.link)
            said = record(header, _Said)
        except protocol.ProtocolError as error:
            self._garbled(error)
        except (EOFError, OSError):
            self._dead()
        except BaseException:  # Ctrl-C: the pending answer must not be taken for that of a later request
            self.close()
            raise
        if said.kernel is not None:
            words = _shown(said.kernel)
            if said.not_run:
                raise NotRun(words)
            raise KernelFinding(said.finding, words) if said.finding else KernelFault(words)
        if said.environment is not None:
            raise EnvironmentFault(_shown(said.environment))
        if said.ok is None:
            self._garbled("neither a result nor a fault")
        return int(said.ok), made

    def _garbled(self, why: object) -> NoReturn:
        """End the process after an invalid answer. Raises KernelFault."""
        self.close()
        raise KernelFault(f"the kernel crashed: its process sent an answer that is not valid ({why})")

    def _hung(self, what: str, limit: float) -> NoReturn:
        self.close()
        if what not in ("launch", "alone"):
            raise EnvironmentFault(f"the process of the {self.name} host did not answer within {limit:g} s")
        self._hangs += 1
        raise KernelFault(f"the kernel did not end within {limit:g} s")

    def _dead(self) -> NoReturn:
        """Raise KernelFault with a description of how the process ended."""
        assert self._process is not None
        code = self._process.wait(10.0)
        lines = self._process.last_lines(4096)
        self.close()
        if code is None:
            how = "its process stopped answering"
        elif code >= 0:
            how = f"its process ended with exit code {code}"
        else:
            said = signal.strsignal(-code)
            how = f"signal {-code}" + (f" ({said.lower()})" if said else "")
        last = f"; its last line of output: {printable(lines[-1], 200)}" if lines else ""
        if lines and _LIMIT.fullmatch(lines[-1].strip()):  # a limit of the emulator, not of the kernel
            raise EnvironmentFault(f"a limit of this machine or of the process is reached: {how}{last}")
        raise KernelFault(f"the kernel crashed: {how}{last}")


def _shown(words: str) -> str:
    """Return a fault's line. Names in it were escaped by the other process."""
    return words if words.isprintable() else printable(words)
