"""The command line: exit codes, one clear line for bad input, no traceback, no child left behind."""

from __future__ import annotations

import json
import os
import re
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import gguf
import numpy as np
import pytest

from gguf_verify.hosts.kinds.gpu import gpu_fault
from gguf_verify.llama.library import Llama
from tests.support.nights import validator
from tests.support.processes import children, gone, wait_until
from tests.support.shown import last_line
from tests.support.tools import (
    FIXTURES,
    ROOT,
    assert_one_line,
    cli,
    cli_here,
    command_here,
    flat,
    patched,
    patched_block,
)

SCRIPT = ROOT / "scripts" / "verify_model.py"
Q4_0 = FIXTURES / "tiny-Q4_0.gguf"


def test_a_pass_fits_on_one_screen(tmp_path: Path) -> None:
    out, page = tmp_path / "report.json", tmp_path / "report.html"
    done = cli_here(Q4_0, "-p", "Once upon", "-n", 3, "--seed", 0, "--host", "cpu", "-o", out, "-o", page)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[-1].startswith("VERIFIED (quick; 3 of 32 tokens) in ")
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    text = done.stdout
    for part in ("llama.cpp 0.", "sha256", "cpu:", "kernel ", "bytes   passed", "of the bound", "holds for "):
        assert part in text
    assert "seed 0" in text
    report = json.loads(out.read_text())
    assert report["schema"] == 4
    assert report["verdict"] == "verified"
    assert [r["name"] for r in report["rungs"]] == ["bytes", "blocks", "layers", "tokens"]
    assert len(report["rungs"][2]["details"]) == 22
    assert report["environment"]["file"]["sha256"][0] in text
    validator("run").validate(report)
    headroom = report["rungs"][2]["headroom"]
    assert 0 < abs(headroom["value"]) < headroom["limit"] == 65504
    assert ">Verified (quick; 3 of 32 tokens)</h1>" in page.read_text()
    assert report["environment"]["file"]["sha256"][0] in page.read_text()


def test_quiet_is_the_last_line_alone() -> None:
    done = cli_here(Q4_0, "--rungs", "bytes", "-q")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"VERIFIED: file bytes only in [\d.]+ s: 1 of 1 rung passed\n", done.stdout)
    both = cli_here(Q4_0, "-q", "-v")
    assert both.returncode == 2
    assert "not allowed with argument" in both.stderr


def test_verbose_has_a_line_for_each_gemm_and_all_that_a_pass_leaves_out(tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    chosen = r"blk\.0\.attn_q|blk\.2\.ffn_down|^output\."
    done = cli_here(Q4_0, "--rungs", "layers", "-p", "Once", "-vv", "--tensor", chosen, "-o", out)
    assert done.returncode == 0
    headroom = json.loads(out.read_text())["rungs"][0]["headroom"]
    assert f"range {headroom['tensor']}: the largest half" in flat(done.stdout)
    line = f"times 65504, at token {headroom['token']}, block {headroom['block']}; llama.cpp's CUDA backend"
    for part in (
        line,
        "gap to llama.cpp, worst NMSE: ",
        "output of worst score",
        "by auto: CuPy" if gpu_fault() else "",
    ):
        assert part in flat(done.stdout)
    for name in ("blk.0.attn_q.weight", "blk.2.ffn_down.weight", "output.weight"):
        assert any(line.startswith("layers: ") and name in line for line in done.stdout.splitlines())


def test_a_failure_says_how_to_repeat_it(tmp_path: Path) -> None:
    path = patched_block(Q4_0, tmp_path / "nan.gguf", "blk.0.attn_q.weight", 9, 3, 0, b"\x00\x7e")
    out = tmp_path / "r.json"
    page = tmp_path / "r.html"
    done = cli(path, "--rungs", "bytes", "-o", out, "-o", page)
    assert done.returncode == 1
    assert "blk.0.attn_q.weight row 9 block 3" in done.stdout
    validator("run").validate(json.loads(out.read_text()))
    assert "<code>00 7e</code>" in page.read_text()
    assert "<b>nan</b>" in page.read_text()
    assert "block at byte" in done.stdout
    script = ROOT / "scripts" / "verify_model.py"
    repeat = f"python {script} {path} -s 0 --effort quick --rungs bytes --tensor '^blk[.]0[.]attn_q[.]weight$'"
    assert f"repeat with: {repeat}\n" in done.stdout
    assert json.loads(out.read_text())["rungs"][0]["failures"][0]["block_hex"].startswith("007e")


def test_not_finite_numbers_are_strings_in_json(tmp_path: Path) -> None:
    path = patched_block(Q4_0, tmp_path / "inf.gguf", "blk.0.attn_q.weight", 9, 3, 0, b"\x00\x7c")
    out = tmp_path / "r.json"
    done = cli_here(path, "--rungs", "layers", "--tensor", "blk.0.attn_q", "-o", out)
    assert done.returncode == 1
    text = out.read_text()
    assert "NaN" in text or "Infinity" in text
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def test_missing_file(tmp_path: Path) -> None:
    assert_one_line(cli_here(tmp_path / "no.gguf"), 2, "No such file")


def test_directory(tmp_path: Path) -> None:
    assert_one_line(cli_here(tmp_path), 2, "a directory")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "empty"),
        (b"Once upon a time\n" * 40, "magic"),
        (Q4_0.read_bytes()[:100_000], "ends after 100,000 of at least 1,495,200 bytes"),
    ],
    ids=["empty", "text", "truncated"],
)
def test_no_gguf(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(content)
    assert_one_line(cli_here(path), 4, said)


def writer(path: Path) -> gguf.GGUFWriter:
    w = gguf.GGUFWriter(path, "llama")
    w.add_tokenizer_model("llama")
    w.add_token_list(["<unk>", "<s>", "</s>"])
    return w


def finish(w: gguf.GGUFWriter) -> None:
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def test_vocabulary_only(tmp_path: Path) -> None:
    path = tmp_path / "vocab.gguf"
    finish(writer(path))
    assert_one_line(cli_here(path), 5, "nothing to verify .* no tensor")


def test_vectors_only(tmp_path: Path) -> None:
    path = tmp_path / "vectors.gguf"
    w = writer(path)
    w.add_tensor("output_norm.weight", np.ones(32, np.float32))
    finish(w)
    assert_one_line(cli_here(path), 5, "nothing to verify .* it holds 1 tensor, but no matrix")


def test_split_with_a_part_missing(tmp_path: Path) -> None:
    path = tmp_path / "model-00001-of-00002.gguf"
    w = writer(path)
    w.add_uint16("split.count", 2)
    w.add_uint16("split.no", 0)
    w.add_int32("split.tensors.count", 4)
    finish(w)
    assert_one_line(cli_here(path), 4, "model-00002-of-00002.gguf")


def test_a_mix_of_types(tmp_path: Path, llama: Llama) -> None:
    """llama.cpp's usual Q4_0 mix holds Q6_K too: every matrix is verified."""
    path = tmp_path / "mixed-Q4_0.gguf"
    llama.quantize_file(FIXTURES / "tiny-F16.gguf", path, 2, pure=False)
    done = cli_here(path, "-n", 2)
    assert done.returncode == 0, done.stdout
    assert "Q6_K" in done.stdout
    assert "NOT VERIFIED" not in done.stdout


def test_a_model_that_llama_refuses(tmp_path: Path) -> None:
    raw = Q4_0.read_bytes()
    at = raw.index(b"general.architecture") + len("general.architecture") + 4 + 8
    assert raw[at : at + 5] == b"llama"
    done = cli_here(patched(Q4_0, tmp_path / "x.gguf", at, b"llamb"), "-n", 2)
    assert done.returncode == 5
    assert "bytes   passed" in done.stdout
    said = "error loading model: unknown model architecture: 'llamb' (at fault: llama.cpp)"
    assert f"NOT VERIFIED layers: all GEMMs: {said}" in flat(done.stdout)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--kernel", "foo"], "no kernel is called 'foo'; there are: q8_1, f16, f32, f16_naive"),
        (["--rungs", "foo"], "no rung is called foo"),
        (["--rungs", ","], "no rung is called"),
        (["--tensor", "nothing-is-called-so"], "no tensor matches"),
        (["--tensor", "("], "not a regular expression"),
        (["-n", "0"], "-n must be from 1"),
        (["-n", "4294967300"], "-n must be from 1"),
        (["-t", "100000"], "-t must be from 0"),
        (["--time-limit", "inf"], "--time-limit must be from"),
        (["--tensor", "output_norm"], "no matrix matches"),
        (["-c", "4"], "do not fit a context of 4"),
        (["-f", "/no/such/prompt"], "cannot read the prompt"),
        (["--rungs", "bytes", "-o", "/no/such/folder/r.json"], "cannot write"),
        (["--rungs", "bytes", "-o", "model.gguf"], "would overwrite a model"),
        (["--rungs", "bytes", "-o", "/no/such/folder/r.html"], "cannot write"),
        (["--rungs", "bytes", "-o", "model.gguf"], "-o/--output would overwrite a model"),
        (["--rungs", "bytes", "-o", "r", "-o", "./r"], "names the same file twice"),
        (["-o", "r.pdf"], "the ending selects the format"),
        (["--rungs", "bytes", "-o", str(Q4_0)], "would overwrite a model"),
        (["-p", "\udcff"], "the prompt is not UTF-8"),
    ],
)
def test_usage(arguments: list[str], said: str) -> None:
    done = command_here(Q4_0, *arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.skipif(gpu_fault() is None, reason="this machine has a GPU")
def test_no_gpu_is_no_silent_fallback() -> None:
    assert_one_line(cli_here(Q4_0, "--host", "gpu"), 3, "the GPU host cannot be used")


def test_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/no/compiler")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    done = cli_here(Q4_0, "--host", "cpu", "--rungs", "blocks")
    assert_one_line(done, 3, "no C.. compiler found")


def test_what_was_found_is_not_lost_when_the_graph_cannot_be_evaluated(tmp_path: Path) -> None:
    """A NaN scale in a file without layers: a mismatch, and the reports are written."""
    path = patched_block(Q4_0, tmp_path / "x.gguf", "blk.0.attn_q.weight", 9, 3, 0, b"\x00\x7e")
    key = b"llama.block_count"
    at = path.read_bytes().index(key) + len(key) + 4
    path = patched(path, tmp_path / "y.gguf", at, bytes(4))
    out = tmp_path / "r.json"
    done = cli_here(path, "-n", 1, "-v", "-o", out)
    assert done.returncode == 1
    assert "blk.0.attn_q.weight row 9 block 3" in flat(done.stdout)
    assert re.search("(BROKEN OFF|NOT VERIFIED) layers", done.stdout)
    assert json.loads(out.read_text())["exit_code"] == 1


def test_empty_tensors_of_many_rows_do_not_hang(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(crafted_empty(2**40))
    done = cli_here(path, "--rungs", "bytes")
    assert done.returncode == 5
    assert "1 empty tensor" in done.stdout


def crafted_empty(rows: int) -> bytes:
    """A version 3 file of one Q4_0 tensor with rows of no values."""
    name = b"blk.0.attn_q.weight"
    info = struct.pack("<Q", len(name)) + name + struct.pack("<IQQIQ", 2, 0, rows, 2, 0)
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + info
    return head + bytes(-len(head) % 32)


def test_a_terminal_without_unicode_in_a_downloaded_folder(tmp_path: Path) -> None:
    """It may hold anything: a llama_cpp.py in it must not run."""
    (tmp_path / "llama_cpp.py").write_text("open('ran', 'w')")
    command = [sys.executable, str(SCRIPT), str(Q4_0), "--rungs", "bytes"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )  # fmt: skip
    assert "VERIFIED" in done.stdout
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(("redirect", "code"), [(">&-", 3), ("2>&-", 0), (">/dev/full", 3), ("| true", 0)])
def test_closed_or_full_output_keeps_the_verdict(redirect: str, code: int, tmp_path: Path) -> None:
    """In the files that were requested. A report that could not be written is no success of the command."""
    out = tmp_path / "r.json"
    line = f'"{sys.executable}" "{SCRIPT}" "{Q4_0}" --rungs bytes --json "{out}" {redirect}'
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", line], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    assert json.loads(out.read_text())["exit_code"] == 0


def _heed() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")
@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_no_child_is_left_behind(kind: signal.Signals) -> None:
    command = [sys.executable, str(SCRIPT), str(Q4_0), "-n", "200", "--kernel", "f32_naive"]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # a shell's background job ignores Ctrl-C, and nohup SIGHUP; both hand that down
        preexec_fn=_heed,
    )
    assert wait_until(lambda: bool(children(process.pid)))
    started = set(children(process.pid))
    time.sleep(0.5)  # it may have started more
    started |= set(children(process.pid))
    process.send_signal(kind)
    shown, errors = process.communicate(timeout=60)
    assert "Traceback" not in errors
    if kind != signal.SIGKILL:
        assert process.returncode == (130 if kind == signal.SIGINT else 3)
        assert errors.startswith(f"gguf-verify: interrupted by {kind.name}")
        assert errors.count("\n") == 1
        # before the first rung there is nothing to report
        assert not shown or last_line(shown).startswith("INTERRUPTED in ")
    assert gone(started)


def test_json_does_not_overwrite_a_model_of_another_name(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(Q4_0.read_bytes())
    done = cli_here(path, "--rungs", "bytes", "-o", path)
    assert done.returncode == 2
    assert path.read_bytes() == Q4_0.read_bytes()


def test_version_and_help() -> None:
    assert cli("--version").stdout.startswith("gguf-verify ")
    text = cli("--help").stdout
    assert "exit codes" in text
    assert "q8_1_dp4a" in text
