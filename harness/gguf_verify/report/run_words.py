"""Facts of a run in the words that several reports use."""

from __future__ import annotations

from collections.abc import Mapping

from ..results.failures import Failure
from ..results.margins import Worst
from ..results.report import Report
from ..results.rungs import RungResult
from .shades import rank


def counts(of: Mapping[str, int]) -> str:
    """Counts by kind, without those that are zero."""
    return ", ".join(f"{n:,} {kind}" for kind, n in of.items() if n)


def checked(rung: RungResult) -> str:
    """What a rung checked, what it is about first; "" for nothing."""
    kinds = sorted(rung.checked, key=lambda kind: kind not in rung.substance)
    return counts({kind: rung.checked[kind] for kind in kinds})


def numbers(failure: Failure) -> str:
    """The numbers of a failure; "" where it is about none."""
    if failure.got is None or failure.expected is None:
        return ""
    words = f"got {failure.got:.9g}, expected {failure.expected:.9g}"
    words += "" if failure.bound is None else f", bound {failure.bound:.3g}"
    return words + ("" if failure.utilisation is None else f", utilisation {failure.utilisation:.3g}")


def worst(report: Report, of_kernel: bool = True) -> tuple[Worst, RungResult] | None:
    """The largest utilisation of the kernel, or of llama.cpp, in any rung; None where no bound was judged."""
    found = [(w, rung) for rung in report.rungs for w in rung.worst.values() if w.of_kernel is of_kernel]
    return max(found, key=lambda one: rank(one[0].utilisation), default=None)


def ends(numbers: str) -> str:
    """Ranges, such as those of an envelope, without most of those between the first and the last."""
    ranges = numbers.split(", ")
    if len(ranges) <= 3:
        return numbers or "none"
    return f"{ranges[0]}, {ranges[1]}, … {ranges[-1]} ({len(ranges)} ranges)"
