"""TOML files that people write: read with a limit, and checked against typed records; a mistake is one line."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import msgspec

from .errors import UsageError
from .files import read_input
from .text import printable

_MOST_BYTES = 1 << 20
#: What TOML calls the types that msgspec names.
_TYPES = {
    "str": "a string", "int": "a whole number", "float": "a number", "bool": "true or false", "array": "a list",
    "object": "a table",
}  # fmt: skip


class Mistake(Exception):
    """Arguments: the place of a key in the file, and what is wrong with its value."""


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """The file's table. Raises UsageError with one line that names the file, `what` it should be, and the flaw."""
    raw = read_input(path, what, _MOST_BYTES)
    try:
        return tomllib.loads(raw.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        shown = printable(path.name or str(path))
        raise UsageError(f"{shown}: this is not TOML: {printable(str(error), 200)}") from None
    except ValueError as error:  # of a number with too many digits
        raise UsageError(f"cannot read the {what} {path.name}: {printable(str(error), 200)}") from None


def typed(value: Any, kind: Any, place: str) -> Any:
    """A value of the file as `kind`. Raises Mistake that names the key."""
    before = f"{place}." if place else ""
    if isinstance(value, dict) and hasattr(kind, "__struct_fields__"):
        known = [entry.encode_name for entry in msgspec.structs.fields(kind)]
        for key in value:
            if key not in known:
                raise Mistake(f"{before}{key}", f"this key is not known; there are: {', '.join(known)}")
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        what, _, key = str(error).partition(" - at `$.")
        key = key.rstrip("`")
        if missing := re.fullmatch(r"Object missing required field `(.*)`", what):
            raise Mistake(f"{before}{missing[1]}", "is missing") from None
        expected = re.fullmatch(r"Expected `(\w+)[^`]*`(.*?)(, got `\w+`)?", what)
        if expected:
            what = f"must be {_TYPES.get(expected[1], expected[1])}{expected[2]}"
        found = value.get(key.partition("[")[0]) if key else value
        raise Mistake(f"{before}{key}" if key else place, f"{what}, is {printable(repr(found), 60)}") from None
