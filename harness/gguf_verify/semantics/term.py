"""The record of a term, the contribution of a block to an output; one for each module of `terms/`.

A weight is w = d_w·q_w + m_w. A term says whether a format's offset is subtracted from the integer codes (then m_w is
not used) or reaches the result through m_w·s, which parts are rounded, and whether weights are multiplied as values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from ..formats import BlockFormat

#: The type to which values of weights are rounded before they are multiplied; "": codes are multiplied.
Rounded = Literal["", "float32", "float16", "bfloat16"]


def no_format(_: BlockFormat) -> bool:
    """A trait that no format has."""
    return False


def as_it_is(fmt: BlockFormat) -> BlockFormat:
    """Read a format as the file has it."""
    return fmt


def has_offset(fmt: BlockFormat) -> bool:
    """A trait of formats whose codes have an offset."""
    return fmt.offset != 0


def one_minimum(fmt: BlockFormat) -> bool:
    """A trait of formats whose minimum, or offset, belongs to a whole block, not to a part of a superblock."""
    return fmt.min_times_sum


def minima_of_superblocks(fmt: BlockFormat) -> bool:
    """A trait of superblocks with minima of their parts."""
    return fmt.has_min and not fmt.min_times_sum


@dataclass(frozen=True, kw_only=True)
class Term:
    """The formula of a block's term.

    Args:
        name: its name in a declaration.
        title: the formula in one line.
        integer_offset: whether the offset of a format is subtracted from its codes before the integer product.
        meets_sum: whether the minima of a format, or its offset, are multiplied by the stored s; else the minima are
            multiplied by d_a·Σ q_a.
        half_products: whether the products d_w·d_a and m_w·s of a format are rounded to half.
        half_scales: whether the scales and minima of a superblock, multiplied out, are rounded to half.
        zero_apart: the zero point of codes may be multiplied by the activations' codes separately, in lanes where the
            two parts do not cancel, as llama.cpp's SIMD code does.
        minima_apart: activations are values, and offsets and minima are multiplied by their sums. Every result that
            `values` admits is admitted, too.
        weights: values of weights are multiplied, rounded to this type (a decoded float32 is within one rounding of d·q
            + m); "": codes are multiplied.
        steps: these values may have been rounded in every step of their decoding: the exact product is that of d·q + m,
            and the bound has a slack for the steps.
        reads: the format as which weights are read, if the term splits them into blocks in another way.
        order_known: `exact` states an order of the float32 additions that a kernel may declare.
    """

    name: str
    title: str
    integer_offset: Callable[[BlockFormat], bool] = no_format
    meets_sum: Callable[[BlockFormat], bool] = one_minimum
    half_products: Callable[[BlockFormat], bool] = no_format
    half_scales: Callable[[BlockFormat], bool] = no_format
    zero_apart: bool = False
    minima_apart: bool = False
    weights: Rounded = ""
    steps: bool = False
    reads: Callable[[BlockFormat], BlockFormat] = as_it_is
    order_known: bool = False

    @property
    def of_values(self) -> bool:
        """Whether values are multiplied, not codes."""
        return bool(self.weights)
