"""Random combinations of the rows of a matrix, which check a whole output at the cost of a few of its rows.

Let r[n] be random signs over s[n], about the norm of a row, one for each row of the weights W[N, K], and Y[M, N] an
output. A product of matrices has

    Σ_n r[n]·Y[m, n] = Σ_k a[m, k]·V[k] + Σ_b s[m, b]·v[b]        V = Σ_n r[n]·w[n, k], v = Σ_n r[n]·m_w[n, b]

up to rounding, so O(N·K + M·K + M·N) operations check all of Y (Freivalds, "Fast probabilistic algorithms", 1979, with
real numbers and rounding in place of a field). All sums here are in float64: their errors are 2^-29 of the others. The
division by s[n] gives all rows the same weight, or the rounding of a few large ones would hide errors of the others.
Below, outputs and errors are those divided by s[n].

An output's rounding error has the standard deviation σ[m, n], its spread (`exact`). The errors of a combination have
the variance Σ_n σ[m, n]², whatever the signs; it is estimated from sampled rows. A combination is *suspicious* if its
error exceeds LIMIT such deviations. That is no verdict: the caller computes suspicious parts whole. The rounding of
many rows hides a small error, so a matrix of more than GROUP rows is divided into groups, each with its own
combinations.

A fault of a row is often in the outputs of all tokens, each time below the rounding. So the combinations of a group are
also judged together, over all tokens, by their mean square in units of the rounding that the sampled rows really have
(`Noise`).

Detection by `COUNT` combinations, for errors e[n] beyond rounding in a group's outputs of one token, with T =
2·LIMIT·√Σσ²:

- A single wrong output with |e| > T is never missed: its sign does not matter.
- In general S = Σ r[n]·e[n] has E S² = Σe² and E S⁴ ≤ 3·(Σe²)². By Paley and Zygmund P(|S| > t·√Σe²) ≥ (1 - t²)²/3,
  so where √Σe² > 2·T one combination misses with a probability of at most 13/16, and all of them with (13/16)^COUNT.
- Errors e[m] of one row in all tokens are never missed if √(mean_m e[m]²/P[m]) > 2·√limit, with the limit and P[m] of
  `Noise`: if S(a) is the mean square of a, then √S(a + b) ≥ √S(a) - √S(b).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ..formats.block import BlockFormat
from ..support.arrays import Array, get, put, widened
from ..support.stages import counted
from .definition import Semantics
from .device import Device
from .placed import Placed, differs, parts
from .screen import Screen, screen_of
from .sums import Doubles, Product

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

#: Combinations of a matrix, and the number of standard deviations beyond which one is suspicious: correct outputs stay
#: within 3.
COUNT, LIMIT = 64, 8.0
#: Rows in one combination: the least, and the most, where there are more than _GROUPS of them.
GROUP, MOST, _GROUPS = 1 << 11, 1 << 13, 16
#: The probability of missing errors of at least four limits, by the root of the sum of their squares.
MISSED = (13 / 16) ** COUNT
#: The probability, over the signs, that the mean square of correct outputs exceeds its limit; and the standard errors
#: by which sampled rows may differ from a group: more with a probability of 3e-7, by the normal law.
FALSE, _ERRORS = 1e-6, 5.0
#: The least rounding error, as a share of an output: a quarter of an ulp; the least s[n], as a share of the largest.
_LEAST, _SMALL = 2.0**-26, 2.0**-10
#: Values of weights that are decoded at a time.
_VALUES = 1 << 20


@dataclass(frozen=True)
class _Decoded:
    """How a definition decodes weights: to values; to codes without offset; with scales that are halves; with minima.
    Minima are multiplied by sums of activations.
    """

    values: bool
    offset: bool
    halves: bool
    minima: bool


@dataclass(frozen=True)
class Noise:
    """The rounding of an output of M tokens, estimated from sampled rows.

    The errors e[m, n] of a group's outputs give its combinations the mean squares E[m] = Σ_n e[m, n]² over the signs.
    These errors grow with the outputs, so E[m] is estimated as P[m] = share[m]·Σ_n y[m, n]². The mean of all COUNT·M
    squares, each divided by its P[m], is a quadratic form of random signs. With F the Frobenius norm of the tokens'
    correlations, divided by M, and t = -ln FALSE, it exceeds

        (1 + 2·F·√(t/COUNT) + 2·F·t/COUNT) · mean_m E[m]/P[m]

    with a probability of at most FALSE, whatever the errors are (Hsu, Kakade and Zhang, "A tail inequality for
    quadratic forms of subgaussian random vectors", 2012). The last factor is 1 for the sampled rows. For a group its
    standard error is that of the mean over sampled rows of mean_m (e² - share·y²)/(share·mean_n y²).

    Args:
        variance: Σ_n σ² of all rows, float64[M].
        share: Σ_n e² / Σ_n y² of sampled rows, float64[M].
        limit: the largest mean square of a group's combinations.
    """

    variance: Doubles
    share: Doubles
    limit: float

    @classmethod
    def of(cls, y: Doubles, errors: Doubles, spread: Doubles, rows: int) -> Noise:
        """Estimate that of a matrix of `rows` rows from sampled outputs, errors and spreads, float64[M, n] each."""
        with np.errstate(all="ignore"):
            variance = (spread**2).sum(axis=1) * (rows / y.shape[1])
            size = (y**2).mean(axis=1)
            share = np.maximum((errors**2).mean(axis=1) / size, _LEAST**2)
            known = np.isfinite(share) & (size > 0)
            if not known.any():
                return cls(variance, share, math.inf)
            units = errors[known] / np.sqrt(share * size)[known, None]
            correlated = float(np.linalg.norm(units @ units.T)) / units.size
            off = (units**2).mean(axis=0) - (y[known] ** 2 / size[known, None]).mean(axis=0)
            t = math.log(1 / FALSE) / COUNT
            limit = 1 + 2 * correlated * (math.sqrt(t) + t)
            return cls(variance, share, limit * (1 + _ERRORS * float(off.std()) / math.sqrt(len(off))))


class Combinations:
    """Combinations of the rows of one matrix.

    Args:
        fmt: its format.
        w: uint8[N, row bytes].
        seed: of the signs.
        threads: the number of threads that share the rows.
        device: the device that decodes weights and adds weights and outputs; None for NumPy. NumPy checks a sample of
            blocks, and recomputes one sum of weights in each column of one random block, one of products and one of
            outputs: each within 2·(n + 8)·2^-53·Σ|term| of n terms (Higham, §3.1, for two orders).
    """

    def __init__(self, fmt: BlockFormat, w: Bytes, seed: int, threads: int = 1, device: Device | None = None) -> None:
        self._fmt, self._w, self._threads, self._device = fmt, w, threads, device
        rng = np.random.default_rng(seed)
        random = rng.integers(0, 256, (COUNT, -(-len(w) // 8)), np.uint8)
        bits = np.unpackbits(random, axis=1, count=len(w)).view(np.int8)
        #: 1 and -1, int8[COUNT, N].
        self.signs = np.int8(1) - np.int8(2) * bits
        self._signs_there: Array | None = None
        #: 1/s[n], float64[N]: known for rows that were decoded.
        self.inverse: Doubles = np.zeros(len(w))
        self._scaled = False
        #: Chooses the sums that NumPy recomputes.
        self._checked = rng
        count = max(min(-(-len(w) // GROUP), _GROUPS), -(-len(w) // MOST))
        #: The rows of each group, in order.
        self.groups = [slice(int(a), int(b)) for a, b in _pairs(np.linspace(0, len(w), count + 1))]
        #: How weights are decoded → V[groups·COUNT, K] and v[groups·COUNT, terms of a row], on the device that adds
        #: them.
        self._weights: dict[_Decoded, tuple[Array, Array | None]] = {}

    @counted("exact product")
    def expected(self, semantics: Semantics, x: Bytes) -> Doubles:
        """Return the combinations of the exact product of activations uint8[M, row bytes], float64[M, groups·COUNT].

        Args:
            semantics: a definition whose product is one of matrices (`screen.bilinear`).
        """
        with np.errstate(all="ignore"), self._faults():
            screen = screen_of(semantics, self._fmt, self._w.shape[1], x)  # applies `Term.reads` to the format
            weights, least = self._of(semantics.inside or semantics, screen)
            there = screen if self._device is None else screen.on(self._device)
            made = there.a @ weights.T
            made = get(made if least is None else made + there.s @ least.T)
            if self._device is not None and len(made):
                m, j = self._random_place(made)
                terms = screen.a[m] * get(weights[j])
                if least is not None:
                    terms = np.concatenate([terms, screen.s[m] * get(least[j])])
                _compare("exact products", made[m, j], terms)
            return made

    def noise(self, rows: npt.NDArray[np.intp], y: Floats, expected: Product) -> Noise:
        """Estimate the rounding of an output from sampled rows int[n], float32[M, n], and their product [M, n].

        `expected` has been called, so that s[n] is known.
        """
        scale = self.inverse[rows]
        with np.errstate(all="ignore"):
            errors = y.astype(np.float64) - get(expected.exact)
            return Noise.of(y * scale, errors * scale, get(expected.spread) * scale, len(self._w))

    def suspicious(self, y: Floats, expected: Doubles, noise: Noise) -> bool:
        """Return whether combinations of an output float32[M, N] are suspicious.

        Args:
            expected: float64[M, groups·COUNT].
            noise: of this output.
        """
        with np.errstate(all="ignore"), self._faults():
            signs = self.signs.astype(np.float64) if self._device is None else self._signs_on(self._device)
            outputs = widened(put(y, signs)) * put(self.inverse, signs)
            made = [outputs[:, rows] @ signs[:, rows].T for rows in self.groups]
            sizes = get(np.stack([(outputs[:, rows] ** 2).sum(axis=1) for rows in self.groups], axis=1))
            shares = np.repeat([(rows.stop - rows.start) / y.shape[1] for rows in self.groups], COUNT)
            together = get(np.concatenate(made, axis=1))
            if self._device is not None and len(y):
                m, j = self._random_place(together)
                rows = self.groups[j // COUNT]
                _compare("outputs", together[m, j], y[m, rows] * self._signed(j, rows))
            off = np.abs(together - expected)
            within = off <= LIMIT * np.sqrt(noise.variance[:, None] * shares)
            squares = (off**2).reshape(len(y), -1, COUNT).mean(axis=2)
            pooled = np.where(squares > 0, squares / (noise.share[:, None] * sizes), 0.0).mean(axis=0)
            known = np.isfinite(noise.variance).all()
            return not (known and within.all() and (pooled <= noise.limit).all())

    def _signed(self, j: int, rows: slice) -> Doubles:
        """Return r[n] of one combination, float64[n]."""
        signed: Doubles = self.signs[j % COUNT, rows] * self.inverse[rows]
        return signed

    def _random_place(self, of: Doubles) -> tuple[int, int]:
        """Return the place of a random element."""
        return int(self._checked.integers(of.shape[0])), int(self._checked.integers(of.shape[1]))

    def _faults(self) -> AbstractContextManager[None]:
        return nullcontext() if self._device is None else self._device.faults()

    @property
    def share(self) -> float:
        """The largest group's fraction of all rows."""
        return max(rows.stop - rows.start for rows in self.groups) / len(self._w)

    def _of(self, semantics: Semantics, screen: Screen) -> tuple[Array, Array | None]:
        term, fmt = semantics.term, self._fmt
        offset = term.offset(fmt) != 0
        key = _Decoded(term.of_values, offset, term.rounded(fmt) == "scales", screen.has_second)
        if key in self._weights:
            return self._weights[key]
        unsigned = self._weights.get(replace(key, offset=False, minima=True)) if offset and not key.minima else None
        if unsigned is not None and unsigned[1] is not None:
            codes, offsets = unsigned[0], unsigned[1]  # an offset that is not subtracted from codes is a minimum, -o·d
            self._weights[key] = codes + np.repeat(offsets, codes.shape[1] // offsets.shape[1], axis=1), None
            return self._weights[key]
        sums, minima = dict[int, Array](), dict[int, Array]()
        for group, first, second in (
            self._on_host(screen) if self._device is None else self._on_device(screen, self._device)
        ):
            sums[group] = sums[group] + first if group in sums else first
            if second is not None:
                minima[group] = minima[group] + second if group in minima else second
        together = [np.concatenate([of[i] for i in sorted(of)]) if of else None for of in (sums, minima)]
        self._weights[key] = together[0], together[1]
        self._scaled = True
        if self._device is not None:
            self._compare_column(screen, *self._weights[key])
        return self._weights[key]

    def _compare_column(self, screen: Screen, weights: Array, least: Array | None) -> None:
        """Recompute one column of blocks of the weights. Raises EnvironmentFault."""
        blocks, one = self._w.shape[1] // self._fmt.block_bytes, copy(screen)
        j, at = int(self._checked.integers(weights.shape[0])), int(self._checked.integers(blocks))
        rows = self.groups[j // COUNT]
        column = np.ascontiguousarray(self._w[rows, at * self._fmt.block_bytes : (at + 1) * self._fmt.block_bytes])
        one.nb = screen.nb // blocks
        signs = self._signed(j, rows)[:, None]
        for what, there, here in zip(("weights", "minima"), (weights, least), one.weights(column), strict=True):
            if there is not None and here is not None:
                width = here.shape[1]
                _compare(what, get(there[j])[at * width : (at + 1) * width], (signs * here).T)

    def _on_host(self, screen: Screen) -> Iterator[tuple[int, Doubles, Doubles | None]]:
        step = max(1, _VALUES // screen.columns)
        starts = [at for rows in self.groups for at in range(rows.start, rows.stop, step)]
        spans = [(a, self._w[a:b]) for a, b in itertools.pairwise([*starts, len(self._w)])]

        def one(of: tuple[int, Bytes]) -> list[tuple[int, Doubles, Doubles | None]]:
            start, part = of
            signs = self.signs[:, start : start + len(part)].astype(np.float64)
            return list(self._added(screen, start, part, signs))

        with ThreadPoolExecutor(self._threads) as pool:
            for added in pool.map(one, spans):
                yield from added

    def _on_device(self, screen: Screen, device: Device) -> Iterator[tuple[int, Doubles, Doubles | None]]:
        """Raises EnvironmentFault."""
        with np.errstate(all="ignore"), device.faults():
            step = device.rows(screen.columns, 2 * COUNT)
            for start, part, rows in parts(device, self._fmt, self._w, step, screen.of_blocks):
                signs = self._signs_on(device)[:, start : start + len(part)]
                if rows is not None:
                    yield from self._added(screen, start, rows, signs)
                    continue
                for group, first, second in self._added(screen, start, part, get(signs)):
                    yield group, put(first, signs), None if second is None else put(second, signs)

    def _signs_on(self, device: Device) -> Array:
        """Return the signs float64[COUNT, N] on the device."""
        if self._signs_there is None:
            self._signs_there = device.put(self.signs).astype(np.float64)
        return self._signs_there

    def _added(
        self, screen: Screen, start: int, rows: Array | Placed, signs: Array
    ) -> Iterator[tuple[int, Array, Array | None]]:
        """Yield the combinations of some rows, with signs float64[COUNT, n], by number of their group."""
        with np.errstate(all="ignore"):
            weights, least = screen.weights(rows)
            span = slice(start, start + len(rows))
            if not self._scaled:
                self.inverse[span] = _inverse(weights, least)
            signs = signs * put(self.inverse[span], signs)
            for group, of in enumerate(self.groups):
                first, stop = max(of.start - start, 0), min(of.stop - start, len(rows))
                if first < stop:
                    mine = signs[:, first:stop]
                    yield group, mine @ weights[first:stop], None if least is None else mine @ least[first:stop]


def _inverse(weights: Array, least: Array | None) -> Doubles:
    """Return 1/s of rows of weights [n, K] and minima [n, nb], on any device: of zeros, and of tiny rows, a little."""
    squares = (weights**2).sum(axis=1)
    if least is not None:
        squares = squares + (least**2).sum(axis=1) * (weights.shape[1] // least.shape[1])
    norm = np.sqrt(get(squares))
    most = float(norm.max(initial=0.0))
    inverse: Doubles = 1 / np.maximum(norm, most * _SMALL if most else 1.0)
    return inverse


def _compare(what: str, there: Doubles, terms: Doubles) -> None:
    """Compare sums float64[...] of a device with those of terms float64[..., n].

    Sums that are not finite in NumPy are not compared. Raises EnvironmentFault.
    """
    here, off = terms.sum(axis=-1), 2 * (terms.shape[-1] + 8) * 2.0**-53 * np.abs(terms).sum(axis=-1)
    if not (~np.isfinite(off) | (np.abs(there - here) <= off)).all():
        raise differs(f"combinations of {what}")


def _pairs(ends: Doubles) -> Iterator[tuple[float, float]]:
    return itertools.pairwise(np.floor(ends).tolist())
