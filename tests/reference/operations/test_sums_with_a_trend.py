"""Sums of data with a trend: the spread is that of the orders that kernels have, not of a random one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from gguf_verify.semantics.accumulation import SCORE_LIMIT
from gguf_verify_graph.operations.arithmetic import added

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
