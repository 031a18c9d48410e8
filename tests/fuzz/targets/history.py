"""A history of nights: the bytes of the file, and the values of its columns."""

from __future__ import annotations

import base64
import json
import random
import sqlite3
import tempfile
import zlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from gguf_verify.report.writer import Form, terminal
from gguf_verify_nightly.compare import compare
from gguf_verify_nightly.history import History
from gguf_verify_nightly.records import Outcome
from gguf_verify_nightly.report.writers import NightKind
from gguf_verify_nightly.summary import NightReport
from tests.fuzz import mutations
from tests.fuzz.target import Target
from tests.support.refusals import refused_in_one_line
from tests.support.stub_nights import KEY, cell_for

COLUMNS = {
    "key": ("id", "model", "type", "kernel", "host", "prompt", "variant"),
    "night": ("number", "started", "finished", "config", "hardware", "project", "fingerprint"),
    "planned": ("night", "position", "key"),
    "cell": (
        "night", "key", "outcome", "reason", "exit_code", "seconds", "host", "versions", "facts", "gemms",
    ),
    "report": ("night", "key", "content", "schema"), "pin": ("name", "night"),
}  # fmt: skip


@cache
def valid() -> bytes:
    """A history of two nights of two cells, one with a report, in small pages."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "h")
        with sqlite3.connect(path) as db:
            db.execute("PRAGMA page_size = 512")
            db.execute("VACUUM")
        db.close()
        with History(path) as history:
            other = KEY._replace(prompt="q")
            for number in (1, 2):
                history.begin("c", [KEY, other], {"CPU": "x"}, "1.0", {"model": "0"})
                history.record(number, cell_for(KEY, Outcome.MISMATCH if number == 2 else Outcome.VERIFIED))
                history.record(number, cell_for(other))
                if number == 1:
                    history.finish(number)
            history.pin("base", 1)
        with sqlite3.connect(path) as db:
            # One report is enough; when the file was made must not tell one run from another.
            db.execute("DELETE FROM report WHERE rowid > 1")
            db.execute("UPDATE night SET started = '2026-01-01T00:00:00Z'")
            db.execute("UPDATE night SET finished = '2026-01-01T01:00:00Z' WHERE finished IS NOT NULL")
        db.close()
        with sqlite3.connect(path, isolation_level=None) as db:
            db.execute("PRAGMA journal_mode = DELETE")
            db.execute("VACUUM")
        db.close()
        return path.read_bytes()


def check_file(path: Path) -> None:
    """The command line refuses a history in one line, or shows it without a control character."""
    with refused_in_one_line(), History(path, make=False) as history:
        nights = history.nights(10)
        pins = history.pins()
        shown = terminal(NightKind.HISTORY, {str(n.number): n for n in nights}, Form())
        for night in nights:
            whole = history.night(night.number, reports=True)
            assert set(whole.cells) <= set(whole.planned)
            history.fingerprint(night.number)
            history.seconds(night.config)
            shown += terminal(NightKind.NIGHT, NightReport((whole,)), Form(detail=2))
        if len(nights) > 1:
            shown += terminal(NightKind.COMPARISON, compare(nights[1:], nights[1], nights[0]), Form())
        assert all(isinstance(name, str) and isinstance(number, int) for name, number in pins.items())
        odd = {c for c in shown if not c.isprintable()} - {"\n"}
        assert not odd, f"the terminal is sent {odd}"


def saved(folder: Path, data: bytes) -> Path:
    for path in folder.glob("h*"):
        path.unlink()
    path = folder / "h"
    path.write_bytes(data)
    return path


def file_seeds() -> Iterator[bytes]:
    """A valid history, and others."""
    yield valid()
    yield valid()[:1024]
    yield b""
    yield b"Once upon a time"


FILE = Target(
    "history-file", "a history of nights, byte by byte", file_seeds,
    lambda folder, data: check_file(saved(folder, data)), inputs=50, largest=1 << 16,
)  # fmt: skip


# -- values -----------------------------------------------------------------------------------------------------


def value_of(said: Any) -> Any:
    """A value that SQLite can hold: {"base64": …} is a blob, {"zip": …} a compressed one."""
    if isinstance(said, dict):
        if isinstance(said.get("zip"), str):
            return zlib.compress(said["zip"].encode("utf-8", "surrogatepass"))
        try:
            return base64.b64decode(said["base64"])
        except (KeyError, ValueError, TypeError):
            return json.dumps(said)
    if isinstance(said, list):
        return json.dumps(said)
    if isinstance(said, str):
        # SQLite itself takes any bytes for text
        return said if said.isascii() else said.encode("utf-8", "surrogatepass")
    if isinstance(said, int) and not -(1 << 63) <= said < 1 << 63:
        return float(said) if abs(said) < 1 << 1000 else str(said)[:20]
    return said


def value_seeds() -> Iterator[bytes]:
    """A change of each column, of a kind that it may have and of one that it may not; changes of the schema."""
    for table, columns in COLUMNS.items():
        for column in columns:
            for value in ("x\x1b[31m\udc80", -1, {"base64": "AAEC"}):
                yield json.dumps([[table, column, value]]).encode()
    for value in ("{}", "[]", "[" * 5000, '{"a": 1e999}', '{"a": "NaN"}', '{"\\u001b[31m": 1}', "{", "null"):
        for column in ("facts", "gemms", "versions"):
            yield json.dumps([["cell", column, value]]).encode()
        for column in ("hardware", "fingerprint"):
            yield json.dumps([["night", column, value]]).encode()
        yield json.dumps([["report", "content", {"zip": value}]]).encode()
    yield json.dumps([["key", None, None]]).encode()
    yield json.dumps([["night", "number", 1 << 62], ["cell", "outcome", "verified"]]).encode()
    facts = {"rungs": {"\x1b": 1}, "figures": {"\u202e": 1.5}, "measures": [
        {"rung": "\x1b", "who": "\x1b", "utilisation": "NaN", "score": 1, "where": "\x1b", "of_kernel": True},
    ]}  # fmt: skip
    yield json.dumps([["cell", "facts", json.dumps(facts)]]).encode()


def mutate_values(data: bytes, rng: random.Random) -> bytes:
    """Another value for a column, or one more column; JSON in a value is changed as JSON."""
    try:
        changes = json.loads(data)
        assert isinstance(changes, list)
        changes = [c for c in changes if isinstance(c, list) and len(c) == 3][:6]
    except (ValueError, AssertionError, RecursionError):
        changes = []
    if not changes or rng.randrange(4) == 0:
        table = rng.choice(list(COLUMNS))
        changes.append([table, rng.choice(COLUMNS[table]), mutations.of_value(rng)])
    change = rng.choice(changes)
    if isinstance(change[2], str) and change[2][:1] in ("{", "[") and len(change[2]) < 4000:
        change[2] = mutations.of_json(change[2].encode("utf-8", "surrogatepass"), rng).decode("utf-8", "replace")
    else:
        change[2] = mutations.of_json_value(change[2], rng)
    return json.dumps(changes).encode()


def check_values(folder: Path, data: bytes) -> None:
    """The valid history with these changes, as long as SQLite accepts them."""
    try:
        changes = json.loads(data)
    except (ValueError, RecursionError):
        return
    path = saved(folder, valid())
    with sqlite3.connect(path, isolation_level=None) as db:
        db.execute("PRAGMA synchronous = OFF")
        for change in changes if isinstance(changes, list) else []:
            if not (isinstance(change, list) and len(change) == 3 and change[0] in list(COLUMNS)):
                continue
            table, column, value = change
            try:
                if column not in COLUMNS[table]:
                    db.execute(f"DROP TABLE {table}")
                    continue
                held = value_of(value)
                cast = isinstance(value, str) and isinstance(held, bytes)
                db.execute(f"UPDATE {table} SET {column} = {'CAST(? AS TEXT)' if cast else '?'}", (held,))
            except (sqlite3.Error, ValueError, OverflowError, UnicodeError):
                continue
    db.close()
    check_file(path)


VALUES = Target(
    "history-values", "changes to the columns of a history", value_seeds, check_values, mutate_values, inputs=20,
    covered=("gguf_verify_nightly.records",),
)  # fmt: skip
