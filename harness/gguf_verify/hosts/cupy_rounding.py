"""Float32 arithmetic on CuPy arrays with one rounding, or none, and without flushing: `support.arrays.Rounding`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from ..support.arrays import Array
from ..support.paths import kernel_root
from .base import Host

_FILE, _THREADS = "oracle/rounding.cu", 256


class CupyRounding:
    """`support.arrays.Rounding` by kernels that are compiled without flushing to zero and without contraction."""

    def __init__(self, host: Host) -> None:
        import cupy

        self._cupy, self._host = cupy, host

    @cached_property
    def _kernels(self) -> dict[str, Any]:
        """The kernels, compiled at first use, since a host that only runs kernels needs none of them."""
        entries = "chain", "multiply_adds", "to_float32", "widened"
        return {entry: self._host.load(kernel_root(), _FILE, entry, {}) for entry in entries}

    def chain(self, streams: Sequence[Array], start: Array) -> Array:
        """Return float32[…] of one or two streams of float64[steps, …]."""
        held = [self._cupy.ascontiguousarray(stream) for stream in streams]
        begin = self._cupy.ascontiguousarray(start)
        out = self._cupy.empty(held[0].shape[1:], np.float32)
        numbers = np.int32(len(held)), np.int32(len(held[0])), np.int64(out.size)
        return self._launched("chain", out, held[0], held[-1], begin, out, *numbers)

    def multiply_adds(self, a: Array, w: Array) -> Array:
        """Return float32[M, n] of float32[K, M] and float32[K, n]."""
        a, w = self._cupy.ascontiguousarray(a), self._cupy.ascontiguousarray(w)
        (k, m), n = a.shape, w.shape[1]
        out = self._cupy.empty((m, n), np.float32)
        return self._launched("multiply_adds", out, a, w, out, np.int32(k), np.int32(m), np.int32(n))

    def to_float32(self, values: Array) -> Array:
        """Round float64[…] to float32, as float64."""
        return self._each("to_float32", values)

    def widened(self, values: Array) -> Array:
        """Convert float32[…] to float64."""
        return self._each("widened", values)

    def _each(self, entry: str, values: Array) -> Array:
        held = self._cupy.ascontiguousarray(values)
        out = self._cupy.empty(held.shape, np.float64)
        return self._launched(entry, out, held, out, np.int64(out.size))

    def _launched(self, entry: str, out: Array, *args: Any) -> Array:
        if out.size:
            self._kernels[entry]((-(-out.size // _THREADS), 1, 1), (_THREADS, 1, 1), args)
        return out
