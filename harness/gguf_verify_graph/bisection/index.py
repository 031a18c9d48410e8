"""Versions of a package on the package index."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from gguf_verify.processes.commands import Processes
from gguf_verify.support.errors import EnvironmentFault
from gguf_verify.support.text import printable

from .candidates import listed

#: Time limit for the index's answer, in seconds.
_INDEX_LIMIT = 120.0


def versions_on_index(processes: Processes, package: str) -> list[str]:
    """Return all versions that pip finds, oldest first. Raises EnvironmentFault."""
    command = [sys.executable, "-m", "pip", "--no-input", "--disable-pip-version-check", "index", "versions", package]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        ended = processes.run(command, _INDEX_LIMIT, log=log)
        found = listed(log.read_text(errors="replace")) if log.is_file() else []
    if ended.exit_code != 0 or not found:
        why = printable(ended.last_line, 300) or "it did not answer"
        raise EnvironmentFault(f"`pip index versions` lists no {package} ({why}): list the builds by --among")
    return found
