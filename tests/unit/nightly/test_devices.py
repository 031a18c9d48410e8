"""Cells of llama.cpp's devices: how their runs end, what is kept of them, and what a comparison tells."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gguf_verify.backend_results import (
    DeviceInfo,
    GraphOptions,
    GraphReport,
    LlamaBuild,
    NotJudged,
    OperationResult,
    WrongNode,
)
from gguf_verify.llama.backends import on_card
from gguf_verify.processes.commands import Ended
from gguf_verify.report.json import of_graph
from gguf_verify_nightly.compare import compare
from gguf_verify_nightly.config import read_config
from gguf_verify_nightly.devices import libraries
from gguf_verify_nightly.graph_outcomes import graph_cell_of
from gguf_verify_nightly.history import History
from gguf_verify_nightly.night import Settings, run_night
from gguf_verify_nightly.records import BACKEND, Cell, Key, Measure, Night, Outcome
from gguf_verify_nightly.report import html
from gguf_verify_nightly.report.json import of_night
from gguf_verify_nightly.report.writers import NightKind
from gguf_verify_nightly.summary import NightReport
from tests.support.shown import text_of, written
from tests.support.stub_nights import STUB, write_config
from tests.unit.nightly.test_config import a_build

KEY = Key("m.gguf", "", BACKEND, "Vulkan0", "p", "installed")
WRONG = WrongNode(
    operation="ROPE", node="Qcur-0", device="Vulkan0", number=7, evaluation="the prompt of 6 tokens", definition="f32",
    inputs=(), output="F32 [64]", place="token 3, row 2", got=1.5, expected=1.25, tolerance=1e-3, utilisation=250.0,
    wrong=2, elements=64, extent="",
)  # fmt: skip
ADD = OperationResult(
    operation="ADD", device="Vulkan0", fell_back=False, nodes=2, elements=128, definitions=("f32",), utilisation=0.75,
    exact=False, ambiguous=0, wrong=0, first=None,
)  # fmt: skip
ELSEWHERE = OperationResult(
    operation="GET_ROWS Q4_0", device="CPU", fell_back=True, nodes=1, elements=64, definitions=("b", "a"),
    utilisation=0.0, exact=True, ambiguous=0, wrong=0, first=None,
)  # fmt: skip
ROPE = OperationResult(
    operation="ROPE", device="Vulkan0", fell_back=False, nodes=3, elements=192, definitions=("f32",),
    utilisation=250.0, exact=False, ambiguous=0, wrong=2, first=WRONG,
)  # fmt: skip
LEFT = NotJudged(operation="SSM_SCAN", device="Vulkan0", why="the operation SSM_SCAN", nodes=4)


def report(**changes: Any) -> dict[str, Any]:
    """What a run writes of a graph that is right."""
    fields: dict[str, Any] = {
        "gguf_verify": "1", "path": "m.gguf", "sha256": ("0",), "architecture": "llama",
        "build": LlamaBuild(llama_cpp="0.5.0", ggml="0.25", llama_cpp_python="0.3.36", folder="/lib", features="AVX"),
        "device": DeviceInfo(name="Vulkan0", backend="Vulkan", description="a card", kind="GPU", memory=1 << 31),
        "options": GraphOptions(device="Vulkan0"), "evaluations": ("the prompt of 6 tokens",),
        "operations": (ADD, ELSEWHERE), "seconds": 0.5,
    }  # fmt: skip
    return of_graph(GraphReport(**{**fields, **changes}))


MISMATCH = report(operations=(ADD, ROPE), wrong=(WRONG,), wrong_nodes=2)
REASON = "graph: Qcur-0 (ROPE on Vulkan0) in the prompt of 6 tokens, token 3, row 2: 1.5 instead of 1.25 ± 0.001"


def ended(folder: Path, made: Any, code: int | None = 0, said: tuple[str, ...] = (), **wanted: Any) -> Cell:
    """The cell of a run that wrote this and ended so; None is no report."""
    path = folder / "report.json"
    path.unlink(missing_ok=True)
    if made is not None:
        path.write_text(made if isinstance(made, str) else json.dumps(made))
    return graph_cell_of(KEY, Ended(code, 2.0, said), path, 60.0, wanted.get("version"), wanted.get("llama"))


def test_a_pass(tmp_path: Path) -> None:
    cell = ended(tmp_path, report(), version="0.3.36")
    assert (cell.outcome, cell.reason, cell.exit_code, cell.seconds) == (Outcome.VERIFIED, "", 0, 2.0)
    assert cell.host == "a card (Vulkan, GPU, 2.0 GiB)"
    assert cell.rung_seconds == {"graph": 0.5}
    assert cell.figures == {"graph: nodes that were judged": 3}
    assert cell.measures == (
        Measure("graph", "ADD", 0.75, None, "the worst of 2 nodes", True),
        Measure("graph", "GET_ROWS Q4_0 on CPU", 0.0, None, "the worst of 1 node", False),
    )
    assert cell.versions == {
        "gguf-verify": "1", "llama-cpp-python": "0.3.36", "llama.cpp": "0.5.0", "ggml": "0.25",
        "llama.cpp build": "AVX", "device": "a card (Vulkan)", "definition of ADD on Vulkan0": "f32",
        "definition of GET_ROWS Q4_0 on CPU": "a, b",
    }  # fmt: skip
    assert (cell.report, cell.graph) == (None, None)


def test_what_is_wrong(tmp_path: Path) -> None:
    cell = ended(tmp_path, MISMATCH, 1)
    assert cell.graph is not None
    assert of_graph(cell.graph) == MISMATCH
    assert (cell.outcome, cell.reason) == (Outcome.MISMATCH, f"{REASON} (and 1 more)")
    assert cell.measures[1] == Measure("graph", "ROPE", 250.0, None, "Qcur-0, token 3, row 2", True)


@pytest.mark.parametrize(
    ("changes", "code", "outcome", "reason"),
    [
        ({"not_judged": (LEFT,)}, 5, Outcome.UNVERIFIED,
         "graph: not judged: SSM_SCAN on Vulkan0: the operation SSM_SCAN"),
        ({"operations": ()}, 5, Outcome.UNVERIFIED, "graph: Vulkan0 computed none of the judged nodes"),
        ({"operations": (ELSEWHERE,)}, 5, Outcome.UNVERIFIED, "graph: Vulkan0 computed none of the judged nodes"),
        ({"fault": "llama.cpp died"}, 3, Outcome.BROKEN_OFF, "graph: llama.cpp died"),
        # what a report states against what follows from it
        ({}, 1, Outcome.MISMATCH, "exit code 1, but its report says verified"),
        ({}, 5, Outcome.UNVERIFIED, "exit code 5, but its report says verified"),
        ({"wrong_nodes": 1}, 0, Outcome.MISMATCH, 'exit code 0, but its report says "mismatch"'),
        ({"operations": ()}, 0, Outcome.UNVERIFIED, 'exit code 0, but its report says "not everything verified"'),
    ],
)  # fmt: skip
def test_other_ends(tmp_path: Path, changes: dict[str, Any], code: int, outcome: Outcome, reason: str) -> None:
    cell = ended(tmp_path, report(**changes), code)
    assert (cell.outcome, cell.reason, cell.exit_code) == (outcome, reason, code)


VERIFIED: dict[str, Any] = {"verdict": "verified", "exit_code": 0}


@pytest.mark.parametrize(
    "made",
    [
        MISMATCH | VERIFIED,
        report(wrong=(WRONG,)),
        report(not_judged=(LEFT,)) | VERIFIED,
        report(fault="llama.cpp died") | VERIFIED,
        report(ended_by="first failure"),
        report(ended_by="SIGTERM") | VERIFIED,
        report(operations=()) | VERIFIED,
        report(operations=(ELSEWHERE,)) | VERIFIED,
        report(operations=(ADD, ROPE)),
        report() | {"judged": 4},
        report() | {"exit_code": 5},
        *(
            report(operations=(changed,))
            for changed in (
                replace(ADD, wrong=1), replace(ADD, first=WRONG), replace(ADD, utilisation=1.5),
                replace(ADD, utilisation=float("nan")),
            )
        ),
        report(operations=(ADD, replace(ADD, nodes=-1))),
    ],
)  # fmt: skip
def test_a_report_that_contradicts_itself_is_no_pass(tmp_path: Path, made: dict[str, Any]) -> None:
    cell = ended(tmp_path, made)
    assert (cell.outcome, cell.reason) == (Outcome.UNVERIFIED, "its report says verified and contradicts itself")


RIGHT = report()
UNFIT = "its report does not fit the records of a graph"


@pytest.mark.parametrize(
    ("made", "flaw"),
    [
        (None, "it wrote no report"),
        ("{", "its report is not JSON"),
        ("[" * 100_000, "its report is not JSON"),
        ([RIGHT], "its report is not that of a graph"),
        (RIGHT | {"kind": "run"}, "its report is not that of a graph"),
        ({k: v for k, v in RIGHT.items() if k != "not_judged"}, "its report lacks the field not_judged"),
        ({k: v for k, v in RIGHT.items() if k != "judged"}, f"{UNFIT}: Object missing required field `judged`"),
        (RIGHT | {"wrong_nodes": "no"}, f"{UNFIT}: Expected `int`, got `str` - at `$.wrong_nodes`"),
        (RIGHT | {"operations": [{}]}, f"{UNFIT}: Object missing required field `operation` - at `$.operations[0]`"),
        (RIGHT | {"options": None}, f"{UNFIT}: Expected `object`, got `null` - at `$.options`"),
        (RIGHT | {"ended_by": "magic"}, f"{UNFIT}: Invalid enum value 'magic' - at `$.ended_by`"),
    ],
)  # fmt: skip
def test_a_report_that_cannot_be_read_is_no_pass(tmp_path: Path, made: Any, flaw: str) -> None:
    cell = ended(tmp_path, made)
    assert (cell.outcome, cell.reason) == (Outcome.UNVERIFIED, f"exit code 0, but {flaw}")
    assert (cell.measures, cell.versions) == ((), {})


@pytest.mark.parametrize(
    ("code", "said", "outcome", "reason"),
    [
        (2, ("gguf-verify: no device is called Vulkan0",), Outcome.BROKEN_OFF,
         "exit code 2: no device is called Vulkan0"),
        (1, ("ValueError: no",), Outcome.BROKEN_OFF, "exit code 1 and no report: ValueError: no"),
        (3, ("gguf-verify: no memory",), Outcome.BROKEN_OFF, "no memory"),
        (4, ("gguf-verify: no GGUF",), Outcome.MALFORMED, "no GGUF"),
        (-11, ("last words",), Outcome.CRASHED, "died of SIGSEGV: last words"),
        (None, ("still going",), Outcome.TIMED_OUT, "not finished within 60 s: still going"),
    ],
)  # fmt: skip
def test_no_report(tmp_path: Path, code: int | None, said: tuple[str, ...], outcome: Outcome, reason: str) -> None:
    cell = ended(tmp_path, None, code, said)
    assert (cell.outcome, cell.reason) == (outcome, reason)


def test_a_time_that_is_over(tmp_path: Path) -> None:
    """What was wrong by then is wrong, and a pass by then is none."""
    known = report(operations=(ADD, ROPE), wrong=(WRONG,), wrong_nodes=1, ended_by="SIGTERM")
    cell = ended(tmp_path, known, None)
    assert (cell.outcome, cell.reason) == (Outcome.MISMATCH, f"{REASON}; not finished within 60 s")
    for made, where in ((report(ended_by="SIGTERM"), ", in the prompt of 6 tokens"), (RIGHT, "")):
        cell = ended(tmp_path, made, None)
        assert (cell.outcome, cell.reason) == (Outcome.TIMED_OUT, f"not finished within 60 s{where}")
        assert cell.measures == ()


def test_what_was_not_asked_for_is_no_pass(tmp_path: Path) -> None:
    cpu = DeviceInfo(name="CPU", backend="CPU", description="a processor", kind="CPU")
    folder = a_build(tmp_path / "build")
    own = {"llama_cpp": "1", "ggml": "1", "llama_cpp_python": "none", "features": ""}
    found = LlamaBuild(**own, folder=str(folder))
    cases: list[tuple[dict[str, Any], dict[str, Any], str]] = [
        ({"device": cpu, "options": GraphOptions()}, {}, "ran on CPU instead of Vulkan0"),
        ({"options": GraphOptions()}, {}, "ran on CPU instead of Vulkan0"),
        ({"options": GraphOptions(device="Vulkan0", ops="ADD")}, {}, "judged only a part of the graph"),
        ({"options": GraphOptions(device="Vulkan0", node="x")}, {}, "judged only a part of the graph"),
        ({}, {"version": "0.3.35"}, "ran with llama-cpp-python 0.3.36 instead of 0.3.35"),
        ({}, {"version": "none", "llama": folder}, "ran with llama-cpp-python 0.3.36 instead of none"),
        ({"build": found}, {"llama": tmp_path / "gone"},
         f"{tmp_path}/gone is neither a folder nor a shared library (.so)"),
        ({"build": LlamaBuild(**own, folder="/lib")}, {"version": "none", "llama": folder},
         f"ran with the libraries in /lib instead of {folder}"),
    ]  # fmt: skip
    for changes, wanted, reason in cases:
        cell = ended(tmp_path, report(**changes), **wanted)
        assert (cell.outcome, cell.reason) == (Outcome.BROKEN_OFF, reason)
    cell = ended(tmp_path, report(build=found), version="none", llama=folder)
    assert cell.verified
    assert "llama-cpp-python" not in cell.versions


def test_a_comparison_tells_which_operation_got_worse_and_whose_definition_changed(tmp_path: Path) -> None:
    made = [ended(tmp_path, report())] * 4
    worse = replace(ADD, utilisation=0.9375, definitions=("halves",))
    made.append(ended(tmp_path, report(operations=(worse,))))
    nights = [
        Night(i, "2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z", "n", (KEY,), {KEY: cell})
        for i, cell in enumerate(made, 1)
    ]
    found = compare(nights[:3], nights[2], nights[3])
    assert (found.drift, found.versions, found.exit_code(strict=True)) == ((), {}, 0)
    found = compare(nights[:4], nights[3], nights[4])
    assert [d.reason for d in found.drift] == ["graph, ADD: utilisation 0.75 → 0.9375, 0.75 in 4 nights"]
    assert found.versions == {
        "definition of ADD on Vulkan0": {("f32", "halves"): 1}, "definition of GET_ROWS Q4_0 on CPU": {("a, b", ""): 1}
    }  # fmt: skip
    assert (found.exit_code(), found.exit_code(strict=True)) == (0, 1)


def test_cells_of_kernels_and_of_devices_in_one_night(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, log = a_build(tmp_path / "build"), tmp_path / "log"
    monkeypatch.setenv("STUB_LOG", str(log))
    text = """
        jobs = 2
        devices = ["CPU"]
        [variants.own]
        [variants.built]
        llama = "build"
        devices = ["CPU", "Vulkan0"]
        """
    config = read_config(write_config(tmp_path, text, p="pass", bad="garbage"))
    said: list[str] = []
    night = run_night(config, Settings(harness=STUB, say=said.append))
    outcomes = {(key.kernel, key.host, key.prompt, key.variant): cell.outcome for key, cell in night.cells.items()}
    assert outcomes == {
        (kernel, host, prompt, variant): outcome
        for kernel, host, variant in (
            ("q8_1", "cpu", "own"), (BACKEND, "CPU", "own"), (BACKEND, "CPU", "built"), (BACKEND, "Vulkan0", "built"),
        )
        for prompt, outcome in (("p", Outcome.VERIFIED), ("bad", Outcome.UNVERIFIED))
    }  # fmt: skip
    assert sorted(line.split()[1] for line in log.read_text().splitlines()) == [BACKEND] * 6 + ["q8_1"] * 2
    assert "8 cells, 4 verified, 4 not everything verified" in text_of(NightKind.NIGHT, NightReport((night,)))
    with History(tmp_path / "nightly.sqlite") as history:
        kept = history.night(1, reports=True)
        fingerprint = history.fingerprint(1)
    assert {key: dataclasses.replace(cell, gemms={}) for key, cell in kept.cells.items() if key.kernel == BACKEND} == {
        key: cell for key, cell in night.cells.items() if key.kernel == BACKEND
    }
    assert {f"variant built: {path.name}" for path in libraries(folder)} <= fingerprint.keys()
    assert all(os.path.samefile(folder, path.parent) for path in libraries(folder))


def test_a_night_is_not_resumed_with_other_libraries(tmp_path: Path) -> None:
    folder = a_build(tmp_path / "build")
    text = 'kernels = []\n[variants.built]\nllama = "build"\ndevices = ["CPU"]'
    config = read_config(write_config(tmp_path, text, a="pass", b="killed SIGKILL"))
    said: list[str] = []
    for _ in range(2):
        assert not run_night(config, Settings(harness=STUB, say=said.append)).finished
    assert "resuming night 1: 1 of 2 cells recorded" in said
    (folder / "libggml.so").write_text("another")
    night = run_night(config, Settings(harness=STUB, say=said.append))
    assert night.number == 2
    why = "variant built: libggml.so changed"
    assert f"night 1 was not finished and cannot be resumed: {why}; a new night begins" in said


def test_cards() -> None:
    assert [on_card(name) for name in ("CUDA0", "ROCm1", "HIP0", "SYCL0", "Vulkan0", "CPU")] == [True] * 4 + [False] * 2
    assert libraries(None) == ()
    assert libraries(Path("/no/such/folder")) == ()


def test_reports_of_graphs_are_kept_and_shown(tmp_path: Path) -> None:
    """Of a cell that is no pass: the page has the first wrong node, and JSON the report as it was written."""
    wrong, right = ended(tmp_path, MISMATCH, 1), ended(tmp_path, report())
    passed = dataclasses.replace(right, key=KEY._replace(prompt="other"))
    with History(tmp_path / "h") as history:
        history.begin("c", [wrong.key, passed.key], {}, "1")
        for cell in (wrong, passed):
            history.record(1, cell)
        history.finish(1)
        night = history.night(1, reports=True)
        assert history.nights(1)[0].cells[wrong.key].graph is None
    assert [cell.graph is not None for cell in night.cells.values()] == [True, False]
    assert night.cells[wrong.key].graph == wrong.graph
    made = of_night(NightReport((night,)))
    assert [cell["graph"] for cell in made["night"]["cells"]] == [MISMATCH, None]
    shown = html.render(NightReport((night,)))
    for words in ("first wrong element", "token 3, row 2", "got", "1.5", "t-operations-1", "ROPE"):
        assert words in shown
    assert "report is not kept" not in shown
    suites = written("--junit", NightKind.NIGHT, NightReport((night,)))
    assert "graph: Qcur-0 (ROPE on Vulkan0) is wrong" in suites


def test_reports_of_passes_are_kept_where_all_are(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text(json.dumps(report()))
    cell = graph_cell_of(KEY, Ended(0, 2.0, ()), path, 60.0, None, None, keep_all=True)
    assert cell.graph is not None
    assert of_graph(cell.graph) == report()
