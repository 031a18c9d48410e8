"""Comparisons in compiled code whose outcome is a value, and decides no branch.

GCC's counters see branches. `acc *= 1 + (M % 251 == 7)` has none, yet a traced build notes its operands. What the note
lacks, the operator and the use, is in GCC's dump of the code in which it put its notes (`-fdump-tree-sancov-lineno`):

    [k.cu:45:30] __builtin___sanitizer_cov_trace_const_cmp8 (7, _73);
    [k.cu:45:30] _9 = _8 == 7;

Comparisons of a value with itself (a test for NaN) and selections of one of the compared values (a minimum, a clamp)
are omitted. So are values that only decide branches.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

#: GCC's option, to which the name of the file is added, and the most bytes of the dump that are read.
DUMPS, MOST_DUMPED = "-fdump-tree-sancov-lineno=", 1 << 26
_MOST_LISTED = 2000
_AT = r"\s*(?:\[(?P<file>[^\]\n]*?):(?P<line>\d+):(?P<column>\d+)(?: discrim \d+)?\] )?"
_NOTE = re.compile(
    rf"{_AT}__builtin___sanitizer_cov_trace_(?P<const>const_)?cmp(?P<kind>\w) \((?P<a>[^,]+), (?P<b>.+)\);"
)
_A, _B = r"(?P<a>[^\s(]+(?:\(D\))?)", r"(?P<b>[^\s;()]+(?:\(D\))?)"
_MADE = re.compile(rf"{_AT}(?P<to>if \(|\S+ = ){_A} (?P<op>[=!<>]=|[<>]) {_B}(?: \? (?P<yes>.+) : (?P<no>.+))?")
_LOCATION = re.compile(r"\[[^\]\n]*:\d+:\d+[^\]\n]*\] ")
_NAME = re.compile(r"[\w.]*_\d+(?:\(D\))?")
_BITS = {"1": 8, "2": 16, "4": 32, "8": 64}


class ValueComparison(NamedTuple):
    """A comparison of the author's code.

    Args:
        file, line, column: where GCC places it.
        operator: that of the noted operands a and b, or of its opposite: "==", "<" or "<=".
        constant: the constant that it compares with, read as signed; None: it compares with none.
        value: whether its outcome is used as a value.
    """

    file: str
    line: int
    column: int
    operator: str
    constant: int | None
    value: bool


def comparisons_in(dump: str, authors: str) -> list[ValueComparison]:
    """Return the noted comparisons of the files whose names begin with `authors`, each once.

    Args:
        dump: GCC's, of all functions of a unit.
    """
    found = dict[ValueComparison, None]()
    for function in re.split(r"^;; Function ", dump, flags=re.MULTILINE):
        if authors in function:
            found |= dict.fromkeys(_in_function(function.splitlines(), authors))
    return [*found][:_MOST_LISTED]


def _in_function(lines: Sequence[str], authors: str) -> Iterator[ValueComparison]:
    for i, text in enumerate(lines[:-1]):
        note = _NOTE.match(text)
        made = _MADE.match(lines[i + 1]) if note else None
        file = note and made and (made["file"] or note["file"])
        if not (note and made and file and file.startswith(authors)):
            continue
        line, column = int(made["line"] or note["line"]), int(made["column"] or note["column"])
        # a note has its constant first
        strict = ("<", ">=") if note["const"] is None else (">", "<=")
        operator = "==" if made["op"] in ("==", "!=") else "<" if made["op"] in strict else "<="
        if note["const"] is None:
            constant = None
        else:
            bits, constant = _BITS[note["kind"]], int(note["a"]) if note["a"].lstrip("-").isdecimal() else None
            constant = constant if constant is None else (constant + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)
        yield ValueComparison(file, line, column, operator, constant, _is_value(made, lines))


def _is_value(made: re.Match[str], lines: Sequence[str]) -> bool:
    """Whether the outcome is used as a value that is no selection of what is compared."""
    if made["to"] == "if (" or made["a"] == made["b"]:
        return False
    if made["yes"] is not None:
        return not {_plain(made["yes"]), _plain(made["no"])} <= {made["a"], made["b"]}
    return not _only_decides(made["to"].removesuffix(" = "), lines)


def _plain(text: str) -> str:
    return _LOCATION.sub("", text).rstrip("; ")


def _only_decides(name: str, lines: Sequence[str]) -> bool:
    """Whether a value is only tested by branches, and noted before."""
    if not _NAME.fullmatch(name):
        return False
    word = re.compile(rf"(?<![\w.]){re.escape(name)}(?![\w.])")
    tested = False
    for text in (_LOCATION.sub("", line).strip() for line in lines):
        if not word.search(text) or text.startswith((f"{name} = ", f"bool {name};", f"_Bool {name};")):
            continue
        if text.startswith(f"if ({name} "):
            tested = True
        elif not text.endswith(f" = (unsigned char) {name};") and "sanitizer_cov" not in text:
            return False
    return tested
