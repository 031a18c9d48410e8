"""Comparison of products on a device with NumPy's on a sample: the device must give NumPy's numbers.

For random rows of each chunk of weights, the decoded blocks (codes, scales, minima, values) must be equal bit for bit,
and so must the bits of a declared order. Sums in float64 are added in another order on the device. Each of the two sums
is within γ'·A of the exact sum, in any order, with A the sum of the magnitudes of all terms and γ' = (K + nb + 8)·2^-53
(Higham, §3.1), so they are within 2γ'·A of each other. `screen` allows for twice that. It holds if float64 is that of
IEEE 754: the error of a GPU that multiplies in fewer bits (TF32, or float64 emulated by integers or halves) is larger.
The bound is a multiple of A. The spread is u/√3 times a norm of sums, of which at most K differ this much: it is within
u·√K·2γ'·A.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ..formats.block import BlockFormat
from ..support.arrays import get
from .accumulation import EXTRA_ROUNDINGS, IN_FLOAT32
from .definition import Semantics
from .device import Device
from .placed import differs, parts, same
from .sums import UNIT_ROUNDOFF, Doubles, Product, concatenated
from .values import term_values

Bytes = npt.NDArray[np.uint8]

#: An upper bound on the relative rounding error of the formulas of bound and spread, and on a screen's lowering.
_FORMULAS = 2.0**-19


def computed_on(
    device: Device,
    semantics: Semantics,
    fmt: BlockFormat,
    w: Bytes,
    outputs: int,
    there: Callable[[Any], Product],
    here: Callable[[Bytes], Product],
    parts_of_row: int = 1,
) -> Product:
    """Compute the product of weights uint8[N, row bytes] on a device, some rows at a time.

    Its sums and outputs are float32.

    Args:
        outputs: numbers that are held for a row besides its values.
        there, here: return the product of rows of weights, on the device and by NumPy.
        parts_of_row: the number of parts of a row, if outputs are sums over parts.

    Raises EnvironmentFault if a sample differs, or the device's memory does not suffice.
    """
    k = w.shape[1] // fmt.block_bytes * fmt.block_size
    made: list[Product] = []
    with np.errstate(all="ignore"), device.faults():
        for _, part, rows in parts(device, fmt, w, device.rows(k, outputs), not semantics.term.of_values):
            if rows is None:
                made.append(here(part).placed(device.put))
                continue
            product = there(rows)
            drawn = device.sample(len(part))
            if len(drawn):
                at = device.put(drawn)
                of_drawn = product.placed(lambda of, at=at: get(of[:, at]))  # type: ignore[misc]
                _compare(semantics, fmt, of_drawn, here(part[drawn]), k // parts_of_row)
            made.append(product)
    return made[0] if len(made) == 1 else concatenated(made)


def _compare(semantics: Semantics, fmt: BlockFormat, there: Product, here: Product, k: int) -> None:
    """Compare rows of the device's product with the same rows of NumPy's. Raises EnvironmentFault."""
    what = _what(semantics, fmt)
    off = compare_sums(semantics, fmt, there.exact, here, k, k // term_values(fmt))
    if not _near(there.bound, here.bound, 2.0**-40 * here.bound):
        raise differs(f"bounds {what}")
    if not _near(there.spread, here.spread, UNIT_ROUNDOFF * k**0.5 * off + 2.0**-40 * here.spread):
        raise differs(f"spreads {what}")
    if here.ordered is not None and (there.ordered is None or not same(there.ordered, here.ordered)):
        raise differs(f"sums in a declared order {what}")


def compare_sums(semantics: Semantics, fmt: BlockFormat, there: Doubles, here: Product, k: int, nb: int) -> Doubles:
    """Compare the device's exact sums [M, n] of K values in nb terms with NumPy's product.

    Returns the allowed difference. Raises EnvironmentFault.
    """
    added = k if semantics.term.of_values else 2 * nb if semantics.uses_sum(fmt) or fmt.has_min else nb
    size = here.bound / IN_FLOAT32.growth(added) * (1 + _FORMULAS)
    off: Doubles = 2 * (k + nb + EXTRA_ROUNDINGS) * 2.0**-53 * size
    if not _near(there, here.exact, off):
        raise differs(f"products in float64 {_what(semantics, fmt)} (is it set to reduced precision?)")
    return off


def _what(semantics: Semantics, fmt: BlockFormat) -> str:
    return f"of {fmt.name} by the definition {semantics.name}"


def _near(there: npt.NDArray[np.float64], here: npt.NDArray[np.float64], off: npt.NDArray[np.float64]) -> bool:
    """Return whether all values are within `off`; a value that is not finite must be so in both."""
    finite = np.isfinite(here)
    near = np.abs(there - here) <= off
    return there.shape == here.shape and bool(np.where(finite, near, ~np.isfinite(there)).all())
