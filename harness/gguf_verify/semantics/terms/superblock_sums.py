"""`superblock_sums`: as `sums`, and the minima of superblocks are multiplied by the stored s, too."""

from __future__ import annotations

from ...formats import QK, BlockFormat
from ..term import Term


def _any_minimum(fmt: BlockFormat) -> bool:
    return (fmt.has_min or fmt.offset != 0) and fmt.group >= QK


SUPERBLOCK_SUMS = Term(
    name="superblock_sums",
    title="d_w·d_a·Σ q_w·q_a + m_w·s, also of superblocks with parts of 32, with scales in full precision; "
    "with an offset as `sums`",
    meets_sum=_any_minimum,
)
