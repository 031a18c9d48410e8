"""Makes text from a file safe for a terminal, a log line or a page."""

from __future__ import annotations

ELLIPSIS = "…"


def printable(text: str, limit: int | None = None) -> str:
    """`text` with everything escaped that does not print as itself.

    Escaped are control characters (ESC among them), bidi and other format controls, line separators, surrogates, and
    the backslash, so that no two texts look the same. A byte that was not UTF-8 (a surrogate U+DC80…U+DCFF, as
    `errors="surrogateescape"` leaves it) prints as `\\xNN`.

    Args:
        text: anything, also a name from an untrusted file.
        limit: cut the result after that many characters and end it with an ellipsis.
    """
    if limit is not None:
        # The first cut keeps the work small (a name may be as long as the file), the second the result.
        escaped = printable(text[: limit + 1])
        return escaped if len(text) <= limit and len(escaped) <= limit else escaped[:limit] + ELLIPSIS
    return "".join(c if c.isprintable() and c != "\\" else _escape(ord(c)) for c in text)


def sentence(words: str) -> str:
    """Words as the beginning of a sentence: in upper case, but for a name such as llama.cpp or general.alignment, which
    has a dot or an underscore inside."""
    first = words.split(" ", 1)[0].rstrip(".:,;")
    named = "." in first or "_" in first
    return words if named else f"{words[:1].upper()}{words[1:]}"


def quoted(name: str) -> str:
    """A key or a tensor's name as messages show it: escaped, in quotes, cut at 64 characters."""
    return f"'{printable(name, 64)}'"


def byte_range(start: int, stop: int) -> str:
    """Bytes `start` up to, not including, `stop` of a file, as every report writes them: decimal and half-open, as
    slices are. "byte 24" is one byte, or the place where bytes are missing; "bytes 24-32" are eight."""
    return f"byte {start}" if stop <= start + 1 else f"bytes {start}-{stop}"


def _escape(code: int) -> str:
    if code == 0x5C:
        return "\\\\"
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
