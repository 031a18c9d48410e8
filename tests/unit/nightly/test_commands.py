"""The commands of `gguf-verify nightly`."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest

from gguf_verify.cli import main
from gguf_verify_nightly import night
from gguf_verify_nightly.history import History
from gguf_verify_nightly.night import Settings
from gguf_verify_nightly.records import Outcome
from tests.support.stub_nights import KEY, STUB, cell_for, write_config


def test_compare_status_and_pin(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_config(tmp_path)
    with History(tmp_path / "nightly.sqlite") as history:
        for number, outcome in ((1, Outcome.VERIFIED), (2, Outcome.VERIFIED), (3, Outcome.MISMATCH)):
            history.begin("night", [KEY], {"CPU": "x"}, "1")
            history.record(number, cell_for(outcome=outcome))
            history.finish(number)
        history.begin("another", [KEY], {"CPU": "x"}, "1")
        history.record(4, cell_for())
        history.finish(4)

    def said(*args: str) -> tuple[int, str]:
        code = main(["nightly", *args])
        out, err = capsys.readouterr()
        assert (out == "") != (err == "")
        return code, out or err

    assert said("compare", str(path))[0] == 1
    counts = "1 cells are in both, 0 of them verified in both"
    assert said("compare", str(path))[1].startswith(f"night 3 against night 2: {counts}\nNEW")
    assert said("compare", str(path), "--new", "2")[0] == 0
    assert said("compare", str(path), "--new", "1")[0] == 5
    assert said("pin", "base", str(path), "--night", "1") == (0, "night 1 now has the name base\n")
    assert said("compare", str(path), "--old", "base")[1].startswith("night 3 against night 1")
    assert "no night has the name basis; pinned names: base (1)" in said("compare", str(path), "--old", "basis")[1]
    assert said("compare", str(path), "--old", "77")[0] == 2
    assert said("pin", "7", str(path))[0] == 2
    code, text = said("status", str(path))
    assert code == 0
    assert [line.split(",")[0] for line in text.splitlines()] == [f"night {i} of night" for i in (3, 2, 1)]
    assert text.splitlines()[2].endswith("(base)")
    assert said("status", "--history", str(tmp_path / "nightly.sqlite"))[1].startswith("night 4 of another")
    assert said("pin", "newest", str(path))[1] == "night 3 now has the name newest\n"


def test_reports_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The night with what changed since the one before, in every form; what cannot be written is said beforehand."""
    monkeypatch.setattr(night, "Settings", functools.partial(Settings, harness=STUB))
    files = {kind: tmp_path / f"report.{kind}" for kind in ("html", "junit", "markdown", "json")}
    options = [word for kind, path in files.items() for word in (f"--{kind}", str(path))]
    path = write_config(tmp_path, story="pass")
    assert main(["nightly", "run", str(path), *options]) == 0
    assert json.loads(files["json"].read_text())["comparison"] is None
    path = write_config(tmp_path, story="mismatch")
    assert main(["nightly", "run", str(path), *options]) == 1
    said = json.loads(files["json"].read_text())
    assert [c["reason"] for c in said["comparison"]["new_failures"]]
    for kind in ("html", "junit", "markdown"):
        assert "row 3 is wrong" in files[kind].read_text()
    capsys.readouterr()
    for wrong in (["--html", str(tmp_path / "no" / "x")], ["--html", "x", "--json", "x"], ["--json", str(path)]):
        assert main(["nightly", "run", str(path), *wrong]) == 2
        assert capsys.readouterr().err.count("\n") == 1
    with History(tmp_path / "nightly.sqlite") as history:
        assert len(history.nights()) == 2
