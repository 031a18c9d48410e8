"""`integers`: the offset is subtracted from the integer codes."""

from __future__ import annotations

from ..term import Term, has_offset

INTEGERS = Term(
    name="integers",
    title="d_w·d_a·Σ (q_w - offset)·q_a; with a minimum + m_w·s; minima of superblocks: m_w·d_a·Σ q_a",
    integer_offset=has_offset,
)
