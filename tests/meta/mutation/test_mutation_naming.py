"""The measures of naming, localisation and false alarms: they count what is right, and what is planted as wrong."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gguf_verify.diagnosis import FAULTS, Diagnosis, diagnose
from gguf_verify.formats import FORMATS
from gguf_verify.measure.mutation import alarms, edits, naming, places
from gguf_verify.measure.mutation import command as mutation_score
from gguf_verify.measure.mutation.inputs import WEIGHTS, Matrix, captured, fits, text
from gguf_verify.results import Failure, FaultMatch, RungResult
from gguf_verify.semantics import Product, Semantics
from gguf_verify.support.errors import EnvironmentFault
from gguf_verify.support.paths import kernel_root
from tests.support.tools import FIXTURES


def options(parse: Any, *arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parse(parser)
    return parser.parse_args(arguments)


# -- inputs ------------------------------------------------------------------------------------------------------------


def test_real_activations() -> None:
    found = captured(FIXTURES / "tiny-Q5_1.gguf", [text(0, 12), text(1, 12)], 10)
    assert len({m.tensor for m in found}) == len(found) == 22
    assert all(m.fmt.name == "Q5_1" and m.x.shape == (20, m.k) and m.x.any() for m in found)
    assert text(0, 12) == text(0, 12) != text(1, 12)
    assert len(text(3, 40).split()) == 40


# -- names -------------------------------------------------------------------------------------------------------------


def found(*ids: str, wrong: int = 9, definitions: tuple[str, ...] = ()) -> Diagnosis:
    return Diagnosis(wrong, 99, definitions, tuple(FaultMatch(i, "", "", 1.0, 0.0, True) for i in ids))


@pytest.mark.parametrize(
    ("diagnosis", "fault", "said"),
    [
        (found("a"), "a", naming.ALONE),
        (found("b", "a"), "a", naming.TOGETHER),
        (found("b"), "a", naming.WRONG),
        (found("b", "c"), "a", naming.WRONG),
        (found(), "a", naming.UNKNOWN),
        (found(definitions=("mmq",)), "a", naming.DEFINITION),
        (found("a", definitions=("mmq",)), "a", naming.DEFINITION),
        (found("b", definitions=("mmq",)), "a", naming.WRONG),
        (found(wrong=3), "a", naming.SILENT),
        (found("a"), "", naming.WRONG),
        (found(), "", naming.UNKNOWN),
    ],
)
def test_what_an_answer_is_worth(diagnosis: Diagnosis, fault: str, said: str) -> None:
    assert naming.answer(diagnosis, fault) == said


def first_of_all(*arguments: Any) -> Diagnosis:
    """A diagnosis that names the first fault of the catalogue whatever it sees."""
    right = diagnose(*arguments)
    return found(FAULTS[0].id, wrong=right.wrong)


@pytest.mark.slow
def test_replays_on_real_weights() -> None:
    outcomes = naming.replayed("Q5_1", [0], every=9)
    figures = naming.tallied(outcomes)
    answers = figures["answers"]
    assert figures["products"] == len(outcomes) > 80
    assert answers[naming.ALONE] + answers.get(naming.TOGETHER, 0) >= 0.95 * figures["changing"]
    assert naming.WRONG not in answers
    assert {o.definition for o in outcomes} == {"f32", "q8_1", "q8_1_half", "mmq", "q8_1_cpu"}
    assert all(o.tensor.startswith("tiny-Q5_1.gguf blk.") for o in outcomes)

    planted = naming.tallied(naming.replayed("Q5_1", [0], every=9, diagnose_by=first_of_all))
    others = sum(o.fault != FAULTS[0].id and o.answer != naming.SILENT for o in outcomes)
    assert planted["answers"][naming.WRONG] == len(planted[naming.WRONG]) == others > 60


def test_what_the_catalogue_has_not() -> None:
    figures = naming.tallied(naming.outside("Q4_0", [0]))
    assert naming.WRONG not in figures["answers"]
    assert figures["answers"][naming.UNKNOWN] > 50
    planted = naming.tallied(naming.outside("Q4_0", [0], first_of_all))
    assert planted["answers"][naming.WRONG] == figures["changing"]


@pytest.mark.parametrize(
    ("what", "kind"), [("no offset", "Q4_0"), ("written transposed", "Q5_1"), ("offset 7", "Q4_0")]
)
def test_altered_sources(what: str, kind: str) -> None:
    edit = next(e for e in edits.EDITS if e.what == what and kind in e.formats)
    outcomes = naming.edited(edit, kind, [0])
    assert [o.answer for o in outcomes] == [naming.ALONE if edit.fault else naming.UNKNOWN] * 2
    assert {o.answer for o in naming.edited(edit, kind, [0], first_of_all)} == {naming.WRONG}


def test_every_edit_is_one_of_these_sources(tmp_path: Path) -> None:
    ids = {f.id for f in FAULTS}
    assert ids - {e.fault for e in edits.EDITS} == set(edits.NO_EDIT)
    assert {e.fault for e in edits.EDITS} <= ids | {""}
    for edit, kind in edits.chosen(list(FORMATS)):
        for file, old, new in edit.changes:
            assert old in (kernel_root() / file.replace("{F}", kind.lower())).read_text(), (edit.what, kind)
            assert old != new
    absent = dataclasses.replace(edits.EDITS[0], changes=((edits.NAIVE, "not there", ""),))
    with pytest.raises(ValueError, match="does not hold 'not there'"):
        edits.altered(tmp_path, absent, "Q4_0")


# -- places ------------------------------------------------------------------------------------------------------------


def report(*failures: Failure) -> RungResult:
    result = RungResult(name="layers")
    for failure in failures:
        result.fail(failure)
    return result


def test_what_a_report_is_worth() -> None:
    plan = places.Plan("", "w", 3, 5, np.zeros(1, np.uint8), np.zeros(1, np.uint8))
    right = Failure("kernel: is outside the bound", "w", 3, 5)
    alone = Failure("kernel: w row 3 (no single block is wrong: look at the accumulation over K)", "w", 3)
    assert places.judged(report(), plan) == "unseen"
    assert places.judged(report(right, Failure("differ by more than both bounds", "w", 3)), plan) == "right"
    assert places.judged(report(alone), plan) == "row"
    for wrong in (
        [Failure("", "w", 3)],
        [Failure("", "w", 3, 6)],
        [right, Failure("", "w", 4, 5)],
        [dataclasses.replace(right, tensor="v")],
        [dataclasses.replace(alone, row=2)],
    ):
        assert places.judged(report(*wrong), plan).startswith("rows")


def beside(result: RungResult, plan: places.Plan) -> str:
    """The same reports held against the row beside the fault's: every one is a miss."""
    return places.judged(result, dataclasses.replace(plan, row=plan.row + 1))


def test_places() -> None:
    figures = places.localise(["Q5_1"], 10, 0)
    assert figures["trials"] == figures["counts"]["blocks: named"] == figures["counts"]["layers: named"] == 10
    assert len(figures["by"]["fault"]) > 3
    assert len(figures["by"]["kernel"]) > 3
    assert [row[1:] for row in places.rows(figures)] == [["100 % (10 of 10)", "100 %"]] * 2

    missed = places.localise(["Q5_1"], 3, 0, beside)
    assert missed["counts"] == {"blocks: missed": 3, "layers: missed": 3, "diagnosed": 1}
    assert len(missed["missed"]) == 6
    assert places.rows(missed)[0][1] == "0 % (0 of 3)"


def test_a_fault_of_one_block_is_one(tmp_path: Path) -> None:
    """What is altered differs from the file in one block, and in the values that it stands for."""
    rng = np.random.default_rng(0)
    kinds = set()
    with places.open_model(FIXTURES / "tiny-Q5_1.gguf") as model:
        for _ in range(80):
            plan = places.planned(model, "blk.0.attn_v.weight", True, rng)
            if plan is None:
                continue
            kinds.add(plan.kind)
            same = np.array_equal(plan.original, plan.altered)
            assert same == plan.without_sum
            at = model.tensors[plan.tensor].block_offset(plan.row, plan.block)
            assert (FIXTURES / "tiny-Q5_1.gguf").read_bytes()[at : at + 24] == plan.original.tobytes()
    assert kinds >= {
        "one wrong bit", "one code off by one", "one wrong high bit", "d off by one ulp", "m missing", "s missing",
        "the block beside it",
    }  # fmt: skip


# -- alarms ------------------------------------------------------------------------------------------------------------

FEW = ("--small", "--types", "Q4_0", "Q6_K", "F16", "--seeds", "0", "-j", "1", "--outputs")


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """One fixture's matrices, fewer tokens."""
    monkeypatch.setattr(alarms, "QUANTIZED", (FIXTURES / "tiny-Q4_0.gguf",))
    monkeypatch.setattr(alarms, "UNQUANTIZED", FIXTURES / "tiny-F16.gguf")
    monkeypatch.setattr(alarms, "TOKENS", 12)
    monkeypatch.setattr(alarms, "OTHER_M", (1, 9))
    monkeypatch.setattr(alarms, "OWN_ROWS", 24)
    monkeypatch.setattr(alarms, "TEXT_TOKENS", 16)
    original = alarms.captured
    monkeypatch.setattr(alarms, "captured", lambda *a: original(*a)[:2])


@pytest.mark.slow
@pytest.mark.usefixtures("few")
def test_no_alarms(capsys: pytest.CaptureFixture[str]) -> None:
    figures = alarms.measure(options(alarms.add_arguments, *FEW, "8e5"))
    assert figures["alarms"] == 0
    assert figures["outputs"] >= 800_000
    assert figures["outputs"] == sum(figures["by"]["kernel"].values()) == sum(figures["by"]["type"].values())
    assert set(figures["by"]["kernel"]) == {
        *alarms.KERNELS, *alarms.FAMILIES, "f16_elements", "llama.cpp",
    }  # fmt: skip
    assert set(figures["by"]["type"]) == {"Q4_0", "Q6_K", "F16"}
    assert figures["by"]["activations"]["real"] > 10_000
    assert figures["activations quantized"] > 10_000
    assert 0 < max(figures["utilisation"].values()) < 1
    assert "jobs" in capsys.readouterr().err
    assert alarms.rows(figures)[0][1] == f"0 of {figures['outputs']:,} correct outputs"


@pytest.mark.usefixtures("few")
def test_the_same_seed_judges_the_same() -> None:
    first, again = (alarms.measure(options(alarms.add_arguments, *FEW[:2], "F16", *FEW[5:], "1")) for _ in range(2))
    assert first["outputs"] > 1000
    for name in ("outputs", "utilisation", "score", "by"):
        assert first[name] == again[name]


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize(
    "planted",
    [
        pytest.param({"bound": 0.001}, id="bound"),
        pytest.param({"spread": 1e-4}, id="score", marks=pytest.mark.slow),
        pytest.param({"ordered": 1 + 2.0**-23}, id="bits"),
    ],
)
def test_planted_alarms(monkeypatch: pytest.MonkeyPatch, planted: dict[str, float]) -> None:
    """An oracle with too narrow a bound or spread, or other bits, calls right outputs wrong: each is counted."""
    original = alarms.product

    def narrow(semantics: Semantics, *arguments: Any) -> Product:
        p = original(semantics, *arguments)
        changed = {
            name: getattr(p, name) * np.float32(by) for name, by in planted.items() if getattr(p, name) is not None
        }
        return dataclasses.replace(p, **changed)

    monkeypatch.setattr(alarms, "product", narrow)
    figures = alarms.measure(options(alarms.add_arguments, *FEW[:3], *FEW[5:], "1"))
    assert figures["alarms"] > 1000
    assert len(figures["listed"]) == alarms.LISTED
    assert all(a["what"] == "output" and a["by"] and a["shape"] for a in figures["listed"])


def test_wrong_bytes_of_a_quantizer_are_an_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.array(captured(FIXTURES / "tiny-Q4_0.gguf", ["a word"], 4)[0].rows[:8])
    matrix = Matrix("m", "t", FORMATS["Q4_0"], rows, np.ones((1, 256), np.float32))
    worker = alarms.Worker("cpu", [matrix])
    job = alarms.Job(0, "q8_1", 4, 0, "random", fill=True)
    assert worker.do(job).n_alarms == 0
    original = alarms.ShippedKernel.quantize

    def wrong(self: Any, x: Any) -> Any:
        y = original(self, x).copy()
        y[1, 7] ^= 1
        return y

    monkeypatch.setattr(alarms.ShippedKernel, "quantize", wrong)
    found = worker.do(job)
    assert found.n_alarms == 1
    assert (found.alarms[0]["what"], found.alarms[0]["token"]) == ("bytes of the quantizer", 1)


def test_matrices_travel_to_other_processes(tmp_path: Path) -> None:
    x = np.arange(512, dtype=np.float32).reshape(2, 256)
    made = [Matrix("m", n, FORMATS["Q4_0"], np.full((3, 144), i, np.uint8), x, i == 1) for i, n in enumerate("ab")]
    made.append(dataclasses.replace(made[0], fmt=WEIGHTS["F16"], x=x + 1))
    alarms.save(made, tmp_path)
    assert len(list(tmp_path.glob("x*.npy"))) == 2
    for a, b in zip(made, alarms.load(tmp_path), strict=True):
        assert (a.source, a.tensor, a.fmt, a.own) == (b.source, b.tensor, b.fmt, b.own)
        assert np.array_equal(a.rows, b.rows)
        assert np.array_equal(a.x, b.x)


def test_drawn_inputs() -> None:
    rng = np.random.default_rng(0)
    for name in ("Q4_0", "IQ1_M", "MXFP4", "NVFP4"):
        blocks = alarms.random_bytes(FORMATS[name], 4, 256, rng).reshape(-1, FORMATS[name].block_bytes)
        assert np.isfinite(FORMATS[name].decode(blocks)).all()
    x = alarms.random_activations(400, 64, 1)
    assert (x == 0).any()
    assert 100 < np.abs(x).max() <= 1500
    assert np.abs(x).max(axis=1).min() < 1e-2
    real = alarms.real_activations(x[:3], 9, 0)
    assert {row.tobytes() for row in real[:3]} == {row.tobytes() for row in x[:3]}
    assert len({row.tobytes() for row in real}) == 9
    assert [name for name in WEIGHTS if not fits(WEIGHTS[name], 96)] == [
        name for name in FORMATS if 96 % FORMATS[name].block_size
    ]


def test_without_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def none(*_: Any) -> None:
        raise EnvironmentFault("the GPU host cannot be used: none here")

    monkeypatch.setattr(alarms, "make_host", none)
    assert mutation_score.main(["alarms", "--host", "gpu", "--results", str(tmp_path / "r.json")]) == 3
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == "mutation_score.py: the GPU host cannot be used: none here\n"


@pytest.mark.parametrize("name", ["alarms", "naming"])
def test_what_must_not_be_ends_with_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """And is kept and said all the same."""
    results = tmp_path / "r.json"
    found: dict[str, Any] = {
        "host": "cpu", "outputs": 10, "alarms": 0, "listed": [], "by": {"kernel": {}}, "utilisation": {}, "score": {},
        "score limit": 32,
    }  # fmt: skip
    if name == "naming":
        found = {
            **{k: naming.tallied([]) for k in ("catalogue", "outside", "sources", "sources outside")},
            "places": None,
        }
    module = mutation_score.PARTS[name]
    monkeypatch.setattr(module, "measure", lambda options: found)
    assert mutation_score.main([name, "--results", str(results)]) == 0
    if name == "alarms":
        found = {**found, "alarms": 1, "listed": [{"kernel": "q8_1_mma"}]}
    else:
        wrong = naming.Outcome("offset-twice", "", "Q4_0", "q8_1", 0, "t", naming.WRONG, ("s-missing",))
        found = {**found, "catalogue": naming.tallied([wrong])}
    assert mutation_score.main([name, "--results", str(results)]) == 1
    assert ("ALARM {" if name == "alarms" else "WRONG {") in capsys.readouterr().out
    kept = json.loads(results.read_text())[name]
    assert (kept["cpu"] if name == "alarms" else kept) == json.loads(json.dumps(found))
