"""Starting llama.cpp's process. Light to import, so that it can start while the parent still loads the rest."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path


class Child:
    """A process that has been started and that nobody has waited for yet; `Llama` talks with it.

    Args:
        verbose: let llama.cpp's log through to standard error.
    """

    def __init__(self, verbose: bool = False) -> None:
        ours, theirs = socket.socketpair()
        self.link = ours
        self.log = None if verbose else tempfile.TemporaryFile(prefix="gguf-verify-")  # noqa: SIM115 - lives with us
        package_parent = str(Path(__file__).resolve().parents[2])
        paths = [package_parent, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        output = sys.stderr if self.log is None else self.log
        self.process = subprocess.Popen(
            # -P: the folder where the command runs may come from anywhere, and must not be imported from
            [sys.executable, "-P", "-m", "harness.reference.worker", str(theirs.fileno())],
            pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "GGML_NO_BACKTRACE": "1",
                 "OPENBLAS_NUM_THREADS": "1",  # NumPy's: it multiplies nothing there, and idle threads spin
                 # on a GPU each node is computed by itself, tapped or not
                 "GGML_CUDA_DISABLE_FUSION": "1", "GGML_CUDA_DISABLE_GRAPHS": "1"},
        )  # fmt: skip
        theirs.close()

    def close(self) -> None:
        """End the process, whatever it is doing."""
        self.link.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self.log is not None:
            self.log.close()
