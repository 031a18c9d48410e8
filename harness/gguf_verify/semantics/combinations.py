"""Random combinations of the rows of a matrix, by which a whole output is checked for the price of a few of its rows.

Let r[n] be random signs, one for each row of the weights W[N, K], and Y[M, N] an output. A product that is one of
matrices has

    Σ_n r[n]·Y[m, n] = Σ_k a[m, k]·V[k] + Σ_b s[m, b]·v[b]        V = Σ_n r[n]·w[n, k], v = Σ_n r[n]·m_w[n, b]

up to rounding, so O(N·K + M·K + M·N) operations check all of Y (Freivalds, "Fast probabilistic algorithms", 1979, with
real numbers and rounding in place of a field). All sums here are in float64: their errors are 2^-29 of the others.

An output's rounding error has the standard deviation σ[m, n], its spread (`exact`). Of a combination these errors have
the variance Σ_n σ[m, n]², whatever the signs; it is estimated from sampled rows. A combination is *suspicious* where
it is off by more than LIMIT such deviations. That is no verdict: whoever asks computes what is suspicious whole. The
rounding of many rows hides a small error, so a matrix of more than GROUP rows is divided into groups, each with
combinations of its own.

What `COUNT` combinations miss, of errors e[n] beside rounding in a group's outputs of one token, with T = 2·LIMIT·√Σσ²:

- A single wrong output with |e| > T is never missed: its sign does not matter.
- In general S = Σ r[n]·e[n] has E S² = Σe² and E S⁴ ≤ 3·(Σe²)². By Paley and Zygmund P(|S| > t·√Σe²) ≥ (1 - t²)²/3, so
  where √Σe² > 2·T one combination misses with a probability of at most 13/16, and all of them with (13/16)^COUNT.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

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
#: Rows of which one combination is made, at most.
GROUP = 1 << 13
#: The probability with which errors of at least four limits, by the root of the sum of their squares, are missed.
MISSED = (13 / 16) ** COUNT
#: Values of weights that are decoded at a time.
_VALUES = 1 << 20


@dataclass(frozen=True)
class _Decoded:
    """How a definition decodes weights: to values; to codes without their offset; with scales that are halves; with
    minima, which meet sums of activations."""

    values: bool
    offset: bool
    halves: bool
    minima: bool


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
        drawn = np.random.default_rng(seed).integers(0, 256, (COUNT, -(-len(w) // 8)), np.uint8)
        self.signs = 1.0 - 2.0 * np.unpackbits(drawn, axis=1, count=len(w))
        #: The rows of each group, in order.
        self.groups = [slice(int(a), int(b)) for a, b in _pairs(np.linspace(0, len(w), -(-len(w) // GROUP) + 1))]
        #: How weights are decoded → V[groups·COUNT, K] and v[groups·COUNT, terms of a row].
        self._weights: dict[_Decoded, tuple[Doubles, Doubles | None]] = {}

    @counted("exact product")
    def expected(self, semantics: Semantics, x: Bytes) -> Doubles:
        """The combinations of the exact product of activations uint8[M, row bytes], float64[M, groups·COUNT].

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
            expected: float64[M, groups·COUNT].
            variance: Σ_n σ² of all rows, float64[M].
        """
        with np.errstate(all="ignore"):
            made = [y[:, rows].astype(np.float64) @ self.signs[:, rows].T for rows in self.groups]
            shares = np.repeat([(rows.stop - rows.start) / y.shape[1] for rows in self.groups], COUNT)
            off = np.abs(np.concatenate(made, axis=1) - expected)
            within = (off <= LIMIT * np.sqrt(variance[:, None] * shares)).all(axis=1)
            return np.asarray(~(within & np.isfinite(variance)))

    @property
    def share(self) -> float:
        """Of all rows, those of the largest group."""
        return max(rows.stop - rows.start for rows in self.groups) / len(self._w)

    def _of(self, semantics: Semantics, screen: Screen) -> tuple[Doubles, Doubles | None]:
        term, fmt = semantics.term, self._fmt
        offset = not term.of_values and term.integer_offset(fmt)
        key = _Decoded(term.of_values, offset, term.half_scales(fmt), screen.has_second)
        if key in self._weights:
            return self._weights[key]
        unsigned = self._weights.get(replace(key, offset=False, minima=True)) if offset and not key.minima else None
        if unsigned is not None and unsigned[1] is not None:
            codes, offsets = unsigned[0], unsigned[1]  # an offset that is not taken off codes is a minimum of -o·d
            self._weights[key] = codes + np.repeat(offsets, codes.shape[1] // offsets.shape[1], axis=1), None
            return self._weights[key]
        count = COUNT * len(self.groups)
        sums, minima = np.zeros((count, screen.columns)), np.zeros((count, screen.nb)) if screen.has_second else None
        for group, first, second in (
            self._on_host(screen) if self._device is None else self._on_device(screen, self._device)
        ):
            span = slice(group * COUNT, (group + 1) * COUNT)
            sums[span] += first
            if minima is not None and second is not None:
                minima[span] += second
        self._weights[key] = sums, minima
        return sums, minima

    def _parts(self, step: int) -> list[tuple[int, int, Bytes]]:
        """Number of the group, first row and bytes of rows, at most `step` at a time."""
        return [
            (group, at, self._w[at : min(at + step, rows.stop)])
            for group, rows in enumerate(self.groups) for at in range(rows.start, rows.stop, step)
        ]  # fmt: skip

    def _on_host(self, screen: Screen) -> Iterator[tuple[int, Doubles, Doubles | None]]:
        parts = self._parts(max(1, _VALUES // screen.columns))
        with ThreadPoolExecutor(self._threads) as pool:
            yield from pool.map(lambda part: (part[0], *self._added(screen, *part[1:])), parts)

    def _on_device(self, screen: Screen, device: Device) -> Iterator[tuple[int, Doubles, Doubles | None]]:
        """Raises EnvironmentFault."""
        with np.errstate(all="ignore"), device.faults():
            for group, start, part in self._parts(device.rows(screen.columns, 2 * COUNT)):
                rows = device.put(part)
                if flushes(self._fmt, rows):
                    yield group, *self._added(screen, start, part)
                    continue
                drawn = device.sample(len(part))
                if len(drawn):
                    compare_blocks(self._fmt, rows[device.put(drawn)], part[drawn])
                first, second = self._added(screen, start, rows)
                yield group, get(first), None if second is None else get(second)

    def _added(self, screen: Screen, start: int, rows: Array) -> tuple[Array, Array | None]:
        """The combinations of some rows, which lie where these do."""
        with np.errstate(all="ignore"):
            weights, least = screen.weights(rows)
            signs = put(self.signs[:, start : start + len(rows)], weights)
            return signs @ weights, None if least is None else signs @ least


def _pairs(ends: Doubles) -> Iterator[tuple[float, float]]:
    return itertools.pairwise(np.floor(ends).tolist())


__all__ = ["COUNT", "GROUP", "LIMIT", "MISSED", "Combinations"]
