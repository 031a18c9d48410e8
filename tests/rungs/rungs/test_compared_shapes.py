"""Shapes with which a kernel's code compares: the search for them, and the kernels that are wrong only there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from gguf_verify.formats.q4_0 import Q4_0
from gguf_verify.gguf.model import Model, open_model
from gguf_verify.hosts.compiler import checks_fault
from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.kernels.comparisons import Compared, Comparison, Operands
from gguf_verify.kernels.domain import EVERYTHING, Domain, Extent
from gguf_verify.kernels.foreign.opening import open_foreign
from gguf_verify.results.options import Options
from gguf_verify.results.rungs import RungResult
from gguf_verify.rungs.explain import Explanations
from gguf_verify.rungs.layers.probes.compared import ComparedProbes, compared_probes
from gguf_verify.rungs.layers.probes.comparisons import Shape, boundaries
from gguf_verify.rungs.layers.probes.huge import HugeProbes
from gguf_verify.rungs.plan import shapes_of
from gguf_verify.rungs.run import Run
from tests.support.foreign_runs import altered, verified
from tests.support.tools import FIXTURES

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


def test_a_comparison_behind_another_one_is_searched_among_the_shapes_where_it_is_made() -> None:
    observe = code(lambda m, n, k: (n % 192, 64), lambda m, n, k: (n, 9000) if n % 192 == 64 else None)
    assert {(3, 8896, 64), (3, 9088, 64)} <= found(observe)
    assert 8896 % 192 == 9088 % 192 == 64


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
    source = kernel_with(
        tmp_path_factory.mktemp("compared"), "\n".join(f"    {c} acc += 0.0f * acc;" for c in CONDITIONS)
    )
    kernel = open_foreign(f"{source}:gemm", CpuHost(1))
    try:
        run, result = Run(model, kernel, Options(progress=False, threads=1)), RungResult(name="layers")
        tensor = model.tensors["blk.0.attn_k.weight"]
        units = run.row_bytes(tensor).reshape(-1, Q4_0.block_bytes)
        probes = HugeProbes(run, result, tensor, Q4_0, units, np.ones((1, 256), np.float32), Explanations(result, 1))
        return compared_probes(run, Q4_0, probes, {*shapes_of(EVERYTHING, 32, 0, False)})
    finally:
        kernel.close()


@traced
@pytest.mark.parametrize("condition", CONDITIONS)
def test_both_sides_of_a_condition_in_the_code_are_probed(condition: str, observed: ComparedProbes) -> None:
    assert observed.why_not is None
    shapes = [probe for probe, _ in observed.probes[: observed.shapes]]
    assert {CONDITIONS[condition](p.tokens[0], p.n, p.k) for p in shapes} == {False, True}


@traced
def test_only_thread_blocks_of_a_large_product_run(observed: ComparedProbes) -> None:
    assert {p.tokens[0] for p, needs in observed.probes if needs is not None} >= {90909, 90910}
    assert all(
        (needs is not None) == (p.tokens[0] * p.n * p.k > 1 << 24) for p, needs in observed.probes[: observed.shapes]
    )


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
