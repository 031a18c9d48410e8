"""The run of a cell, and the workers of a night: threads of this process, or Ray processes."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from gguf_verify.distributed.identity import Expected, of_code
from gguf_verify.hosts.choice import HOSTS
from gguf_verify.hosts.nvrtc import CHOICE as NVRTC
from gguf_verify.llama.backends import on_card
from gguf_verify.processes.commands import Processes
from gguf_verify.support.errors import EnvironmentFault
from gguf_verify.support.text import printable

from . import machine
from .graph_outcomes import graph_cell_of
from .outcomes import broken_off, cell_of, killed
from .records import BACKEND, Cell, Key

#: Runs of cells have ended this many seconds after their time limit.
_SLACK = 60.0


class Killed(NamedTuple):
    """A run that was killed from outside; how, and after how many seconds."""

    key: Key
    how: str
    seconds: float


@dataclass(frozen=True)
class CellRun:
    """The command that is run for a cell, and its surroundings.

    Args:
        key: of the cell.
        command: without the option for the report.
        python_path: the PYTHONPATH with this package.
        version: the required version of llama-cpp-python; "none" for a build in a folder, None for any version.
        keep_all: also keep the reports of passing runs.
        time_limit, grace: in seconds, see `Processes.run`.
        work: the night's folder.
        files: its inputs: the model, the kernel's file and the waivers, or the libraries of a build of llama.cpp.
        gpu: whether its kernel or its llama.cpp runs on a GPU.
        llama: the folder with the build of llama.cpp for a graph; None for the one in llama-cpp-python.
        nvrtc: the version and library of NVRTC for its kernel; None for the installed one.
    """

    key: Key
    command: tuple[str, ...]
    python_path: str
    version: str | None
    keep_all: bool
    time_limit: float
    grace: float
    work: Path
    files: tuple[Path, ...]
    gpu: bool
    llama: Path | None = None
    nvrtc: tuple[str, Path] | None = None

    def made(self, processes: Processes, variables: Mapping[str, str]) -> Cell | Killed:
        """Run it with these environment variables and return the cell. Raises Stopped."""
        folder = None
        try:
            # another machine may not have the night's folder
            folder = Path(tempfile.mkdtemp(dir=self.work if self.work.is_dir() else None))
            report, temporary = folder / "report.json", folder / "tmp"
            temporary.mkdir()  # a killed run does not remove its temporary files
            env = {**variables, "TMPDIR": str(temporary), "PYTHONPATH": self.python_path}
            env.pop("PYTHONHOME", None)
            if self.nvrtc is not None:
                env[NVRTC] = str(self.nvrtc[1])
            command = [*self.command, "-o", str(report)]
            ended = processes.run(command, self.time_limit, env, folder, grace=self.grace)
            if how := killed(ended):
                return Killed(self.key, how, ended.seconds)
            if self.key.kernel == BACKEND:
                return graph_cell_of(self.key, ended, report, self.time_limit, self.version, self.llama, self.keep_all)
            nvrtc = "" if self.nvrtc is None else self.nvrtc[0]
            return cell_of(self.key, ended, report, self.time_limit, self.version, self.keep_all, nvrtc)
        except OSError as error:
            return broken_off(self.key, f"could not be started: {error.strerror}")
        finally:
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)

    def __call__(self, variables: Mapping[str, str]) -> Cell | Killed:
        """Call `made` in another process, which has no `Processes` yet."""
        processes = Processes()
        try:
            return self.made(processes, variables)
        finally:
            processes.close()


def uses_gpu(host: str, reference: str) -> bool:
    """Whether a cell's kernel, on this host, or llama.cpp's backend runs on a GPU."""
    return (host in HOSTS and not HOSTS[host].emulated) or on_card(reference)


class Crew(Protocol):
    """Workers that make runs."""

    def __len__(self) -> int:
        """The number of runs that have not ended."""
        ...

    def ended(self, seconds: float) -> list[Cell | Killed]:
        """Wait at most this many seconds for a run to end, and return the results of those that have. Raises Stopped
        or EnvironmentFault."""
        ...


@contextmanager
def threads(
    runs: Sequence[CellRun], jobs: int, processes: Processes, begins: Callable[[Key], object]
) -> Iterator[Crew]:
    """Run in threads of this process, at most `jobs` at a time; `begins` is called when a run starts."""
    pool = ThreadPoolExecutor(jobs)

    def made(run: CellRun) -> Cell | Killed:
        begins(run.key)
        return run.made(processes, os.environ)

    try:
        yield _Threads({pool.submit(made, run) for run in runs})
    finally:
        processes.stop()
        pool.shutdown(cancel_futures=True)


class _Threads:
    def __init__(self, running: set[Future[Cell | Killed]]) -> None:
        self._running = running

    def __len__(self) -> int:
        return len(self._running)

    def ended(self, seconds: float) -> list[Cell | Killed]:
        done, self._running = wait(self._running, seconds, FIRST_COMPLETED)
        return [future.result() for future in done]


@contextmanager
def by_ray(address: str, runs: Sequence[CellRun], jobs: int) -> Iterator[Crew]:
    """Run in processes of the connected Ray cluster, at most `jobs` at a time on each machine. Raises
    EnvironmentFault."""
    from gguf_verify.distributed.errands import Errand, Errands  # imports Ray

    known, found = in_common(), dict[tuple[Path, ...], Expected]()
    for run in runs:
        if run.files not in found:
            found[run.files] = Expected.of(address, known, run.files)
    errands = {i: Errand(run, in_common, found[run.files], run.gpu) for i, run in enumerate(runs)}
    running = Errands(address, errands, jobs)
    try:
        yield _ByRay(running, runs)
    finally:
        running.stop()


class _ByRay:
    def __init__(self, errands: Any, runs: Sequence[CellRun]) -> None:
        self._errands, self._runs = errands, runs
        self._longest = max((2 * run.time_limit + run.grace + _SLACK for run in runs), default=0.0)
        self._since = time.monotonic()

    def __len__(self) -> int:
        return len(self._errands)

    def ended(self, seconds: float) -> list[Cell | Killed]:
        found = self._errands.ended(seconds)
        now = time.monotonic()
        if found:
            self._since = now
        elif now - self._since > self._longest:
            raise EnvironmentFault(
                f"no cell ended within {self._longest:g} s, so none is running; is the cluster busy?"
            )
        return [self._made(i, of) for i, of in found]

    def _made(self, i: int, found: Cell | Killed | Exception) -> Cell | Killed:
        if isinstance(found, Exception):
            return Killed(
                self._runs[i].key, f"its Ray worker was lost on every attempt: {printable(str(found), 200)}", 0.0
            )
        return found


def in_common() -> dict[str, str]:
    """The properties that must be equal on all machines of a night: name → value."""
    return of_code() | machine.processor()
