"""The existing encodings of activations: each module makes one record, and the registry finds it."""

from __future__ import annotations

from ...support.registry import members
from ..encoding import Encoding

ENCODINGS: dict[str, Encoding] = {
    e.name: e for e in sorted(members(__name__, Encoding), key=lambda e: (e.quantizes, e.name))
}

__all__ = ["ENCODINGS"]
