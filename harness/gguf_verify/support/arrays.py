"""One interface to NumPy's arrays and to arrays on a GPU (CuPy).

NumPy dispatches its functions to the library of their arguments (`__array_ufunc__`, `__array_function__`):
`np.repeat(a, 2)` is CuPy's if `a` is. So formulas are written once, with NumPy's names. The array API standard would
need every call spelled differently, and lacks `frexp`, `ldexp` and `nextafter`. This module holds what NumPy does not
dispatch: placing an array on the device of another, and viewing bytes as other numbers. CuPy refuses to mix its arrays
with NumPy's, so every transfer between host and GPU is explicit.

CuPy's own kernels flush float32 numbers below 2^-126 to zero, so steps whose bits matter go through a `Rounding`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast

import numpy as np
import numpy.typing as npt

#: An array of NumPy, or of a library with the same interface.
Array = Any
T = TypeVar("T", bound=npt.NDArray[Any])

#: Size in bytes of the largest table that `beside` caches.
_KEPT = 1 << 16


class Rounding(Protocol):
    """float32 arithmetic with one rounding or none, on the arrays of one library; see `semantics.rounding`."""

    def chain(self, streams: Sequence[Array], start: Array) -> Array:
        """Add the products float64[steps, …] of each stream in turn to `start`, float32[…]."""

    def multiply_adds(self, a: Array, w: Array) -> Array:
        """Return float32[M, n] from float32[K, M] and float32[K, n]."""

    def to_float32(self, values: Array) -> Array:
        """Round float64[…] to float32; the result is float64."""

    def widened(self, values: Array) -> Array:
        """Convert float32[…] to float64."""


@dataclass(frozen=True)
class Library:
    """A library of arrays on a GPU.

    Args:
        module: its module, with `asarray`, `ascontiguousarray` and `asnumpy`.
        rounding: its float32 arithmetic.
    """

    module: Any
    rounding: Rounding


class AddTerms(Protocol):
    """Adds the terms of products of codes to sums in ascending order, with fused multiply-adds of float32."""

    def __call__(self, sums: Array, d_a: Array, d_w: Array, z: Array | None, m_w: Array | None, acc: Array) -> None:
        """Add terms to acc, float32[M, n], which is contiguous.

        Each is fma(d_w·d_a, sum, acc), then fma(m_w, z, acc) if there are both; with z alone, fma(d_w, fma(d_a, sum,
        z), acc).

        Args:
            sums: integers Σ q_w·q_a, float32[terms, M, n].
            d_a, z: float32[terms, M].
            d_w, m_w: float32[terms, n].
        """


#: Array type → library.
_LIBRARIES: dict[type, Library] = {}
#: Tables copied to a GPU: (array type, device, dtype, shape, bytes) → the array there.
_TABLES: dict[tuple[Any, ...], Array] = {}


#: Makes what adds terms to NumPy's arrays, at its first use; its result is None if that is not possible here.
_SUMS: list[Callable[[], AddTerms | None]] = []


def offer_sums(make: Callable[[], AddTerms | None]) -> None:
    """Have `make` return what adds terms to NumPy's arrays."""
    if [make] != _SUMS:
        _SUMS[:] = [make]
        compiled_sums.cache_clear()


@functools.cache
def compiled_sums() -> AddTerms | None:
    """Return what adds terms to NumPy's arrays; None if NumPy does."""
    return _SUMS[0]() if _SUMS else None


def register(kind: type, library: Library) -> None:
    """Register the library of an array type."""
    _LIBRARIES[kind] = library


def library_of(array: Array) -> Library | None:
    """Return the library of an array on a GPU; None for NumPy's."""
    return None if on_host(array) else _LIBRARIES[type(array)]


def on_host(array: Array) -> bool:
    """Whether the array is NumPy's."""
    return isinstance(array, (np.ndarray, np.generic))


def put(values: npt.NDArray[Any], like: Array) -> Array:
    """Copy a NumPy array to the device of `like`."""
    library = library_of(like)
    return values if library is None or not on_host(values) else library.module.asarray(values)


def get(array: Array) -> npt.NDArray[Any]:
    """Return any array as NumPy's."""
    library = library_of(array)
    return cast(npt.NDArray[Any], array if library is None else library.module.asnumpy(array))


def beside(array: Array, table: T) -> T:
    """Return a small table on the device of `array`; it is copied there once."""
    if on_host(array):
        return table
    if table.nbytes > _KEPT:
        return cast(T, put(table, array))
    key = type(array), str(getattr(array, "device", "")), table.dtype.str, table.shape, table.tobytes()
    if key not in _TABLES:
        _TABLES[key] = put(table, array)
    return cast(T, _TABLES[key])


def contiguous(array: Array) -> Array:
    """Return the array in C order, contiguous."""
    library = library_of(array)
    return np.ascontiguousarray(array) if library is None else library.module.ascontiguousarray(array)


def seen_as(array: Array, dtype: npt.DTypeLike) -> Array:
    """View the bytes of the last axis as numbers of another dtype; copies the array if it is not contiguous."""
    return contiguous(array).view(dtype)


def bits_of(packed: Array) -> Array:
    """Unpack uint8[..., n] into bits uint8[..., 8·n], the lowest bit of each byte first."""
    flat = np.unpackbits(contiguous(packed).reshape(-1), bitorder="little")
    return flat.reshape(*packed.shape[:-1], 8 * packed.shape[-1])


def widened(values: Array) -> Array:
    """Convert float32[…] to float64 without flushing subnormal numbers to zero."""
    library = library_of(values)
    return values.astype(np.float64) if library is None else library.rounding.widened(values)
