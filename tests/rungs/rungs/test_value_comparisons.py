"""Comparisons whose outcome is a value: they are no branches, and are listed if they had one outcome in all calls."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gguf_verify.formats.q4_0 import Q4_0
from gguf_verify.gguf.model import open_model
from gguf_verify.hosts.compiler import checks_fault
from gguf_verify.hosts.value_comparisons import comparisons_in
from gguf_verify.results.coverage import Executed, Execution, Noted, Outcomes, coverage_of
from gguf_verify.results.report import Report
from gguf_verify.rungs.layers.probes.observing import Observed
from gguf_verify.support.errors import EXIT_UNVERIFIED, EXIT_VERIFIED
from tests.rungs.rungs.test_compared_shapes import opened_probes
from tests.support.foreign_runs import Q4_0 as Q4_0_MODEL
from tests.support.foreign_runs import altered, verified

traced = pytest.mark.skipif(checks_fault() is not None, reason=f"comparisons are not traced: {checks_fault()}")

#: GCC's dump of `f = 1 + (M == 7); n = 1 + (h != h2); if (b) …` and of what is no such value.
DUMP = """
;; Function gemm (gemm, funcdef_no=0)

  [/r/cpu/k.cu:3:30] _72 = (long unsigned int) M_5(D);
  [/r/cpu/k.cu:3:30] __builtin___sanitizer_cov_trace_const_cmp8 (7, _72);
  [/r/cpu/k.cu:3:30] _7 = M_5(D) == 7;
  [/r/cpu/k.cu:3:20] _8 = (int) _7;
  [/r/cpu/k.cu:4:12] __builtin___sanitizer_cov_trace_const_cmp2 (65535, _9);
  [/r/cpu/k.cu:4:12] _10 = _9 > -1;
  [/r/cpu/k.cu:4:20] _11 = (int) _10;
  [/r/cpu/k.cu:5:12] __builtin___sanitizer_cov_trace_cmp4 (_12, _13);
  [/r/cpu/k.cu:5:12] if (_12 == _13)
  [/r/cpu/k.cu:6:12] __builtin___sanitizer_cov_trace_cmpf (x_1, x_1);
  [/r/cpu/k.cu:6:12] _14 = x_1 != x_1;
  [/r/cpu/k.cu:6:12] _15 = (int) _14;
  __builtin___sanitizer_cov_trace_cmpf (x_1, y_2);
  [/r/cpu/k.cu:7:9] iftmp.2_45 = x_1 < y_2 ? x_1 : y_2;
  [/r/cpu/k.cu:8:9] __builtin___sanitizer_cov_trace_cmpf (x_1, y_2);
  [/r/cpu/k.cu:8:9] iftmp.2_46 = x_1 < y_2 ? 2.0e+0 : 1.0e+0;
  [/r/cpu/k.cu:9:9] __builtin___sanitizer_cov_trace_cmp4 (_20, _21);
  [/r/cpu/k.cu:9:9] _22 = _20 <= _21;
  [/r/cpu/k.cu:10:9] _23 = (unsigned char) _22;
  [/r/cpu/k.cu:10:9] __builtin___sanitizer_cov_trace_const_cmp1 (0, _23);
  [/r/cpu/k.cu:10:9] if (_22 != 0)
  [/usr/include/h.h:3:1] __builtin___sanitizer_cov_trace_cmp4 (_30, _31);
  [/usr/include/h.h:3:1] _32 = _30 == _31;
  [/usr/include/h.h:3:1] _33 = (int) _32;
"""


def test_values_in_a_dump_of_gcc() -> None:
    found = {one.line: (one.operator, one.constant, one.value) for one in comparisons_in(DUMP, "/r/cpu/")}
    # the note of `_9 > -1` has its constant first: -1 < _9
    assert found == {
        3: ("==", 7, True), 4: ("<", -1, True), 5: ("==", None, False), 6: ("==", None, False), 7: ("<", None, False),
        8: ("<", None, True), 9: ("<=", None, False), 10: ("==", 0, False),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("operator", "seen", "alike"),
    [
        ("==", 0b101101, True), ("==", 0b010010, True), ("==", 0b011011, False), ("<", 0b001001, True),
        ("<", 0b000101, False), ("<", 0b110110, True), ("<=", 0b011011, True), ("<=", 0b100100, True),
        ("<=", 0b101101, False), ("<", 0b001100, True), ("<", 0b101100, False),
    ],
)  # fmt: skip
def test_the_outcomes_that_an_operator_needs(operator: str, seen: int, alike: bool) -> None:
    assert Outcomes(operator, seen, True).one_sided == alike
    assert not Outcomes(operator, seen, False).one_sided  # it does not depend on the product


def test_what_is_noted_of_several_types_and_processes() -> None:
    noted, other = Noted(), Noted()
    for fmt, operands in (("Q4_0", 1), ("Q8_0", 2), ("Q4_0", 1)):  # the type alone decides
        noted.note(fmt, "k.py", (3, 1), Outcomes("==", 1, False), operands)
        noted.note(fmt, "k.py", (4, 1), Outcomes("==", 4, False), len(noted.outcomes) + operands)
    noted.note("Q4_0", "k.py", (4, 1), Outcomes("==", 1, False), 9)
    other.note("Q4_0", "k.py", (4, 1), Outcomes("==", 2, False), 9)
    parts = [Execution({"k.py": Executed({3: True, 4: True}, {}, of.outcomes["k.py"])}) for of in (noted, other)]
    one = coverage_of(parts[0], {})
    assert one is not None
    assert [place.line for place in one.never] == [4]
    both = coverage_of(parts[0].with_(parts[1]), {})
    assert both is not None
    assert not both.never
    assert both.complete


def test_a_line_is_listed_once() -> None:
    noted = Noted()
    for line in (1, 2, 3):
        for operands in (1, 2):
            noted.note("Q4_0", "k.cu", (line, 0), Outcomes("==", 5, False), operands)
    of = Executed({1: True, 2: False, 3: True}, {(1, 0): (True, False)}, noted.outcomes["k.cu"])
    covered = coverage_of(
        Execution({"k.cu": of}), {"k.cu": "a\nb\nc  // gguf-verify: unreachable because no file has it"}
    )
    assert covered is not None
    assert [(place.line, place.what, place.open) for place in covered.never] == [
        (1, "went one way only", True), (2, "never ran", True), (3, "never compared equal", False),
    ]  # fmt: skip


# ---- kernels ---------------------------------------------------------------------------------------------------------

#: A hash of the blocks, whose values are not met on purpose.
HASH = "((((unsigned)wb.d * 2654435761u ^ (unsigned)xb.d * 40503u ^ wb.qs[3] * 977u) * 2246822519u) ^ (unsigned)M)"
#: Values of a correct kernel, which are met or decide nothing.
USUAL = f"""
        const bool odd = (M & 1) == 1, last = b + 1 == blocks;
        const int many = ({HASH} >> 4) % 3 == 1;
        acc *= "\\1\\1"[odd] * (1 + 0 * (last & (n > 2)) + 0 * many);
        acc = fminf(acc, 3e38f);
        acc += 0.0f * (acc != acc);
        acc *= "\\1\\1"[blockDim.x == 128];
"""
BEFORE = "        acc += from_half(wb.d) * (from_half(xb.d) * sum"


def listed(report: Report) -> list[str]:
    """The places that are listed, but for one of the example itself, which GCC may also make branches."""
    return [place.source for place in report.not_run if "magnitude" not in place.source]


@traced
@pytest.mark.parametrize(
    "statement", [f'acc *= "\\1\\2"[{HASH} == 0x12345678u];', f"acc *= 1 + (({HASH} == 0x12345678u) & (n == 1));"]
)
def test_a_comparison_without_a_branch_that_never_held_is_listed(statement: str, tmp_path: Path) -> None:
    path = altered(tmp_path, "cuda_q4_0.cu", BEFORE, f"        {statement}\n{BEFORE}")
    report = verified(f"{path}:gemm", "layers", probes="full", require_coverage=True)
    assert report.exit_code == EXIT_UNVERIFIED
    assert [source[:6] for source in listed(report)] == [statement[:6]]
    assert [place.what for place in report.not_run if place.comparison] == ["never compared equal"]


@traced
def test_values_of_a_correct_kernel_are_not_listed(tmp_path: Path) -> None:
    path = altered(tmp_path, "cuda_q4_0.cu", BEFORE, f"{USUAL}\n{BEFORE}")
    report = verified(f"{path}:gemm", "layers", probes="full")
    assert report.exit_code == EXIT_VERIFIED
    assert listed(report) == []


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        (
            "y *= {'123456': 2.0}.get(str(hash((shape.m, shape.n))), 1 + (hash((shape.m, 1)) in (123457, 123459)))",
            1,
        ),
        ("y *= 1 + 0 * (shape.m % 2 == 1) + 0 * ('q4' == 'q' + str(4)) + 0 * {1: 1, 2: 1}.get(str(4), 0)", 0),
    ],
)
def test_values_of_a_kernel_in_python(statement: str, found: int, tmp_path: Path) -> None:
    before = "        y += d_w * (d_a"
    path = altered(tmp_path, "numpy_q4_0.py", before, f"        {statement}\n{before}")
    report = verified(f"{path}:gemm", "layers", probes="full")
    assert report.exit_code == EXIT_VERIFIED
    assert [source[:12] for source in listed(report)] == [statement[:12]] * found


@traced
def test_calls_of_the_plan_are_observed_while_a_comparison_had_one_outcome(tmp_path: Path) -> None:
    path = altered(tmp_path, "cuda_q4_0.cu", "    y[i] = acc;", '    acc *= "\\1\\1"[M == 5];\n    y[i] = acc;')
    with open_model(Q4_0_MODEL) as model, opened_probes(f"{path}:gemm", model) as (run, huge):
        observed, kernel = Observed(run, Q4_0, huge), run.kernel.of(Q4_0, 1, 1, 32)
        rows, x = np.zeros((33, 36), np.uint8), np.zeros((5, 72), np.uint8)
        for m in (3, 4):
            observed((m, 33, 64))
        assert kernel.one_sided == 1
        observed.observe_plan([((4, 33, 64), rows, x[:4])])
        assert kernel.one_sided == 1
        observed.observe_plan([((5, 33, 64), rows, x)])
        assert kernel.one_sided == 0
