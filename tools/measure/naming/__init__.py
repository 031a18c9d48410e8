"""Naming and localisation: whether the diagnosis names a fault rightly, and whether a report finds its place."""

from .naming import MEASURE

__all__ = ["MEASURE"]
