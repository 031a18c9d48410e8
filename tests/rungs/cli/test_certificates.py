"""A certificate from a real run to its check: `--certificate`, `--sign-with`, `check-certificate`."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from gguf_verify.certificates.materials import Materials, collect
from gguf_verify.kernels.foreign.names import Further
from gguf_verify.support.errors import UsageError
from tests.support.certificates import allowed, key
from tests.support.tools import FIXTURES, ROOT, command_here


def gguf_verify(folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    with contextlib.chdir(folder):
        return command_here(*arguments)


#: Has the assembler read a file, in the words that a search of the source does not find.
INCBIN = """#define JOINED(a, b) a##b
JOINED(a, sm)(".pushsection .rodata\\ntable:\\n.inc" "bin \\"more/table.bin\\"\\n.popsection");"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model and a CUDA kernel that includes a file, and a signed certificate of both."""
    folder = tmp_path_factory.mktemp("certified")
    shutil.copy(FIXTURES / "tiny-Q4_0.gguf", folder / "my.gguf")
    source = (ROOT / "examples" / "cuda_q4_0.cu").read_text()
    (folder / "more").mkdir()
    (folder / "more" / "empty.cuh").write_text("// nothing\n")
    (folder / "more" / "table.bin").write_bytes(bytes(64))
    added = f'#include "more/empty.cuh"\n{INCBIN}\nextern'
    (folder / "my.cu").write_text(source.replace("extern", added, 1))
    mine = key(folder)
    allowed(folder, me=mine)
    entry = re.search(r"__global__ void (\w+)", source)[1]
    done = gguf_verify(
        folder, "my.gguf", "-p", "Once", "-n", "2", "--kernel", f"my.cu:{entry}", "--effort", "quick",
        "--tensor", "blk.0.attn_k", "--certificate", "my.json", "--sign-with", mine,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def check(folder: Path, *flags: object) -> subprocess.CompletedProcess[str]:
    return gguf_verify(folder, "check-certificate", "my.json", "--allowed-signers", "allowed_signers", *flags)


@pytest.mark.needs("ssh-keygen")
def test_it_is_the_same_but_not_a_whole_run(folder: Path) -> None:
    """Its plan was the brief one, so that exit code 0 would claim too much."""
    done = check(folder)
    assert done.returncode == 5, done.stdout + done.stderr
    assert done.stdout.startswith("CERTIFIED AND THE SAME, BUT NOT A WHOLE VERIFICATION: ")
    assert "--effort quick" in done.stdout
    assert len(done.stdout.splitlines()) <= 30
    assert "matches     system: " in done.stdout
    said = json.loads((folder / "my.json").read_text())
    names = [subject["name"] for subject in said["subject"]]
    assert names == ["my.gguf", "my.cu", "more/empty.cuh", "more/table.bin"]
    assert str(folder) not in (folder / "my.json").read_text()
    libraries = said["predicate"]["reference"]["libraries"]
    assert {"libllama", "libggml-base"} <= {name.partition(".")[0] for name in libraries}


@pytest.mark.needs("ssh-keygen")
@pytest.mark.parametrize("name", ["more/empty.cuh", "more/table.bin"])
def test_what_the_kernel_includes_counts(folder: Path, name: str) -> None:
    included = folder / name
    before = included.read_bytes()
    try:
        included.write_text("// something\n")
        done = check(folder)
        assert done.returncode == 1
        assert f"differs     kernel: {name}" in done.stdout
    finally:
        included.write_bytes(before)


@pytest.mark.needs("ssh-keygen")
def test_a_verdict_cannot_be_rewritten(folder: Path) -> None:
    path = folder / "my.json"
    before = path.read_bytes()
    try:
        path.write_bytes(before.replace(b'"probes": "brief"', b'"probes": "full"'))
        done = check(folder)
        assert done.returncode == 1
        assert "differs     signature" in done.stdout
    finally:
        path.write_bytes(before)


@pytest.mark.needs("ssh-keygen")
def test_a_certificate_of_a_mismatch(folder: Path) -> None:
    wrong = folder / "wrong.py"
    source = (ROOT / "examples" / "numpy_q4_0.py").read_text()
    assert "concatenate" in source
    wrong.write_text(source.replace("concatenate", "stack"))
    entry = re.search(r"^def (\w+)\(weights", source, re.MULTILINE)[1]
    done = gguf_verify(
        folder, "my.gguf", "--kernel", f"wrong.py:{entry}", "--effort", "quick", "--rungs", "blocks", "--tensor",
        "blk.0.attn_q", "--certificate", "wrong.json",
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    said = json.loads((folder / "wrong.json").read_text())["predicate"]
    assert (said["verdict"], said["exit_code"]) == ("mismatch", 1)
    assert said["kernel"]["files"] == ["wrong.py"]
    assert "numpy" in said["kernel"]["packages"]
    assert gguf_verify(folder, "check-certificate", "wrong.json", "--unsigned").returncode == 1


def test_a_file_that_is_touched_during_a_run_is_seen(tmp_path: Path) -> None:
    """Also where it holds the same bytes again."""
    path = tmp_path / "my.cu"
    shutil.copy(ROOT / "examples" / "cuda_q4_0.cu", path)
    entry = re.search(r"__global__ void (\w+)", path.read_text())[1]
    before = collect(f"{path}:{entry}")
    assert before.difference(collect(f"{path}:{entry}")) == ""
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content)
    path.touch()
    assert "my.cu changed" in before.difference(collect(f"{path}:{entry}"))


def test_a_declaration_elsewhere_is_certified_too(folder: Path) -> None:
    source = (ROOT / "examples" / "cuda_q4_0.cu").read_text()
    said = re.search(r"^// \[gguf-verify\]\n(.*?)^// \[/gguf-verify\]\n", source, re.MULTILINE | re.DOTALL)
    declared = folder / "declared" / "elsewhere.toml"
    declared.parent.mkdir()
    declared.write_text(re.sub(r"^// ?", "", said[1], flags=re.MULTILINE))
    (folder / "bare.cu").write_text(source.replace(said[0], ""))
    entry = re.search(r"__global__ void (\w+)", source)[1]
    done = gguf_verify(
        folder, "my.gguf", "--kernel", f"bare.cu:{entry}", "--declare", declared, "--effort", "quick", "--rungs",
        "blocks", "--tensor", "blk.0.attn_q", "--certificate", "bare.json",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    text = (folder / "bare.json").read_text()
    assert str(folder) not in text
    assert json.loads(text)["predicate"]["kernel"]["files"] == ["bare.cu", "declared/elsewhere.toml"]


def test_an_operator_is_its_declaration_and_its_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "mine.so").write_text("no code")
    (tmp_path / "mine.toml").write_text(
        'formats = ["Q4_0"]\nsemantics = "f32"\nparameters = ["weights", "activations"]\n'
    )
    monkeypatch.chdir(tmp_path)

    def made_of() -> Materials:
        return collect("torch.ops.mine.gemm", Further("mine.toml", (), ("lib/mine.so",)))

    before = made_of()
    assert [*before.kernel] == ["mine.toml", "lib/mine.so"]
    assert (before.kernel_name, before.unknown) == ("torch.ops.mine.gemm", {})
    (tmp_path / "lib" / "mine.so").write_text("other code")
    assert "mine.so changed" in before.difference(made_of())
    with pytest.raises(UsageError, match="an operator has no file"):
        collect("torch.ops.mine.gemm")


def test_a_shipped_kernel_is_its_sources(tmp_path: Path) -> None:
    made_of = collect("q8_1")
    assert made_of.shipped
    assert "kernels/gemm/q8_1/01_naive.cu" in made_of.kernel
    assert len(made_of.kernel) == sum(path.is_file() for path in (ROOT / "kernels").rglob("*"))
