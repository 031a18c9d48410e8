"""Weights on a device: blocks are read once, compared with NumPy's reading, and cached for further products.

A device reads codes, scales and minima in many small steps, most of which cost a call and no time on the GPU. A matrix
that was read takes some 1.5 bytes a value, so a device caches it while there is room (`Device.kept`), and products of
the same weights with other activations start from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..formats.block import BlockFormat
from ..support.arrays import Array, get, seen_as
from ..support.errors import EnvironmentFault
from .device import Device
from .values import by_term, term_values

Bytes = npt.NDArray[np.uint8]

_NORMAL, _MAGNITUDE = np.uint32(0x00800000), np.uint32(0x7FFFFFFF)
#: Bytes that are cached for a value, besides two numbers of 8 bytes for each term.
_OF_CODE = 1


@dataclass(frozen=True)
class Placed:
    """Rows of weights on a device.

    Args:
        codes: as stored, int8 or uint8[n, blocks, block size].
        scales, minima: float64[n, nb].
    """

    codes: Array
    scales: Array
    minima: Array

    def __len__(self) -> int:
        return len(self.codes)

    def rows(self, start: int, stop: int) -> Placed:
        """Return some of the rows."""
        return Placed(self.codes[start:stop], self.scales[start:stop], self.minima[start:stop])

    def taken(self, numbers: Array) -> Placed:
        """Return the rows with these numbers, an array on the device."""
        return Placed(self.codes[numbers], self.scales[numbers], self.minima[numbers])


def parts(
    device: Device, fmt: BlockFormat, w: Bytes, step: int, of_blocks: bool
) -> Iterator[tuple[int, Bytes, Array | Placed | None]]:
    """Yield weights uint8[N, row bytes] with their copy on a device, `step` rows at a time: (first row, rows, copy).

    The copy is None if the device would flush their scales to zero, so that NumPy must compute their product.

    Args:
        of_blocks: yield codes, scales and minima; otherwise the bytes.

    Raises EnvironmentFault if the device reads blocks differently from NumPy.
    """
    whole = None
    if of_blocks:
        numbers = 16 * (fmt.block_size // term_values(fmt))
        blocks = w.shape[1] // fmt.block_bytes
        nbytes = len(w) * blocks * (_OF_CODE * fmt.block_size + numbers)
        origin = device.origin(fmt.name, w)
        if origin is not None:
            of, which = origin
            whole = device.kept(fmt.name, w, nbytes, lambda: of.taken(device.put(which)))
        else:
            whole = device.kept(fmt.name, w, nbytes, lambda: _read_all(device, fmt, w))
    for start in range(0, len(w), step):
        part = w[start : start + step]
        if whole is not None:
            yield start, part, whole.rows(start, start + len(part))
        else:
            there = _put(device, fmt, part)
            yield start, part, _read(fmt, there) if of_blocks and there is not None else there


def _put(device: Device, fmt: BlockFormat, part: Bytes) -> Array | None:
    """Copy the bytes to the device and compare a sample; None if it would flush scales to zero."""
    rows = device.put(part)
    if flushes(fmt, rows):
        return None
    drawn = device.sample(len(part), read=True)
    if len(drawn):
        compare_blocks(fmt, rows[device.put(drawn)], part[drawn])
    return rows


def _read(fmt: BlockFormat, rows: Array) -> Placed:
    blocks = rows.reshape(len(rows), -1, fmt.block_bytes)
    scales, minima = (by_term(fmt, read(blocks))[:, 0].T for read in (fmt.scales, fmt.minima))
    return Placed(fmt.codes(blocks), scales, minima)


def _read_all(device: Device, fmt: BlockFormat, w: Bytes) -> Placed | None:
    """Read all rows, as many at a time as the device computes with; None if it would flush scales to zero."""
    step, made = device.rows(w.shape[1] // fmt.block_bytes * fmt.block_size, 0), list[Placed]()
    for start in range(0, len(w), step):
        rows = _put(device, fmt, w[start : start + step])
        if rows is None:
            return None
        made.append(_read(fmt, rows))
    if len(made) == 1:
        return made[0]
    return Placed(*(np.concatenate([getattr(of, name) for of in made]) for name in ("codes", "scales", "minima")))


def flushes(fmt: BlockFormat, rows: Array) -> bool:
    """Return whether float32 arithmetic meets subnormal numbers, which a device may flush to zero.

    Only scales and minima may be such: codes are integers, and no format's values lie closer to each other than its
    smallest scale.
    """
    blocks = rows.reshape(len(rows), -1, fmt.block_bytes)
    bits = (seen_as(of, np.uint32) & _MAGNITUDE for of in (fmt.scales(blocks), fmt.minima(blocks)))
    return any(bool(((of != 0) & (of < _NORMAL)).any()) for of in bits)


def compare_blocks(fmt: BlockFormat, rows: Array, w: Bytes) -> None:
    """Compare the device's reading of blocks with NumPy's. Raises EnvironmentFault."""
    there, here = (of.reshape(len(w), -1, fmt.block_bytes) for of in (rows, w))
    readers = ("codes", fmt.codes), ("scales", fmt.scales), ("minima", fmt.minima), ("values", fmt.decode)
    for what, read in readers:
        if not same(get(read(there)), read(here)):
            raise differs(f"{what} of {fmt.name}")


def same(there: npt.NDArray[np.generic], here: npt.NDArray[np.generic]) -> bool:
    """Return whether arrays are equal bit for bit; any two NaN are equal."""
    if there.dtype != here.dtype or there.shape != here.shape:
        return False
    if here.dtype.kind != "f":
        return bool((there == here).all())
    words = f"u{here.dtype.itemsize}"
    same = np.ascontiguousarray(there).view(words) == np.ascontiguousarray(here).view(words)
    return bool((same | (np.isnan(there) & np.isnan(here))).all())


def differs(what: str) -> EnvironmentFault:
    """Return the error for a device whose numbers are not NumPy's."""
    return EnvironmentFault(f"the GPU computes other numbers than NumPy: {what}")
