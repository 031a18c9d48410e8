"""The order in which a rung goes through its tensors, and what a budget skips.

Without a budget a rung judges every tensor as it comes. With one, it judges a sample of the whole model:

1. The tensors are put in a random order of the seed; the first of each type and shape come before all others.
2. The graph of llama.cpp determines in which order products come, so a rung goes through it in rounds, each with a
   choice of tensors. The first round has the first tensor of each type and shape, and with it the probes of the type.
   Every later one has all that wait, if the time suffices at the cost of a byte in the round before; otherwise as many
   as half of that time suffices for.
3. When the time is over, further products of the round are not judged. Their tensors are reported as not verified, also
   if another product of the tensor was judged, and so are the tensors that still wait.

So what was judged does not depend on where in the model it is, and a budget that is large enough skips nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..gguf.file import Tensor
from ..llama.evaluations import Evaluation
from ..llama.gemms import Gemm
from ..results.rungs import RungResult
from ..support.progress import under_way

if TYPE_CHECKING:
    from .run import Run


@dataclass(frozen=True)
class Round:
    """One way through the graph.

    Args:
        tensors: those that the rung is to judge, by name.
        chosen: those of this round.
        waiting: those of later rounds, in their order.
        done: bytes of the weights of earlier rounds.
        first: no round was before.
    """

    tensors: Mapping[str, Tensor]
    chosen: Set[str]
    waiting: tuple[str, ...] = ()
    done: int = 0
    first: bool = True

    def chooses(self, name: str) -> bool:
        """Whether this round judges a tensor. Vectors, which only the graph knows, are judged in the first round."""
        return name in self.chosen or (self.first and name not in self.tensors)

    def progress(self, run: Run, what: str, capture: Iterable[Gemm | Evaluation]) -> Iterator[Gemm | Evaluation]:
        """The items of a capture, with a bar that counts the bytes of the weights of this round."""
        counted = set[tuple[str, int]]()
        with run.bar(what, sum(t.nbytes for t in self.tensors.values()), "B", self.done) as bar:
            for item in capture:
                of = None if isinstance(item, Evaluation) or item.tensor not in self.chosen else item
                if of is not None:
                    under_way(bar, of.tensor)
                yield item
                if of is not None and (of.tensor, of.first_row) not in counted:
                    counted.add((of.tensor, of.first_row))
                    bar.update(run.bytes_of(of))


def rounds(run: Run, tensors: Mapping[str, Tensor], settled: Set[str]) -> Iterator[Round]:
    """The rounds of a rung.

    Args:
        tensors: those that it is to judge, by name.
        settled: those of which nothing more is to be recorded, as far as that is known when a round ends.
    """
    budget = run.budget
    if not budget.limited:
        yield Round(tensors, tensors.keys())
        return

    def size(names: Iterable[str]) -> int:
        return sum(tensors[name].nbytes for name in names)

    waiting = in_order(tensors, run.options.seed)
    n, done, first = len({kind_of(tensor) for tensor in tensors.values()}), 0, True
    while True:
        chosen, waiting, start = waiting[:n], waiting[n:], budget.clock()
        yield Round(tensors, {*chosen}, tuple(waiting), done, first)
        waiting = [name for name in waiting if name not in settled]
        if not waiting or budget.spent:
            return
        done, first = done + size(chosen), False
        cost, room = (budget.clock() - start) / max(1, size(chosen)), budget.left
        n = len(waiting)
        if size(waiting) * cost > room:
            sizes = np.cumsum([tensors[name].nbytes for name in waiting])
            n = max(1, int(np.searchsorted(sizes * cost, room / 2, side="right")))


def leave(run: Run, result: RungResult, tensors: Mapping[str, Tensor], names: Set[str]) -> None:
    """Record what the budget skipped, the tensors first."""
    for name in [*(name for name in tensors if name in names), *sorted(names - tensors.keys())]:
        result.leave(name, run.budget.words)


def each(run: Run, what: str, tensors: Mapping[str, Tensor], result: RungResult) -> Iterator[Tensor]:
    """The tensors, with a bar. What the budget does not suffice for is recorded."""
    names = in_order(tensors, run.options.seed) if run.budget.limited else list(tensors)
    skipped = list[str]()
    with run.bar(what, sum(t.nbytes for t in tensors.values()), "B") as bar:
        for i, name in enumerate(names):
            if run.budget.spent:
                skipped = names[i:]
                break
            under_way(bar, name)
            yield tensors[name]
            bar.update(tensors[name].nbytes)
    leave(run, result, tensors, {*skipped})


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
