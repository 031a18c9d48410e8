"""Work that no process of Ray can or may judge: one line, and nothing is judged. Ray is not started here."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gguf_verify.cli import main
from gguf_verify.distributed import identity, runs, worker
from gguf_verify.distributed.judges import judges
from gguf_verify.distributed.runs import RunWork
from gguf_verify.kernels.by_name import open_kernel
from gguf_verify.results.options import Options
from gguf_verify.rungs.opening import Request, open_run
from gguf_verify.rungs.pool import Judged, Refused
from gguf_verify.rungs.run import Run
from gguf_verify.support.errors import EnvironmentFault, HarnessError, KernelFinding, UsageError
from gguf_verify_nightly.history import History
from tests.support.stub_nights import write_config
from tests.support.tools import FIXTURES

MODEL = FIXTURES / "tiny-Q4_0.gguf"
OPTIONS = Options(progress=False, threads=1)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"path": object()}, "by its path"),
        ({"kernel": print}, "by their names"),
        ({"host": object()}, "by their names"),
    ],
)
def test_requests_that_no_other_process_can_open(asked: dict[str, Any], words: str) -> None:
    given: dict[str, Any] = {"path": MODEL, "kernel": "q8_1_naive", "host": "cpu", "options": OPTIONS} | asked
    with pytest.raises(UsageError, match=words), judges(None, Request(ray="local", **given)):
        pass


def test_commands_without_ray(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Each refuses before it begins anything: no night is in the history."""
    monkeypatch.setattr("gguf_verify.distributed.judges.find_spec", lambda name: None)
    night = write_config(tmp_path)
    for args in (
        [str(MODEL), "--rungs", "blocks", "--host", "cpu", "--progress", "never"], ["nightly", "run", str(night)],
        ["audit", str(MODEL)], ["kernel", "q8_1_naive", "--type", "Q4_0", "--host", "cpu"],
        ["identify", "q8_1", str(MODEL), "--host", "cpu"],
    ):  # fmt: skip
        assert main([*args, "--ray", "local"]) == 3
        said = capsys.readouterr()
        assert "pip install 'ray" in said.err
        assert not said.out
    with History(tmp_path / "nightly.sqlite") as history:
        assert not history.nights()


@pytest.mark.needs("ray")
@pytest.mark.parametrize(
    ("address", "words"), [("nowhere", "HOST:PORT"), ("127.0.0.1:1", "refused"), ("127.0.0.1:99999", "HOST:PORT")]
)
def test_an_address_at_which_no_cluster_is(address: str, words: str) -> None:
    """It fails at once; Ray would try for minutes."""
    with (
        pytest.raises(EnvironmentFault, match=f"no cluster of Ray answers there: .*{words}"),
        judges(None, Request(MODEL, "q8_1_naive", "cpu", options=OPTIONS, ray=address)),
    ):
        pass


# ---- a worker that is not as this process ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def work() -> Iterator[RunWork]:
    with open_run(MODEL, "q8_1_naive", "cpu", OPTIONS) as run:
        try:
            yield RunWork.of(run, str(MODEL), "q8_1_naive", "cpu", OPTIONS)
        finally:
            run.close()


def opened(work: RunWork, **other: Any) -> str | None:
    of = worker.Worker(dataclasses.replace(work, **other))
    try:
        fault = of.open()
        assert fault is None or of.judge(None) is fault
        return None if fault is None else str(fault.error)
    finally:
        of.close()


def test_the_same(work: RunWork) -> None:
    assert opened(work) is None


def test_the_same_content_elsewhere(work: RunWork, tmp_path: Path) -> None:
    shutil.copy(MODEL, tmp_path / "model.gguf")
    assert opened(work, path=str(tmp_path / "model.gguf")) is None


def test_another_file(work: RunWork, tmp_path: Path) -> None:
    content = bytearray(MODEL.read_bytes())
    content[-1] ^= 1
    (tmp_path / "model.gguf").write_bytes(content)
    said = opened(work, path=str(tmp_path / "model.gguf"))
    assert said is not None
    assert "another file" in said
    assert "\n" not in said


def test_no_file(work: RunWork, tmp_path: Path) -> None:
    said = opened(work, path=str(tmp_path / "model.gguf"))
    assert said is not None
    assert said.startswith("a worker of Ray on ")


@pytest.mark.parametrize("name", ["sandbox", "code of gguf-verify", "device", "kernel"])
def test_another_machine(work: RunWork, name: str) -> None:
    """A worker that cannot be confined as this process is judges nothing; neither does one of another code."""
    said = opened(work, known=work.known | {name: "other"})
    assert said is not None
    assert f"another {name}" in said


def test_a_sandbox_that_is_not_there(work: RunWork, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: Any) -> Any:
        raise EnvironmentFault("--sandbox bubblewrap: it is not installed")

    monkeypatch.setattr(runs, "sandboxed", none)
    assert (opened(work) or "").endswith(": --sandbox bubblewrap: it is not installed")


def test_errors_are_passed_on_as_values() -> None:
    """With their type where another process can make them again, and else with their words."""
    assert isinstance(Refused.of(UsageError("no")).error, UsageError)
    odd = Refused.of(KernelFinding("race", "words")).error
    assert isinstance(odd, HarnessError)
    assert str(odd) == "words"


def test_kernels_of_one_name(work: RunWork, tmp_path: Path) -> None:
    """The file of a kernel is compared by its content."""
    file = tmp_path / "kernel.py"
    shutil.copy(FIXTURES.parent / "examples" / "numpy_q4_0.py", file)
    with open_kernel(f"{file}:gemm", "cpu", 1) as kernel:
        run = Run(None, kernel, OPTIONS)
        before = identity.identity(run, f"{file}:gemm")
        file.write_text(file.read_text() + "\n")
        after = identity.identity(run, f"{file}:gemm")
        run.close()
    identity.check(before, before)
    with pytest.raises(EnvironmentFault, match="kernel's file"):
        identity.check(before, after)


def test_a_task_gets_the_time_that_is_left(work: RunWork) -> None:
    """A task gets the remaining time, and the reason if there is none."""

    class Asks:
        def judge(self, run: Run) -> Any:
            return run.budget.limited, run.budget.spent, run.budget.words

    of = worker.Worker(work)
    try:
        assert of.judge(Asks()) == Judged((False, False, ""))
        assert of.judge(Asks(), 1e6, "why") == Judged((True, False, "why"))
        assert of.judge(Asks(), 0.0, "why") == Judged((True, True, "why"))
    finally:
        of.close()
