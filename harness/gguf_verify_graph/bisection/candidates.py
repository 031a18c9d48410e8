"""Candidates of a bisection: versions of llama-cpp-python, or builds given by path."""

from __future__ import annotations

import hashlib
import os
import re
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gguf_verify.llama.builds import Build, find
from gguf_verify.processes.commands import Processes
from gguf_verify.support.errors import EnvironmentFault, UsageError
from gguf_verify.support.files import open_regular
from gguf_verify.support.near import nearest
from gguf_verify.support.text import printable

#: A version as pip writes it. A name that could also be a path is a version unless it contains a "/".
_VERSION = re.compile(r"\d+(\.\d+)+([a-z]+\d*)?([.+-]\w+)*")

#: Time limit for the index's answer, in seconds.
_INDEX_LIMIT = 120.0


@dataclass(frozen=True)
class Candidate:
    """A build.

    Args:
        name: as on the command line.
        path: the path of the build; None for a version of llama-cpp-python.
        identity: distinguishes it from other builds, and changes if it is rebuilt differently.
    """

    name: str
    path: Path | None
    identity: str


def is_version(name: str) -> bool:
    """Whether a name is a version; otherwise it is a path."""
    return _VERSION.fullmatch(name) is not None


def named(names: Sequence[str], of_version: Callable[[str], str]) -> list[Candidate]:
    """Return the candidates with these names.

    Args:
        of_version: returns the identity of a version.

    Raises UsageError if a name is neither a version nor the path of a build, or occurs twice.
    """
    for i, name in enumerate(names):
        if name in names[:i]:
            raise UsageError(f"{printable(name, 200)} is given twice: each build has one place in the order")
    return [
        Candidate(name, None, f"version {name}, {of_version(name)}") if is_version(name) else _of_path(name)
        for name in names
    ]


def _of_path(name: str) -> Candidate:
    path = Path(name)
    if not path.exists():
        raise UsageError(
            f"{printable(name, 200)} is neither a version such as 0.3.33 nor a folder or library", "llama-build"
        )
    found = find(path)
    if isinstance(found, str):
        raise UsageError(printable(found, 400), "llama-build")
    try:
        digest = _digest(found)
    except OSError as error:
        raise EnvironmentFault(f"the libraries in {printable(name, 200)} cannot be read: {error.strerror}") from None
    return Candidate(name, found.path, f"build {printable(os.path.abspath(path))}, libraries {digest}")


def _digest(build: Build) -> str:
    """Return the digest of a build's libraries: a rebuilt one is another candidate."""
    digest = hashlib.sha256()
    for path in build.libraries():
        with open_regular(path) as file:
            digest.update(f"{path.name}\0{hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return digest.hexdigest()


def between(good: str, bad: str, known: Sequence[str], package: str = "llama-cpp-python") -> tuple[str, ...]:
    """Return the versions strictly between two.

    Args:
        known: all versions of the package, oldest first.

    Raises UsageError if either is not among them, or the good one is not older.
    """
    for flag, name in (("--good", good), ("--bad", bad)):
        if name not in known:
            raise UsageError(
                f"{flag}: the index has no {package} {name}; {nearest(name, known)}to avoid the index, list the "
                "builds in between by --among"
            )
    first, last = known.index(good), known.index(bad)
    if first >= last:
        raise UsageError(f"--good {good} is not older than --bad {bad}: a bisection needs an older good build")
    return tuple(known[first + 1 : last])


def listed(text: str) -> list[str]:
    """Parse the output of `pip index versions`; returns the versions, oldest first."""
    for line in text.splitlines():
        words, _, rest = line.partition(":")
        if words.strip() == "Available versions":
            return [v for v in reversed([part.strip() for part in rest.split(",")]) if is_version(v)]
    return []


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
