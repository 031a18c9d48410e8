"""One night: runs the cells of the matrix in child processes.

Each cell is recorded completely or not at all. An interrupted night is resumed where it ended.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from gguf_verify.distributed.connection import LOCAL
from gguf_verify.distributed.judges import ray_at
from gguf_verify.llama.backends import on_card
from gguf_verify.processes.commands import Processes, Stopped
from gguf_verify.support.cache import cache_dir
from gguf_verify.support.errors import EnvironmentFault, HarnessError, say
from gguf_verify.support.seeds import fresh_seed
from gguf_verify.support.sources import file_digest
from gguf_verify.support.text import counted, printable

from . import machine
from .cells import CellRun, Crew, Killed, by_ray, threads, uses_gpu
from .compilers import Compilers
from .config import Config, Model
from .devices import libraries
from .environments import Environments, Interpreter
from .exclusive import Interrupted, interruptible, locked
from .history import History
from .models import Quantizer, identity, unsuitable
from .outcomes import MOST_KILLS, broken_off, killed_for_good
from .progress import Progress
from .records import BACKEND, Cell, Key, Night
from .requirements import package_path

S = TypeVar("S")
T = TypeVar("T")


@dataclass
class Settings:
    """Options of a night.

    Args:
        jobs: number of cells to run at the same time; None for the configuration's number.
        new: begin a new night instead of resuming one.
        terminal: show a progress bar instead of one line per cell.
        harness: for tests: a command to run instead of `gguf-verify verify` and `gguf-verify backend`.
        say: called with each line of progress.
        ray: the address of a Ray cluster that runs the cells, or "local"; None for this process.
        grace: seconds that a cell has to write its report after its time limit, before it is killed.
    """

    jobs: int | None = None
    new: bool = False
    terminal: bool = False
    harness: Sequence[str] | None = None
    say: Callable[[str], object] = say
    ray: str | None = None
    grace: float = 30.0


def run_night(config: Config, settings: Settings | None = None) -> Night:
    """Run a configuration's matrix, or the rest of it if the last night was interrupted.

    Apart from times, the records do not depend on the process that runs a cell.

    Returns the night without reports. It is finished unless runs of cells were killed from outside; the same command
    then tries those cells again, up to three times in total. Raises HarnessError if the history cannot be used,
    another process runs this configuration, or the matrix has no cell to run; and Interrupted.
    """
    settings = settings or Settings()
    with (
        locked(config),
        History(config.history) as history,
        interruptible() as processes,
        nullcontext() if settings.ray is None else ray_at(settings.ray),
    ):
        return _Runner(config, settings, history, processes).run()


class _Runner:
    """Runs one night.

    The inputs of cells are made first: `_interpreters` and `_nvrtc` by variant, `_files` by model. If that fails, the
    entry is the error message, which becomes the reason of these cells.
    """

    def __init__(self, config: Config, settings: Settings, history: History, processes: Processes) -> None:
        self._config, self._settings, self._history, self._processes = config, settings, history, processes
        self._jobs = settings.jobs or config.file.jobs
        #: The seed of all runs of the night.
        self._seed = 0
        self._models = {(m.path.name, m.type): m for m in config.models}
        self._environments = Environments(processes, config.file.build_time_limit)
        self._compilers = Compilers(processes, config.file.build_time_limit)
        self._interpreters: dict[str, Interpreter | str] = {}
        self._nvrtc: dict[str, Path | str] = {}
        self._files: dict[Model, Path | str] = {}
        name = hashlib.sha256(f"{os.path.abspath(config.history)}\0{config.name}".encode()).hexdigest()[:16]
        self._work = cache_dir() / "nightly" / name

    def run(self) -> Night:
        night = self._begin()
        try:
            shutil.rmtree(self._work, ignore_errors=True)  # left by a killed night
            self._work.mkdir(parents=True)
        except OSError as error:
            raise EnvironmentFault(f"the cache cannot be written: {error.strerror}") from None
        try:
            (self._work / "harness").mkdir()
            with package_path(self._work / "harness") as path:
                self._prepare(night.missing)
                self._run_cells(night, path)
        finally:
            shutil.rmtree(self._work, ignore_errors=True)
        ended = self._history.night(night.number)
        if ended.missing:
            n = len(ended.missing)
            self._say(f"{n} cell{' was' if n == 1 else 's were'} killed from outside; the same command tries again")
            return ended
        self._history.finish(night.number)
        return self._history.night(night.number)

    # ---- which night ------------------------------------------------------------------------------------------------

    def _begin(self) -> Night:
        """The night to resume, or a new one."""
        planned = self._planned()
        hardware = machine.hardware()
        fingerprint = self._fingerprint(hardware)
        fixed = self._config.file.seed
        found = self._history.nights(1, self._config.name)
        if found and found[0].finished is None and not self._settings.new:
            night = found[0]
            before = self._history.fingerprint(night.number)
            fingerprint["seed"] = before.get("seed", "") if fixed is None else str(fixed)
            fingerprint |= _opened_now(before)
            changed = sorted(n for n in before.keys() | fingerprint.keys() if before.get(n) != fingerprint.get(n))
            if night.planned != planned:
                changed.append("the matrix")
            if not changed:
                self._seed = int(fingerprint["seed"] or 0)
                self._say(
                    f"resuming night {night.number}: {len(night.cells)} of {counted(len(planned), 'cells')} recorded"
                )
                return night
            what = f"night {night.number} was not finished and cannot be resumed"
            self._say(f"{what}: {_first_names(changed)} changed; a new night begins")
        self._seed = fresh_seed() if fixed is None else fixed
        fingerprint["seed"] = str(self._seed)
        night = self._history.begin(self._config.name, planned, hardware, machine.project(), fingerprint)
        where = "" if self._settings.ray is None else " on each machine"
        self._say(
            f"night {night.number}: {counted(len(planned), 'cells')}, {self._jobs} at a time{where}, seed {self._seed}"
        )
        return night

    def _planned(self) -> tuple[Key, ...]:
        """The cells to run, without those whose model would have no matrix of their type."""
        flaws = {(m.path.name, m.type): unsuitable(m) for m in self._config.models}
        for (name, type_), flaw in flaws.items():
            if flaw:
                self._say(f"not planned: {printable(name, 60)} as {type_}: {flaw}")
        auto = machine.auto_host() if "auto" in self._config.hosts else ""
        keys = tuple(key for key in self._config.cells(auto) if not flaws[key.model, key.type])
        if not keys:
            raise EnvironmentFault("no model has rows that can be quantized to any of the types")
        return keys

    def _fingerprint(self, hardware: Mapping[str, str]) -> dict[str, str]:
        """The values that must be unchanged for a night to be resumed."""
        config = self._config
        out = {f"model {m.path.name}": identity(m.path) for m in config.models}
        for kernel in config.file.kernels:
            if (path := config.kernel_path(kernel)) is not None:
                out[f"kernel {kernel}"] = file_digest(path) or "cannot be read"
        out |= {f"variant {name}": self._environments.identity(variant) for name, variant in config.variants.items()}
        for name, variant in config.variants.items():
            out |= {f"variant {name}: {p.name}": identity(p) for p in libraries(config.build(variant))}
        out |= {f"the setting {name}": value for name, value in config.settings().items()}
        out |= {f"the machine's {name}": hardware.get(name, "") for name in machine.SAME_MACHINE}
        return out | {"the project's code": machine.code_hash()}

    # ---- inputs of cells --------------------------------------------------------------------------------------------

    def _prepare(self, pending: Sequence[Key]) -> None:
        """Make the environments and models, one at a time."""
        for name in dict.fromkeys(key.variant for key in pending):
            variant = self._config.variants[name]
            made = _made(self._environments.ready, variant, partial(self._say_making, name))
            if isinstance(made, str):
                self._say(f"variant {name}: {made}")
            self._interpreters[name] = made
            if variant.nvrtc is not None:
                fetching = partial(self._say, f"fetching NVRTC {variant.nvrtc}")
                library = _made(self._compilers.ready, variant.nvrtc, fetching)
                if isinstance(library, str):
                    self._say(f"variant {name}: {library}")
                self._nvrtc[name] = library
        threads = self._config.file.threads or len(os.sched_getaffinity(0))
        quantizer = Quantizer(threads, self._config.file.build_time_limit)
        for model in dict.fromkeys(self._models[key.model, key.type] for key in pending):
            line = f"quantizing {printable(model.path.name, 60)} to {model.type}"
            self._files[model] = _made(quantizer.made, model, partial(self._say, line))

    def _say_making(self, name: str) -> None:
        log = self._environments.log(self._config.variants[name])
        self._say(f"making the environment of variant {name}; log: {log}")

    # ---- the cells --------------------------------------------------------------------------------------------------

    def _run_cells(self, night: Night, path: str) -> None:
        before = self._history.seconds(self._config.name)
        progress = Progress(night, night.missing, self._jobs, before, self._settings.terminal, self._say)
        runs = list[CellRun]()
        try:
            for key in night.missing:
                run = self._run_of(key, path)
                if isinstance(run, Cell):
                    self._keep(night, run, progress)
                else:
                    runs.append(run)
            with self._crew(runs, progress) as crew:
                while len(crew):
                    for made in crew.ended(0.5):
                        self._keep(night, made, progress)
                    progress.show()
        except Stopped:
            raise Interrupted(signal.SIGTERM) from None
        finally:
            self._processes.stop()
            progress.close()

    def _crew(self, runs: Sequence[CellRun], progress: Progress) -> AbstractContextManager[Crew]:
        if self._settings.ray is not None:
            return by_ray(self._settings.ray, runs, self._jobs)
        return threads(runs, self._jobs, self._processes, progress.begins)

    def _keep(self, night: Night, cell: Cell | Killed, progress: Progress) -> None:
        """Record a cell. For a run that was killed from outside, record only that."""
        if isinstance(cell, Killed):
            times = self._history.killed(night.number, cell.key, cell.how)
            if times < MOST_KILLS:
                progress.killed(cell.key, f"{cell.how}; will be tried again ({times} of {MOST_KILLS})")
                return
            cell = killed_for_good(cell.key, cell.how, cell.seconds)
        self._history.record(night.number, cell)
        if self._settings.ray in (None, LOCAL) and cell.opened:  # another machine has other files
            opened = {f"{_OPENED}{path}": sha256 for path, sha256 in cell.opened.items()}
            self._history.extend_fingerprint(night.number, opened)
        progress.done(cell)

    def _run_of(self, key: Key, path: str) -> CellRun | Cell:
        """Return the run for a cell, or the finished cell if it cannot be run."""
        interpreter = self._interpreters[key.variant]
        if isinstance(interpreter, str):
            return broken_off(key, interpreter)
        model = self._files[self._models[key.model, key.type]]
        if isinstance(model, str):
            return broken_off(key, model)
        config, stub, variant = self._config, self._settings.harness, self._config.variants[key.variant]
        build, library = config.build(variant), self._nvrtc.get(key.variant)
        if isinstance(library, str):
            return broken_off(key, library)
        version = interpreter.llama_version if build is None else "none"
        if key.kernel == BACKEND:
            files, gpu = (model, *libraries(build)), on_card(key.host)
        else:
            files = (model, *filter(None, (config.kernel_path(key.kernel), config.waivers, library)))
            gpu = uses_gpu(key.host, variant.reference)
        return CellRun(
            key, tuple(self._command(key, interpreter, model)), self._python_path(interpreter, path),
            None if stub else version, config.file.keep_reports == "all", config.file.time_limit, self._settings.grace,
            self._work, files, gpu, build,
            None if library is None or variant.nvrtc is None or key.kernel == BACKEND else (variant.nvrtc, library),
        )  # fmt: skip

    def _python_path(self, interpreter: Interpreter, path: str) -> str:
        """The PYTHONPATH of a run: this package alone for another Python, otherwise also the present PYTHONPATH."""
        own = "" if interpreter.separate and not self._settings.harness else os.environ.get("PYTHONPATH", "")
        return os.pathsep.join(filter(None, [path, own]))

    def _command(self, key: Key, interpreter: Interpreter, model: Path) -> list[str]:
        config, variant = self._config, self._config.variants[key.variant]
        if key.kernel == BACKEND:
            name, build = "backend", config.build(variant)
            own = [f"--device={key.host}", *([] if build is None else ["--llama", str(build)])]
        else:
            name = "verify"
            own = [
                "--seed", str(self._seed), "--host", key.host, "--kernel", config.kernel_argument(key.kernel),
                "--reference", variant.reference,
                *([] if config.waivers is None else ["--waivers", str(config.waivers)]),
                *([] if config.project is None else config.project.flags(_OF_KERNELS)),
                *(["--jobs", "1"] if self._jobs > 1 else []),  # other cells use the cores, too
            ]  # fmt: skip
        return [
            *(self._settings.harness or [interpreter.python, "-P", "-m", "gguf_verify", name]), str(model),
            f"--prompt={config.prompts[key.prompt]}", "-n", str(config.file.n_predict),
            "-t", str(config.file.threads), "--time-limit", f"{config.file.time_limit:g}",
            *(["--repack"] if variant.repack else []),
            *([] if config.project is None else config.project.flags(("sandbox",))), *own,
        ]  # fmt: skip

    def _say(self, line: str) -> None:
        self._settings.say(line)


#: Settings of the project (`support.settings`) that apply to runs of kernels only.
_OF_KERNELS = ("kernel_time_limit", "kernel_memory", "imports", "loads")
#: Prefix in a fingerprint of the name of a file that a kernel opened.
_OPENED = "the kernel's file "


def _opened_now(fingerprint: Mapping[str, str]) -> dict[str, str]:
    """The files in a fingerprint that kernels opened, with their present digests."""
    names = [name for name in fingerprint if name.startswith(_OPENED)]
    return {name: file_digest(name.removeprefix(_OPENED)) or "" for name in names}


def _made(make: Callable[[S, Callable[[], object]], T], source: S, on_start: Callable[[], object]) -> T | str:
    """Return the result of `make`, or its error message."""
    try:
        return make(source, on_start)
    except Interrupted:
        raise
    except HarnessError as error:
        return str(error)


def _first_names(names: Sequence[str]) -> str:
    shown = ", ".join(printable(name, 120) for name in names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
