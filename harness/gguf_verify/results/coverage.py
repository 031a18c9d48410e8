"""Records of the code of a kernel that was executed in a run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, zip_longest

import msgspec

from ..support.text import counted, printable

#: Line → whether it was executed; only lines with code.
Lines = Mapping[int, bool]
#: Line, and the number of the branch in it → for each way out of the branch, whether it was taken.
Branches = Mapping[tuple[int, int], tuple[bool, ...]]


@dataclass(frozen=True)
class Outcomes:
    """The outcomes of a comparison, which is no branch, in the calls in which comparisons were observed.

    Args:
        operator: of `a operator b`, or of its opposite: "==", "<" or "<=".
        seen: bit 0: a < b, 1: a = b, 2: a > b; 3 to 5: the same of integers read as unsigned.
        varied: whether its operands differed between calls with one type of weights.
    """

    operator: str
    seen: int
    varied: bool

    def with_(self, other: Outcomes) -> Outcomes:
        """The outcomes in the calls of both."""
        return Outcomes(self.operator, self.seen | other.seen, self.varied or other.varied)

    @property
    def one_sided(self) -> bool:
        """Whether it had one outcome only, though its operands differed."""
        true = {"==": 2, "<": 1, "<=": 3}[self.operator]
        both = any(seen & true and seen & ~true for seen in (self.seen & 7, self.seen >> 3))
        return self.varied and not both

    @property
    def words(self) -> str:
        """The outcome that it had in all calls."""
        if self.operator != "==":
            return "compared the same way in every call"
        return "never compared equal" if self.seen & 5 else "always compared equal"


#: Line, and the number of a comparison in it → its outcomes.
Comparisons = Mapping[tuple[int, int], Outcomes]


@dataclass(frozen=True)
class Executed:
    """The code of one file that was executed. Instances of a template are one code."""

    lines: Lines = field(default_factory=dict)
    branches: Branches = field(default_factory=dict)
    comparisons: Comparisons = field(default_factory=dict)

    def with_(self, other: Executed) -> Executed:
        """The code that was executed in one or the other."""
        lines, branches = {**self.lines}, {**self.branches}
        for line, ran in other.lines.items():
            lines[line] = ran or lines.get(line, False)
        for at, ways in other.branches.items():
            branches[at] = tuple(a or b for a, b in zip_longest(ways, branches.get(at, ()), fillvalue=False))
        comparisons = {**self.comparisons}
        for at, outcomes in other.comparisons.items():
            comparisons[at] = outcomes.with_(comparisons[at]) if at in comparisons else outcomes
        return Executed(lines, branches, comparisons)


@dataclass(frozen=True)
class Execution:
    """The author's code of a kernel that its processes have executed: file → its code.

    `missing` says why nothing, or not everything, is known.
    """

    files: Mapping[str, Executed] = field(default_factory=dict)
    missing: tuple[str, ...] = ()

    def with_(self, other: Execution) -> Execution:
        """The code that was executed by one or the other."""
        return Execution(joined((self.files, other.files)), tuple(dict.fromkeys((*self.missing, *other.missing))))


def joined(parts: Iterable[Mapping[str, Executed]]) -> dict[str, Executed]:
    """Files → the code that was executed in any of the parts."""
    found: dict[str, Executed] = {}
    for part in parts:
        for file, executed in part.items():
            found[file] = found.get(file, Executed()).with_(executed)
    return found


class NeverRan(msgspec.Struct, frozen=True, kw_only=True):
    """Lines in a row that were not executed, a branch of an executed line that was not taken each way, or a comparison
    on it whose outcome is a value and was the same in all calls in which comparisons were observed.

    Args:
        file: as its author names it.
        line, last: the numbers of the first and the last line, from 1.
        source: the text of the first line, shortened.
        branch: whether it is a branch.
        comparison: of a comparison that is no branch, the outcome that it had in all calls; absent for others.
        unreachable: the author's reason why no input reaches it; "" without one.
        impossible: what shows that no product in the kernel's domain reaches it; "" without.
    """

    file: str
    line: int
    last: int
    source: str
    branch: bool
    comparison: str | msgspec.UnsetType = msgspec.UNSET
    unreachable: str = ""
    impossible: str = ""

    @property
    def open(self) -> bool:
        """Whether an input may reach it."""
        return not self.unreachable and not self.impossible

    @property
    def what(self) -> str:
        """What did not happen there."""
        return self.comparison or ("went one way only" if self.branch else "never ran")

    @property
    def words(self) -> str:
        """The place and the text in one line."""
        place = f"{self.file}:{self.line}" + (f"–{self.last}" if self.last > self.line else "")
        why = f" (unreachable, says its author: {self.unreachable})" if self.unreachable else ""
        why = f" (impossible: {self.impossible})" if self.impossible else why
        return f"{place} {self.what}: {self.source}{why}"


class CodeCoverage(msgspec.Struct, frozen=True, kw_only=True):
    """The code of a kernel's author that the calls of a run executed. Instances of a template are one code.

    Args:
        missing: why nothing, or not everything, is known.
        lines, lines_run: number of lines with code, and of those that were executed.
        branches, branches_run: number of branches, and of those that were taken each way.
        n_never: number of places that were not executed and may be reached: no author calls them unreachable, and
            nothing shows that they are impossible.
        never: the first MOST_LISTED places that were not executed, in the order of the files.
    """

    missing: tuple[str, ...] = ()
    lines: int = 0
    lines_run: int = 0
    branches: int = 0
    branches_run: int = 0
    n_never: int = 0
    never: tuple[NeverRan, ...] = ()

    @property
    def open(self) -> tuple[NeverRan, ...]:
        """The listed places that an input may reach."""
        return tuple(place for place in self.never if place.open)

    @property
    def complete(self) -> bool:
        """Whether all code was executed, or is unreachable."""
        return not self.missing and not self.n_never

    @property
    def words(self) -> str:
        """The numbers in one line."""
        said = [f"not observed: {'; '.join(self.missing)}"] if self.missing else []
        if self.lines:
            said.insert(0, f"{self.lines_run:,} of {self.lines:,} lines")
        if self.branches:
            said.insert(1, f"{self.branches_run:,} of {self.branches:,} branches both ways")
        shown = sum(bool(place.impossible) for place in self.never)
        marked = sum(not place.open for place in self.never) - shown
        said += [counted(shown, "places impossible in its domain")] if shown else []
        return ", ".join([*said, counted(marked, "places unreachable, says the author")] if marked else said)


#: Most places that a `CodeCoverage` lists.
MOST_LISTED = 200
_MOST_SOURCE = 100
#: The author's mark on a line, which also holds for the lines behind it that are indented further.
_MARK = re.compile(r"(?://|#)\s*gguf-verify:\s*unreachable\s+because\s+(.+)")


class Noted:
    """Notes the outcomes of comparisons in calls.

    Attributes:
        outcomes: file → its comparisons, by line and number.
    """

    def __init__(self) -> None:
        self.outcomes: dict[str, dict[tuple[int, int], Outcomes]] = {}
        self._operands: dict[tuple[object, ...], object] = {}

    def note(self, fmt: str, file: str, at: tuple[int, int], outcomes: Outcomes, operands: object) -> None:
        """Note a comparison in a call with a type of weights; `operands` are compared with those of other calls."""
        of_file, varied = (
            self.outcomes.setdefault(file, {}),
            self._operands.setdefault((fmt, file, at), operands) != operands,
        )
        new = Outcomes(outcomes.operator, outcomes.seen, varied)
        of_file[at] = of_file[at].with_(new) if at in of_file else new


def one_sided(compared: Mapping[str, Comparisons]) -> int:
    """The number of comparisons, of files, that had one outcome only."""
    return sum(of.one_sided for file in compared.values() for of in file.values())


def coverage_of(
    execution: Execution | None, texts: Mapping[str, str], impossible: Mapping[str, Mapping[int, str]] | None = None
) -> CodeCoverage | None:
    """The coverage of a kernel at the end of a run; None for a kernel of this project.

    Args:
        texts: the author's files that are observed: file → text.
        impossible: file → line → what shows that no product reaches it, or one way of its branch.
    """
    if execution is None:
        return None
    found, lines, branches = list[NeverRan](), list[bool](), list[bool]()
    for file, executed in sorted(execution.files.items()):
        lines += executed.lines.values()
        branches += [all(ways) for ways in executed.branches.values()]
        found += _never(file, texts.get(file, "").splitlines(), executed, (impossible or {}).get(file, {}))
    missing = execution.missing or (() if execution.files else ("it was not called",))
    return CodeCoverage(
        missing=missing, lines=len(lines), lines_run=sum(lines), branches=len(branches), branches_run=sum(branches),
        n_never=sum(place.open for place in found), never=tuple(found[:MOST_LISTED]),
    )  # fmt: skip


def _never(file: str, text: Sequence[str], executed: Executed, impossible: Mapping[int, str]) -> Iterator[NeverRan]:
    """What was not executed of a file, in the order of its lines."""
    marked, places = _marks(text), dict[int, int]()
    said = {line: (marked.get(line, ""), impossible.get(line, "")) for line in executed.lines}
    for (ran, _), group in groupby(sorted(executed.lines.items()), lambda item: (item[1], said[item[0]])):
        run = [line for line, _ in group]
        places |= {} if ran else {run[0]: run[-1]}
    branches = {line for (line, _), ways in executed.branches.items() if executed.lines.get(line) and not all(ways)}
    never = {line for first, last in places.items() for line in range(first, last + 1)} | branches
    alike = {line: of.words for (line, _), of in sorted(executed.comparisons.items(), reverse=True) if of.one_sided}
    alike = {line: words for line, words in alike.items() if line not in never and executed.lines.get(line, True)}
    for line in sorted(branches | places.keys() | alike.keys()):
        yield NeverRan(
            file=printable(file, _MOST_SOURCE),
            line=line,
            last=places.get(line, line),
            source=printable(text[line - 1].strip(), _MOST_SOURCE) if line <= len(text) else "",
            branch=line in branches,
            comparison=alike.get(line, msgspec.UNSET),
            unreachable=marked.get(line, ""),
            impossible=printable(impossible.get(line, ""), _MOST_SOURCE),
        )


def _marks(text: Sequence[str]) -> dict[int, str]:
    """Line → the author's reason why it is not reached."""
    found, inside, why = dict[int, str](), 0, ""
    for number, line in enumerate(text, 1):
        indented = len(line) - len(line.lstrip())
        if mark := _MARK.search(line):
            why, inside = printable(mark[1].strip(), _MOST_SOURCE), indented
            found[number] = why
        elif why and line.strip() and indented <= inside:
            why = ""
        elif why:
            found[number] = why
    return found
