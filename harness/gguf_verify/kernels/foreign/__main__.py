"""The process of a kernel in a file, or of its oracle: `python -m gguf_verify.kernels.foreign FD`.

The first message says what to run.
"""

from __future__ import annotations

import json
import sys
from multiprocessing.connection import Connection
from pathlib import Path

from . import api
from .child import OracleRunner, Runner, import_kernel, serve, serve_oracle
from .task_runner import runner_of


def main() -> None:
    link = Connection(int(sys.argv[1]))
    asked = json.loads(link.recv_bytes())
    api.checks_declarations = False
    if asked.get("oracle"):
        return serve_oracle(link, lambda: OracleRunner(import_kernel(Path(asked["path"]), asked["name"])))

    def make() -> Runner:
        if "kernels" in asked:
            from .launcher import Launcher

            return Launcher(asked)
        if "calls" in asked:
            from .functions import FunctionRunner

            return FunctionRunner(asked)
        return runner_of(import_kernel(Path(asked["path"]), asked["name"]))

    serve(link, make)


if __name__ == "__main__":
    main()
