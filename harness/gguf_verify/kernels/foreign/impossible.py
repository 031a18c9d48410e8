"""Conditions in a kernel's source that are the same for every product in its declared domain.

`if (K % 32 != 0) return;` never returns in a kernel of Q4_0, whose rows have whole blocks: no input can take the
branch, so no run has to. This is shown for conditions on numbers that a launch passes as expressions of M, N and K,
inside the `__global__` function that gets them. A condition is a tree of comparisons, and each of them must be
constant by the ranges and the common divisors of what it compares. Anything else, also an integer that might overflow,
is not decided.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import gcd

import numpy as np

from ...formats.tensor_types import FORMATS
from ...hosts.cuda_text import Lines, Token, brackets, tokens_of
from ..domain import Extent
from .declared import CallDeclaration, Step
from .layouts import Number
from .signature import INTEGERS, kernels_in

#: Largest value of an expression of 32 and of 64 bits, and of a dimension without a limit.
_MOST, _MOST_WIDE, _MOST_SIZE = (1 << 31) - 1, (1 << 63) - 1, 1 << 48
_MOST_CONDITION = 200
#: C's operators whose meaning in Python is the same for numbers that are not negative.
_CONDITION = re.compile(r"[\w\s()+*/%<>=|&-]*|!=")
_SUFFIX = re.compile(r"(?i)\b(0x[0-9a-f]+|\d+)[ul]+\b")
_DEFINED = re.compile(r"#[ \t]*define[ \t]+(\w+)")
#: Words that may stand before a name that is not declared there.
_BEFORE = {"return", "case", "sizeof", "else", "do", "goto"}


class _Undecided(Exception):
    """An expression whose values are not known."""


@dataclass(frozen=True)
class _Span:
    """The integers from `least` to `most` that are `rest` modulo `step`; a single number has step 0.

    `wide`: they are computed in 64 bits.
    """

    least: int
    most: int
    step: int = 1
    rest: int = 0
    wide: bool = False

    def checked(self) -> _Span:
        """Raises _Undecided if a value could overflow or be negative."""
        if self.least < 0 or self.most > (_MOST_WIDE if self.wide else _MOST):
            raise _Undecided
        return self


def _single(value: int) -> _Span:
    return _Span(value, value, 0, value)


def _extent(extent: Extent, multiple: int = 1) -> _Span:
    step = extent.multiple * multiple // gcd(extent.multiple, multiple)
    most = _MOST_SIZE if extent.most is None else extent.most
    return _Span(-(-extent.least // step) * step, most // step * step, step, 0, wide=True)


def impossible(declaration: CallDeclaration, symbol: str, texts: Mapping[str, str]) -> dict[str, dict[int, str]]:
    """Return file → line → why the code on it, or one way of its branch, is never reached.

    Args:
        symbol: the function of launches without one.
        texts: the kernel's files: name → text.
    """
    found: dict[str, dict[int, str]] = {}
    launches: dict[str, list[Step]] = {}
    for step in declaration.all_steps:
        for name in {_plain(of or symbol) for of in (step.symbols.values() or [""])}:
            launches.setdefault(name, []).append(step)
    macros = {name for text in texts.values() for name in _DEFINED.findall(text)}
    for file, text in texts.items():
        source = _Source(text, macros)
        for name, steps in launches.items():
            # a condition must be constant in all launches of a function, and for all types
            known = [_passed(declaration, step, source, name, fmt) for step in steps for fmt in declaration.of.kinds]
            if all(known):
                found.setdefault(file, {}).update(source.constant(name, known))
    return found


def _plain(symbol: str) -> str:
    """A function's name without its namespace and the arguments of its template."""
    return symbol.partition("<")[0].rpartition(":")[2]


def _passed(declaration: CallDeclaration, step: Step, source: _Source, name: str, fmt: str) -> dict[str, _Span]:
    """Return parameter → its values, for a type of weights."""
    parameters, domain = source.kernels.get(name, ()), declaration.of.domain
    if fmt not in FORMATS or len(parameters) != len(step.parameters):
        return {}
    block = FORMATS[fmt]
    # products without tokens are tried, too
    names = {
        "M": _extent(replace(domain.m, least=0) if domain.m.least == 1 else domain.m), "N": _extent(domain.n),
        "K": _extent(domain.k, block.block_size),
        "BLOCK": _single(block.block_size), "BYTES": _single(block.block_bytes), "TYPE": _single(block.type_id),
    }  # fmt: skip
    spans = dict[str, _Span]()
    for parameter, passed in zip(parameters, step.parameters, strict=True):
        # a source with another type than the declared one gets other numbers
        if isinstance(passed, Number) and INTEGERS.get(parameter.type) == passed.kind:
            assert not isinstance(passed.value, float)
            wide = passed.kind in ("int64", "uint64")
            try:
                span = _value(ast.parse(passed.value.source, mode="eval").body, names)
            except (_Undecided, SyntaxError, ValueError):
                continue
            # the call is refused where its type does not hold the number
            most = min(span.most, int(np.iinfo(passed.kind).max))
            spans[parameter.name] = _Span(span.least, most, span.step, span.rest, wide)
    return spans


class _Source:
    """A file's text."""

    def __init__(self, text: str, macros: set[str]) -> None:
        self.kernels = kernels_in(text)
        self._macros, self._lines = macros, Lines(text)
        self._tokens = tokens_of(text)
        self._closing = brackets(self._tokens)

    def constant(self, name: str, spans: Sequence[Mapping[str, _Span]]) -> dict[int, str]:
        """Return line → why it, or a way of its branch, is never reached, inside the function of this name.

        Args:
            spans: for each type of weights, parameter → its values.
        """
        found = dict[int, str]()
        bodies = [*self._bodies(name)]
        for begin, end in bodies if len(bodies) == 1 else ():  # of several, one is another function
            body = self._tokens[begin:end]
            kept = {n for n in spans[0] if n not in self._macros and not _changed(n, body)}
            for i in range(begin, end):
                if self._tokens[i].text == "if" and (close := self._closing.get(i + 1)):
                    condition = _text(self._tokens[i + 2 : close])
                    values = {_constant(condition, {n: of[n] for n in kept if n in of}) for of in spans}
                    if len(values) == 1 and (value := values.pop()) is not None:
                        words = f"{condition} is {str(value).lower()} for every product in its domain"
                        found |= dict.fromkeys(self._never(i, close, value), words)
        return found

    def _bodies(self, name: str) -> Iterator[tuple[int, int]]:
        """Yield the first token inside each definition of a function, and that of its closing brace."""
        for i, token in enumerate(self._tokens):
            if token.text == name and (close := self._closing.get(i + 1)) and self._tokens[i + 1].text == "(":
                brace = close + 1
                if brace in self._closing and self._tokens[brace].text == "{":
                    yield brace + 1, self._closing[brace]

    def _never(self, at: int, close: int, value: bool) -> Iterator[int]:
        """Yield the lines of an `if`, whose condition ends at `close`, and of the statement that is never reached."""
        end = self._statement(close + 1)
        if end is not None and not value:
            yield from self._alone(at, end)
        else:
            yield from self._alone(at, close)
        if end is not None and value and end + 1 < len(self._tokens) and self._tokens[end + 1].text == "else":
            other = self._statement(end + 2)
            yield from () if other is None else self._alone(end + 1, other)

    def _alone(self, first: int, last: int) -> Iterator[int]:
        """Yield the lines of these tokens that have no other code."""
        line = self._lines.at
        begin, end = line(self._tokens[first].start), line(self._tokens[last].end - 1)
        shared = set[int]()
        for at, step in ((first - 1, -1), (last + 1, 1)):
            while 0 <= at < len(self._tokens) and begin <= (of := line(self._tokens[at].start)) <= end:
                shared |= set() if self._tokens[at].text in ("{", "}", "else") else {of}
                at += step
        yield from (of for of in range(begin, end + 1) if of not in shared)

    def _statement(self, at: int) -> int | None:
        """Return the last token of a block, or of a statement without one; None for any other."""
        if at >= len(self._tokens) or self._tokens[at].text in ("if", "for", "while", "do", "switch"):
            return None
        if self._tokens[at].text == "{":
            return self._closing.get(at)
        while at < len(self._tokens) and self._tokens[at].text != ";":
            at = self._closing.get(at, at) + 1
        return at if at < len(self._tokens) else None


def _text(tokens: Sequence[Token]) -> str:
    """The text of tokens in one line, without comments."""
    return "".join(
        " " * (before is not None and before.end < token.start) + token.text
        for before, token in pairwise([None, *tokens])
        if token is not None
    )


def _changed(name: str, body: Sequence[Token]) -> bool:
    """Whether a parameter might be written, or another variable have its name."""
    words = ["", *(token.text for token in body), "", ""]
    for i, (before, text) in enumerate(pairwise(words), 1):
        if text != name or before in (".", "->", "::"):
            continue
        after, then = words[i + 1], words[i + 2]
        written = (after == "=" and then != "=") or (then == "=" and after in "+-*/%&|^") or after == then in ("+", "-")
        twice = before == words[i - 2]
        # `T& k` of a lambda or a loop looks like a masked number
        other = not _operand(words[i - 2]) or after in (")", ",", ":", "{")
        named = before in ("&", "*") and other and not (twice and before == "&")
        stepped = twice and before in ("+", "-")
        declared = bool(re.fullmatch(r"[A-Za-z_]\w*", before)) and before not in _BEFORE
        if written or named or stepped or declared:
            return True
    return False


def _operand(text: str) -> bool:
    """Whether an operand ends with this token, so that the operator behind it has two."""
    return bool(re.fullmatch(r"[\w.]+|[)\]]", text)) and text not in _BEFORE


def _constant(condition: str, names: Mapping[str, _Span]) -> bool | None:
    """The value of a condition in C; None unless each of its comparisons has the same value always."""
    text = _SUFFIX.sub(r"\1", condition)
    text = re.sub(r"\((\w+ & \w+)\)", lambda masked: f"({_remainder(masked[1])})", text)
    text = _remainder(text) if re.fullmatch(r"\w+ & \w+", text) else text
    text = text.replace("&&", " and ").replace("||", " or ")
    if len(text) > _MOST_CONDITION or not _CONDITION.fullmatch(text.replace("!=", "==")) or re.search("[&|]", text):
        return None
    try:
        return _truth(ast.parse(text.strip(), mode="eval").body, names)
    except (_Undecided, SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _remainder(masked: str) -> str:
    """`K & 31` as a remainder, if the mask is such a number."""
    name, _, mask = masked.partition(" & ")
    ones = int(mask) if mask.isdecimal() else 0
    return f"{name} % {ones + 1}" if ones & (ones + 1) == 0 < ones else masked


def _truth(node: ast.expr, names: Mapping[str, _Span]) -> bool:
    """The constant truth of a condition. Raises _Undecided."""
    match node:
        case ast.BoolOp(op=op, values=parts):
            values = [_truth(part, names) for part in parts]
            return any(values) if isinstance(op, ast.Or) else all(values)
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            return _compared(op, _value(left, names), _value(right, names))
    return not _compared(ast.Eq(), _value(node, names), _single(0))


def _compared(op: ast.cmpop, a: _Span, b: _Span) -> bool:
    step = gcd(a.step, b.step)
    apart = a.most < b.least or b.most < a.least or (a.rest != b.rest if step == 0 else (a.rest - b.rest) % step != 0)
    same = a.least == a.most == b.least == b.most
    always, never = {
        ast.Eq: (same, apart), ast.NotEq: (apart, same), ast.Lt: (a.most < b.least, a.least >= b.most),
        ast.LtE: (a.most <= b.least, a.least > b.most), ast.Gt: (a.least > b.most, a.most <= b.least),
        ast.GtE: (a.least >= b.most, a.most < b.least),
    }[type(op)]  # fmt: skip
    if not always and not never:
        raise _Undecided
    return always


def _value(node: ast.expr, names: Mapping[str, _Span]) -> _Span:
    """The values of an expression, without the connection between its parts. Raises _Undecided."""
    match node:
        case ast.Constant(value=int(number)) if not isinstance(number, bool):
            return _single(number).checked()
        case ast.Name(id=name) if name in names:
            return names[name]
        case ast.BinOp(left=left, op=op, right=right):
            return _combined(op, _value(left, names), _value(right, names)).checked()
    raise _Undecided


def _combined(op: ast.operator, a: _Span, b: _Span) -> _Span:
    wide, divisor = a.wide or b.wide, b.least if b.least == b.most else 0
    match op:
        case ast.Add() | ast.Sub():
            sign = 1 if isinstance(op, ast.Add) else -1
            ends = (b.least, b.most)[::sign]
            return _Span(a.least + sign * ends[0], a.most + sign * ends[1], *_modulo(a, b, sign), wide)
        case ast.Mult():
            step = gcd(a.step * b.step, a.step * b.rest, b.step * a.rest)
            rest = a.rest * b.rest
            return _Span(a.least * b.least, a.most * b.most, step, rest % step if step else rest, wide)
        case ast.Div() | ast.FloorDiv() if divisor:
            whole = a.step % divisor == 0 == a.rest % divisor
            step, rest = (a.step // divisor, a.rest // divisor) if whole else (1, 0)
            return _Span(a.least // divisor, a.most // divisor, step, rest, wide)
        case ast.Mod() if divisor:
            if a.most < divisor:
                return a
            step = gcd(a.step, divisor)
            if step == divisor:
                return _Span(a.rest % divisor, a.rest % divisor, 0, a.rest % divisor, wide)
            return _Span(a.rest % step, divisor - step + a.rest % step, step, a.rest % step, wide)
    raise _Undecided


def _modulo(a: _Span, b: _Span, sign: int) -> tuple[int, int]:
    step, rest = gcd(a.step, b.step), a.rest + sign * b.rest
    return step, rest % step if step else rest
