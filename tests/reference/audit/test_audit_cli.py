"""`gguf-verify audit` as a user runs it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gguf_verify.audit.many import Audits, Unopened, gguf_files
from gguf_verify.gguf.model import open_model
from gguf_verify.report.writer import Kind
from gguf_verify.support.errors import UsageError
from tests.support import corpus
from tests.support.audits import TINY, run
from tests.support.processes import children, wait_until
from tests.support.shown import json_of, last_line, text_of, written
from tests.support.tools import FIXTURES, ROOT, command_here, patched_block, split_model

SCRIPT = ROOT / "scripts" / "audit_layout.py"
Q4_0, Q5_1, F16 = (FIXTURES / f"tiny-{name}.gguf" for name in ("Q4_0", "Q5_1", "F16"))


def cli(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *map(str, arguments)], capture_output=True, text=True, timeout=300,
        env={**os.environ, **environment}, check=False,
    )  # fmt: skip


def one_line(done: subprocess.CompletedProcess[str], code: int) -> str:
    """Of an error: the exit code, nothing on stdout, one line on stderr."""
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert done.stderr.startswith("gguf-verify: ")
    assert done.stderr.count("\n") == 1
    return done.stderr


def test_a_clean_file(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    done = cli(Q4_0, "-o", report)
    assert (done.returncode, done.stderr) == (0, "")
    for said in ("CLEAN in", "each owned by one field: 100 %", "100 % of 81,920", "gguf-py     accepted, 30 tensors",
                 "llama.cpp   accepted and loaded, 30 tensors", "no errors, no warnings\n"):  # fmt: skip
        assert said in done.stdout
    assert json.loads(report.read_text())["verdict"] == "clean"


def test_the_other_ways_to_call_it() -> None:
    for command in (["-m", "gguf_verify", "audit"], [str(ROOT / "scripts" / "verify_model.py"), "audit"]):
        done = subprocess.run(
            [sys.executable, *command, str(Q4_0), "--no-readers"], capture_output=True, text=True, cwd=ROOT, check=False
        )
        assert done.returncode == 0
        assert "CLEAN in" in done.stdout


@pytest.mark.parametrize("name", ["trailing", "data truncated by one byte"])
def test_warning_and_refusal(name: str, tmp_path: Path) -> None:
    entry = next(e for e in corpus.BAD if e.name.startswith(name))
    path = tmp_path / "m.gguf"
    path.write_bytes(entry.build().data)
    codes = [command_here("audit", path, *flags).returncode for flags in ((), ("--strict",))]
    assert codes == ([0, 1] if entry.effect == "warning" else [4, 4])
    done = command_here("audit", path, "--map")
    assert "Traceback" not in done.stderr
    assert f"GGUF-{'048' if entry.effect == 'warning' else '046'}-" in done.stdout
    assert "trailing" in done.stdout or "REFUSED" in done.stdout


def test_findings_repeat(tmp_path: Path) -> None:
    path = patched_block(Q5_1, tmp_path / "m.gguf", "blk.0.attn_v.weight", 1, 1, 0, b"\x00\xfe")
    done = cli(path, "--no-readers")
    assert done.returncode == 1
    assert "GGUF-100-scale-not-finite" in done.stdout
    assert "row 1 block 1" in done.stdout
    assert done.stdout.splitlines()[-2].endswith(f"audit_layout.py {path} --no-readers")


def test_x_ray_by_all_addresses(tmp_path: Path) -> None:
    with open_model(Q5_1) as model:
        tensor = model.tensors["blk.0.attn_q.weight"]
        offset = tensor.block_offset(2, 1)
    name = ("--tensor", "blk.0.attn_q.weight")
    report = tmp_path / "x.json"
    runs = [
        command_here("audit", Q5_1, *name, "--block", 2 * tensor.blocks_per_row + 1, "-o", report),
        command_here("audit", Q5_1, *name, "--row", 2, "--block", 1),
        command_here("audit", Q5_1, "--offset", str(offset)),
        command_here("audit", Q5_1, "--offset", hex(offset)),
    ]
    assert {done.returncode for done in runs} == {0}
    # an offset is explained in a line of its own above the bytes
    assert len({done.stdout[done.stdout.index(f"{offset}  ") :] for done in runs}) == 1
    assert "all 32 values have the bits of llama.cpp's" in runs[0].stdout
    assert "\x1b" not in runs[0].stdout
    plain = json.loads(report.read_text())
    assert plain["kind"] == "x-ray"
    assert plain["xray"]["offset"] == offset


@pytest.mark.parametrize(("arguments", "said"), [
    (["--tensor", "blk.0.attn_q.weigh", "--block", "0"], "blk.0.attn_q.weight"),
    (["--tensor", "blk.0.attn_q.weight", "--block", "99999"], "blocks 0 to 2047"),
    (["--tensor", "blk.0.attn_q.weight", "--row", "-1", "--block", "0"], "row"),
    (["--block", "3"], "which block?"),
    (["--offset", "0"], "magic"),
    (["--offset", "1e3"], "--offset"),
    (["--offset", "99999999"], "byte"),
    (["--offset", "300000", "--part", "2"], "part"),
    (["--offset", "300000", "--strict"], "--strict"),
    (["--tensor", "("], "regular expression"),
    (["--tensor", "none of them"], "no tensor matches"),
    (["-t", "9999"], "-t must be"),
    (["-o", "/nowhere/x.json"], "cannot write"),
    (["-o", str(Q4_0)], "overwrite a model"),
])  # fmt: skip
def test_usage(arguments: list[str], said: str) -> None:
    assert said in one_line(command_here("audit", Q4_0, *arguments), 2)


def test_files_that_are_none(tmp_path: Path) -> None:
    assert "No such file" in one_line(command_here("audit", tmp_path / "none.gguf"), 2)
    assert "no .gguf file in" in one_line(command_here("audit", tmp_path), 2)
    empty = tmp_path / "empty.gguf"
    empty.touch()
    done = command_here("audit", empty)
    assert done.returncode == 4
    assert "an empty file" in done.stdout
    assert "No such file" in one_line(command_here("audit", Q4_0, "--source", tmp_path / "none.gguf"), 2)


@pytest.mark.parametrize("when", ["importing", "running"])
def test_interrupted(when: str) -> None:
    """While modules are loaded, and when llama.cpp's process is there."""
    process = subprocess.Popen(
        [sys.executable, "-X", "importtime", str(SCRIPT), str(Q4_0)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a background job ignores it
    )  # fmt: skip
    assert process.stderr is not None
    mark = "numpy._core" if when == "importing" else "gguf_verify.llama.process"
    while mark not in process.stderr.readline():
        assert process.poll() is None
    if when == "running":
        wait_until(lambda: process.poll() is not None or bool(children(process.pid)))
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130 or (when == "running" and process.returncode == 0)  # it may have been done
    assert "Traceback" not in said


def test_no_sha256(tmp_path: Path) -> None:
    done = command_here("audit", Q4_0, "--no-sha256", "--no-readers", "--source", F16, "-o", tmp_path / "a.json")
    assert done.returncode == 0
    assert done.stdout.count("not computed") == 2
    header = json.loads((tmp_path / "a.json").read_text())["header"]
    assert header["sha256"] is header["source sha256"] is None


def test_standard_output_is_closed() -> None:
    process = subprocess.Popen([sys.executable, str(SCRIPT), str(Q4_0)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(timeout=60) == 0
    assert process.stderr is not None
    assert process.stderr.read() == b""


# ---- many files ------------------------------------------------------------------------------------------------------
# Several files and folders in one command: one line for each, the worst exit code, reports that hold all of them.


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
    flags = [word for path in out.values() for word in ("-o", path)]
    done = command_here("audit", folder, tmp_path / "none.gguf", "--no-readers", *flags)
    assert (done.returncode, done.stderr) == (4, "")
    lines = done.stdout.splitlines()
    assert lines[-1].startswith("REFUSED in ")
    assert " s: 6 files: " in lines[-1]
    verdicts = [line.partition(":")[0] for line in lines if re.match(r"[A-Z ]+: \S+\.gguf\b", line)]
    assert sorted(verdicts) == ["BROKEN OFF", "CLEAN", "CLEAN", "REFUSED", "WARNINGS", "WRONG"]
    assert any("GGUF-100-scale-not-finite at bytes " in line for line in lines)
    whole = json.loads(out["json"].read_text())
    assert (whole["kind"], whole["exit_code"], len(whole["audits"])) == ("audits", 4, 6)
    results = json.loads(out["sarif"].read_text())["runs"][0]["results"]
    assert {"GGUF-100-scale-not-finite", "GGUF-048-trailing", "not-opened"} <= {r["ruleId"] for r in results}
    page = out["html"].read_text()
    assert all(name in page for name in ("a.gguf", "b.gguf", "warned.gguf", "none.gguf"))


def test_findings_beyond_the_limit_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "nan.gguf"
    raw = bytearray(TINY["Q4_0"].read_bytes())
    with open_model(TINY["Q4_0"]) as model:
        starts = [t.offset for t in model.tensors.values() if t.type.name == "Q4_0"]
    for start in starts:
        raw[start : start + 2] = b"\x00\x7e"
    path.write_bytes(raw)
    result = run(path, readers=False, llama=False)
    assert len(starts) == 23 > len(result.findings)
    assert (result.sentence, result.counts) == ("23 errors", {"error": 23})
    text = text_of(Kind.AUDIT, result)
    assert " s: 23 errors · first: " in last_line(text)
    assert "23 tensors, 23 blocks; less than 0.1 % of the Q4_0 blocks\n" in text
    made = json_of(Kind.AUDIT, result)
    assert made["not_listed"] == {"findings": 23 - len(made["findings"])}


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
        assert last_line(text).startswith("WARNINGS in ")
        assert "no errors, but 1 warning; 1 note · first: " in last_line(text)


def test_findings_of_one_rule_are_one_entry(tmp_path: Path) -> None:
    """With the number of tensors and blocks, the share of each type, the worst tensor, and whether it matters."""
    path = TINY["Q4_0"]
    for i, tensor in enumerate(("blk.0.attn_q", "blk.1.attn_k", "blk.1.attn_k", "blk.2.ffn_up")):
        path = patched_block(path, tmp_path / f"{i}.gguf", f"{tensor}.weight", i, 1, 0, b"\x01\x00")
    result = run(path, readers=False, llama=False)
    text = text_of(Kind.AUDIT, result)
    named = [line for line in text.splitlines() if "GGUF-103" in line]
    assert named == ["note    GGUF-103-scale-subnormal: 3 tensors, 4 blocks; less than 0.1 % of the Q4_0 blocks"]
    assert "the worst: blk.1.attn_k.weight (Q4_0), 2 of 1,024 blocks (0.2 %)\n" in text
    assert text.count(": found ") == text.count(": found 2 blocks of 'blk.1.attn_k.weight' (Q4_0) ") == 1
    assert "Nothing needs to be done unless a kernel loses these blocks." in text
    assert last_line(text).endswith(": no errors, no warnings; not compared with llama.cpp; 3 notes")
    assert text_of(Kind.AUDIT, result, detail=1).count("GGUF-103-scale-subnormal at bytes") == 3
    assert text_of(Kind.AUDIT, result, detail=-1) == f"{last_line(text)}\n"


def test_the_most_severe_finding_is_in_the_last_line(tmp_path: Path) -> None:
    path = patched_block(TINY["Q4_0"], tmp_path / "a.gguf", "blk.0.attn_q.weight", 0, 0, 0, b"\x01\x00")
    path = patched_block(path, tmp_path / "b.gguf", "blk.1.attn_q.weight", 0, 0, 0, b"\x00\x7c")
    line = last_line(text_of(Kind.AUDIT, run(path, readers=False, llama=False)))
    assert re.match(r"WRONG in [\d.]+ s: 1 error; 1 note · first: GGUF-100-scale-not-finite at bytes \d+-\d+ · ", line)
    assert " · fix: Check the source model for weights beyond 65504; quantize or download it again · " in line
    assert line.endswith(" · more: gguf-verify explain GGUF-100-scale-not-finite")


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
