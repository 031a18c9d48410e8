"""audit: checks a GGUF file by itself, so that every byte of it is owned, explained and judged.

This room may import `llama`, `hosts`, `gguf`, `formats`, `results` and `support`.
"""

from __future__ import annotations

from .audit import Audit, AuditOptions, Examination, audit, coverage
from .content import BadBlock, Content, contents
from .readers import Readers, Reading
from .readers import compare as compare_readers

__all__ = [
    "Audit", "AuditOptions", "BadBlock", "Content", "Examination", "Readers", "Reading", "audit", "compare_readers",
    "contents", "coverage",
]  # fmt: skip
