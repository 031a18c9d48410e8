"""The audit: every byte of a GGUF file owned, explained and judged."""

from __future__ import annotations

from .audit import Audit, AuditOptions, Examination, audit, capped_in_parts, coverage
from .content import BadBlock, Content
from .readers import Readers, Reading
from .readers import compare as compare_readers

__all__ = [
    "Audit", "AuditOptions", "BadBlock", "Content", "Examination", "Readers", "Reading", "audit", "capped_in_parts",
    "compare_readers", "coverage",
]  # fmt: skip
