"""The size from which on a large product is wrong, and the type of an index that ends there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ....diagnosis.observed import OBSERVED, observed
from ....kernels.domain import Domain
from ....support.errors import EnvironmentFault, KernelFault
from ...index_limits import LIMITS, Shape, passes
from ...plan import near
from .findings import Findings
from .repeating import RepeatingProducts, Wrong

#: Whether a product of M, N and K is correct. Raises KernelFault, EnvironmentFault.
Right = Callable[[Shape], bool]

#: Of a limit: only some outputs are judged, so the first wrong product that is found may be a little larger.
_NEAR = 2.0**-10


def explained(
    findings: Findings, products: RepeatingProducts, what: str, domain: Domain, shape: Shape, wrong: Wrong,
    right: Right,
) -> None:  # fmt: skip
    """Record that a large product is wrong, and from which size on.

    Outputs that were never written have no name: a kernel may omit them on purpose.

    Args:
        what: what is large, such as "M·N".
    """
    named, unwritten = None, wrong.got is None and wrong.error is None
    try:
        found = first_wrong(what, domain, products, shape, right)
    except (KernelFault, EnvironmentFault):
        found = None
    if found is not None:
        words = f"right at {shape_in_words(found[0])}, and wrong at {shape_in_words(found[1])}"
        passed = None if unwritten else passed_limit(*found, products)
        if passed is None:
            wrong = replace(wrong, words=f"{wrong.words} ({words})")
        else:
            named = observed("narrow-index", f"{OBSERVED['narrow-index'].words}: {words}, where {passed}")
    findings.fail(wrong, shape_in_words(shape), named)


def first_wrong(
    what: str, domain: Domain, products: RepeatingProducts, wrong: Shape, right: Right
) -> tuple[Shape, Shape] | None:  # fmt: skip
    """The last correct shape and the first wrong one along a dimension in which the least size is correct.

    None if there is no such dimension. Raises KernelFault, EnvironmentFault.
    """
    for name in reversed(what.split("·")):
        d = "MNK".index(name)
        extent, step = (domain.m, domain.n, domain.k)[d], products.unit if d == 2 else 1

        def of(size: int, d: int = d) -> Shape:
            m, n, k = (size if i == d else other for i, other in enumerate(wrong))
            return m, n, k

        low, high = near(extent, 1, step), wrong[d]
        if low is None or low >= high or not right(of(low)):
            continue
        each = [passes(what, of(step)) * size for size in counted(products)[what].values()]
        tried = [int(limit // one) * step for limit in LIMITS for one in each]
        for likely in sorted(tried, reverse=True):
            sizes = near(extent, likely - step, step), near(extent, likely + 2 * step, step)
            for size in sizes:
                if size is not None and low < size < high:
                    low, high = (size, high) if right(of(size)) else (low, size)
        while (middle := near(extent, (low + high) // 2, step)) is not None and low < middle < high:
            low, high = (middle, high) if right(of(middle)) else (low, middle)
        return of(low), of(high)
    return None


def passed_limit(right: Shape, wrong: Shape, products: RepeatingProducts) -> str | None:
    """Which number passes a limit of a type between two shapes, in words."""
    for what, each in counted(products).items():
        for name, size in each.items():
            low, high = (passes(what, shape) * size for shape in (right, wrong))
            for limit in LIMITS:
                if low < high and low - max(high - low, _NEAR * limit) <= limit < high:
                    return f"{what} passes 2^{limit.bit_length() - 1} {name}".rstrip()
    return None


def counted(products: RepeatingProducts) -> dict[str, dict[str, float]]:
    """What a kernel may count of each size and operand, and how much of it one value takes."""
    (row, token), (of_row, of_token) = products.value_bytes, products.blocks
    weights = {"values": 1.0, "bytes of weights": row, "blocks of weights": 1 / of_row}
    activations = {"values": 1.0, "bytes of activations": token, "blocks of activations": 1 / of_token}
    return {
        "M": {"": 1.0}, "N": {"": 1.0}, "K": weights | activations, "M·N": {"outputs": 1.0, "bytes of outputs": 4.0},
        "N·K": weights, "M·K": activations,
    }  # fmt: skip


def shape_in_words(shape: Shape) -> str:
    """As in messages."""
    m, n, k = shape
    return f"M={m}, N={n}, K={k}"
