"""The process of a soak: `python soak_process.py ASKED SAID` verifies one kernel after the other through Python.

ASKED and SAID are JSON files; `soak.py` writes and reads them. Like the command line it ends with a report and exit
code 1, so that what is seen of any run is seen of this one.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any


def look(run: int, temporary: str) -> dict[str, int]:
    """This process now: the fields of `soak.Look`."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    alive = children.read_text().split() if children.exists() else []
    return {
        "run": run, "memory": pages * os.sysconf("SC_PAGE_SIZE"), "descriptors": len(os.listdir("/proc/self/fd")),
        "children": len(alive), "temporary": len(os.listdir(temporary)),
    }  # fmt: skip


def main() -> None:
    from gguf_verify import HarnessError, Options, verify

    asked: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
    kernels, temporary = asked["kernels"], asked["temporary"]
    looks: list[dict[str, int]] = []
    exits: Counter[str] = Counter()
    breaches: list[str] = []
    end = time.monotonic() + asked["seconds"]
    made = 0
    wanted = {asked["settled"], (asked["settled"] + len(kernels)) // 2, len(kernels)}
    for name, limit in kernels:
        if time.monotonic() > end:
            break
        options = Options(
            prompt="The", n_predict=1, threads=1, tensor="blk.0.attn_[qk]", probes="brief", progress=False,
            kernel_time_limit=limit, time_limit=30.0,
        )  # fmt: skip
        try:
            report = verify(asked["model"], f"{asked['work']}/{name}/kernel.py:gemm", "cpu", ["blocks"], options)
            exits[str(report.exit_code)] += 1
            if report.exit_code == 0:
                breaches.append(f"{name}: forged: exit code 0")
        except HarnessError as error:  # it could not be started
            exits[type(error).__name__] += 1
        except BaseException as error:
            breaches.append(f"{name}: {type(error).__name__}: {error}")
        made += 1
        if made in wanted:
            looks.append(look(made, temporary))
    said = {"made": made, "exits": exits, "looks": looks, "breaches": breaches}
    Path(sys.argv[2]).write_text(json.dumps(said))
    Path(asked["report"]).write_text(json.dumps({"verdict": "mismatch", "exit_code": 1}))
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    sys.exit(1)


if __name__ == "__main__":
    main()
