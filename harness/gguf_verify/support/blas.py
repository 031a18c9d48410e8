"""NumPy with one thread of its BLAS, and with memory that is used again."""

from __future__ import annotations

import os

#: OpenBLAS reads this when NumPy is loaded.
VARIABLE = "OPENBLAS_NUM_THREADS"
#: Options of mallopt(3) and their values: memory of allocations from 32 MiB on is returned to the system at once, of
#: smaller ones up to 256 MiB are kept. Products are computed in arrays of some MiB. If each were returned, the system
#: would clear as many pages for the next one: a sixth of all processor time with a large vocabulary (measured).
_MEMORY = {-3: 32 << 20, -1: 256 << 20}  # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD


def load_numpy() -> None:
    """Load NumPy with one thread for OpenBLAS, unless the user set a number of threads, and keep freed memory.

    The harness runs products in threads of its own. An idle thread of OpenBLAS spins, and so takes a core away from
    them and from llama.cpp. Child processes are not limited: a kernel may use as many threads as it likes.
    """
    _keep_memory()
    if VARIABLE in os.environ:
        return
    os.environ[VARIABLE] = "1"
    try:
        import numpy  # noqa: F401
    finally:
        del os.environ[VARIABLE]


def _keep_memory() -> None:
    """Have the C library keep freed memory, if it is one that can."""
    import ctypes

    if (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:
        for option, size in _MEMORY.items():
            mallopt(option, size)
