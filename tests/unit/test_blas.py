"""The command line multiplies by one thread of NumPy's library, and its children by as many as they like."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SCRIPT = """
import os, sys
from gguf_verify.cli import main
main(["no-such.gguf", "--host", "cpu"])
import numpy as np
a = np.ones((600, 600))
a @ a
print(len(os.listdir("/proc/self/task")), os.environ.get("OPENBLAS_NUM_THREADS"))
"""


@pytest.mark.parametrize(("asked", "threads"), [(None, 1), ("3", 3)])
def test_threads_of_blas(asked: str | None, threads: int) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    if asked is not None:
        environment["OPENBLAS_NUM_THREADS"] = asked
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True)
    found, told = done.stdout.split()[-2:]
    assert (int(found), told) == (min(threads, max(1, os.cpu_count() or 1)), str(asked))
