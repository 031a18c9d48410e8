"""The process of a kernel in a file, or of its oracle: `python -m gguf_verify.kernels.foreign FD`.

The first message says what to run.
"""

from __future__ import annotations

import json
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from . import api
from .child import OracleRunner, Runner, import_kernel, serve
from .observation import Observer
from .python_kernel import runner_of
from .tracing import observe


def _runner(asked: dict[str, Any]) -> Runner:
    if "kernels" in asked:
        from .launcher import Launcher

        return Launcher(asked)
    if "calls" in asked:
        from .functions import FunctionRunner

        return FunctionRunner(asked)
    path = Path(asked["path"])
    if asked.get("compares"):
        from .reporting import report

        reporter = report(Observer(path).own)
        return runner_of(import_kernel(path, asked["name"], reporter.code_of), reporter=reporter)
    observer = None if asked.get("oracle") else observe(path)
    found = import_kernel(path, asked["name"])
    return runner_of(found, observer) if observer is not None else OracleRunner(found)


def main() -> None:
    link = Connection(int(sys.argv[1]))
    asked = json.loads(link.recv_bytes())
    api.checks_declarations = False
    serve(link, lambda: _runner(asked))


if __name__ == "__main__":
    main()
