"""Recording in parts and joining these gives the very result that recording the whole gives."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gguf_verify.diagnosis.permutation import MOST_BITS, Lost, Moves, find_moves
from gguf_verify.results.calls import LIMIT, OWN, Call, CallKind
from gguf_verify.results.diagnoses import FaultMatch, LocatedDiagnosis
from gguf_verify.results.failures import Failure
from gguf_verify.results.margins import Headroom, Side
from gguf_verify.results.products import TensorBlocks
from gguf_verify.results.rungs import MAX_FAILURES, PartialResult, RungResult
from gguf_verify.rungs.exact import Distances
from gguf_verify.rungs.explain import Explanations
from gguf_verify.rungs.layers.plan import OncePerType
from gguf_verify.rungs.llama_quantizers import Quantizers
from gguf_verify.semantics.fast_math import Agreement

Record = Callable[[RungResult], object]
NAMES = st.sampled_from(["a", "b", "c", "d", "e", "f"])
CULPRITS = ("kernel", "llama.cpp", "file", "definition")


def _failure(what: str, tensor: str, culprit: Any, cause: str, kind: CallKind, n: int) -> Record:
    failure = Failure(what, tensor, culprit=culprit, cause=cause, call=Call(kind=kind))
    return lambda result: result.fail(failure, n)


def _call(method: str, *args: Any) -> Record:
    return lambda result: getattr(result, method)(*args)


def _detail(name: str) -> Record:
    return lambda result: result.details.append(TensorBlocks(name, "Q4_0", 1, 0))


def _figure(name: str, n: int) -> Record:
    return lambda result: result.figures.__setitem__(name, result.figures.get(name, 0) + n)


def _headroom(tensor: str, value: float) -> Record:
    found = Headroom(what="s", tensor=tensor, token=0, block=0, value=value, limit=65504.0)
    return lambda result: result.keep_headroom(found)


def _records(draw: random.Random) -> list[Record]:
    """Whatever a rung records, of one kind or of all, in lists that are long enough for every limit."""

    def of(*values: Any) -> Any:
        return draw.choice(values)

    def name() -> str:
        return of("a", "b", "c", "d")

    def ratio() -> float:
        return of(0.0, 0.5, 1.0, 1.0, 2.0, float("inf"), float("nan"))

    causes = draw.choice([2, 30, 60])
    kinds: list[Callable[[], Record]] = [
        lambda: _failure(
            name(),
            name(),
            of(*CULPRITS),
            of("", str(draw.randrange(causes))),
            of("own", "probe", "grid"),
            draw.randrange(1, 9),
        ),
        lambda: _call("fail_more", of(*CULPRITS), draw.randrange(3), name()),
        lambda: _call("note", name() + name(), of(True, False)),
        lambda: _call("count", of("blocks", "outputs", "GEMMs"), draw.randrange(9)),
        lambda: _call("count_beside", of("blocks", "outputs"), draw.randrange(9), of(True, False)),
        lambda: _call("did", of("walls", "races"), draw.randrange(3)),
        lambda: _call("omit", of("walls", "races"), name(), of("", "brief")),
        lambda: _call("skip", name(), draw.randrange(9)),
        lambda: _call("leave", name(), name()),
        lambda: _call("leave_all", name(), name(), "llama.cpp"),
        lambda: _call("measure", Side(name(), True), ratio(), ratio(), str(draw.random())),
        lambda: _detail(name()),
        lambda: _figure(name(), draw.randrange(9)),
        lambda: _headroom(name(), of(1.0, 2.0, -2.0, 3.0)),
    ]
    chosen = of(kinds, kinds[:2], [of(*kinds)])
    return [of(*chosen)() for _ in range(draw.randrange(of(10, 100, 200)))]


def _pieces(records: Sequence[Any], cuts: Sequence[int]) -> list[Sequence[Any]]:
    at = [0, *sorted(min(cut, len(records)) for cut in cuts), len(records)]
    return [records[i:j] for i, j in pairwise(at)]


def _told(result: RungResult) -> str:
    return repr({name: getattr(result, name) for name in RungResult.__struct_fields__})


@pytest.mark.parametrize("seed", range(8))
def test_parts_that_are_joined_are_the_whole(seed: int) -> None:
    """In every field, with the order of dictionaries; whatever was known of the whole when a part began."""
    draw = random.Random(seed)
    for _ in range(100):
        records = _records(draw)
        whole, joined = RungResult(name="layers"), RungResult(name="layers")
        for record in records:
            record(whole)
        for piece in _pieces(records, [draw.randrange(1 + len(records)) for _ in range(draw.randrange(6))]):
            own = sum(failure.rank == OWN for failure in joined.failures)
            part = PartialResult(name="", listed=draw.randint(0, own))
            for record in piece:
                record(part)
            joined.join(part)
        assert _told(joined) == _told(whole)


def test_a_part_has_room_for_what_the_whole_may_list() -> None:
    """Failures of a cause may be listed before and take no room, so that they leave it to the others."""
    part = PartialResult(name="", listed=MAX_FAILURES - 2)
    part.fail(Failure("a", cause="known"))
    assert part.room() == 2
    part.fail(Failure("b"))
    assert part.room() == 1


# ---- explanations ----------------------------------------------------------------------------------------------------


def _diagnosis(kind: CallKind, type: str, verdict: str, who: str) -> LocatedDiagnosis:
    return LocatedDiagnosis(
        tensor="t", where="t", who=who, row=0, token=0, block=None, verdict=verdict, wrong=1, outputs=2, type=type,
        call=Call(kind=kind),
    )  # fmt: skip


VERDICTS = st.sampled_from(["another order", "out of range", "unknown", "known fault", None])
KINDS = st.sampled_from(["own", "probe", "grid"])


class _Explained(Explanations):
    """Repeats the verdict of a call."""

    def _look(self, call: Any) -> Any:
        return SimpleNamespace(map=call.who)

    def _diagnosis(self, call: Any, found: Any) -> LocatedDiagnosis | None:
        kind, type, verdict = call.call.kind, call.fmt.name, call.verdict
        return None if verdict is None else _diagnosis(kind, type, verdict, call.who)


_One = tuple[bool, CallKind, str, str | None]


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.booleans(), KINDS, st.sampled_from("xy"), VERDICTS), max_size=16),
    st.lists(st.integers(0, 16), max_size=4),
)
def test_explanations_of_parts(calls: list[_One], cuts: list[int]) -> None:
    """Which diagnoses and which map a rung keeps does not depend on where its calls were judged, nor that a part tried
    more than was needed, as it does where it began before others were joined."""

    def add(to: Explanations, piece: Sequence[tuple[int, _One]]) -> None:
        for i, (said, kind, type, verdict) in piece:
            if said:
                to.say(_diagnosis(kind, type, verdict or "unknown", str(i)))
            else:
                call = SimpleNamespace(
                    call=Call(kind=kind), fmt=SimpleNamespace(name=type), verdict=verdict, who=str(i), tensor="t"
                )  # fmt: skip
                to.add(call)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gguf_verify.rungs.explain._output_map", lambda call, grid: grid)
        whole, joined = RungResult(name="layers"), RungResult(name="layers")
        one, several = _Explained(whole, 1, draws=True), _Explained(joined, 1, draws=True)
        numbered = list(enumerate(calls))
        add(one, numbered)
        known: dict[tuple[str, int], int] = {}
        for piece in _pieces(numbered, cuts):
            of_part = _Explained(PartialResult(name=""), 1, draws=True, left=known)
            add(of_part, piece)
            known = dict(several.left)  # the state before the last part was joined
            several.join(of_part.attempts)
    assert (joined.diagnoses, joined.heat_map) == (whole.diagnoses, whole.heat_map)
    # a part that began before a cause was known tries no calls of further ranks behind its own: of the tries that are
    # left, those of the kept diagnosis' rank alone can change what is kept
    ranks = {d.type: d.rank for d in whole.diagnoses}
    left = [{key: n for key, n in each.left.items() if key[1] <= ranks.get(key[0], LIMIT)} for each in (several, one)]
    assert left[0] == left[1]


def test_the_models_own_products_come_before_other_shapes_and_these_before_limits() -> None:
    result = RungResult(name="layers")
    explanations = Explanations(result, 1)
    said: list[tuple[CallKind, str, str]] = [
        ("grid", "x", "known fault"), ("grid", "y", "known fault"), ("probe", "x", "known fault"),
        ("own", "x", "unknown"), ("probe", "y", "unknown"), ("grid", "y", "known fault"),
    ]  # fmt: skip
    for kind, type, verdict in said:
        explanations.say(_diagnosis(kind, type, verdict, kind))
    assert [(d.type, d.who) for d in result.diagnoses] == [("x", "own"), ("y", "probe")]
    explanations.say(_diagnosis("own", "y", "known fault", "own"))
    assert [(d.type, d.verdict) for d in result.diagnoses] == [("y", "known fault"), ("x", "unknown")]


def test_a_bad_access_at_another_shape_comes_before_its_wrong_outputs() -> None:
    wrong = _diagnosis("probe", "x", "known fault", "outputs")
    race = msgspec.structs.replace(wrong, who="race", faults=(FaultMatch("data-race", "", "", 1.0, 0.0, True),))
    result = RungResult(name="layers")
    assert result.explain(wrong)
    assert result.explain(race)
    assert not result.explain(wrong)
    assert result.diagnosis is race


def test_a_failure_of_the_models_own_product_takes_the_place_of_one_of_another_shape() -> None:
    result = RungResult(name="layers")
    for i in range(MAX_FAILURES + 5):
        result.fail(Failure(f"probe {i}", call=Call(kind="probe", number=i)))
    result.fail(Failure("own", "t", call=Call(kind="own")))
    assert len(result.failures) == MAX_FAILURES
    assert result.failures[-1].what == "own"
    assert result.failures[-2].what == f"probe {MAX_FAILURES - 2}"
    assert result.n_failures == MAX_FAILURES + 6


# ---- what is done once for each type ---------------------------------------------------------------------------------


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["x", "y"]), st.booleans()), max_size=20), st.integers(1, 6))
def test_once_per_type_whatever_is_in_flight(tasks: list[tuple[str, bool]], in_flight: int) -> None:
    """However many tasks are dispatched before the first is merged, work that is done once for each type is done with
    the first task that gets to it; one by one, no task is judged again."""
    once, merged, again = OncePerType(), list[bool](), 0
    asked = list[bool]()
    for i in range(len(tasks) + in_flight - 1):
        if i < len(tasks):
            asked.append(once.give(tasks[i][0]))
        done = i - in_flight + 1
        if done >= 0:
            kind, came = tasks[done]
            right = once.right(kind, asked[done], came)
            again += not right
            merged.append(came and asked[done] == right)
    first = {kind: i for i, (kind, came) in reversed(list(enumerate(tasks))) if came}
    assert [i for i, done in enumerate(merged) if done] == sorted(first.values())
    if in_flight == 1:
        assert not again


# ---- counts beside the result ----------------------------------------------------------------------------------------


@given(st.lists(st.tuples(NAMES, st.sampled_from([0.0, 0.1, 0.5, float("inf")])), max_size=9), st.integers(0, 9))
def test_distances_of_an_oracle(found: list[tuple[str, float]], cut: int) -> None:
    whole, joined = Distances(), Distances()
    for name, nmse in found:
        whole.join(Distances({name: nmse}, {"weights": nmse}))
    for piece in (found[:cut], found[cut:]):
        part = Distances()
        for name, nmse in piece:
            part.join(Distances({name: nmse}, {"weights": nmse}))
        joined.join(part)
    assert repr(joined) == repr(whole)


def test_activations_that_parts_share_are_counted_once() -> None:
    several, one = Quantizers(SimpleNamespace()), Agreement(32, 1, 1, 1, 0, None)  # type: ignore[arg-type]
    several.join({("MMQ", b"1"): one})
    several.join({("MMQ", b"1"): one, ("MMQ", b"2"): one, ("MMVQ", b"1"): one})
    assert list(several.seen) == [("MMQ", b"1"), ("MMQ", b"2"), ("MMVQ", b"1")]


# ---- permutation -----------------------------------------------------------------------------------------------------
# Packings that only move bits are inverted; others are distinguished from them.


SHAPE = (5, 36)


def shuffled(rows: np.ndarray) -> np.ndarray:
    """All bits in a random order, some inverted, with constants between them."""
    bits = np.unpackbits(rows.reshape(-1))
    rng = np.random.default_rng(1)
    order, flip = rng.permutation(bits.size), rng.integers(0, 2, bits.size, dtype=np.uint8)
    return np.packbits(np.concatenate([bits[order] ^ flip, np.array([0, 1, 1, 0, 1, 0, 0, 1], np.uint8)]))


def test_takes_apart() -> None:
    moves = find_moves(shuffled, SHAPE)
    assert isinstance(moves, Moves)
    rows = np.random.default_rng(7).integers(0, 256, SHAPE, dtype=np.uint8)
    assert (moves.rows(shuffled(rows), SHAPE) == rows).all()


@pytest.mark.parametrize("bit", [0, 777, 5 * 36 * 8 - 1])
def test_finds_a_lost_bit(bit: int) -> None:
    def pack(rows: np.ndarray) -> np.ndarray:
        bits = np.unpackbits(rows.reshape(-1))
        bits[bit] = 0
        return np.packbits(bits)

    assert find_moves(pack, SHAPE) == Lost(1, 5 * 36 * 8, bit // 8, 7 - bit % 8)


def test_is_no_permutation() -> None:
    for pack in (
        lambda rows: rows.reshape(-1) + rows.reshape(-1)[::-1],  # carries
        lambda rows: np.packbits(np.unpackbits(rows.reshape(-1)) ^ np.unpackbits(rows.reshape(-1))[::-1]),
        lambda rows: rows.reshape(-1)[: 4 + int(rows.sum()) % 3],
    ):
        assert isinstance(find_moves(pack, SHAPE), str)
    assert "more than" in str(find_moves(lambda rows: rows, (MOST_BITS // 8 + 1, 1)))


def test_a_fault_that_planted_bits_do_not_show() -> None:
    """A dependence on two bits at once shows on random rows."""

    def pack(rows: np.ndarray) -> np.ndarray:
        made = rows.reshape(-1).copy()
        made[0] ^= (made[1] & made[2]) >> 7 & (made[3] >> 6)
        return made

    assert isinstance(find_moves(pack, SHAPE), str)
