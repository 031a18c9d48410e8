"""Terms of codes that compiled code adds in a declared order: NumPy lacks a fused multiply-add."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ...formats.block import BlockFormat
from ...support.arrays import AddTerms, compiled_sums, on_host
from ...support.errors import EnvironmentFault
from ..sums import Doubles, Floats
from ..values import Activations

if TYPE_CHECKING:
    from .codes import CodeTerm

#: Outputs below which NumPy takes no longer (measured).
_FEW = 1 << 12
#: Of the calls for a product after the first one, which is always checked, one in this many is, on average.
_EACH = 16
_DRAWN = random.Random(0)


@dataclass(frozen=True)
class Second:
    """The second addend of terms: m_w·z; with z alone it is added inside, d_w·(d_a·Σ q_w·q_a + z).

    Args:
        z: float64[terms, M, 1]; None if there is no second addend.
        m_w: float64[terms, 1, n].
    """

    z: Doubles | None = None
    m_w: Doubles | None = None

    def terms(self, of: slice) -> Second:
        """Return that of some terms."""
        return Second(*(None if part is None else part[of] for part in (self.z, self.m_w)))

    def rows(self, of: slice) -> Second:
        """Return that of some rows of weights."""
        return Second(self.z, None if self.m_w is None else self.m_w[:, :, of])


#: `CodeTerm.add`.
Add = Callable[[BlockFormat, Doubles, Doubles, Second, "Doubles | Floats", "Floats | None"], Floats]


class Compiled:
    """Adds the terms of one product as `CodeTerm.add`, by compiled code.

    In its first call, and now and then in a later one, NumPy adds those of one row of weights, too.
    """

    def __init__(self, term: CodeTerm, add: AddTerms) -> None:
        self._term, self._add, self._calls = term, add, 0

    @classmethod
    def of(cls, term: CodeTerm, fmt: BlockFormat, d: Doubles, x: Activations, second: Second) -> Compiled | None:
        """Return one for scales d float64[nb, 1, n], activations and second addends; None if NumPy must add them.

        Compiled code takes NumPy's arrays, one scale for all tokens, and factors that float32 holds. It rounds none of
        them to half.
        """
        if not on_host(d) or d.shape[1] != 1 or x.q.shape[1] * d.shape[2] < _FEW or term.rounded(fmt) == "products":
            return None
        if (add := compiled_sums()) is None:
            return None
        with np.errstate(over="ignore"):
            factors = [of for of in (d, x.d, second.z, second.m_w) if of is not None]
            held = all(np.array_equal(of, of.astype(np.float32)) for of in factors)
        return cls(term, add) if held else None

    def __call__(
        self, fmt: BlockFormat, d: Doubles, d_a: Doubles, second: Second, sums: Doubles | Floats, acc: Floats | None
    ) -> Floats:
        """Adds to `acc` itself. Raises EnvironmentFault if NumPy's bits are others."""
        made = np.zeros(sums.shape[1:], np.float32) if acc is None else acc
        row, self._calls = None, self._calls + 1
        if self._calls == 1 or _DRAWN.randrange(_EACH) == 0:
            row = slice(j := _DRAWN.randrange(made.shape[1]), j + 1)
            begun = made[:, row].copy()
        z, m_w = second.z, second.m_w
        self._add(
            sums, d_a[..., 0], d[:, 0], None if z is None else z[..., 0], None if m_w is None else m_w[:, 0], made
        )
        if row is not None:
            here, there = self._term.add(fmt, d[..., row], d_a, second.rows(row), sums[..., row], begun), made[:, row]
            same = here.view(np.uint32) == there.copy().view(np.uint32)
            if not (same | (np.isnan(here) & np.isnan(there))).all():
                raise EnvironmentFault("compiled sums in a declared order differ from NumPy's on this machine")
        return made
