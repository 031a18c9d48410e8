"""The verifier's side of coverage in a kernel's process, which is not trusted."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

import msgspec

from ...results.coverage import Executed
from .observation import CUT, LINE, LOG_HEAD, MET, WAY

#: Largest answer in bytes, and size of a log.
MOST_BYTES, LOG_BYTES = 1 << 22, 1 << 20
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


class _Met(msgspec.Struct, array_like=True, forbid_unknown_fields=True, tag=MET):
    """A code object: its file, its lines, and line and number of ways of its branches."""

    path: _Path
    lines: list[_Line]
    branches: list[tuple[_Line, Annotated[int, msgspec.Meta(ge=1, le=16)]]]


class _Ran(msgspec.Struct, array_like=True, forbid_unknown_fields=True, tag=LINE):
    """A line of the code object of a number ran."""

    code: _Number
    line: _Line


class _Way(msgspec.Struct, array_like=True, forbid_unknown_fields=True, tag=WAY):
    """A way of a branch was taken."""

    code: _Number
    branch: _Number
    way: Annotated[int, msgspec.Meta(ge=0, lt=16)]


class _Cut(msgspec.Struct, array_like=True, forbid_unknown_fields=True, tag=CUT):
    """Something in a code object may have run unseen."""

    code: _Number


_ENTRIES = msgspec.json.Decoder(_Met | _Ran | _Way | _Cut)


def executed_until_death(log: bytes) -> dict[str, Executed]:
    """Read the log of a kernel in Python whose process ended: its files by absolute path; none if it is invalid.

    Functions that have not run are not among them: another tool may have compiled them.
    """
    end, full = LOG_HEAD.unpack_from(log) if len(log) >= LOG_HEAD.size else (0, 0)
    if not LOG_HEAD.size <= end <= len(log):
        return {}
    codes, ran = list[_Met](), dict[int, tuple[set[int], set[tuple[int, int]]]]()
    cut = set[int]()
    try:
        for entry in _ENTRIES.decode_lines(log[LOG_HEAD.size : end]):
            if isinstance(entry, _Met):
                codes.append(entry)
            elif isinstance(entry, _Cut):
                cut.add(entry.code)
            else:
                lines, ways = ran.setdefault(entry.code, (set(), set()))
                if isinstance(entry, _Ran):
                    lines.add(entry.line)
                else:
                    ways.add((entry.branch, entry.way))
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return {}
    if not all(code.path.isprintable() for code in codes):
        return {}
    lines_of, branches_of = dict[str, dict[int, bool]](), dict[str, dict[tuple[int, int], tuple[bool, ...]]]()
    unknown, numbers = set[tuple[str, int]](), Counter[tuple[str, int]]()
    for i, code in enumerate(codes):
        lines, ways = ran.get(i, (set(), set()))
        known = i in ran and i not in cut and not full
        of_lines, of_branches = lines_of.setdefault(code.path, {}), branches_of.setdefault(code.path, {})
        for line in code.lines:
            of_lines[line] = line in lines and of_lines.get(line, True)
            if line not in lines and not known:
                unknown.add((code.path, line))
        for branch, (line, count) in enumerate(code.branches):
            taken = tuple((branch, way) in ways for way in range(count))
            if all(taken) or known:
                of_branches[line, numbers[code.path, line]] = taken
            numbers[code.path, line] += 1
    return {
        path: Executed({line: of[line] for line in of if (path, line) not in unknown}, branches_of[path])
        for path, of in lines_of.items()
    }


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
