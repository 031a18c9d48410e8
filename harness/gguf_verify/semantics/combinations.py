"""Random combinations of the rows of a matrix, by which a whole output is checked for the price of a few of its rows.

Let r[n] be random signs, one for each row of the weights W[N, K], and Y[M, N] an output. A product that is one of
matrices has

    Σ_n r[n]·Y[m, n] = Σ_k a[m, k]·V[k] + Σ_b s[m, b]·v[b]        V = Σ_n r[n]·w[n, k], v = Σ_n r[n]·m_w[n, b]

up to rounding, so O(N·K + M·K + M·N) operations check all of Y (Freivalds, "Fast probabilistic algorithms", 1979, with
real numbers and rounding in place of a field). All sums here are in float64: their errors are 2^-29 of the others.

An output's rounding error has the standard deviation σ[m, n], its spread (`exact`). Of a combination these errors have
the variance Σ_n σ[m, n]², whatever the signs; it is estimated from sampled rows. A combination is *suspicious* where
it is off by more than LIMIT such deviations. That is no verdict: whoever asks computes what is suspicious whole.

What `COUNT` combinations miss, of errors e[n] beside rounding in the outputs of one token, with T = 2·LIMIT·√Σσ²:

- A single wrong output with |e| > T is never missed: its sign does not matter.
- In general S = Σ r[n]·e[n] has E S² = Σe² and E S⁴ ≤ 3·(Σe²)². By Paley and Zygmund P(|S| > t·√Σe²) ≥ (1 - t²)²/3, so
  where √Σe² > 2·T one combination misses with a probability of at most 13/16, and all of them with (13/16)^COUNT.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from ..formats import BlockFormat
from ..support.arrays import Array, get, put
from ..support.stages import counted
from .agreement import compare_blocks, flushes
from .definition import Semantics
from .device import Device
from .screen import Screen, screen_of
from .sums import Doubles

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

#: Combinations of a matrix, and the standard deviations beyond which one is suspicious: a right output is within 3.
COUNT, LIMIT = 64, 8.0
#: The probability with which errors of at least four limits, by the root of the sum of their squares, are missed.
MISSED = (13 / 16) ** COUNT
#: Values of weights that are decoded at a time.
_VALUES = 1 << 20


class Combinations:
    """Combinations of the rows of one matrix.

    Args:
        fmt: its format.
        w: uint8[N, row bytes].
        seed: of the signs.
        threads: rows are shared out among so many.
        device: where weights are decoded and added up; None for NumPy. Of what is read of blocks, NumPy reads a sample.
    """

    def __init__(
        self, fmt: BlockFormat, w: Bytes, seed: int, threads: int = 1, device: Device | None = None
    ) -> None:  # fmt: skip
        self._fmt, self._w, self._threads, self._device = fmt, w, threads, device
        self.signs = np.random.default_rng(seed).choice(np.array([-1.0, 1.0]), (COUNT, len(w)))
        #: What a term makes of weights → V[COUNT, K] and v[COUNT, terms of a row].
        self._weights: dict[tuple[str, bool], tuple[Doubles, Doubles | None]] = {}

    @counted("exact product")
    def expected(self, semantics: Semantics, x: Bytes) -> Doubles:
        """The combinations of the exact product of activations uint8[M, row bytes], float64[M, COUNT].

        Args:
            semantics: whose product is one of matrices (`screen.bilinear`).
        """
        with np.errstate(all="ignore"):
            screen = screen_of(semantics, self._fmt, self._w.shape[1], x)
            weights, least = self._of(semantics.inside or semantics, screen)
            made = screen.a @ weights.T
            return np.asarray(made if least is None else made + screen.s @ least.T)

    def suspicious(self, y: Floats, expected: Doubles, variance: Doubles) -> npt.NDArray[np.bool_]:
        """Which tokens of an output float32[M, N] have a combination that is too far off, bool[M].

        Args:
            expected: float64[M, COUNT].
            variance: Σ_n σ², float64[M].
        """
        with np.errstate(all="ignore"):
            off = np.abs(y.astype(np.float64) @ self.signs.T - expected)
            return np.asarray(~(off <= LIMIT * np.sqrt(variance)[:, None]).all(axis=1))

    def _of(self, semantics: Semantics, screen: Screen) -> tuple[Doubles, Doubles | None]:
        key = semantics.term.name, screen.has_second
        if key in self._weights:
            return self._weights[key]
        sums, minima = np.zeros((COUNT, screen.columns)), np.zeros((COUNT, screen.nb)) if screen.has_second else None
        for first, second in self._on_host(screen) if self._device is None else self._on_device(screen, self._device):
            sums += first
            if minima is not None and second is not None:
                minima += second
        self._weights[key] = sums, minima
        return sums, minima

    def _on_host(self, screen: Screen) -> Iterator[tuple[Doubles, Doubles | None]]:
        rows = max(1, _VALUES // screen.columns)
        with ThreadPoolExecutor(self._threads) as pool:
            yield from pool.map(
                lambda at: self._added(screen, at, self._w[at : at + rows]), range(0, len(self._w), rows)
            )

    def _on_device(self, screen: Screen, device: Device) -> Iterator[tuple[Doubles, Doubles | None]]:
        """Raises EnvironmentFault."""
        step = device.rows(screen.columns, 2 * COUNT)
        with np.errstate(all="ignore"), device.faults():
            for start in range(0, len(self._w), step):
                part = self._w[start : start + step]
                rows = device.put(part)
                if flushes(self._fmt, rows):
                    yield self._added(screen, start, part)
                    continue
                drawn = device.sample(len(part))
                if len(drawn):
                    compare_blocks(self._fmt, rows[device.put(drawn)], part[drawn])
                first, second = self._added(screen, start, rows)
                yield get(first), None if second is None else get(second)

    def _added(self, screen: Screen, start: int, rows: Array) -> tuple[Array, Array | None]:
        """The combinations of some rows, which lie where these do."""
        with np.errstate(all="ignore"):
            weights, least = screen.weights(rows)
            signs = put(self.signs[:, start : start + len(rows)], weights)
            return signs @ weights, None if least is None else signs @ least


__all__ = ["COUNT", "LIMIT", "MISSED", "Combinations"]
