"""The code of a kernel in CUDA C++ that its calls executed, on the CPU host."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.hosts import compiler
from gguf_verify.hosts.compiler import counts_fault
from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.kernels.foreign.opening import open_foreign
from gguf_verify.kernels.foreign.process import ForeignKernel
from gguf_verify.results.coverage import CodeCoverage, coverage_of
from gguf_verify.support.errors import EXIT_UNVERIFIED, EXIT_VERIFIED, KernelFault
from tests.support.foreign_runs import altered, operands, verified

pytestmark = pytest.mark.skipif(counts_fault() is not None, reason=f"code is not counted here: {counts_fault()}")

HEADER = """
#pragma once
__device__ inline float scaled(float d, int sum) {
    if (sum == 123456) return 0.0f;  // in a header
    return d * sum;
}
"""
FUNCTIONS = """
__device__ int calls = 0;
template <int TIMES>
__device__ int twice(int value) {
    if (value == 0) return 0;
    return TIMES * value;
}
"""
STATEMENTS = """
    __shared__ int counter;
    if (threadIdx.x == 5) counter = 1;
    if (threadIdx.x == 5000) acc = 1.0f;
    if (m < 0) acc = 2.0f;  // gguf-verify: unreachable because m is a token
    if (K > 1 << 30) {      // gguf-verify: unreachable because no row is so long
        acc = acc * 2.0f;
        acc = acc * 3.0f;
    }
    if (K % 32 != 0) acc = 2.0f;
    if (++calls > 1000000) acc = 3.0f;
    if (n == 3 && m == 1) acc *= 1.0f;
    if (m >= 4 || n >= 7777) {
        acc *= 1.0f;
        if (n > 8888) {
            acc = acc * 5.0f;
            acc = acc * acc;
        }
    }
    switch (m) {
        case 0: acc *= 1.0f; break;
        case 77: acc = acc * 7.0f; break;
        default: acc *= 1.0f;
    }
    acc = twice<1>(m - m % 2) + twice<2>(n) < -1 ? 0.0f : acc;
    asm("{ .reg .pred p, q;"
        "setp.lt.s32 p, %1, 3; setp.gt.s32 q, %1, 5000;"
        "@p mul.f32 %0, %0, 0f3F800000;\\n"
        "@q mul.f32 %0, %0, 0f40000000;"
        "}" : "+f"(acc) : "r"(m));
"""
#: The places that a call with M = 5, N = 7 leaves open: the beginning of the line → whether it is a branch.
OPEN = {
    "if (sum == 123456)": True,
    "if (magnitude >= 0x7C00u)": True,
    "if (threadIdx.x == 5000)": True,
    "if (++calls > 1000000)": True,
    "if (m >= 4 || n >= 7777)": True,
    "if (n > 8888)": True,
    "acc = acc * 5.0f": False,
    "switch (m)": True,
    "case 77": False,
    "acc = twice<1>": True,
    '"@q mul.f32': True,
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("executed")
    path = altered(folder, "cuda_q4_0.cu", "    y[i] = acc;", f"{STATEMENTS}    y[i] = acc;")
    text = path.read_text().replace('extern "C" __global__', f'#include "scaled.h"\n{FUNCTIONS}extern "C" __global__')
    path.write_text(text.replace("from_half(xb.d) * sum", "scaled(from_half(xb.d), sum)"))
    (folder / "scaled.h").write_text(HEADER)
    return path


@pytest.fixture(scope="module")
def covered(source: Path) -> CodeCoverage:
    kernel = open_foreign(f"{source}:gemm", CpuHost(2))
    assert isinstance(kernel, ForeignKernel)
    rows, x = operands()
    try:
        kernel.product(kernel.upload(FORMATS["Q4_0"], rows), x)
        found = coverage_of(kernel.executed(), kernel.texts, kernel.impossible)
        assert found is not None
        return found
    finally:
        kernel.close()


def test_what_a_call_leaves_open(covered: CodeCoverage) -> None:
    starts = {start: place.branch for place in covered.open for start in OPEN if place.source.startswith(start)}
    assert starts == OPEN, covered.open
    assert len(covered.open) == covered.n_never == len(OPEN)
    assert {place.file for place in covered.never} == {"cuda_q4_0.cu", "scaled.h"}


def test_lines_in_a_row_are_one_place(covered: CodeCoverage) -> None:
    (place,) = [place for place in covered.open if place.source.startswith("acc = acc * 5.0f")]
    assert place.last == place.line + 1
    assert place.words.endswith("never ran: acc = acc * 5.0f;")


def test_what_no_product_reaches(covered: CodeCoverage) -> None:
    shown = [place.impossible for place in covered.never if place.impossible]
    assert shown == ["K % 32 != 0 is false for every product in its domain"]


def test_its_author_says_what_is_unreachable(covered: CodeCoverage) -> None:
    marked = {place.unreachable for place in covered.never if place.unreachable}
    assert marked == {"m is a token", "no row is so long"}
    assert covered.words.endswith("1 place impossible in its domain, 3 places unreachable, says the author")


def test_instances_of_a_template_are_one_code(covered: CodeCoverage) -> None:
    assert not [place for place in covered.never if "value" in place.source]


def test_a_verdict_says_what_did_not_run(source: Path) -> None:
    report = verified(f"{source}:gemm", "blocks")
    assert report.exit_code == EXIT_VERIFIED
    assert f"not run: went one way only\n  --> {report.not_run[0].words.split()[0]}\n" in str(report)
    (check,) = [check for check in report.checks if check.id == "code"]
    assert check.done
    assert "branches both ways" in check.skipped[0]
    environment = report.environment
    options = dataclasses.replace(environment.options, require_coverage=True)
    required = replace(report, environment=replace(environment, options=options))
    assert required.exit_code == EXIT_UNVERIFIED
    assert required.verdict == "not everything verified"
    assert required.culprits == {"coverage": 1}


WIDE = """// [gguf-verify]
// formats = ["Q4_0"]
// semantics = "q8_1"
// parameters = ["weights", "activations", "output", "int32 N"]
// block = 32
// grid = ["N", "M"]
// [/gguf-verify]
extern "C" __global__ void gemm(const unsigned char* w, const void* x, float* y, int N) {
    float acc = 1.0f;
    CASES
    if (threadIdx.x == 0) y[blockIdx.y * N + blockIdx.x] = acc;
}
"""


def test_threads_of_this_machine_count_apart(tmp_path: Path) -> None:
    """They take turns at 32 parts of the grid, each of which takes another branch."""
    cases = "\n    ".join(f"if (blockIdx.x / 128 == {i}) acc += {i};" for i in range(32))
    (tmp_path / "k.cu").write_text(WIDE.replace("CASES", cases))
    kernel = open_foreign(f"{tmp_path / 'k.cu'}:gemm", CpuHost(2))
    rows, x = np.zeros((4096, 18), np.uint8), np.ones((1, 32), np.float32)
    kernel.product(kernel.upload(FORMATS["Q4_0"], rows), x)
    found = coverage_of(kernel.executed(), kernel.texts, kernel.impossible)
    kernel.close()
    assert found is not None
    assert not found.never
    assert found.branches_run == found.branches == 32  # adding 0 takes none


def test_what_counts_shares_the_runner_and_the_precompiled_header() -> None:
    """Their options must not name the folder of a source, or they would be compiled anew for each."""
    options = [*compiler.counted(Path("/one/source")), "-fwrapv"]
    assert compiler._plain(options) == compiler._plain([*compiler.counted(Path("/other/source")), "-fwrapv"])


def test_a_call_that_breaks_its_process_is_observed(tmp_path: Path) -> None:
    """It ends the process, which is asked before."""
    source = altered(tmp_path, "cuda_q4_0.cu", "    y[i] = acc;", "    *(m == 4 ? (float*)8 : &y[i]) = acc;")
    kernel = open_foreign(f"{source}:gemm", CpuHost(2))
    rows, x = operands()
    try:
        with pytest.raises(KernelFault):
            kernel.product(kernel.upload(FORMATS["Q4_0"], rows), x)
        found = coverage_of(kernel.executed(), kernel.texts)
        assert found is not None
        assert not found.missing
        assert found.lines_run == found.lines
    finally:
        kernel.close()


EXITS = """
import ctypes
import os
from gguf_verify import kernel

@kernel(formats=["Q4_0"], semantics="q8_1")
def gemm(w, x, shape):
    for _ in range(3):
        if shape.m > 1000:
            never = 1
    ENDS
    never = 2

def unused():
    pass
"""
#: What its process leaves in the memory of the verifier is no fault of it, whatever it is.
SCRIBBLES = """import gc; from gguf_verify.kernels.foreign.observation import Log
    (log,) = [each for each in gc.get_objects() if type(each) is Log]
    log._memory[16:40] = b"\\xff" * 24
    os._exit(7)"""


@pytest.mark.parametrize("asked", [True, False])
@pytest.mark.parametrize("ends", ["os._exit(7)", "os.kill(os.getpid(), 9)", "ctypes.string_at(0)", SCRIBBLES])
def test_code_that_ran_before_the_process_ended_is_known(ends: str, asked: bool, tmp_path: Path) -> None:
    """Functions that did not run are, too, if a process has reported them."""
    source = tmp_path / "exits.py"
    source.write_text(EXITS.replace("ENDS", ends))
    kernel = open_foreign(f"{source}:gemm", CpuHost(1))
    rows, x = operands()
    try:
        before = kernel.executed() if asked else None
        with pytest.raises(KernelFault):
            kernel.product(kernel.upload(FORMATS["Q4_0"], rows), x)
        after = kernel.executed()
    finally:
        kernel.close()
    assert before is None or not before.missing
    if ends is SCRIBBLES:
        assert after.missing == (() if asked else ("its process ended before it reported what it had executed",))
        assert (after.files != {}) == asked
        return
    end = 12 + ends.count("\n")
    lines = after.files["exits.py"].lines
    ran = {1, 2, 3, 4, 6, 7, 8, 9, 11, 14} & lines.keys()
    assert {8, 9, 11} <= ran
    assert {line for line in lines if lines[line]} == ran
    assert after.files["exits.py"].branches == {(8, 0): (True, True), (9, 0): (False, True)}
    unknown = ("its process ended before it reported which functions were not executed",)
    assert after.missing == (() if asked else unknown)
    assert (15 in lines) == asked
    assert end in lines


def test_code_that_ran_before_another_process_began_is_known(tmp_path: Path) -> None:
    ends = "    if shape.m > 3:\n        __import__('os')._exit(7)\n    w, x = weights"
    source = altered(tmp_path, "numpy_q4_0.py", "    w, x = weights", ends)
    kernel = open_foreign(f"{source}:gemm", CpuHost(1))
    rows, x = operands()
    try:
        weights = kernel.upload(FORMATS["Q4_0"], rows)
        with pytest.raises(KernelFault):
            kernel.product(weights, x)
        kernel.product(weights, x[:2])
        executed = kernel.executed()
    finally:
        kernel.close()
    assert not executed.missing
    assert executed.files["numpy_q4_0.py"].branches[17, 0] == (True, True)
    assert all(executed.files["numpy_q4_0.py"].lines.values())


def test_a_branch_whose_count_follows_from_others_is_seen_in_a_later_call(tmp_path: Path) -> None:
    term = "        acc += from_half(wb.d) * (from_half(xb.d) * sum"
    branch = "        if (from_half(wb.d) == 165.5f) { ; } else\n"
    kernel = open_foreign(f"{altered(tmp_path, 'cuda_q4_0.cu', term, branch + term)}:gemm", CpuHost(1))
    rows, x = operands()
    special, scales = rows.copy(), np.array([165.5], np.float16).view(np.uint8)
    special[0, :2] = scales

    def ways(rows: np.ndarray) -> set[bool]:
        kernel.product(kernel.upload(FORMATS["Q4_0"], rows), x)
        (executed,) = kernel.executed().files.values()
        line = Path(tmp_path / "cuda_q4_0.cu").read_text().split("\n").index(branch.rstrip()) + 1
        return {way for (at, _), both in executed.branches.items() if at == line for way in both}

    try:
        assert ways(rows) == {True, False}
        assert ways(special) == {True}
    finally:
        kernel.close()
