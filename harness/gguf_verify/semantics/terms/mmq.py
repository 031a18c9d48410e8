"""`mmq`: MMQ of llama.cpp since 2025: integer offsets; scales and minima of superblocks are rounded to half."""

from __future__ import annotations

from ...formats import BlockFormat
from ..term import Term, has_offset, minima_of_superblocks


def _any_minimum(fmt: BlockFormat) -> bool:
    return fmt.has_min or fmt.offset != 0


MMQ_TERM = Term(
    name="mmq",
    title="d_w·d_a·Σ (q_w - offset)·q_a; with a minimum + m_w·s; d_w and m_w of superblocks are rounded to half",
    integer_offset=has_offset,
    meets_sum=_any_minimum,
    half_scales=minima_of_superblocks,
)
