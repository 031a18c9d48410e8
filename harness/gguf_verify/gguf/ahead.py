"""Later parts of a split model, parsed ahead of the loop that joins them, several at a time.

What is said of a model must not depend on which part was read first. So a part that was parsed ahead is used only where
the loop would have parsed it to the same record; any other part the loop parses itself, in its turn.
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

#: Parts that are parsed at the same time, and parts that are parsed and not yet asked for.
MOST_AT_ONCE = 8
#: Bytes of a part that hold its header, unless it describes more than 10,000 tensors.
_HEADER = 1 << 20


class _Parsed(NamedTuple):
    file: GgufFile
    left: Budget


class Ahead:
    """Parses the parts that come next. Leaving it closes those that were not taken.

    Args:
        paths: of all parts, in order; the first is not parsed.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = paths
        # All that are parsed ahead take together no more memory than one model may.
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
        """The part of that number, for which `budget` pays; None where the caller has to parse it. Parts are asked for
        in order."""
        while self._next < min(number + MOST_AT_ONCE, len(self.paths)):
            self._started.append((self._next, self._pool.submit(self._parse, self._next)))
            self._next += 1
        if not self._started or self._started[0][0] != number:
            return None
        parsed = self._started.popleft()[1].result()
        if parsed is None:
            return None
        # A smaller budget makes no difference as long as it suffices: then nothing is refused and nothing borrowed.
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
        except HarnessError:  # said when it is this part's turn
            return None

    def _drop(self) -> None:
        for _, future in self._started:
            if not future.cancel() and (parsed := future.result()) is not None:
                parsed.file.close()
        self._started.clear()
