"""Foreign kernels, written by others: what their authors write, and the process that each runs in.

This room may import the rest of `gguf_verify.kernels` and what that may import.
"""

from .api import Declaration, Oracle, Shape, kernel
from .opening import Further, file_of, files_named, names_foreign, open_foreign
from .process import TIME_LIMIT, ForeignKernel

__all__ = [
    "TIME_LIMIT", "Declaration", "ForeignKernel", "Further", "Oracle", "Shape", "file_of", "files_named",
    "kernel", "names_foreign", "open_foreign",
]  # fmt: skip
