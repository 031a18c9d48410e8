"""One interface to arrays of NumPy and to those of a library whose arrays lie on a card: CuPy.

NumPy's functions hand their arguments to the library that these belong to (`__array_ufunc__`, `__array_function__`):
`np.repeat(a, 2)` is CuPy's where `a` is. So formulas are written once, with NumPy's names. The array API standard's
namespaces would need every call spelled anew, and have no `frexp`, `ldexp` or `nextafter`. What NumPy does not hand
over is here: to place an array beside another, and to see bytes as other numbers. CuPy refuses to mix its arrays with
NumPy's, so nothing crosses between the machine and the card unseen.

CuPy's own kernels flush float32 numbers below 2^-126 to zero. The steps whose bits matter are a `Rounding`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast

import numpy as np
import numpy.typing as npt

#: An array of NumPy, or of a library that has its interface.
Array = Any
T = TypeVar("T", bound=npt.NDArray[Any])

#: Bytes of the largest table that `beside` keeps.
_KEPT = 1 << 16


class Rounding(Protocol):
    """What is computed in float32 with one rounding, or none, on arrays of one library: see `semantics.rounding`."""

    def chain(self, streams: Sequence[Array], start: Array) -> Array:
        """Products float64[steps, …] of each stream in turn, added to float32[…]."""

    def multiply_adds(self, a: Array, w: Array) -> Array:
        """float32[M, n] of float32[K, M] and float32[K, n]."""

    def to_float32(self, values: Array) -> Array:
        """float64[…] rounded to float32, as float64."""

    def widened(self, values: Array) -> Array:
        """float32[…] as float64."""


@dataclass(frozen=True)
class Library:
    """A library of arrays that lie on a card.

    Args:
        module: has `asarray` and `ascontiguousarray` of its own, and `asnumpy`.
        rounding: its arithmetic in float32.
    """

    module: Any
    rounding: Rounding


#: The type of a library's arrays → the library.
_LIBRARIES: dict[type, Library] = {}
#: Tables that lie on a card: type of arrays, device, type, shape and bytes → the array there.
_TABLES: dict[tuple[Any, ...], Array] = {}


def register(kind: type, library: Library) -> None:
    """From now on arrays of this type are known."""
    _LIBRARIES[kind] = library


def library_of(array: Array) -> Library | None:
    """The library of an array on a card; None for NumPy's."""
    return None if on_host(array) else _LIBRARIES[type(array)]


def on_host(array: Array) -> bool:
    """Whether it is NumPy's."""
    return isinstance(array, (np.ndarray, np.generic))


def put(values: npt.NDArray[Any], like: Array) -> Array:
    """NumPy's array where another one lies."""
    library = library_of(like)
    return values if library is None or not on_host(values) else library.module.asarray(values)


def get(array: Array) -> npt.NDArray[Any]:
    """Any array as NumPy's."""
    library = library_of(array)
    return cast(npt.NDArray[Any], array if library is None else library.module.asnumpy(array))


def beside(array: Array, table: T) -> T:
    """A small table where an array lies; it is copied there once."""
    if on_host(array):
        return table
    if table.nbytes > _KEPT:
        return cast(T, put(table, array))
    key = type(array), str(getattr(array, "device", "")), table.dtype.str, table.shape, table.tobytes()
    if key not in _TABLES:
        _TABLES[key] = put(table, array)
    return cast(T, _TABLES[key])


def contiguous(array: Array) -> Array:
    """The same in the order of C."""
    library = library_of(array)
    return np.ascontiguousarray(array) if library is None else library.module.ascontiguousarray(array)


def seen_as(array: Array, dtype: npt.DTypeLike) -> Array:
    """The bytes of the last axis as numbers of another type; copied where they are not contiguous."""
    return contiguous(array).view(dtype)


def bits_of(packed: Array) -> Array:
    """uint8[..., n] as bits uint8[..., 8·n], the lowest of each byte first."""
    flat = np.unpackbits(contiguous(packed).reshape(-1), bitorder="little")
    return flat.reshape(*packed.shape[:-1], 8 * packed.shape[-1])


def widened(values: Array) -> Array:
    """float32[…] as float64, no number flushed to zero."""
    library = library_of(values)
    return values.astype(np.float64) if library is None else library.rounding.widened(values)
