"""Cache of a device for data derived from weights, from one product to the next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
T = TypeVar("T")
_Key = tuple[str, int, tuple[int, ...], tuple[int, ...]]

#: Most bytes that are cached for weights that may change.
_LAST = 1 << 26


class Kept:
    """Data derived from weights, cached while there is room.

    Only read-only weights, which lie in a model's file, are cached; of others, only the last ones.

    Args:
        most: bytes.
    """

    def __init__(self, most: int) -> None:
        self._most, self._held = most, 0
        #: Identity of weights (`_key`) → the weights, so that no other array gets their address, and the derived data.
        self._of_files: dict[_Key, tuple[Bytes, object]] = {}
        self._last: tuple[Bytes, str, object] | None = None
        self._taken: tuple[Bytes, Bytes, npt.NDArray[np.intp]] | None = None

    def take_from(self, rows: Bytes, w: Bytes, numbers: npt.NDArray[np.intp]) -> None:
        """See `semantics.device.Device.take_from`."""
        self._taken = rows, w, numbers

    def origin(self, kind: str, rows: Bytes) -> tuple[Any, npt.NDArray[np.intp]] | None:
        """See `semantics.device.Device.origin`."""
        taken = self._taken
        if taken is None or taken[0] is not rows or taken[1].flags.writeable:
            return None
        held = self._of_files.get(_key(kind, taken[1]))
        return None if held is None or held[1] is None else (held[1], taken[2])

    def of(self, kind: str, w: Bytes, nbytes: int, make: Callable[[], T | None]) -> T | None:
        """See `semantics.device.Device.kept`."""
        if w.flags.writeable:
            return self._of_moment(kind, w, nbytes, make)
        key = _key(kind, w)
        if key not in self._of_files:
            if self._held + nbytes > self._most:
                return None
            made = make()
            self._of_files[key] = w, made
            self._held += 0 if made is None else nbytes
        return cast(T | None, self._of_files[key][1])

    def _of_moment(self, kind: str, w: Bytes, nbytes: int, make: Callable[[], T | None]) -> T | None:
        last = self._last
        if last is not None and last[0] is w and last[1] == kind:
            return cast(T, last[2])
        made = make() if nbytes <= _LAST else None
        self._last = None if made is None else (w, kind, made)
        return made


def _key(kind: str, w: Bytes) -> _Key:
    """Return type, address, shape and strides.

    Address and shape do not suffice: a column of blocks begins at the same address as a row.
    """
    return kind, int(w.ctypes.data), w.shape, w.strides
