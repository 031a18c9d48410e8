"""What gave an exhibit away: the check that fails first, and the branch that only its call takes.

A verification that ends at its first failure is observed call by call: after each one, the kernel's process tells
which lines it has executed and which ways its branches have taken (`Kernel.executed`: GCC's counters, or the trace of a
kernel in Python). What the first wrong call executes and no call before it did is the branch that gave the bug away.
The calls before it were judged and are right.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gguf_verify.hosts.base import Written
from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.kernels.comparisons import in_words
from gguf_verify.kernels.foreign.opening import open_foreign
from gguf_verify.kernels.foreign.process import ForeignKernel
from gguf_verify.kernels.launches import SparseProduct
from gguf_verify.results.calls import Call
from gguf_verify.results.coverage import Execution
from gguf_verify.results.failures import Failure
from gguf_verify.results.options import Options
from gguf_verify.results.report import Report
from gguf_verify.rungs.calls import CURRENT
from gguf_verify.verification import verify
from tests.meta.museum.collection import GivenAway, Why
from tests.meta.museum.verdicts import RUNGS

#: Most branches that are listed.
MOST_LISTED = 3
#: A line of a file, number of the branch on it (-1: the line itself), and the way that it took.
Way = tuple[str, int, int, int]

#: Kind of call → its name on the page.
_CALLS = {
    "block": "a single block of K",
    "own": "a product of the model",
    "shared": "a product of the model, given llama.cpp's activation bytes",
    "other-m": "the model's matrix with {m} tokens",
    "again": "the model's matrix with {m} tokens, called many times",
    "cut": "a product with a row and a block fewer",
    "quantizer": "the kernel's quantizer",
    "every-size": "activations of every size",
    "probe": "M = {m}, N = {n}, K = {k}",
    "schedule": "M = {m}, N = {n}, K = {k} in a checked build or another order of threads",
    "grid": "the launches of large products",
    "index": "a large product",
    "routing": "experts by ids",
    "graft": "a product within llama.cpp's graph",
    "reference": "llama.cpp's own product",
    "tensor": "a tensor of the model",
}
_SIZES = re.compile(r"M=(\d+), N=(\d+), K=(\d+)")
_BLOCK = re.compile(r"thread block ([\d,]+)")
_OTHER_ORDER = re.compile(r"another schedule \((?!checked)")
_LINE = re.compile(r"[\w.]+\.(?:cuh?|py):\d+")
_REASON = re.compile(r"(?:tokens|bytes|K=\d+) \((.+)\)$|K=\d+ \((.+?)\): ")
_NEXT_PLACE = re.compile(r" and (?=[\w./]+:\d+: )")
_OF_COMPARISONS = re.compile(r"behind a branch that no correct call takes: (.+?)(?:\. Fix: .*)?$")


@dataclass(frozen=True)
class Made:
    """A call.

    Args:
        call: the rung's name for it, if it gives one.
        shape: M, N and K.
        block: the thread block that ran alone.
        scheduled: it ran under a schedule.
        first_taken: the ways that no call before it took; None if they were not counted.
    """

    call: Call | None
    shape: tuple[int, ...]
    block: int | None
    scheduled: bool
    first_taken: frozenset[Way] | None


class Watched(ForeignKernel):
    """A foreign kernel that notes what each of its calls executes."""

    made: list[Made]
    _taken: set[Way]

    @classmethod
    def watching(cls, kernel: ForeignKernel) -> Watched:
        """Take an open kernel's place; this closes its processes."""
        watched = cls.__new__(cls)
        watched.__dict__.update(kernel.__dict__, made=[], _taken=set())  # copies for schedules share both
        return watched

    def called(
        self, products: Any, fmt: str, operands: Any, names: Mapping[str, int], *others: Any, **more: Any
    ) -> Any:
        try:
            return super().called(products, fmt, operands, names, *others, **more)
        finally:
            self._note(tuple(names[name] for name in "MNK"), None)

    def alone(self, product: SparseProduct, number: int) -> Written:
        try:
            return super().alone(product, number)
        finally:
            self._note((product.m, product.n, product.k), number)

    def _note(self, shape: tuple[int, ...], block: int | None) -> None:
        schedule, first = self._schedule, None
        if schedule is None or not schedule.checked:
            execution = self.executed()
            first = frozenset(ways_of(execution)) - self._taken if execution.files else None
            self._taken.update(first or ())
        self.made.append(Made(CURRENT.get(), shape, block, schedule is not None, first))


def ways_of(execution: Execution) -> Iterator[Way]:
    """Yield the lines that were executed, and the ways that branches took."""
    for file, executed in execution.files.items():
        yield from ((file, line, -1, 0) for line, ran in executed.lines.items() if ran)
        for (line, number), ways in executed.branches.items():
            yield from ((file, line, number, way) for way, took in enumerate(ways) if took)


def given_away(kernel: Path, model: Path, options: Options) -> GivenAway:
    """Verify FILE:gemm on the CPU host until its first failure, and say what gave it away. Raises HarnessError."""
    watched = Watched.watching(open_foreign(f"{kernel}:gemm", CpuHost(1)))
    try:
        report = verify(model, watched, CpuHost(1), RUNGS, replace(options, exit_first=True))
        return explained(report, watched.made, Code.of(watched))
    finally:
        watched.close()


@dataclass(frozen=True)
class Code:
    """The author's files: their texts, and FILE:LINE of each line with code."""

    texts: Mapping[str, str]
    lines: frozenset[str]

    @classmethod
    def of(cls, kernel: ForeignKernel) -> Code:
        files = kernel.executed().files
        return cls(kernel.texts, frozenset(f"{file}:{line}" for file, of in files.items() for line in of.lines))


def explained(report: Report, made: Sequence[Made], code: Code) -> GivenAway:
    """What gave a kernel away.

    Args:
        report: of a verification that ended at the first failure.
        made: its calls.
    """
    first = next(iter(report.failures), None)
    if first is None:
        said = (*report.limits, *(left.why for rung in report.rungs for left in rung.unverified), "nothing")
        return GivenAway(rung="", check=said[0].partition(". ")[0], why="no call")
    rung, failure = first
    at = place_of(failure, made)
    right = [one.first_taken for one in made[:at] if one.first_taken is not None]
    why, places = first_taken(failure, None if at is None else made[at].first_taken, right, code.lines)
    branches = tuple(in_words(place, code.texts) for place in places[:MOST_LISTED])
    if not branches and (compared := compared_of(report)):
        why, branches = "branch", compared
    return GivenAway(rung=rung.name, check=check_of(failure), why=why, branches=branches, right=len(right))


def place_of(failure: Failure, made: Sequence[Made]) -> int | None:
    """The place of the first call that a failure is about."""
    call, sizes, block = failure.call, _SIZES.search(failure.what), _BLOCK.search(failure.what)
    if call is not None and call.kind == "schedule":  # of which only the ordinary calls are made `calling`
        same = [i for i, one in enumerate(made) if one.scheduled and one.shape == (call.m, call.n, call.k)]
        if _OTHER_ORDER.search(failure.what):  # the last one: those before it, and the checked build, gave the same
            return next((i for i in reversed(same) if made[i].first_taken is not None), None)
    elif call is not None and any(one.call == call for one in made):
        same = [i for i, one in enumerate(made) if one.call == call]
    elif sizes is not None:
        shape, number = tuple(map(int, sizes.groups())), block and int(block[1].replace(",", ""))
        same = [i for i, one in enumerate(made) if one.shape == shape and number in (None, one.block)]
    else:
        return None
    return next(iter(same), None)


def first_taken(
    failure: Failure, new: frozenset[Way] | None, right: Sequence[frozenset[Way]], known: Collection[str]
) -> tuple[Why, tuple[str, ...]]:
    """What a wrong call takes that none of the right calls before it takes: FILE:LINE, in the order of the files.

    Args:
        new: the ways that no call before it took; None if it was not counted.
        right: those of each call before it.
        known: FILE:LINE of the lines with code.
    """
    if "which CUDA does not launch" in failure.what:
        return "no call", ()
    if not right:
        return "first call", ()
    if new is None:  # a checked build names the lines of what it finds
        named = {place for place in _LINE.findall(failure.what) if place in known}
        ran = {f"{file}:{line}" for of in right for file, line, number, _ in of if number < 0}
        first = tuple(sorted(named - ran))
        return ("branch" if first else "named lines" if named else "not counted"), first
    places = {(file, line) for file, line, number, _ in new if number >= 0} or {(file, line) for file, line, *_ in new}
    return ("branch" if places else "every line"), tuple(f"{file}:{line}" for file, line in sorted(places))


def compared_of(report: Report) -> tuple[str, ...]:
    """The branches that the diagnosis names: it traces comparisons in wrong and in right outputs of a call."""
    lines = (line for rung in report.rungs if rung.diagnosis is not None for line in rung.diagnosis.lines)
    named = next((found[1] for line in lines if (found := _OF_COMPARISONS.search(line))), None)
    return () if named is None else tuple(_NEXT_PLACE.split(named))


def check_of(failure: Failure) -> str:
    """The failed call in words."""
    call = failure.call
    if call is None:
        return failure.what
    words = _CALLS[call.kind].format(m=call.m, n=call.n, k=call.k)
    if sizes := _SIZES.search(failure.what) if call.kind in ("index", "grid") else None:
        words += f", M = {sizes[1]}, N = {sizes[2]}, K = {sizes[3]}"
    reason = _REASON.search(failure.what.partition(f": {failure.tensor}")[0])
    return f"{words}: {reason[1] or reason[2]}" if reason else words
