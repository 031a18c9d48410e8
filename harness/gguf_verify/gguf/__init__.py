"""gguf: what a GGUF file holds and where, read from untrusted bytes by a parser of our own.

This room may import `formats` and `support`.
"""

from __future__ import annotations

from ..support.text import printable
from .consistency import check_consistency
from .file import GgufFile, Tensor
from .model import Model, RefusedFile, open_model
from .parser import parse
from .records import KINDS, Finding, Range, Severity
from .rules import RULES, Effect, Rule

__all__ = [
    "KINDS", "RULES", "Effect", "Finding", "GgufFile", "Model", "Range", "RefusedFile", "Rule", "Severity", "Tensor",
    "check_consistency", "open_model", "parse", "printable",
]  # fmt: skip
