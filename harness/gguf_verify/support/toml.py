"""Reading of TOML files that people write: size-limited, checked against typed records, errors in one line."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import msgspec

from .errors import UsageError
from .files import read_input
from .text import printable

_MOST_BYTES = 1 << 20
#: msgspec's names of types → plain words.
_TYPES = {
    "str": "a string", "int": "a whole number", "float": "a number", "bool": "true or false", "array": "a list",
    "object": "a table", "date": "a date",
}  # fmt: skip


class Mistake(Exception):
    """An error in a file. Arguments: the path of the key, and what is wrong with its value."""


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """Return the file's table. Raises UsageError: one line with the file, `what` it should be, and the error."""
    return parsed(read_input(path, what, _MOST_BYTES), printable(path.name or str(path)))


def parsed(content: bytes, shown: str, id: str = "") -> dict[str, Any]:
    """Return the table of a file's content. Raises UsageError, with this id: one line with `shown`, the file's name."""
    try:
        return tomllib.loads(content.decode())
    except (ValueError, RecursionError) as error:  # ValueError: also of a number with too many digits
        raise UsageError(f"{shown}: not valid TOML: {printable(str(error), 200)}", id) from None


def typed(value: Any, kind: Any, place: str) -> Any:
    """Convert a value of the file to `kind`. Raises Mistake that names the key."""
    before = f"{place}." if place else ""
    if isinstance(value, dict) and hasattr(kind, "__struct_fields__"):
        fields = {entry.encode_name: entry for entry in msgspec.structs.fields(kind)}
        for key in value:
            if key not in fields:
                raise Mistake(f"{before}{key}", f"unknown key; known keys: {', '.join(fields)}")
    else:
        fields = {}
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        what, _, key = str(error).partition(" - at `$.")
        key = key.rstrip("`")
        missing = [name for name, entry in fields.items() if entry.required and name not in value]
        if missing and not key:
            raise Mistake(f"{before}{missing[0]}", "is missing") from None
        what = what.partition(", got `")[0].replace(" | null`", "`")
        for name, words in _TYPES.items():
            what = what.replace(f"Expected `{name}`", f"must be {words}")
        found = value.get(key.partition("[")[0]) if key else value
        raise Mistake(f"{before}{key}" if key else place, f"{what}, is {printable(repr(found), 60)}") from None
