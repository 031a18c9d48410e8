"""`gguf-verify audit` as a user runs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gguf_verify.gguf.model import open_model
from tests.support import corpus
from tests.support.processes import children, wait_until
from tests.support.tools import FIXTURES, ROOT, command_here, patched_block

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
    done = cli(Q4_0, "--json", report)
    assert (done.returncode, done.stderr) == (0, "")
    for said in ("CLEAN in", "each owned by one field: 100 %", "100 % of 81,920", "gguf-py     accepted, 30 tensors",
                 "llama.cpp   accepted and loaded, 30 tensors", "0 errors, 0 warnings, 0 notes"):  # fmt: skip
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
    assert done.stdout.rstrip().endswith(f"audit_layout.py {path} --no-readers")


def test_x_ray_by_all_addresses(tmp_path: Path) -> None:
    with open_model(Q5_1) as model:
        tensor = model.tensors["blk.0.attn_q.weight"]
        offset = tensor.block_offset(2, 1)
    name = ("--tensor", "blk.0.attn_q.weight")
    report = tmp_path / "x.json"
    runs = [
        command_here("audit", Q5_1, *name, "--block", 2 * tensor.blocks_per_row + 1, "--json", report),
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
    (["--json", "/nowhere/x.json"], "cannot write"),
    (["--json", str(Q4_0)], "overwrite a model"),
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
    done = command_here("audit", Q4_0, "--no-sha256", "--no-readers", "--source", F16, "--json", tmp_path / "a.json")
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
