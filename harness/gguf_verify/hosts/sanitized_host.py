"""A GPU whose launches are checked: under each tool of compute-sanitizer, and between pages without access rights.

Each of these runs in a separate process, since a finding ends CUDA in it. A tool has only reported all its findings
when its process has ended, so `settle` waits for that.

Unwritten memory holds another byte in each process. A kernel that reads it is only wrong if its outputs depend on it:
then they differ between processes. Otherwise `unset` describes the read.
"""

from __future__ import annotations

import contextlib
import itertools
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ..processes.child import Spawned
from ..results.environment import HostInfo
from ..support import scratch
from ..support.errors import KernelFault, KernelFinding
from . import compute_sanitizer, findings
from .base import Grid, Host, Placed, Placement
from .process_host import ProcessHost

#: Seconds for a launch: the tools are some hundred times slower, on tiny shapes.
_TIME_LIMIT = 120.0
_SIDES: tuple[Placement, ...] = ("before", "behind")
#: Fill bytes of the processes: NaN, zeros, and numbers of both signs, large and small. A tool that looks for unwritten
#: memory must find it unwritten, so its process fills nothing.
_FILLS = (0xFF, 0x00, 0x41, 0xBE, 0x7B, 0x9A)
_UNFILLED = "initcheck"

T = TypeVar("T")


class _Checked(ProcessHost):
    """A process that checks for one kind of faults.

    Args:
        tool: of compute-sanitizer; None: pages without access rights surround buffers.
        fill: `Host.fill` in the process.
    """

    def __init__(self, inner: Host, placement: Placement, tool: str | None, fill: int) -> None:
        self.tool, self.placement = tool, placement
        self.fill = None if tool == _UNFILLED else fill
        self._log: str | None = None
        super().__init__(inner, _TIME_LIMIT)

    def _start(self) -> Spawned:
        before: list[str] = []
        if self.tool is not None:
            log = scratch.folder(self.tool) / "log"
            log.touch()
            self._log = str(log)
            before = compute_sanitizer.command(self.tool, self._log)
        return Spawned(*self._command(), before=before)

    @property
    def words(self) -> str:
        """The conditions of a launch, in words."""
        return f"under {self.tool}" if self.tool else f"where its buffers lie {self.placement} other memory"

    def told(self, whose: Callable[[int], str | None]) -> list[findings.Found]:
        """End the process; return its tool's findings since the start.

        Raises EnvironmentFault if the tool checked nothing.
        """
        process = self._process
        if process is not None and process.alive:
            with contextlib.suppress(KernelFault):
                self._ask({"ask": "end"})
                process.wait(_TIME_LIMIT)
        self.close()
        log, self._log = self._log, None
        if log is None or self.tool is None:
            return []
        try:
            text = Path(log).read_text(errors="replace")
        finally:
            scratch.remove_folder(Path(log).parent)
        return compute_sanitizer.found_in(text, self.tool, whose)


class _Each:
    """An object that every process holds: a kernel or a buffer. `size` and `what` are a buffer's."""

    def __init__(self, held: list[Any], size: int = 0, what: str = "") -> None:
        self.held, self.size, self.what = held, size, what


class SanitizedHost(Host):
    """The checked GPU of a host. Raises KernelFinding in `settle`, or at a launch that a finding ended."""

    def __init__(self, inner: Host) -> None:
        self.name, self.sm, self.threads, self.chosen = inner.name, inner.sm, inner.threads, inner.chosen
        self._inner = inner
        self._buffers: dict[int, set[str]] = {}
        self._used = False
        #: Whether all downloads since the last `settle` were the same everywhere; None: there were none.
        self._alike: bool | None = None
        fills = itertools.cycle(_FILLS)
        self._checks = [_Checked(inner, "alone", tool, next(fills)) for tool in compute_sanitizer.TOOLS]
        self._checks += [_Checked(inner, side, None, next(fills)) for side in _SIDES]
        self._pool = ThreadPoolExecutor(len(self._checks))
        weakref.finalize(self, _close, self._checks, self._pool)

    def close(self) -> None:
        _close(self._checks, self._pool)

    def info(self) -> HostInfo:
        return self._inner.info()

    def _each(self, do: Callable[[int, _Checked], T]) -> list[T]:
        """Run in every process at once.

        Raises KernelFinding if one of them fails by a tool's finding, or the fault of the first that fails.
        """
        running = [self._pool.submit(do, i, check) for i, check in enumerate(self._checks)]
        done: list[T] = []
        failed: list[tuple[_Checked, KernelFault]] = []
        for check, future in zip(self._checks, running, strict=True):
            try:
                done.append(future.result())
            except KernelFault as error:
                failed.append((check, error))
        if failed:
            self.settle()
            first, fault = failed[0]
            raise fault if first.tool is not None else _past_a_wall(first, fault)
        return done

    def load(self, root: Path, file: str, entry: str, defines: dict[str, str], target: str | None = None) -> _Each:
        first = self._checks[0].load(root, file, entry, defines, target)  # the others find it in the cache
        return _Each([first, *(check.load(root, file, entry, defines, target) for check in self._checks[1:])])

    def load_placed(self, placed: Placed) -> _Each:
        return _Each([check.load_placed(placed) for check in self._checks])

    def upload(self, array: npt.NDArray[Any], what: str = "input") -> _Each:
        return self._buffer(self._each(lambda _, check: check.upload(array, what)), array.nbytes, what)

    def output(self, nbytes: int, what: str = "output") -> _Each:
        return self._buffer(self._each(lambda _, check: check.output(nbytes, what)), nbytes, what)

    def begin(self, output: _Each, content: npt.NDArray[np.uint8]) -> None:
        self._each(lambda i, check: check.begin(output.held[i], content))

    def _buffer(self, held: list[Any], size: int, what: str) -> _Each:
        self._buffers.setdefault(size, set()).add(what)
        return _Each(held, size, what)

    def contents(self, buffer: _Each) -> npt.NDArray[np.uint8]:
        return self._checks[-1].contents(buffer.held[-1])

    def launch(
        self, kernel: _Each, grid: Grid, block: Grid, args: Sequence[Any], shared: int = 0, overlaps: bool = False
    ) -> None:
        def start(i: int, check: _Checked) -> None:
            given = [a.held[i] if isinstance(a, _Each) else a for a in args]
            check.launch(kernel.held[i], grid, block, given, shared, overlaps)

        self._used = True
        self._each(start)

    def resident(self, kernel: _Each, threads: int, shared: int) -> int:
        return self._checks[-1].resident(kernel.held[-1], threads, shared)

    def download(self, output: _Each) -> npt.NDArray[np.uint8]:
        made = np.stack(self._each(lambda i, check: check.download(output.held[i])))
        differ = (made != made[0]).any(axis=0)
        self._alike = self._alike is not False and not differ.any()
        if not differ.any():
            return np.asarray(made[0])
        if unwritten := self._unwritten(made, output.what):
            self.settle()
            raise KernelFinding("unwritten", unwritten)
        if self.adds_floats:
            return _farthest(made)
        self.settle()
        wrong = int(np.argmax(differ))
        other = int(np.argmax(made[:, wrong] != made[0, wrong]))
        raise KernelFinding(
            "changing",
            f"its {output.what} differs between processes, in which memory that nothing has written holds other bytes: "
            f"byte {wrong:,} is {made[0, wrong]} {self._checks[0].words}, and {made[other, wrong]} "
            f"{self._checks[other].words}",
        )

    def _unwritten(self, made: npt.NDArray[np.uint8], what: str) -> str | None:
        """Return a description of words of 4 bytes that hold the fill of every process; None if there are none."""
        filled = [i for i, check in enumerate(self._checks) if check.fill is not None]
        fills = np.array([self._checks[i].fill for i in filled], np.uint8)
        words = made[filled, : made.shape[1] // 4 * 4].reshape(len(filled), -1, 4)
        at = 4 * np.flatnonzero((words == fills[:, None, None]).all(axis=(0, 2)) & (len(filled) > 1))
        if not len(at):
            return None
        return f"{4 * len(at):,} bytes of its {what} are as they were before the launch, the first byte {at[0]:,}"

    def _read(self, output: Any) -> npt.NDArray[np.uint8]:
        raise NotImplementedError("the processes read")

    def settle(self) -> None:
        if not self._used:
            return
        alike, self._used, self._alike = self._alike, False, None
        told = list(self._pool.map(lambda check: check.told(self._whose), self._checks))
        found = [f for of_one in told for f in of_one]
        unused = [f for f in found if f.unset] if alike else []
        if wrong := [f for f in found if f not in unused]:
            raise findings.finding(wrong)
        self.unset = tuple(dict.fromkeys((*self.unset, *(f.unset for f in unused))))

    def _whose(self, size: int) -> str | None:
        names = self._buffers.get(size, set())
        return next(iter(names)) if len(names) == 1 else None


def _farthest(made: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Return, for each of float32 outputs that differ, uint8[processes, bytes], the one farthest from their median.

    NaN comes first: if one process computed something wrong, this selects it.
    """
    values = made.view(np.float32)
    middle = np.sort(values, axis=0)[(len(values) - 1) // 2].astype(np.float64)
    with np.errstate(invalid="ignore"):
        apart = np.nan_to_num(np.abs(values - middle), nan=0.0, posinf=np.inf)
    chosen = np.argmax(np.where(np.isnan(values), np.inf, apart), axis=0)
    return np.ascontiguousarray(np.take_along_axis(values, chosen[None], 0)[0]).view(np.uint8)


def _past_a_wall(check: _Checked, error: KernelFault) -> KernelFault:
    """Return the finding for a launch that ended between pages without access rights."""
    if "ILLEGAL_ADDRESS" not in str(error) and "illegal memory access" not in str(error):
        return error
    side = "before" if check.placement == "before" else "behind"
    words = f"the kernel accesses memory outside its buffers: pages {side} one of them, which cannot be accessed"
    return findings.finding([findings.Found("outside", words, ())])


def _close(checks: list[_Checked], pool: ThreadPoolExecutor) -> None:
    for check in checks:
        with contextlib.suppress(Exception):
            check.close()
        if check._log is not None:
            scratch.remove_folder(Path(check._log).parent)
    pool.shutdown(wait=False)
