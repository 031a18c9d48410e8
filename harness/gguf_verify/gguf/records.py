"""Records of the parser in addition to the file's content: byte ranges and findings.

`rules` lists all kinds of findings.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, NamedTuple, NoReturn

from .rules import RULES, Effect, Rule

if TYPE_CHECKING:  # at run time, completion in notebooks (jedi) fails on a property of such a type
    Severity = Literal["error", "warning", "note"]

#: The most findings of one rule that are listed; further ones are counted.
MAX_PER_RULE = 20


class Range(NamedTuple):
    """Bytes `start` up to, not including, `stop` of one file, and the one field that owns them.

    It is a named tuple because a large file has thousands of them.

    Args:
        start: absolute byte offset.
        stop: absolute byte offset after the last byte.
        kind: one of `KINDS`.
        owner: the key or tensor of the field, as in the file (not escaped), or "".
        note: the value, if it is short.
    """

    start: int
    stop: int
    kind: str
    owner: str = ""
    note: str = ""

    @property
    def nbytes(self) -> int:
        return self.stop - self.start


#: Every kind of byte range. A key or tensor name includes its length, dimensions include their number.
KINDS = (
    "magic", "version", "tensor count", "key count",
    "key", "value type", "element type", "element count", "value",
    "tensor name", "dimensions", "type", "offset",
    "padding", "data", "gap", "trailing",
    "unread",
)  # fmt: skip


@dataclass(frozen=True)
class Finding:
    """One fault of a file. All texts are escaped and fit on a line.

    Args:
        id: stable, e.g. `GGUF-013-duplicate-key`.
        effect: see `Rule.effect`.
        start: absolute offset of the first wrong byte.
        stop: absolute offset after the last one; equals `start` if bytes are missing.
        expected: what should be there.
        found: what is there.
        why: why it matters.
        owner: the key or tensor concerned, as in the file (not escaped), or "".
        part: index of the file in a split model.
        more: number of further findings of its rule that are not listed; 0 but for the last one that is.
        unlisted: their owners.
    """

    id: str
    effect: Effect
    start: int
    stop: int
    expected: str
    found: str
    why: str
    owner: str = ""
    part: int = 0
    more: int = 0
    unlisted: frozenset[str] = frozenset()

    @property
    def severity(self) -> Severity:
        return "error" if self.effect == "refuse" else self.effect

    @property
    def rule(self) -> Rule:
        return RULES[self.id.split("-", 2)[2]]

    def line(self) -> str:
        """Return one line without the file's name: offset, found, expected, id."""
        return f"byte {self.start}: {self.found}; expected {self.expected} [{self.id}]"


def finding(slug: str, start: int, stop: int, expected: str, found: str, owner: str = "") -> Finding:
    """Return a finding of the rule `slug`. Raises KeyError for a rule that does not exist."""
    rule = RULES[slug]
    return Finding(rule.id, rule.effect, start, stop, expected, found, rule.why, owner)


class Refused(Exception):
    """Raised when reading cannot go on, and caught within this package."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.line())
        self.finding = finding


def refuse(slug: str, start: int, stop: int, expected: str, found: str, owner: str = "") -> NoReturn:
    """Raise Refused with a finding of the rule `slug`."""
    raise Refused(finding(slug, start, stop, expected, found, owner))


class Findings:
    """Findings in the order in which they are added: at most `MAX_PER_RULE` of each rule, and a count of the others."""

    def __init__(self) -> None:
        self._kept: list[Finding] = []
        self._totals: Counter[str] = Counter()
        self._unlisted: defaultdict[str, set[str]] = defaultdict(set)

    def add(self, finding: Finding) -> None:
        self._totals[finding.id] += 1
        if self._totals[finding.id] <= MAX_PER_RULE:
            self._kept.append(finding)
        else:
            self._unlisted[finding.id].add(finding.owner)

    def listed(self, part: int | None = None) -> tuple[Finding, ...]:
        """Return all kept findings, with `part` if it is given.

        The last one of a rule states how many more there are.
        """
        left = Counter({id: min(total, MAX_PER_RULE) for id, total in self._totals.items()})
        listed = []
        for f in self._kept:
            left[f.id] -= 1
            more = self._totals[f.id] - MAX_PER_RULE
            if not left[f.id] and more > 0:
                unlisted = frozenset(self._unlisted[f.id])
                f = replace(f, found=f"{f.found} (and {more} more of this kind)", more=more, unlisted=unlisted)
            listed.append(f if part is None else replace(f, part=part))
        return tuple(listed)


def capped(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return at most `MAX_PER_RULE` findings of each rule. The last one of a rule states how many more there are."""
    kept = Findings()
    for f in findings:
        kept.add(f)
    return kept.listed()
