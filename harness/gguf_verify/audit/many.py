"""Audits of several files: finding the files, and the combined result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..gguf.model import PART_NAME
from ..support.address import Address
from ..support.errors import (
    EXIT_ENVIRONMENT,
    EXIT_MALFORMED,
    EXIT_MISMATCH,
    EXIT_UNVERIFIED,
    EXIT_USAGE,
    EXIT_VERIFIED,
    HarnessError,
    NoSuchFile,
    UsageError,
)
from ..support.text import printable
from .record import Audit

#: Exit codes from worst to best; that of several files is the worst of theirs.
PRECEDENCE = (EXIT_MALFORMED, EXIT_MISMATCH, EXIT_ENVIRONMENT, EXIT_USAGE, EXIT_UNVERIFIED, EXIT_VERIFIED)
#: Limit of files per command.
MAX_FILES = 10_000


@dataclass(frozen=True)
class Unopened:
    """A file that could not be audited at all, and the reason in one line."""

    path: Path | Address
    why: str
    exit_code: int

    @property
    def verdict(self) -> str:
        return "refused" if self.exit_code == EXIT_MALFORMED else "broken off"


@dataclass
class Audits:
    """The audits of several files, in order.

    Args:
        audits: one per file or split model.
        seconds: total time.
        command: the command line that repeats them.
    """

    audits: tuple[Audit | Unopened, ...]
    seconds: float = 0.0
    command: str = ""
    strict: bool = field(default=False)

    @property
    def exit_code(self) -> int:
        """The worst exit code, in the order of `PRECEDENCE`."""
        codes = {a.exit_code for a in self.audits}
        return next((code for code in PRECEDENCE if code in codes), EXIT_VERIFIED)

    @property
    def verdicts(self) -> Counter[str]:
        """Number of files by verdict."""
        return Counter(a.verdict for a in self.audits)

    @property
    def verdict(self) -> str:
        """The verdict of the worst file."""
        code = self.exit_code
        words = Counter(a.verdict for a in self.audits if a.exit_code == code)
        return min(words, key=lambda word: (word == "clean", word != "warnings", word)) if words else "clean"

    @property
    def opened(self) -> tuple[Audit, ...]:
        """The audits of files that could be opened."""
        return tuple(a for a in self.audits if isinstance(a, Audit))


def gguf_files(paths: Sequence[Path | Address]) -> list[Path | Address]:
    """List the given files and every *.gguf in the given folders, each once.

    Of a split model in a folder, only the first part is listed, if it is there. Raises UsageError if a folder holds no
    such file, or there are too many.
    """
    found: dict[Path | Address, Path | Address] = {}
    for path in paths:
        if isinstance(path, Address):
            found[path] = path
            continue
        listed = [path] if not path.is_dir() else list(_in_folder(path))
        if not listed:
            raise UsageError(f"no .gguf file in {printable(str(path))}")
        for file in listed:
            found.setdefault(file.absolute(), file)
            if len(found) > MAX_FILES:
                raise UsageError(f"more than {MAX_FILES:,} files")
    return list(found.values())


def _in_folder(folder: Path) -> Iterator[Path]:
    for file in sorted(p for p in folder.rglob("*.gguf") if p.is_file()):
        name = PART_NAME.fullmatch(file.name)
        if name is not None and int(name["no"]) != 1:
            first = file.with_name(f"{name['prefix']}-00001-of-{name['count']}.gguf")
            if first.exists():
                continue
        yield file


def audit_each(paths: Sequence[Path | Address], run: Callable[[Path | Address], Audit]) -> tuple[Audit | Unopened, ...]:
    """Audit each file; a file that cannot be opened does not stop the others. Raises UsageError if none can be audited
    for the same reason."""
    done: list[Audit | Unopened] = []
    for path in paths:
        try:
            done.append(run(path))
        except HarnessError as error:
            if isinstance(error, UsageError) and not isinstance(error, NoSuchFile):
                raise
            done.append(Unopened(path, str(error), error.exit_code))
    return tuple(done)
