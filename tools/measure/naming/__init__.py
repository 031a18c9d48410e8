"""Naming and localisation: whether the diagnosis of a fault is correct, and whether a report finds its place."""

from .naming import MEASURE

__all__ = ["MEASURE"]
