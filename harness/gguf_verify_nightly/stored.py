"""Checked conversion of the rows of a history's file to records.

The file is untrusted. Its schema must be exactly the one that the migrations make, so that no view, trigger or
generated column can replace a table. Every row is checked against a typed record with limits. SQLite itself is
configured to trust no schema and to reject huge values.
"""

from __future__ import annotations

import contextlib
import re
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec
from msgspec import Meta, Struct

from .records import Failed, Measure, Outcome

T = TypeVar("T")

#: Upper limit of a value or row, in bytes; compressed reports are the largest.
MOST_VALUE = 1 << 26
#: Number of rows of the schema that are read.
_MOST_OBJECTS = 100

Text = Annotated[str, Meta(max_length=1 << 16)]
Name = Annotated[str, Meta(max_length=1 << 12)]
Time = Annotated[str, Meta(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z\Z", max_length=20)]
Number = Annotated[int, Meta(ge=0, lt=1 << 53)]
Json = Annotated[str, Meta(max_length=1 << 25)]


class KeyRow(NamedTuple):
    """A row of `key`."""

    id: Number
    model: Name
    type: Name
    kernel: Name
    host: Name
    prompt: Name
    variant: Name


class NightRow(NamedTuple):
    """A row of `night` without the fingerprint."""

    number: Number
    started: Time
    finished: Time | None
    config: Name
    hardware: Json
    project: Text


class CellRow(NamedTuple):
    """A row of `cell` without its night."""

    key: Number
    outcome: Outcome
    reason: Text
    exit_code: Annotated[int, Meta(ge=-255, le=255)] | None
    seconds: Annotated[float, Meta(ge=0, le=1e9)]
    host: Text
    versions: Json
    facts: Json
    gemms: Json | None


class ReportRow(NamedTuple):
    """A key and the report of its cell, compressed."""

    key: Number
    content: bytes


class PinRow(NamedTuple):
    """A name and its night."""

    name: Name
    night: Number


class KeyOfNight(NamedTuple):
    """A planned key."""

    key: Number


class Seconds(NamedTuple):
    """The time of a key's cell in its newest night."""

    key: Number
    seconds: Annotated[float, Meta(ge=0, le=1e9)]
    night: Number


class Facts(Struct):
    """The small parts of a cell that have no column; older versions did not write `failed`."""

    rungs: dict[str, float]
    figures: dict[str, float]
    measures: tuple[Measure, ...]
    failed: Failed | None = None


_FACTS = msgspec.json.Decoder(Facts, strict=False)
_NUMBERS = msgspec.json.Decoder(dict[str, float], strict=False)
_WORDS = msgspec.json.Decoder(dict[Name, Text])


def row(kind: type[T], values: Sequence[Any]) -> T:
    """Convert a row to a record. Raises msgspec.ValidationError."""
    return msgspec.convert(values, kind)


def rows(kind: type[T], found: Iterable[Sequence[Any]]) -> list[T]:
    """Convert rows to records. Raises msgspec.ValidationError."""
    return msgspec.convert([*found], list[kind])  # type: ignore[valid-type]


def facts(text: str) -> Facts:
    """Decode the column `facts`. Raises msgspec.MsgspecError."""
    return _FACTS.decode(text)


def numbers(text: str) -> dict[str, float]:
    """Decode a JSON object of numbers. Raises msgspec.MsgspecError."""
    return _NUMBERS.decode(text)


def words(text: str) -> dict[str, str]:
    """Decode a JSON object of strings. Raises msgspec.MsgspecError."""
    return _WORDS.decode(text)


def confine(db: sqlite3.Connection) -> None:
    """Configure SQLite for an untrusted file. Raises sqlite3.Error."""
    for what, most in (
        (sqlite3.SQLITE_LIMIT_LENGTH, MOST_VALUE), (sqlite3.SQLITE_LIMIT_SQL_LENGTH, 1 << 16),
        (sqlite3.SQLITE_LIMIT_COLUMN, 64), (sqlite3.SQLITE_LIMIT_EXPR_DEPTH, 64),
        (sqlite3.SQLITE_LIMIT_ATTACHED, 0), (sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 64),
        (sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH, 8),
    ):  # fmt: skip
        db.setlimit(what, most)
    db.execute("PRAGMA trusted_schema = OFF")
    db.execute("PRAGMA cell_size_check = ON")
    db.execute("PRAGMA mmap_size = 0")


def same_schema(db: sqlite3.Connection, migrations: Sequence[Callable[[sqlite3.Connection], None]]) -> bool:
    """Whether the file has the tables and indices that the migrations make, and nothing else. Raises sqlite3.Error."""
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as made:
        for migrate in migrations:
            migrate(made)
        return _schema(db) == _schema(made)


def _schema(db: sqlite3.Connection) -> set[tuple[str, str, str, str]]:
    query = "SELECT type, name, tbl_name, coalesce(sql, '') FROM sqlite_master LIMIT ?"
    # versions of SQLite quote and space the SQL differently after ALTER TABLE
    return {
        (str(kind), str(name), str(table), re.sub(r"[\s\"`\[\]]+", "", str(sql)).lower())
        for kind, name, table, sql in db.execute(query, (_MOST_OBJECTS,))
        if not str(name).startswith("sqlite_stat")
    }
