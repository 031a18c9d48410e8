"""What gave an exhibit away: two exhibits are verified, and records of calls are explained."""

from __future__ import annotations

from typing import get_args

import pytest
from msgspec.structs import replace

from gguf_verify.hosts.compiler import counts_fault
from gguf_verify.results.calls import Call, CallKind
from gguf_verify.results.failures import Failure
from tests.meta.museum.collection import EXHIBITS, findings
from tests.meta.museum.given_away import Made, Way, check_of, first_taken, given_away, place_of
from tests.meta.museum.verdicts import options_of
from tests.support.tools import FIXTURES

LINE, BRANCH = ("k.cu", 7, -1, 0), ("k.cu", 7, 0, 1)
LOOP = frozenset[Way]({("k.cu", 5, -1, 0), ("k.cu", 5, 0, 0)})
SHAPE = (97, 2, 64)
PROBE = Call(kind="probe", number=29, m=97, n=2, k=64)
WRONG = Failure(
    "kernel at other N and K of 2 rows and K = 64, 97 tokens: w row 0: the output is outside", "w", call=PROBE
)


@pytest.mark.skipif(counts_fault() is not None, reason=f"code is not counted here: {counts_fault()}")
def test_a_branch_that_only_the_wrong_call_takes() -> None:
    name = "subnormal_halves_flushed"
    found = given_away(EXHIBITS[name].path, FIXTURES / "tiny-Q4_0.gguf", options_of("brief"))
    assert found.why == "branch"
    assert found.right > 10
    assert found.branches[0].startswith(f"{name}.cu:27: const float d = BUG && !(wb.d & 0x7C00)")
    assert found.rung == "layers"


def test_a_second_call_takes_what_the_first_one_takes() -> None:
    found = given_away(EXHIBITS["cached_by_shape"].path, FIXTURES / "tiny-Q4_0.gguf", options_of("brief"))
    assert (found.rung, found.check, found.why, found.right) == ("blocks", "a single block of K", "every line", 1)


def test_each_exhibit_has_been_measured_at_its_present_lines() -> None:
    for name, found in findings().items():
        assert found.given_away is not None, name
        assert bool(found.given_away.branches) == (found.given_away.why == "branch"), name
        for branch in found.given_away.branches:
            place, _, text = branch.partition(": ")
            file, _, line = place.rpartition(":")
            if line.isdecimal():
                source = (EXHIBITS[name].path.parent / file).read_text().splitlines()[int(line) - 1].strip()
                assert source.startswith(text.removesuffix("…")), (name, branch)


def test_the_call_of_a_failure_is_the_first_of_its_name() -> None:
    made = [Made(None, SHAPE, None, False, LOOP), Made(PROBE, SHAPE, None, False, LOOP)]
    assert place_of(WRONG, [*made, made[1]]) == 1
    assert place_of(Failure("w: wrong", call=PROBE), made[:1]) is None


def test_a_thread_block_is_found_by_its_shape_and_number() -> None:
    of = Failure("Q4_0 at M=9, N=8, K=32: thread block 1,234 writes 1, expected 2", call=Call(kind="index"))
    shape = (9, 8, 32)
    made = [Made(None, shape, block, False, LOOP) for block in (3, 1234, 1234)]
    assert place_of(of, made) == 1
    assert place_of(Failure("Q4_0 at M=9, N=8, K=32: none of 3 thread blocks of 5,000 writes anything"), made) == 0
    assert check_of(of) == "a large product, M = 9, N = 8, K = 32"


def test_a_call_under_a_schedule_is_found_by_its_shape() -> None:
    of = Failure("w: at 97 tokens: data race", "w", call=Call(kind="schedule", m=97, n=2, k=64))
    calls = ((False, LOOP), (True, None), (True, LOOP))
    made = [Made(None, SHAPE, None, scheduled, taken) for scheduled, taken in calls]
    assert place_of(of, made) == 1
    other = "w: at 97 tokens: the outputs depend on the order: 9 of 9 differ under another schedule (descending)"
    assert place_of(replace(of, what=other), made) == 2


def test_branches_come_before_the_lines_behind_them() -> None:
    right = [LOOP]
    new = frozenset[Way]({BRANCH, LINE, ("k.cu", 6, -1, 0)})
    assert first_taken(WRONG, new, right, ()) == ("branch", ("k.cu:7",))
    assert first_taken(WRONG, frozenset({LINE}), right, ()) == ("branch", ("k.cu:7",))
    assert first_taken(WRONG, frozenset(), right, ()) == ("every line", ())
    assert first_taken(WRONG, new, [], ()) == ("first call", ())


def test_a_checked_build_names_lines() -> None:
    known = {"k.cu:5", "k.cu:7"}
    race = "data race: thread 0 writes at {} and thread 1 reads at k.cu:5"
    assert first_taken(Failure(race.format("k.cu:5")), None, [LOOP], known) == ("named lines", ())
    assert first_taken(Failure(race.format("k.cu:7")), None, [LOOP], known) == ("branch", ("k.cu:7",))
    assert first_taken(Failure("the bits differ"), None, [LOOP], known) == ("not counted", ())


def test_launches_that_are_refused_make_no_call() -> None:
    refused = Failure("w: at M=2, N=63, K=352 its grid is 0 × 1 × 1, which CUDA does not launch")
    assert first_taken(refused, None, [LOOP], ()) == ("no call", ())


@pytest.mark.parametrize(
    ("what", "check"),
    [
        (WRONG.what, "M = 97, N = 2, K = 64"),
        (
            "kernel at other N and K of 2 rows and K = 64, 97 tokens (blocks of any bits): w row 0: the output",
            "M = 97, N = 2, K = 64: blocks of any bits",
        ),
        ("Q4_0 at M=97, N=2, K=64 (k.cu:7: if (M > 96)): it crashed", "M = 97, N = 2, K = 64: k.cu:7: if (M > 96)"),
    ],
)
def test_the_check_says_what_its_data_are(what: str, check: str) -> None:
    assert check_of(Failure(what, "w", call=PROBE)) == check


@pytest.mark.parametrize("kind", get_args(CallKind))
def test_each_kind_of_call_has_a_name(kind: CallKind) -> None:
    assert check_of(Failure("w", call=Call(kind=kind)))
