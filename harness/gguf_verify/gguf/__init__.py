"""The container: what a GGUF file holds and where, read from untrusted bytes by a parser of our own."""

from __future__ import annotations

from ..support.text import printable
from .consistency import check_claims
from .file import GgufFile, Tensor
from .model import Model, RefusedFile, open_model
from .parser import parse
from .records import KINDS, RULES, Effect, Finding, Range, Rule, Severity

__all__ = [
    "KINDS", "RULES", "Effect", "Finding", "GgufFile", "Model", "Range", "RefusedFile", "Rule", "Severity", "Tensor",
    "check_claims", "open_model", "parse", "printable",
]  # fmt: skip
