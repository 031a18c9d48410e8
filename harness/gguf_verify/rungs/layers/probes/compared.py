"""Probes at the shapes and with the data that a kernel's code compares with: its comparisons are observed in single
thread blocks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

from ....formats.tensor_types import WeightFormat
from ....kernels.comparisons import Compared, in_words
from ....kernels.launches import Launched, Needs, SparseProduct
from ....support.errors import EnvironmentFault, KernelFault
from ...plan import Probe, near
from ...run import Run
from ...thread_blocks import dependence, too_many
from .compared_data import data_probes
from .comparisons import Shape, boundaries
from .huge import HugeProbes

#: Probes of one type of weights; multiply-adds of one whose outputs are all judged, and of all of these together.
_MOST, _MOST_WORK, _MOST_TOGETHER = 40, 1 << 24, 1 << 27
#: Outputs of a thread block that is observed.
_MOST_OUTPUTS = 1 << 16
#: Shapes, in units of K, at which data are searched for first, and then if they show comparisons on other lines; the
#: most of all shapes; and the units of a probe, of which one has the data.
_SHAPES, _MOST_SHAPES, _UNITS = ((3, 7, 1), (1, 33, 2), (16, 64, 2), (130, 130, 2)), 6, 2


@dataclass(frozen=True)
class ComparedProbes:
    """The probes that follow from a kernel's comparisons.

    Args:
        probes: each with the thread blocks of earlier launches that one needs, if only single ones run because the
            product is large; else None.
        shapes: how many of them have a shape of their own; the others have data of their own.
        left: the number of further shapes.
        why_not: why comparisons cannot be observed, or None.
    """

    probes: tuple[tuple[Probe, tuple[Needs, ...] | None], ...] = ()
    shapes: int = 0
    left: int = 0
    why_not: str | None = None


def compared_probes(run: Run, fmt: WeightFormat, huge: HugeProbes, planned: Collection[Shape]) -> ComparedProbes:
    """The probes of one type of weights.

    Args:
        huge: makes the operands of any size.
        planned: (M, N, K) that are tried anyway.
    """
    needs = _needs(run, fmt, huge)
    if isinstance(needs, str):
        return ComparedProbes(why_not=needs)
    observe, words = partial(_observed, run, fmt, huge, needs), partial(in_words, texts=run.kernel.texts)
    shapes: dict[Shape, str] = {}
    for boundary in boundaries(run.kernel.domain, huge.unit, observe):
        for shape in boundary.shapes:
            if shape not in planned:
                shapes.setdefault(shape, boundary.place)
    found, together = list[tuple[Probe, tuple[Needs, ...] | None]](), 0
    for (m, n, k), place in [*shapes.items()][:_MOST]:
        whole = m * n * k <= min(_MOST_WORK, _MOST_TOGETHER - together)
        together += m * n * k if whole else 0
        found.append((Probe((m,), n, k, because=words(place)), None if whole else needs))
    of_shapes = len(found)
    done = set[str]()
    for shape in _bases(run, huge, observe, [(p.tokens[0], p.n, p.k) for p, alone in found if alone is None]):
        kernel = run.kernel.of(fmt, *shape)
        product, wide = huge.sparse(kernel, shape, needs), near(run.kernel.domain.k, _UNITS * huge.unit, huge.unit)
        with_data = data_probes(run.semantics(fmt), product, max(product.k, wide or 0), partial(observe, shape), words)
        for probe in with_data:
            if probe.because not in done:
                found.append((replace(probe, n=near(run.kernel.domain.n, probe.n) or product.n), None))
        done |= {probe.because for probe in with_data}
    return ComparedProbes(tuple(found), of_shapes, max(0, len(shapes) - _MOST))


def _bases(
    run: Run, huge: HugeProbes, observe: Callable[[Shape], Compared | None], found: list[Shape]
) -> Iterator[Shape]:  # fmt: skip
    """The shapes at which data are searched for."""
    domain, known, bases = run.kernel.domain, set[str](), 0
    for m, n, k in chain(((m, n, units * huge.unit) for m, n, units in _SHAPES), found):
        shape = near(domain.m, m), near(domain.n, n), near(domain.k, k, huge.unit)
        if None in shape or bases >= _MOST_SHAPES:
            continue
        lines = {comparison.place for comparison in observe(shape) or ()}  # type: ignore[arg-type]
        if lines - known:
            known |= lines
            bases += 1
            yield shape  # type: ignore[misc]


def _needs(run: Run, fmt: WeightFormat, huge: HugeProbes) -> tuple[Needs, ...] | str:
    """The thread blocks of earlier launches that one needs; or why none can run by itself."""
    k = 2 * huge.unit
    kernel = run.kernel.of(fmt, 1, 1, k)
    try:
        return dependence(kernel, fmt, k, lambda m, n, k: huge.sparse(kernel, (m, n, k)))
    except (KernelFault, EnvironmentFault) as error:
        return str(error)


def _observed(
    run: Run, fmt: WeightFormat, huge: HugeProbes, needs: tuple[Needs, ...], shape: Shape,
    product: SparseProduct | None = None,
) -> Compared | None:  # fmt: skip
    """The comparisons of the first and the last thread block of a product; None: of ordinary operands."""
    m, n, _ = shape
    try:
        kernel = run.kernel.of(fmt, *shape)
        launched, earlier = kernel.only_launch(fmt, *shape), kernel.earlier(fmt, *shape)
        if not isinstance(launched, Launched) or launched.refused or m * n > _MOST_OUTPUTS * launched.blocks:
            return None
        if any(one.refused for one in earlier) or len(earlier) != len(needs) or too_many(earlier, needs):
            return None
        product = product or huge.sparse(kernel, shape, needs)
        return kernel.compared(product, sorted({0, launched.blocks - 1}))
    except (KernelFault, EnvironmentFault):
        return None
