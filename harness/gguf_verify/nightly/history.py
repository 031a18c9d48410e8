"""The nightly's memory: nights and their cells in one SQLite file.

Tables (schema version 1): `key` the cells' names; `night`; `planned` the keys of a night in order; `cell` what was
recorded of one, in one transaction, with `facts` (JSON: what is small) and `gemms` (JSON, taken apart when it is looked
at); `report` zlib-compressed JSON; `pin` names for nights. `PRAGMA user_version` is the schema's version: an older file
is brought up to date when it is opened, a newer one is refused.

Write-ahead log and immediate transactions: several processes may write at once, each waits for the other.
"""

from __future__ import annotations

import contextlib
import datetime
import gc
import json
import math
import os
import sqlite3
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ..gguf import printable
from ..support.errors import EnvironmentFault, MalformedFile, UsageError
from .records import Cell, Key, Measure, Night, Outcome

#: Seconds that a writer waits for another.
BUSY = 30.0
#: Bytes of a report's JSON that are read back at most.
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


#: What makes version 1 of nothing, 2 of 1, and so on. A schema that was ever released is never altered here: append.
MIGRATIONS: list[Callable[[sqlite3.Connection], None]] = [_version_1]


class _Later(Mapping[str, float]):
    """name → number, taken apart when it is first looked at: there are hundreds to a cell, and few are."""

    __slots__ = ("_made", "_text")

    def __init__(self, text: str) -> None:
        self._text: str | None = text
        self._made: dict[str, float] = {}

    def _all(self) -> dict[str, float]:
        if self._text is not None:
            self._made, self._text = _numbers(json.loads(self._text)), None
        return self._made

    def __getitem__(self, name: str) -> float:
        return self._all()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def __repr__(self) -> str:
        return repr(self._all())


class History:
    """The file at `path`, made where there is none. Use it as a context manager, in one thread.

    Raises:
        MalformedFile: it is no history, or damaged.
        EnvironmentFault: it cannot be written, is of a newer version, the disk is full, another writer is never done.
        UsageError: there is no file and `make` is False.

    All methods raise them too.
    """

    def __init__(self, path: Path | str, make: bool = True) -> None:
        self.path = Path(path)
        self._shown = printable(str(path), 200)
        if not make and not self.path.exists():
            raise UsageError(f"there is no history {self._shown}")
        self._keys: dict[int, Key] = {}
        with self._faults():
            if self.path.exists() and self.path.stat().st_size and not os.access(self.path, os.W_OK):
                raise EnvironmentFault(f"the history {self._shown} cannot be written")
            self._db = sqlite3.connect(self.path, timeout=BUSY, isolation_level=None)
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
        self._db.execute("PRAGMA foreign_keys = ON")
        version = self._version()
        if version > len(MIGRATIONS):
            raise EnvironmentFault(
                f"the history {self._shown} has version {version}, this gguf-verify knows {len(MIGRATIONS)} at most: "
                "use a newer one"
            )
        self._write_ahead()
        self._db.execute("PRAGMA synchronous = FULL")  # a cell that was recorded is not lost with the power
        if version < len(MIGRATIONS):
            with self._transaction():
                if not self._version() and self._db.execute("SELECT 1 FROM sqlite_master").fetchone():
                    raise MalformedFile(f"{self._shown} is a database, but no history of nights")
                for number in range(self._version(), len(MIGRATIONS)):  # again: another may have been faster
                    MIGRATIONS[number](self._db)
                    self._db.execute(f"PRAGMA user_version = {number + 1}")

    def _write_ahead(self) -> None:
        """Turn the write-ahead log on. SQLite does not wait for others there, of whom one may just do the same."""
        deadline = time.monotonic() + BUSY
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
        """SQLite's errors as ours, one line each."""
        try:
            yield
        except sqlite3.Error as error:
            name = getattr(error, "sqlite_errorname", "")
            if name.startswith(("SQLITE_NOTADB", "SQLITE_CORRUPT")):
                raise MalformedFile(f"{self._shown} is no history, or damaged: {error}") from None
            if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
                raise EnvironmentFault(f"the history {self._shown} is in use by another for {BUSY:g} s") from None
            if name == "SQLITE_ERROR" and "no such" in str(error):
                raise MalformedFile(f"{self._shown} is no history, or damaged: {error}") from None
            raise EnvironmentFault(f"the history {self._shown} cannot be used: {error}") from None
        except OSError as error:
            raise EnvironmentFault(f"the history {self._shown} cannot be used: {error.strerror}") from None

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._faults():
            self._db.execute("BEGIN IMMEDIATE")
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
        """A new night with the next number. `fingerprint`: what must be the same for it to be resumed, name → value."""
        if len(set(planned)) != len(planned):
            raise ValueError("a cell is planned twice")
        started = _now()
        with self._transaction():
            (number,) = self._db.execute("SELECT coalesce(max(number), 0) + 1 FROM night").fetchone()
            self._db.execute(
                "INSERT INTO night VALUES (?, ?, NULL, ?, ?, ?, ?)",
                (number, started, config, _dumps(hardware), project, _dumps(fingerprint or {})),
            )
            self._db.executemany("INSERT OR IGNORE INTO key VALUES (NULL, ?, ?, ?, ?, ?, ?)", planned)
            self._db.executemany(
                "INSERT INTO planned SELECT ?, ?, id FROM key WHERE (model, type, kernel, host, prompt, variant) "
                "= (?, ?, ?, ?, ?, ?)",
                [(number, i, *key) for i, key in enumerate(planned)],
            )
        return Night(number, started, None, config, tuple(planned), {}, dict(hardware), project)

    def record(self, number: int, cell: Cell) -> None:
        """One cell of a night, whole or not at all. Raises ValueError where it is not planned or was recorded."""
        facts = {
            "rungs": dict(cell.rung_seconds), "figures": dict(cell.figures),
            "measures": [(m.rung, m.who, m.utilisation, m.score, m.where) for m in cell.measures],
        }  # fmt: skip
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
                    (number, found[0], cell.outcome.value, _text(cell.words), cell.exit_code, cell.seconds,
                     _text(cell.host), _dumps(cell.versions), _dumps(facts), _dumps(dict(cell.gemms))),
                )  # fmt: skip
            except sqlite3.IntegrityError:
                raise ValueError(f"night {number} has cell {cell.key} already") from None
            if cell.report is not None:
                content = zlib.compress(_dumps(cell.report).encode(), 6)
                self._db.execute("INSERT INTO report VALUES (?, ?, ?)", (number, found[0], content))

    def finish(self, number: int) -> None:
        """All that was planned has been recorded. Raises ValueError where it has not."""
        with self._transaction():
            (missing,) = self._db.execute(
                "SELECT count(*) FROM planned LEFT JOIN cell USING (night, key) WHERE night = ? AND outcome IS NULL",
                (number,),
            ).fetchone()
            if missing:
                raise ValueError(f"night {number} lacks {missing} cells")
            self._db.execute("UPDATE night SET finished = ? WHERE number = ? AND finished IS NULL", (_now(), number))

    def pin(self, name: str, number: int) -> None:
        """Give a night a name; one that had it loses it. Raises UsageError where there is no such night."""
        with self._transaction():
            if self._db.execute("SELECT 1 FROM night WHERE number = ?", (number,)).fetchone() is None:
                raise UsageError(f"the history {self._shown} has no night {number}")
            self._db.execute("INSERT OR REPLACE INTO pin VALUES (?, ?)", (name, number))

    # ---- reading ----------------------------------------------------------------------------------------------------

    def pinned(self, name: str) -> int | None:
        """The number of the night of this name."""
        with self._faults():
            found = self._db.execute("SELECT night FROM pin WHERE name = ?", (name,)).fetchone()
        return None if found is None else int(found[0])

    def pins(self) -> dict[str, int]:
        """Name → number."""
        with self._faults():
            return dict(self._db.execute("SELECT name, night FROM pin ORDER BY name"))

    def night(self, number: int, reports: bool = False) -> Night:
        """One night; `reports`: with what is kept of them. Raises UsageError where there is no such night."""
        found = self._nights("WHERE number = ?", (number,), reports)
        if not found:
            raise UsageError(f"the history {self._shown} has no night {number}")
        return found[0]

    def nights(self, limit: int | None = None, config: str | None = None) -> list[Night]:
        """The newest `limit` nights, of one configuration or of all, newest first, without reports."""
        where, values = ("", ()) if config is None else ("WHERE config = ?", (config,))
        return self._nights(
            f"WHERE number IN (SELECT number FROM night {where} ORDER BY number DESC LIMIT ?)",
            (*values, -1 if limit is None else limit), False,
        )  # fmt: skip

    def fingerprint(self, number: int) -> dict[str, str]:
        """What the night was begun with."""
        with self._faults():
            found = self._db.execute("SELECT fingerprint FROM night WHERE number = ?", (number,)).fetchone()
            return {} if found is None else dict(json.loads(found[0]))

    def seconds(self, config: str) -> dict[Key, float]:
        """What the cells of a configuration took when they were last recorded."""
        with self._faults():
            rows = self._db.execute(
                "SELECT cell.key, seconds, max(night) FROM cell JOIN night ON number = night WHERE config = ? "
                "GROUP BY cell.key", (config,),
            ).fetchall()  # fmt: skip
            keys = self._all_keys()
        return {keys[key]: seconds for key, seconds, _ in rows}

    def _all_keys(self) -> dict[int, Key]:
        for row in self._db.execute("SELECT * FROM key WHERE id > ?", (max(self._keys, default=0),)):
            self._keys[row[0]] = Key(*row[1:])
        return self._keys

    def _nights(self, where: str, values: tuple[Any, ...], reports: bool) -> list[Night]:
        collecting = gc.isenabled()
        gc.disable()  # a hundred thousand objects and no cycles: searching them takes as long as making them
        try:
            with self._faults():
                self._db.execute("BEGIN")  # one state of the file, whoever writes meanwhile
                try:
                    return self._read(where, values, reports)
                finally:
                    self._db.execute("ROLLBACK")
        except (ValueError, TypeError, KeyError, IndexError, zlib.error):
            raise MalformedFile(f"the history {self._shown} is damaged: it holds what no gguf-verify wrote") from None
        finally:
            if collecting:
                gc.enable()

    def _read(self, where: str, values: tuple[Any, ...], reports: bool) -> list[Night]:
        out = []
        heads = self._db.execute(
            f"SELECT number, started, finished, config, hardware, project FROM night {where} ORDER BY number DESC",
            values,
        ).fetchall()
        keys = self._all_keys()
        for number, started, finished, config, hardware, project in heads:
            plan = self._db.execute("SELECT key FROM planned WHERE night = ? ORDER BY position", (number,)).fetchall()
            held: dict[int, Any] = {}
            if reports:
                for key, content in self._db.execute("SELECT key, content FROM report WHERE night = ?", (number,)):
                    held[key] = json.loads(_unpack(content))
            rows = self._db.execute(
                "SELECT key, outcome, words, exit_code, seconds, host, versions, facts, gemms FROM cell "
                "WHERE night = ?", (number,),
            )  # fmt: skip
            cells = {row[0]: _cell(keys[row[0]], row, held.get(row[0])) for row in rows}
            ordered = {keys[key]: cells[key] for (key,) in plan if key in cells}
            planned = tuple(keys[key] for (key,) in plan)
            out.append(Night(number, started, finished, config, planned, ordered, json.loads(hardware), project))
        return out


def _cell(key: Key, row: Any, report: Any) -> Cell:
    _, outcome, words, exit_code, seconds, host, versions, facts, gemms = row
    facts = json.loads(facts)
    measures = tuple(
        [
            Measure(rung, who, float(utilisation), None if score is None else float(score), place)
            for rung, who, utilisation, score, place in facts["measures"]
        ]
    )
    return Cell(
        key, Outcome(outcome), words, exit_code, seconds, _numbers(facts["rungs"]), _shared(versions), host, measures,
        _numbers(facts["figures"]), _Later(gemms), report,
    )  # fmt: skip


def _numbers(found: dict[str, Any]) -> dict[str, float]:
    """With the strings of numbers that are not finite as numbers."""
    return {name: float(value) if isinstance(value, str) else value for name, value in found.items()}


@cache
def _shared(text: str) -> dict[str, str]:
    """The same object for the same text: all cells of a night have the same few versions."""
    return dict(json.loads(text))


def _dumps(value: Any) -> str:
    """As JSON; numbers that are not finite as the strings that `float` takes."""
    return json.dumps(_plain(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {_text(str(k)): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return _text(value) if isinstance(value, str) else value


def _text(text: str) -> str:
    """Without lone surrogates, which neither SQLite nor UTF-8 holds."""
    return text.encode("utf-8", "backslashreplace").decode()


def _unpack(content: bytes) -> bytes:
    """Decompress, a bounded amount."""
    unpacking = zlib.decompressobj()
    out = unpacking.decompress(content, MOST_REPORT)
    if not unpacking.eof:
        raise ValueError("not whole, or too large")
    return out


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
