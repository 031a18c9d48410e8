"""A night: the matrix in child processes, each cell recorded whole or not at all, resumed where it was interrupted."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from ..gguf import printable
from ..support.cache import cache_dir
from ..support.errors import (
    EXIT_ENVIRONMENT,
    EXIT_MALFORMED,
    EXIT_MISMATCH,
    EXIT_UNVERIFIED,
    EXIT_VERIFIED,
    EnvironmentFault,
    HarnessError,
    say,
)
from ..support.progress import progress_bar
from ..support.supervised import Processes, Stopped
from . import hardware
from .config import Config, Model, Variant
from .history import History
from .models import Quantizer, identity, unsuitable
from .outcomes import broken_off, cell_of
from .records import Cell, Key, Night, Outcome
from .variants import Ready, Variants, harness_path

#: What a night ends with, the first that applies.
_EXITS = {
    Outcome.MISMATCH: EXIT_MISMATCH, Outcome.CRASHED: EXIT_ENVIRONMENT, Outcome.TIMED_OUT: EXIT_ENVIRONMENT,
    Outcome.BROKEN_OFF: EXIT_ENVIRONMENT, Outcome.MALFORMED: EXIT_MALFORMED, Outcome.UNVERIFIED: EXIT_UNVERIFIED,
}  # fmt: skip
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(HarnessError):
    """A signal ended the night; it can be resumed."""

    def __init__(self, number: int, words: str) -> None:
        super().__init__(words)
        self.exit_code = 128 + number


def exit_code(night: Night) -> int:
    """0 where every planned cell is verified; else 1 for a mismatch, 3 where one was broken off, crashed or ran out of
    time, 4 for a malformed file, 5 where something is unverified or was not run."""
    outcomes = {cell.outcome for cell in night.cells.values()}
    for outcome, code in _EXITS.items():
        if outcome in outcomes:
            return code
    return EXIT_UNVERIFIED if night.missing or not night.cells else EXIT_VERIFIED


@dataclass
class Settings:
    """How a night is run.

    Args:
        jobs: cells at a time; None as the configuration says.
        new: do not resume.
        terminal: show a bar instead of a line a cell.
        harness: what stands before the options of a run instead of this harness's own command, for tests.
        say: takes each line of progress.
    """

    jobs: int | None = None
    new: bool = False
    terminal: bool = False
    harness: Sequence[str] | None = None
    say: Callable[[str], object] = say


def run_night(config: Config, settings: Settings | None = None) -> Night:
    """Run a configuration's matrix, or what is left of it where it was interrupted.

    Returns the night, complete, without reports. Raises HarnessError: the history cannot be used, somebody else runs
    this configuration, nothing is left of the matrix; Interrupted.
    """
    settings = settings or Settings()
    with _lock(config), History(config.history) as history, _processes(history, config) as processes:
        return _Runner(config, settings, history, processes).run()


@contextlib.contextmanager
def _lock(config: Config) -> Iterator[None]:
    """One night of a configuration in a history at a time. The lock goes with the process, however that ends."""
    path = config.history.with_name(f"{config.history.name}.{config.name}.lock")
    try:
        file = path.open("a+")
    except OSError as error:
        raise EnvironmentFault(f"cannot write {printable(str(path), 200)}: {error.strerror}") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            who = printable(file.read(20).strip(), 20)
            raise EnvironmentFault(
                f'a night of "{config.name}" is being run already{f", by process {who}" if who else ""}'
            ) from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


@contextlib.contextmanager
def _processes(history: History, config: Config) -> Iterator[Processes]:
    """What ends with a signal, too: what runs is killed, and the night left as it is recorded."""
    processes = Processes()

    def interrupt(number: int, _frame: FrameType | None) -> None:
        for each in _SIGNALS:
            signal.signal(each, signal.SIG_IGN)  # once is enough, and the end is near
        processes.stop()
        raise Interrupted(number, f"interrupted by {signal.Signals(number).name}; the same command resumes the night")

    before = {}
    if threading.current_thread() is threading.main_thread():
        heeded = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]  # nohup ignores one
        before = {number: signal.signal(number, interrupt) for number in heeded}
    try:
        yield processes
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        processes.close()


@dataclass
class _Prepared:
    """What the cells need that is made beforehand: by variant or model, or the line that says why it is not there."""

    variants: dict[str, Ready | str] = field(default_factory=dict)
    models: dict[Model, Path | str] = field(default_factory=dict)


class _Runner:
    def __init__(self, config: Config, settings: Settings, history: History, processes: Processes) -> None:
        self._config, self._settings, self._history, self._processes = config, settings, history, processes
        self._jobs = settings.jobs or config.jobs
        self._models = {(m.path.name, m.type): m for m in config.models}
        self._by_name = {v.name: v for v in config.variants}
        self._variants = Variants(processes, config.build_time_limit)
        name = hashlib.sha256(f"{os.path.abspath(config.history)}\0{config.name}".encode()).hexdigest()[:16]
        self._work = cache_dir() / "nightly" / name

    def run(self) -> Night:
        night = self._begin()
        pending = night.missing
        try:
            shutil.rmtree(self._work, ignore_errors=True)  # of a night that was killed
            self._work.mkdir(parents=True)
        except OSError as error:
            raise EnvironmentFault(f"the cache cannot be written: {error.strerror}") from None
        try:
            (self._work / "harness").mkdir()
            with harness_path(self._work / "harness") as path:
                self._run_cells(night, pending, path)
        finally:
            shutil.rmtree(self._work, ignore_errors=True)
        self._history.finish(night.number)
        return self._history.night(night.number)

    # ---- which night ------------------------------------------------------------------------------------------------

    def _begin(self) -> Night:
        """The night to resume, or a new one."""
        planned = self._planned()
        machine = hardware.hardware()
        fingerprint = self._fingerprint(machine)
        found = self._history.nights(1, self._config.name)
        if found and found[0].finished is None and not self._settings.new:
            night = found[0]
            before = self._history.fingerprint(night.number)
            changed = sorted(n for n in before.keys() | fingerprint.keys() if before.get(n) != fingerprint.get(n))
            if night.planned != planned:
                changed.append("the matrix")
            if not changed:
                self._say(f"resuming night {night.number}: {len(night.cells)} of {len(planned)} cells are recorded")
                return night
            self._say(f"night {night.number} is not finished and cannot be: {_some(changed)} changed; a new one begins")
        night = self._history.begin(self._config.name, planned, machine, hardware.project(), fingerprint)
        self._say(f"night {night.number}: {len(planned)} cells, {self._jobs} at a time")
        return night

    def _planned(self) -> tuple[Key, ...]:
        """The cells, without those whose model has no matrix of their type."""
        why = {(m.path.name, m.type): unsuitable(m) for m in self._config.models}
        for (name, kind), words in why.items():
            if words:
                self._say(f"not planned: {printable(name, 60)} as {kind}: {words}")
        auto = (
            hardware.auto_host()
            if any("auto" in (v.hosts or self._config.hosts) for v in self._config.variants)
            else ""
        )
        keys = tuple(key for key in self._config.cells(auto) if not why[key.model, key.type])
        if not keys:
            raise EnvironmentFault("no model of the matrix has rows for any of the types")
        return keys

    def _fingerprint(self, machine: Mapping[str, str]) -> dict[str, str]:
        """What must be the same for a night to be resumed."""
        config = self._config
        out = {f"model {m.path.name}": identity(m.path) for m in config.models}
        for kernel in config.kernels:
            if (path := config.kernel_path(kernel)) is not None:
                out[f"kernel {kernel}"] = identity(path)
        out |= {f"variant {v.name}": self._variants.identity(v) for v in config.variants}
        out |= {f"the setting {name}": value for name, value in config.describe().items()}
        out |= {f"the machine's {name}": machine.get(name, "") for name in hardware.SAME_MACHINE}
        return out | {"the project's code": hardware.code_hash()}

    # ---- what cells need --------------------------------------------------------------------------------------------

    def _prepare(self, pending: Sequence[Key]) -> _Prepared:
        """Make environments and models, one after the other."""
        out = _Prepared()
        for name in dict.fromkeys(key.variant for key in pending):
            variant = self._by_name[name]

            def building(variant: Variant = variant) -> None:
                self._say(f"making the environment of variant {variant.name}; log: {self._variants.log(variant)}")

            try:
                out.variants[name] = self._variants.ready(variant, building)
            except HarnessError as error:
                if isinstance(error, Interrupted):
                    raise
                out.variants[name] = str(error)
                self._say(f"variant {name}: {error}")
        threads = self._config.threads or len(os.sched_getaffinity(0))
        quantizer = Quantizer(threads, self._config.build_time_limit)
        for model in dict.fromkeys(self._models[key.model, key.type] for key in pending):

            def quantizing(model: Model = model) -> None:
                self._say(f"quantizing {printable(model.path.name, 60)} to {model.type}")

            try:
                out.models[model] = quantizer.made(model, quantizing)
            except HarnessError as error:
                if isinstance(error, Interrupted):
                    raise
                out.models[model] = str(error)
        return out

    # ---- the cells --------------------------------------------------------------------------------------------------

    def _run_cells(self, night: Night, pending: Sequence[Key], path: str) -> None:
        prepared = self._prepare(pending)
        progress = _Progress(self._settings, len(night.planned), len(night.cells), pending, self._jobs,
                             self._history.seconds(self._config.name))  # fmt: skip
        pool = ThreadPoolExecutor(self._jobs)
        try:
            waiting: set[Future[Cell]] = {pool.submit(self._cell, key, prepared, path, progress) for key in pending}
            while waiting:
                done, waiting = wait(waiting, 0.5, FIRST_COMPLETED)
                for future in done:
                    cell = future.result()
                    self._history.record(night.number, cell)
                    progress.done(cell)
                progress.show()
        except Stopped:
            raise Interrupted(signal.SIGTERM, "interrupted; the same command resumes the night") from None
        finally:
            self._processes.stop()
            pool.shutdown(cancel_futures=True)
            progress.close()

    def _cell(self, key: Key, prepared: _Prepared, path: str, progress: _Progress) -> Cell:
        ready = prepared.variants[key.variant]
        if isinstance(ready, str):
            return broken_off(key, ready)
        model = prepared.models[self._models[key.model, key.type]]
        if isinstance(model, str):
            return broken_off(key, model)
        progress.begins(key)
        folder = self._work / hashlib.sha256("\0".join(key).encode()).hexdigest()[:16]
        folder.mkdir()
        try:
            report = folder / "report.json"
            temporary = folder / "tmp"  # what is killed leaves its temporary files
            temporary.mkdir()
            env = {**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": self._pythonpath(ready, path)}
            env.pop("PYTHONHOME", None)
            ended = self._processes.run(self._command(key, ready, model, report), self._config.time_limit, env, folder)
            version = None if self._settings.harness else ready.version
            return cell_of(key, ended, report, self._config.time_limit, version, self._config.keep_all)
        except OSError as error:
            return broken_off(key, f"could not be started: {error.strerror}")
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _pythonpath(self, ready: Ready, path: str) -> str:
        """Another Python sees this harness alone; this one also what it saw before."""
        own = os.environ.get("PYTHONPATH", "") if self._settings.harness or not ready.own else ""
        return os.pathsep.join(filter(None, [path, own]))

    def _command(self, key: Key, ready: Ready, model: Path, report: Path) -> list[str]:
        config, variant = self._config, self._by_name[key.variant]
        harness = self._settings.harness or [ready.python, "-P", "-m", "gguf_verify", "verify"]
        return [
            *harness, str(model), f"--prompt={config.prompts[key.prompt]}", "-n", str(config.n_predict),
            "-t", str(config.threads), "--host", key.host, "--kernel", config.kernel_argument(key.kernel),
            "--reference", variant.reference, "--json", str(report), "--time-limit", f"{config.time_limit:g}",
            *(["--repack"] if variant.repack else []),
        ]  # fmt: skip

    def _say(self, line: str) -> None:
        self._settings.say(line)


class _Progress:
    """Total, current cell and time left: a bar on a terminal, else a line a cell.

    `begins` is called by the threads, the rest by the main one.
    """

    def __init__(
        self, settings: Settings, total: int, recorded: int, pending: Sequence[Key], jobs: int,
        before: Mapping[Key, float],
    ) -> None:  # fmt: skip
        self._settings, self._total, self._recorded, self._jobs = settings, total, recorded, jobs
        self._before = before
        self._pending = dict.fromkeys(pending)
        self._started: dict[Key, float] = {}
        self._took: dict[Key, float] = {}
        self._bar = progress_bar(f"night, {total} cells", total, "cell", settings.terminal)
        self._bar.bar_format = "{desc} {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} {postfix}"
        self._bar.update(recorded)

    def begins(self, key: Key) -> None:
        self._started[key] = time.monotonic()

    def done(self, cell: Cell) -> None:
        self._pending.pop(cell.key, None)
        self._started.pop(cell.key, None)
        if cell.seconds:
            self._took[cell.key] = cell.seconds
        self._recorded += 1
        self._bar.update()
        if not self._settings.terminal:
            words = f": {cell.words}" if cell.words else ""
            left = f"; {self._left()} left" if self._pending else ""
            how = f"{self._recorded}/{self._total} {cell.outcome} in {cell.seconds:.1f} s"
            self._settings.say(f"{how}, {printable(str(cell.key), 200)}{words}{left}")

    def show(self) -> None:
        if self._settings.terminal:
            current = next(iter(self._started.copy()), None)
            name = "" if current is None else printable(str(current), 60)
            self._bar.set_postfix_str(f"{self._left()} left, {name}")

    def _left(self) -> str:
        """From what the cells took before, in this night's pace; those never seen take the mean."""
        known = [(seconds, self._before[key]) for key, seconds in self._took.items() if self._before.get(key)]
        pace = sum(now for now, _ in known) / sum(then for _, then in known) if known else 1.0
        seen = list(self._took.values()) or list(self._before.values())
        if not seen:
            return "unknown time"
        mean = sum(seen) / len(seen)
        now = time.monotonic()
        left = 0.0
        for key in self._pending:
            expected = self._before[key] * pace if key in self._before else mean
            begun = self._started.get(key)
            left += expected if begun is None else max(0.0, expected - (now - begun))
        seconds = round(left / self._jobs)
        return f"{seconds} s" if seconds < 100 else f"{round(seconds / 60)} min"

    def close(self) -> None:
        self._bar.close()


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(printable(name, 60) for name in names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
