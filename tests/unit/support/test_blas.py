"""NumPy as the command line loads it."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

USES_MEMORY_AGAIN = """
import resource
from gguf_verify.support.blas import load_numpy

load_numpy()
import numpy as np

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(50):
        first, second, third = (np.ones(3 << 17) for _ in range(3))
        del first, second, third
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

faults()
print(faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library has no mallopt")
def test_memory_of_arrays_is_used_again() -> None:
    """Memory that the system gives is cleared, with a page fault each: 115,200 pages of these arrays."""
    done = subprocess.run([sys.executable, "-c", USES_MEMORY_AGAIN], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 5000
