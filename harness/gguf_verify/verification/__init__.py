"""A verification: `pipeline` is its chain of stages, and the module to read first."""

from .pipeline import verify

__all__ = ["verify"]
