"""Reports and certificates of the tests are validated, in this process and in others: see `tests.support.validated`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gguf_verify.report.writer import Kind
from tests.support import validated
from tests.support.nights import run_report, run_result
from tests.support.shown import json_of

WRITES = "import sys; open(sys.argv[-1], 'w').write(sys.argv[1])"


def test_reports_of_this_process() -> None:
    found = run_result()
    json_of(Kind.RUN, found)
    found.to_json()
    assert validated.flaws() == []
    found.seconds = "long"  # type: ignore[assignment]
    for make in (lambda: json_of(Kind.RUN, found), found.to_json, found.to_dict):
        make()
        (said,) = validated.flaws()
        assert "a report of this process is not valid by run.schema.json: $.seconds: 'long'" in said


@pytest.mark.parametrize("flag", ["--json", "--certificate"])
def test_files_of_other_processes(tmp_path: Path, flag: str) -> None:
    whole = run_report()
    for made, flaw in (
        (whole, ""),
        ({**whole, "seconds": "long"}, "$.seconds"),
        ({"predicateType": 1}, "is not valid"),
    ):
        command = [sys.executable, "-c", WRITES, json.dumps(made), "gguf_verify", flag, "r.json"]
        subprocess.run(command, cwd=tmp_path, check=True)
        found = validated.flaws()
        assert len(found) == bool(flaw)
        assert all(flaw and flaw in each for each in found)
    subprocess.run([sys.executable, "-c", WRITES, "{", "stub", flag, str(tmp_path / "r.json")], check=True)
    assert not validated.flaws(), "a stand-in may write what it likes"
