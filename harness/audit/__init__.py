"""The audit: every byte of a GGUF file owned, explained and judged."""

from __future__ import annotations

from .audit import Audit, AuditOptions, Examination, audit
from .content import BadBlock, Content, bad_blocks
from .readers import Readers, Reading
from .readers import compare as compare_readers

__all__ = [
    "Audit",
    "AuditOptions",
    "BadBlock",
    "Content",
    "Examination",
    "Readers",
    "Reading",
    "audit",
    "bad_blocks",
    "compare_readers",
]  # fmt: skip
