"""Kernels of others: what their author writes, and the process that they run in."""

from .api import Declaration, Oracle, Shape, kernel
from .process import TIME_LIMIT, ForeignKernel, names_foreign, open_foreign

__all__ = [
    "TIME_LIMIT", "Declaration", "ForeignKernel", "Oracle", "Shape", "kernel", "names_foreign", "open_foreign",
]  # fmt: skip
