"""A verifier that protects itself in no way, on which the attacks of tests/support/hostile_kernels must be seen.

`python -I -S stand_in.py KERNEL REPORT CACHE` runs KERNEL as the tree before "Fortress" ran a foreign kernel: in a
child process with a socket and a log, with all of the user's rights. A kernel that ends in .so is loaded there. Then it
loads every library in the cache, writes a report that says "mismatch" and ends with exit code 1.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

#: Seconds for the kernel.
_LIMIT = 8.0
_PR_SET_PTRACER = 0x59616D61
#: In the place of llama.cpp's process: it ends when its link does, or says anything.
_WORKER = "import os, sys; os.read(0, 1)"
_LOADS = "import ctypes, sys; ctypes.CDLL(sys.argv[1])"


def main() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(-1), 0, 0, 0)  # Yama would protect us
    kernel, report, cache = map(Path, sys.argv[1:4])
    ours, theirs = socket.socketpair()
    link, workers = socket.socketpair()
    worker = subprocess.Popen([sys.executable, "-I", "-S", "-c", _WORKER, "stand_in"], stdin=workers.fileno())
    workers.close()
    python = [sys.executable, "-I", "-S", "-B"]
    command = [*python, "-c", _LOADS, str(kernel)] if kernel.suffix == ".so" else [*python, str(kernel)]
    with tempfile.TemporaryFile() as log, tempfile.TemporaryDirectory(prefix="gguf-verify-"):
        process = subprocess.Popen(
            [*command, str(theirs.fileno())],
            pass_fds=[theirs.fileno(), link.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        theirs.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_LIMIT)
        process.kill()
        process.wait()
        log.seek(0)
        last = log.read(1 << 16).decode(errors="replace").strip().splitlines()[-1:]
    ours.close()
    for library in sorted(p for p in cache.rglob("*.so") if "hostile" not in p.name):
        with contextlib.suppress(OSError):
            ctypes.CDLL(str(library))
    said = "" if worker.poll() is None else "llama.cpp died"
    worker.kill()
    worker.wait()
    link.close()
    report.write_text(json.dumps({"verdict": "mismatch", "exit_code": 1, "last": last, "said": said}))
    sys.stdout.flush()
    os._exit(1)


if __name__ == "__main__":
    main()
