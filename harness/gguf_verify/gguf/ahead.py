"""Ahead: later parts of a split model, several parsed at a time before the loop that joins them needs them.

The findings of a model must not depend on which part was read first. So a part that was parsed ahead is used only if
the loop would have parsed it to the same record; the loop parses every other part itself, in turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from ..support.errors import HarnessError
from .file import GgufFile
from .parser import parse
from .storage import Budget, Metadata

#: The number of parts parsed at the same time, and of parts that are parsed and not yet taken.
MOST_AT_ONCE = 8
#: Bytes of a part that hold its header, unless it describes more than 10,000 tensors.
_HEADER = 1 << 20


class _Parsed(NamedTuple):
    file: GgufFile
    left: Budget


class Ahead:
    """Parses the next parts in the background. Leaving the context closes those that were not taken.

    Args:
        paths: paths of all parts, in order; the first is not parsed.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = paths
        # All parts that are parsed ahead use together at most the memory of one model.
        self._share = Budget().share(MOST_AT_ONCE)
        self._pool = ThreadPoolExecutor(MOST_AT_ONCE)
        self._started: deque[tuple[int, Future[_Parsed | None]]] = deque()
        self._next = 1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._drop()
        self._pool.shutdown()

    def take(self, number: int, budget: Budget) -> GgufFile | None:
        """Return part `number`, charged to `budget`; None if the caller must parse it. Parts are taken in order."""
        while self._next < min(number + MOST_AT_ONCE, len(self.paths)):
            self._started.append((self._next, self._pool.submit(self._parse, self._next)))
            self._next += 1
        if not self._started or self._started[0][0] != number:
            return None
        parsed = self._started.popleft()[1].result()
        if parsed is None:
            return None
        # A smaller budget makes no difference if it suffices: then nothing is refused and nothing is a view of the
        # file.
        assert isinstance(parsed.file.metadata, Metadata)
        borrows = parsed.file.metadata.borrows
        if parsed.file.refused is not None or borrows or not budget.spend(self._share, parsed.left):
            parsed.file.close()
            return None
        return parsed.file

    def _parse(self, number: int) -> _Parsed | None:
        left = self._share.share(1)
        try:
            return _Parsed(parse(self.paths[number], number, left, _HEADER), left)
        except HarnessError:  # reported when the loop parses this part
            return None

    def _drop(self) -> None:
        for _, future in self._started:
            if not future.cancel() and (parsed := future.result()) is not None:
                parsed.file.close()
        self._started.clear()
