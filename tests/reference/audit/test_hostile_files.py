"""Whole audits of hostile files: their cost, and the report on readers that give up on them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gguf_verify.audit.audit import audit
from gguf_verify.audit.record import AuditOptions
from gguf_verify.report.json import MOST_RANGES, MOST_TENSORS, of_audit
from gguf_verify.report.writer import Kind
from tests.support import hostile_files
from tests.support.reader_table import HANGS
from tests.support.shown import text_of

#: Runs the command line, and prints the cost of this process: exit code, seconds of the processor, KiB of memory.
MEASURED = """
import resource, sys
from gguf_verify.cli import main
code = main(sys.argv[1:])
used = resource.getrusage(resource.RUSAGE_SELF)
print("\\ntook", code, used.ru_utime + used.ru_stime, used.ru_maxrss, file=sys.stderr)
"""


def took(*argv: str) -> tuple[int, float, float]:
    """Exit code, seconds of the processor and MB of memory of our own process."""
    done = subprocess.run([sys.executable, "-c", MEASURED, *argv], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    words = done.stderr.splitlines()[-1].split()
    assert words[0] == "took"
    return int(words[1]), float(words[2]), int(words[3]) / 1024


#: 70,000 tensors and 3 million tokens; the others at the size of the promise.
SIZES = {"single values": 70_000 * 75, "tensors": 70_000 * 107, "gaps": 70_000 * 107, "shuffled tensors": 70_000 * 84,
         "empty tokens": 24_000_000, "empty tensors": 5_000_000}  # fmt: skip


@pytest.mark.parametrize("kind", hostile_files.KINDS)
def test_the_cost_of_an_audit_and_its_reports(kind: str, tmp_path: Path) -> None:
    """At most 300 MB above what an empty file takes. 5 s are promised of an idle machine: a busy one, and one half as
    fast, get four times as much."""
    path = hostile_files.make(kind, SIZES.get(kind, 31 << 20), tmp_path / "m.gguf")
    assert path.stat().st_size < 32 << 20
    empty = tmp_path / "empty.gguf"
    empty.touch()
    left = ["--no-readers", "--no-llama"]
    reports = ["-o", str(tmp_path / "r.json"), "-o", str(tmp_path / "r.html"), "-o", str(tmp_path / "r.sarif")]
    code, _, base = took("audit", str(empty), *left)
    assert code == 4
    code, seconds, memory = took("audit", str(path), *left, *reports)
    assert code in (0, 1, 4)
    assert seconds < 20
    assert memory - base < 300
    assert (tmp_path / "r.json").stat().st_size < 64 << 20
    assert (tmp_path / "r.html").stat().st_size < 16 << 20


def test_reports_count_omitted_parts(tmp_path: Path) -> None:
    path = hostile_files.make("single values", (MOST_TENSORS + 2000) * 75, tmp_path / "m.gguf")
    result = audit(path, AuditOptions(llama=False, readers=False, progress=False, digest=False))
    n = result.n_tensors
    assert n > MOST_TENSORS
    made = of_audit(result)
    ranges = len(result.files[0].byte_map)
    assert made["not_listed"] == {"byte_map": ranges - MOST_RANGES, "tensors": n - MOST_TENSORS,
                                  "unverified": len(result.unverified) - MOST_TENSORS} or made["not_listed"] == {
        "byte_map": ranges - MOST_RANGES, "tensors": n - MOST_TENSORS,
    }  # fmt: skip
    assert len(made["tensors"]) == MOST_TENSORS
    assert json.dumps(made)
    text = text_of(Kind.AUDIT, result, detail=2, byte_map=True)
    assert f"… and {n - 1000:,} more tensors" in text
    assert f"… and {ranges - 20_000:,} more ranges" in text


def test_readers_end_soon_after_our_own_refusal(tmp_path: Path) -> None:
    """A file that keeps gguf-py busy for as long as it may: its own limit is 60 s."""
    path = tmp_path / "m.gguf"
    path.write_bytes(HANGS.build().data)
    result = audit(path, AuditOptions(llama=False, progress=False))
    assert result.exit_code == 4
    assert [r.said for r in result.readings[0] if r.reader == "gguf-py"] == ["hung: no answer in 2 s"]


def test_the_time_limit_reaches_the_readers(tmp_path: Path) -> None:
    """A stopped reader is not compared: that is exit code 5, and no finding."""
    path = hostile_files.make("empty tokens", 8_000_000, tmp_path / "m.gguf")  # a million, which gguf-py reads for 10 s
    result = audit(path, AuditOptions(llama=False, progress=False, digest=False, time_limit=3.0))
    assert [r.said for r in result.readings[0] if r.reader == "gguf-py"] == ["hung: no answer in 3 s"]
    assert ("gguf-py's view of the file", "not compared: hung: no answer in 3 s") in result.unverified
    assert result.exit_code == 5
    assert "GGUF-114-reader-broke" not in {f.id for f in result.findings}
    assert "NOT VERIFIED gguf-py's view of the file: not compared: hung" in text_of(Kind.AUDIT, result)
