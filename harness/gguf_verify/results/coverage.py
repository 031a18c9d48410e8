"""Records of the code of a kernel that was executed in a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

#: Line → whether it was executed; only lines with code.
Lines = Mapping[int, bool]
#: Line, and the number of the branch in it → for each way out of the branch, whether it was taken.
Branches = Mapping[tuple[int, int], tuple[bool, ...]]


@dataclass(frozen=True)
class Executed:
    """The code of one file that was executed. Instances of a template are one code."""

    lines: Lines = field(default_factory=dict)
    branches: Branches = field(default_factory=dict)

    def with_(self, other: Executed) -> Executed:
        """The code that was executed in one or the other."""
        lines = {line: self.lines.get(line, False) or other.lines.get(line, False) for line in {**self.lines, **other.lines}}
        branches = {**self.branches}
        for at, ways in other.branches.items():
            mine = branches.get(at, ())
            long, short = (ways, mine) if len(ways) >= len(mine) else (mine, ways)
            branches[at] = tuple(a or b for a, b in zip(long, (*short, *[False] * len(long)), strict=False))
        return Executed(lines, branches)


def joined(parts: Iterable[Mapping[str, Executed]]) -> dict[str, Executed]:
    """Files → the code that was executed in any of the parts."""
    found: dict[str, Executed] = {}
    for part in parts:
        for file, executed in part.items():
            found[file] = found.get(file, Executed()).with_(executed)
    return found


class NeverRan(msgspec.Struct, frozen=True, kw_only=True):
    """A line that was not executed, or a branch that was executed and always went the same way.

    Args:
        file: as its author names it.
        line: its number, from 1.
        source: the text of the line, shortened.
        branch: whether it is a branch.
        unreachable: the author's reason why no input reaches it; "" without one.
    """

    file: str
    line: int
    source: str
    branch: bool
    unreachable: str = ""

    @property
    def words(self) -> str:
        """The place and the text in one line."""
        what = "one way only" if self.branch else "never ran"
        why = f" (unreachable, says its author: {self.unreachable})" if self.unreachable else ""
        return f"{self.file}:{self.line} {what}: `{self.source}`{why}"


class CodeCoverage(msgspec.Struct, frozen=True, kw_only=True):
    """The code of a kernel that was executed by the calls that were judged.

    Args:
        unobserved: why it is not known; "" if it is. The other fields are then empty.
        lines, lines_run: number of lines with code, and of those that were executed.
        branches, branches_run: number of branches, and of those that were taken each way.
        never: what was not executed, in the order of the files, at most MOST_LISTED places.
    """

    unobserved: str = ""
    lines: int = 0
    lines_run: int = 0
    branches: int = 0
    branches_run: int = 0
    never: tuple[NeverRan, ...] = ()

    @property
    def open(self) -> tuple[NeverRan, ...]:
        """What was not executed, without what its author calls unreachable."""
        return tuple(place for place in self.never if not place.unreachable)

    @property
    def complete(self) -> bool:
        """Whether all code was executed, or is unreachable."""
        return not self.unobserved and not self.open

    @property
    def words(self) -> str:
        """The numbers in one line."""
        if self.unobserved:
            return f"not observed: {self.unobserved}"
        said = f"{self.lines_run:,} of {self.lines:,} lines, {self.branches_run:,} of {self.branches:,} branches both ways"
        marked = len(self.never) - len(self.open)
        return f"{said}; {marked:,} places are unreachable, says the author" if marked else said


#: Most places that a `CodeCoverage` lists.
MOST_LISTED = 200
