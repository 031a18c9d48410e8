"""Escaping of untrusted text for a terminal, a log line or a page."""

from __future__ import annotations

ELLIPSIS = "…"


def printable(text: str, limit: int | None = None) -> str:
    """Escape everything in `text` that does not print as itself.

    Escaped are control characters (including ESC), bidi and other format controls, line separators, surrogates, and the
    backslash, so that no two texts look the same. A byte that was not UTF-8 (a surrogate U+DC80…U+DCFF from
    `errors="surrogateescape"`) prints as `\\xNN`.

    Args:
        text: any text, such as a name from an untrusted file.
        limit: maximum number of characters; a longer result is cut and ends with an ellipsis.
    """
    return _escaped(text, limit, backslash=True)


def visible(text: str, limit: int | None = None) -> str:
    """Escape as `printable` does, except for the backslash: for lines of source and messages, which hold backslashes of
    their own. What is escaped already stays as it is.

    Args:
        text: any text.
        limit: maximum number of characters; a longer result is cut and ends with an ellipsis.
    """
    return _escaped(text, limit, backslash=False)


def _escaped(text: str, limit: int | None, backslash: bool) -> str:
    if limit is not None:
        # The first cut limits the work (a name may be as long as the file), the second one the result.
        escaped = _escaped(text[: limit + 1], None, backslash)
        return escaped if len(text) <= limit and len(escaped) <= limit else escaped[:limit] + ELLIPSIS
    return "".join(c if c.isprintable() and (c != "\\" or not backslash) else _escape(ord(c)) for c in text)


def sentence(words: str) -> str:
    """Capitalize the first letter, unless the first word is a name such as llama.cpp or general.alignment, with a dot
    or underscore inside."""
    first = words.split(" ", 1)[0].rstrip(".:,;")
    named = "." in first or "_" in first
    return words if named else f"{words[:1].upper()}{words[1:]}"


#: Plural → singular, where that is not the plural without its last letter.
_SINGULARS = {"matrices": "matrix", "launches": "launch"}


def counted(n: int, plural: str) -> str:
    """A number and its noun, which agrees with it: "1 launch", "1 empty tensor", "2,000 outputs at other shapes".

    The noun is the first word of `plural` that ends in s.
    """
    words = plural.split(" ")
    noun = next((i for i, word in enumerate(words) if word.endswith("s")), None)
    if n == 1 and noun is not None:
        words[noun] = _SINGULARS.get(words[noun], words[noun][:-1])
    return f"{n:,} {' '.join(words)}"


def quoted(name: str) -> str:
    """Quote a key or a tensor's name for messages: escaped, cut at 64 characters."""
    return f"'{printable(name, 64)}'"


def byte_range(start: int, stop: int) -> str:
    """Format the file's bytes from `start` up to, not including, `stop`, in decimal and half-open, as slices are.

    "byte 24" is one byte, or the position where bytes are missing; "bytes 24-32" are eight.
    """
    return f"byte {start}" if stop <= start + 1 else f"bytes {start}-{stop}"


def _escape(code: int) -> str:
    if code == 0x5C:
        return "\\\\"
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
