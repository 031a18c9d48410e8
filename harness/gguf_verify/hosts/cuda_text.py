"""CUDA C++ as text: tokens, and edits that preserve line numbers."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

_TOKEN = re.compile(
    r"""
    (?P<space> (?: \s | \\[ \t]*\r?\n )+ )
  | (?P<comment> //(?: \\\r?\n | [^\n] )* | /\*(?: .*?\*/ | .*\Z ) )
  | (?P<string> (?:u8|[uUL])?R"(?P<mark>[^\s()\\"]{0,16})\((?: .*?\)(?P=mark)" | .*\Z )
              | (?:u8|[uUL])?"(?: \\. | [^"\\\n] )*" )
  | (?P<char> '(?: \\. | [^'\\\n] )*' )
  | (?P<word> [A-Za-z_]\w* )
  | (?P<number> \.?\d(?: [eEpP][+-] | '?[\w.] )* )
  | (?P<sign> <<< | >>> | :: | -> | . )
    """,
    re.S | re.X,
)
_DIRECTIVE = re.compile(r"#(?:[^\n\\/]|\\\r?\n|\\|/\*.*?\*/|//(?:\\\r?\n|[^\n])*|/)*", re.S)
_VOLATILE = ("volatile", "__volatile__", "__volatile")
_ASSEMBLY = ("asm", "__asm__", "__asm")
_OPENS, _CLOSES = {"(": ")", "[": "]", "{": "}"}, {")", "]", "}"}


class Token(NamedTuple):
    """A token other than space and comment.

    `kind` is "string", "char", "word", "number", "sign" or "directive", a whole preprocessor line.
    """

    kind: str
    text: str
    start: int

    @property
    def end(self) -> int:
        """The end of the token in the text."""
        return self.start + len(self.text)


class Edit(NamedTuple):
    """A replacement of `text[start:end]`."""

    start: int
    end: int
    new: str


def has_volatile(text: str) -> bool:
    """Return whether a text has, or may have, volatile variables; `asm volatile` does not count."""
    if "volatile" not in text:
        return False
    words = [token.text for token in tokens_of(text, directives=False) if token.kind in ("word", "sign")]
    return any(word in _VOLATILE and before not in _ASSEMBLY for before, word in pairwise(["", *words]))


def tokens_of(text: str, directives: bool = True) -> list[Token]:
    """Return the tokens of a text. `directives`: whether preprocessor lines are one token each."""
    found, at, begins = [], 0, True
    while at < len(text):
        if begins and directives and text[at] == "#" and (line := _DIRECTIVE.match(text, at)):
            found.append(Token("directive", line[0], at))
            at = line.end()
            continue
        match = _TOKEN.match(text, at)
        assert match is not None  # any character is a sign
        kind = str(match.lastgroup if match.lastgroup != "mark" else "string")
        at = match.end()
        if kind in ("space", "comment"):
            begins = begins or "\n" in match[0]
            continue
        begins = False
        found.append(Token(kind, match[0], match.start()))
    return found


def brackets(tokens: Sequence[Token]) -> dict[int, int]:
    """Map the places of opening brackets to those of the closing ones, if the two match."""
    found: dict[int, int] = {}
    open_: list[int] = []
    for i, token in enumerate(tokens):
        text = token.text if token.kind == "sign" else ""
        if text in _OPENS:
            open_.append(i)
        elif text in _CLOSES and open_ and _OPENS[tokens[open_[-1]].text] == text:
            found[open_.pop()] = i
    return found


def split(tokens: Sequence[Token], at: str) -> list[list[Token]]:
    """Split tokens at the signs `at` outside brackets; `::` is two colons."""
    parts: list[list[Token]] = [[]]
    depth = 0
    for token in tokens:
        text = token.text if token.kind == "sign" else ""
        depth += (text in _OPENS) - (text in _CLOSES)
        if depth == 0 and text and set(text) == {at} and len(text) <= 2:
            parts += [[] for _ in text]
        else:
            parts[-1].append(token)
    return parts


def edited(text: str, edits: Sequence[Edit], newline: str = "\n") -> str:
    """Apply edits that do not overlap. Removed text leaves its line breaks.

    Args:
        newline: the line break; in a macro, with a backslash.
    """
    parts, at = [], 0
    for edit in sorted(edits):
        lines = text.count("\n", edit.start, edit.end) - edit.new.count("\n")
        parts += [text[at : edit.start], edit.new, newline * lines]
        at = edit.end
    return "".join([*parts, text[at:]])


class Lines:
    """Line numbers, from 1."""

    def __init__(self, text: str) -> None:
        self._starts = [0, *(found.end() for found in re.finditer("\n", text))]

    def at(self, place: int) -> int:
        """Return the line of a place in the text."""
        return bisect_right(self._starts, place)

    def start(self, line: int) -> int:
        """Return where a line begins."""
        return self._starts[line - 1]
