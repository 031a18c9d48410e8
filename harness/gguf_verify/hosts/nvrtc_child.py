"""NVRTC in a separate process, for a foreign source: `python -m gguf_verify.hosts.nvrtc_child REQUEST MADE`.

REQUEST is a JSON file: {"root", "file", "architecture", "defines", "what", "options", "entries", "headers"}, the
arguments of `nvrtc.compiled_here`. The output is written to MADE, and the names of kernels in it to a file beside that
with the suffix .names; on failure, the error and its details are written to MADE, and the exit code is 3.
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
            Path(asked["root"]),
            asked["file"],
            asked["architecture"],
            asked["defines"],
            asked["what"],
            asked["options"],
            asked["entries"],
            asked["headers"],
        )
    except EnvironmentFault as error:
        made.write_text("\n".join([str(error), *error.details]))
        return EXIT_ENVIRONMENT
    made.with_suffix(".names").write_text(json.dumps(names))
    made.write_bytes(content)
    return 0


if __name__ == "__main__":
    sys.exit(main())
