"""Kernels of others: what their author writes, and the process that they run in."""

from .api import Declaration, Oracle, Shape, kernel
from .process import ForeignKernel, names_foreign, open_kernel

__all__ = ["Declaration", "ForeignKernel", "Oracle", "Shape", "kernel", "names_foreign", "open_kernel"]
