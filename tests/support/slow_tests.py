"""Which tests only `make test-all` runs: the cases of types that others represent, and what `tests/slow.txt` lists.

A line of the list is one of

    path.py                           every test of the module
    path.py::test_name                the test with all its cases
    path.py::test_name[case | case]   some of its cases
    !path.py::test_name[case | case]  cases that stay in `make test`, although the test or its module is listed
    !path.py::test_name               all cases stay, although some are of represented types
    # comment

The paths begin with `tests/`; in a case, `*` stands for any characters.

If a test has cases for more than `SWEEP` types of weights, `make test` runs only those of `REPRESENTATIVES`: one
for each way to build a block, so that code shared by types runs with each of them:

    Q4_0     32 values, one half scale, codes of 4 bits around a fixed zero
    Q5_1     a scale and a minimum, and a fifth bit that lies apart
    Q8_0     codes of whole bytes, blocks of 34 bytes that no vector load fits
    Q4_K     256 values, scales and minima of 6 bits below two halves
    Q6_K     scales of 8 bits, codes in two parts, the scale at the end
    IQ3_S    codes that are entries of a grid, with signs apart
    IQ4_NL   codes that are entries of a table
    MXFP4    a scale that is a power of two, floating-point codes
    TQ1_0    digits of base 3

Tests of what each type has of its own (its decoder, its layout, its kernels' loads) are exempt by a line of the list.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

REPRESENTATIVES = frozenset({"Q4_0", "Q5_1", "Q8_0", "Q4_K", "Q6_K", "IQ3_S", "IQ4_NL", "MXFP4", "TQ1_0"})
SWEEP = 8
_TYPE = re.compile(r"I?Q[1-8]_(?:[01K]|X*S|M|NL)|(?:MX|NV)FP4|TQ[12]_0")


def function_of(node_id: str) -> str:
    """The node id of a case's function: without its case."""
    return node_id.partition("[")[0]


def types_of(node_id: str) -> set[str]:
    """The types of weights that a case names."""
    case = node_id.partition("[")[2].removesuffix("]")
    return {word for word in case.split("-") if _TYPE.fullmatch(word)}


@dataclass(frozen=True)
class Line:
    """A line of the list."""

    text: str

    @property
    def function(self) -> str:
        """Of the function; that of the module where the line names one."""
        return function_of(self.text.removeprefix("!"))

    @cached_property
    def _cases(self) -> list[re.Pattern[str]]:
        """Patterns of cases; none where the line names them all."""
        _, some, found = self.text.partition("[")
        cases = found.removesuffix("]").split(" | ") if some else []
        return [re.compile(".*".join(map(re.escape, case.split("*")))) for case in cases]

    def names(self, node_id: str) -> bool:
        """Whether the line names this test, which is of its function or module."""
        case = node_id.partition("[")[2].removesuffix("]")
        return not self._cases or any(each.fullmatch(case) for each in self._cases)


@dataclass(frozen=True)
class SlowTests:
    """The list, as it was read."""

    lines: tuple[Line, ...]

    @classmethod
    def read(cls, path: Path) -> SlowTests:
        lines = path.read_text().splitlines()
        return cls(tuple(Line(line) for line in lines if line and not line.startswith("#")))

    @cached_property
    def _of_function(self) -> dict[str, list[Line]]:
        found: dict[str, list[Line]] = {}
        for line in self.lines:
            found.setdefault(line.function, []).append(line)
        return found

    def among(self, node_ids: Iterable[str]) -> set[str]:
        """The slow ones among the tests that were collected."""
        cases: dict[str, list[str]] = {}
        for node_id in node_ids:
            cases.setdefault(function_of(node_id), []).append(node_id)
        return {case for function, some in cases.items() for case in self._slow(function, some)}

    def _slow(self, function: str, cases: list[str]) -> Iterator[str]:
        lines = [line for name in (function.partition("::")[0], function) for line in self._of_function.get(name, ())]
        listed = [line for line in lines if not line.text.startswith("!")]
        kept = [line for line in lines if line.text.startswith("!")]
        sweeps = len(set().union(*map(types_of, cases))) > SWEEP
        for case in cases:
            represented = sweeps and not types_of(case) <= REPRESENTATIVES
            if (represented or any(line.names(case) for line in listed)) and not any(line.names(case) for line in kept):
                yield case
