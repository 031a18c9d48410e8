"""The way of a rung through its tensors: their order, the progress in bytes of weights, and what a budget skips.

Without a budget a rung judges every tensor as it comes. With one, it judges a sample of the whole model:

1. The tensors are put in a random order of the seed; the first of each type and shape come before all others.
2. The graph of llama.cpp says in which order products come, so a rung goes through it in rounds, each with a choice of
   tensors. The first round has the first tensor of each type and shape, and with it the probes of the type. Every later
   one has all that are left, if the time suffices at the cost of a byte in the round before, else as many as half of
   that time suffices for.
3. When the time is over, further products of the round go by without being judged. The tensors that they belong to are
   left, also those of which another product was judged, and so are those of no round: they are named as not verified.

So what was judged does not depend on where in the model it is, and a budget that is large enough leaves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ..gguf.file import Tensor
from ..results.rungs import RungResult
from ..support.progress import under_way

if TYPE_CHECKING:
    from tqdm import tqdm

    from .run import Run

T = TypeVar("T")


class Course:
    """The way of one rung.

    Args:
        tensors: that it is to judge, by name.
    """

    def __init__(self, run: Run, tensors: Mapping[str, Tensor]) -> None:
        self._run, self._tensors, self._budget = run, dict(tensors), run.budget
        #: The graph is gone through again, for tensors that were left until then.
        self.again = False
        self._waiting = in_order(tensors, run.options.seed) if self._budget.limited else []
        #: Tensors of this round, and of all rounds so far.
        self._chosen: set[str] = set()
        self._ever: set[str] = set()
        self._refused: set[str] = set()
        self._settled: set[str] = set()
        self._total, self._done = sum(t.nbytes for t in tensors.values()), 0
        self._bar: tqdm[Any] | None = None
        self._counted: set[tuple[str, int]] = set()
        self._doing = 0

    # ---- products of the graph, in llama.cpp's order -----------------------------------------------------------------

    def through(self, begin: Callable[[], Iterable[T]]) -> Iterator[T]:
        """The items of `begin()`, once for each round."""
        if not self._budget.limited:
            yield from begin()
            return
        kinds = {kind_of(self._tensors[name]) for name in self._waiting}
        chosen, self._waiting = self._waiting[: len(kinds)], self._waiting[len(kinds) :]
        while True:
            self._chosen = {*chosen}
            self._ever |= self._chosen
            start = self._budget.clock()
            yield from begin()
            size = self._size(chosen)
            self._done += size
            self._waiting = [name for name in self._waiting if name not in self._settled]
            if not self._waiting or self._budget.spent:
                break
            chosen = self._next((self._budget.clock() - start) / max(1, size))
            self.again = True
        self._chosen = self._ever

    def _next(self, cost: float) -> list[str]:
        """The tensors of the next round, given the seconds for each byte of weights."""
        n, room = len(self._waiting), self._budget.left
        if self._size(self._waiting) * cost > room:
            sizes = np.cumsum([self._tensors[name].nbytes for name in self._waiting])
            n = max(1, int(np.searchsorted(sizes * cost, room / 2, side="right")))
        chosen, self._waiting = self._waiting[:n], self._waiting[n:]
        return chosen

    def _size(self, names: Iterable[str]) -> int:
        return sum(self._tensors[name].nbytes for name in names)

    def products(self, what: str, capture: Iterable[T]) -> Iterator[T]:
        """The items of a capture, with a bar that counts the bytes of the weights that were taken."""
        self._counted.clear()
        with self._run.bar(what, self._total, "B", self._done) as self._bar:
            for item in capture:
                yield item
                self._bar.update(self._doing)
                self._doing = 0
        self._bar = None

    def takes(self, name: str, first_row: int = 0, nbytes: int | None = None) -> bool:
        """Whether the rung judges a product of a tensor now, or of one of its matrices: the one that begins with that
        row and has that number of bytes. It has then begun."""
        if self._budget.limited:
            if not self.again and name not in self._tensors:  # a vector, of which only the graph knows
                self._chosen.add(name)
                self._ever.add(name)
            if name not in self._chosen:
                return False
            if self._budget.spent:
                self._refused.add(name)
                return False
        if self._bar is not None:
            under_way(self._bar, name)
            if (name, first_row) not in self._counted and name in self._tensors:
                self._counted.add((name, first_row))
                self._doing = self._tensors[name].nbytes if nbytes is None else nbytes
        return True

    def settle(self, names: Iterable[str]) -> None:
        """Mark these as done: everything about them is reported."""
        self._settled |= {*names}

    def leave(self, result: RungResult) -> None:
        """The rung is through: name what the budget left."""
        left = {*self._waiting, *self._refused} - self._settled
        for name in [*(name for name in self._tensors if name in left), *sorted(left - self._tensors.keys())]:
            result.leave(name, self._budget.words)
            self._budget.cut = True

    # ---- tensors in any order ----------------------------------------------------------------------------------------

    def each(self, what: str, result: RungResult) -> Iterator[Tensor]:
        """The tensors, with a bar. What the budget does not suffice for is left."""
        names = self._waiting if self._budget.limited else list(self._tensors)
        with self._run.bar(what, self._total, "B") as bar:
            for i, name in enumerate(names):
                if self._budget.spent:
                    self._waiting = names[i:]
                    break
                under_way(bar, name)
                yield self._tensors[name]
                bar.update(self._tensors[name].nbytes)
            else:
                self._waiting = []
        self.leave(result)


def kind_of(tensor: Tensor) -> tuple[str, tuple[int, ...]]:
    """The kind of a tensor's products."""
    return tensor.type.name, tuple(tensor.shape)


def in_order(tensors: Mapping[str, Tensor], seed: int) -> list[str]:
    """The names in a random order of the seed, the first of each type and shape before all others."""
    names = sorted(tensors)
    drawn = [names[i] for i in np.random.default_rng((3, seed)).permutation(len(names))]
    first = {kind_of(tensors[name]): name for name in reversed(drawn)}
    firsts = [name for name in drawn if first[kind_of(tensors[name])] == name]
    return [*firsts, *(name for name in drawn if first[kind_of(tensors[name])] != name)]
