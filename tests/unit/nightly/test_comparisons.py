"""Comparisons of nights: each kind of change, and no false alarm."""

from __future__ import annotations

import dataclasses
import math
import random
import re
from collections.abc import Sequence

import pytest

from gguf_verify_nightly.compare import Comparison, compare
from gguf_verify_nightly.records import Cell, Failed, Key, Night, Outcome
from gguf_verify_nightly.report.writers import NightKind
from gguf_verify_nightly.significance import LEAST_NIGHTS, drifts, judge_times
from tests.support.shown import text_of
from tests.support.stub_nights import KEY, cell_for


def night_of(number: int, cells: Sequence[Cell], planned: Sequence[Key] | None = None, cpu: str = "x") -> Night:
    found = {cell.key: cell for cell in cells}
    keys = tuple(found) if planned is None else tuple(planned)
    return Night(number, f"{number}", f"{number}", "c", keys, found, {"CPU": cpu}, "1")


def keys_of(changes: Sequence[object]) -> list[str]:
    return [change.key.prompt for change in changes]  # type: ignore[attr-defined]


def test_a_waiver_breaks_nothing_and_repairs_nothing() -> None:
    good, bad, waived = Outcome.VERIFIED, Outcome.MISMATCH, Outcome.WAIVED
    table = {
        "waived": (good, waived), "expired": (waived, bad), "known": (bad, waived), "repaired": (waived, good),
        "both": (waived, waived),
    }  # fmt: skip
    sides = [
        [cell_for(KEY._replace(prompt=name), outcomes[side]) for name, outcomes in table.items()] for side in (0, 1)
    ]
    old, new = (night_of(number, cells) for number, cells in enumerate(sides, 1))
    found = compare([], old, new)
    assert keys_of(found.new_failures) == ["expired"]
    assert keys_of(found.waived) == ["waived", "known", "both"]
    assert keys_of(found.fixed) == ["repaired"]
    assert found.other_outcome == found.still_failing == found.other_failures == ()
    assert found.exit_code() == 1
    later = compare([old], new, night_of(3, sides[1]))
    assert {c.key.prompt: c.reason.rpartition("; ")[2] for c in later.waived} == {
        "waived": "waived for 2 nights", "known": "waived for 2 nights", "both": "waived for 3 nights",
    }  # fmt: skip


def test_another_fault_in_a_red_cell_is_not_silent() -> None:
    """Rung, place, count and diagnosis are in the reason: where it changes, the cell fails in another way."""
    first, second = "layers: blk.0 row 1 (and 3 more)", "layers: blk.0 row 1 (and 900 more); diagnosis: wrong-sign"
    nights = [
        night_of(i, [dataclasses.replace(cell_for(outcome=Outcome.MISMATCH), reason=why)])
        for i, why in enumerate((first, second, second), 1)
    ]
    found = compare(nights[:1], nights[0], nights[1])
    (change,) = found.other_failures
    assert change.reason == f"{second}; before: {first}"
    assert (found.still_failing, found.exit_code()) == ((), 1)
    assert "FAILS IN ANOTHER WAY m.gguf" in text_of(NightKind.COMPARISON, found)
    again = compare(nights[:2], nights[1], nights[2])
    assert keys_of(again.still_failing) == [KEY.prompt]
    assert (again.other_failures, again.exit_code()) == ((), 1)  # red is no pass, however long it has been red


FAILED = Failed("layers", "blk.0.ffn_up", "row 1, block 2, token 0", "kernel, wrong-sign", 4)


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ((FAILED, "layers: blk.0 row 1 is wrong"), (FAILED, "layers: row 1 of blk.0 is incorrect"), True),
        *(
            ((FAILED, "wrong"), (other, "wrong"), False)
            for other in (
                FAILED._replace(check="tokens"), FAILED._replace(tensor="blk.1"), FAILED._replace(place="row 2"),
                FAILED._replace(kind="kernel"), FAILED._replace(number=5),
            )
        ),
        ((None, "died of SIGSEGV: x"), (None, "died of SIGSEGV: y"), False),
        ((None, "layers: blk.0 row 1 is wrong"), (FAILED, "layers: row blk.0, 1 is incorrect"), True),
        ((None, "layers: blk.0 row 1 is wrong"), (FAILED, "layers: row blk.0, 2 is incorrect"), False),
    ],
)  # fmt: skip
def test_a_failure_that_is_worded_otherwise_is_the_same(
    old: tuple[Failed | None, str], new: tuple[Failed | None, str], same: bool
) -> None:
    before, after = (
        night_of(i, [dataclasses.replace(cell_for(outcome=Outcome.MISMATCH), failed=failed, reason=reason)])
        for i, (failed, reason) in enumerate((old, new), 1)
    )
    found = compare([before], before, after)
    assert (len(found.still_failing), len(found.other_failures)) == ((1, 0) if same else (0, 1))
    assert found.exit_code() == 1


def test_a_cell_that_comes_and_goes_is_named_so() -> None:
    good, bad = Outcome.VERIFIED, Outcome.MISMATCH
    nights = [night_of(i, [cell_for(outcome=o)]) for i, o in enumerate((good, bad, good, good, bad, bad, good), 1)]
    (change,) = compare(nights[:-1], nights[-2], nights[-1]).fixed
    assert change.reason == "it failed in 3 of 6 nights before"
    (first,) = compare(nights[:1], nights[0], nights[1]).new_failures
    assert "nights before" not in first.reason


def test_every_kind_of_change() -> None:
    good, bad, dead = Outcome.VERIFIED, Outcome.MISMATCH, Outcome.CRASHED
    table = {
        "same": (good, good), "broke": (good, bad), "died": (good, dead), "fixed": (dead, good), "still": (bad, bad),
        "other": (bad, dead), "gone": (good, None), "unrun": (bad, None), "new": (None, bad),
    }  # fmt: skip
    cells: list[list[Cell]] = [[], []]
    for name, outcomes in table.items():
        for side, outcome in zip(cells, outcomes, strict=True):
            if outcome is not None:
                side.append(cell_for(KEY._replace(prompt=name), outcome))
    planned = [KEY._replace(prompt=name) for name in table if name != "gone"] + [KEY._replace(prompt="never")]
    old, new = night_of(1, cells[0]), night_of(2, cells[1], planned)
    found = compare([old], old, new)
    assert keys_of(found.new_failures) == ["broke", "died"]
    assert keys_of(found.fixed) == ["fixed"]
    assert keys_of(found.still_failing) == ["still"]
    assert keys_of(found.other_outcome) == ["other"]
    assert [(c.key.prompt, c.reason) for c in found.vanished] == [
        ("gone", "no longer planned"), ("unrun", "planned, but not run")
    ]  # fmt: skip
    assert keys_of(found.appeared) == ["new"]
    assert [key.prompt for key in found.not_run] == ["never"]
    assert (found.compared, found.verified) == (6, 1)
    assert found.exit_code() == 1
    text = text_of(NightKind.COMPARISON, found)
    assert "NEW FAILURE m.gguf · Q4_0 · q8_1 · cpu · broke · installed: verified → mismatch: wrong" in text
    assert "VANISHED m.gguf · Q4_0 · q8_1 · cpu · gone · installed: verified → –: no longer planned" in text
    assert "2 new failures, 0 fail in another way, 2 vanished, 1 fixed, 0 waived, 2 still failing, 1 appeared" in text


def test_exit_codes_of_comparisons() -> None:
    one = night_of(1, [cell_for()])
    assert compare([], one, night_of(2, [cell_for()])).exit_code() == 0
    assert compare([], one, night_of(2, [])).exit_code() == 1  # vanished
    assert compare([], night_of(1, []), night_of(2, [])).exit_code() == 5
    assert compare([], night_of(1, []), night_of(2, [cell_for()])).exit_code() == 5
    drifted = compare([], one, night_of(2, [cell_for(u=0.2)]))
    assert (drifted.exit_code(), drifted.exit_code(strict=True)) == (0, 1)
    fails = cell_for(outcome=Outcome.MISMATCH)
    assert compare([], night_of(1, [fails]), night_of(2, [fails])).exit_code() == 1
    waived = night_of(1, [cell_for(outcome=Outcome.WAIVED)])
    assert compare([], waived, night_of(2, [*waived.cells.values()])).exit_code() == 0
    for outcome, code in ((Outcome.UNVERIFIED, 5), (Outcome.CRASHED, 3)):
        one = night_of(1, [cell_for(outcome=outcome)])
        assert compare([], one, night_of(2, [*one.cells.values()])).exit_code() == code


def test_drift_is_what_the_history_does_not_show() -> None:
    def found(values: Sequence[float], new: float) -> Comparison:
        nights = [night_of(i + 1, [cell_for(u=v)]) for i, v in enumerate(values)]
        return compare(nights[:-1], nights[-1], night_of(99, [cell_for(u=new)]))

    (drift,) = found([0.1, 0.1, 0.1], 0.1 + 1e-6).drift
    assert (drift.rung, drift.who, drift.old, drift.least, drift.most, drift.nights) == (
        "layers",
        "kernel",
        0.1,
        0.1,
        0.1,
        3,
    )
    assert not found([0.1, 0.1, 0.1], 0.1 * (1 + 1e-13)).drift
    assert found([0.1], 0.11).drift
    assert not found([0.1, 0.2], 0.1).drift  # was there before
    assert found([0.1, 0.2], 0.3).drift_not_judged == 1
    assert found([0.1, 0.1, math.nan], 0.1).drift == ()
    assert found([0.1, 0.1, 0.1], math.nan).drift
    noisy = [0.10, 0.11, 0.105, 0.108, 0.102, 0.107]
    assert not found(noisy, 0.112).drift
    assert found(noisy, 0.3).drift
    assert drifts([1.0, 2.0, 3.0], 2.0 + 1e-12) is False
    assert (
        "DRIFT m.gguf · Q4_0 · q8_1 · cpu · p · installed, layers, kernel: utilisation 0.1 → 0.2, 0.1 in 3 nights"
    ) in text_of(NightKind.COMPARISON, found([0.1, 0.1, 0.1], 0.2))


def test_other_machines_are_not_compared() -> None:
    history = [night_of(i, [cell_for()], cpu="slow") for i in range(1, 9)]
    found = compare(history, history[-1], night_of(9, [cell_for(seconds=9, u=0.5)], cpu="fast"))
    assert found.other_machine
    assert not found.drift
    assert found.times_not_judged == {0: 1}
    assert found.hardware == {"CPU": ("slow", "fast")}
    assert "different machines" in text_of(NightKind.COMPARISON, found)


def test_versions_that_changed() -> None:
    new = dataclasses.replace(cell_for(), versions={"llama.cpp": "2"})
    found = compare([], night_of(1, [cell_for()]), dataclasses.replace(night_of(2, [new]), project="2"))
    assert found.versions == {"llama.cpp": {("1", "2"): 1}}
    assert found.project == ("1", "2")
    assert "CHANGED llama.cpp: 1 → 2 in 1 cell" in text_of(NightKind.COMPARISON, found)


def noisy_night(
    rng: random.Random, base: dict[int, float], sigma: dict[int, float], pace_sigma: float = 0.2
) -> dict[int, float]:
    """Times with a common pace: log-normal noise, of a cell's own spread."""
    pace = rng.gauss(0, pace_sigma)
    return {k: b * math.exp(pace + rng.gauss(0, sigma[k])) for k, b in base.items()}


def test_a_thousand_stable_nights_and_no_false_alarm() -> None:
    rng = random.Random(20)
    base = {k: rng.uniform(2, 300) for k in range(40)}
    sigma = {k: math.exp(rng.uniform(math.log(0.01), math.log(0.06))) for k in base}
    alarms = judged = 0
    history = [noisy_night(rng, base, sigma) for _ in range(LEAST_NIGHTS)]
    for _ in range(1000):
        new = noisy_night(rng, base, sigma)
        times = judge_times(history, new)
        judged += times.judged
        alarms += len(times.slower)
        history = [*history, new][-12:]
    print(f"{alarms} false alarms in {judged:,} cells of 1,000 nights")
    assert judged == 40_000
    assert alarms == 0


@pytest.mark.parametrize(("nights", "factor"), [(5, 3.0), (8, 2.0), (20, 1.6)])
def test_a_planted_time_regression_is_found_alone(nights: int, factor: float) -> None:
    """In a night that is half as slow again as usual, as a whole."""
    rng = random.Random(nights)
    base = {k: rng.uniform(2, 300) for k in range(40)}
    sigma = dict.fromkeys(base, 0.03)
    for _ in range(20):
        history = [noisy_night(rng, base, sigma) for _ in range(nights)]
        new = {k: 1.5 * t for k, t in noisy_night(rng, base, sigma, 0.0).items()}
        bad = rng.randrange(40)
        new[bad] *= factor
        times = judge_times(history, new)
        assert list(times.slower) == [bad]
        assert times.slower[bad].seconds == pytest.approx(new[bad])
        assert times.slower[bad].seconds / times.slower[bad].expected == pytest.approx(factor, rel=0.25)
        new[bad] /= factor * factor
        times = judge_times(history, new)
        assert (list(times.slower), list(times.faster)) == ([], [bad])


def test_a_slower_cell_is_told_by_the_comparison() -> None:
    nights = 8
    rng = random.Random(1)
    keys = [KEY._replace(prompt=f"p{i}") for i in range(20)]

    def night(number: int, slow: Key | None = None) -> Night:
        pace = math.exp(rng.gauss(0, 0.3))
        times = {key: 10 * pace * math.exp(rng.gauss(0, 0.02)) * (3 if key == slow else 1) for key in keys}
        return night_of(number, [cell_for(key, seconds=t) for key, t in times.items()])

    history = [night(i) for i in range(1, nights + 1)]
    found = compare(history[::-1], history[-1], night(nights + 1, keys[4]))
    assert keys_of(found.slower) == ["p4"]
    assert (found.exit_code(), found.exit_code(strict=True)) == (0, 1)
    assert found.times_judged == 20
    (line,) = [line for line in text_of(NightKind.COMPARISON, found).splitlines() if line.startswith("SLOWER")]
    assert re.fullmatch(
        r"SLOWER m.gguf .* p4 .*: [0-9.]+ s, [0-9.]+ s expected from 8 nights, \+[0-9.]+ σ \(limit .*\)", line
    )
    later = [night(i) for i in range(50, 60)]  # nights after the new one are no history
    assert compare(later, history[-1], night(nights + 1, keys[4])).times_not_judged == {1: 20}


@pytest.mark.parametrize("cells", [1, 2, 3])
def test_few_cells_hide_no_regression_as_the_nights_pace(cells: int) -> None:
    rng = random.Random(cells)
    base = dict.fromkeys(range(cells), 10.0)
    history = [noisy_night(rng, base, dict.fromkeys(base, 0.02), 0.01) for _ in range(10)]
    assert list(judge_times(history, base | {0: 30.0}).slower) == [0]
    assert not judge_times(history, base).slower


def test_what_slows_every_cell_shows_in_the_pace() -> None:
    rng = random.Random(1)
    base = dict.fromkeys(range(20), 10.0)
    sigma = dict.fromkeys(base, 0.02)
    history = [noisy_night(rng, base, sigma, 0.03) for _ in range(10)]
    times = judge_times(history, {k: 2 * t for k, t in noisy_night(rng, base, sigma, 0.03).items()})
    assert not times.slower
    assert 1.7 < times.pace < 2.3
    assert times.pace_sigmas > 10
    assert abs(judge_times(history, noisy_night(rng, base, sigma, 0.03)).pace_sigmas) < 5


def test_what_is_noise_in_one_history_is_a_regression_in_another() -> None:
    """The same 30 % in a quiet and in a noisy history: no percentage decides."""
    rng = random.Random(3)
    base = dict.fromkeys(range(40), 10.0)
    for spread, expected in ((0.005, [7]), (0.2, [])):
        sigma = dict.fromkeys(base, spread)
        history = [noisy_night(rng, base, sigma) for _ in range(12)]
        new = {k: 10 * math.exp(rng.gauss(0, spread / 10)) for k in base}
        new[7] *= 1.3
        assert list(judge_times(history, new).slower) == expected


def test_few_nights_judge_no_time() -> None:
    history = [{"a": 1.0, "b": 1.0}] * (LEAST_NIGHTS - 1)
    times = judge_times([*history, {"a": 1.0}], {"a": 100.0, "b": 100.0, "c": 1.0})
    assert times.judged == 1
    assert times.not_judged == {LEAST_NIGHTS - 1: 1, 0: 1}
    nights = [night_of(i, [cell_for()]) for i in range(1, 4)]
    shown = text_of(NightKind.COMPARISON, compare(nights, nights[-1], night_of(4, [cell_for(seconds=50)])))
    assert "the times of 1 cell are not judged: their history has 3 nights, and 5 are needed\n" in shown


def test_times_of_failures_count_for_nothing() -> None:
    history = [night_of(i, [cell_for(seconds=1, outcome=Outcome.MISMATCH)]) for i in range(1, 9)]
    found = compare(history, history[-1], night_of(9, [cell_for(seconds=50)]))
    assert (found.times_judged, found.slower) == (0, ())
