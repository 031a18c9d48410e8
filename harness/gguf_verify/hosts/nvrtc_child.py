"""`python -m gguf_verify.hosts.nvrtc_child REQUEST MADE`: NVRTC in a process of its own, for a source that is not this
project's.

REQUEST is a JSON file: {"root", "file", "architecture", "defines", "what", "options", "entries", "headers"}, the
arguments of `nvrtc.compiled_here`. What NVRTC makes of it is written to MADE, and what kernels are called in it beside
that, with the suffix .names; or why it makes nothing, a line and its details, where the exit code is 3.
"""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path

from ..support.errors import EXIT_ENVIRONMENT, EnvironmentFault
from .nvrtc import compiled_here


def main() -> int:
    request, made = map(Path, sys.argv[1:])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    asked = json.loads(request.read_text())
    try:
        content, names = compiled_here(
            Path(asked["root"]), asked["file"], asked["architecture"], asked["defines"], asked["what"],
            asked["options"], asked["entries"], asked["headers"],
        )  # fmt: skip
    except EnvironmentFault as error:
        made.write_text("\n".join([str(error), *error.details]))
        return EXIT_ENVIRONMENT
    made.with_suffix(".names").write_text(json.dumps(names))
    made.write_bytes(content)
    return 0


if __name__ == "__main__":
    sys.exit(main())
