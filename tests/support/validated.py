"""Every JSON report of a run or a night and every certificate that tests make is compared with the schema that the
package ships: those that are made in this process, and the files that the command line writes in others.

What is not valid fails the test that made it, at its end (`conftest`).
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

from gguf_verify.certificates import schema as of_certificates
from gguf_verify.report import json as reports
from gguf_verify.report import schema as of_runs
from gguf_verify_nightly.report import json as nights
from gguf_verify_nightly.report import schema as nights_schema

#: Flags of the command line that name a file of JSON.
_FLAGS = ("-o", "--output", "--json", "--certificate")
#: A field that one kind has alone → its schema.
_KINDS = {
    "night": nights_schema.PATH, "rungs": of_runs.PATH,
    "predicateType": of_certificates.PATH,
}  # fmt: skip
#: What was not valid, since it was last asked for.
_flaws: list[str] = []


@cache
def _validator(path: Path) -> Draft202012Validator:
    return Draft202012Validator(json.loads(path.read_text()))


def check(made: Any, name: str) -> None:
    """Note where this is not what its schema says. Reports of other kinds have none."""
    for field, path in _KINDS.items():
        if isinstance(made, dict) and field in made:
            found = next(_validator(path).iter_errors(made), None)
            if found is not None:
                _flaws.append(f"{name} is not valid by {path.name}: {found.json_path}: {found.message[:300]}")
            return


def flaws() -> list[str]:
    """What was not valid since the last call."""
    found = [*_flaws]
    _flaws.clear()
    return found


def install() -> None:
    """Look at all that is made from now on. To be called before anything else imports the functions."""
    for module, name in ((reports, "of_run"), (nights, "of_night")):
        setattr(module, name, _checked(getattr(module, name)))
    begin, wait = subprocess.Popen.__init__, subprocess.Popen.wait

    def begun(process: subprocess.Popen[Any], *given: Any, **options: Any) -> None:
        folder, command = Path(options.get("cwd") or "").absolute(), given[0] if given else options.get("args")
        files = [folder / path for path in _written_by(command)]
        process.__dict__["files"] = [(path, _state(path)) for path in files]
        begin(process, *given, **options)

    def waited(process: subprocess.Popen[Any], timeout: float | None = None) -> int:
        code = wait(process, timeout)
        for path, before in process.__dict__.pop("files", ()):  # once
            if _state(path) not in (before, None):
                try:
                    made = json.loads(path.read_bytes())
                except (OSError, ValueError) as error:
                    _flaws.append(f"{path} is no JSON: {error}")
                else:
                    check(made, str(path))
        return code

    subprocess.Popen.__init__ = begun  # type: ignore[method-assign, assignment]
    subprocess.Popen.wait = waited  # type: ignore[method-assign, assignment]


def _checked(made_by: Callable[[Any], dict[str, Any]]) -> Callable[[Any], dict[str, Any]]:
    def making(report: Any) -> dict[str, Any]:
        made = made_by(report)
        check(json.loads(json.dumps(made)), "a report of this process")
        return made

    return making


def _state(path: Path) -> tuple[int, ...] | None:
    """What changes when a file is written; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _written_by(given: Any) -> Iterator[Path]:
    """The files that a command line is to write; none of a stand-in's."""
    if not isinstance(given, Sequence) or isinstance(given, str | bytes):
        return
    words = [os.fsdecode(word) if isinstance(word, bytes | os.PathLike) else str(word) for word in given]
    if not any(word == "gguf_verify" or word.endswith(("verify_model.py", "/gguf-verify")) for word in words):
        return
    for at, word in enumerate(words):
        flag, _, value = word.partition("=")
        if flag in _FLAGS and (value or at + 1 < len(words)):
            yield from [path for path in [Path(value or words[at + 1])] if path.suffix == ".json" or flag != "-o"]
