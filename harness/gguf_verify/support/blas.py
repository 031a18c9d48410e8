"""NumPy with one thread of its BLAS."""

from __future__ import annotations

import os

#: OpenBLAS reads this when NumPy is loaded.
VARIABLE = "OPENBLAS_NUM_THREADS"


def load_numpy() -> None:
    """Load NumPy with one thread for OpenBLAS, unless the user set a number of threads.

    The harness runs products in threads of its own. An idle thread of OpenBLAS spins, and so takes a core away from
    them and from llama.cpp. Child processes are not limited: a kernel may use as many threads as it likes.
    """
    if VARIABLE in os.environ:
        return
    os.environ[VARIABLE] = "1"
    try:
        import numpy  # noqa: F401
    finally:
        del os.environ[VARIABLE]
