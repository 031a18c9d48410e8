"""Several files and folders in one command: one line for each, the worst exit code, reports that hold all of them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from gguf_verify.audit.many import Audits, Unopened, gguf_files
from gguf_verify.report.writer import Kind
from gguf_verify.support.errors import UsageError
from tests.support import corpus
from tests.support.audits import TINY, run
from tests.support.shown import json_of, text_of, written
from tests.support.tools import command_here, patched_block, split_model


def crafted(slug: str, path: Path) -> Path:
    entry = next(e for e in corpus.BAD if e.slug == slug)
    path.write_bytes(entry.build().data)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("files")
    (made / "deep").mkdir()
    shutil.copy(TINY["Q4_0"], made / "a.gguf")
    patched_block(TINY["Q5_1"], made / "deep" / "b.gguf", "blk.0.attn_v.weight", 1, 1, 0, b"\x00\xfe")
    crafted("trailing", made / "warned.gguf")
    crafted("magic", made / "z.gguf")
    (made / "notes.txt").write_text("no model")
    split_model(TINY["Q4_0"], made, 12)
    return made


def test_folders_are_searched_and_split_models_named_once(folder: Path) -> None:
    names = [p.relative_to(folder).as_posix() for p in gguf_files([folder, folder / "a.gguf"])]
    assert len(names) == len(set(names)) == 5
    assert [n for n in names if "-of-" in n] == [n for n in names if "-00001-of-" in n] != []
    (folder / "empty").mkdir(exist_ok=True)
    with pytest.raises(UsageError, match=r"no \.gguf file"):
        gguf_files([folder / "empty"])


def test_a_line_for_each_and_the_worst_code(folder: Path, tmp_path: Path) -> None:
    out = {kind: tmp_path / f"out.{kind}" for kind in ("json", "html", "sarif")}
    flags = [word for kind, path in out.items() for word in (f"--{kind}", path)]
    done = command_here("audit", folder, tmp_path / "none.gguf", "--no-readers", *flags)
    assert (done.returncode, done.stderr) == (4, "")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("REFUSED: 6 files: ")
    verdicts = [line.partition(":")[0] for line in lines if ".gguf: " in line and not line.startswith(" ")]
    assert sorted(verdicts) == ["BROKEN OFF", "CLEAN", "CLEAN", "REFUSED", "WARNINGS", "WRONG"]
    assert any("GGUF-100-scale-not-finite at bytes " in line for line in lines)
    whole = json.loads(out["json"].read_text())
    assert (whole["kind"], whole["exit_code"], len(whole["audits"])) == ("audits", 4, 6)
    results = json.loads(out["sarif"].read_text())["runs"][0]["results"]
    assert {"GGUF-100-scale-not-finite", "GGUF-048-trailing", "not-opened"} <= {r["ruleId"] for r in results}
    page = out["html"].read_text()
    assert all(name in page for name in ("a.gguf", "b.gguf", "warned.gguf", "none.gguf"))


@pytest.mark.parametrize(("codes", "worst"), [
    ([0, 5, 3, 1, 4], 4), ([0, 5, 3, 1], 1), ([0, 5, 2, 3], 3), ([0, 5, 2], 2), ([5, 0], 5), ([0], 0), ([], 0),
])  # fmt: skip
def test_precedence(codes: list[int], worst: int) -> None:
    assert Audits(tuple(Unopened(Path("x"), "why", code) for code in codes)).exit_code == worst


def test_no_warning_stands_beside_clean(tmp_path: Path) -> None:
    """Bytes that are never read could hide anything."""
    for slug in ("trailing", "gap", "nonzero-padding"):
        result = run(crafted(slug, tmp_path / f"{slug}.gguf"), readers=False)
        assert (result.exit_code, result.verdict) == (0, "warnings")
        text = text_of(Kind.AUDIT, result)
        assert "CLEAN" not in text
        assert text.splitlines()[0].startswith("WARNINGS: ")
        assert "no errors, but 1 warning" in text.splitlines()[0]


def test_one_notation_for_bytes(tmp_path: Path) -> None:
    """Decimal, and half-open: in findings, the map, the X-ray, JSON, SARIF and HTML."""
    path = patched_block(TINY["Q4_0"], tmp_path / "m.gguf", "blk.0.attn_q.weight", 2, 1, 0, b"\x00\x7c")
    result = run(path, readers=False)
    (found,) = result.findings
    start, stop = found.start, found.start + 18
    assert found.stop == stop
    text = text_of(Kind.AUDIT, result, byte_map=True)
    assert f"at bytes {start}-{stop}" in text
    assert "0x" not in text
    as_json = json_of(Kind.AUDIT, result)["findings"][0]
    assert (as_json["start"], as_json["stop"]) == (start, stop)
    region = json.loads(written("--sarif", Kind.AUDIT, result))["runs"][0]["results"][0]["locations"][0]
    assert region["physicalLocation"]["region"] == {"byteOffset": start, "byteLength": 18}
    assert f"bytes {start}-{stop}" in str(written("--html", Kind.AUDIT, result))
    shown = command_here("audit", path, "--offset", start)
    assert f"bytes    {start}-{stop}, 18 bytes" in shown.stdout
