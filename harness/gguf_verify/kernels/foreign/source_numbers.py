"""Integers in the text of a kernel in CUDA C++ that may be compared with a size, where comparisons are not observed.

On a GPU, and if no thread block can run by itself, nothing shows with what a kernel compares M, N and K. But the
numbers are in its text: `M >= 1500`, `N % 192 == 64`, `constexpr int WIDE = 4 << 10`. They are tried as sizes, those
beside an operator of comparison first. Nothing is compiled: macros with arguments and computed constants are not found.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from ...hosts.cuda_text import Lines, Token, tokens_of
from ..comparisons import CodeNumber

_INTEGER = re.compile(r"(0[xX][0-9a-fA-F']+|[0-9][0-9']*)[uUlLzZ]*")
_NAMED = re.compile(r"(?:#[ \t]*define[ \t]+(\w+)[ \t]+\(?|\b(\w+)[ \t]*=[ \t]*)([^\n;,)}]{1,40})")
#: Numbers below this, and these powers of two, are among the sizes of the plan.
_LEAST, _PLANNED = 34, frozenset(1 << i for i in range(9))
_MOST, _MOST_LISTED = 1 << 31, 200


def numbers_in(texts: Mapping[str, str]) -> tuple[CodeNumber, ...]:
    """Return the numbers in files: name → text. Those beside a comparison come first."""
    named = {name: value for text in texts.values() for name, value in _named(text)}
    compared, others = dict[CodeNumber, None](), dict[CodeNumber, None]()
    for file, text in texts.items():
        lines, tokens = Lines(text), tokens_of(text, directives=False)
        for at, value, period, beside in _numbers(tokens, named):
            number = CodeNumber(f"{file}:{lines.at(tokens[at].start)}", value, period)
            if period > 1 or (value >= _LEAST and value not in _PLANNED):
                (compared if beside else others)[number] = None
    return tuple([*compared, *(number for number in others if number not in compared)][:_MOST_LISTED])


def _named(text: str) -> Iterator[tuple[str, int]]:
    """Yield the names of constants with their values."""
    for found in _NAMED.finditer(text):
        tokens = tokens_of(found[3])
        value, end = _folded(tokens, 0, {})
        if value is not None and end >= len(tokens):
            yield found[1] or found[2], value


def _numbers(tokens: Sequence[Token], named: Mapping[str, int]) -> Iterator[tuple[int, int, int, bool]]:
    """Yield the first token of each number, its value, the period of a remainder or 0, and whether it is compared."""
    i, period = 0, 0
    while i < len(tokens):
        value, end = _folded(tokens, i, named)
        if value is None or value >= _MOST:
            period = 0 if tokens[i].text in (";", "{", "}", "&&", "?") else period
            i = max(end, i + 1)
            continue
        before, after = _operator(tokens, i - 1, -1), _operator(tokens, end, 1)
        masked = before == "&" and value & (value + 1) == 0
        if before == "%" or masked:
            period, behind = value + masked, end + (end < len(tokens) and tokens[end].text == ")")
            if not masked and not _compares(_operator(tokens, behind, 1)):
                yield i, 0, period, True
        elif _compares(before):
            yield i, value, period, True
            period = 0
        else:
            yield i, value, 0, _compares(after)
        i = end


def _operator(tokens: Sequence[Token], at: int, way: int) -> str:
    """Return the operator, of one or two signs, that ends (-1) or begins (1) at a token; "" for none."""
    if not 0 <= at < len(tokens) or tokens[at].kind != "sign":
        return ""
    both = "".join(token.text for token in tokens[at : at + 2] if way == 1)
    both = both or "".join(token.text for token in tokens[max(at - 1, 0) : at + 1])
    return both if both in ("==", "!=", "<=", ">=", "&&", "||", "<<", ">>") else tokens[at].text


def _compares(operator: str) -> bool:
    return operator in ("==", "!=", "<", ">", "<=", ">=")


def _folded(tokens: Sequence[Token], at: int, named: Mapping[str, int]) -> tuple[int | None, int]:
    """Return the value of `4`, `4 << 10` or `4 * 1024` that begins at a token, and the token behind it."""
    value = _literal(tokens, at, named)
    if value is None:
        return None, at + 1
    end = at + 1
    while end < len(tokens):
        operator = _operator(tokens, end, 1)
        other = _literal(tokens, end + len(operator), named) if operator in ("*", "<<") else None
        if other is None or value.bit_length() > 64 or (operator == "<<" and other > 32):
            break
        value = value * other if operator == "*" else value << other
        end += len(operator) + 1
    return value, end


def _literal(tokens: Sequence[Token], at: int, named: Mapping[str, int]) -> int | None:
    if at >= len(tokens):
        return None
    token = tokens[at]
    if token.kind == "word":
        return named.get(token.text)
    written = _INTEGER.fullmatch(token.text) if token.kind == "number" else None
    return None if written is None else int(written[1].replace("'", ""), 0 if written[1][:2].lower() == "0x" else 10)
