"""Products on a device, of which NumPy computes a sample too: the device must give NumPy's numbers.

For drawn rows of each chunk of weights, what is read of blocks (codes, scales, minima, values) must be the same bit for
bit, and so must the bits of a declared order. Sums in float64 are added in another order there. Each of the two is
within γ'·A of the sum of the numbers, in any order, with A the sum of the magnitudes of all terms and
γ' = (K + nb + 8)·2^-53 (Higham, §3.1), so they are within 2γ'·A of each other. That is what `screen` allows for, twice.
It holds where float64 is that of IEEE 754: a card that multiplies in fewer bits (TF32, or float64 made of integers or
halves) is off by more. The bound is a multiple of A. The spread is u/√3 times a norm of sums, of which K at most differ
so: it is within u·√K·2γ'·A.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from ..formats import BlockFormat
from ..support.arrays import Array, get, seen_as
from ..support.errors import EnvironmentFault
from .accumulation import EXTRA_ROUNDINGS, IN_FLOAT32
from .definition import Semantics
from .device import Device
from .sums import UNIT_ROUNDOFF, Doubles, Product, concatenated
from .values import term_values

Bytes = npt.NDArray[np.uint8]

_NORMAL, _MAGNITUDE = np.uint32(0x00800000), np.uint32(0x7FFFFFFF)
#: More than the formulas of bound and spread are rounded by, and than a screen lowers them, as a share of them.
_FORMULAS = 2.0**-19


def computed_on(
    device: Device, semantics: Semantics, fmt: BlockFormat, w: Bytes, outputs: int, there: Callable[[Array], Product],
    here: Callable[[Bytes], Product], parts_of_row: int = 1,
) -> Product:  # fmt: skip
    """The product of weights uint8[N, row bytes] on a device, some rows at a time. Its sums and outputs are float32.

    Args:
        outputs: numbers that are held for a row beside its values.
        there, here: what gives the product of rows of weights, on the device and by NumPy.
        parts_of_row: outputs are sums over parts of a row, so many of them.

    Raises EnvironmentFault where a sample differs, or the device's memory does not suffice.
    """
    k = w.shape[1] // fmt.block_bytes * fmt.block_size
    step = device.rows(k, outputs)
    parts: list[Product] = []
    with np.errstate(all="ignore"), device.faults():
        for start in range(0, len(w), step):
            part = w[start : start + step]
            rows = device.put(part)
            if flushes(fmt, rows):
                parts.append(here(part).placed(device.put))
                continue
            made = there(rows)
            drawn = device.sample(len(part))
            if len(drawn):
                at = device.put(drawn)
                compare_blocks(fmt, rows[at], part[drawn])
                of_drawn = made.placed(lambda of, at=at: get(of[:, at]))  # type: ignore[misc]
                _compare(semantics, fmt, of_drawn, here(part[drawn]), k // parts_of_row)
            parts.append(made)
    return parts[0] if len(parts) == 1 else concatenated(parts)


def flushes(fmt: BlockFormat, rows: Array) -> bool:
    """Whether arithmetic in float32 meets numbers below its normal ones, which a device takes for zero. Only scales and
    minima may be such: codes are integers, and no format's values lie closer to each other than its smallest scale."""
    blocks = rows.reshape(len(rows), -1, fmt.block_bytes)
    bits = (seen_as(of, np.uint32) & _MAGNITUDE for of in (fmt.scales(blocks), fmt.minima(blocks)))
    return any(bool(((of != 0) & (of < _NORMAL)).any()) for of in bits)


def compare_blocks(fmt: BlockFormat, rows: Array, w: Bytes) -> None:
    """Compare what the device reads of blocks with what NumPy reads. Raises EnvironmentFault."""
    there, here = (of.reshape(len(w), -1, fmt.block_bytes) for of in (rows, w))
    readers = ("codes", fmt.codes), ("scales", fmt.scales), ("minima", fmt.minima), ("values", fmt.decode)
    for what, read in readers:
        if not _same(get(read(there)), read(here)):
            raise _differs(f"{what} of {fmt.name}")


def _compare(semantics: Semantics, fmt: BlockFormat, there: Product, here: Product, k: int) -> None:
    """Compare rows of the device's product with the same ones of NumPy's. Raises EnvironmentFault."""
    what = _what(semantics, fmt)
    off = compare_sums(semantics, fmt, there.exact, here, k, k // term_values(fmt))
    if not _near(there.bound, here.bound, 2.0**-40 * here.bound):
        raise _differs(f"bounds {what}")
    if not _near(there.spread, here.spread, UNIT_ROUNDOFF * k**0.5 * off + 2.0**-40 * here.spread):
        raise _differs(f"spreads {what}")
    if here.ordered is not None and (there.ordered is None or not _same(there.ordered, here.ordered)):
        raise _differs(f"sums in a declared order {what}")


def compare_sums(
    semantics: Semantics, fmt: BlockFormat, there: Doubles, here: Product, k: int, nb: int
) -> Doubles:  # fmt: skip
    """Compare the device's exact sums [M, n] of K values in nb terms with NumPy's product. Returns how far from each
    other they may be. Raises EnvironmentFault."""
    added = k if semantics.term.of_values else 2 * nb if semantics.uses_sum(fmt) or fmt.has_min else nb
    size = here.bound / IN_FLOAT32.growth(added) * (1 + _FORMULAS)
    off: Doubles = 2 * (k + nb + EXTRA_ROUNDINGS) * 2.0**-53 * size
    if not _near(there, here.exact, off):
        raise _differs(f"products in float64 {_what(semantics, fmt)} (is it set to reduced precision?)")
    return off


def _what(semantics: Semantics, fmt: BlockFormat) -> str:
    return f"of {fmt.name} by the definition {semantics.name}"


def _same(there: npt.NDArray[np.generic], here: npt.NDArray[np.generic]) -> bool:
    """Bit for bit; any two NaN are the same."""
    if there.dtype != here.dtype or there.shape != here.shape:
        return False
    if here.dtype.kind != "f":
        return bool((there == here).all())
    words = f"u{here.dtype.itemsize}"
    same = np.ascontiguousarray(there).view(words) == np.ascontiguousarray(here).view(words)
    return bool((same | (np.isnan(there) & np.isnan(here))).all())


def _near(there: npt.NDArray[np.float64], here: npt.NDArray[np.float64], off: npt.NDArray[np.float64]) -> bool:
    """Within `off`; what is not finite, in both."""
    finite = np.isfinite(here)
    near = np.abs(there - here) <= off
    return there.shape == here.shape and bool(np.where(finite, near, ~np.isfinite(there)).all())


def _differs(what: str) -> EnvironmentFault:
    return EnvironmentFault(f"the GPU computes other numbers than NumPy: {what}")


__all__ = ["compare_blocks", "compare_sums", "computed_on", "flushes"]
