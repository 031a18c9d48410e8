"""The existing terms: each module makes one record, and the registry finds it."""

from __future__ import annotations

from ...support.registry import members
from ..term import Term

TERMS: dict[str, Term] = {t.name: t for t in sorted(members(__name__, Term), key=lambda t: (not t.of_values, t.name))}

__all__ = ["TERMS"]
