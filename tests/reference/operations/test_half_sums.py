"""Sums in half in an order that is not known: right ones, simulated in NumPy, are within what they may be off by,
whatever their factors are like, and that is a small part of what any order allows."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from gguf_verify.semantics.accumulation import IN_FLOAT16, SCORE_LIMIT
from gguf_verify.semantics.half_sums import sharpened
from gguf_verify.semantics.values import of_values
from gguf_verify_graph.operations import Node, Operand, judge
from tests.support.narrow_sums import HALF_SUMS, apart, half

Doubles = npt.NDArray[np.float64]
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
