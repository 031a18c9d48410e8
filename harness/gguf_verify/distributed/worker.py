"""What runs in a process of Ray: a run of the same model, kernel and options, opened once, which judges tasks."""

from __future__ import annotations

import contextlib
import os
import pickle
import platform
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..llama import LlamaRefused
from ..processes.sandbox import sandboxed
from ..results import Options
from ..rungs.budget import Budget
from ..rungs.opening import open_run
from ..rungs.run import Run
from ..rungs.tasks import Task
from ..support import scratch, stages
from ..support.errors import EnvironmentFault, HarnessError
from .identity import difference, files, identity


@dataclass(frozen=True)
class Work:
    """What a worker opens, and what it must find.

    Args:
        path, kernel, host, options: as `verify` takes them.
        machine, parts: see `identity.files`.
        digests: SHA-256 of each part.
        known: see `identity.identity`.
        folder: in which relative paths begin, where the worker has it.
        scratch: the folder of temporary files of the process that asks, where it is on the same machine.
    """

    path: str
    kernel: str
    host: str
    options: Options
    machine: str
    parts: list[list[int]]
    digests: tuple[str, ...]
    known: dict[str, str]
    folder: Path
    scratch: Path


@dataclass(frozen=True)
class Judged:
    """What a task found, and whether the time that was left kept something from being looked for."""

    found: Any
    cut: bool


@dataclass(frozen=True)
class Refused:
    """An error that ends a run, as a value: Ray would wrap an exception."""

    error: Exception

    @classmethod
    def of(cls, error: HarnessError | LlamaRefused) -> Refused:
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            return cls(EnvironmentFault(str(error)))
        return cls(error)


class Worker:
    """An actor of Ray. Where its process is lost, Ray starts another, which opens the run anew."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._stack = ExitStack()
        self._run: Run | None = None
        self._fault: Refused | None = None

    def open(self) -> Refused | None:
        """Open the run; what keeps it from being opened, or None."""
        if self._run is None and self._fault is None:
            try:
                self._run = self._opened()
            except (HarnessError, LlamaRefused) as error:
                error.args = (f"a worker of Ray on {platform.node()}: {error}",)
                self._fault = Refused.of(error)
                self._stack.close()
        return self._fault

    def judge(self, task: Task[Any], left: float | None = None, words: str = "") -> Judged | Refused:
        """What the task finds, with the time of its stages; Refused where it cannot be judged here.

        Args:
            left: seconds that the rung has, where it has not as many as it takes; `words` say why that is all.
        """
        fault = self.open()
        if fault is not None:
            return fault
        assert self._run is not None
        budget = self._run.budget = Budget(left)
        budget.words = words
        before = stages.seconds()
        try:
            found = task.judge(self._run)
        except (HarnessError, LlamaRefused) as error:
            return Refused.of(error)
        part = getattr(found, "part", None)
        if part is not None:
            part.stages.update(stages.since(before))
        return Judged(found, budget.cut)

    def close(self) -> None:
        """End what was started."""
        self._stack.close()
        self._run = None

    def _opened(self) -> Run:
        work = self._work
        options = work.options
        with contextlib.suppress(OSError):
            os.chdir(work.folder)
        stack = self._stack
        stack.enter_context(sandboxed(options.sandbox, options.kernel_memory))
        if (work.scratch / "lock").exists():
            scratch.join(work.scratch)
        run = stack.enter_context(open_run(work.path, work.kernel, work.host, options))
        stack.callback(run.close)
        machine, parts = files(run.model)
        same_files = bool(machine) and (machine, parts) == (work.machine, work.parts)
        if not same_files and run.model.sha256() != work.digests:
            raise EnvironmentFault(f"it finds another file as {work.path}: its SHA-256 is not that of the file here")
        differs = difference(work.known, identity(run, work.kernel))
        if differs is not None:
            raise EnvironmentFault(f"it has {differs}; nothing was judged there")
        return run


__all__ = ["Judged", "Refused", "Work", "Worker"]
