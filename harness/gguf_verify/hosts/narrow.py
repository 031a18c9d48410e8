"""Conversions to numbers of fewer bits in preprocessed C++: the values that a type may not hold.

An index in a `short`, in a float or in an `int` is correct until a size passes the type's limit. A traced build reports
each value with that limit as one more comparison, so that sizes on both sides of it are tried. The kernel's outputs
there decide; a conversion that loses nothing, or nothing that matters, is no fault. (Clang's
`-fsanitize=implicit-conversion` reports the values that are lost; these are predicted.)

GCC lists the implicit conversions that may change a value with their exact ranges (`-Wconversion`): in assignments,
arguments, returned values and templates, behind any name of a type. Casts are found in the text. An expression keeps
its value and type (`kernels/emulator/foreign.hpp`).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, NamedTuple

from .cuda_text import Edit, Lines, brackets, edited, tokens_of

#: Options with which GCC lists conversions, and the names of these in its list.
LISTS = ("-Wconversion", "-Warith-conversion")
_OPTIONS = {*LISTS, "-Wfloat-conversion"}
#: The names of the source's and of the target's type, and of those that they stand for.
_TYPE = re.compile(r"['‘]([^'’]+)['’](?: \{aka ['‘]([^'’]+)['’]\})?")
_BITS = re.compile(r":(\d+)$")
_MARKER = re.compile(r'# \d+ "((?:[^"\\]|\\.)*)"(.*)')
_PRAGMA = re.compile(r"\s*#\s*pragma\s+GCC\s+(?:diagnostic|system_header)\b")
#: Flags of a marker: a file begins, goes on after another one, or has warnings suppressed.
_BEGINS, _GOES_ON, _SYSTEM = " 1", " 2", re.compile(r" [34]")
_SCANNED = "gguf-verify"
#: Words of the names of types that are numbers.
_SIGNS = {"signed", "unsigned", "char", "short", "int", "long"}
_TYPES = {"float", "half", "__half", "size_t", *(f"{u}int{bits}_t" for u in ("", "u") for bits in (8, 16, 32, 64))}
#: Words before "(T)" that leave it a cast, and signs behind it that begin its operand.
_BEFORE_CAST, _OPERAND = {"return", "case", "else", "do", "throw"}, {*"(-~!*&+"}
#: Signs before "T(" that leave it a conversion.
_BEFORE_VALUE = {*"=(,+-*/%&|^[?:<>!~"} | {"return"}
#: Words that a type may have beside its name, and signs within its name.
_QUALIFIERS, _OF_NAMES = {"const", "volatile"}, {":", "::", "<", ">", ","}
#: Limit for a cast.
_MOST_TOKENS = 16


class Added(NamedTuple):
    """Text that is added at a place. At the same one that of the longer expression comes first, after closed ones.

    Args:
        size: that of the expression, negative; `_CLOSES` behind one.
    """

    at: int
    size: int
    text: str


#: A conversion that reports its value: what is added for it.
Noted = tuple[Added, ...]
_CLOSES, _LONGEST = -(1 << 62), -(1 << 61)


class Preprocessed:
    """A preprocessed unit.

    Args:
        text: with line markers; each character is a byte.
        folder: of the files whose conversions are noted.
    """

    def __init__(self, text: str, folder: str) -> None:
        self.text = text
        self._lines, self._authors = Lines(text), set[int]()
        self._markers, within = dict[int, str](), [False]  # of each open file: whether it is an author's
        for number, line in enumerate(text.split("\n"), 1):
            if (marker := _MARKER.match(line)) is not None:  # a #line in the source may give its file any name
                if marker[2].startswith(_BEGINS):
                    within.append(marker[1].startswith(folder))
                elif marker[2].startswith(_GOES_ON) and len(within) > 1:
                    within.pop()
                here = f'# {number + 1} "{_SCANNED}"{_SYSTEM.sub("", marker[2])}'
                self._markers[number] = here if within[-1] else line
            elif within[-1]:
                self._authors.add(number)
                if _PRAGMA.match(line):  # the author's, against warnings
                    self._markers[number] = ""
        self._tokens = tokens_of(text)
        self._begins = {token.start: i for i, token in enumerate(self._tokens)}
        self._ends = {token.end: i for i, token in enumerate(self._tokens)}
        self._closing = brackets(self._tokens)
        #: The last tokens of the casts so far.
        self._cast_ends = set[int]()

    def noting(self, conversions: Collection[Noted]) -> str:
        """Return the text with conversions that report their values."""
        added = defaultdict[int, list[Added]](list)
        for one in sorted(one for noted in conversions for one in noted):
            added[one.at].append(one)
        return edited(self.text, [Edit(at, at, "".join(one.text for one in here)) for at, here in added.items()])

    def scanned(self, text: str) -> str:
        """Return a text of the unit for GCC's list, where lines of the author's files are those of the text.

        Args:
            text: its own, or with conversions.
        """
        lines = enumerate(text.split("\n"), 1)
        return "\n".join(self._markers.get(number, line) for number, line in lines)

    def conversions(self, listed: Sequence[Any]) -> list[Noted]:
        """Return the conversions in the author's files.

        Args:
            listed: GCC's diagnostics of `scanned(text)`.
        """
        found = defaultdict[tuple[int, int], dict[str, None]](dict)
        for one in listed:
            place = self._range(one) if one.get("option") in _OPTIONS else None
            types = _TYPE.findall(one.get("message", "")) if place is not None else []
            if place is not None and len(types) > 1:
                found[place][types[1][1] or types[1][0]] = None
        noted = [self._implicit(*place, "".join(map(_fits, types))) for place, types in found.items()]
        for i, token in enumerate(self._tokens):
            if self._lines.at(token.start) in self._authors:
                noted += [*self._cast(i), *self._step(i)]
        return noted

    def without(self, conversions: Collection[Noted], listed: Sequence[Any]) -> list[Noted]:
        """Return the conversions on no line with an error; none if no error is on any of their lines.

        Args:
            listed: GCC's diagnostics of `scanned(noting(conversions))`.
        """
        errors = (one for one in listed if one.get("kind") in ("error", "fatal error"))
        lines = {line for one in errors for line in _lines_of(one)}
        left = [noted for noted in conversions if self.line_of(noted) not in lines]
        return left if len(left) < len(conversions) else []

    def line_of(self, noted: Noted) -> int:
        """Return the line of a conversion."""
        return self._lines.at(noted[0].at)

    def _range(self, one: Any) -> tuple[int, int] | None:
        """Return the first and the last token of a diagnostic's expression; None if it is no whole one."""
        with suppress(KeyError, IndexError, TypeError):
            at = one["locations"][0]
            first, last = at.get("start", at["caret"]), at.get("finish", at["caret"])
            if first["file"] == last["file"] == _SCANNED:
                i = self._begins[self._lines.start(first["line"]) + first["byte-column"] - 1]
                j = self._ends[self._lines.start(last["line"]) + last["byte-column"]]
                signs = [token.text for token in self._tokens[i : j + 1]]
                opened = [i + k for k, sign in enumerate(signs) if sign in ("(", "[", "{")]
                closed = sum(sign in (")", "]", "}") for sign in signs)
                is_whole = closed == len(opened) and all(self._closing.get(k, j + 1) <= j for k in opened)
                return (i, j) if is_whole else None
        return None

    def _implicit(self, i: int, j: int, fits: str) -> Noted:
        """Return an expression that becomes a number of another type. Of a compound assignment, its result does."""
        start, end, k = self._tokens[i].start, self._tokens[j].end, i
        while k < j and not self._at(k, r"(?:[-+*/%&|^]|<<|>>)=(?!=)"):
            k = self._closing.get(k, k) + 1
        if i < k < j:
            stored = Added(start, start - end, f"({fits}::cuda_on_cpu::stored(")
            return stored, Added(self._tokens[k - 1].end, _CLOSES, ")"), Added(end, _CLOSES, ")")
        return Added(start, start - end, f"({fits}"), Added(end, _CLOSES, ")")

    def _at(self, i: int, pattern: str) -> bool:
        """Return whether a sign of several characters begins at a token."""
        return re.match(pattern, self.text[self._tokens[i].start : self._tokens[i].start + 4]) is not None

    @cached_property
    def _names(self) -> set[str]:
        """The names that the text gives to types."""
        tokens, found = self._tokens, {*_TYPES}
        for i, token in enumerate(tokens[:-2]):
            if token.text in ("using", "typename", "class") and tokens[i + 2].text in ("=", ",", ">"):
                found.add(tokens[i + 1].text)
            elif token.text == "enum":
                found.add(tokens[i + 1 + (tokens[i + 1].text in ("class", "struct"))].text)
            elif token.text == "typedef":
                end = next((j for j in range(i, len(tokens)) if tokens[j].text in (";", "{")), i)
                found |= {tokens[end - 1].text} if tokens[end].text == ";" else set()
        return found

    def _number(self, first: int, last: int) -> str | None:
        """The type that these tokens name, if it may be a number; None if they name none."""
        tokens = self._tokens[first : last + 1]
        words = [token.text for token in tokens if token.text not in _QUALIFIERS]
        if not words or any(token.kind == "sign" and token.text not in _OF_NAMES for token in tokens):
            return None
        named = words[-1] in self._names and (len(words) < 2 or words[-2] in (":", "::"))
        signs = all(word in _SIGNS for word in words)
        return self.text[tokens[0].start : tokens[-1].end] if named or signs else None

    def _name_begins(self, i: int) -> int:
        """Return the first token of the qualified name that ends at a token."""
        tokens = self._tokens
        while i > 1 and self.text[tokens[i].start - 2 : tokens[i].start] == "::":
            last = next(j for j in range(i - 1, -1, -1) if tokens[j].text not in (":", "::") or j == 0)
            if tokens[last].kind != "word":
                return last + 1
            i = last
        return i

    def _cast(self, i: int) -> Iterator[Noted]:
        """Yield the cast that begins at a token."""
        tokens, before = self._tokens, self._tokens[i - 1]
        if not i > 0:
            return
        if tokens[i].text == "static_cast":
            end = next((j for j in range(i + 1, min(i + _MOST_TOKENS, len(tokens))) if tokens[j].text == "("), None)
            of = [] if end is None else tokens[i + 2 : end - 1]
            if end is not None and of and not any(token.text in ("*", "&") for token in of):
                name = self.text[of[0].start : of[-1].end]
                yield (Added(tokens[end].end, _LONGEST, _fits(name)),)
        elif tokens[i].text == "(" and (end := self._closing.get(i)) is not None and end + 1 < len(tokens):
            is_cast = before.text in _BEFORE_CAST if before.kind == "word" else before.text not in (")", "]")
            operand = tokens[end + 1].kind in ("word", "number", "char") or tokens[end + 1].text in _OPERAND
            is_cast = end - i <= _MOST_TOKENS and operand and (is_cast or i - 1 in self._cast_ends)
            if is_cast and (named := self._number(i + 1, end - 1)) is not None:
                self._cast_ends.add(end)
                yield (Added(tokens[end].end, _LONGEST, f"(::cuda_on_cpu::Narrows<{named}>)"),)
        elif tokens[i].kind == "word" and i + 2 < len(tokens) and tokens[i + 1].text == "(":
            first = self._name_begins(i)
            named, value = self._number(i, i), tokens[i + 2].text
            close = self._closing.get(i + 1, i + 1)
            is_type = self._number(i + 2, close - 1) is not None or value in ("*", "&", ")", "const", "void")
            if named is not None and tokens[first - 1].text in _BEFORE_VALUE and first > 0 and not is_type:
                yield (Added(tokens[i + 1].end, _LONGEST, _fits(self.text[tokens[first].start : tokens[i].end])),)

    def _step(self, i: int) -> Iterator[Noted]:
        """Yield the variable at a token that `++` or `--` steps."""
        tokens = self._tokens
        if tokens[i].kind != "word" or not 1 < i < len(tokens) - 2:
            return
        ahead = self._at(i - 2, r"\+\+|--") and tokens[i + 1].text not in ("[", ".", "->", "(", "::")
        if ahead or (self._at(i + 1, r"\+\+|--") and tokens[i - 1].text not in (".", "->", "::")):
            start, end = tokens[i].start, tokens[i].end
            yield Added(start, start - end, "::cuda_on_cpu::stored("), Added(end, _CLOSES, ")")


def _lines_of(one: Any) -> Iterator[int]:
    """Yield the lines of the author's files in a diagnostic and those below it."""
    for at in one.get("locations", ()):
        yield from (of["line"] for of in at.values() if isinstance(of, dict) and of.get("file") == _SCANNED)
    for child in one.get("children", ()):
        yield from _lines_of(child)


def _fits(name: str) -> str:
    """Return what precedes a value that becomes a number of a type."""
    bits = _BITS.search(name)
    return f"::cuda_on_cpu::Fits<{_BITS.sub('', name)}, {bits[1] if bits else 0}>() = "
