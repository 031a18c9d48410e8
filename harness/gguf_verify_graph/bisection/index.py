"""Which versions of a package the index of packages has."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from gguf_verify.processes.commands import Processes
from gguf_verify.support.errors import EnvironmentFault
from gguf_verify.support.text import printable

from .candidates import listed

#: Seconds in which the index must have answered.
_INDEX_LIMIT = 120.0


def versions_on_index(processes: Processes, package: str) -> list[str]:
    """All that pip finds, the oldest first. Raises EnvironmentFault."""
    command = [sys.executable, "-m", "pip", "--no-input", "--disable-pip-version-check", "index", "versions", package]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        ended = processes.run(command, _INDEX_LIMIT, log=log)
        found = listed(log.read_text(errors="replace")) if log.is_file() else []
    if ended.exit_code != 0 or not found:
        why = printable(ended.last_line, 300) or "it did not answer"
        raise EnvironmentFault(f"`pip index versions` lists no {package} ({why}): list builds by --among")
    return found
