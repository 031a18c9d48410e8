"""The nightly's history: nights and their cells in one SQLite file.

Tables (schema version 4):

- `key`: the keys of all cells.
- `night`: the nights.
- `planned`: the keys of each night, in order.
- `cell`: the records of cells, each written in one transaction. `facts` and `gemms` are JSON; `gemms` is the large one
  and is only read for a single night.
- `report`: reports of runs as zlib-compressed JSON; `schema` is the version of the report schema.
- `graph`: the same for runs that judged a graph on a device; their JSON has another schema.
- `killed`: runs of cells that were killed from outside and are tried again.
- `pin`: names of nights.

`PRAGMA user_version` is the schema's version. A file of an older version is migrated when it is opened; a newer one is
refused. Version 2 renamed the column `words` to `reason`, made each measure in `facts` an object with the field
`of_kernel`, and added `report.schema`; version 3 added `killed`, version 4 `graph`. Reports of another schema than
`SCHEMA_VERSION` (for graphs: `GRAPH_SCHEMA`) stay in the file and are not read.

The file uses the write-ahead log and immediate transactions: several processes may write at the same time, and each
waits for the others.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import sqlite3
import stat
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from gguf_verify.backend_results import GRAPH_SCHEMA, GraphReport
from gguf_verify.read_report import UnreadableReport, from_json, graph_from_json
from gguf_verify.results.report import SCHEMA_VERSION, Report
from gguf_verify.support.errors import EnvironmentFault, MalformedFile, UsageError
from gguf_verify.support.files import note_input
from gguf_verify.support.plain import plain
from gguf_verify.support.text import printable

from . import stored
from .records import Cell, Key, Night

#: A writer waits this many seconds for another one.
BUSY_SECONDS = 30.0
#: SQLite errors that are caused by the machine, not by the file.
_OF_THE_MACHINE = (
    "SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_FULL", "SQLITE_IOERR", "SQLITE_NOMEM", "SQLITE_PERM", "SQLITE_AUTH",
    "SQLITE_INTERRUPT", "SQLITE_PROTOCOL", "SQLITE_NOLFS",
)  # fmt: skip
#: Upper limit for a report's JSON when it is read, in bytes.
MOST_REPORT = 1 << 28


def _version_1(db: sqlite3.Connection) -> None:
    for statement in (
        """CREATE TABLE key (
            id INTEGER PRIMARY KEY,
            model TEXT NOT NULL, type TEXT NOT NULL, kernel TEXT NOT NULL, host TEXT NOT NULL, prompt TEXT NOT NULL,
            variant TEXT NOT NULL, UNIQUE (model, type, kernel, host, prompt, variant))""",
        """CREATE TABLE night (
            number INTEGER PRIMARY KEY,
            started TEXT NOT NULL, finished TEXT, config TEXT NOT NULL, hardware TEXT NOT NULL, project TEXT NOT NULL,
            fingerprint TEXT NOT NULL)""",
        """CREATE TABLE planned (
            night INTEGER NOT NULL REFERENCES night ON DELETE CASCADE, position INTEGER NOT NULL,
            key INTEGER NOT NULL REFERENCES key, PRIMARY KEY (night, key)) WITHOUT ROWID""",
        """CREATE TABLE cell (
            night INTEGER NOT NULL, key INTEGER NOT NULL,
            outcome TEXT NOT NULL, words TEXT NOT NULL, exit_code INTEGER, seconds REAL NOT NULL, host TEXT NOT NULL,
            versions TEXT NOT NULL, facts TEXT NOT NULL, gemms TEXT NOT NULL, PRIMARY KEY (night, key),
            FOREIGN KEY (night, key) REFERENCES planned ON DELETE CASCADE) WITHOUT ROWID""",
        """CREATE TABLE report (
            night INTEGER NOT NULL, key INTEGER NOT NULL, content BLOB NOT NULL, PRIMARY KEY (night, key),
            FOREIGN KEY (night, key) REFERENCES cell ON DELETE CASCADE)""",
        "CREATE TABLE pin (name TEXT PRIMARY KEY, night INTEGER NOT NULL REFERENCES night ON DELETE CASCADE)",
        "CREATE INDEX night_config ON night (config, number)",
    ):
        db.execute(statement)


def _version_2(db: sqlite3.Connection) -> None:
    db.execute("ALTER TABLE cell RENAME COLUMN words TO reason")
    db.execute("ALTER TABLE report ADD COLUMN schema INTEGER NOT NULL DEFAULT 1")
    names = ("rung", "who", "utilisation", "score", "where")
    for night, key, text in db.execute("SELECT night, key, facts FROM cell").fetchall():
        facts = json.loads(text)
        facts["measures"] = [
            dict(zip(names, measure, strict=True)) | {"of_kernel": str(measure[1]).startswith("kernel")}
            for measure in facts["measures"]
        ]
        db.execute("UPDATE cell SET facts = ? WHERE night = ? AND key = ?", (json.dumps(facts), night, key))


def _version_3(db: sqlite3.Connection) -> None:
    db.execute(
        """CREATE TABLE killed (
            night INTEGER NOT NULL, key INTEGER NOT NULL, time TEXT NOT NULL, reason TEXT NOT NULL,
            FOREIGN KEY (night, key) REFERENCES planned ON DELETE CASCADE)"""
    )


def _version_4(db: sqlite3.Connection) -> None:
    db.execute(
        """CREATE TABLE graph (
            night INTEGER NOT NULL, key INTEGER NOT NULL, content BLOB NOT NULL, schema INTEGER NOT NULL,
            PRIMARY KEY (night, key), FOREIGN KEY (night, key) REFERENCES cell ON DELETE CASCADE)"""
    )


#: Migrations from an empty file to version 1, from version 1 to version 2, and so on. Never change a released
#: migration; append another.
MIGRATIONS: list[Callable[[sqlite3.Connection], None]] = [_version_1, _version_2, _version_3, _version_4]


class History:
    """The history in the file `path`, which is created if it does not exist. A context manager; use it in one thread.

    Raises:
        MalformedFile: the file is damaged or not a history.
        EnvironmentFault: the file cannot be written, has a newer version, or is locked by another process, or the disk
            is full.
        UsageError: the file does not exist and `make` is False.

    All methods may raise them, too.
    """

    def __init__(self, path: Path | str, make: bool = True) -> None:
        self.path = Path(path)
        self._shown = printable(str(path), 200)
        if not make and not self.path.exists():
            raise UsageError(f"there is no history {self._shown}")
        self._keys: dict[int, Key] = {}
        with self._faults():
            if self.path.exists():
                mode = self.path.stat()
                if not (stat.S_ISREG(mode.st_mode) or stat.S_ISDIR(mode.st_mode)):  # SQLite would wait for a FIFO
                    raise MalformedFile(f"{self._shown} is damaged or not a history: it is not a regular file")
                if mode.st_size and not os.access(self.path, os.W_OK):
                    raise EnvironmentFault(f"the history {self._shown} cannot be written")
                note_input(self.path, mode)
            self._db = sqlite3.connect(self.path, timeout=BUSY_SECONDS, isolation_level=None)
        try:
            with self._faults():
                self._open()
        except BaseException:
            self._db.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._db.close()

    def _open(self) -> None:
        stored.confine(self._db)
        self._db.execute("PRAGMA foreign_keys = ON")
        version = self._version()
        if version < 0:
            raise MalformedFile(f"{self._shown} is damaged or not a history: it has version {version}")
        if version > len(MIGRATIONS):
            raise EnvironmentFault(
                f"the history {self._shown} has version {version}, but this gguf-verify supports only versions up to "
                f"{len(MIGRATIONS)}; use a newer gguf-verify"
            )
        self._write_ahead()
        self._db.execute("PRAGMA synchronous = FULL")  # a recorded cell survives a power failure
        if version < len(MIGRATIONS):
            with self._transaction(), self._checked():
                if not self._version() and self._db.execute("SELECT 1 FROM sqlite_master").fetchone():
                    raise MalformedFile(f"{self._shown} is a database, but not a history of nights")
                self._expect_schema()
                for number in range(
                    self._version(), len(MIGRATIONS)
                ):  # read again: another process may have migrated the file
                    MIGRATIONS[number](self._db)
                    self._db.execute(f"PRAGMA user_version = {number + 1}")
        else:
            self._expect_schema()

    def _expect_schema(self) -> None:
        """Raise MalformedFile if the file does not have the tables of its version."""
        if not stored.same_schema(self._db, MIGRATIONS[: self._version()]):
            raise MalformedFile(f"{self._shown} is damaged or not a history: its tables are not those of a history")

    def _write_ahead(self) -> None:
        """Turn the write-ahead log on. Retry while the file is busy: SQLite's own timeout does not apply here."""
        deadline = time.monotonic() + BUSY_SECONDS
        while True:
            try:
                self._db.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorname != "SQLITE_BUSY" or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

    def _version(self) -> int:
        return int(self._db.execute("PRAGMA user_version").fetchone()[0])

    @contextlib.contextmanager
    def _faults(self) -> Iterator[None]:
        """Convert SQLite's errors to this project's, with messages of one line."""
        damaged = f"{self._shown} is damaged or not a history"
        try:
            yield
        except sqlite3.Error as error:
            name = getattr(error, "sqlite_errorname", "")
            if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
                what = f"another process has been using the history {self._shown} for {BUSY_SECONDS:g} s"
                raise EnvironmentFault(what) from None
            said = printable(str(error), 200)
            if name.startswith(_OF_THE_MACHINE):
                raise EnvironmentFault(f"the history {self._shown} cannot be used: {said}") from None
            raise MalformedFile(f"{damaged}: {said}") from None
        except OSError as error:
            raise EnvironmentFault(f"the history {self._shown} cannot be used: {error.strerror}") from None
        except UnicodeDecodeError:  # SQLite's message quotes the file, and Python cannot decode it
            raise MalformedFile(f"{damaged}: its schema is not UTF-8") from None

    @contextlib.contextmanager
    def _checked(self) -> Iterator[None]:
        """Reject content whose types are not those of the schema."""
        try:
            yield
        except (
            msgspec.MsgspecError, UnreadableReport, ValueError, TypeError, KeyError, zlib.error, OverflowError,
            RecursionError, MemoryError,
        ):  # fmt: skip
            what = f"{self._shown} is damaged: it contains a record that no gguf-verify wrote"
            raise MalformedFile(what) from None

    @contextlib.contextmanager
    def _transaction(self, kind: str = "IMMEDIATE") -> Iterator[None]:
        with self._faults():
            self._db.execute(f"BEGIN {kind}")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    self._db.execute("ROLLBACK")
                raise

    # ---- writing ----------------------------------------------------------------------------------------------------

    def begin(
        self, config: str, planned: Sequence[Key], hardware: Mapping[str, str], project: str,
        fingerprint: Mapping[str, str] | None = None,
    ) -> Night:  # fmt: skip
        """Begin a night with the next number.

        Args:
            fingerprint: name → value of everything that must be unchanged for the night to be resumed.
        """
        if len(set(planned)) != len(planned):
            raise ValueError("a cell is planned twice")
        started = _now()
        with self._transaction():
            (number,) = self._db.execute("SELECT coalesce(max(number), 0) + 1 FROM night").fetchone()
            self._db.execute(
                "INSERT INTO night VALUES (?, ?, NULL, ?, ?, ?, ?)",
                (number, started, config, _json(dict(hardware)), project, _json(dict(fingerprint or {}))),
            )
            self._db.executemany("INSERT OR IGNORE INTO key VALUES (NULL, ?, ?, ?, ?, ?, ?)", planned)
            self._db.executemany(
                "INSERT INTO planned SELECT ?, ?, id FROM key WHERE (model, type, kernel, host, prompt, variant) "
                "= (?, ?, ?, ?, ?, ?)",
                [(number, i, *key) for i, key in enumerate(planned)],
            )
        return Night(number, started, None, config, tuple(planned), {}, dict(hardware), project)

    def record(self, number: int, cell: Cell) -> None:
        """Record one cell of a night in one transaction. Raises ValueError if not planned or already recorded."""
        facts = stored.Facts(dict(cell.rung_seconds), dict(cell.figures), cell.measures, cell.failed)
        with self._transaction():
            found = self._db.execute(
                "SELECT planned.key FROM planned JOIN key ON key.id = planned.key WHERE night = ? "
                "AND (model, type, kernel, host, prompt, variant) = (?, ?, ?, ?, ?, ?)",
                (number, *cell.key),
            ).fetchone()
            if found is None:
                raise ValueError(f"night {number} has no cell {cell.key}")
            try:
                self._db.execute(
                    "INSERT INTO cell VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    (number, found[0], cell.outcome.value, plain(cell.reason), cell.exit_code, cell.seconds,
                     plain(cell.host), _json(dict(cell.versions)), _json(facts), _json(dict(cell.gemms))),
                )  # fmt: skip
            except sqlite3.IntegrityError:
                raise ValueError(f"night {number} has cell {cell.key} already") from None
            for table, kept, schema in (("report", cell.report, SCHEMA_VERSION), ("graph", cell.graph, GRAPH_SCHEMA)):
                if kept is not None:
                    content = zlib.compress(_json(kept).encode(), 6)
                    self._db.execute(f"INSERT INTO {table} VALUES (?, ?, ?, ?)", (number, found[0], content, schema))

    def extend_fingerprint(self, number: int, more: Mapping[str, str]) -> None:
        """Add entries to a night's fingerprint; existing entries are not changed."""
        with self._transaction(), self._checked():
            (text,) = self._db.execute("SELECT fingerprint FROM night WHERE number = ?", (number,)).fetchone()
            known = stored.words(text)
            self._db.execute("UPDATE night SET fingerprint = ? WHERE number = ?", (_json({**more, **known}), number))

    def killed(self, number: int, key: Key, reason: str) -> int:
        """Record that a cell's run was killed from outside. Returns how often that happened to it in this night."""
        with self._transaction(), self._checked():
            found = self._db.execute(
                "SELECT planned.key FROM planned JOIN key ON key.id = planned.key WHERE night = ? "
                "AND (model, type, kernel, host, prompt, variant) = (?, ?, ?, ?, ?, ?)",
                (number, *key),
            ).fetchone()
            if found is None:
                raise ValueError(f"night {number} has no cell {key}")
            self._db.execute("INSERT INTO killed VALUES (?, ?, ?, ?)", (number, found[0], _now(), plain(reason)))
            counted = self._db.execute("SELECT count(*) FROM killed WHERE night = ? AND key = ?", (number, found[0]))
            return int(counted.fetchone()[0])

    def finish(self, number: int) -> None:
        """Mark a night as finished. Raises ValueError if a planned cell is not recorded."""
        with self._transaction():
            (missing,) = self._db.execute(
                "SELECT count(*) FROM planned LEFT JOIN cell USING (night, key) WHERE night = ? AND outcome IS NULL",
                (number,),
            ).fetchone()
            if missing:
                raise ValueError(f"night {number} lacks {missing} cells")
            self._db.execute("UPDATE night SET finished = ? WHERE number = ? AND finished IS NULL", (_now(), number))

    def pin(self, name: str, number: int) -> None:
        """Give a night a name; another night with that name loses it. Raises UsageError if there is no such night."""
        with self._transaction():
            if self._db.execute("SELECT 1 FROM night WHERE number = ?", (number,)).fetchone() is None:
                raise UsageError(f"the history {self._shown} has no night {number}")
            self._db.execute("INSERT OR REPLACE INTO pin VALUES (?, ?)", (name, number))

    # ---- reading ----------------------------------------------------------------------------------------------------

    def pinned(self, name: str) -> int | None:
        """The number of the night with this name, or None."""
        with self._faults(), self._checked():
            found = self._db.execute("SELECT name, night FROM pin WHERE name = ?", (name,)).fetchone()
            return None if found is None else stored.row(stored.PinRow, found).night

    def pins(self) -> dict[str, int]:
        """All pinned names: name → number of the night."""
        with self._faults(), self._checked():
            return dict(stored.rows(stored.PinRow, self._db.execute("SELECT name, night FROM pin ORDER BY name")))

    def night(self, number: int, reports: bool = False) -> Night:
        """Return one night with its GEMMs and, with `reports`, the reports that were kept. Raises UsageError if there
        is no such night."""
        found = self._nights("WHERE number = ?", (number,), True, reports)
        if not found:
            raise UsageError(f"the history {self._shown} has no night {number}")
        return found[0]

    def nights(self, limit: int | None = None, config: str | None = None) -> list[Night]:
        """The newest `limit` nights of one configuration or of all, newest first, without GEMMs and reports."""
        where, values = ("", ()) if config is None else ("WHERE config = ?", (config,))
        return self._nights(
            f"WHERE number IN (SELECT number FROM night {where} ORDER BY number DESC LIMIT ?)",
            (*values, -1 if limit is None else limit), False, False,
        )  # fmt: skip

    def fingerprint(self, number: int) -> dict[str, str]:
        """The night's fingerprint, including the entries that were added later."""
        with self._faults(), self._checked():
            found = self._db.execute("SELECT fingerprint FROM night WHERE number = ?", (number,)).fetchone()
            return {} if found is None else stored.words(found[0])

    def seconds(self, config: str) -> dict[Key, float]:
        """The time of each cell of a configuration when it was last recorded."""
        with self._faults(), self._checked():
            found = self._db.execute(
                "SELECT cell.key, seconds, max(night) FROM cell JOIN night ON number = night WHERE config = ? "
                "GROUP BY cell.key", (config,),
            )  # fmt: skip
            rows = stored.rows(stored.Seconds, found)
            keys = self._all_keys()
            return {keys[key]: seconds for key, seconds, _ in rows}

    def _all_keys(self) -> dict[int, Key]:
        newer = "SELECT id, model, type, kernel, host, prompt, variant FROM key WHERE id > ?"
        for row in stored.rows(stored.KeyRow, self._db.execute(newer, (max(self._keys, default=0),))):
            self._keys[row.id] = Key(*row[1:])
        return self._keys

    def _nights(self, where: str, values: tuple[Any, ...], gemms: bool, reports: bool) -> list[Night]:
        out = []
        with (
            self._transaction("DEFERRED"),
            self._checked(),
        ):  # a consistent view while other processes write
            found = self._db.execute(
                f"SELECT number, started, finished, config, hardware, project FROM night {where} ORDER BY number DESC",
                values,
            )
            heads = stored.rows(stored.NightRow, found)
            keys = self._all_keys()
            for number, started, finished, config, hardware, project in heads:
                plan = self._db.execute("SELECT key FROM planned WHERE night = ? ORDER BY position", (number,))
                planned = {key: keys[key] for (key,) in stored.rows(stored.KeyOfNight, plan)}
                cells = self._cells(number, keys, gemms, reports)
                ordered = {name: cells[key] for key, name in planned.items() if key in cells}
                out.append(
                    Night(
                        number,
                        started,
                        finished,
                        config,
                        (*planned.values(),),
                        ordered,
                        stored.words(hardware),
                        project,
                    )
                )
        return out

    def _cells(self, number: int, keys: Mapping[int, Key], gemms: bool, reports: bool) -> dict[int, Cell]:
        kept, graphs = dict[int, Report](), dict[int, GraphReport]()
        if reports:
            kept = {key: from_json(raw) for key, raw in self._kept("report", number, SCHEMA_VERSION)}
            graphs = {key: graph_from_json(raw) for key, raw in self._kept("graph", number, GRAPH_SCHEMA)}
        found = {}
        for values in self._db.execute(
            "SELECT key, outcome, reason, exit_code, seconds, host, versions, facts, "
            f"{'gemms' if gemms else 'NULL'} FROM cell WHERE night = ?", (number,),
        ):  # fmt: skip
            row = stored.row(stored.CellRow, values)
            held = stored.facts(row.facts)
            found[row.key] = Cell(
                keys[row.key], row.outcome, row.reason, row.exit_code, row.seconds, held.rungs, _shared(row.versions),
                row.host, held.measures, held.figures, {} if row.gemms is None else stored.numbers(row.gemms),
                kept.get(row.key), graphs.get(row.key), failed=held.failed,
            )  # fmt: skip
        return found

    def _kept(self, table: str, number: int, schema: int) -> Iterator[tuple[int, bytes]]:
        """Yield the decompressed reports of one kind and night, each with its key."""
        query = f"SELECT key, content FROM {table} WHERE night = ? AND schema = ?"
        for row in self._db.execute(query, (number, schema)):
            key, content = stored.row(stored.ReportRow, row)
            yield key, _decompressed(content)


@lru_cache(256)
def _shared(versions: str) -> dict[str, str]:
    """Decode versions. Cached, because the cells of a night have few different ones."""
    return stored.words(versions)


def _json(value: Any) -> str:
    return json.dumps(plain(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _decompressed(content: bytes) -> bytes:
    unpacking = zlib.decompressobj()
    out = unpacking.decompress(content, MOST_REPORT)
    if not unpacking.eof:
        raise zlib.error("the report is truncated or too large")
    return out


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
