"""Messages that say what, where, why and how to fix it: in one line, with an id that `explain` knows."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from gguf_verify.cli.explain import explanations
from gguf_verify.diagnosis.faults import FAULTS
from gguf_verify.diagnosis.observed import OBSERVED
from gguf_verify.gguf.rules import RULES
from gguf_verify.hosts.kinds.gpu import gpu_fault
from gguf_verify.kernels.families import FAMILIES
from gguf_verify.kernels.ladder import KERNELS
from gguf_verify.processes.sandbox import MODES
from gguf_verify.results.failures import CULPRITS
from gguf_verify.support.messages import MESSAGES
from gguf_verify.support.near import nearest
from tests.support.tools import FIXTURES, ROOT, command_here

Q4_0 = FIXTURES / "tiny-Q4_0.gguf"
SAFETENSORS = (2).to_bytes(8, "little") + b"{}" + bytes(100)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["verfy", "m.gguf"], 2, r"'verfy' is neither a command nor a file; did you mean 'verify'\? commands: audit, .*"
         r"nightly, .* \[unknown-command\]"),
        (["compare", "nightly.toml"], 2, r"is neither a command nor a file; did you mean 'nightly compare'\? "),
        (["no-such-model"], 2, r"'no-such-model' is neither a command nor a file; "
         r".*to verify a model, give its path \[unknown-command\]"),
        (["https://example.invalid/m.gguf"], 2,
         r"is a URL; only `gguf-verify audit` reads URLs .* Download the file first, .*\[url\]"),
        (["--kernel", "q8_1_dpa4"], 2, r"no kernel is called 'q8_1_dpa4'; did you mean 'q8_1_dp4a'\? there are: q8_1, "
         r".*FILE.py:NAME, FILE.cu:SYMBOL or FILE.toml \[unknown-kernel\]"),
        (["--rungs", "layer"], 2, r"no rung is called layer; did you mean 'layers'\? there are: bytes, blocks, values, "
         r"codes, packing, layers, tokens \[unknown-rung\]"),
        (["--host", "gpuu"], 2, r"--host 'gpuu': did you mean 'gpu'\? --host takes auto, gpu, cpu \[usage\]"),
        (["--kernl", "f32"], 2, r"unknown option --kernl; did you mean '--kernel'\? see gguf-verify --help \[usage\]"),
        (["-n", "many"], 2, r"argument -n/--n-predict: invalid int value: 'many'; see gguf-verify --help \[usage\]"),
        (["k.cu:gemm"], 2, r"k\.cu:gemm is a kernel, not a model; to verify it: `gguf-verify kernel k\.cu:gemm` "),
        (["--kernel", "m.gguf"], 2, r"'m\.gguf' is a model, not a kernel; "),
        (["-t", "1", "k.cu"], 2, r"unexpected argument k\.cu; did you mean --kernel k\.cu\? "),
        (["audit"], 2, r"arguments are required: .*; see gguf-verify audit --help \[usage\]"),
        (["explain", "nibbles-in-pair"], 2, r"unknown id 'nibbles-in-pair'; did you mean 'nibbles-in-pairs'\?"),
        (["completion", "basch"], 2, r"'basch': did you mean 'bash'\? .* takes bash, zsh, fish, tcsh \[usage\]"),
        (["nightly", "rnu"], 2, r"'rnu': did you mean 'run'\?"),
    ],
)  # fmt: skip
def test_a_mistake_in_the_command_line(arguments: list[str], code: int, said: str) -> None:
    words = arguments if not arguments[0].startswith("-") else [str(Q4_0), *arguments]
    done = command_here(*words)
    assert done.returncode == code
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert re.search(said, done.stderr), done.stderr


def folder_of(tmp_path: Path, **files: bytes) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    for name, content in files.items():
        (folder / name.replace("_", ".")).write_bytes(content)
    return folder


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("moodel.gguf", r"moodel.gguf: cannot be read: No such file or directory; did you mean 'model.gguf'\? "
         r"\[no-such-file\]"),
        ("nothing/x.gguf", r"x.gguf: cannot be read: No such file or directory; there is no folder .*nothing "
         r"\[no-such-file\]"),
        ("", r"models: a directory, expected a GGUF file; it holds 2, give its path: .*a.gguf \[is-a-directory\]"),
        ("m.safetensors", r"\(a safetensors file: convert its folder with llama.cpp's convert_hf_to_gguf.py\); "
         r"expected the magic 'GGUF' \[GGUF-\d+-magic\]"),
        ("m.pth", r"\(a zip archive, such as a PyTorch checkpoint: convert it .*\[GGUF-\d+-magic\]"),
        ("m.lfs", r"\(a pointer of Git LFS: fetch the file with git lfs pull\)"),
        ("m.html", r"\(a web page: download the file itself\)"),
        ("m.empty", r"byte 0: an empty file; expected the magic 'GGUF' \[GGUF-\d+-magic\]"),
    ],
)  # fmt: skip
def test_what_is_no_model(tmp_path: Path, given: str, said: str) -> None:
    folder = folder_of(
        tmp_path, a_gguf=b"GGUF", model_gguf=b"GGUF", m_safetensors=SAFETENSORS, m_pth=b"PK\x03\x04" + bytes(50),
        m_lfs=b"version https://git-lfs.github.com/spec/v1\noid sha256:0", m_html=b"<!DOCTYPE html><html>",
        m_empty=b"",
    )  # fmt: skip
    done = command_here(folder / given if given else folder)
    code = 2 if "no-such-file" in said or "is-a-directory" in said else 4
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (code, "", 1)
    assert re.search(said, done.stderr), done.stderr


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    assert "; it holds no file that ends in .gguf [is-a-directory]" in command_here(folder_of(tmp_path)).stderr


def test_help_is_a_command() -> None:
    assert command_here("help", "verify").stdout == command_here("--help").stdout
    assert command_here("help", "audit").stdout == command_here("audit", "--help").stdout
    for name in ("audit", "explain", "nightly", "completion"):
        assert f"\n  gguf-verify {name}" in command_here("--help").stdout
        assert f"\n  {name} " in command_here("help").stdout


@pytest.mark.skipif(gpu_fault() is None, reason="this machine has a GPU")
def test_no_gpu_names_a_package_that_there_is() -> None:
    done = command_here(Q4_0, "--host", "gpu")
    assert done.returncode == 3
    assert "pip install gguf-verify" not in done.stderr
    assert done.stderr.endswith("[host-not-usable]\n")


def test_nothing_names_a_package_that_is_not_on_pypi() -> None:
    for path in (ROOT / "harness").rglob("*.py"):
        assert not re.search(r"install '?gguf-verify\[cuda", path.read_text()), path


# ---- explain ---------------------------------------------------------------------------------------------------------


def ids_of_errors() -> set[str]:
    """The ids that this package's errors carry: the second argument of each error that is raised."""
    found = set()
    for path in (ROOT / "harness" / "gguf_verify").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Raise) or not isinstance(node.exc, ast.Call) or len(node.exc.args) < 2:
                continue
            name = getattr(node.exc.func, "id", "")
            if name in ("UsageError", "EnvironmentFault", "MalformedFile", "NothingToVerify"):
                found |= {n.value for n in ast.walk(node.exc.args[1]) if isinstance(n, ast.Constant)}
    return {name for name in found if isinstance(name, str) and re.fullmatch("[a-z-]+", name)}


def test_every_id_of_an_error_is_explained() -> None:
    assert {"unknown-kernel", "url", "host-not-usable"} <= ids_of_errors() <= set(MESSAGES)


def test_every_id_has_one_explanation() -> None:
    known = explanations()
    kernels = len(FAMILIES) + len(KERNELS)
    modes, verdicts = len(MODES) - 1, 5
    ids = len(MESSAGES) + len(RULES) + len(FAULTS) + len(OBSERVED) + len(CULPRITS)
    assert len(known) == ids + kernels + modes + verdicts
    assert {mode for mode in MODES if mode != "auto"} < set(known)
    assert {*MESSAGES, *CULPRITS, *(f.id for f in FAULTS), *OBSERVED, *(r.id for r in RULES.values())} < set(known)
    for e in known.values():
        for words in (e.what, e.why, e.fix):
            assert words.endswith((".", ")")), (e.id, words)


@pytest.mark.parametrize("given", ["GGUF-013-duplicate-key", "gguf-013", "duplicate-key", "[GGUF-013-duplicate-key]"])
def test_an_id_in_each_of_its_spellings(given: str) -> None:
    done = command_here("explain", given)
    assert done.returncode == 0
    assert done.stdout.startswith("GGUF-013-duplicate-key (findings)\n  what  Readers differ in which of the values")
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_explain_lists_all() -> None:
    shown = command_here("explain").stdout
    for e in explanations().values():
        assert f"\n  {e.id}: " in shown
    assert [line for line in shown.splitlines() if line and not line.startswith(" ")] == [
        "verdicts", "culprits", "sandboxes", "kernels", "messages", "faults", "findings",
    ]  # fmt: skip


def test_nearest() -> None:
    assert nearest("Q8_1_DPA4", ["q8_1_dp4a", "f32"]) == "did you mean 'q8_1_dp4a'? "
    assert nearest("something", ["q8_1", "f32"]) == ""
    assert nearest("x" * 10**6, ["x"]) == ""
