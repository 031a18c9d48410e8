"""Histories that somebody else wrote: one line and exit code 4 from every command that reads one, and no raw control
character; never a traceback, a hang or a great allocation."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from gguf_verify.cli import main
from gguf_verify.support.errors import MalformedFile
from gguf_verify_nightly.history import History
from gguf_verify_nightly.stored import MOST_VALUE
from tests.support.processes import children
from tests.support.stub_nights import KEY, cell_for, write_config

Damage = Callable[[sqlite3.Connection], object]


def statement(text: str, *values: object) -> Damage:
    return lambda db: db.execute(text, values)


def schema_of(text: str) -> Damage:
    def damage(db: sqlite3.Connection) -> None:
        db.execute("PRAGMA writable_schema = ON")
        db.execute(text)

    return damage


def replaced(table: str, view: str) -> Damage:
    """A view in the place of a table."""

    def damage(db: sqlite3.Connection) -> None:
        db.execute("PRAGMA foreign_keys = OFF")
        db.execute(f"ALTER TABLE {table} RENAME TO old_{table}")
        db.execute(f"CREATE VIEW {table} AS {view}")

    return damage


ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)"
DEEP = "[" * 200_000 + "]" * 200_000
DAMAGE: dict[str, Damage] = {
    "ESC in the time": statement("UPDATE night SET started = ?", "\x1b]0;owned\x07\x1b[2J"),
    "a line feed in the time": statement("UPDATE night SET finished = ?", "2026-01-01T00:00:00Z\n"),
    "a time that is a number": statement("UPDATE night SET started = 7"),
    "text that is no UTF-8": statement("UPDATE night SET project = CAST(x'ff1b5b' AS TEXT)"),
    "a key that is no UTF-8": statement("UPDATE key SET model = CAST(x'ff' AS TEXT)"),
    "a key that is a blob": statement("UPDATE key SET kernel = x'00'"),
    "deep hardware": statement("UPDATE night SET hardware = ?", DEEP),
    "deep versions": statement("UPDATE cell SET versions = ?", DEEP),
    "deep facts": statement("UPDATE cell SET facts = ?", DEEP),
    "hardware that is a list": statement("UPDATE night SET hardware = '[1]'"),
    "hardware of numbers": statement("UPDATE night SET hardware = '{\"CPU\": 1}'"),
    "an outcome that does not exist": statement("UPDATE cell SET outcome = 'excellent'"),
    "endless seconds": statement("UPDATE cell SET seconds = 9e999"),
    "seconds in words": statement("UPDATE cell SET seconds = 'long'"),
    "an exit code of a billion": statement("UPDATE cell SET exit_code = 1000000000"),
    "a number below zero": statement("UPDATE night SET number = -1"),
    "a huge value": lambda db: db.execute("UPDATE night SET project = CAST(zeroblob(?) AS TEXT)", (MOST_VALUE + 1,)),
    "a huge report": lambda db: db.execute("UPDATE report SET content = zeroblob(?)", (MOST_VALUE + 1,)),
    "a cell of no key": statement("UPDATE planned SET key = 99"),
    "no nights": statement("DROP TABLE night"),
    "no cells": statement("DROP TABLE cell"),
    "no pins": statement("DROP TABLE pin"),
    "another column": statement("ALTER TABLE night ADD COLUMN more TEXT"),
    "a generated column": statement("ALTER TABLE night ADD COLUMN more TEXT AS (hex(zeroblob(1000000)))"),
    "a trigger": statement("CREATE TRIGGER t AFTER INSERT ON pin BEGIN DELETE FROM cell; END"),
    "an endless view": replaced("night", f"{ENDLESS} SELECT i AS number, '' AS started FROM n"),
    "an endless view of keys": replaced("key", f"{ENDLESS} SELECT i AS id FROM n"),
    "an index of an expression": statement("CREATE INDEX i ON night (hex(zeroblob(1000)))"),
    "another table": statement("CREATE TABLE more (x)"),
    "a schema that is no SQL": schema_of("UPDATE sqlite_master SET sql = 'nonsense' WHERE name = 'night'"),
    "a table at another's root": schema_of(
        "UPDATE sqlite_master SET rootpage = (SELECT rootpage FROM sqlite_master WHERE name = 'cell') "
        "WHERE name = 'night'"
    ),
    "a root outside the file": schema_of("UPDATE sqlite_master SET rootpage = 99999 WHERE name = 'night'"),
    "an endless view by the schema": schema_of(
        "UPDATE sqlite_master SET type = 'view', rootpage = 0, "
        f"sql = 'CREATE VIEW night AS {ENDLESS} SELECT * FROM n' WHERE name = 'night'"
    ),
    "a version below zero": statement("PRAGMA user_version = -5"),
    "a version without its tables": statement("PRAGMA user_version = 1"),
    "keys that are not indexed": statement("PRAGMA user_version = 2"),
}


def make(path: Path, damage: Damage) -> Path:
    with History(path) as history:
        history.begin("night", [KEY], {"CPU": "x"}, "1.0", {"a": "b"})
        history.record(1, cell_for())
        history.finish(1)
        history.pin("base", 1)
    db = sqlite3.connect(path, isolation_level=None)
    damage(db)
    db.close()
    return path


def commands(history: Path) -> list[list[str]]:
    source = ["--history", str(history)]
    return [["status", *source], ["compare", *source], ["compare", "--old", "base", *source], ["pin", "x", *source]]


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_history_is_one_line(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = make(tmp_path / "h.sqlite", DAMAGE[name])
    codes = []
    for command in commands(path):
        codes.append(main(["nightly", *command]))
        out, err = capsys.readouterr()
        assert (out + err).replace("\n", "").isprintable()
        assert "internal error" not in err
        if codes[-1] == 4:
            assert out == ""
            assert len(err.splitlines()) == 1
    # a command that does not read what is damaged may do its work; nobody reports a damaged record
    assert codes[0] == 4 or name in ("a huge report", "no pins")
    assert set(codes) <= {0, 4, 5}


def test_a_huge_report_is_not_read(tmp_path: Path) -> None:
    path = make(tmp_path / "h.sqlite", DAMAGE["a huge report"])
    with History(path) as history, pytest.raises(MalformedFile, match="is damaged"):
        history.night(1, reports=True)


def test_what_a_history_says_is_escaped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Texts that may be anything: a project, a configuration's name, a cell's reason."""
    nasty = "\x1b[31m\u202e\u2028x"

    def damage(db: sqlite3.Connection) -> None:
        db.execute("UPDATE night SET project = ?, config = ?", (nasty, nasty))
        db.execute("UPDATE cell SET reason = ?, host = ?, outcome = 'mismatch'", (nasty, nasty))
        db.execute("UPDATE key SET model = ?, prompt = ?", (nasty, nasty))
        db.execute("UPDATE night SET hardware = ?", (json.dumps({nasty: nasty}),))

    path = make(tmp_path / "h.sqlite", damage)
    with sqlite3.connect(path) as db:
        db.execute("INSERT INTO night SELECT 2, started, finished, config, '{}', 'other', fingerprint FROM night")
        db.execute("INSERT INTO planned SELECT 2, position, key FROM planned")
    for command in commands(path)[:2]:
        main(["nightly", *command])
        out, err = capsys.readouterr()
        assert out
        assert (out + err).replace("\n", "").isprintable()


def test_a_history_that_is_a_pipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "h"
    os.mkfifo(path)
    for command in commands(path):
        assert main(["nightly", *command]) == 4
        assert "not a regular file" in capsys.readouterr().err


def test_a_night_in_a_damaged_history(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = write_config(tmp_path, p="pass")
    make(tmp_path / "nightly.sqlite", DAMAGE["an endless view"])
    before = children(os.getpid())
    assert main(["nightly", "run", str(config)]) == 4
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert children(os.getpid()) == before


# ---- damaged schema --------------------------------------------------------------------------------------------------
# A history whose schema quotes bytes that are no text.


def test_a_message_of_sqlite_that_is_no_text(tmp_path: Path) -> None:
    """SQLite puts the unknown word of a damaged statement into its message, as it stands in the file."""
    path = tmp_path / "h"
    History(path).close()
    db = sqlite3.connect(path)
    db.execute("PRAGMA journal_mode = DELETE")
    db.close()
    raw = path.read_bytes()
    assert raw.count(b"CREATE TABLE night (") == 1
    path.write_bytes(raw.replace(b"CREATE TABLE night (", b"CREATE TABLE nigh\xff("))
    with pytest.raises(MalformedFile) as caught:
        History(path)
    assert str(caught.value).isprintable()
    path.write_bytes(raw.replace(b"CREATE TABLE night (", b"CREATE TABLE\xff\xfe\xff\xff\xff\xff\xff\xff"))
    with pytest.raises(MalformedFile) as caught:
        History(path)
    assert str(caught.value).isprintable()
