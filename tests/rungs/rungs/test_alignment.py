"""Addresses of operands: a kernel that is incorrect at some that a type allows fails; one that stops has a limit."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from gguf_verify.formats.q4_0 import Q4_0
from gguf_verify.gguf.model import Model
from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.kernels.foreign.opening import open_foreign
from gguf_verify.results.calls import Call
from gguf_verify.results.options import Options
from gguf_verify.results.rungs import RungResult
from gguf_verify.rungs.explain import Explanations
from gguf_verify.rungs.layers.probes.alignment import Addresses, Alignments, needed_of, spread
from gguf_verify.rungs.schedules import inputs
from gguf_verify.support.errors import KernelFault, KernelFinding, NotRun
from gguf_verify.verification import verify
from tests.support.one_matrix import OneMatrix
from tests.support.tools import FIXTURES, ROOT

CUDA = (ROOT / "examples" / "cuda_q4_0.cu").read_text()
NUMPY = (ROOT / "examples" / "numpy_q4_0.py").read_text()
NEEDS = {"weights": 2, "activations": 4, "output": 4}


def cuda(before: str, after: str = "", declares: str = "") -> str:
    """The example in CUDA C++ with further statements before its loop, a term at its end, and a declaration."""
    text = CUDA.replace("// semantics", f"// {declares}\n// semantics") if declares else CUDA
    text = text.replace("    float acc = 0.0f;\n", f"    float acc = 0.0f;\n    {before}\n")
    return text.replace("    y[i] = acc;", f"    y[i] = acc{after};")


def found(
    text: str, file: Path, model: Model, host: CpuHost, untried: str | None = None
) -> tuple[Addresses, RungResult]:  # fmt: skip
    """The addresses of a kernel, and what was recorded."""
    file.write_text(text)
    with closing(open_foreign(f"{file}:gemm", host)) as foreign:
        matrix = OneMatrix.of(foreign, model)
        run, tensor, result = matrix.run, matrix.tensor, matrix.result
        given = list(inputs(Q4_0, run.row_bytes(tensor), np.ones((1, 256), np.float32), 0))
        addresses = Addresses(run, result, tensor, Q4_0, Explanations(result, 1))
        assert addresses.find(given[:2], Call(kind="probe")) == untried
        return addresses, result


#: Statements, a term of each output, and a declaration; the operands that are called at the addresses of their types;
#: what is incorrect; and what is limited.
IN_CUDA = {
    "two correct ways": (
        "if ((unsigned long long)w % 16) acc = -acc; else acc = 0.0f;", "", "", ("weights", "activations", "output"),
        "", "",
    ),
    "words of the weights from a pointer that is rounded down": (
        "w = (const Q4_0*)((unsigned long long)w & ~3ull);", "", "", ("weights", "activations", "output"),
        "outputs change if the operand weights does not begin at a multiple of 4 bytes", "",
    ),
    "a vector of the weights": (
        "const uint4 v = *(const uint4*)w;", " + (v.x ^ v.x)", "", ("activations", "output"),
        "", "weights at multiples of 16 bytes",
    ),
    "a vector of weights that declare their alignment": (
        "const uint4 v = *(const uint4*)w;", " + (v.x ^ v.x)", "operands.weights.alignment = 16",
        ("activations", "output"), "", "",
    ),
    "a promise to the compiler": (
        "x = (const Q8_1*)__builtin_assume_aligned(x, 8);", "", "", ("weights", "activations", "output"),
        "", "activations at multiples of 8 bytes",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", IN_CUDA)
def test_kernels_in_cuda(name: str, tmp_path: Path, model: Model, host: CpuHost) -> None:
    before, after, declares, called, incorrect, limit = IN_CUDA[name]
    addresses, result = found(cuda(before, after, declares), tmp_path / "kernel.cu", model, host)
    assert addresses.least.keys() == set(called)
    assert [skipped.scope for skipped in result.skipped] == ([limit] if limit else [])
    assert [failure.what.partition(" (")[0] for failure in result.failures] == (
        [f"Q4_0: {incorrect}"] if incorrect else []
    )
    if incorrect:
        assert result.diagnosis is not None
        assert [fault.id for fault in result.diagnosis.faults] == ["unaligned-operand"]
    if limit:
        (skipped,) = result.skipped
        assert "kernel.cu:36" in skipped.why
        assert f"declare operands.{limit.partition(' ')[0]}.alignment = " in skipped.why


def numpy(statement: str) -> str:
    """The example in NumPy with a statement before it returns."""
    assert NUMPY.count("    return y\n") == 1
    return NUMPY.replace("    return y\n", f"    {statement}\n    return y\n")


#: A statement; operand → alignment of its address afterwards, 16 if it is missing; what is incorrect; what is limited.
IN_NUMPY = {
    "nothing": ("pass", NEEDS, "", []),
    "a wrong way for addresses that are no multiples of 8": (
        "y += activations.ctypes.data % 8 > 0", NEEDS | {"activations": 8},
        "the operand activations does not begin at a multiple of 8", [],
    ),
    "an exception": (
        "assert weights.ctypes.data % 8 == 0", NEEDS | {"weights": 8}, "", ["weights at multiples of 8 bytes"],
    ),
    "two operands together": (
        "assert weights.ctypes.data % 16 == 0 or activations.ctypes.data % 16 == 0", {}, "",
        ["weights at multiples of 16 bytes", "activations at multiples of 16 bytes", "output at multiples of 16 bytes"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", IN_NUMPY)
def test_kernels_in_python(name: str, tmp_path: Path, model: Model, host: CpuHost) -> None:
    statement, least, incorrect, limits = IN_NUMPY[name]
    addresses, result = found(numpy(statement), tmp_path / "kernel.py", model, host)
    assert {**addresses.least} == {name: n for name, n in least.items() if name != "output" or name in addresses.least}
    assert [skipped.scope for skipped in result.skipped if "output" not in skipped.scope] == [
        limit for limit in limits if "output" not in limit
    ]
    assert bool(result.failures) == bool(incorrect)
    assert all(incorrect in failure.what for failure in result.failures)


def test_a_kernel_that_is_wrong_everywhere_is_for_other_checks(tmp_path: Path, model: Model, host: CpuHost) -> None:
    why = "the kernel fails at any address"
    addresses, result = found(numpy("y += weights.ctypes.data % 16 == 0"), tmp_path / "kernel.py", model, host, why)
    assert addresses.least == {}
    assert not result.failures


def test_the_smallest_alignments_are_found() -> None:
    """Of operands that fail alone, and of those that only fail together."""
    stop = KernelFault("misaligned address")
    alone = needed_of(NEEDS, lambda at: stop if at.get("weights", 16) < 8 or at.get("output", 16) < 16 else None)
    assert (alone.least, [(of.operand, of.alignment, of.stops) for of in alone.needed]) == (
        {"weights": 8, "activations": 4}, [("weights", 8, True), ("output", 16, True)],
    )  # fmt: skip
    wrong = KernelFinding("address", "other outputs")
    together = needed_of(NEEDS, lambda at: wrong if len(at) > 1 else None)
    assert (together.least, {of.alignment for of in together.needed}, together.needed[0].stops) == ({}, {16}, False)
    single = needed_of(NEEDS, lambda at: wrong if [*at] == ["output"] else None)
    assert single.least == NEEDS
    single = needed_of(NEEDS, lambda at: wrong if [*at] == ["output"] else None, singly=True)
    assert [of.operand for of in single.needed] == ["output"]


def test_what_is_not_run_shows_nothing() -> None:
    def fault(_: object) -> None:
        raise NotRun("others did not return")

    assert needed_of(NEEDS, fault) == Alignments({}, untried="others did not return")
    assert needed_of({}, fault).untried is None


def test_shapes_that_are_far_apart() -> None:
    shapes = [(m, n, 32) for m in range(1, 1000) for n in (1, 2)] + [(1, 1, 1 << 14), (8, 64, 64), (4096, 4096, 32)]
    chosen = spread(shapes)
    assert {(999, 2, 32), (1, 1, 1 << 14), (8, 64, 64)} <= set(chosen)
    assert (4096, 4096, 32) not in chosen
    assert len(chosen) < 12
    assert spread([]) == []


@pytest.mark.parametrize(
    ("statement", "code", "limit"),
    [
        ("y += weights.ctypes.data % 4 > 0 and shape.m > 60", 1, ""),
        ("assert weights.ctypes.data % 4 == 0 or shape.m <= 60", 0, "weights at multiples of 4 bytes"),
        ("y += weights.ctypes.data % 4 > 64 and shape.m > 60", 0, ""),
    ],
    ids=["incorrect", "an exception", "correct"],
)
def test_sizes_of_the_plan_and_addresses_together(statement: str, code: int, limit: str, tmp_path: Path) -> None:
    """None of the first calls has so many tokens."""
    path = tmp_path / "kernel.py"
    path.write_text(numpy(statement))
    chosen = Options(prompt="Once", tensor=r"blk\.0\.attn_k", threads=2, progress=False, probes="brief", seed=3)
    report = verify(FIXTURES / "tiny-Q4_0.gguf", f"{path}:gemm", "cpu", ["layers"], chosen)
    assert report.exit_code == code
    assert bool(report.limits) == bool(limit)
    assert limit in report.scope or code
    if code:
        diagnoses = [d for rung in report.rungs for d in (rung.diagnosis, *rung.other_diagnoses) if d is not None]
        assert "unaligned-operand" in {fault.id for diagnosis in diagnoses for fault in diagnosis.faults}
