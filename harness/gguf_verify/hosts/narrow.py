"""Conversions to numbers of few bits in CUDA C++ text: the values that a type may not hold.

An index in a `short`, a half or an `int` is correct until a size passes what the type holds. A traced build reports
each value with that limit as one more comparison, so that sizes on both sides of it are tried. What a kernel computes
there decides; a conversion that loses nothing, or nothing that matters, is no fault. (Clang's
`-fsanitize=implicit-conversion` reports the values that are lost; these are predicted.)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from .cuda_text import Edit, Token

#: Follows a cast, or precedes the first value of a variable (`kernels/emulator/foreign.hpp`).
_CAST, _VALUE = "GGUF_VERIFY_NARROWS", "GGUF_VERIFY_NARROWED"
_SIGNS, _SIZES = {"signed", "unsigned"}, {"char", "short", "int"}
_TYPES = {"float", "half", "__half", *(f"{u}int{bits}_t" for u in ("", "u") for bits in (8, 16, 32))}
#: Words before "(T)" that leave it a cast, and signs before "T(" that leave it one.
_BEFORE_CAST = {"return", "case", "else", "do", "throw"}
_BEFORE_VALUE = {*"=(,+-*/%&|^[?:<>!~"} | {"return"}
#: Other words with which a type begins.
_OTHER_TYPES = {"const", "void", "bool", "long", "double", "size_t", "auto", "struct"}
#: Limit for the declarators of a declaration.
_MOST_TOKENS = 300


def narrowing(tokens: Sequence[Token], i: int, closing: Mapping[int, int]) -> list[Edit]:
    """Return the edits of a cast to, or a declaration of, a number of few bits that begins at a token; [] if there is
    none.

    Args:
        closing: place of an opening bracket → place of the closing one.
    """
    end, before = _type_ends(tokens, i), tokens[i - 1].text if i else ""
    if end == i or end >= len(tokens) or (i and _type_ends(tokens, i - 1) > i - 1):
        return []
    if any(token.text == "constexpr" for token in tokens[max(0, i - 3) : i]):  # its value is always the same
        return []
    of = " ".join(token.text for token in tokens[i:end])
    after = tokens[end]
    if after.text == ")" and before == "(" and closing.get(i - 1) == end:
        ahead, behind = tokens[i - 2] if i > 1 else None, tokens[end + 1] if end + 1 < len(tokens) else None
        is_cast = ahead is None or (ahead.kind == "sign" and ahead.text not in ")]>") or ahead.text in _BEFORE_CAST
        taken = behind is not None and (behind.kind in ("word", "number") or behind.text == "(")
        return [Edit(after.end, after.end, f" {_CAST}({of})")] if is_cast and taken else []
    if after.text == ">" and before == "<" and i > 1 and tokens[i - 2].text == "static_cast":
        return [Edit(tokens[end + 1].end, tokens[end + 1].end, f"{_VALUE}({of}) ")] if _opens(tokens, end + 1) else []
    if (
        after.text == "("
        and end == i + 1
        and before in _BEFORE_VALUE
        and _opens(tokens, end)
        and not _is_type(tokens, end + 1)
    ):
        return [Edit(after.end, after.end, f"{_VALUE}({of}) ")]
    return [Edit(at, at, f" {_VALUE}({of})") for at in _begun(tokens, end, closing)] if after.kind == "word" else []


def _type_ends(tokens: Sequence[Token], i: int) -> int:
    """Return one past the last word of a type that begins at a token; the token's place if none does."""
    if tokens[i].text in _TYPES:
        return i + 1
    end = i
    while end < len(tokens) and tokens[end].text in _SIGNS | _SIZES:
        end += 1
    return i if end < len(tokens) and tokens[end].text in ("long", "double") else end


def _is_type(tokens: Sequence[Token], i: int) -> bool:
    """Return whether a type begins at a token, as in `float(int)`, a function's type, and not in `float(int(x))`."""
    end = _type_ends(tokens, i)
    return tokens[i].text in _OTHER_TYPES or (
        end > i and end < len(tokens) and tokens[end].text in (",", ")", "*", "&")
    )


def _opens(tokens: Sequence[Token], i: int) -> bool:
    """Return whether a bracket opens around a value."""
    return tokens[i].text == "(" and i + 1 < len(tokens) and tokens[i + 1].text not in ("*", "&", ")", "...")


def _begun(tokens: Sequence[Token], at: int, closing: Mapping[int, int]) -> Iterator[int]:
    """Yield where the values begin that the variables of a declaration get, whose first name is a token."""
    i, name = at, True
    while i + 1 < min(len(tokens), at + _MOST_TOKENS):
        text = tokens[i].text
        if tokens[i].text == "operator":
            return
        if name and tokens[i].kind == "word" and tokens[i + 1].text == "=" and not _equals(tokens, i + 1):
            yield tokens[i + 1].end
            i += 1
        elif name and tokens[i].kind == "word" and tokens[i + 1].text not in (",", "["):
            return
        elif text in ("(", "[", "{"):
            i = closing.get(i, len(tokens))
        elif text in (";", ")", "}", "]") or tokens[i].kind == "directive":
            return
        name = text == ","
        i += 1


def _equals(tokens: Sequence[Token], i: int) -> bool:
    """Return whether a sign = is a comparison, or begins braces."""
    after = tokens[i + 1] if i + 1 < len(tokens) else None
    return after is None or after.text == "{" or (after.text == "=" and after.start == tokens[i].end)
