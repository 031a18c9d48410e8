"""Containers for the contents of a file. Their memory is limited by a `Budget`, however large the file is.

A file of 100 MB can hold 12 million strings, 5 million keys or 3 million tensors. A Python object takes 50 bytes or
more, so one object per field would take 30 times the size of the file. A file that reaches all limits at once takes 300
MB (measured).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from struct import Struct
from typing import overload

import numpy as np
import numpy.typing as npt

from ..support.errors import MalformedFile
from .mapped import Mapped
from .records import KINDS, Range

MAX_KEYS = 1 << 16  # known models have fewer than 100
MAX_TENSORS = 1 << 17  # a mixture of experts with a tensor for each expert has some 75,000
MAX_KEY_BYTES = 8 << 20
MAX_NESTED = 1 << 14  # no known model has any
MAX_STRINGS = 1 << 24  # known vocabularies have 256,000 tokens and twice as many merges
MAX_HELD = 64 << 20  # 256,000 tokens with their scores, types and merges take 13 MB

#: The offset of every 64th string of an array is kept.
STRIDE = 64

_U64 = Struct("<Q")
_KIND_NUMBERS = {kind: number for number, kind in enumerate(KINDS)}
_INFO_KINDS = bytes(_KIND_NUMBERS[kind] for kind in ("tensor name", "dimensions", "type", "offset"))


@dataclass
class Budget:
    """Memory that all parts of one model together may still use.

    Args:
        keys, tensors: number of each.
        key_bytes: bytes of all keys' names.
        nested: arrays within arrays.
        strings: elements of all arrays of strings.
        held: bytes of values that are copied. Further values stay in the file and are read from there.
    """

    keys: int = MAX_KEYS
    tensors: int = MAX_TENSORS
    key_bytes: int = MAX_KEY_BYTES
    nested: int = MAX_NESTED
    strings: int = MAX_STRINGS
    held: int = MAX_HELD

    def hold(self, nbytes: int) -> bool:
        """Return whether `nbytes` can be kept. If so, they are subtracted from the budget."""
        if nbytes > self.held:
            return False
        self.held -= nbytes
        return True

    def share(self, n: int) -> Budget:
        """Return a budget of 1/n of each limit."""
        return Budget(**{name: value // n for name, value in asdict(self).items()})

    def spend(self, before: Budget, after: Budget) -> bool:
        """Return whether a part that used `before` minus `after` can be kept. If so, its use is subtracted."""
        left = {name: value - getattr(before, name) + getattr(after, name) for name, value in asdict(self).items()}
        if min(left.values()) < 0:
            return False
        for name, value in left.items():
            setattr(self, name, value)
        return True


class ByteMap(Sequence[Range]):
    """The byte ranges of a file, ascending. They are stored as columns; a `Range` is made on access."""

    def __init__(self) -> None:
        self._starts = array("Q")
        self._stops = array("Q")
        self._kinds = bytearray()
        self._owners: list[str] = []
        self._notes: list[object] = []

    def add(self, start: int, stop: int, kind: str, owner: str = "", note: object = "") -> None:
        """Append a range. A note that is not a str is converted on access: dimensions to "2 x 3"."""
        self._starts.append(start)
        self._stops.append(stop)
        self._kinds.append(_KIND_NUMBERS[kind])
        self._owners.append(owner)
        self._notes.append(note)

    def add_info(
        self, start: int, dimensions: int, stop: int, name: str, shape: tuple[int, ...], type_name: str, offset: int
    ) -> None:
        """Append the four ranges of a tensor's description.

        They are its name from byte `start`, its dimensions from byte `dimensions`, its type, and its offset up to byte
        `stop`.
        """
        self._starts.extend((start, dimensions, stop - 12, stop - 8))
        self._stops.extend((dimensions, stop - 12, stop - 8, stop))
        self._kinds += _INFO_KINDS
        self._owners += (name, name, name, name)
        self._notes += ("", shape, type_name, offset)

    def columns(self) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64], npt.NDArray[np.uint8]]:
        """Return starts and stops, uint64[n], and the indices of the kinds in `KINDS`, uint8[n]."""
        starts, stops = (np.frombuffer(of.tobytes(), np.uint64) for of in (self._starts, self._stops))
        return starts, stops, np.frombuffer(bytes(self._kinds), np.uint8)

    def sizes(self) -> dict[str, int]:
        """Return the bytes that each kind of range owns."""
        starts, stops, kinds = self.columns()
        return {KINDS[k]: int((stops - starts)[kinds == k].sum()) for k in np.unique(kinds).tolist()}

    def breaks(self, size: int) -> list[tuple[int, int]]:
        """Return the breaks in the map, as pairs of bytes: the end of earlier ranges, and the start of the next.

        The last range must end at byte `size`. A correct map has no breaks.
        """
        starts, stops, _ = self.columns()
        reached = np.concatenate([np.zeros(1, np.uint64), np.maximum.accumulate(stops)])
        starts = np.append(starts, np.uint64(size))
        wrong = np.flatnonzero(starts != reached)
        return list(zip(reached[wrong].tolist(), starts[wrong].tolist(), strict=True))

    def __len__(self) -> int:
        return len(self._starts)

    @overload
    def __getitem__(self, index: int) -> Range: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Range, ...]: ...
    def __getitem__(self, index: int | slice) -> Range | tuple[Range, ...]:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(len(self))))
        note = self._notes[index]
        if isinstance(note, tuple):
            note = " x ".join(map(str, note))
        kind = KINDS[self._kinds[index]]
        return Range(self._starts[index], self._stops[index], kind, self._owners[index], str(note))


class Strings(Sequence[str]):
    """The strings of an array, decoded on access. Bytes that are not UTF-8 become surrogates.

    It equals any sequence of the same strings, such as a list.
    """

    __hash__ = None  # type: ignore[assignment]  # unhashable like a list
    __slots__ = ("_count", "_index", "_raw")

    def __init__(self, raw: bytes | memoryview, count: int, index: array[int]) -> None:
        """
        Args:
            raw: the elements as the file holds them: `count` times a length and that many bytes.
            index: offsets in `raw` of the elements 0, STRIDE, 2·STRIDE, …
        """
        self._raw = raw
        self._count = count
        self._index = index

    def __len__(self) -> int:
        return self._count

    def _from(self, first: int) -> Iterator[tuple[int, int]]:
        """Yield start and stop in `raw` of each string from number `first` on."""
        raw, size = self._raw, len(self._raw)
        at = self._index[first // STRIDE] if first < self._count else size
        for number in range(first - first % STRIDE, self._count):
            stop = at + 8
            if stop <= size:
                stop += _U64.unpack_from(raw, at)[0]
            if stop > size:  # the parser checked this, so the file has changed
                raise MalformedFile(f"element {number} of an array of strings has changed since the file was opened")
            if number >= first:
                yield at + 8, stop
            at = stop

    def __iter__(self) -> Iterator[str]:
        return (str(self._raw[start:stop], "utf-8", "surrogateescape") for start, stop in self._from(0))

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            start, stop, step = index.indices(self._count)
            if step == 1:
                spans = islice(self._from(start), max(stop - start, 0))
                return [str(self._raw[at:end], "utf-8", "surrogateescape") for at, end in spans]
            return [self[i] for i in range(start, stop, step)]
        if not -self._count <= index < self._count:
            raise IndexError(f"string {index} of {self._count}")
        start, stop = next(self._from(index % self._count))
        return str(self._raw[start:stop], "utf-8", "surrogateescape")

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str) or not isinstance(other, Sequence):
            return NotImplemented
        if isinstance(other, Strings):
            return self._count == other._count and self._raw == other._raw
        return len(self) == len(other) and all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    def __repr__(self) -> str:
        return f"<{self._count} strings>"


class Metadata(Mapping[str, object]):
    """The values by key. Values that are not held in memory are read from the file, which must be complete and open.

    Args:
        mapped: the file.
        values: keyed by key, in the file's order.
        borrowed: the keys of the values that are views of the file.
    """

    def __init__(self, mapped: Mapped, values: Mapping[str, object], borrowed: Iterable[str] = ()) -> None:
        self._mapped = mapped
        self._values = values
        self._borrowed = frozenset(borrowed)

    def __getitem__(self, key: str) -> object:
        """Return a value.

        For a borrowed one, raises MalformedFile if the file has shrunk and ValueError if it was closed.
        """
        value = self._values[key]
        if key in self._borrowed:
            self._mapped.read()
        return value

    def __contains__(self, key: object) -> bool:
        return key in self._values

    @property
    def borrows(self) -> bool:
        """Whether a value is a view of the file."""
        return bool(self._borrowed)

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"<{len(self)} keys: {', '.join(map(repr, islice(self, 20)))}{', …' if len(self) > 20 else ''}>"
