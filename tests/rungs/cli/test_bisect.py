"""`gguf-verify bisect`: the first bad build among folders whose runs a stub makes, and real ones."""

from __future__ import annotations

import json
import math
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gguf_verify.backend_results import (
    DeviceInfo,
    GraphOptions,
    GraphReport,
    GraphStep,
    LlamaBuild,
    OperationResult,
    WrongNode,
)
from gguf_verify.gguf.model import open_model
from gguf_verify.llama.bindings import BUILD
from gguf_verify.processes.commands import Processes
from gguf_verify.report.json import of_graph
from gguf_verify.support.errors import EnvironmentFault
from gguf_verify_graph.bisection import versions
from gguf_verify_graph.commands import bisect
from gguf_verify_nightly.environments import Interpreter
from tests.support.tools import FIXTURES, command_here, flat

MODEL = FIXTURES / "tiny-Q4_0.gguf"
#: Stands in for `gguf-verify backend`: the build's libllama.so is a word that says what the run comes to.
STUB = """\
import json, os, signal, sys, time
arguments = sys.argv[1:]
folder = os.path.dirname(os.path.abspath(__file__))
build = arguments[arguments.index("--llama") + 1]
target = arguments[arguments.index("-o") + 1]
with open(os.path.join(build, "libllama.so")) as file:
    word = file.read()
with open(os.path.join(folder, "log"), "a") as file:
    file.write(json.dumps([os.path.basename(build), *arguments]) + "\\n")
with open(os.path.join(folder, "templates.json")) as file:
    templates = json.load(file)
made = templates["bad" if word in ("bad", "claims-good") else "good"]
if word == "other-graph":
    made["graph"][1]["parameters"]["freq_base"] = "40000"
made["build"]["folder"] = build
code = made["exit_code"]
if word == "claims-good":
    code = 0
elif word == "claims-bad":
    code = 1
elif word == "another-build":
    made["build"]["folder"] = "/elsewhere"
elif word == "another-file":
    made["sha256"] = ["0" * 64]
elif word == "contradicts":
    made["verdict"] = "mismatch"
elif word == "unverified":
    left = {"operation": "ROPE", "device": "CPU", "why": "\\x1b[31mno", "nodes": 1}
    made |= {"verdict": "not everything verified", "exit_code": 5, "not_judged": [left]}
    code = 5
elif word == "refuses":
    print("gguf-verify: no device is called CPU", file=sys.stderr)
    sys.exit(3)
elif word == "usage":
    print("gguf-verify: no such type", file=sys.stderr)
    sys.exit(2)
elif word == "raises":
    raise ValueError("no")
elif word == "dies":
    os.kill(os.getpid(), signal.SIGSEGV)
elif word == "hangs":
    time.sleep(600)
elif word == "nothing":
    sys.exit(0)
with open(target, "w") as file:
    if word == "garbage":
        file.write("[" * 100_000)
    elif word == "list":
        file.write("[1]")
    else:
        json.dump(made, file)
sys.exit(code)
"""
#: What cannot be tested, and what is said of it.
SKIPPED = {
    "claims-good": "exit code 0, but the records of its report say mismatch",
    "claims-bad": "exit code 1, but the records of its report say verified",
    "another-build": "exit code 0, but it ran with the libraries in /elsewhere",
    "another-file": "exit code 0, but its report is about another file",
    "contradicts": "exit code 0, but its report contradicts itself",
    "unverified": r"not judged: ROPE on CPU: \x1b[31mno",
    "refuses": "no device is called CPU",
    "usage": "no such type",
    "raises": "exit code 1, but it wrote no report: ValueError: no",
    "dies": "died of SIGSEGV",
    "hangs": "not finished within 1 s",
    "nothing": "exit code 0, but it wrote no report",
    "garbage": "exit code 0, but its report cannot be read",
    "list": "exit code 0, but its report cannot be read",
}


def templates() -> dict[str, Any]:
    """The reports of a good and of a bad build."""
    with open_model(MODEL) as model:
        sha256 = model.sha256()
    node = WrongNode(
        operation="ROPE", node="Qcur-0", device="CPU", number=7, evaluation="the prompt of 33 tokens",
        definition="f32", inputs=(), output="F32 [32]", place="row 3", got=math.nan, expected=1.0, tolerance=1e-6,
        utilisation=math.inf, wrong=3, elements=32, extent="row 3",
    )  # fmt: skip
    made = {}
    for word, wrong in (("good", None), ("bad", node)):
        operation = OperationResult(
            operation="ROPE", device="CPU", fell_back=False, nodes=12, elements=384, definitions=("f32",),
            utilisation=0.5 if wrong is None else math.inf, exact=False, ambiguous=0, wrong=int(wrong is not None),
            first=wrong,
        )  # fmt: skip
        report = GraphReport(
            gguf_verify="0", path=str(MODEL), sha256=sha256, architecture="llama",
            build=LlamaBuild(llama_cpp="0.5.0", ggml="1", llama_cpp_python="none", folder="", features=""),
            device=DeviceInfo(name="CPU", backend="CPU", description="", kind="CPU"), options=GraphOptions(),
            operations=(operation,), wrong=() if wrong is None else (wrong,), wrong_nodes=int(wrong is not None),
            graph=(
                GraphStep("MUL_MAT", "Qcur-0", "Qcur-0 F32 [32]", ("blk.0.attn_q.weight Q4_0 [32]", "node_3 F32 [32]")),
                GraphStep("ROPE", "Qcur-0", "Qcur-0 F32 [32]", ("Qcur-0 F32 [32]",), {"freq_base": "10000"}),
            ),
        )  # fmt: skip
        made[word] = of_graph(report)
    return made


class Builds:
    """Folders of builds, and the command line that bisects them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "stub.py").write_text(STUB)
        (folder / "templates.json").write_text(json.dumps(templates()))
        self.report = folder / "report.json"

    def made(self, *words: str) -> list[str]:
        names = []
        for i, word in enumerate(words):
            build = self.folder / f"b{i}"
            build.mkdir(exist_ok=True)
            for name in ("llama", "ggml", "ggml-base"):
                (build / f"lib{name}.so").write_text(word)
            names.append(str(build))
        return names

    def bisect(self, *words: str, options: tuple[str, ...] = (), passed: tuple[str, ...] = ()) -> Any:
        first, *middle, last = self.made(*words)
        among = ["--among", *middle] if middle else []
        return command_here(
            "bisect", MODEL, "--good", first, "--bad", last, *among, "--keep", self.folder / "kept", "-o",
            self.report, *options, *(["--", *passed] if passed else []),
        )  # fmt: skip

    def ran(self) -> list[str]:
        """The builds whose runs were begun since it was asked last."""
        log = self.folder / "log"
        lines = log.read_text().splitlines() if log.exists() else []
        log.unlink(missing_ok=True)
        return [json.loads(line)[0] for line in lines]

    def result(self) -> Any:
        return json.loads(self.report.read_text())


@pytest.fixture
def builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Builds:
    monkeypatch.setattr(bisect, "HARNESS", [sys.executable, "-I", "-S", str(tmp_path / "stub.py")])
    return Builds(tmp_path)


def test_the_first_build_with_another_graph_is_found(builds: Builds) -> None:
    """Every node of every build is right: the graphs tell them apart."""
    page = builds.folder / "page.html"
    done = builds.bisect("good", "good", "other-graph", "other-graph", options=("-o", str(page)))
    assert done.returncode == 0, done.stderr
    change = "ROPE Qcur-0: freq_base 10000 → 40000"
    verdict = f"FOUND: the first bad build is {builds.folder / 'b2'}, and the last good one is {builds.folder / 'b1'}"
    assert done.stdout.splitlines()[-1] == f"{verdict}; every node of both passes, but their graphs differ: {change}"
    assert f"graph     {change}" in done.stdout.splitlines()
    assert builds.result()["graph"] == [change]
    assert change in page.read_text()


def test_the_first_bad_build_is_found_and_taken_over(builds: Builds) -> None:
    words = ("good", "good", "good", "bad", "bad", "bad")
    page = builds.folder / "page.html"
    done = builds.bisect(*words, options=("-o", str(page)), passed=("-n", "1"))
    assert done.returncode == 0, done.stderr
    assert builds.ran() == ["b5", "b0", "b3", "b2"]
    b2, b3 = builds.folder / "b2", builds.folder / "b3"
    assert f"FOUND: the first bad build is {b3}, and the last good one is {b2}" in done.stdout
    assert "wrong     ROPE Qcur-0 on CPU, node 7 of the prompt of 33 tokens" in done.stdout
    assert "row 3: got nan, expected 1" in done.stdout
    assert f"ROPE on CPU passed in {b2}: 12 nodes" in done.stdout
    assert "4 builds in between: at most 3 more runs" in done.stderr
    made = builds.result()
    assert (made["verdict"], made["exit_code"], made["runs"]) == ("found", 0, 4)
    assert (made["turned"]["node"]["node"], made["turned"]["before"]) == ("Qcur-0", "right")
    runs = {Path(step["name"]).name: step["run"] for step in made["steps"]}
    assert runs == {"b5": 1, "b0": 2, "b3": 3, "b2": 4}
    assert (made["turned"]["was"]["utilisation"], made["turned"]["became"]["utilisation"]) == (0.5, "Infinity")
    assert "changed   worst utilisation of ROPE: 0.5, now inf" in done.stdout
    assert f"ROPE on CPU passed in {b2.name}: 12 nodes." in page.read_text()
    assert made["arguments"] == ["--device=CPU", "--exitfirst", "-n", "1"]

    again = builds.bisect(*words, passed=("-n", "1"))
    assert again.returncode == 0
    assert builds.ran() == []
    assert "reused from" in again.stderr
    assert "from an earlier bisection" in again.stdout
    assert builds.result()["turned"] == made["turned"]
    assert {step["run"] for step in builds.result()["steps"]} == {None}

    builds.bisect(*words, passed=("-n", "2"))  # other options are another question
    assert builds.ran() == ["b5", "b0", "b3", "b2"]
    builds.bisect(*words[:2], "bad", *words[3:], passed=("-n", "1"))  # b2 was built anew
    assert builds.ran() == ["b2", "b1"]
    assert builds.result()["first_bad"].endswith("b2")


def test_what_cannot_be_tested_leaves_a_range(builds: Builds) -> None:
    done = builds.bisect("good", "good", *SKIPPED, "bad", options=("--run-limit", "1"))
    assert done.returncode == 5
    assert sorted(builds.ran()) == sorted(f"b{i}" for i in range(len(SKIPPED) + 3))
    assert "RANGE: the first bad build is after" in done.stdout
    for why in SKIPPED.values():
        assert why in flat(done.stdout)
    made = builds.result()
    assert made["last_good"].endswith("b1")
    assert len(made["untested"]) == len(SKIPPED)
    builds.bisect("good", "good", *SKIPPED, "bad", options=("--run-limit", "1"))
    assert builds.ran() == []
    done = builds.bisect("good", "good", *SKIPPED, "bad", options=("--run-limit", "1", "--retry"))
    assert (done.returncode, len(builds.ran())) == (5, len(SKIPPED))


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("good", "good", "good"), 2, "NOTHING TO BISECT: --bad"),
        (("bad", "good", "bad"), 1, "is bad (ROPE Qcur-0 on CPU): the graph turned wrong there or before it"),
        (("good", "good", "refuses"), 3, "cannot be tested: no device is called CPU"),
        (("usage", "good", "bad"), 2, "GOOD END CANNOT BE TESTED: the good end"),
        (("dies", "good", "bad"), 3, "cannot be tested: died of SIGSEGV"),
        (("unverified", "good", "bad"), 5, "cannot be tested: not judged: ROPE on CPU"),
    ],
)
def test_ends_that_are_none(builds: Builds, words: tuple[str, ...], code: int, said: str) -> None:
    done = builds.bisect(*words)
    assert (done.returncode, builds.result()["exit_code"]) == (code, code)
    assert said in done.stdout.splitlines()[-1]
    assert "b1" not in builds.ran()


def test_results_that_are_damaged_are_not_taken_over(builds: Builds) -> None:
    builds.bisect("good", "bad")
    kept = Path(builds.result()["state"])
    whole = kept.read_text()
    for damaged in (whole[:100], "[" * 100_000, "1", whole.replace('"good"', '"fine"'), whole.replace("--exit", "--")):
        kept.write_text(damaged)
        builds.ran()
        done = builds.bisect("good", "bad")
        assert "is damaged and not used" in done.stderr
        assert (done.returncode, builds.ran()) == (0, ["b1", "b0"])
        assert kept.read_text().startswith("{")


def test_what_is_refused(builds: Builds, tmp_path: Path) -> None:
    first, second = builds.made("good", "bad")
    (tmp_path / "empty").mkdir()
    ends = ("bisect", MODEL, "--good", first, "--bad", second, "--keep", tmp_path / "kept")
    for command, said in (
        ((*ends, "--", "--device", "CUDA0"), "give --device before --"),
        ((*ends, "--", "--llama", first), "--llama is set for each build"),
        ((*ends, "--", "-o", tmp_path / "x.json"), "would be overwritten"),
        ((*ends, "--", "--no-such"), "unknown option --no-such"),
        ((*ends, "--among", first), "is given twice"),
        ((*ends, "--among", tmp_path / "empty"), "holds no libllama.so"),
        ((*ends, "--among", "nowhere"), "neither a version such as 0.3.33 nor a folder"),
        ((*ends, "--run-limit", "0"), "--run-limit must be"),
        ((*ends, "-o", MODEL), "would overwrite a model"),
        ((*ends, "-o", tmp_path / "no" / "x.html"), "cannot write"),
        ((*ends, "-o", tmp_path / "x.html", "-o", tmp_path / "x.html"), "names the same file twice"),
        (("bisect", MODEL, "--good", first, "--bad", first), "are the same build"),
        (("bisect", tmp_path / "no.gguf", "--good", first, "--bad", second), "no.gguf"),
    ):
        done = command_here(*command)
        assert done.returncode == 2, (command, done.stderr)
        assert said in done.stderr
    assert builds.ran() == []


class Index:
    """Stands in for versions: those that the index has, with the stub as the Python of each."""

    def __init__(self, log: list[str], _processes: Processes, _time_limit: float) -> None:
        self._log = log

    def all(self) -> list[str]:
        return [f"0.3.{i}" for i in range(5)]

    def identity(self, version: str) -> str:
        return f"of {version}"

    def interpreter(self, version: str) -> Interpreter:
        self._log.append(version)
        if version == "0.3.3":
            raise EnvironmentFault("its llama.cpp cannot be installed: no compiler")
        return Interpreter(sys.executable, version)


def test_versions_are_those_of_the_index(
    builds: Builds, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, made_by: Callable[[str], list[str]]
) -> None:
    log: list[str] = []
    monkeypatch.setattr(versions, "Versions", lambda *given: Index(log, *given))
    monkeypatch.setattr(bisect, "HARNESS", made_by("none"))
    ends = ("bisect", MODEL, "--good", "0.3.0", "--bad", "0.3.4", "--keep", tmp_path / "kept")
    done = command_here(*ends)
    assert done.returncode == 3
    assert "the bad end 0.3.4 cannot be tested: exit code 1, but it ran with llama-cpp-python none" in done.stdout
    monkeypatch.setattr(bisect, "HARNESS", made_by("ours"))
    done = command_here(*ends)
    assert log == ["0.3.4", "0.3.4", "0.3.0", "0.3.2", "0.3.3"]
    assert done.returncode == 5, done.stdout + done.stderr
    assert "the first bad build is after 0.3.2 and not after 0.3.4" in done.stdout
    assert "its llama.cpp cannot be installed: no compiler" in done.stdout


@pytest.fixture
def made_by(builds: Builds) -> Callable[[str], list[str]]:
    """A stub for versions, the fourth of which is bad: it takes them as they come."""

    def made(word: str) -> list[str]:
        path = builds.folder / f"of_versions_{word}.py"
        path.write_text(
            "import json, os, sys\n"
            f"word, folder = {word!r}, {str(builds.folder)!r}\n"
            "counter = os.path.join(folder, word)\n"
            "n = os.path.getsize(counter) if os.path.exists(counter) else 0\n"
            "open(counter, 'a').write('.')\n"
            "which, version = [('bad', '0.3.4'), ('good', '0.3.0'), ('good', '0.3.2')][n]\n"
            "made = json.load(open(os.path.join(folder, 'templates.json')))[which]\n"
            "made['build']['llama_cpp_python'] = 'none' if word == 'none' else version\n"
            "json.dump(made, open(sys.argv[sys.argv.index('-o') + 1], 'w'))\n"
            "sys.exit(made['exit_code'])\n"
        )
        return [sys.executable, "-I", "-S", str(path)]

    return made


#: The coefficient of x³ of the exponential in ggml's SiLU (ggml-cpu/vec.h, ggml_v_expf), and another in its place.
RIGHT, WRONG = struct.pack("<f", float.fromhex("0x1.555e66p-3")), struct.pack("<f", 0.18)


def real_build(folder: Path, wrong: bool = False) -> Path:
    """The installed build, copied; with a fault in its CPU backend where one is asked for."""
    folder.mkdir()
    for library in BUILD.path.glob("*.so*"):
        content = library.read_bytes()
        if wrong and library.name.startswith("libggml-cpu"):
            if RIGHT not in content:
                pytest.skip("this processor's SiLU has no such coefficient")
            content = content.replace(RIGHT, WRONG)
        (folder / library.name).write_bytes(content)
    return folder


def test_real_builds(tmp_path: Path) -> None:
    old, new = real_build(tmp_path / "old"), tmp_path / "new"
    new.symlink_to(old)
    few = ("--keep", tmp_path / "kept", "--", "-n", "0", "-p", "once", "--ops", "GLU.*|ADD")
    done = command_here("bisect", MODEL, "--good", old, "--bad", new, *few)
    assert done.returncode == 2, done.stdout + done.stderr
    why = "every node passes, and its graph equals the good end's"
    assert f"NOTHING TO BISECT: --bad {new} passes too: {why}" in done.stdout
    wrong = real_build(tmp_path / "wrong", wrong=True)
    done = command_here("bisect", MODEL, "--good", new, "--bad", wrong, *few)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"reused from {tmp_path}" in done.stderr
    assert "wrong     GLU SWIGLU ffn_swiglu-0 on CPU" in done.stdout
    assert f"GLU SWIGLU on CPU passed in {new}" in done.stdout
