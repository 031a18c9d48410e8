"""`sums`: minima and offsets of blocks are multiplied by the stored s, those of superblocks by d_a·Σ q_a."""

from __future__ import annotations

from ..term import Term

SUMS = Term(
    name="sums",
    title="d_w·d_a·Σ q_w·q_a + m_w·s; with an offset, d_w·(d_a·Σ q_w·q_a - offset·s); minima of superblocks: "
    "m_w·d_a·Σ q_a",
    order_known=True,
)
