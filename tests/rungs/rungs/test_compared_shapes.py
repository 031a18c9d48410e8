"""Shapes with which a kernel's code compares: the search for them, and the kernels that are wrong only there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

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
from gguf_verify.results.options import Options
from gguf_verify.results.rungs import RungResult
from gguf_verify.rungs.explain import Explanations
from gguf_verify.rungs.layers.probes.along import Shape
from gguf_verify.rungs.layers.probes.compared import ComparedProbes, compared_probes
from gguf_verify.rungs.layers.probes.comparisons import boundaries
from gguf_verify.rungs.layers.probes.huge import HugeProbes
from gguf_verify.rungs.plan import Probe, plan, shapes_of
from gguf_verify.rungs.run import Run
from tests.support.foreign_runs import altered, verified
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
#: The same of a number that a type of few bits does not hold in such products.
NARROW: dict[str, Callable[[int, int, int], bool]] = {
    "if (M == 7) acc += 0.0f * (unsigned short)n": lambda m, n, k: m == 7 and n > 2**16,
    "if (N == 640) { const short t = m, u = 1; acc += 0.0f * (t + u); }": lambda m, n, k: n == 640 and m > 2**15,
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
    statements = [*(f"    {c} acc += 0.0f * acc;" for c in CONDITIONS), *(f"    {c};" for c in NARROW)]
    source = kernel_with(tmp_path_factory.mktemp("compared"), "\n".join(statements))
    return shapes_compared_in(f"{source}:gemm", model)


def shapes_compared_in(source: str, model: Model) -> ComparedProbes:
    kernel = open_foreign(source, CpuHost(1))
    try:
        run, result = Run(model, kernel, Options(progress=False, threads=1)), RungResult(name="layers")
        tensor = model.tensors["blk.0.attn_k.weight"]
        units = run.row_bytes(tensor).reshape(-1, Q4_0.block_bytes)
        probes = HugeProbes(run, result, tensor, Q4_0, units, np.ones((1, 256), np.float32), Explanations(result, 1))
        return compared_probes(run, Q4_0, probes, {*shapes_of(EVERYTHING, 32, 0, False)})
    finally:
        kernel.close()


@traced
@pytest.mark.parametrize("condition", [*CONDITIONS, *NARROW])
def test_both_sides_of_a_condition_in_the_code_are_probed(condition: str, observed: ComparedProbes) -> None:
    assert observed.why_not is None
    shapes = [probe for probe, _ in observed.probes[: observed.shapes]]
    assert {(CONDITIONS | NARROW)[condition](p.tokens[0], p.n, p.k) for p in shapes} == {False, True}


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


# ---- kernels in Python -----------------------------------------------------------------------------------------------

#: A condition in a kernel in Python → whether it holds in a product (M, N, K).
OF_PYTHON: dict[str, Callable[[int, int, int], bool]] = {
    "if 1500 <= M < 1600: pass": lambda m, n, k: 1500 <= m < 1600,
    "if N >= 5000 and N % 64 == 0: pass": lambda m, n, k: n >= 5000 and n % 64 == 0,
    "if K > 20000: pass": lambda m, n, k: k > 20000,
    "if M * N > 300000: pass": lambda m, n, k: m * n > 300_000,
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


@pytest.fixture(scope="module")
def observed_in_python(tmp_path_factory: pytest.TempPathFactory, model: Model) -> list[Probe]:
    """The probes of kernels with half of the conditions each, and of one whose call raises an exception."""
    names, found = [*OF_PYTHON], []
    for statements in (names[::2], names[1::2], ["raise ValueError"]):
        folder = tmp_path_factory.mktemp("compared")
        observed = shapes_compared_in(in_python(folder, "\n\n    ".join(statements)), model)
        assert observed.why_not is None
        assert all(needs is None for _, needs in observed.probes)
        found += [probe for probe, _ in observed.probes]
    return found


@pytest.mark.parametrize("statements", OF_PYTHON)
def test_both_sides_of_a_condition_in_python_are_probed(statements: str, observed_in_python: list[Probe]) -> None:
    text = {"helper.is_large(weights)": "def is_large", "compiled": "def compiled"}.get(statements, statements)
    of = [p for p in observed_in_python if text.partition("\n")[0] in p.because]
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
