"""Naming and localisation: correct diagnoses are counted, and so are planted errors."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from gguf_verify.diagnosis.diagnose import Diagnosis, diagnose
from gguf_verify.diagnosis.faults import FAULTS
from gguf_verify.diagnosis.observed import OBSERVED
from gguf_verify.diagnosis.sizes import ROWS, TOKENS, learn
from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.gguf.model import open_model
from gguf_verify.kernels.domain import Extent
from gguf_verify.results.diagnoses import FaultMatch
from gguf_verify.results.failures import Failure
from gguf_verify.results.rungs import RungResult
from gguf_verify.support.paths import kernel_root
from tests.support.tools import FIXTURES
from tools.measure.__main__ import main
from tools.measure.naming import edits, guarded_faults, naming, places
from tools.measure.one_block import Plan


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
def test_answers_are_classified(diagnosis: Diagnosis, fault: str, said: str) -> None:
    assert naming.answer(diagnosis, fault) == said


def first_of_all(*arguments: Any) -> Diagnosis:
    """A diagnosis that always names the first fault of the catalogue."""
    right = diagnose(*arguments)
    return found(FAULTS[0].id, wrong=right.wrong)


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


def test_faults_outside_the_catalogue() -> None:
    figures = naming.tallied(naming.outside("Q4_0", [0]))
    assert naming.WRONG not in figures["answers"]
    assert figures["answers"][naming.UNKNOWN] > 30
    assert figures["answers"][naming.ALONE] > 30
    assert not [o for o in figures[naming.UNKNOWN] if o["definition"] != "q8_1_half"]
    planted = naming.tallied(naming.outside("Q4_0", [0], first_of_all))
    assert planted["answers"][naming.WRONG] == figures["changing"]


@pytest.mark.parametrize(
    ("what", "kind"),
    [
        ("no offset", "Q4_0"),
        ("written transposed", "Q5_1"),
        ("offset 7", "Q4_0"),
        ("activations reversed", "Q4_0"),
        ("a quarter of the minimum", "Q5_1"),
        ("the high bits shifted by 2", "Q6_K"),
        ("a value of 16 left out", "Q8_0"),
    ],
)
def test_altered_sources(what: str, kind: str) -> None:
    edit = next(e for e in edits.EDITS if e.what == what and kind in e.formats)
    outcomes = naming.edited(edit, kind, [0])
    assert [o.answer for o in outcomes] == [naming.ALONE if edit.fault else naming.UNKNOWN] * 2
    assert {o.answer for o in naming.edited(edit, kind, [0], first_of_all)} == {naming.WRONG}


def test_every_edit_is_one_of_these_sources(tmp_path: Path) -> None:
    ids = {f.id for f in FAULTS}
    assert ids - {e.fault for e in edits.EDITS} == set(edits.NO_EDIT)
    assert {e.fault for e in edits.EDITS} <= ids | set(OBSERVED) | {""}
    for edit, kind in edits.chosen(list(FORMATS)):
        for file, old, new in edit.changes:
            assert old in (kernel_root() / file.replace("{F}", kind.lower())).read_text(), (edit.what, kind)
            assert old != new
    absent = dataclasses.replace(edits.EDITS[0], changes=((edits.NAIVE, "not there", ""),))
    with pytest.raises(ValueError, match="does not hold 'not there'"):
        edits.altered(tmp_path, absent, "Q4_0")


# -- faults under a condition ------------------------------------------------------------------------------------------


def test_faults_under_a_condition() -> None:
    (_, matrix), *_ = naming.real("Q4_0", (0,))
    outcomes = [of for number in range(4) if (of := guarded_faults.tried(matrix, number, 3)) is not None]
    figures = guarded_faults.tallied(outcomes)
    assert figures["mutants"] == len(outcomes) >= 3
    assert guarded_faults.WRONG not in figures["answers"]
    assert guarded_faults.WRONG not in figures["rules"]
    assert len({o.where for o in outcomes}) > 1
    wrong = [dataclasses.replace(o, answer=guarded_faults.WRONG, rule=guarded_faults.WRONG) for o in outcomes]
    assert guarded_faults.rows(guarded_faults.tallied(wrong))[1][1].startswith("100 %")
    assert guarded_faults.rows(guarded_faults.tallied(wrong))[2][1].startswith("100 %")


def test_a_rule_of_the_wrong_axis_or_place_is_wrong() -> None:
    of = guarded_faults.Condition("N", "i >= N - 4", lambda at, size: at >= size - 4, False)
    calls = {n: of.holds(np.arange(n), n) for n in range(1, 40)}
    mutant = guarded_faults.Mutant("", "", of.words, lambda case: case.right.exact, of)
    for axis, said in ((ROWS, guarded_faults.RIGHT), (TOKENS, guarded_faults.WRONG)):
        found = learn(calls, lambda n, _=0: of.holds(np.arange(n), n), 80, Extent(), axis)
        assert found is not None
        assert guarded_faults.rated(mutant, [found]) == said
    place = guarded_faults.Condition("N", "", lambda at, size: at >= size - 5, False)
    other = dataclasses.replace(mutant, condition=place)
    found = learn(calls, lambda n, _=0: of.holds(np.arange(n), n), 80, Extent(), ROWS)
    assert found is not None
    assert guarded_faults.rated(other, [found]) == guarded_faults.WRONG


# -- places ------------------------------------------------------------------------------------------------------------


def report(*failures: Failure) -> RungResult:
    result = RungResult(name="layers")
    for failure in failures:
        result.fail(failure)
    return result


def test_reports_are_classified() -> None:
    plan = Plan("", "w", 3, 5, np.zeros(1, np.uint8), np.zeros(1, np.uint8))
    right = Failure("kernel: is outside the bound", "w", 3, 5)
    alone = Failure("kernel: w row 3 (no single block is wrong: look at the accumulation over K)", "w", 3)
    assert places.judged(report(), plan) == "unseen"
    assert places.judged(report(right, Failure("differ by more than both bounds", "w", 3)), plan) == "right"
    assert places.judged(report(alone), plan) == "row"
    for wrong in (
        [Failure("", "w", 3)],
        [Failure("", "w", 3, 6)],
        [right, Failure("", "w", 4, 5)],
        [msgspec.structs.replace(right, tensor="v")],
        [msgspec.structs.replace(alone, row=2)],
    ):
        assert places.judged(report(*wrong), plan).startswith("rows")


def beside(result: RungResult, plan: Plan) -> str:
    """The same reports, compared with the row next to the fault's: every one is a miss."""
    return places.judged(result, dataclasses.replace(plan, row=plan.row + 1))


def test_places() -> None:
    figures = places.localised(["Q5_1"], 10, 0)
    assert figures["trials"] == figures["counts"]["blocks: named"] == figures["counts"]["layers: named"] == 10
    assert len(figures["by"]["fault"]) > 3
    assert len(figures["by"]["kernel"]) > 3
    assert [row[1:] for row in places.rows(figures)] == [["100 % (10 of 10)", "100 %"]] * 2

    missed = places.localised(["Q5_1"], 3, 0, beside)
    assert missed["counts"] == {"blocks: missed": 3, "layers: missed": 3, "diagnosed": 2}
    assert len(missed["missed"]) == 6
    assert places.rows(missed)[0][1] == "0 % (0 of 3)"


def test_a_fault_of_one_block_is_one(tmp_path: Path) -> None:
    """Altered weights differ from the file in one block, and in its values."""
    rng = np.random.default_rng(0)
    kinds = set()
    with open_model(FIXTURES / "tiny-Q5_1.gguf") as model:
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


def test_a_wrong_name_is_saved_printed_and_exits_with_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "r.json"
    found: dict[str, Any] = {
        **{name: naming.tallied([]) for name in ("catalogue", "outside", "sources", "sources outside")},
        "places": None,
    }  # fmt: skip
    monkeypatch.setattr(naming, "measured", lambda _: found)
    assert main(["naming", "--results", str(results)]) == 0
    wrong = naming.Outcome("offset-twice", "", "Q4_0", "q8_1", 0, "t", naming.WRONG, ("s-missing",))
    found = {**found, "catalogue": naming.tallied([wrong])}
    assert main(["naming", "--results", str(results)]) == 1
    assert "WRONG {" in capsys.readouterr().out
    assert json.loads(results.read_text())["naming"] == json.loads(json.dumps(found))


def test_a_run_resumes_where_it_stopped(tmp_path: Path) -> None:
    path = tmp_path / "kept.jsonl"
    one = naming.Outcome("offset-twice", "", "Q4_0", "q8_1", 0, "t", naming.ALONE, ("offset-twice",))
    naming.Kept(path, "run").add("'Q4_0'", [one, one])
    with path.open("a") as f:
        f.write('{"run": "run", "item": "')  # it was cut off
    assert naming.Kept(path, "run").outcomes == {"'Q4_0'": [one, one]}
    assert naming.Kept(path, "another run").outcomes == {}
