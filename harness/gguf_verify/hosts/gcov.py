"""The lines and branches of a foreign source that were executed, from GCC's counters by gcov.

GCC writes notes on the branches of what it compiles; the library counts (`compiler.COUNTS`), and its process tells the
counters. Both come from untrusted hands: gcov reads them in the compiler's sandbox, and its result is read with limits.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path

import msgspec

from ..results.coverage import Executed, joined
from ..support import scratch
from ..support.errors import EnvironmentFault
from .compiler import gcov
from .foreign_sources import as_foreign, read_limited

#: Most bytes of the counters of a library, and of gcov's result.
MOST_COUNTERS, _MOST_RESULT = 1 << 22, 1 << 26
_MOST_LINE = 10_000_000


class _Branch(msgspec.Struct):
    count: int
    throw: bool


class _Line(msgspec.Struct):
    line_number: int
    count: int
    branches: list[_Branch]


class _File(msgspec.Struct):
    file: str
    lines: list[_Line]


class _Result(msgspec.Struct):
    """The part of gcov's JSON that is read (GCC 9 and newer, format version 1)."""

    files: list[_File]
    current_working_directory: str = ""


def executed(root: Path, notes: bytes, counters: bytes, named: Callable[[str], str | None]) -> dict[str, Executed]:
    """Return what was executed of each of the author's files.

    Args:
        root: the folder of the sources, which is marked as foreign.
        notes, counters: GCC's files of a unit.
        named: returns the author's name of a file that gcov names; None for a file that is not the author's.

    Raises EnvironmentFault if gcov cannot read them.
    """
    source, tool = as_foreign(root), gcov()
    assert source is not None
    assert tool is not None
    with scratch.temporary("gcov") as folder:
        (folder / "unit.gcno").write_bytes(notes)
        (folder / "unit.gcda").write_bytes(counters)
        command = ["env", "-C", str(folder), tool, "--json-format", "--branch-probabilities", "unit.gcda"]
        done = source.run(command, folder)
        made = sorted(folder.glob("*.gcov.json.gz"))
        if done.returncode or len(made) != 1:
            raise EnvironmentFault("gcov cannot read the counters of the kernel's process")
        return _read(_inflated(read_limited(made[0])), named)


def _inflated(content: bytes) -> bytes:
    inflating = zlib.decompressobj(zlib.MAX_WBITS | 16)
    try:
        result = inflating.decompress(content, _MOST_RESULT)
    except zlib.error:
        raise EnvironmentFault("gcov's result cannot be read") from None
    if not inflating.eof:
        raise EnvironmentFault(f"gcov's result is larger than {_MOST_RESULT:,} bytes")
    return result


def _read(content: bytes, named: Callable[[str], str | None]) -> dict[str, Executed]:
    try:
        result = msgspec.json.decode(content, type=_Result)
    except msgspec.DecodeError:
        raise EnvironmentFault("gcov's result cannot be read") from None
    parts = []
    for file in result.files:
        name = named(str(Path(result.current_working_directory, file.file)))
        if name is not None:
            # the instances of a template, and the copies of an inlined function, have the same lines
            parts += [{name: _line(line)} for line in file.lines if 0 < line.line_number < _MOST_LINE]
    return joined(parts)


def _line(line: _Line) -> Executed:
    ways = list[bool]()
    for branch in line.branches:
        if branch.throw:  # the other way of a call that may throw is that it returns
            del ways[-1:]
        else:
            ways.append(branch.count > 0)
    at = line.line_number
    # GCC lists the ways of each condition one after the other. A switch has more than two, all of which count.
    return Executed({at: line.count > 0}, {(at, i // 2): tuple(ways[i : i + 2]) for i in range(0, len(ways), 2)})
