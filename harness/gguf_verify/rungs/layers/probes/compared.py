"""Probes at the shapes with which a kernel's code compares: its comparisons are observed in single thread blocks."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import partial

from ....formats.tensor_types import WeightFormat
from ....kernels.comparisons import Compared
from ....kernels.launches import Launched, Needs
from ....support.errors import EnvironmentFault, KernelFault
from ....support.text import printable
from ...plan import Probe
from ...run import Run
from ...thread_blocks import dependence, too_many
from .comparisons import Shape, boundaries
from .huge import HugeProbes

#: Probes of one type of weights; multiply-adds of one whose outputs are all judged, and of all of these together.
_MOST, _MOST_WORK, _MOST_TOGETHER = 40, 1 << 24, 1 << 27
#: Outputs of a thread block that is observed.
_MOST_OUTPUTS = 1 << 16


@dataclass(frozen=True)
class ComparedShapes:
    """The probes that follow from a kernel's comparisons.

    Args:
        probes: each with the thread blocks of earlier launches that one needs, if only single ones run because the
            product is large; else None.
        left: the number of further shapes.
        why_not: why comparisons cannot be observed, or None.
    """

    probes: tuple[tuple[Probe, tuple[Needs, ...] | None], ...] = ()
    left: int = 0
    why_not: str | None = None


def compared_shapes(run: Run, fmt: WeightFormat, huge: HugeProbes, planned: Collection[Shape]) -> ComparedShapes:
    """The probes of one type of weights.

    Args:
        huge: makes the operands of any size.
        planned: (M, N, K) that are tried anyway.
    """
    needs = _needs(run, fmt, huge)
    if isinstance(needs, str):
        return ComparedShapes(why_not=needs)
    shapes: dict[Shape, str] = {}
    for boundary in boundaries(run.kernel.domain, huge.unit, partial(_observed, run, fmt, huge, needs)):
        for shape in boundary.shapes:
            if shape not in planned:
                shapes.setdefault(shape, boundary.place)
    found, together = list[tuple[Probe, tuple[Needs, ...] | None]](), 0
    for (m, n, k), place in [*shapes.items()][:_MOST]:
        whole = m * n * k <= min(_MOST_WORK, _MOST_TOGETHER - together)
        together += m * n * k if whole else 0
        found.append((Probe((m,), n, k, because=_in_words(run, place)), None if whole else needs))
    return ComparedShapes(tuple(found), max(0, len(shapes) - _MOST))


def _needs(run: Run, fmt: WeightFormat, huge: HugeProbes) -> tuple[Needs, ...] | str:
    """The thread blocks of earlier launches that one needs; or why none can run by itself."""
    k = 2 * huge.unit
    kernel = run.kernel.of(fmt, 1, 1, k)
    try:
        return dependence(kernel, fmt, k, lambda m, n, k: huge.sparse(kernel, (m, n, k)))
    except (KernelFault, EnvironmentFault) as error:
        return str(error)


def _observed(
    run: Run, fmt: WeightFormat, huge: HugeProbes, needs: tuple[Needs, ...], shape: Shape
) -> Compared | None:  # fmt: skip
    """The comparisons of the first and the last thread block of a product."""
    m, n, _ = shape
    try:
        kernel = run.kernel.of(fmt, *shape)
        launched, earlier = kernel.only_launch(fmt, *shape), kernel.earlier(fmt, *shape)
        if not isinstance(launched, Launched) or launched.refused or m * n > _MOST_OUTPUTS * launched.blocks:
            return None
        if any(one.refused for one in earlier) or len(earlier) != len(needs) or too_many(earlier, needs):
            return None
        return kernel.compared(huge.sparse(kernel, shape, needs), sorted({0, launched.blocks - 1}))
    except (KernelFault, EnvironmentFault):
        return None


def _in_words(run: Run, place: str) -> str:
    """A line of the kernel's source with its text."""
    file, _, number = place.rpartition(":")
    lines = run.kernel.texts.get(file, "").splitlines()
    text = lines[int(number) - 1].strip() if int(number) <= len(lines) else ""
    return f"{place}: {printable(text, 80)}" if text else place
