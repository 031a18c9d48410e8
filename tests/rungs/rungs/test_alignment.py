"""Addresses of operands: a kernel that is incorrect at some that a type allows fails; one that stops has a limit."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from gguf_verify.formats.q4_0 import Q4_0
from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.hosts.schedule import Schedule
from gguf_verify.kernels.domain import EVERYTHING
from gguf_verify.kernels.foreign.addresses import (
    Addresses,
    Call,
    Combinations,
    Least,
    Unaligned,
    incorrect,
    needed_of,
    stops,
)
from gguf_verify.kernels.foreign.opening import open_foreign
from gguf_verify.kernels.foreign.process import ForeignKernel
from gguf_verify.kernels.foreign.tasks import ForeignDequantizer, as_task
from gguf_verify.results.options import Options
from gguf_verify.rungs.generated_inputs import any_blocks
from gguf_verify.rungs.layers.probes.unaligned import spread
from gguf_verify.rungs.plan import plan
from gguf_verify.support.errors import KernelFault, KernelFinding, NotRun
from gguf_verify.verification import verify
from tests.support.tools import FIXTURES, ROOT

CUDA = (ROOT / "examples" / "cuda_q4_0.cu").read_text()
NUMPY = (ROOT / "examples" / "numpy_q4_0.py").read_text()
NEEDS = {"weights": 2, "activations": 4, "output": 4}
SHAPES = ((1, 3, 32), (5, 40, 96), (70, 3, 96), (70, 40, 32), (70, 5, 64), (90, 4, 32), (80, 2, 128))


def cuda(before: str, after: str = "", declares: str = "") -> str:
    """The example in CUDA C++ with further statements before its loop, a term at its end, and a declaration."""
    text = CUDA.replace("// semantics", f"// {declares}\n// semantics") if declares else CUDA
    text = text.replace("    float acc = 0.0f;\n", f"    float acc = 0.0f;\n    {before}\n")
    return text.replace("    y[i] = acc;", f"    y[i] = acc{after};")


def numpy(statement: str) -> str:
    """The example in NumPy with a statement before it returns."""
    assert NUMPY.count("    return y\n") == 1
    return NUMPY.replace("    return y\n", f"    {statement}\n    return y\n")


def found(text: str, file: Path) -> tuple[Least, list[str], str]:
    """The addresses that a kernel is called with, what is limited, and the first fault of a few calls."""
    file.write_text(text)
    kernel = open_foreign(f"{file}:gemm", CpuHost(1))
    assert isinstance(kernel, ForeignKernel)
    rng, fault = np.random.default_rng(1), ""
    checked = kernel.under(Schedule(checked=True))
    try:
        for m, n, k in SHAPES:
            rows = any_blocks(Q4_0, n * k // 32, 1).reshape(n, -1)
            x = rng.standard_normal((m, k)).astype(np.float32)
            try:
                kernel.product(kernel.upload(Q4_0, rows), x)
                if checked is not None:
                    unaligned = checked.unaligned()
                    unaligned.product(unaligned.upload(Q4_0, rows), x)
            except KernelFault as error:
                fault = fault or str(error)
        return kernel.alignments(Q4_0), list(kernel.address_limits), fault
    finally:
        kernel.close()


#: Statements, a term of each output, and a declaration; the operands that are called at the addresses of their types;
#: what is incorrect; and what is limited.
IN_CUDA = {
    "two correct ways": (
        "volatile int way = (unsigned long long)w % 16 ? 1 : 2;", "", "", ("weights", "activations", "output"), "", [],
    ),
    "words of the weights from a pointer that is rounded down": (
        "w = (const Q4_0*)((unsigned long long)w & ~3ull);", "", "", ("weights", "activations", "output"),
        "the operand weights at no multiple of 4 bytes", [],
    ),
    "unaligned activations beside aligned weights": (
        "const bool wrong = (unsigned long long)x % 16 && !((unsigned long long)w % 16) && M > 60;", " + wrong", "",
        ("weights", "output"), "the operand activations at no multiple of 16 bytes", [],
    ),
    "a vector of the weights": (
        "const uint4 v = *(const uint4*)w;", " + (v.x ^ v.x)", "", ("activations", "output"),
        "", ["weights at multiples of 16 bytes"],
    ),
    "a vector of weights that declare their alignment": (
        "const uint4 v = *(const uint4*)w;", " + (v.x ^ v.x)", "operands.weights.alignment = 16",
        ("activations", "output"), "", [],
    ),
    "a promise to the compiler": (
        "x = (const Q8_1*)__builtin_assume_aligned(x, 8);", "", "", ("weights", "activations", "output"),
        "", ["activations at multiples of 8 bytes"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", IN_CUDA)
def test_kernels_in_cuda(name: str, tmp_path: Path) -> None:
    before, after, declares, called, incorrect, limits = IN_CUDA[name]
    least, limited, fault = found(cuda(before, after, declares), tmp_path / "kernel.cu")
    assert least.keys() == set(called)
    assert limited == limits
    assert incorrect in fault
    assert bool(incorrect) == bool(fault)


#: A statement; operand → alignment of its address afterwards, if it is less than 16; what is incorrect, and limited.
IN_NUMPY = {
    "nothing": ("pass", NEEDS, "", []),
    "a wrong way for addresses that are no multiples of 8": (
        "y += activations.ctypes.data % 8 > 0", NEEDS | {"activations": 8},
        "the operand activations at no multiple of 8 bytes", [],
    ),
    "an exception": (
        "assert weights.ctypes.data % 8 == 0", NEEDS | {"weights": 8}, "", ["weights at multiples of 8 bytes"],
    ),
    "two operands together": (
        "assert weights.ctypes.data % 16 == 0 or activations.ctypes.data % 16 == 0",
        {"output": NEEDS["output"]}, "",
        ["weights at multiples of 16 bytes", "activations at multiples of 16 bytes"],
    ),
    "wrong at any address": ("raise ValueError('at any address')", NEEDS, "at any address", []),
}  # fmt: skip


@pytest.mark.parametrize("name", IN_NUMPY)
def test_kernels_in_python(name: str, tmp_path: Path) -> None:
    statement, least, incorrect, limits = IN_NUMPY[name]
    called, limited, fault = found(numpy(statement), tmp_path / "kernel.py")
    assert {**called} == {of: n for of, n in least.items() if of != "output" or of in called}
    assert [limit for limit in limited if "output" not in limit] == limits
    assert incorrect in fault
    assert bool(incorrect) == bool(fault)


DEQUANTIZER = """
import numpy as np
from gguf_verify.kernels.foreign.api import kernel

@kernel(computes="dequantize", formats=["Q4_0"])
def values(weights, shape):
    blocks = weights.reshape(-1, 18)
    q = np.hstack([blocks[:, 2:] & 15, blocks[:, 2:] >> 4]).astype(np.float32) - 8
    values = blocks[:, :2].copy().view(np.float16).astype(np.float32) * q
    return (values + (weights.ctypes.data % 8 > 0)).reshape(shape.n, shape.k)
"""


def test_a_dequantizer(tmp_path: Path) -> None:
    """It multiplies nothing; its calls have such addresses too."""
    changes, limited = dequantized(DEQUANTIZER, tmp_path / "wrong.py")
    assert changes
    assert not limited
    stops_there = DEQUANTIZER.replace("(weights.ctypes.data % 8 > 0)", "1 // (weights.ctypes.data % 8 == 0) - 1")
    changes, limited = dequantized(stops_there, tmp_path / "stops.py")
    assert not changes
    assert limited == ["weights at multiples of 8 bytes"]


def dequantized(text: str, file: Path) -> tuple[bool, list[str]]:
    """Whether one of five calls has other values than one would have at address 0, and the limits of addresses."""
    file.write_text(text)
    task, changes = as_task(open_foreign(f"{file}:values", CpuHost(1))), False
    assert isinstance(task, ForeignDequantizer)
    for n in range(1, 6):
        rows = any_blocks(Q4_0, n, n).reshape(n, 18)
        changes |= not np.array_equal(task.dequantize(Q4_0, rows), Q4_0.decode(rows), equal_nan=True)
    task.close()
    return changes, list(task.address_limits)


def test_the_smallest_alignments_are_found() -> None:
    """Of operands that fail alone, and of those that only fail together."""
    stop, wrong = KernelFault("misaligned address"), KernelFinding("address", "other outputs")
    alone = needed_of(NEEDS, stop, lambda at: stop if at.get("weights", 16) < 8 or at.get("output", 16) < 16 else None)
    assert [(of.operand, of.alignment, stops(of.fault)) for of in alone] == [("weights", 8, True), ("output", 16, True)]
    both = {"weights", "output"}
    together = needed_of(NEEDS, wrong, lambda at: wrong if both <= at.keys() else None)
    assert {(of.operand, of.alignment, of.beside) for of in together} == {
        ("weights", 16, ("output",)), ("output", 16, ("weights",)),
    }  # fmt: skip
    assert not any(stops(of.fault) for of in together)
    assert "only together" in incorrect(together).words


def test_each_combination_meets_each_size() -> None:
    """Of the calls of the brief plan, and of many operands in few calls."""
    of, tried = Combinations(3), set[tuple[bool, ...]]()
    for probe in plan(EVERYTHING, 32, True, 0, True):
        chosen = [tuple(of.next((m, probe.n, probe.k)).tolist()) for m in probe.tokens]
        tried |= set(chosen if probe.tokens[0] > 60 else [])
    assert len(tried) >= 6
    many = Combinations(7)
    of_many = np.array([many.next((5, 40, 96)) for _ in range(40)])
    for three in ((0, 1, 2), (2, 4, 6), (1, 3, 5)):
        assert len(np.unique(of_many[:, three], axis=0)) == 8


def test_what_is_not_run_shows_nothing() -> None:
    call, asked = Call("Q4_0", NEEDS, (1, 1, 32), False), list[Sequence[Least]]()

    def make(unaligned: Unaligned, again: bool) -> tuple[list[int], dict[str, object]]:
        asked.append(unaligned())
        raise NotRun("others did not return")

    addresses = Addresses()
    with pytest.raises(NotRun):
        addresses.made(call, make, lambda answers: [True for _ in answers], int)
    assert (asked, addresses.needed) == ([[NEEDS]], {})


def test_a_kernel_that_fails_now_and_then_has_no_limit() -> None:
    """Its first two calls with unaligned operands fail, and no later one."""
    made, stop = list[Least](), KernelFault("it stops")

    def make(unaligned: Unaligned, again: bool) -> tuple[list[int], dict[str, object]]:
        made.extend(unaligned())
        if any(made[-1:]) and len(made) < 3:
            raise stop
        return [0], {}

    addresses = Addresses()
    with pytest.raises(KernelFault, match="it stops"):
        addresses.made(Call("Q4_0", NEEDS, (1, 1, 32), False), make, lambda answers: [True for _ in answers], int)
    assert addresses.needed == {}


@pytest.mark.parametrize("number", range(1, 25))
def test_a_run_that_fails_by_its_number_has_no_limit(number: int) -> None:
    """Each call has two runs, and a new process counts from 1 again."""
    runs, stop = [number - 2], KernelFault("it stops")

    def make(unaligned: Unaligned, again: bool) -> tuple[list[int], dict[str, object]]:
        unaligned()
        for _ in range(2):
            runs[0] += 1
            if runs[0] % number == 0:
                runs[0] = 0
                raise stop
        return [0], {}

    addresses = Addresses()
    with pytest.raises(KernelFault, match="it stops"):
        addresses.made(
            Call("Q4_0", NEEDS, (1, 1, 32), False), make, lambda answers: [True for _ in answers],
            lambda: runs.__setitem__(0, 0),
        )  # fmt: skip
    assert addresses.needed == {}


def test_a_repeated_call_has_all_addresses() -> None:
    """`--only-call` makes one call, whose addresses depended on those before it."""
    addresses, asked = Addresses(every=True), list[Least]()

    def make(unaligned: Unaligned, again: bool) -> tuple[list[int], dict[str, object]]:
        asked.extend(unaligned())
        return [0], {}

    addresses.made(Call("Q4_0", NEEDS, (1, 1, 32), False), make, lambda answers: [True for _ in answers], int)
    assert sorted(map(sorted, asked)) == [
        ["activations"], ["activations", "output"], ["activations", "output", "weights"], ["activations", "weights"],
        ["output"], ["output", "weights"], ["weights"],
    ]  # fmt: skip


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


def test_sums_that_depend_on_addresses_in_padded_calls(tmp_path: Path, host: CpuHost) -> None:
    """Only the outputs that were asked for decide which of several answers are correct."""
    text = NUMPY.replace('semantics="q8_1"', 'semantics="q8_1", domain={"N": {"multiple": 64}, "M": {"multiple": 4}}')
    blocks = "range(shape.k // 32)"
    assert blocks in text
    order = "[:: 1 if weights.ctypes.data % 16 == 0 else -1]"
    (tmp_path / "kernel.py").write_text(text.replace(blocks, f"{blocks}{order}"))
    rng = np.random.default_rng(0)
    rows = any_blocks(Q4_0, 4 * 100, 1).reshape(100, -1)
    with closing(open_foreign(f"{tmp_path / 'kernel.py'}:gemm", host)) as kernel:
        weights = kernel.upload(Q4_0, rows)
        for m in (3, 1, 6):
            x = rng.standard_normal((m, 128)).astype(np.float32)
            assert kernel.product(weights, x).shape == (m, 100)
