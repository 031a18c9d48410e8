"""The results file docs/mutation.json: the measured mutation score, naming and false alarms.

    {"kill": {"population": {file: number of mutants}, "sources": {file: hash},
              "mutants": {file: {"line:column:operator": outcome}}, "survivors": [record], "beside": [record]},
     "checked": {…}, "catalogue": {subject: {fault: outcome}}, "naming": {…}, "alarms": {host: {…}}}

An outcome is a letter, followed for a mutant that was killed or passed by two hexadecimal digits: a bit for each of
OTHER_CHECKS that also catches it. A `t` at the end says that the time limit killed it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from gguf_verify.support.errors import UsageError
from gguf_verify.support.paths import CHECKOUT

RESULTS = CHECKOUT / "docs" / "mutation.json"

Data = dict[str, Any]

LETTERS = {"killed": "K", "passed": "P", "missed": "M", "same": "s", "uncompilable": "u", "unobservable": "o"}
_NAMES = {letter: name for name, letter in LETTERS.items()}
#: The checks with which gguf-verify is compared: each of three, against the float32 product of the weights' values and
#: against the kernel's declared definition. The order is that of the bits in an outcome.
OTHER_CHECKS = tuple(
    f"{check} {against}" for check in ("nmse", "allclose", "cosine") for against in ("values", "definition")
)


def encoded(outcome: str, checks: Iterable[str] = (), late: bool = False) -> str:
    """An outcome as the file has it.

    Args:
        checks: which of OTHER_CHECKS catch it.
        late: the time limit killed it.
    """
    letter = LETTERS[outcome]
    digits = f"{sum(1 << OTHER_CHECKS.index(c) for c in checks):02x}" if letter in "KP" else ""
    return letter + digits + "t" * late


def decoded(code: str) -> tuple[str, frozenset[str]]:
    """Decode an outcome: its name, and the other checks that catch it. Raises ValueError for an invalid code."""
    if code[:1] not in _NAMES:
        raise ValueError(f"{code!r} is no outcome")
    mask = int(code[1:].removesuffix("t") or "0", 16)
    return _NAMES[code[0]], frozenset(c for i, c in enumerate(OTHER_CHECKS) if mask >> i & 1)


def load(path: Path) -> Data:
    """Read the results; {} if the file does not exist. Raises UsageError if it is damaged."""
    if not path.exists():
        return {}
    try:
        data = json.loads(path.read_text())
        for of_file in data.get("kill", {}).get("mutants", {}).values():
            for code in of_file.values():
                decoded(code)
        return dict(data)
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise UsageError(f"{path} holds no results: {error}") from None


def save(path: Path, data: Data) -> None:
    """Write the results: compact, but with one line per source file, so that differences are readable."""
    text = json.dumps(data, ensure_ascii=False, sort_keys=True)
    files = r'(\}, |\{)("(?:gemm|formats|pack|quantize|common|packed|q8_1|f32)[\w./ ]*": \{)'
    path.write_text(re.sub(files, r"\1\n\2", text) + "\n")


def read_lines(path: Path) -> Iterator[Data]:
    """Yield the records of a file with one JSON object per line. Truncated lines are skipped."""
    for line in path.read_text().splitlines() if path.exists() else ():
        with contextlib.suppress(ValueError):
            entry = json.loads(line)
            if isinstance(entry, dict):
                yield entry


def append_line(path: Path, entry: Data) -> None:
    """Append a record to such a file, by a single write, so that the lines of two processes do not mix."""
    with path.open("a") as file:
        file.write(json.dumps(entry, ensure_ascii=False) + "\n")


def update(path: Path, **parts: Any) -> None:
    """Replace parts of the results."""
    save(path, load(path) | parts)


def add_argument(parser: argparse.ArgumentParser) -> None:
    """Add the option for the results file."""
    parser.add_argument(
        "--results",
        type=Path,
        default=RESULTS,
        metavar="FILE",
        help="file of results (default: docs/mutation.json in the checkout)",
    )
