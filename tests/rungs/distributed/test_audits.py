"""Workers of an audit: the files that they open, the identity that they check, and their results. Ray is not started
here."""

from __future__ import annotations

import dataclasses
import pickle
import shutil
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gguf_verify.audit.audit import audit
from gguf_verify.audit.elsewhere import Examined, Examiners
from gguf_verify.audit.record import Audit, AuditOptions
from gguf_verify.cli import main
from gguf_verify.distributed import audits
from gguf_verify.distributed.audits import AuditWork
from gguf_verify.distributed.identity import Expected
from gguf_verify.distributed.worker import Worker
from gguf_verify.llama.process import LlamaRefused
from gguf_verify.report.json import of_audit
from gguf_verify.rungs.pool import Step
from gguf_verify.support.errors import EnvironmentFault
from tests.support.ahead import without_times
from tests.support.importance_files import dat
from tests.support.tools import FIXTURES, split_model

MODEL, SOURCE = FIXTURES / "tiny-Q4_0.gguf", FIXTURES / "tiny-F16.gguf"
OPTIONS = AuditOptions(readers=False, progress=False)


class OneWorker:
    """A worker in this process; everything passes as pickles."""

    wanted = 3

    def __init__(self, work: AuditWork) -> None:
        self.worker = Worker(pickle.loads(pickle.dumps(work)))
        self.judged = list[Any]()

    def each(self, on: Any, plan: Generator[Step[Any]]) -> Iterator[tuple[Step[Any], Any]]:
        for step in plan:
            self.judged.append(step.task)
            found = pickle.loads(pickle.dumps(self.worker.judge(pickle.loads(pickle.dumps(step.task)))))
            if hasattr(found, "error"):
                raise found.error
            yield step, found.found


class There:
    """Examiners with one worker, of a work that a test may alter."""

    def __init__(
        self, options: AuditOptions, address: str = "local", known: dict[str, str] | None = None, **other: Any
    ) -> None:
        self._options, self._address, self._known, self._other = options, address, known or {}, other
        self.judged = list[Any]()

    @contextmanager
    def __call__(self, examined: Examined) -> Iterator[Examiners]:
        work = AuditWork.of(self._address, self._options, examined, 1)
        workers = OneWorker(dataclasses.replace(work, known=work.known | self._known, **self._other))
        try:
            yield audits._Examiners(workers, examined)
        finally:
            workers.worker.close()
            self.judged += workers.judged


def same(path: Path, **choices: Any) -> tuple[Audit, list[Any]]:
    """The audit in two processes, which is that in one; and the tasks."""
    options = dataclasses.replace(OPTIONS, **choices)
    there = There(options)
    made, here = audit(path, options, elsewhere=there), audit(path, options)
    assert without_times(of_audit(made)) == without_times(of_audit(here))
    return made, there.judged


def test_a_split_model_with_its_source_and_importance(tmp_path: Path) -> None:
    """Tensors without blocks, of several parts, in order, with the importance of some."""
    first, *_ = split_model(MODEL, tmp_path, 12)
    importance = dat(tmp_path / "imatrix.dat", {"blk.1.attn_q.weight": (np.linspace(1, 2, 256, dtype=np.float32), 1)})
    made, tasks = same(first, source=SOURCE, imatrix=importance)
    assert len(made.files) == 3
    assert len({task for task in tasks if isinstance(task, audits.ContentsOf)}) >= 5
    assert [c.tensor.name for c in made.comparisons] == [c.tensor.name for c in made.contents]
    assert any(c.with_importance for c in made.comparisons)


def test_selected_tensors_without_llama() -> None:
    made, _ = same(MODEL, tensor="attn_q", llama=False, digest=False)
    assert len(made.contents) == 3
    assert made.header.llama_cpp is None


def fault(address: str = "local", compared: Path | None = None, **other: Any) -> str:
    """Why an audit ends whose worker has something otherwise."""
    options = dataclasses.replace(OPTIONS, source=compared)
    made = audit(MODEL, options, elsewhere=There(options, address, **other))
    assert not made.contents
    assert (made.exit_code == 3) == bool(made.fault)
    return made.fault or ""


def test_another_file(tmp_path: Path) -> None:
    """Of the model, and of its source; on this machine by inode and time, else by content."""
    for original, name in ((MODEL, "path"), (SOURCE, "source")):
        content = bytearray(original.read_bytes())
        content[-1] ^= 1
        other = tmp_path / original.name
        other.write_bytes(content)
        for address in ("local", "auto"):
            changed: dict[str, Any] = {name: str(other)}
            said = fault(address, SOURCE, **changed)
            assert "finds another file as" in said
            assert said.startswith("a worker of Ray on ")


def test_the_same_content_on_another_machine(tmp_path: Path) -> None:
    shutil.copy(MODEL, tmp_path / "model.gguf")
    made = audit(MODEL, OPTIONS, elsewhere=There(OPTIONS, "auto", path=str(tmp_path / "model.gguf")))
    assert made.exit_code == 0
    assert len(made.contents) == 30


@pytest.mark.parametrize("name", ["code of gguf-verify", "llama.cpp (llama_cpp)", "sandbox"])
def test_another_machine(name: str) -> None:
    found = fault(known={name: "other"})
    assert f"another {name}: '" in found  # it has one
    assert "here 'other'" in found


def test_a_refusal_in_a_task_ends_the_audit_as_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Earlier results are reported, and later tensors are not reported as clean."""

    def refused(self: audits.ContentsOf, on: Any) -> Any:
        if "blk.1.attn_q.weight" in self.tensors:
            raise LlamaRefused("no more")
        return judge(self, on)

    judge = audits.ContentsOf.judge
    monkeypatch.setattr(audits.ContentsOf, "judge", refused)
    made = audit(MODEL, OPTIONS, elsewhere=There(OPTIONS))
    assert made.exit_code == 3
    assert made.fault == "no more"
    assert 0 < len(made.contents) < 30
    assert len(made.unverified) == 30 - len(made.contents)


def test_audits_that_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """A remote file, of which a sample is read, and one block."""
    for args in (["https://127.0.0.1:1/m.gguf"], [str(MODEL), "https://127.0.0.1:1/m.gguf"]):
        assert main(["audit", *args, "--ray", "local"]) == 2
        assert "a remote file is only sampled" in capsys.readouterr().err
    assert main(["audit", str(MODEL), "--tensor", "output.weight", "--block", "0", "--ray", "local"]) == 2
    assert "apply to a whole audit" in capsys.readouterr().err


def test_a_cell_checks_its_files_and_machine(tmp_path: Path) -> None:
    """The same files, model and others, and the same machine; a file that is nowhere is no other file."""
    model, kernel = tmp_path / "model.gguf", tmp_path / "kernel.py"
    shutil.copy(MODEL, model)
    kernel.write_text("1")
    for address in ("local", "auto"):
        expected = Expected.of(address, {"CPU": "a"}, [model, kernel, tmp_path / "none"])
        expected.check({"CPU": "a", "more": "b"})
        with pytest.raises(EnvironmentFault, match="another CPU"):
            expected.check({"CPU": "b"})
        kernel.write_text("2")
        with pytest.raises(EnvironmentFault, match="another file"):
            expected.check({"CPU": "a"})
        kernel.write_text("1")
    expected = Expected.of("auto", {}, [kernel])
    kernel.write_text("1")  # at another time
    expected.check({})
