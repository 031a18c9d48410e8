"""Sums: right on the CPU backend, and planted faults are seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gguf_verify.llama.library import Llama
from gguf_verify.llama.node import BF16, F16, F32, I64
from gguf_verify.semantics.accumulation import IN_FLOAT16, SCORE_LIMIT
from gguf_verify.semantics.half_sums import sharpened
from gguf_verify.semantics.values import of_values
from gguf_verify_graph.operations import Node, Operand, judge
from gguf_verify_graph.operations.arithmetic import added
from tests.support.narrow_sums import HALF_SUMS, apart, half
from tests.support.operations import Fault, check_faults, check_undefined, computed, rows_shifted, source, with_output

OPS = ("SUM", "SUM_ROWS", "MEAN", "CUMSUM", "REPEAT_BACK")
Data = npt.NDArray[Any]


def _sources(change: Callable[[Data], Data]) -> Callable[[Node], Node | None]:
    return lambda node: None if node.source(0).type_id == BF16 else source(node, 0, change)


def _last_left_out(x: Data) -> Data:
    x[..., -1] = 0
    return x


def _last_row_left_out(x: Data) -> Data:
    x[..., -1, :] = 0
    return x


def _half_sums(node: Node, data: Data) -> Data | None:
    """Sums of rows that are added in half."""
    if data.dtype != np.float32:
        return None
    with np.errstate(all="ignore"):
        return np.where(np.abs(data) < 60000, data.astype(np.float16), data).astype(np.float32)


@pytest.mark.parametrize("op", OPS)
def test_faults(llama: Llama, op: str) -> None:
    own = {
        "SUM": Fault("twice", in_output=lambda node, data: data if data.dtype.kind == "u" else data * 2),
        "SUM_ROWS": Fault("the mean", lambda node: replace(node, op="MEAN")),
        "MEAN": Fault("the sum", lambda node: replace(node, op="SUM_ROWS")),
        "CUMSUM": Fault("without its own value", in_output=lambda node, data: data - node.source(0).data),
        "REPEAT_BACK": Fault("the first one alone", in_output=lambda node, data: node.source(0).data[
            tuple(slice(n) for n in data.shape)]),
    }  # fmt: skip
    rows = () if op == "SUM" else (Fault("rows one off", in_output=rows_shifted),)
    check_faults(
        llama, op, own[op], *rows, Fault("the last values left out", _sources(_last_left_out)),
        Fault("the last rows left out", _sources(_last_row_left_out)),
        Fault("values in half", _sources(lambda x: x.astype(np.float16).astype(x.dtype))),
        Fault("sums in half", in_output=_half_sums), Fault("magnitudes", _sources(np.abs)),
    )  # fmt: skip


def test_faults_of_counts(llama: Llama) -> None:
    check_faults(
        llama, "COUNT_EQUAL", Fault("one more", in_output=lambda node, data: data + 1),
        Fault("those that differ", in_output=lambda node, data: node.source(0).data.size - data),
        Fault("rows one off", lambda node: source(node, 1, lambda z: np.roll(z, 1, axis=2))),
        Fault("values one off", lambda node: source(node, 1, lambda z: np.roll(z, 1, axis=3))),
        Fault("the last row left out", lambda node: source(node, 1, lambda z: _last_row_left_out(z + 1) - 1)),
    )  # fmt: skip


@pytest.mark.parametrize("backend", ["CUDA", "Vulkan"])
@pytest.mark.parametrize("op", OPS)
def test_other_backends_may_add_like_the_cpu(llama: Llama, op: str, backend: str) -> None:
    """What is added one by one, or in double, is among what other backends may add, and a wrong sum is not."""
    for node in computed(llama, op):
        assert judge(replace(node, backend=backend)).passed
    node = max(computed(llama, op), key=lambda each: each.source(0).data.size if each.output.type_id == F32 else 0)
    off = np.array(node.output.data)
    off[(0,) * 4] += np.abs(node.source(0).values).sum() * 2.0**-10
    assert judge(with_output(replace(node, backend=backend), off)).wrong == 1


def test_counts_of_more_dimensions(llama: Llama) -> None:
    """The CPU backend counts wrong rows where there are more than two dimensions (v0.5.0); a wrong count fails."""
    x, z = np.zeros((3, 4, 5), np.int32), np.zeros((3, 4, 5), np.int32)
    x[2, 3] = 1
    node = llama.compute_node(Node("COUNT_EQUAL", (Operand.of(x), Operand.of(z)), Operand.blank(I64, 1)))
    assert node is not None
    found = judge(node)
    assert found.expected == 55
    assert found.passed == (found.got == 55)


def test_nodes_without_a_definition() -> None:
    x, half = Operand.of(np.ones((3, 7), np.float32)), Operand.of(np.ones((3, 7), np.float16))
    check_undefined(
        Node("SUM", (x,), Operand.blank(F16, 1)), Node("SUM", (x,), Operand.blank(F32, 3)),
        Node("SUM", (Operand.blank(F32, 3, 0),), Operand.blank(F32, 1)),
        Node("SUM_ROWS", (half,), Operand.blank(F16, 3, 1)), Node("SUM_ROWS", (x,), Operand.blank(F32, 2, 1)),
        Node("MEAN", (x,), Operand.blank(F32, 1)), Node("CUMSUM", (x,), Operand.blank(F32, 3, 6)),
        Node("REPEAT_BACK", (x,), Operand.blank(F32, 2, 7)), Node("COUNT_EQUAL", (x, x), Operand.blank(I64, 1)),
        Node("SUM", (x,), Operand.blank(F32, 1), backend="SYCL"),
    )  # fmt: skip


# ---- sums with a trend -----------------------------------------------------------------------------------------------
# Sums of data with a trend: the spread is that of the orders that kernels have, not of a random one.


Doubles = npt.NDArray[np.float64]

N = 1 << 14
TRENDS: dict[str, Callable[[np.random.Generator], Doubles]] = {
    "line": lambda rng: np.linspace(-1, 1, N) + rng.normal(0, 1e-3, N),
    "step": lambda rng: np.where(np.arange(N) < N // 2, -1, 1) + rng.normal(0, 0.01, N),
    "wave": lambda rng: np.sin(np.arange(N) * 2 * np.pi / N) * (1 + rng.normal(0, 0.01, N)),
    "random": lambda rng: rng.normal(0, 1, N),
}


def terms_of(trend: str) -> Doubles:
    return TRENDS[trend](np.random.default_rng(3)).astype(np.float32).astype(np.float64)


def in_lanes(terms: Doubles, lanes: int, runs: bool) -> float:
    """Float32 sums of lanes that take terms in turn, or runs of them, added in a tree."""
    of = terms.astype(np.float32)
    lane = of.reshape(lanes, -1).T if runs else of.reshape(-1, lanes)
    acc = np.add.accumulate(lane, axis=0, dtype=np.float32)[-1]
    while len(acc) > 1:
        acc = acc[0::2] + acc[1::2]
    return float(acc[0])


def scores(terms: Doubles, y: float, lanes: int) -> tuple[float, float]:
    """|y - o| in spreads, and in bounds."""
    exact, bound, spread = (float(of[0, 0]) for of in added(terms[None], lanes))
    return abs(y - exact) / spread, abs(y - exact) / bound


@pytest.mark.parametrize("runs", [False, True])
@pytest.mark.parametrize("lanes", [8, 32])
@pytest.mark.parametrize("trend", TRENDS)
def test_correct_sums_are_a_few_spreads_off(trend: str, lanes: int, runs: bool) -> None:
    terms = terms_of(trend)
    score, utilisation = scores(terms, in_lanes(terms, lanes, runs), lanes)
    assert score < 4
    assert utilisation < 1


@pytest.mark.parametrize("trend", TRENDS)
def test_a_missing_term_fails(trend: str) -> None:
    terms = terms_of(trend)
    less = terms.copy()
    less[N // 3] = 0
    assert scores(terms, in_lanes(less, 32, False), 32)[0] > 10 * SCORE_LIMIT


def test_along_another_axis() -> None:
    terms = np.stack([terms_of(trend) for trend in TRENDS])
    for along, across in zip(added(terms, 8), added(terms.T, 8, 0), strict=True):
        np.testing.assert_allclose(along[:, 0], across[0], rtol=1e-12)


# ---- half sums -------------------------------------------------------------------------------------------------------
# Sums in half in an order that is not known: right ones, simulated in NumPy, are within what they may be off by,
# whatever their factors are like, and that is a small part of what any order allows.


KINDS = ("normal", "positive", "alternating", "equal", "one large", "sparse", "subnormal", "soft-max", "periodic")


def row(rng: np.random.Generator, kind: str, k: int) -> Doubles:
    x = rng.standard_normal(k)
    made = {
        "normal": x, "positive": np.abs(x), "alternating": np.abs(x) * (-1.0) ** np.arange(k), "equal": x[:1] + 0 * x,
        "one large": np.where(np.arange(k) == k // 3, 30, 0.01 * x), "sparse": x * (rng.random(k) < 0.1),
        "subnormal": 1e-4 * x, "soft-max": np.exp(4 * x) / np.exp(4 * x).sum(), "periodic": np.resize(x[:4], k),
    }  # fmt: skip
    return half(made[kind])


@pytest.mark.parametrize("added", range(len(HALF_SUMS)))
@pytest.mark.parametrize("kind", KINDS)
def test_right_sums_are_within_the_bound(kind: str, added: int) -> None:
    rng = np.random.default_rng(0)
    for k in (32, 100, 768):
        a = np.stack([row(rng, kind, k) for _ in range(6)])
        w = np.stack([row(rng, other, k) for other in KINDS])
        filled = (0, 0), (0, -k % 32)
        known = of_values(np.pad(a, filled), np.pad(w, filled), 32, IN_FLOAT16)
        made = sharpened(known, a, w)
        assert (made.spread <= known.spread).all()
        assert (np.abs(HALF_SUMS[added](a, w) - made.exact) <= SCORE_LIMIT * made.spread).all()


def test_products_rounded_midway_between_steps_are_within_the_bound() -> None:
    """Each is a little more than 6.5 steps of a sum of 16 to 32, and 6.5 as a half, which is added as 6: what is lost
    there is not made up for where the sum is larger."""
    a, w = np.full((1, 512), 1 + 7 * 2.0**-10), np.full((1, 512), 1653 * 2.0**-14)
    assert 0 < a[0, 0] * w[0, 0] - 6.5 * 2.0**-6 < 2.0**-15
    made = sharpened(of_values(a, w, 32, IN_FLOAT16), a, w)
    assert (np.abs(apart(a, w) - made.exact) <= SCORE_LIMIT * made.spread).all()


def test_the_bound_for_terms_of_one_sign_is_far_below_any_order() -> None:
    rng = np.random.default_rng(1)
    a, w = (np.stack([row(rng, "positive", 1536) for _ in range(n)]) for n in (6, 20))
    known = of_values(a, w, 32, IN_FLOAT16)
    tolerance = SCORE_LIMIT * sharpened(known, a, w).spread
    assert np.median(SCORE_LIMIT * known.spread / tolerance) > 4
    worst = max(np.abs(add(a, w) - known.exact).max() for add in HALF_SUMS)
    assert tolerance.max() < 8 * worst


def test_the_slack_is_added() -> None:
    rng = np.random.default_rng(2)
    a, w = (np.stack([row(rng, "positive", 768) for _ in range(n)]) for n in (3, 4))
    known = of_values(a, w, 32, IN_FLOAT16)
    more = SCORE_LIMIT * (sharpened(known, a, w, 2.0).spread - sharpened(known, a, w).spread)
    assert more == pytest.approx(2.0)


def test_rows_and_columns_of_other_kinds_are_right() -> None:
    """Where some columns have equal weights, all roundings of which go one way, and most have not."""
    for seed in range(40):
        rng = np.random.default_rng(seed)
        m, n, k = (int(i) for i in (rng.integers(9, 16), rng.integers(3, 40), rng.choice([64, 320])))
        a, w = (
            np.stack([row(rng, rng.choice(KINDS) if rng.random() < share else "normal", k) for _ in range(of)])
            for of, share in ((m, 0.5), (n, 0.3))
        )
        y = HALF_SUMS[seed % len(HALF_SUMS)](a, w).astype(np.float32)[None, None]
        sources = Operand.of(w.astype(np.float16)), Operand.of(a.astype(np.float32))
        found = judge(Node("MUL_MAT", sources, Operand.of(y), backend="Vulkan", device="Vulkan0"))
        assert found.passed, (seed, found)
