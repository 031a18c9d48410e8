"""Audits: check a GGUF file, so that every byte is owned, explained and judged.

This package may import `llama`, `hosts`, `gguf`, `formats`, `results` and `support`.
"""

from __future__ import annotations

from .audit import audit, coverage
from .content import BadBlock, Content, contents
from .examination import Examination
from .readers import Readers
from .readings import Reading
from .readings import compare as compare_readers
from .record import Audit, AuditOptions

__all__ = [
    "Audit", "AuditOptions", "BadBlock", "Content", "Examination", "Readers", "Reading", "audit", "compare_readers",
    "contents", "coverage",
]  # fmt: skip
