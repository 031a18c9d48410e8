"""Records of executed code, and the reading of what an untrusted gcov or process says of it."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pytest

from gguf_verify.captured import judge_captured
from gguf_verify.gguf.file import Tensor
from gguf_verify.gguf.model import open_model
from gguf_verify.hosts import gcov
from gguf_verify.results.coverage import MOST_LISTED, Executed, Execution, coverage_of, joined
from gguf_verify.results.environment import Observed
from gguf_verify.results.rungs import RungResult
from gguf_verify.rungs.judging import KERNEL, Output, judge_output
from gguf_verify.rungs.pool import Answer, Judged, Pool
from gguf_verify.rungs.remade import Remade
from gguf_verify.semantics.definitions.q8_1 import Q8_1_RAW
from gguf_verify.semantics.exact import product
from gguf_verify.semantics.gates import judge
from gguf_verify.semantics.sums import Product
from gguf_verify.support.errors import EnvironmentFault
from tests.support.exact_products import Bytes, Floats
from tests.support.tools import FIXTURES

ONCE = Executed({1: True, 2: False}, {(1, 0): (True, False)})


def branch(count: int, throw: bool = False) -> dict[str, object]:
    return {"count": count, "throw": throw, "fallthrough": False}


def result(*lines: tuple[int, int, list[dict[str, object]]], file: str = "k.cu") -> bytes:
    said = [{"line_number": n, "count": count, "branches": ways} for n, count, ways in lines]
    return json.dumps({"current_working_directory": "/w", "files": [{"file": file, "lines": said}]}).encode()


def test_code_that_ran_in_any_process_ran() -> None:
    other = Executed({2: True, 3: False}, {(1, 0): (False, True), (3, 0): (False, False)})
    both = joined([{"k.cu": ONCE}, {"k.cu": other, "h.cuh": ONCE}])
    assert both["k.cu"] == Executed({1: True, 2: True, 3: False}, {(1, 0): (True, True), (3, 0): (False, False)})
    assert both["h.cuh"] == ONCE


def test_a_kernel_of_the_project_has_no_coverage() -> None:
    assert coverage_of(None, {}) is None


def test_a_kernel_that_was_not_called_is_not_covered() -> None:
    found = coverage_of(Execution(), {"k.cu": "int x;"})
    assert found is not None
    assert (found.missing, found.complete) == (("it was not called",), False)


def test_a_mark_holds_for_its_line_and_what_is_indented_further() -> None:
    text = "a\nif (n < 0) {  // gguf-verify: unreachable because n is a size\n    b();\n\n    c();\n}\nd();\n"
    lines = {1: True, 2: True, 3: False, 5: False, 7: False}
    found = coverage_of(Execution({"k.cu": Executed(lines, {(2, 0): (False, True)})}), {"k.cu": text})
    assert found is not None
    assert [(p.line, p.last, p.unreachable) for p in found.never] == [
        (2, 2, "n is a size"),
        (3, 5, "n is a size"),
        (7, 7, ""),
    ]
    assert (found.n_never, found.complete, found.lines_run, found.branches_run) == (1, False, 2, 0)


def test_what_is_impossible_is_listed_and_does_not_count() -> None:
    lines, why = {1: True, 2: True, 3: False, 4: False}, {2: "no", 3: "no"}
    execution = Execution({"k.cu": Executed(lines, {(1, 0): (False, True), (2, 0): (False, True)})})
    found = coverage_of(execution, {"k.cu": "a\nif (K % 32)\nb\nc"}, {"k.cu": why})
    assert found is not None
    assert [(p.line, p.impossible, p.open) for p in found.never] == [
        (1, "", True), (2, "no", False), (3, "no", False), (4, "", True),
    ]  # fmt: skip
    assert found.n_never == len(found.open) == 2
    assert found.never[1].words == "k.cu:2 went one way only: if (K % 32) (impossible: no)"
    assert found.words == "2 of 4 lines, 0 of 2 branches both ways, 2 places impossible in its domain"


def test_the_list_is_limited_and_the_number_is_not() -> None:
    lines = {n: n % 2 == 0 for n in range(1, 4 * MOST_LISTED)}
    found = coverage_of(Execution({"k.cu": Executed(lines)}), {})
    assert found is not None
    assert (len(found.never), found.n_never) == (MOST_LISTED, 2 * MOST_LISTED)


def test_the_ways_of_each_condition_of_a_line() -> None:
    lines: Any = (3, 7, [branch(7), branch(0), branch(5), branch(2)]), (3, 0, []), (4, 0, [branch(0), branch(0)])
    found = gcov._read(result(*lines), lambda path: path)
    executed = Executed({3: True, 4: False}, {(3, 0): (True, False), (3, 1): (True, True), (4, 0): (False, False)})
    assert found == {"/w/k.cu": executed}


def test_a_call_that_may_throw_is_no_branch() -> None:
    found = gcov._read(result((3, 1, [branch(1), branch(0, throw=True), branch(1), branch(1)])), lambda _: "k.cu")
    assert found["k.cu"].branches == {(3, 0): (True, True)}


def test_files_of_others_and_lines_that_cannot_be_are_ignored() -> None:
    assert gcov._read(result((1, 1, [])), lambda _: None) == {}
    assert gcov._read(result((0, 1, []), (10**9, 1, [])), lambda _: "k.cu") == {}


@pytest.mark.parametrize("content", [b"", b"{", b'{"files": 1}', b'{"files": [{"file": "k", "lines": [{}]}]}'])
def test_a_result_that_is_not_valid_is_one_line(content: bytes) -> None:
    with pytest.raises(EnvironmentFault, match=r"^gcov's result cannot be read$"):
        gcov._read(content, lambda path: path)


def test_a_result_that_inflates_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gcov, "_MOST_RESULT", 1000)
    with pytest.raises(EnvironmentFault, match="larger than 1,000 bytes"):
        gcov._inflated(gzip.compress(bytes(10_000)))
    with pytest.raises(EnvironmentFault, match="cannot be read"):
        gcov._inflated(b"no gzip")


def test_the_name_of_a_file_is_no_command_to_a_terminal() -> None:
    found = coverage_of(Execution({"\x1b[2Jk.cu": ONCE}), {"\x1b[2Jk.cu": "a\n\x1b[31mb\n"})
    assert found is not None
    assert len(found.never) == 2
    assert all(place.words.isprintable() for place in found.never)


def test_what_other_processes_observed_counts() -> None:
    ours = Observed(execution=Execution({"k.cu": ONCE}))
    theirs = Observed(execution=Execution({"k.cu": Executed({2: True})}, ("no counters",)))
    both = ours.with_(theirs).execution
    assert both == Execution({"k.cu": Executed({1: True, 2: True}, ONCE.branches)}, ("no counters",))
    assert Observed().with_(theirs) == theirs == theirs.with_(Observed())


def test_a_pool_keeps_what_its_workers_observed() -> None:
    pool, seen = Pool(), Observed(execution=Execution({"k.cu": ONCE}))
    for _ in range(2):
        answer = Answer()
        answer.set_result(Judged("found", seen))
        assert pool._result(cast(Any, None), cast(Any, None), answer) == "found"
    assert pool.observed == seen


# ---- suspicions ------------------------------------------------------------------------------------------------------
# An output that only its score fails: another product settles it, and without one it is not verified.


MODEL, TENSOR, M, N, K = FIXTURES / "tiny-Q4_0.gguf", "blk.0.attn_q.weight", 5, 256, 256
AT = (3, 200)


@dataclass(frozen=True)
class Suspected:
    """A tensor, activations, and outputs of which one is a suspicion."""

    tensor: Tensor
    rows: Bytes
    x: Floats
    y: Floats
    expected: Product

    def remade(self, factor: float) -> Remade:
        """By a kernel whose row of the suspicion is wrong by a factor."""

        def make(x: Floats) -> tuple[Floats, Bytes]:
            encoded = Q8_1_RAW.bytes_of(x)
            y = product(Q8_1_RAW, self.tensor.type.weights, self.rows, encoded).exact
            y[:, AT[1]] *= factor
            return y.astype(np.float32), encoded

        fmt = self.tensor.type.weights
        assert fmt is not None
        return Remade(Q8_1_RAW, fmt, self.rows, make, (M, K))

    def judged(self, again: Remade | None) -> tuple[RungResult, bool]:
        result = RungResult(name="layers")
        encoded = Q8_1_RAW.bytes_of(self.x)
        rows = np.arange(self.y.shape[1])
        output = Output(KERNEL, self.tensor, rows, self.y, self.expected, Q8_1_RAW, encoded, self.x, again=again)
        return result, judge_output(result, output).passed


@pytest.fixture(scope="module")
def case() -> Iterator[Suspected]:
    with open_model(MODEL) as model:
        tensor = model.tensors[TENSOR]
        rows = np.array(tensor.raw.reshape(tensor.n_rows, -1))
        x = np.random.default_rng(3).standard_normal((M, K)).astype(np.float32)
        fmt = tensor.type.weights
        assert fmt is not None
        expected = product(Q8_1_RAW, fmt, rows, Q8_1_RAW.bytes_of(x))
        for deviations in range(16, 60, 2):
            y = expected.exact.astype(np.float32)
            y[AT] = expected.exact[AT] + deviations * expected.spread[AT]
            if judge(y, expected).unsettled:
                yield Suspected(tensor, rows, x, y, expected)
                return
    raise AssertionError("no error of this output is a suspicion")


def test_it_is_not_verified_where_the_product_cannot_be_made_again(case: Suspected) -> None:
    result, passed = case.judged(None)
    assert passed  # it is no failure, but
    (left,) = result.unverified
    assert "cannot be made again" in left.why
    assert result.n_failures == 0


def test_a_product_that_is_right_clears_it(case: Suspected) -> None:
    result, passed = case.judged(case.remade(1.0))
    assert passed
    assert not result.unverified
    assert result.n_failures == 0


def test_a_product_that_is_wrong_confirms_it(case: Suspected) -> None:
    result, passed = case.judged(case.remade(1.0001))
    assert not passed
    assert result.n_failures == 1
    assert "standard deviation" in result.failures[0].what


def test_other_rows_of_that_product_are_ignored(case: Suspected) -> None:
    """Only the rows of suspicions are judged again."""
    right = case.remade(1.0)

    def make(x: Floats) -> tuple[Floats, Bytes]:
        y, encoded = right.make(x)
        y[:, 7] = 0
        return y, encoded

    assert case.judged(Remade(Q8_1_RAW, right.fmt, case.rows, make, (M, K)))[1]


def test_a_captured_product_is_not_verified(case: Suspected) -> None:
    judged = judge_captured(MODEL, TENSOR, case.x, case.y, "q8_1", threads=1)
    assert (judged.exit_code, judged.wrong) == (5, 0)
    assert any("independent roundings" in why for why in judged.left)
