"""The audit: every byte of a GGUF file owned, explained and judged."""

from __future__ import annotations

from .audit import Audit, AuditOptions, Examination, audit, coverage
from .content import BadBlock, Content
from .readers import Readers, Reading
from .readers import compare as compare_readers

__all__ = [
    "Audit", "AuditOptions", "BadBlock", "Content", "Examination", "Readers", "Reading", "audit", "compare_readers",
    "coverage",
]  # fmt: skip
