"""Conversion of records to plain objects that JSON can hold."""

from __future__ import annotations

import math
from dataclasses import fields, is_dataclass
from typing import Any

import msgspec


def plain(value: Any) -> Any:
    """Convert records, mappings and sequences to dicts and lists of strings, numbers, booleans and None.

    Numbers that are not finite become the strings "NaN", "Infinity" and "-Infinity", which `msgspec.convert(…,
    strict=False)` reads back; NumPy's scalars become Python's. Unset members are omitted. Surrogates, from names that
    are not UTF-8, become backslash escapes, because JSON cannot hold them.
    """
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        if math.isfinite(value):
            return float(value)
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {plain(str(k)): plain(v) for k, v in value.items()}
    if isinstance(value, msgspec.Struct):
        tag = value.__struct_config__.tag
        of_type = {} if tag is None else {str(value.__struct_config__.tag_field): tag}
        members = {name: getattr(value, name) for name in value.__struct_fields__}
        return of_type | {name: plain(member) for name, member in members.items() if member is not msgspec.UNSET}
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if hasattr(value, "item"):
        return plain(value.item())
    return [plain(v) for v in value]
