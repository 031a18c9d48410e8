"""Shapes with which a kernel's code compares: the search for them, and the kernels that are wrong only there."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gguf_verify.formats.q4_0 import Q4_0
from gguf_verify.gguf.model import Model, open_model
from gguf_verify.hosts.compiler import checks_fault
from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.kernels.comparisons import Compared, Comparison, Operands
from gguf_verify.kernels.domain import EVERYTHING, Domain, Extent
from gguf_verify.kernels.foreign.compared import Comparisons
from gguf_verify.kernels.foreign.opening import open_foreign
from gguf_verify.report.writer import Kind
from gguf_verify.results.options import Options
from gguf_verify.results.rungs import RungResult
from gguf_verify.rungs.explain import Explanations
from gguf_verify.rungs.layers.probes import observing
from gguf_verify.rungs.layers.probes.along import Shape
from gguf_verify.rungs.layers.probes.compared import ComparedProbes, compared_probes
from gguf_verify.rungs.layers.probes.comparisons import boundaries
from gguf_verify.rungs.layers.probes.huge import HugeProbes
from gguf_verify.rungs.plan import Probe, plan, shapes_of
from gguf_verify.rungs.run import Run
from tests.support.foreign_runs import EXAMPLES, altered, verified
from tests.support.shown import text_of
from tests.support.tools import FIXTURES
from tools.measure.guards import Guard, Quantity, guard, log_uniform

traced = pytest.mark.skipif(checks_fault() is not None, reason=f"comparisons are not traced: {checks_fault()}")

#: A condition in the code → whether it holds anywhere in a product (M, N, K).
CONDITIONS: dict[str, Callable[[int, int, int], bool]] = {
    "if (M >= 1500 && M < 1600)": lambda m, n, k: 1500 <= m < 1600,
    "if (N % 192 == 64)": lambda m, n, k: n % 192 == 64,
    "if (K > 20000)": lambda m, n, k: k > 20000,
    "if (M * N > 3000000)": lambda m, n, k: m * n > 3_000_000,
    "if (M > 700) if (N % 320 == 64)": lambda m, n, k: m > 700 and n % 320 == 64,
    "if (N % 192 == 64 && N > 4096)": lambda m, n, k: n % 192 == 64 and n > 4096,
    "if (M % 96 == 0 && N % 96 == 0)": lambda m, n, k: m % 96 == n % 96 == 0,
    "if (m == 5000)": lambda m, n, k: m > 5000,
    "if ((float)M * 1.5f > 2500.0f)": lambda m, n, k: m > 1666,
}
#: Code behind `M == 12` with a number that a type of few bits does not hold → the largest N that it holds.
NARROW = {
    "float t; t = 128 * n; acc += 0.0f * t;": 2**17,
    "float t = n; t *= 512.0f; acc += 0.0f * (long long)t;": 2**15,
    "short t; t = 2 * n; acc += 0.0f * t;": 2**14,
    "short t = 3; t += 4 * n; acc += 0.0f * t;": 2**13,
    "auto at = [](short i) { return 0.0f * i; }; acc += at(8 * n);": 2**12,
    "auto at = [](long long i) -> short { return i; }; acc += 0.0f * at(16 * n);": 2**11,
    "typedef short idx_t; idx_t t; t = 32 * n; acc += 0.0f * t;": 2**10,
    "using idx_t = unsigned short; acc += 0.0f * (idx_t)(100 * n);": 655,
    "struct { unsigned at : 7; } t; t.at = n; acc += 0.0f * t.at;": 2**7,
    "short t = 32766; if (n == 3000) ++t; acc += 0.0f * t;": 3000,
}


# ---- the search ------------------------------------------------------------------------------------------------------


def code(*comparisons: Callable[[int, int, int], tuple[float, float] | None]) -> Callable[[Shape], Compared]:
    """Comparisons of the shape alone, each made where it gives operands."""

    def observe(shape: Shape) -> Compared:
        made = [(i, compared) for i, compare in enumerate(comparisons) if (compared := compare(*shape)) is not None]
        return {Comparison(f"k.cu:{i}", 0): Operands((a, a), (b, b), (a - b, a - b)) for i, (a, b) in made}

    return observe


def found(observe: Callable[[Shape], Compared | None], domain: Domain = EVERYTHING, unit: int = 32) -> set[Shape]:
    return {shape for boundary in boundaries(domain, unit, observe) for shape in boundary.shapes}


def test_both_ends_of_a_range_that_is_one_comparison() -> None:
    assert {(1499, 33, 64), (1500, 33, 64), (1599, 33, 64), (1600, 33, 64)} <= found(
        code(lambda m, n, k: (99, m - 1500))
    )


def test_a_quotient_changes_at_both_ends_of_its_period() -> None:
    assert {(3, 5887, 64), (3, 5888, 64)} <= found(code(lambda m, n, k: (n // 128, 46)))


def test_a_product_of_sizes_that_the_other_one_does_not_divide() -> None:
    shapes = found(code(lambda m, n, k: (m * n, 25600), lambda m, n, k: (n * k, 800_000)))
    assert any(m * n == 25600 for m, n, _ in shapes)
    assert any(n * k == 800_000 for _, n, k in shapes)


def test_a_comparison_behind_another_one_is_searched_among_the_shapes_where_it_is_made() -> None:
    observe = code(lambda m, n, k: (n % 192, 64), lambda m, n, k: (n, 9000) if n % 192 == 64 else None)
    assert {(3, 8896, 64), (3, 9088, 64)} <= found(observe)
    assert 8896 % 192 == 9088 % 192 == 64


@pytest.mark.parametrize(
    ("text", "comparisons"),
    [
        ("M * N % 617 == 199 && M == 3493", [lambda m, n, k: (m * n % 617, 199), lambda m, n, k: (m, 3493)]),
        ("M * N == 11083492 && M == 65197", [lambda m, n, k: (m * n, 11_083_490), lambda m, n, k: (m, 65_197)]),
        ("N * K == 54720 && K == 960", [lambda m, n, k: (n * k, 54_720), lambda m, n, k: (k, 960)]),
        ("N % 37 == 28 && K % 160 == 96 && M > N", [
            lambda m, n, k: (n % 37, 28), lambda m, n, k: (k % 160, 96), lambda m, n, k: (m - n, 1000),
        ]),
        ("M * N + K == 9096", [lambda m, n, k: (m * n + k, 9096)]),
    ],
)  # fmt: skip
def test_comparisons_of_one_condition_hold_together(
    text: str, comparisons: list[Callable[[int, int, int], tuple[int, int]]]
) -> None:
    """Each is only made where those before it hold."""

    def behind(i: int) -> Callable[[int, int, int], tuple[int, int] | None]:
        return lambda *s: comparisons[i](*s) if all(a == b for a, b in (of(*s) for of in comparisons[:i])) else None

    shapes = found(code(*map(behind, range(len(comparisons)))))
    assert any(all(a == b for a, b in (of(*shape) for of in comparisons)) for shape in shapes), text


def test_the_other_outcome_is_also_tried_with_larger_other_sizes() -> None:
    assert any(m >= 1500 and n >= 256 and k >= 1024 for m, n, k in found(code(lambda m, n, k: (m, 1500))))


def test_a_shape_whose_call_fails_stays() -> None:
    """The launch's comparison is still made there, the code's is not."""
    condition, launch = (lambda m, n, k: None if m * n == 3584 else (m * n, 3584)), (lambda m, n, k: (m * n % 512, 0))
    assert any(m * n == 3584 for m, n, _ in found(code(condition, lambda m, n, k: None, launch)))


def test_random_conditions_of_sizes_are_met() -> None:
    missed = []
    for number in range(40):
        rng = np.random.default_rng((7, number))
        m, n, k = log_uniform(rng, 1, 1 << 16), log_uniform(rng, 1, 1 << 18), 32 * log_uniform(rng, 1, 1 << 11)
        product = ("M * N", "M * K", "N * K")[number % 3]
        quantities = [Quantity(name, name, partial(size, name)) for name in ("M", "N", "K", product)]
        condition = guard(rng, quantities, sizes_of((m, n, k)))
        shapes = found(conditional(condition))
        missed += [condition.text] if not any(condition.holds(sizes_of(shape)) for shape in shapes) else []
    assert missed == []


def size(name: str, rng: np.random.Generator) -> float:
    return float(np.prod([log_uniform(rng, 32, 1 << 16) for _ in name.split(" * ")]))


def sizes_of(shape: Shape) -> dict[str, int]:
    m, n, k = shape
    return {"M": m, "N": n, "K": k, "M * N": m * n, "M * K": m * k, "N * K": n * k}


def conditional(condition: Guard) -> Callable[[Shape], Compared]:
    """The comparisons of a condition as a compiler makes them: each behind the one before, a window as one."""

    def observe(shape: Shape) -> Compared:
        made: Compared = {}
        for number, one in enumerate(condition.comparisons):
            value, (first, *others) = sizes_of(shape)[one.quantity], map(int, one.numbers)
            if one.form == "window" and others[0] - first > 1:
                operands = Operands.of(others[0] - first - 1, value - first)
            else:
                operands = Operands.of(*((value % first, others[0]) if one.form == "remainder" else (value, first)))
            made[Comparison("k.cu:7", number)] = operands
            if not one.holds(value):
                break
        return made

    return observe


def test_no_shape_is_outside_the_domain_or_observed_there() -> None:
    domain = Domain(Extent(8, 4096, 8), Extent(multiple=64), Extent(multiple=256))
    observed: list[Shape] = []
    observe = code(lambda m, n, k: (m, 1501), lambda m, n, k: (n % 192, 64), lambda m, n, k: (k, 20000))

    def noted(shape: Shape) -> Compared:
        observed.append(shape)
        return observe(shape)

    shapes = found(noted, domain)
    assert {(1496, 64, 256), (1504, 64, 256)} <= {(m, n, 256) for m, n, _ in shapes}
    assert {19968, 20224} <= {k for _, _, k in shapes}
    for m, n, k in [*shapes, *observed]:
        assert m in domain.m
        assert n in domain.n
        assert k in domain.k


def test_the_search_ends_where_nothing_can_be_solved() -> None:
    rng, calls = np.random.default_rng(1), list[Shape]()

    def observe(shape: Shape) -> Compared:
        calls.append(shape)
        return code(*(lambda m, n, k: (float(rng.integers(1, 1 << 30)), 0.0) for _ in range(50)))(shape)

    found(observe)
    assert len(calls) == len({*calls}) <= 500
    assert found(code(lambda m, n, k: (m * 2.0**40, 2.0**90), lambda m, n, k: (m / 2**60, 0.5))) is not None
    assert found(lambda _: None) == set()


# ---- kernels ---------------------------------------------------------------------------------------------------------


def kernel_with(folder: Path, statements: str) -> Path:
    return altered(folder, "cuda_q4_0.cu", "    y[i] = acc;", f"{statements}\n    y[i] = acc;")


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    with open_model(FIXTURES / "tiny-Q4_0.gguf") as opened:
        yield opened


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory, model: Model) -> ComparedProbes:
    """The shapes of a correct kernel with all conditions."""
    statements = "\n".join(f"    {c} acc += 0.0f * acc;" for c in CONDITIONS)
    source = kernel_with(tmp_path_factory.mktemp("compared"), statements)
    return shapes_compared_in(f"{source}:gemm", model)


@pytest.fixture(scope="module")
def narrowed(tmp_path_factory: pytest.TempPathFactory, model: Model) -> ComparedProbes:
    """Those of one with all conversions to types of few bits."""
    statements = "\n".join(["    if (M == 12) {", *(f"{{ {statement} }}" for statement in NARROW), "    }"])
    return shapes_compared_in(f"{kernel_with(tmp_path_factory.mktemp('narrowed'), statements)}:gemm", model)


def shapes_compared_in(source: str, model: Model, **options: Any) -> ComparedProbes:
    with opened_probes(source, model, **options) as (run, probes):
        return compared_probes(run, Q4_0, probes, {*shapes_of(EVERYTHING, 32, 0, False)})


@contextmanager
def opened_probes(source: str, model: Model, **options: Any) -> Iterator[tuple[Run, HugeProbes]]:
    kernel = open_foreign(source, CpuHost(1))
    try:
        run, result = Run(model, kernel, Options(progress=False, threads=1, **options)), RungResult(name="layers")
        tensor = model.tensors["blk.0.attn_k.weight"]
        units, like = run.row_bytes(tensor).reshape(-1, Q4_0.block_bytes), np.ones((1, 256), np.float32)
        yield run, HugeProbes(run, result, tensor, Q4_0, units, like, Explanations(result, 1))
    finally:
        kernel.close()


@traced
@pytest.mark.parametrize("condition", CONDITIONS)
def test_both_sides_of_a_condition_in_the_code_are_probed(condition: str, observed: ComparedProbes) -> None:
    assert observed.why_not is None
    shapes = [probe for probe, _ in observed.probes[: observed.shapes]]
    assert {CONDITIONS[condition](p.tokens[0], p.n, p.k) for p in shapes} == {False, True}


@traced
@pytest.mark.parametrize("statement", NARROW)
def test_numbers_that_a_type_of_few_bits_does_not_hold_are_probed(statement: str, narrowed: ComparedProbes) -> None:
    shapes = [p for p, _ in narrowed.probes[: narrowed.shapes] if p.tokens == (12,) and statement[:40] in p.because]
    assert any(NARROW[statement] - 2 <= p.n <= NARROW[statement] + 2 for p in shapes), shapes


@traced
def test_conversions_with_which_a_line_does_not_compile_are_not_observed(tmp_path: Path) -> None:
    """A name is a type's in one place and a variable's in another."""
    text = "    { auto f = [](auto a) { using T = decltype(a); return (T)a; }; const short u = f(n); acc += 0.0f * u; }"
    source = kernel_with(tmp_path, f"{text}\n    const float T = 1.0f; acc += 0.0f * (T) - 0.0f;")
    kernel = open_foreign(f"{source}:gemm", CpuHost(1))
    try:
        assert kernel.unseen(Q4_0) == "conversions on 1 line are not observed"
    finally:
        kernel.close()


@traced
def test_only_thread_blocks_of_a_large_product_run(observed: ComparedProbes) -> None:
    assert any(p.tokens[0] * p.n > 3_000_000 for p, needs in observed.probes if needs is not None)
    of_shapes = observed.probes[: observed.shapes]
    assert all(needs is not None or p.tokens[0] * p.n * p.k <= 1 << 24 for p, needs in of_shapes)
    assert sum(p.tokens[0] * p.n * p.k for p, needs in of_shapes if needs is None) <= 1 << 27


#: A grid that is wrong at some sizes → whether it is in a product (M, N, K).
GRIDS: dict[str, Callable[[int, int, int], bool]] = {
    "ceil(M * N, 128) if M % 176 != 48 or M < 900 else 1": lambda m, n, k: m % 176 == 48 and m >= 900,
    "min(ceil(M * N, 128), 9000)": lambda m, n, k: m * n > 9000 * 128,
}


@traced
@pytest.mark.parametrize("thread", [5, 50, 77])
def test_every_output_of_a_thread_block_is_judged(thread: int, model: Model, tmp_path: Path) -> None:
    source = kernel_with(tmp_path, f"    if (blockIdx.x == 4001 && threadIdx.x == {thread}) acc += 1.0f;")
    with opened_probes(f"{source}:gemm", model) as (_, probes):
        assert probes.check_shape(Probe((15_519,), 33, 64), 0, ())  # without block 4,001
        assert not probes.check_shape(Probe((15_522,), 33, 64), 0, ())


@pytest.mark.parametrize("grid", GRIDS)
def test_both_sides_of_a_condition_in_a_launch_are_probed(grid: str, model: Model, tmp_path: Path) -> None:
    source = altered(tmp_path, "cuda_q4_0.cu", '"ceil(M * N, 128)"', f'"{grid}"')
    probes = [p for p, _ in shapes_compared_in(f"{source}:gemm", model).probes if grid in p.because]
    assert {GRIDS[grid](p.tokens[0], p.n, p.k) for p in probes} == {False, True}


#: Those that no product of the model meets: such a kernel fails before its code is looked at. The plan meets two.
_UNMET = [condition for condition in [*CONDITIONS][:6] if condition != "if (N % 192 == 64)"]


@traced
@pytest.mark.parametrize("condition", _UNMET)
def test_a_kernel_that_is_wrong_under_a_condition_fails_and_its_twin_passes(condition: str, tmp_path: Path) -> None:
    source = kernel_with(tmp_path, f"    {condition} acc += 1.0f;")
    wrong = verified(f"{source}:gemm", "layers", probes="full", seed=3)
    assert wrong.exit_code == 1
    (rung,) = wrong.rungs
    failure = rung.failures[0]
    assert condition in failure.what or condition in ("if (K > 20000)", "if (N % 192 == 64 && N > 4096)")
    assert failure.call is not None
    assert rung.diagnosis is not None
    assert [fault.id for fault in rung.diagnosis.faults] == ["first-taken-branch"]
    assert condition in rung.diagnosis.lines[0]
    (rung,) = verified(f"{source}:gemm", "layers", probes="full", seed=3, only_call=failure.call.id).rungs
    assert rung.diagnosis is not None
    assert condition in rung.diagnosis.lines[0]
    source = kernel_with(tmp_path, f"    {condition} acc += 0.0f * acc;")
    right = verified(f"{source}:gemm", "layers", probes="full", seed=3)
    (rung,) = right.rungs
    assert rung.verdict == "passed"
    assert any("the kernel's code compares with them" in note for note in rung.notes)


#: In one thread block of each row of weights, thread 31 adds what the others wrote; a CPU runs it last.
ADDED_BY_THE_LAST = {
    "// block = 128": "// block = 32",
    'grid = "ceil(M * N, 128)"': 'grid = ["N", "M"]',
    "blockIdx.x * blockDim.x + threadIdx.x;  // M": "blockIdx.y * N + blockIdx.x;  // M",
    "for (long long b = 0; b < blocks; ++b)": "for (long long b = threadIdx.x; b < blocks; b += 32)",
}


@traced
def test_a_race_that_only_some_sizes_have_is_found(tmp_path: Path) -> None:
    condition = "N % 192 != 130"
    text = (EXAMPLES / "cuda_q4_0.cu").read_text()
    for old, new in ADDED_BY_THE_LAST.items():
        assert old in text
        text = text.replace(old, new)
    sums = "    __shared__ float part[32];\n    part[threadIdx.x] = acc;\n    {}__syncthreads();\n"
    sums += "    if (threadIdx.x != 31) return;\n    for (int t = acc = 0; t < 32; ++t) acc += part[t];\n"
    sums += "    y[i] = acc;"
    source = tmp_path / "race.cu"
    source.write_text(text.replace("    y[i] = acc;", sums.format(f"if ({condition}) ")))
    wrong = verified(f"{source}:gemm", "layers", probes="full", seed=3)
    (rung,) = wrong.rungs
    assert wrong.exit_code == 1
    assert condition in rung.failures[0].what
    assert rung.diagnosis is not None
    assert [fault.id for fault in rung.diagnosis.faults] == ["data-race"]
    assert rung.failures[0].call is not None
    (rung,) = verified(f"{source}:gemm", "layers", probes="full", seed=3, only_call=rung.failures[0].call.id).rungs
    assert "data race" in rung.failures[0].what


@traced
def test_a_shape_that_the_search_does_not_find_again_is_tried_again(tmp_path: Path) -> None:
    number = len(plan(EVERYTHING, 32, True, 3)) + 2
    source = kernel_with(tmp_path, "    if (M == 7 && N == 77) acc += 1.0f;")
    call = f"probe,number={number},m=7,n=77,k=96"
    (rung,) = verified(f"{source}:gemm", "layers", probes="full", seed=3, only_call=call).rungs
    assert rung.failures
    assert rung.failures[0].call is not None
    assert rung.failures[0].call.id == call


@traced
def test_the_plan_alone_looks_at_no_comparisons_and_says_so(tmp_path: Path) -> None:
    source = kernel_with(tmp_path, "    if (M >= 1500 && M < 1600) acc += 1.0f;")
    report = verified(f"{source}:gemm", "layers", probes="planned", seed=3)
    (rung,) = report.rungs
    assert rung.verdict == "passed"
    assert any(skipped.scope == "the plan alone" for skipped in rung.skipped)
    assert not any("the kernel's code compares with them" in note for note in rung.notes)


def test_numbers_in_the_text_are_tried_where_comparisons_are_not_observed(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU."""
    monkeypatch.setattr(Comparisons, "in_code", lambda _: None)
    source = kernel_with(tmp_path, "    if (M >= 1500 && M < 1600 || N % 192 == 64) acc += 1.0f;")
    probes = [p for p, needs in shapes_compared_in(f"{source}:gemm", model).probes if needs is None]
    assert {1499, 1500, 1599, 1600} <= {p.tokens[0] for p in probes}
    assert any(p.n % 192 == 64 and "M >= 1500" in p.because for p in probes)


@traced
def test_numbers_of_code_that_compares_nothing_are_tried_beside_comparisons(model: Model, tmp_path: Path) -> None:
    """One alone, and two of one line together, of which single thread blocks run."""
    tricks = "    acc += ((N ^ 771) - 1) >> 31;\n    acc += (((M ^ 4660) | (K ^ 22048)) - 1) >> 31;"
    observed = shapes_compared_in(f"{kernel_with(tmp_path, tricks)}:gemm", model)
    assert any(probe.n == 771 and "N ^ 771" in probe.because for probe, _ in observed.probes)
    needs = [needs for probe, needs in observed.probes if (probe.tokens, probe.k) == ((4660,), 22048)]
    assert needs
    assert needs[0] is not None
    assert not observed.too_large


#: The second of two thread blocks that arrives adds both halves of a sum, so neither can run by itself.
OF_TWO_BLOCKS = {
    '"int64 K"]': '"int64 K", "part", "count"]',
    'grid = "ceil(M * N, 128)"': 'grid = ["ceil(M * N, 128)", "2"]\n// [operands.part]\n// scratch = "M * N * 8"\n'
    '// [operands.count]\n// scratch = "ceil(M * N, 128) * 4"\n// zeroed = true',
    "long long N, long long K)": "long long N, long long K, float* part, unsigned* count)",
    "    if (i >= M * N) return;\n": "",
    "long long b = 0; b < blocks; ++b": "long long b = blockIdx.y; i < M * N && b < blocks; b += 2",
    "    y[i] = acc;": """    __shared__ unsigned arrived;
    if (i < M * N) part[blockIdx.y * M * N + i] = acc;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) arrived = atomicAdd(&count[blockIdx.x], 1u);
    __syncthreads();
    if (arrived == 0 || i >= M * N) return;
    acc = ((volatile float*)part)[i] + ((volatile float*)part)[M * N + i];
    if (N % 192 == 130) acc += 0.0f;
    y[i] = acc;""",
}


@traced
def test_numbers_in_the_text_are_tried_where_no_thread_block_can_run_by_itself(model: Model, tmp_path: Path) -> None:
    text = (EXAMPLES / "cuda_q4_0.cu").read_text()
    for old, new in OF_TWO_BLOCKS.items():
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "halves.cu").write_text(text)
    compared = shapes_compared_in(f"{tmp_path / 'halves.cu'}:gemm", model)
    assert compared.why_not is not None
    assert any(probe.n % 192 == 130 and "N % 192" in probe.because for probe, _ in compared.probes)


# ---- kernels in Python -----------------------------------------------------------------------------------------------

#: A condition in a kernel in Python → whether it holds in a product (M, N, K).
OF_PYTHON: dict[str, Callable[[int, int, int], bool]] = {
    "if 1500 <= M < 1600: pass": lambda m, n, k: 1500 <= m < 1600,
    "if N >= 5000 and N % 64 == 0: pass": lambda m, n, k: n >= 5000 and n % 64 == 0,
    "if K > 20000: pass": lambda m, n, k: k > 20000,
    "if M * N > 300000: pass": lambda m, n, k: m * n > 300_000,
    "name = str(M) == '31700'": lambda m, n, k: m == 31_700,
    "tile = 64 if N % 192 == 64 else 32": lambda m, n, k: n % 192 == 64,
    "TUNED.get((N, K))": lambda m, n, k: (n, k) == (896, 1024),
    "match M:\n        case 1234: pass": lambda m, n, k: m == 1234,
    "if N in (1537, 2049): pass": lambda m, n, k: n == 2049,
    "if M == CFG.m: pass": lambda m, n, k: m == 777,
    "if (N == 768) & (K == 2048): pass": lambda m, n, k: (n, k) == (768, 2048),
    "helper.is_large(weights)": lambda m, n, k: n > 7000,
    "compiled": lambda m, n, k: m % 160 == 80,
    "np.zeros(70000)[:N]": lambda m, n, k: n > 70_000,
}
_HEAD = """
import numpy as np
import pytest
import helper
from gguf_verify import kernel
TUNED = {(896, 1024): 4, (4864, 896): 2}
class CFG: m = 777
@pytest.fixture  # as one that compiles
def compiled(m): return m % 160 == 80
@kernel(formats=["Q4_0"], semantics="q8_1")
def gemm(weights, activations, shape):
    M, N, K = shape.m, shape.n, shape.k
"""


def in_python(folder: Path, statements: str) -> str:
    (folder / "helper.py").write_text("def is_large(weights): return len(weights) > 7000")
    (folder / "k.py").write_text(f"{_HEAD}    {statements}\n    return np.zeros((M, N), np.float32)\n")
    return f"{folder / 'k.py'}:gemm"


#: One of these → the product that would be needed.
TOO_LARGE = {
    "if M * N > 300000: pass": "it needs a call of M=1, N=300000, K=1280: 385,048,576 multiply-adds, more than 268,",
    "np.zeros(70000)[:N]": "it needs a call of M=67, N=70000, K=1280: 6,003,200,000 multiply-adds, more than 268,",
}


@pytest.fixture(scope="module")
def observed_in_python(tmp_path_factory: pytest.TempPathFactory, model: Model) -> list[ComparedProbes]:
    """Of kernels with half of the conditions each, and of one whose call raises an exception."""
    names, found = [*OF_PYTHON], []
    for statements in (names[::2], names[1::2], ["raise ValueError"]):
        folder = tmp_path_factory.mktemp("compared")
        observed = shapes_compared_in(in_python(folder, "\n\n    ".join(statements)), model)
        assert observed.why_not is None
        assert all(needs is None for _, needs in observed.probes)
        found.append(observed)
    return found


@pytest.mark.parametrize("statements", OF_PYTHON)
def test_both_sides_of_a_condition_in_python_are_probed(
    statements: str, observed_in_python: list[ComparedProbes]
) -> None:
    text = {"helper.is_large(weights)": "def is_large", "compiled": "def compiled"}.get(statements, statements)
    probes = [probe for observed in observed_in_python for probe, _ in observed.probes]
    of = [p for p in probes if text.partition("\n")[0] in p.because]
    assert {OF_PYTHON[statements](p.tokens[0], p.n, p.k) for p in of} == {False, True}


@pytest.mark.parametrize(
    "statements",
    [
        "import builtins; '__gguf_verify_compares__' in vars(builtins) and __import__('os')._exit(3)",
        'import json; json.dumps = lambda said: \'{"files": ["/etc/passwd"], "comparisons": [[0, 1, 2]]}\'',
    ],
)
def test_a_process_that_tells_nothing_of_use_gives_no_probes(statements: str, model: Model, tmp_path: Path) -> None:
    observed = shapes_compared_in(in_python(tmp_path, statements), model)
    assert all(probe.because.startswith("k.py:") for probe, _ in observed.probes)  # numbers that it told before


@pytest.mark.parametrize(("statements", "needed"), TOO_LARGE.items())
def test_a_shape_that_is_too_large_for_a_whole_call_is_listed(
    statements: str, needed: str, observed_in_python: list[ComparedProbes]
) -> None:
    """With its comparison, line and size; those beside it are tried."""
    listed = {place: why for observed in observed_in_python for place, why in observed.too_large}
    (why,) = (why for place, why in listed.items() if statements in place)
    assert needed in why


def test_a_shape_that_is_not_tried_is_in_reports(tmp_path: Path) -> None:
    head = '@kernel(formats=["Q4_0"], semantics="q8_1"'
    few = 'domain={"N": {"least": 256, "most": 256}, "K": {"least": 256, "most": 256}})'
    source = altered(tmp_path, "numpy_q4_0.py", f"{head})\n", f"{head}, {few}\n")
    source.write_text(source.read_text().replace("    w, x", "    if shape.m > 9999: pass\n    w, x"))
    report = verified(f"{source}:gemm", "layers", probes="full", seed=3)
    (rung,) = report.rungs
    assert rung.verdict == "passed"
    (why,) = (why for what, why in rung.envelopes[0].not_covered if what.endswith(": if shape.m > 9999: pass"))
    assert why.startswith("it needs a call of M=9998, N=256, K=256: 656,293,888 multiply-adds, more than 268,435,456")
    assert f"if shape.m > 9999: pass ({why})" in text_of(Kind.RUN, report, detail=2, width=1000)


def test_calls_of_python_are_limited_by_what_they_compute(model: Model, tmp_path: Path) -> None:
    """By the passes of their loops too, and not by the time that these took."""
    observed = shapes_compared_in(in_python(tmp_path, "for i in range(1 << 19): pass\n    if M > 900: pass"), model)
    (why,) = (why for place, why in observed.too_large if "M > 900" in place)
    assert "M=900, N=389, K=1280: 717," in why
    assert "multiply-adds, more than 268,435,456 (and 1 larger)" in why


@pytest.mark.parametrize(
    ("limit", "why"),
    [
        ({"kernel_time_limit": 0.001}, r"its calls took \d s before all comparisons were observed"),
        ({}, "its calls cost 16,777,216 multiply-adds before all comparisons were observed"),
    ],
)
def test_limits_of_all_calls_are_reported(
    limit: dict[str, float], why: str, model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observing, "_MOST_COST", 1 << 24)
    observed = shapes_compared_in(in_python(tmp_path, "if M > 5000: pass"), model, **limit)
    assert observed.why_not is not None
    assert re.fullmatch(why, observed.why_not)
    too_large = [reason for _, reason in observed.too_large if "more than" in reason]
    assert all(re.search(f"more than 4,194,304, and its cost was not observed: {why}", reason) for reason in too_large)
    assert too_large or limit
