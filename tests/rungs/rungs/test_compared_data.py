"""Data with which a kernel's code compares: the search for them, and the kernels that are wrong only there."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from gguf_verify.formats.q4_0 import Q4_0
from gguf_verify.formats.q8_1 import Q8_1
from gguf_verify.gguf.model import Model
from gguf_verify.hosts.compiler import checks_fault
from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.kernels.comparisons import Compared, Comparison, Operands
from gguf_verify.kernels.foreign.opening import open_foreign
from gguf_verify.rungs.field_classes import numbers_of
from gguf_verify.rungs.layers.probes.compared import compared_probes
from gguf_verify.rungs.layers.probes.steering import steered
from gguf_verify.rungs.layers.probes.stored_numbers import Data, numbers
from gguf_verify.rungs.plan import Probe
from tests.support.foreign_runs import altered, verified
from tests.support.one_matrix import OneMatrix

traced = pytest.mark.skipif(checks_fault() is not None, reason=f"comparisons are not traced: {checks_fault()}")


@dataclass(frozen=True)
class Block:
    """A block of weights and one of activations: raw bits of scales and sums, values of codes."""

    d: int
    q: np.ndarray
    d8: int
    s: int
    q8: np.ndarray

    @classmethod
    def of(cls, weights: bytes, x: bytes) -> Block:
        w, a = (fmt.view(np.frombuffer(of, np.uint8)[None])[0] for fmt, of in ((Q4_0, weights), (Q8_1, x)))
        codes = np.concatenate([w["qs"] & 15, w["qs"] >> 4]).astype(int)
        return cls(bits(w["d"]), codes, bits(a["d"]), bits(a["s"]), a["qs"].astype(int))

    @property
    def dot(self) -> int:
        return int(self.q @ self.q8)


def bits(value: np.float16) -> int:
    return int(np.float16(value).view(np.uint16))


def half(bits: int) -> float:
    return float(np.uint16(bits).view(np.float16))


# ---- the search ------------------------------------------------------------------------------------------------------

NUMBERS = [*numbers(True, numbers_of(Q4_0)), *numbers(False, numbers_of(Q8_1))]
_RNG = np.random.default_rng(3)
BASE = Data(
    int.from_bytes(b"\x66\x24" + _RNG.bytes(16), "little"),
    int.from_bytes(b"\x7c\x23\x3b\xc8" + _RNG.bytes(32), "little"),
)

#: Operands of a comparison, where it is made.
Compare = Callable[[Block], tuple[float, float] | None]


def block_of(data: Data) -> Block:
    return Block.of(data.weights.to_bytes(18, "little"), data.x.to_bytes(36, "little"))


def found(*comparisons: Compare) -> list[list[Block]]:
    """The data that are found for each comparison."""

    def observe(data: Data) -> Compared:
        block = block_of(data)
        made = [(i, [*map(float, both)]) for i, of in enumerate(comparisons) if (both := of(block)) is not None]
        return {Comparison(f"k.cu:{i}", 0): Operands((a, a), (b, b), (a - b, a - b)) for i, (a, b) in made}

    data = steered(BASE, NUMBERS, observe, 2000)
    return [[block_of(one) for one in data.get(Comparison(f"k.cu:{i}", 0), ())] for i in range(len(comparisons))]


def test_a_scale_that_equals_a_constant_and_its_neighbours() -> None:
    (blocks,) = found(lambda b: (half(b.d), half(0x3C01)))
    assert {0x3C00, 0x3C01, 0x3C02} <= {b.d for b in blocks}


def test_both_ends_of_a_range_on_both_sides_of_zero() -> None:
    (blocks,) = found(lambda b: (abs(half(b.s)), 3000.0))
    assert {2998.0, 3000.0, 3002.0, -2998.0, -3000.0, -3002.0} <= {half(b.s) for b in blocks}


def test_both_zeros() -> None:
    (blocks,) = found(lambda b: (half(b.d8), 0.0))
    assert {0, 0x8000, 1, 0x8001} <= {b.d8 for b in blocks}


@pytest.mark.parametrize("constant", [12345, -20_000, 31, 7])
def test_a_sum_of_products_of_codes_that_equals_a_constant(constant: int) -> None:
    (blocks,) = found(lambda b: (b.dot, constant))
    assert {-1, 0, 1} == {int(np.sign(b.dot - constant)) for b in blocks}


def test_a_mask_of_a_scale() -> None:
    (blocks,) = found(lambda b: (b.d & 0x3F5, 0x155))
    assert any(b.d & 0x3F5 == 0x155 for b in blocks)


def test_one_code_of_many() -> None:
    (_, blocks) = found(lambda b: (b.q[3], 7), lambda b: (b.q[4], 9) if b.q[3] == 7 else None)
    assert any(b.q[3] == 7 and b.q[4] == 9 for b in blocks)


def test_a_comparison_behind_another_one() -> None:
    (_, blocks) = found(lambda b: (b.q[0], 7), lambda b: (half(b.d8), 1e-6) if b.q[0] == 7 else None)
    assert {True, False} == {half(b.d8) < 1e-6 for b in blocks}
    assert all(b.q[0] == 7 for b in blocks)


def test_four_comparisons_each_behind_the_other() -> None:
    (*_, blocks) = found(
        lambda b: (half(b.d), 3.5),
        lambda b: (b.q[3], 7) if half(b.d) > 3.5 else None,
        lambda b: (half(b.s), -9.25) if half(b.d) > 3.5 and b.q[3] == 7 else None,
        lambda b: (b.q8[5], -128) if half(b.d) > 3.5 and b.q[3] == 7 and half(b.s) < -9.25 else None,
    )
    assert any(b.q8[5] == -128 for b in blocks)
    assert all(half(b.d) > 3.5 and b.q[3] == 7 and half(b.s) < -9.25 for b in blocks if b.q8[5] == -128)


@pytest.mark.parametrize("byte", [0x4C, 0xC7, 0x25])
def test_a_byte_of_two_codes(byte: int) -> None:
    def signed(unsigned: int) -> int:
        return unsigned - 256 if unsigned > 127 else unsigned

    (blocks,) = found(lambda b: (signed(b.q[9] | b.q[25] << 4), signed(byte)))
    assert any(b.q[9] | b.q[25] << 4 == byte for b in blocks)


def test_two_conditions_that_are_both_evaluated() -> None:
    (*_, blocks) = found(
        lambda b: (b.q[0], 7), lambda b: (b.s, 0x4321), lambda b: (int(b.q[0] == 7 and b.s == 0x4321), 0)
    )
    assert any(b.q[0] == 7 and b.s == 0x4321 for b in blocks)


def test_no_number_is_infinite() -> None:
    for blocks in found(lambda b: (b.d, 0x7C00), lambda b: (half(b.s), 1e9)):
        assert all(np.isfinite([half(b.d), half(b.d8), half(b.s)]).all() for b in blocks)


def test_the_search_is_the_same_again_and_ends() -> None:
    calls = 0

    def hashed(b: Block) -> tuple[float, float]:
        nonlocal calls
        calls += 1
        return hash((b.d, b.d8, b.s, *b.q, *b.q8)) % 10007 - 5000.5, 0.0

    once = found(*[hashed] * 20)
    assert calls <= 20 * 2000
    assert [[(b.d, b.dot) for b in blocks] for blocks in once] == [
        [(b.d, b.dot) for b in blocks] for blocks in found(*[hashed] * 20)
    ]


# ---- kernels ---------------------------------------------------------------------------------------------------------

#: A condition in the code → whether it holds in a block.
CONDITIONS: dict[str, Callable[[Block], bool]] = {
    "if (__ushort_as_half(wb.d) == __ushort_as_half(0x3c01))": lambda b: b.d == 0x3C01,
    "if (fabsf(from_half(xb.s)) > 3000.0f && fabsf(from_half(xb.s)) < 3010.0f)": lambda b: 3000 < abs(half(b.s)) < 3010,
    "if ((wb.qs[3] & 15) == 7 && from_half(xb.d) < 1e-6f)": lambda b: b.q[3] == 7 and half(b.d8) < 1e-6,
    "if (sum == 12345)": lambda b: b.dot == 12345,
    "if (signbit(from_half(xb.s)) && from_half(xb.s) == 0.0f)": lambda b: b.s == 0x8000,
    "if ((wb.d & 0x3ff) == 0x155)": lambda b: b.d & 0x3FF == 0x155,
    "if ((xb.d >> 4 & 7) == 5 && wb.d & 1)": lambda b: b.d8 >> 4 & 7 == 5 and b.d & 1 == 1,
    "switch (xb.qs[1]) case 77:": lambda b: b.q8[1] == 77,
    "if (fminf(from_half(wb.d), 0.7f) == 0.7f && wb.d < 0x39a0)": lambda b: half(b.d) >= 0.7 and b.d < 0x39A0,
    "if (min(max(sum, -9000), 9000) == -9000)": lambda b: b.dot <= -9000,
    "sum = sum > 30011 ? 30011 : sum;": lambda b: b.dot > 30011,
    "{ const int c = -29000; sum = c > sum ? c : sum; }": lambda b: b.dot < -29000,
    "int c = xb.qs[9]; c = c < 0 ? -c : c; if (c > 126)": lambda b: abs(b.q8[9]) > 126,
    "if ((wb.qs[3] & 15) == 7 && from_half(xb.s) == 204.125f)": lambda b: b.q[3] == 7 and half(b.s) == 204.125,
}


def kernel_with(folder: Path, statements: str) -> Path:
    before = "        acc += from_half(wb.d) * (from_half(xb.d) * sum"
    path = altered(folder, "cuda_q4_0.cu", before, f"{statements}\n{before}")
    path.write_text(path.read_text().replace("struct Q4_0 {", "#include <cuda_fp16.h>\nstruct Q4_0 {", 1))
    return path


def probes_of(source: Path, model: Model, seed: int) -> list[Probe]:
    """Those with data of a kernel."""
    with closing(open_foreign(f"{source}:gemm", CpuHost(1))) as kernel:
        matrix = OneMatrix.of(kernel, model, seed=seed)
        found = compared_probes(matrix.run, Q4_0, matrix.large_products, set())
    return [probe for probe, _ in found.probes if probe.data]


@pytest.fixture(scope="module")
def probes(tmp_path_factory: pytest.TempPathFactory, model: Model) -> list[Probe]:
    """Those with data for a correct kernel with all conditions."""
    source = kernel_with(
        tmp_path_factory.mktemp("compared"), "\n".join(f"        {c} acc += 0.0f * acc;" for c in CONDITIONS)
    )
    return probes_of(source, model, 3)


@traced
@pytest.mark.parametrize("condition", CONDITIONS)
def test_both_sides_of_a_condition_in_the_code_are_probed(condition: str, probes: list[Probe]) -> None:
    data = [pair for probe in probes if condition in probe.because for pair in probe.data]
    assert {CONDITIONS[condition](Block.of(*pair)) for pair in data} == {False, True}


#: Those that no block of the model and of the plan meets.
_UNMET = ([*CONDITIONS][1], [*CONDITIONS][-1])


@traced
@pytest.mark.parametrize("condition", _UNMET)
def test_a_kernel_that_is_wrong_under_a_condition_fails_and_its_twin_passes(condition: str, tmp_path: Path) -> None:
    wrong = verified(f"{kernel_with(tmp_path, f'{condition} acc += 1.0f;')}:gemm", "layers", probes="full", seed=3)
    assert wrong.exit_code == 1
    (rung,) = wrong.rungs
    failure = rung.failures[0]
    assert condition in failure.what
    assert failure.call is not None
    assert rung.diagnosis is not None
    assert [fault.id for fault in rung.diagnosis.faults] == ["first-taken-branch"]
    assert condition in rung.diagnosis.lines[0]
    source = kernel_with(tmp_path, f"{condition} acc += 1.0f;")
    (rung,) = verified(f"{source}:gemm", "layers", probes="full", seed=3, only_call=failure.call.id).rungs
    assert condition in rung.failures[0].what
    right = verified(
        f"{kernel_with(tmp_path, f'{condition} acc += 0.0f * acc;')}:gemm", "layers", probes="full", seed=3
    )
    (rung,) = right.rungs
    assert rung.verdict == "passed"
    assert any("data of" in note for note in rung.notes)


# ---- kernels in Python -----------------------------------------------------------------------------------------------

#: A statement of a kernel in NumPy → whether its condition holds in a block.
STATEMENTS: dict[str, Callable[[Block], bool]] = {
    "y += np.where(d_w == 165.5, 1, 0) * 0": lambda b: half(b.d) == 165.5,
    "y += np.where((s > 3000) & (s < 3010), 1, 0)[:, None] * 0": lambda b: 3000 < half(b.s) < 3010,
    "y += 0 * np.clip(products, -30000, 29500)": lambda b: b.dot > 29500,
    "y += np.where((codes[:, b, 3] == 7) * (d_w == 0.25), 1, 0) * 0": lambda b: b.q[3] == 7 and half(b.d) == 0.25,
    "y += 0 if products[0, 0] == 12345 else 0": lambda b: b.dot == 12345,
}


def test_data_of_a_kernel_in_python(tmp_path: Path, model: Model) -> None:
    before = "        y += d_w * (d_a"
    statements = "\n".join(f"        {each}" for each in STATEMENTS)
    found = probes_of(altered(tmp_path, "numpy_q4_0.py", before, f"{statements}\n{before}"), model, 3)
    for statement, holds in STATEMENTS.items():
        data = [pair for probe in found if statement in probe.because for pair in probe.data]
        assert {holds(Block.of(*pair)) for pair in data} == {False, True}, statement
