"""Classes of blocks, by their data: kinds of scales, sums, minima and codes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from .operands import Doubles, Parts

Bools = npt.NDArray[np.bool_]

#: The smallest normal half.
_NORMAL = 2.0**-14


@dataclass(frozen=True)
class Class:
    """Blocks with a property.

    Args:
        words: names them.
        of_weights: whether they are blocks of weights; otherwise of activations.
        test: returns which terms have it, bool[rows or tokens, terms].
    """

    words: str
    of_weights: bool
    test: Callable[[Parts], Bools]

    def holds(self, p: Parts) -> Bools:
        """Return which terms belong to it, bool[N, terms] of weights or bool[M, terms] of activations."""
        return np.asarray(self.test(p))

    def only(self, p: Parts, holds: Bools) -> Parts:
        """Return the operands with nothing but these terms."""
        if self.of_weights:
            return replace(p, d=p.d * holds, m=p.m * holds)
        return replace(p, a=p.a * holds[..., None], s=p.s * holds)


def _subnormal(v: Doubles) -> Bools:
    return np.asarray((v != 0) & (np.abs(v) < _NORMAL))


def _least_code(p: Parts) -> int:
    return p.fmt.low - p.semantics.term.offset(p.fmt)


def _weights(words: str, test: Callable[[Parts], Bools]) -> Class:
    return Class(f"blocks of weights {words}", True, test)


def _activations(words: str, test: Callable[[Parts], Bools]) -> Class:
    return Class(f"blocks of activations {words}", False, test)


CLASSES: tuple[Class, ...] = (
    _weights("whose scale is negative", lambda p: p.d < 0),
    _weights("whose scale is a subnormal half", lambda p: _subnormal(p.d)),
    _weights("whose minimum is positive", lambda p: p.m > 0),
    _weights("whose minimum is zero", lambda p: p.m == 0),
    _weights("whose minimum is a subnormal half", lambda p: _subnormal(p.m)),
    _weights("with the largest code", lambda p: (p.q == _least_code(p) + 2**p.fmt.bits - 1).any(axis=-1)),
    _weights("with the least code", lambda p: (p.q == _least_code(p)).any(axis=-1)),
    _weights("with equal codes", lambda p: (p.q == p.q[..., :1]).all(axis=-1)),
    _activations("whose s is negative", lambda p: p.s < 0),
    _activations("whose s is zero", lambda p: p.s == 0),
    _activations("whose scale is a subnormal half", lambda p: _subnormal(p.e)),
    _activations("with the code -128", lambda p: (p.a == -128).any(axis=-1)),
    _activations("with the code -127", lambda p: (p.a == -127).any(axis=-1)),
    _activations("with the code 127", lambda p: (p.a == 127).any(axis=-1)),
    _activations("without negative codes", lambda p: p.a.min(axis=-1) >= 0),
    _activations("without positive codes", lambda p: p.a.max(axis=-1) <= 0),
)
