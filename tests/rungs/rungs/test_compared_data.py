"""Data with which a kernel's code compares: the search for them, and the kernels that are wrong only there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from gguf_verify.formats.q4_0 import Q4_0
from gguf_verify.formats.q8_1 import Q8_1
from gguf_verify.gguf.model import open_model
from gguf_verify.hosts.compiler import checks_fault
from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.kernels.comparisons import Compared, Comparison, Operands
from gguf_verify.kernels.foreign.opening import open_foreign
from gguf_verify.kernels.launches import SparseProduct
from gguf_verify.results.options import Options
from gguf_verify.results.rungs import RungResult
from gguf_verify.rungs.explain import Explanations
from gguf_verify.rungs.field_classes import numbers_of
from gguf_verify.rungs.layers.probes.compared import ComparedProbes, compared_probes
from gguf_verify.rungs.layers.probes.compared_data import QuantizedBlocks
from gguf_verify.rungs.layers.probes.huge import HugeProbes
from gguf_verify.rungs.layers.probes.steering import steered
from gguf_verify.rungs.layers.probes.stored_numbers import Data, numbers
from gguf_verify.rungs.plan import Probe
from gguf_verify.rungs.run import Run
from gguf_verify.semantics.definition import quantized_inside
from gguf_verify.semantics.definitions import SEMANTICS
from tests.support.foreign_runs import altered, verified
from tests.support.tools import FIXTURES
from tools.measure.mutation.guarded import COUNTER

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

    data = steered(BASE, NUMBERS, observe, 2000).data
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


def probes_of(source: Path, seed: int) -> list[Probe]:
    """Those with data of a kernel."""
    return [probe for probe in all_probes_of(source, seed) if probe.data]


def all_probes_of(source: Path, seed: int) -> list[Probe]:
    return [probe for probe, _ in compared_in(source, seed).probes]


def compared_in(source: Path, seed: int) -> ComparedProbes:
    """The probes that follow from the comparisons of a kernel."""
    with open_model(FIXTURES / "tiny-Q4_0.gguf") as model:
        kernel = open_foreign(f"{source}:gemm", CpuHost(1))
        try:
            run, result = Run(model, kernel, Options(progress=False, threads=1, seed=seed)), RungResult(name="layers")
            tensor = model.tensors["blk.0.attn_k.weight"]
            units = run.row_bytes(tensor).reshape(-1, Q4_0.block_bytes)
            huge = HugeProbes(run, result, tensor, Q4_0, units, np.ones((1, 256), np.float32), Explanations(result, 1))
            return compared_probes(run, Q4_0, huge, set())
        finally:
            kernel.close()


#: A condition → whether it holds in a product (M, N, K), and in a block.
OF_BOTH: dict[str, tuple[Callable[[int, int, int], bool], Callable[[Block], bool]]] = {
    "if (sum == -6988 && M % 6 == 5)": (lambda m, n, k: m % 6 == 5, lambda b: b.dot == -6988),
    "if (N % 37 == 28 && xb.qs[2] == -102)": (lambda m, n, k: n % 37 == 28, lambda b: b.q8[2] == -102),
    "if ((from_half(wb.d) == -12.625f) & (K == 11008))": (lambda m, n, k: k == 11008, lambda b: half(b.d) == -12.625),
    "if (from_half(xb.d) == 0.08380127f && M >= 29253 && (wb.qs[1] & 15) == 9)": (
        lambda m, n, k: m >= 29253, lambda b: half(b.d8) == np.float32(0.08380127) and b.q[1] == 9,
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def probes(tmp_path_factory: pytest.TempPathFactory) -> list[Probe]:
    """Those with data for a correct kernel with all conditions."""
    statements = "\n".join(f"        {c} acc += 0.0f * acc;" for c in (*CONDITIONS, *OF_BOTH))
    return probes_of(kernel_with(tmp_path_factory.mktemp("compared"), statements), 3)


@traced
@pytest.mark.parametrize("condition", CONDITIONS)
def test_both_sides_of_a_condition_in_the_code_are_probed(condition: str, probes: list[Probe]) -> None:
    data = [pair for probe in probes if condition in probe.because for pair in probe.data]
    assert {CONDITIONS[condition](Block.of(*pair)) for pair in data} == {False, True}


#: Two conditions, and whether a product of the plan meets both parts.
_JOINT = (([*CONDITIONS][1], True), ([*CONDITIONS][-1], False))


@traced
@pytest.mark.parametrize(("condition", "planned"), _JOINT)
def test_a_kernel_that_is_wrong_under_a_condition_fails_and_its_twin_passes(
    condition: str, planned: bool, tmp_path: Path
) -> None:
    wrong = verified(f"{kernel_with(tmp_path, f'{condition} acc += 1.0f;')}:gemm", "layers", probes="full", seed=3)
    assert wrong.exit_code == 1
    (rung,) = wrong.rungs
    failure = rung.failures[0]
    assert (condition in failure.what) != planned
    assert failure.call is not None
    assert rung.diagnosis is not None
    assert [fault.id for fault in rung.diagnosis.faults] == ["first-taken-branch"]
    assert condition in rung.diagnosis.lines[0]
    source = kernel_with(tmp_path, f"{condition} acc += 1.0f;")
    (rung,) = verified(f"{source}:gemm", "layers", probes="full", seed=3, only_call=failure.call.id).rungs
    assert rung.failures[0].what == failure.what
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


def test_data_of_a_kernel_in_python(tmp_path: Path) -> None:
    before = "        y += d_w * (d_a"
    statements = "\n".join(f"        {each}" for each in STATEMENTS)
    found = probes_of(altered(tmp_path, "numpy_q4_0.py", before, f"{statements}\n{before}"), 3)
    for statement, holds in STATEMENTS.items():
        data = [pair for probe in found if statement in probe.because for pair in probe.data]
        assert {holds(Block.of(*pair)) for pair in data} == {False, True}, statement


# ---- data and sizes of one condition ---------------------------------------------------------------------------------


@traced
@pytest.mark.parametrize("condition", OF_BOTH)
def test_data_and_sizes_of_one_condition_are_probed_together(condition: str, probes: list[Probe]) -> None:
    of_size, of_data = OF_BOTH[condition]
    assert any(
        of_size(probe.tokens[0], probe.n, probe.k) and any(of_data(Block.of(*pair)) for pair in probe.data)
        for probe in probes
        if condition[:60] in probe.because
    )


def test_data_and_sizes_of_one_condition_in_python(tmp_path: Path) -> None:
    before = "        y += d_w * (d_a"
    statement = "y += 0 if products[0, 0] == 12345 and shape.n % 6 == 5 else 0"
    found = probes_of(altered(tmp_path, "numpy_q4_0.py", before, f"        {statement}\n{before}"), 3)
    assert any(probe.n % 6 == 5 and any(Block.of(*pair).dot == 12345 for pair in probe.data) for probe in found)


# ---- kernels that quantize their activations -------------------------------------------------------------------------


def quantized(data: Data, blocks: QuantizedBlocks) -> Block:
    """What a kernel quantizes the values of data to."""
    weights, x = blocks.bytes_of(data)
    assert blocks.semantics.inside is not None
    return Block.of(weights, blocks.semantics.inside.bytes_of(np.frombuffer(x, np.float32)[None]).tobytes())


@pytest.fixture
def blocks() -> QuantizedBlocks:
    semantics = quantized_inside(SEMANTICS["q8_1"])
    x = semantics.bytes_of(np.random.default_rng(3).uniform(-2, 2, (1, 32)).astype(np.float32))
    product = SparseProduct(Q4_0, 3, 7, 32, x.size, np.frombuffer(BASE.weights.to_bytes(18, "little"), np.uint8), x[0])
    found = QuantizedBlocks.of(semantics, product, None)
    assert found is not None
    return found


def test_values_are_found_whose_quantization_gives_a_scale_a_code_and_a_sum(blocks: QuantizedBlocks) -> None:
    by_name = dict(zip(numbers_of(Q8_1), (n for n in blocks.numbers if not n.weights), strict=True))
    start = quantized(blocks.start, blocks)
    for pattern in (0x3C01, 0x0400, 0x6BFF):
        assert quantized(by_name["d scale"].set(blocks.start, pattern), blocks).d8 == pattern
    for place, code in ((0, -77), (5, 126), (30, 3)):
        made = quantized(by_name["x"].singles[place].set(blocks.start, code & 255), blocks)
        assert sorted(np.flatnonzero(made.q8 != start.q8)) == [place + int(place >= np.abs(start.q8).argmax())]
        assert code in made.q8
    for value in (-3.25, 11.0, 0.125):
        made = quantized(by_name["s sum"].set(blocks.start, bits(np.float16(value))), blocks)
        assert half(made.s) == np.float16(value)
        assert made.d8 == start.d8


# ---- numbers of calls ------------------------------------------------------------------------------------------------


@traced
def test_comparisons_with_the_number_of_calls(tmp_path: Path) -> None:
    conditions = ("calls == 54", "calls % 37 == 5")
    statements = "\n".join(f"        if ({one}) acc += 0.0f * acc;" for one in (*conditions, "calls == 9000"))
    path = kernel_with(tmp_path, statements)
    source = path.read_text()
    body = source.index("{", source.index(" gemm(")) + 1
    path.write_text(source[:body] + COUNTER + source[body:])
    found = compared_in(path, 3)
    (probe,) = [probe for probe, _ in found.probes if probe.calls > 1]
    assert 54 <= probe.calls <= 80
    assert all(one in probe.because for one in conditions)
    (far,) = found.far
    assert "calls == 9000" in far


# ---- probes that failed before ---------------------------------------------------------------------------------------


@traced
def test_a_probe_that_failed_is_tried_in_later_runs_of_the_same_source_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    condition = "if (from_half(xb.d) == 77.5f && M % 6 == 5)"
    source = kernel_with(tmp_path, f"        {condition} acc += 1.0f;")
    (rung,) = verified(f"{source}:gemm", "layers", probes="full", seed=3).rungs
    assert condition in rung.failures[0].what
    kept = [probe for probe in all_probes_of(source, 4) if "kept from an earlier run" in probe.because]
    assert kept
    for probe in kept:
        assert condition in probe.because
        assert probe.tokens[0] % 6 == 5
        assert any(half(Block.of(*pair).d8) == 77.5 for pair in probe.data)
    source.write_text(f"{source.read_text()}\n")
    assert not any("kept from" in probe.because for probe in all_probes_of(source, 4))
