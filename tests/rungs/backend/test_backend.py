"""`gguf-verify backend` on the CPU backend: whole graphs are right, and what is wrong is found where it began."""

from __future__ import annotations

import json
import os
import re
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gguf_verify.backend_results import GraphOptions, GraphReport
from gguf_verify.cli import main
from gguf_verify.llama.library import Llama
from gguf_verify.support.errors import UsageError
from gguf_verify_graph import operations
from gguf_verify_graph.verification import invariance, run, tally, verify_graph
from tests.support.architectures import ARCHITECTURES
from tests.support.tools import FIXTURES, flat

Q4_0 = FIXTURES / "tiny-Q4_0.gguf"
BRIEF: dict[str, Any] = {"prompt": "The import", "n_predict": 1, "threads": 1, "progress": False}


def brief(**options: Any) -> GraphOptions:
    return GraphOptions(**{**BRIEF, **options})


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_architecture(llama: Llama, tmp_path: Path, name: str) -> None:
    """Every node of every graph that can be made is judged, and none is wrong."""
    model = ARCHITECTURES[name](llama, tmp_path / f"{name}.gguf")
    report = verify_graph(model, brief())
    assert report.wrong == ()
    assert report.not_judged == ()
    assert (report.verdict, report.exit_code) == ("verified", 0)
    assert report.judged > 30
    assert not list(report.fallen_back)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"flash": "off"}, {"SOFT_MAX", "MUL_MAT F16", "CONT F16", "SET_ROWS F16"}),
        (
            {"flash": "on", "type_k": "q8_0", "type_v": "q4_0"},
            {"SET_ROWS Q8_0", "SET_ROWS Q4_0", "FLASH_ATTN_EXT Q8_0"},
        ),
        ({"flash": "off", "type_k": "f32", "type_v": "f32"}, {"MUL_MAT F32", "SET_ROWS"}),
        ({"flash": "on", "type_k": "bf16", "type_v": "bf16"}, {"SET_ROWS BF16", "FLASH_ATTN_EXT BF16"}),
    ],
)
def test_caches(options: dict[str, Any], expected: set[str]) -> None:
    report = verify_graph(Q4_0, brief(**options))
    assert report.wrong == ()
    assert report.verdict == "verified", report.not_judged
    assert {each.operation for each in report.operations} >= expected - {"CONT F16"}


def test_micro_batches() -> None:
    report = verify_graph(Q4_0, brief(micro_batches=(1, 2, 512), n_predict=0))
    assert report.verdict == "verified"
    assert [(each.micro_batch, each.against, each.node) for each in report.varying] == [(2, 1, ""), (6, 1, "")]
    assert all(each.compared > 100 for each in report.varying)
    assert len(report.evaluations) == 3
    n = int(report.evaluations[2].split()[3])
    products = next(each for each in report.operations if each.operation == "MUL_MAT Q4_0")
    assert products.nodes % (n + -(-n // 2) + 1) == 0


def _slots(path: Path, **options: Any) -> GraphReport:
    return verify_graph(path, brief(slots=True, n_predict=0, **options))


@pytest.mark.parametrize("flash", ["on", "off"])
def test_slots(flash: str) -> None:
    report = _slots(Q4_0, flash=flash)
    assert report.verdict == "verified"
    places = ["in the second slot", "behind another sequence", "before another sequence"]
    assert [(each.slot, each.node) for each in report.varying] == [(place, "") for place in places]
    alone, behind, before = (each.compared for each in report.varying)
    assert alone > behind == before > alone / 2  # all but what has a value for each cell of the cache


def test_slots_need_a_cache(llama: Llama, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--slots"):
        _slots(ARCHITECTURES["bert"](llama, tmp_path / "bert.gguf"))


# ---- what is wrong ---------------------------------------------------------------------------------------------------


def with_other_weights(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """llama.cpp computes with other weights than the file says: one bit of one code of one block."""
    read = run.Run._weights

    def weights(self: Any, wanted: str) -> Any:
        raw = read(self, wanted)
        if wanted == name and raw is not None:
            raw = np.array(raw)
            raw[18 * 5 + 2] ^= 1
        return raw

    monkeypatch.setattr(run.Run, "_weights", weights)


def test_only_the_first_wrong_node_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """What follows is computed from the wrong output, and is right."""
    with_other_weights(monkeypatch, "blk.1.ffn_up.weight")
    report = verify_graph(Q4_0, brief(n_predict=0))
    assert (report.verdict, report.exit_code, report.wrong_nodes) == ("mismatch", 1, 1)
    (wrong,) = report.wrong
    assert (wrong.operation, wrong.node) == ("MUL_MAT Q4_0", "ffn_up-1")
    assert wrong.extent == "all 6 tokens; row 0"
    assert wrong.utilisation > 1
    assert any("blk.1.ffn_up.weight" in words for words in wrong.inputs)
    assert all(each.wrong == (each.operation == "MUL_MAT Q4_0") for each in report.operations)


def test_exit_first_and_one_node(monkeypatch: pytest.MonkeyPatch) -> None:
    with_other_weights(monkeypatch, "blk.0.ffn_up.weight")
    report = verify_graph(Q4_0, brief(exit_first=True))
    assert (report.ended_by, report.wrong_nodes, report.exit_code) == ("first failure", 1, 1)
    assert len(report.evaluations) == 1
    report = verify_graph(Q4_0, brief(node="ffn_up-0"))
    assert [each.operation for each in report.operations] == ["MUL_MAT Q4_0"]
    assert report.wrong_nodes == report.judged == 2
    report = verify_graph(Q4_0, brief(ops="ROPE|RMS_NORM"))
    assert {each.operation for each in report.operations} == {"ROPE", "RMS_NORM"}
    assert report.exit_code == 0


def test_nothing_judged_is_no_pass() -> None:
    report = verify_graph(Q4_0, brief(ops="SSM_SCAN"))
    assert (report.judged, report.verdict, report.exit_code) == (0, "not everything verified", 5)


def test_an_operation_without_a_definition_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(operations.OPERATIONS, "ROPE")
    report = verify_graph(Q4_0, brief())
    assert [(each.operation, each.why) for each in report.not_judged] == [("ROPE", "the operation ROPE")]
    assert (report.verdict, report.exit_code) == ("not everything verified", 5)


def test_a_crash_keeps_what_was_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """The node that it has come to, the one that is judged or one behind it, is named."""
    add, ends, seen = tally.Tally.add, False, dict[int, str]()

    def kill(self: Any, node: Any, words: str) -> bool:
        seen.setdefault(node.number, f"{node.operation.removesuffix(' Q4_0')} {node.name}")
        if node.number == 20 and ends:
            os.kill(int(self.pid), signal.SIGKILL)
        return add(self, node, words)

    init = run.Run.__init__

    def remember(self: Any, model: Any, llama: Llama, *others: Any) -> None:
        init(self, model, llama, *others)
        children = Path(f"/proc/{llama.pid}/task/{llama.pid}/children").read_text().split()
        self._tally.pid = children[0] if children else llama.pid

    monkeypatch.setattr(tally.Tally, "add", kill)
    monkeypatch.setattr(run.Run, "__init__", remember)
    assert verify_graph(Q4_0, brief(n_predict=0)).verdict == "verified"
    ends = True
    report = verify_graph(Q4_0, brief())
    assert (report.verdict, report.exit_code) == ("broken off", 3)
    found = re.match(r"llama.cpp died in evaluate at (.*) \(SIGKILL\)", report.fault)
    assert found, report.fault
    assert found.group(1) in [words for number, words in seen.items() if number >= 20]
    assert 10 < report.judged < 40


def test_where_bits_begin_to_depend_on_the_micro_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node whose last token differs in micro-batches of two alone is named, and nothing behind it."""
    note = invariance.Invariance.note
    number = 0

    def other(self: Any, given: Any) -> None:
        nonlocal number
        number += given.name == "ffn_norm-0"
        if given.name == "ffn_norm-0" and self._micro == 2 and given.node is not None:
            data = np.array(given.node.output.data)
            data[..., -1, 3] += np.float32(1)
            given = given._replace(node=replace(given.node, output=operations.Operand.of(data)))
        note(self, given)

    monkeypatch.setattr(invariance.Invariance, "note", other)
    report = verify_graph(Q4_0, brief(micro_batches=(1, 2, 3), n_predict=0))
    differs, same = report.varying
    assert (differs.micro_batch, differs.node, differs.token) == (2, "ffn_norm-0", 1)
    assert (same.micro_batch, same.node) == (3, "")
    assert number > 3


def test_changes_by_another_sequence_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong mask would let a token see the other sequence."""
    note = invariance.Invariance.note

    def other(self: Any, given: Any) -> None:
        if given.name == "kqv_out-1" and self._shared and given.node is not None:
            data = np.array(given.node.output.data)
            data[..., self._ahead + 2, 5] += np.float32(1)
            given = given._replace(node=replace(given.node, output=operations.Operand.of(data)))
        note(self, given)

    monkeypatch.setattr(invariance.Invariance, "note", other)
    report = _slots(Q4_0, flash="off")
    found = [(each.slot, each.node, each.token) for each in report.varying]
    assert found == [
        ("in the second slot", "", -1), ("behind another sequence", "kqv_out-1", 2),
        ("before another sequence", "kqv_out-1", 2),
    ]  # fmt: skip


# ---- the command -----------------------------------------------------------------------------------------------------


def test_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "r.json"
    assert main(["backend", str(Q4_0), "-p", "The import", "-n", "1", "-o", str(out)]) == 0
    shown = flat(capsys.readouterr().out)
    assert "FLASH_ATTN_EXT F16" in shown
    assert "VERIFIED: " in shown
    made = json.loads(out.read_text())
    assert (made["kind"], made["verdict"], made["exit_code"]) == ("graph", "verified", 0)
    assert made["judged"] == sum(each["nodes"] for each in made["operations"])
    assert made["device"]["name"] == "CPU"


def test_the_report_of_a_wrong_node(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with_other_weights(monkeypatch, "blk.1.ffn_up.weight")
    assert main(["backend", str(Q4_0), "-p", "The import", "-n", "0"]) == 1
    shown = flat(capsys.readouterr().out)
    assert "WRONG MUL_MAT Q4_0 ffn_up-1 on CPU, node " in shown
    assert "repeat with: " in shown
    assert "MISMATCH: 1 of " in shown


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("--device", "CUDA7"), r"no device is called CUDA7: there is CPU [device]"),
        (("--llama", "/nowhere"), "/nowhere is neither a folder nor a shared library (.so) [llama-build]"),
        (("--ops", "("), "--ops is not a regular expression"),
        (("-ctk", "q9_0"), "-ctk: unknown type q9_0: did you mean"),
        (("-ub", "0"), "takes numbers from 1"),
        (("-ub", "x"), "takes numbers, not 'x'"),
        (("-c", "2"), "more than the context of 2 [prompt-too-long]"),
        (("-ngl", "-7"), "-ngl must be from -1"),
        (("--device", ""), "--device needs a name"),
    ],
)
def test_usage(arguments: tuple[str, ...], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["backend", str(Q4_0), *arguments]) == 2
    said = capsys.readouterr()
    assert line in said.err
    assert said.err.count("\n") == 1
    assert said.out == ""


def test_files_that_are_not_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["backend", str(tmp_path / "none.gguf")]) == 2
    (tmp_path / "bad.gguf").write_bytes(b"GGUF" + bytes(20))
    assert main(["backend", str(tmp_path / "bad.gguf")]) == 4
    capsys.readouterr()


def test_devices(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices"]) == 0
    first, *rest = capsys.readouterr().out.splitlines()
    assert first.startswith("llama.cpp ")
    assert any(line.startswith("  CPU ") for line in rest)


def test_folders_without_a_build(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices", "--llama", str(tmp_path)]) == 2
    assert "holds no libllama.so" in capsys.readouterr().err
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "libllama.so").write_bytes(b"")
    assert main(["devices", "--llama", str(tmp_path)]) == 2
    assert "holds several builds" in capsys.readouterr().err
    assert main(["devices", "--llama", str(tmp_path / "a")]) == 2
    assert "holds no libggml, libggml-base" in capsys.readouterr().err
    for name in ("ggml", "ggml-base"):
        (tmp_path / "a" / f"lib{name}.so").write_bytes(b"")
    assert main(["devices", "--llama", str(tmp_path / "a")]) == 3
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "llama.cpp cannot be used" in said


def test_the_installed_libraries_as_a_folder(capsys: pytest.CaptureFixture[str]) -> None:
    """Another build is loaded by this project's own declarations: here the one that llama-cpp-python brings."""
    import llama_cpp

    folder = Path(llama_cpp.__file__).parent / "lib"
    report: GraphReport = verify_graph(Q4_0, brief(llama=str(folder)))
    assert report.verdict == "verified"
    assert report.build.llama_cpp_python == "none"
    assert main(["devices", "--llama", str(folder.parent)]) == 0
    assert "CPU" in capsys.readouterr().out
