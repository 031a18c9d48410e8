"""`gguf-verify bisect --nvrtc`: the first version of NVRTC with which a kernel is wrong. Runs are those of the stub of
nights, which says which version compiled its kernel."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from gguf_verify.gguf.model import open_model
from gguf_verify.support.errors import EnvironmentFault
from gguf_verify_graph.bisection import bisect as search
from gguf_verify_graph.commands import bisect
from tests.support.stub_nights import STUB
from tests.support.tools import FIXTURES, command_here, flat

MODEL = FIXTURES / "tiny-Q4_0.gguf"
VERSIONS = [f"13.{i}.{i}" for i in range(6)]
#: The library's folder is named after the version, and what the run comes to.
RUN = """\
import json, os, subprocess, sys
version, word = os.path.basename(os.path.dirname(os.environ["NVRTC_LIBRARY"])).split("=")
target = sys.argv[sys.argv.index("-o") + 1]
code = subprocess.run([*{stub!r}, sys.argv[1], "--prompt=" + word, "--kernel", "k", "-o", target]).returncode
with open({log!r}, "a") as file:
    file.write(version + " " + " ".join(sys.argv[2:-2]) + "\\n")
if os.path.exists(target):
    with open(target) as file:
        made = json.load(file)
    major, minor = ("12.9" if word == "waived" else version).split(".")[:2]
    made["environment"]["host"]["nvrtc"] = f"{{major}}.{{minor}}"
    made["environment"]["file"]["sha256"] = {sha256!r}
    with open(target, "w") as file:
        json.dump(made, file)
sys.exit(code)
"""


class Bisections:
    """Versions that come to a word each, and the command line that bisects them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.words, self.log = folder, dict[str, str](), folder / "log"
        with open_model(MODEL) as model:
            sha256 = list(model.sha256())
        (folder / "run.py").write_text(RUN.format(stub=STUB, log=str(self.log), sha256=sha256))

    def library(self, version: str) -> Path:
        word = self.words[version]
        if word == "absent":
            raise EnvironmentFault(f"NVRTC {version} cannot be fetched: no")
        return self.folder / f"{version}={word}" / "libnvrtc.so"

    def run(self, *words: str, options: tuple[str, ...] = ("--kernel", "q8_1_mma")) -> Any:
        self.words = dict(zip(VERSIONS, words, strict=False))
        return command_here(
            "bisect", MODEL, "--nvrtc", "--good", VERSIONS[0], "--bad", VERSIONS[len(words) - 1], "--keep",
            self.folder / "kept", "-o", self.folder / "report.json", "--", *options,
        )  # fmt: skip

    def ran(self) -> list[str]:
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return lines

    def result(self) -> Any:
        return json.loads((self.folder / "report.json").read_text())


@pytest.fixture
def bisections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bisections:
    made = Bisections(tmp_path)
    monkeypatch.setattr(bisect, "HARNESS", [sys.executable, "-I", "-S", str(tmp_path / "run.py")])
    monkeypatch.setattr(bisect, "FETCH", made.library)
    monkeypatch.setattr(search, "versions_on_index", lambda _processes, package: VERSIONS if "nvrtc" in package else [])
    return made


def test_the_first_bad_version_is_found_and_taken_over(bisections: Bisections) -> None:
    words = ("pass", "pass", "pass", "mismatch", "mismatch", "mismatch")
    done = bisections.run(*words)
    assert done.returncode == 0, done.stdout + done.stderr
    ran = bisections.ran()
    assert [line.split()[0] for line in ran] == ["13.5.5", "13.0.0", "13.3.3", "13.2.2"]
    assert {line.partition(" ")[2] for line in ran} == {"--host=gpu --exitfirst --kernel q8_1_mma"}
    assert "FOUND: the first bad build is 13.3.3, and the last good one is 13.2.2" in done.stdout
    assert "failed    layers: blk.0 row 3 is wrong" in done.stdout
    made = bisections.result()
    assert made["failure"] == {"rung": "layers", "tensor": "", "words": "blk.0 row 3 is wrong", "culprit": "kernel"}
    assert (made["turned"], made["steps"][0]["tried"]["build"]) == (None, "NVRTC 13.0, stub (x86_64)")

    assert bisections.run(*words).returncode == 0
    assert bisections.ran() == []
    assert bisections.run(*words, options=("--kernel", "q8_1_wgmma")).returncode == 0
    assert len(bisections.ran()) == 4


def test_what_is_no_verdict_of_this_version_is_skipped(bisections: Bisections) -> None:
    done = bisections.run("pass", "absent", "waived", "unverified", "lies", "mismatch")
    assert done.returncode == 5
    said = flat(done.stdout)
    assert "the first bad build is after 13.0.0 and not after 13.5.5: 4 builds in between could not be tested" in said
    for why in (
        "NVRTC 13.1.1 cannot be fetched: no", "compiled by NVRTC 12.9 instead of 13.2.2", "no kernel",
        "exit code 0, but",
    ):  # fmt: skip
        assert why in said


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("pass", "pass"), 2, "--bad 13.1.1 passes too: its kernel is verified"),
        (("mismatch", "mismatch"), 1, "the good end 13.0.0 is bad: the kernel turned wrong there or before it"),
        (("pass", "usage"), 2, "the bad end 13.1.1 cannot be tested: exit code 2: no such kernel"),
    ],
)
def test_ends_that_are_none(bisections: Bisections, words: tuple[str, ...], code: int, said: str) -> None:
    done = bisections.run(*words)
    assert (done.returncode, bisections.result()["exit_code"]) == (code, code)
    assert said in done.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--nvrtc", "--good", "folder", "--bad", "13.1.1"), "folder is not a version of NVRTC, such as 13.0.88"),
        (("--nvrtc", "--good", "13.1.1", "--bad", "13.1.1"), "are the same version"),
        (("--nvrtc", "--good", "13.0.0", "--bad", "13.9.9"), "the index has no nvidia-cuda-nvrtc 13.9.9"),
        (("--nvrtc", "--good", "13.0.0", "--bad", "13.1.1", "--device", "CUDA0"), "--device applies to graphs"),
        (("--nvrtc", "--good", "13.0.0", "--bad", "13.1.1", "--", "--host", "cpu"), "--nvrtc needs --host gpu"),
        (("--nvrtc", "--good", "13.0.0", "--bad", "13.1.1", "--", "--identify"), "remove --identify"),
        (("--nvrtc", "--good", "13.0.0", "--bad", "13.1.1", "--", "-o", "x.json"), "would be overwritten"),
        (("--nvrtc", "--good", "13.0.0", "--bad", "13.1.1", "--", "-ctk", "f16"), "-c"),
    ],
)
def test_what_is_refused(bisections: Bisections, given: tuple[str, ...], said: str) -> None:
    done = command_here("bisect", MODEL, *given[:5], "--keep", bisections.folder / "kept", *given[5:])
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert bisections.ran() == []
