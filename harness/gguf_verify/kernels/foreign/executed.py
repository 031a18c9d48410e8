"""The verifier's side of coverage in a kernel's process, which is not trusted."""

from __future__ import annotations

from typing import Annotated

import msgspec

from ...results.coverage import Executed

#: Largest answer in bytes.
MOST_BYTES = 1 << 22
_Line = Annotated[int, msgspec.Meta(ge=1, lt=10**7)]
_Number = Annotated[int, msgspec.Meta(ge=0, lt=10**4)]
_Ways = Annotated[tuple[bool, ...], msgspec.Meta(min_length=1, max_length=16)]
_Path = Annotated[str, msgspec.Meta(max_length=4096, pattern="^/")]
_Words = Annotated[str, msgspec.Meta(max_length=400)]


class _File(msgspec.Struct, forbid_unknown_fields=True):
    lines: list[tuple[_Line, bool]]
    branches: list[tuple[_Line, _Number, _Ways]]


class _Said(msgspec.Struct, forbid_unknown_fields=True):
    files: Annotated[dict[_Path, _File], msgspec.Meta(max_length=1000)]
    unobserved: Annotated[list[_Words], msgspec.Meta(max_length=100)]


def executed_by_python(raw: bytes) -> tuple[dict[str, Executed], tuple[str, ...]]:
    """Read the answer to the action `executed` of a kernel in Python.

    Returns its files by absolute path; and the code that was not observed, in words: without files, the reason. Both
    are empty if the answer is invalid.
    """
    if len(raw) > MOST_BYTES:
        return {}, ()
    try:
        said = msgspec.json.decode(raw, type=_Said)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return {}, ()
    if not all(text.isprintable() for text in (*said.files, *said.unobserved)):
        return {}, ()
    files = {
        path: Executed(dict(file.lines), {(line, number): ways for line, number, ways in file.branches})
        for path, file in said.files.items()
    }
    return files, tuple(said.unobserved)
