"""Stored results of candidates, so that an interrupted bisection can continue."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from gguf_verify.bisection_results import Tried
from gguf_verify.support.errors import EnvironmentFault, say
from gguf_verify.support.files import open_lock, open_regular, replaced
from gguf_verify.support.plain import plain
from gguf_verify.support.text import printable

_SCHEMA = 1
_MOST_BYTES = 1 << 27


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that results depend on besides the candidate.

    Args:
        sha256: digests of the model's parts.
        arguments: arguments of `gguf-verify backend`.
        prompt: the prompt of these arguments.
        variables: environment variables that ggml and drivers read.
        gguf_verify: this project's version.
        code: digest of its code.
    """

    sha256: tuple[str, ...]
    arguments: tuple[str, ...]
    prompt: str
    variables: dict[str, str]
    gguf_verify: str
    code: str

    @property
    def name(self) -> str:
        """A short name for a file."""
        return hashlib.sha256(json.dumps(plain(self), sort_keys=True).encode()).hexdigest()[:24]


class _File(msgspec.Struct, kw_only=True):
    schema: int
    session: Session
    tried: dict[str, Tried]


class State:
    """The results of a session by candidate identity; see `opened`.

    Args:
        path: the state's file.
    """

    def __init__(self, path: Path, session: Session) -> None:
        self.path, self._session = path, session
        self._tried = self._read()

    def get(self, identity: str) -> Tried | None:
        """Return a candidate's stored result, or None."""
        return self._tried.get(identity)

    def keep(self, identity: str, tried: Tried) -> None:
        """Store a candidate's result atomically: a killed process leaves the old file or the new one. Raises
        EnvironmentFault."""
        self._tried[identity] = tried
        content = plain(_File(schema=_SCHEMA, session=self._session, tried=self._tried))
        try:
            with replaced(self.path, ".part-") as file:
                file.write(json.dumps(content, indent=1, allow_nan=False).encode())
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise EnvironmentFault(f"cannot write {printable(str(self.path), 200)}: {error.strerror}") from None

    def _read(self) -> dict[str, Tried]:
        try:
            with open_regular(self.path) as file:
                raw = file.read(_MOST_BYTES + 1)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise EnvironmentFault(f"cannot read {printable(str(self.path), 200)}: {error.strerror}") from None
        try:
            if len(raw) > _MOST_BYTES:
                raise ValueError
            found = msgspec.convert(msgspec.json.decode(raw), _File, strict=False)
            if found.schema != _SCHEMA or plain(found.session) != plain(self._session):
                raise ValueError
        except (msgspec.MsgspecError, ValueError, RecursionError):
            say(f"{printable(str(self.path), 200)} is damaged and not used")
            return {}
        return found.tried


@contextlib.contextmanager
def opened(folder: Path, session: Session) -> Iterator[State]:
    """Open the state of a session in a folder, which is created if needed. Only one process can have it at a time.
    Raises EnvironmentFault."""
    path = folder / f"{session.name}.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = open_lock(path.with_suffix(".lock"))
    except OSError as error:
        raise EnvironmentFault(f"cannot write {printable(str(folder), 200)}: {error.strerror}") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise EnvironmentFault("another process is doing the same bisection") from None
        yield State(path, session)
