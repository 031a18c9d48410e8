"""DSV4_HC_COMB: the mixing weights of a token's four residual streams, by Sinkhorn's normalizations.

    l[g, h] = mixes[8 + 4·g + h]·scale[2] + base[8 + 4·g + h]          g the stream read, h the stream written
    c       = softmax of l over h, plus ε;  then c ← c/(ε + Σ_g c);
              then n - 1 times  c ← c/(ε + Σ_h c), c ← c/(ε + Σ_g c)

Everything is float32. Sums start with ε, and c is multiplied by 1/Σ (ggml-cpu/ops.cpp, where expf is the C library's;
ggml-cuda/dsv4-hc.cu; llama.cpp v0.5.0). Vulkan divides each element, adds in pairs, and adds ε last
(vulkan-shaders/dsv4_hc_comb.comp).

Errors are tracked in logarithms. A normalization maps δ, the relative errors of a group, to

    δ[k] - Σ_j p[j]·δ[j] + own + common        p[j] the element's share of the sum with ε, which is the exact result

since a factor common to a group cancels. Adding ε maps δ to δ·x/(x + ε) + u. Roundings add, with u = 2^-24:

    own       half an ulp of the product by 1/Σ, or the division's ulps on Vulkan
    common    u for each addition to the sum, and the division's ulps; none of the latter on Vulkan
    first     the errors of l, u·(|mixes·scale| + |l|), of l - max, u·|l - max|, and of the exponential

    bound     |c|·(e^B - 1), B = Σ over all these errors of |derivative of log c|·error

The derivatives are products of the steps' derivatives, computed from the last step backwards. They hold at the exact
values, not at the computed ones. By the mean value theorem the factor of p's error is at most e^(2D), |δ| ≤ D, so each
step has (e^(2D) - 1)·Σ p·|δ| as another common error. For D the errors are added up without cancellation: E for errors
of single elements, U and V for those common to streams read and written; |δ| ≤ E + U + V, and a normalization replaces
V by V·(1 - Σp) + Σ p·(E + U) + common. D grows as the square of n; where it exceeds 1/128 there is no definition.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gguf_verify.llama.node import F32, Doubles, Node, Operand, demand, parameters
from gguf_verify.semantics.sums import UNIT_ROUNDOFF

from .arithmetic import ULP, Arithmetic, arithmetic, near_overflow
from .judging import Judged, Operation, within
from .random_inputs import floats
from .recurrence import exp_error

#: Number of streams; largest number of iterations tracked; tokens at a time.
_STREAMS, _MOST, _AT_ONCE = 4, 128, 1024
#: Largest D.
_WIDEST = 2.0**-7


@dataclass(frozen=True, eq=False)
class _Step:
    """A normalization, or the addition of ε.

    Args:
        axis: axis of the normalization, -1 for the written streams or -2 for the read ones; None: ε is added.
        weights: p, or x/(x + ε), float64[tokens, 4, 4].
        own, common: errors in logarithms, in shapes that NumPy broadcasts.
    """

    axis: int | None
    weights: Doubles
    own: Doubles
    common: Doubles


def _logarithm(relative: Doubles | float, finite: Doubles | bool = True) -> Doubles:
    """Return the error of a logarithm from a relative error. Raises NoDefinition for a meaningless one."""
    error = np.asarray(relative, np.float64)
    demand(bool((np.where(finite, error, 0.0) <= 0.5).all()), "DSV4_HC_COMB of elements too small for float32")
    logarithm: Doubles = -np.log1p(-error)
    return logarithm


class _Followed:
    """The steps of some tokens, the exact values, and the errors of the first values.

    Args:
        logits: float64[tokens, 4, 4].
        off: absolute errors of the logits.
    """

    def __init__(self, logits: Doubles, off: Doubles, eps: float, iterations: int, backend: str) -> None:
        self._a, self._eps, self._backend = arithmetic(backend), eps, backend
        self.steps: list[_Step] = []
        below = logits - logits.max(axis=-1, keepdims=True)
        self.values = np.exp(below)
        self._finite = np.isfinite(self.values).all(axis=(-1, -2), keepdims=True)
        exponential = exp_error(backend, np.maximum(below, -1e4))
        first = off + UNIT_ROUNDOFF * np.abs(below) + _logarithm(exponential, self._finite)
        # the exponential's error below the normal numbers is counted where ε is added
        self.first: Doubles = np.where(self.values > 0, first, 0.0)
        self._e, self._u, self._v = self.first, np.zeros(1), np.zeros(1)
        self._soft_max()
        self._normalize(-2)
        for _ in range(iterations - 1):
            self._normalize(-1)
            self._normalize(-2)

    def _rounding(self, additions: int) -> tuple[float, float]:
        """Return own and common relative errors of a normalization."""
        division = self._a.division * ULP
        sums = additions * UNIT_ROUNDOFF
        return (division, sums) if self._backend == "Vulkan" else (UNIT_ROUNDOFF, sums + division)

    def _soft_max(self) -> None:
        own, common = self._rounding(_STREAMS - 1)
        p = self.values / self.values.sum(axis=-1, keepdims=True)
        mean = (p * self._e).sum(axis=-1, keepdims=True)
        shared = _logarithm(common + _STREAMS * self._a.tiny) + self._second(self._e, -1) * mean
        each = _logarithm(own)
        self.steps.append(_Step(-1, p, each, shared))
        delta = self._e * (1 - 2 * p) + mean + each + shared
        self.values = p + self._eps
        weights = p / self.values
        each = _logarithm(UNIT_ROUNDOFF + 2 * self._a.tiny / self.values, self._finite)
        each = each + np.expm1(2 * delta) * weights * delta
        self.steps.append(_Step(None, weights, each, np.zeros(1)))
        self._e = weights * delta + each

    def _second(self, delta: Doubles, axis: int) -> Doubles:
        """Return e^(2D) - 1."""
        most = delta.max(axis=axis, keepdims=True)
        demand(bool((np.where(self._finite, most, 0.0) <= _WIDEST).all()), "DSV4_HC_COMB of errors that grow too large")
        second: Doubles = np.expm1(2 * most)
        return second

    def _normalize(self, axis: int) -> None:
        own, common = self._rounding(_STREAMS)
        p = self.values / (self.values.sum(axis=axis, keepdims=True) + self._eps)
        each = _logarithm(own + self._a.tiny / p, self._finite)
        delta = self._e + self._u + self._v
        shared = _logarithm(common) + self._second(delta, axis) * (p * delta).sum(axis=axis, keepdims=True)
        self.steps.append(_Step(axis, p, each, shared))
        kept, other = (self._v, self._u) if axis == -2 else (self._u, self._v)
        left = np.maximum(1 - p.sum(axis=axis, keepdims=True), 0.0)
        now = kept * left + (p * (self._e + other)).sum(axis=axis, keepdims=True) + shared
        self._u, self._v = (other, now) if axis == -2 else (now, other)
        self._e, self.values = self._e + each, p

    def bound(self) -> Doubles:
        """Return B of each element."""
        tokens, count = len(self.values), _STREAMS**2
        one = np.eye(count).reshape(count, _STREAMS, _STREAMS)
        derivative = np.broadcast_to(one, (tokens, *one.shape))
        total = np.zeros((tokens, count))
        for step in reversed(self.steps):
            total += self._weighed(derivative, step.own)
            weights = step.weights[:, None]
            if step.axis is None:
                derivative = derivative * weights
                continue
            whole = derivative.sum(axis=step.axis, keepdims=True)
            common = np.broadcast_to(step.common, whole[:, 0].shape)
            total += (np.abs(whole) * common[:, None]).sum(axis=(-1, -2))
            derivative = derivative - weights * whole
        total += self._weighed(derivative, self.first)
        return total.reshape(self.values.shape)

    def _weighed(self, derivative: Doubles, errors: Doubles) -> Doubles:
        weighed: Doubles = np.einsum("togh,tgh->to", np.abs(derivative), np.broadcast_to(errors, self.values.shape))
        return weighed


def _judge(node: Node) -> Judged:
    node.floats(0, 1, 2)
    mixes, scale, base = (node.source(i) for i in range(3))
    width = (2 + _STREAMS) * _STREAMS
    tokens = mixes.ne[1]
    fits = mixes.ne == (width, tokens, 1, 1) and base.ne == (width, 1, 1, 1) and scale.ne[0] >= 3
    fits = fits and scale.ne[1:] == (1, 1, 1) and node.output.ne == (_STREAMS, _STREAMS, tokens, 1)
    demand(fits, f"{node.op} of {mixes.ne}, {scale.ne} and {base.ne} to {node.output.ne}")
    eps, iterations = node.number(0), node.integer(1)
    demand(0 < iterations <= _MOST and 0 <= eps <= 1, f"{node.op} of {iterations} iterations with ε = {eps}")
    exact, bound = np.empty(node.output.shape), np.empty(node.output.shape)
    for first in range(0, tokens, _AT_ONCE):
        part = slice(first, first + _AT_ONCE)
        with np.errstate(all="ignore"):
            given = mixes.values[0, 0, part], scale.values[0, 0, 0, 2], base.values[0, 0, 0]
            logits, off = _logits(*given, arithmetic(node.backend))
            followed = _Followed(logits, off, eps, iterations, node.backend)
            exact[0, part] = followed.values
            bound[0, part] = followed.values * np.expm1(followed.bound())
    return within(node, f"f32, n = {iterations}", exact, bound)


def _logits(mixes: Doubles, scale: np.float64, base: Doubles, a: Arithmetic) -> tuple[Doubles, Doubles]:
    """Return logits float64[tokens, 4, 4] and their errors. Raises NoDefinition for products beyond float32."""
    scaled = mixes[:, 2 * _STREAMS :] * scale
    large = (np.abs(scaled) >= 2.0**126) & np.isfinite(mixes[:, 2 * _STREAMS :])
    demand(not (large.any() and np.isfinite(scale)), "DSV4_HC_COMB beyond float32")
    logits = scaled + base[2 * _STREAMS :]
    demand(not near_overflow(logits, 2.0**126), "DSV4_HC_COMB beyond float32")
    off = UNIT_ROUNDOFF * (np.abs(scaled) + np.abs(logits)) + 2 * a.tiny
    shape = (len(mixes), _STREAMS, _STREAMS)
    return logits.reshape(shape), off.reshape(shape)


def _draw(rng: np.random.Generator) -> Iterator[Node]:
    width = (2 + _STREAMS) * _STREAMS

    def node(mixes: Operand, scale: Operand, base: Operand, eps: float, iterations: int) -> Node:
        out = Operand.blank(F32, mixes.ne[1], _STREAMS, _STREAMS)
        return Node("DSV4_HC_COMB", (mixes, scale, base), out, parameters(eps, iterations))

    for tokens, eps, iterations in (
        (1, 1e-6, 1),
        (17, 1e-6, 2),
        (33, 1e-2, 1),
        (130, 1e-6, 4),
        (65, 0.0, 3),
        (40, 1e-2, 8),
        (100, 1e-6, 20),
    ):
        for factor in (0.5, 4.0):
            mixes = Operand.of(rng.standard_normal((tokens, width)).astype(np.float32) * np.float32(factor))
            scale, base = Operand.of(floats(rng, (3,), 0.5)), Operand.of(floats(rng, (width,), 0.5))
            yield node(mixes, scale, base, eps, iterations)
    turned = Operand.of(floats(rng, (width, 9), 1.0)).permuted(1, 0, 2, 3)
    factors, added = floats(rng, (5,), 0.5), floats(rng, (width,), 0.5)
    yield node(turned, Operand.of(factors), Operand.of(added), 1e-6, 3)
    added[[9, 14, 20]], added[16:20] = -np.inf, (-300.0, 0.0, -90.0, -100.0)
    yield node(turned, Operand.of(factors), Operand.of(added), 1e-6, 20)


DSV4_HC_COMB = Operation(
    op="DSV4_HC_COMB",
    title="Sinkhorn normalization of 4 × 4 mixing weights",
    judge=_judge,
    draw=_draw,
    axes=("i3", "token", "read stream", "written stream"),
)
