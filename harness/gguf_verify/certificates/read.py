"""The canonical form of a certificate, and its reader, which trusts nothing in the file.

The form is JSON in UTF-8 with sorted keys, an indent of one blank and a newline at the end. Any other form of the same
statement is rejected, so that no key can occur twice, and the signed bytes are unique.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from ..results.failures import CULPRITS
from ..support.errors import EXIT_MALFORMED, EXIT_MISMATCH, EXIT_UNVERIFIED, EXIT_VERIFIED, HarnessError, UsageError
from ..support.files import open_regular
from ..support.text import printable
from .records import PREDICATE_TYPE, STATEMENT_TYPE, Statement

#: Size limit of a certificate in bytes.
MOST_BYTES = 4 << 20
#: Verdict → its exit code.
_CODES = {
    "verified": EXIT_VERIFIED, "waived": EXIT_VERIFIED, "mismatch": EXIT_MISMATCH, "broken off": 3,
    "not everything verified": EXIT_UNVERIFIED,
}  # fmt: skip


class NotACertificate(HarnessError):
    """A file is not a certificate, or contradicts itself."""

    exit_code = EXIT_MALFORMED


def canonical(statement: Statement) -> bytes:
    """Return the bytes of a certificate, which are signed."""
    made: Any = msgspec.to_builtins(statement)
    return (json.dumps(made, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n").encode()


def read_bytes(path: Path, what: str, most: int = MOST_BYTES) -> bytes:
    """Return a regular file's bytes. Raises UsageError if it cannot be read, NotACertificate if it has more than `most`
    bytes."""
    shown = printable(path.name, 100)
    try:
        with open_regular(path) as file:
            raw = file.read(most + 1)
    except OSError as error:
        raise UsageError(f"cannot read the {what} {shown}: {error.strerror}") from None
    except ValueError:  # a NUL in the path
        raise UsageError(f"cannot read the {what} {shown}") from None
    if len(raw) > most:
        raise NotACertificate(f"{shown}: a {what} has at most {most:,} bytes")
    return raw


def read_certificate(path: Path) -> tuple[Statement, bytes]:
    """Return a certificate and its bytes. Raises UsageError if there is no such file, NotACertificate if it is none."""
    raw = read_bytes(path, "certificate")
    return parse(raw, printable(path.name, 100)), raw


def parse(raw: bytes, shown: str = "this") -> Statement:
    """Parse a certificate. Raises NotACertificate, naming the error."""
    try:
        statement = msgspec.json.decode(raw, type=Statement)
        same = canonical(statement) == raw
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise NotACertificate(f"{shown} is not a certificate: {printable(str(error), 200)}") from None
    if not same:
        raise NotACertificate(
            f"{shown} is not a certificate: it is not in canonical form, so its keys may be unknown or occur twice"
        )
    flaw = _contradiction(statement)
    if flaw:
        raise NotACertificate(f"{shown} is not a certificate: {flaw}")
    return statement


def _contradiction(statement: Statement) -> str:
    """Describe the first contradiction in a statement; "" if there is none."""
    said = statement.predicate
    if statement.type != STATEMENT_TYPE or statement.predicate_type != PREDICATE_TYPE:
        return f"its predicate is {printable(statement.predicate_type, 100)}; this program reads {PREDICATE_TYPE}"
    names = [subject.name for subject in statement.subject]
    parts = [*said.model.files, *said.kernel.files]
    if len({*names}) != len(names) or sorted(parts) != sorted(names):
        return "its subjects are not the files of its model and kernel, each once"
    if not said.model.files or not (said.kernel.files or said.kernel.unknown):
        return "it lists no file of its model, or none of its kernel"
    if _CODES.get(said.verdict) != said.exit_code:
        return f"the verdict {printable(said.verdict, 40)} does not have the exit code {said.exit_code}"
    if not {*said.culprits} <= {*CULPRITS}:
        return "it names an unknown culprit"
    verdicts = [rung.verdict for rung in said.rungs]
    if said.exit_code == EXIT_VERIFIED:
        if said.not_climbed or not verdicts or not {*verdicts} <= {"passed", "waived"} or said.culprits:
            return "its verdict is verified, but that of one of its rungs is not"
        if tuple(rung.name for rung in said.rungs) != said.asked.rungs:
            return "its verdict is verified, but not all of its rungs were run"
        if (said.verdict == "waived") != ("waived" in verdicts):
            return "its verdict and its rungs disagree about waivers"
    if said.exit_code == EXIT_MISMATCH and "failed" not in verdicts:
        return "its verdict is a mismatch, but none of its rungs failed"
    for rung in said.rungs:
        if rung.verdict == "passed" and (rung.failures or rung.unverified or not any(rung.checked.values())):
            return f"the rung {printable(rung.name, 40)} passed, but its counts say otherwise"
    return ""
