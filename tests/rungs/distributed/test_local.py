"""Processes of this machine judge as this process does; tasks of lost processes are judged here."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Generator, Iterator
from concurrent.futures import wait
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gguf_verify.rungs.blocks
from gguf_verify.distributed import local as module
from gguf_verify.distributed.local import LocalWorkers, paying
from gguf_verify.distributed.runs import RunWork
from gguf_verify.hosts.choice import make_host
from gguf_verify.results.options import Options
from gguf_verify.results.report import Report
from gguf_verify.results.rungs import RungResult
from gguf_verify.rungs.budget import Budget, BudgetSpent
from gguf_verify.rungs.drawn import Drawn
from gguf_verify.rungs.opening import open_run
from gguf_verify.rungs.pool import Pool, Step
from gguf_verify.rungs.run import Run
from gguf_verify.rungs.tokens.passes import ExactPass, ExactPasses, Noise
from gguf_verify.support.errors import EnvironmentFault, UsageError
from gguf_verify.verification import verify
from tests.support.ahead import Lethal, Waits, told
from tests.support.processes import gone
from tests.support.tools import FIXTURES

EXAMPLE = Path(__file__).parents[3] / "examples" / "cuda_q4_0.cu"
FAULT = ("- 8.0f * from_half", "- 7.9f * from_half")
MODEL = FIXTURES / "tiny-Q4_0.gguf"
OPTIONS = Options(
    probes="brief", prompt="The import statement", n_predict=2, tensor=r"blk\.0\.attn_[qk]", progress=False, threads=1
)


def run(kernel: str, jobs: int | None, *rungs: str, options: Options = OPTIONS) -> Report:
    return verify(MODEL, kernel, "cpu", rungs=rungs, options=options, jobs=jobs)


def test_the_report_is_that_of_one_process(tmp_path: Path) -> None:
    """Of an incorrect foreign kernel in its sandbox; its first wrong product is written as files."""
    file, case = tmp_path / "kernel.cu", tmp_path / "case"
    file.write_text(EXAMPLE.read_text().replace(*FAULT))
    options = dataclasses.replace(OPTIONS, save_case=str(case))
    reports, cases = [], []
    for jobs in (1, 2):
        reports.append(run(f"{file}:gemm", jobs, "bytes", "blocks", "layers", "tokens", options=options))
        cases.append({path.name: path.read_bytes() for path in case.iterdir()})
        shutil.rmtree(case)
    here, there = reports
    assert [rung.verdict for rung in here.rungs] == ["passed", "failed", "failed", "failed"]
    assert told(there) == told(here)
    assert cases[0]["y.npy"]
    assert cases[0] == cases[1]


def test_a_lost_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The tasks of a process that was killed are judged here."""
    monkeypatch.setenv("LETHAL_MARKER", str(tmp_path / "marker"))
    here = run("q8_1_naive", 1, "blocks", "layers")
    monkeypatch.setattr(gguf_verify.rungs.blocks, "BlocksTask", Lethal)
    monkeypatch.setattr(module.LocalWorkers, "count", once_open)
    there = run("q8_1_naive", 2, "blocks", "layers")
    assert (tmp_path / "blocks").exists()
    assert here.exit_code == 0
    assert told(there) == told(here)


_COUNT = LocalWorkers.count


def once_open(of: LocalWorkers) -> int:
    """The number of processes that take tasks once all are open; before, this process would judge, and die."""
    wait([worker.opening for worker in of.workers])
    return _COUNT(of)


@contextmanager
def processes(work: RunWork, count: int, must_open: bool = True) -> Iterator[tuple[Pool, LocalWorkers]]:
    """A pool whose processes have opened their work."""
    with module.local_processes(work, count, must_open, verbose=False) as pool:
        workers: Any = pool._workers
        wait([worker.opening for worker in workers.workers])
        yield pool, workers


@pytest.fixture(autouse=True)
def _tests_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tasks of these tests are found there too."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))


@pytest.fixture
def opened() -> Iterator[Run]:
    with open_run(MODEL, "q8_1_naive", "cpu", OPTIONS) as found:
        yield found
        found.close()


def work_of(opened: Run) -> RunWork:
    return RunWork.of(opened, str(MODEL), "q8_1_naive", "cpu", OPTIONS, here=True)


def steps(*tasks: Waits) -> Generator[Step[Any]]:
    for task in tasks:
        yield Step(task=task)


def numbered(n: int, mark: Path, first_waits: bool = False) -> list[Waits]:
    """Tasks that return their numbers; the first may wait for the second, which another process gets: a later one could
    be queued behind it."""
    return [Waits(i, str(mark), first_waits and i == 0, first_waits and i == 1) for i in range(n)]


def test_another_version_is_refused(opened: Run, tmp_path: Path) -> None:
    """A process with another version judges nothing: an error if processes were requested, else this process judges."""
    work = work_of(opened)
    other = dataclasses.replace(work, known={**work.known, "NumPy": "0.0"})
    said = r"a process that judges on .*: it has another NumPy: .*, here '0\.0'; nothing was judged there"
    with processes(other, 1) as (pool, _), pytest.raises(EnvironmentFault, match=said):
        list(pool.each(opened, steps(*numbered(1, tmp_path))))
    with processes(other, 1, must_open=False) as (judging, workers):
        assert workers.count() == 0
        assert [found for _, found in judging.each(opened, steps(*numbered(3, tmp_path)))] == [0, 1, 2]


def test_tasks_come_in_order(opened: Run, tmp_path: Path) -> None:
    """Also where the first is over after the second, and where more wait than the processes take; none is left."""
    with processes(work_of(opened), 2) as (judging, workers):
        pids = [worker.process.pid for worker in workers.workers]
        tasks = numbered(6, tmp_path / "each", first_waits=True)
        assert [found for _, found in judging.each(opened, steps(*tasks))] == [*range(6)]
        later, found = judging.later(opened), list[Any]()
        for task in numbered(12, tmp_path / "later", first_waits=True):
            later.give(task)
            found += later.found()
        found += later.found(all_of_them=True)
    assert gone(pids)
    assert [number for _, number in found] == [task.number for task, _ in found] == [*range(12)]


def test_a_pass_with_exact_products(opened: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is computed there, with a llama.cpp of its own, to the same bits; where the time is spent there, the rung
    ends."""
    noise, tokens = Noise(float, 3), [1, 5, 7]  # K times the size of the outputs
    of = ExactPasses(opened, RungResult(name="tokens", question=""), tokens, set(), frozenset)
    here, noisy = of.logits(shared=True), of.logits(True, noise)
    assert (here != noisy).any()
    with processes(work_of(opened), 1) as (judging, _):
        run = dataclasses.replace(opened, judges=judging)
        result = RungResult(name="tokens", question="")
        passes = ExactPasses(run, result, tokens, set(), frozenset)
        assert passes.at_once == 1
        monkeypatch.setattr(ExactPass, "judge", None)  # here
        np.testing.assert_array_equal(passes.logits(shared=True), here)
        assert result.stages
        late = ExactPasses(dataclasses.replace(run, budget=Budget.of(0.0)), result, tokens, set(), frozenset)
        with pytest.raises(BudgetSpent):
            late.logits(shared=False)
        np.testing.assert_array_equal(passes.logits(True, noise), noisy)


def test_a_process_that_ends_with_tasks(opened: Run, tmp_path: Path) -> None:
    """All its tasks are judged here, in order, and so are later ones when no process is left."""
    mark = tmp_path / "mark"
    with processes(work_of(opened), 1) as (judging, workers):
        first, second = Waits(0, str(mark), True, False), Waits(1, str(mark), False, False)
        later = judging.later(opened)
        for task in (first, second):
            later.give(task)
        assert not list(later.found())
        workers.workers[0].process.kill()
        mark.touch()
        assert [number for _, number in later.found(all_of_them=True)] == [0, 1]
        assert workers.count() == 0
        assert [found for _, found in judging.each(opened, steps(*numbered(2, mark)))] == [0, 1]


class _Roomy:
    """A host with room for several processes."""

    def __init__(self, room: int) -> None:
        self._room = room

    def processes_beside(self) -> int:
        return self._room


@pytest.mark.parametrize(
    ("cores", "room", "nbytes", "count"),
    [
        (16, 9, 1 << 32, 4),
        (9, 9, 1 << 32, 2),
        (7, 9, 1 << 32, 1),
        (64, 3, 1 << 32, 3),
        (64, 0, 1 << 32, 1),
        (16, 9, 1 << 29, 1),
    ],
)
def test_how_many_pay(cores: int, room: int, nbytes: int, count: int) -> None:
    """Limited by cores and the GPU's memory, for a large model."""
    of: Any = type("Of", (), {"kernel": type("Kernel", (), {"host": _Roomy(room)}), "matrix_bytes": lambda _: nbytes})()
    assert paying(of, cores) == count


def test_hosts_without_a_gpu_have_threads() -> None:
    assert make_host("cpu", 1).processes_beside() == 0


def test_random_data_are_made_again() -> None:
    """By a process with the same seed; those of another seed are refused."""
    drawn, options = Drawn(("Q4_0",), (3,), (64,), (256,)), dataclasses.replace(OPTIONS, seed=5)
    with open_run(drawn, "q8_1_naive", "cpu", options) as here:
        work = RunWork.of(here, drawn, "q8_1_naive", "cpu", options, here=True)
        with ExitStack() as stack:
            there = work.open(stack)
            assert there.model.path != here.model.path
            assert there.model.sha256() == here.model.sha256()
        other = dataclasses.replace(work, options=dataclasses.replace(options, seed=6))
        with ExitStack() as stack, pytest.raises(EnvironmentFault, match="another file as the random data"):
            other.open(stack)
        here.close()


def test_works_that_no_process_can_open() -> None:
    with pytest.raises(UsageError, match="--jobs opens the kernel and its host in several processes"):
        verify(MODEL, "q8_1_naive", make_host("cpu", 1), options=OPTIONS, jobs=2)
    with pytest.raises(UsageError, match="--jobs are processes of this machine"):
        verify(MODEL, "q8_1_naive", "cpu", options=OPTIONS, jobs=2, ray="local")
