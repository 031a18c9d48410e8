"""NVRTC in a separate process, for a foreign source: `python -m gguf_verify.hosts.nvrtc_child REQUEST MADE`.

REQUEST is a JSON file with the fields of `nvrtc.Request`. The output is written to MADE, and the names of kernels in it
to a file beside that with the suffix .names; on failure, the error and its details are written to MADE, and the exit
code is 3.
"""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path

from ..support.errors import EXIT_ENVIRONMENT, EnvironmentFault
from .nvrtc import Request, compiled_here


def main() -> int:
    request, made = map(Path, sys.argv[1:])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        content, names = compiled_here(Request(**json.loads(request.read_text())))
    except EnvironmentFault as error:
        made.write_text("\n".join([str(error), *error.details]))
        return EXIT_ENVIRONMENT
    made.with_suffix(".names").write_text(json.dumps(names))
    made.write_bytes(content)
    return 0


if __name__ == "__main__":
    sys.exit(main())
