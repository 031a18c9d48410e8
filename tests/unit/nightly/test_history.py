"""The nights' history: what is recorded is read back, and what is no history is refused."""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import random
import sqlite3
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gguf_verify.cli import main
from gguf_verify.support.errors import EnvironmentFault, HarnessError, MalformedFile, UsageError
from gguf_verify_nightly import history as history_module
from gguf_verify_nightly.history import History
from gguf_verify_nightly.records import Measure
from tests.support.nights import run_result
from tests.support.stub_nights import KEY, cell_for
from tests.support.work import steps


def test_what_is_recorded_is_read_back(tmp_path: Path) -> None:
    with History(tmp_path / "h") as history:
        other = KEY._replace(prompt="q")
        night = history.begin("c", [KEY, other], {"CPU": "x"}, "1.0")
        assert (night.number, night.finished, night.missing) == (1, None, (KEY, other))
        cell = cell_for(u=math.nan)
        history.record(1, cell)
        read = history.night(1, reports=True)
        found = read.cells[KEY]
        assert math.isnan(found.measures[0].utilisation)
        assert math.isnan(found.gemms["blk.0"])
        assert found.gemms["blk.1"] == math.inf
        assert found.report == cell.report
        assert dataclasses.replace(found, measures=(), gemms={}) == dataclasses.replace(cell, measures=(), gemms={})
        assert read.missing == (other,)
        with pytest.raises(ValueError, match=r"has cell .* already"):
            history.record(1, cell)
        with pytest.raises(ValueError, match=r"has no cell"):
            history.record(1, cell_for(KEY._replace(kernel="z")))
        with pytest.raises(ValueError, match="lacks 1 cells"):
            history.finish(1)
        history.record(1, cell_for(other))
        history.finish(1)
        assert history.night(1).finished
        assert history.nights(1)[0].cells[other] == dataclasses.replace(cell_for(other), gemms={}, report=None)
        history.pin("base", 1)
        assert history.pinned("base") == 1
        assert history.pinned("no") is None
        with pytest.raises(UsageError, match="has no night 2"):
            history.pin("base", 2)
        with pytest.raises(UsageError, match="has no night 2"):
            history.night(2)
        assert history.seconds("c") == {KEY: 1.0, other: 1.0}


def test_an_older_history_is_brought_up_to_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Schema version 1, with a report of schema 1, which is not read; then a version to come."""
    path = tmp_path / "h"
    db = sqlite3.connect(path)
    db.executescript(
        """
        CREATE TABLE key (id INTEGER PRIMARY KEY, model TEXT NOT NULL, type TEXT NOT NULL, kernel TEXT NOT NULL,
            host TEXT NOT NULL, prompt TEXT NOT NULL, variant TEXT NOT NULL,
            UNIQUE (model, type, kernel, host, prompt, variant));
        CREATE TABLE night (number INTEGER PRIMARY KEY, started TEXT NOT NULL, finished TEXT, config TEXT NOT NULL,
            hardware TEXT NOT NULL, project TEXT NOT NULL, fingerprint TEXT NOT NULL);
        CREATE TABLE planned (night INTEGER NOT NULL REFERENCES night ON DELETE CASCADE, position INTEGER NOT NULL,
            key INTEGER NOT NULL REFERENCES key, PRIMARY KEY (night, key)) WITHOUT ROWID;
        CREATE TABLE cell (night INTEGER NOT NULL, key INTEGER NOT NULL, outcome TEXT NOT NULL, words TEXT NOT NULL,
            exit_code INTEGER, seconds REAL NOT NULL, host TEXT NOT NULL, versions TEXT NOT NULL, facts TEXT NOT NULL,
            gemms TEXT NOT NULL, PRIMARY KEY (night, key),
            FOREIGN KEY (night, key) REFERENCES planned ON DELETE CASCADE) WITHOUT ROWID;
        CREATE TABLE report (night INTEGER NOT NULL, key INTEGER NOT NULL, content BLOB NOT NULL,
            PRIMARY KEY (night, key), FOREIGN KEY (night, key) REFERENCES cell ON DELETE CASCADE);
        CREATE TABLE pin (name TEXT PRIMARY KEY, night INTEGER NOT NULL REFERENCES night ON DELETE CASCADE);
        CREATE INDEX night_config ON night (config, number);
        PRAGMA user_version = 1;
        INSERT INTO key VALUES (1, 'm.gguf', 'Q4_0', 'q8_1', 'cpu', 'p', 'installed');
        INSERT INTO night VALUES (3, '2026-01-01T00:00:00Z', NULL, 'c', '{"CPU":"x"}', '1.0', '{}');
        INSERT INTO planned VALUES (3, 0, 1);
        INSERT INTO cell VALUES (3, 1, 'verified', '', 0, 2.5, 'cpu', '{}',
            '{"rungs":{},"figures":{},
              "measures":[["layers","kernel (a)",0.5,null,"w"],["layers","llama.cpp",0.1,1,"w"]]}',
            '{"a":0.5}');
        """
    )
    db.execute("INSERT INTO report VALUES (3, 1, ?)", (zlib.compress(b'{"schema": 1}'),))
    db.commit()
    db.close()

    def third(db: sqlite3.Connection) -> None:
        db.execute("ALTER TABLE night ADD COLUMN note TEXT NOT NULL DEFAULT 'none'")

    for version in (4, 5):
        with History(path) as history:
            cell = history.night(3, reports=True).cells[KEY]
            assert cell.measures == (
                Measure("layers", "kernel (a)", 0.5, None, "w", True),
                Measure("layers", "llama.cpp", 0.1, 1, "w", False),
            )  # fmt: skip
            assert cell.gemms == {"a": 0.5}
            assert cell.report is None
        db = sqlite3.connect(path)
        assert db.execute("PRAGMA user_version").fetchone()[0] == version
        assert db.execute("SELECT schema FROM report").fetchall() == [(1,)]
        monkeypatch.setattr(history_module, "MIGRATIONS", [*history_module.MIGRATIONS, third])


def test_a_migration_that_fails_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "h"
    History(path).close()

    def broken(db: sqlite3.Connection) -> None:
        db.execute("CREATE TABLE more (x)")
        db.execute("SELECT no FROM such")

    monkeypatch.setattr(history_module, "MIGRATIONS", [*history_module.MIGRATIONS, broken])
    with pytest.raises(HarnessError):
        History(path)
    db = sqlite3.connect(path)
    assert db.execute("PRAGMA user_version").fetchone()[0] == 4
    assert not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'more'").fetchall()


def no_database(path: Path) -> None:
    path.write_bytes(b"Once upon a time" * 100)


def of_others(path: Path) -> None:
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE x (y)")
    db.commit()


def newer(path: Path) -> None:
    History(path).close()
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version = 99")


def hollow(path: Path) -> None:
    db = sqlite3.connect(path)
    db.execute(f"PRAGMA user_version = {len(history_module.MIGRATIONS)}")
    db.commit()


def odd(path: Path) -> None:
    with History(path) as history:
        history.begin("c", [KEY], {}, "1")
        history.record(1, cell_for())
    db = sqlite3.connect(path)
    db.execute("UPDATE cell SET facts = '[]'")
    db.commit()


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (no_database, MalformedFile, "is damaged or not a history"),
        (of_others, MalformedFile, "is a database, but not a history"),
        (newer, EnvironmentFault, "has version 99, but this gguf-verify supports only versions up to 4"),
        (hollow, MalformedFile, "is damaged or not a history"),
        (odd, MalformedFile, "is damaged"),
        (Path.mkdir, EnvironmentFault, "cannot be used"),
    ],
)
def test_what_is_no_history(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], make: Callable[[Path], None], error: type[HarnessError],
    said: str,
) -> None:  # fmt: skip
    path = tmp_path / "h.sqlite"
    make(path)
    with pytest.raises(error, match=said), History(path) as history:
        history.nights()
    for command in (["compare", "--history"], ["status", "--history"], ["pin", "x", "--history"]):
        assert main(["nightly", *command, str(path)]) == error.exit_code
        out, err = capsys.readouterr()
        assert out == ""
        assert len(err.splitlines()) == 1


def test_many_begin_in_one_history_that_is_not_there_yet(tmp_path: Path) -> None:
    pids = []
    for _ in range(8):
        pid = os.fork()
        if not pid:
            code = 77
            try:
                with History(tmp_path / "h") as history:
                    night = history.begin("c", [KEY], {}, "1")
                    history.record(night.number, cell_for())
                    history.finish(night.number)
                code = 0
            finally:
                os._exit(code)
        pids.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0] * 8
    with History(tmp_path / "h") as history:
        assert [n.number for n in history.nights()] == list(range(8, 0, -1))
        assert all(len(n.cells) == 1 and n.finished for n in history.nights())


def test_sqlite_does_not_wait_for_others_to_write_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of twelve processes that begin one file at once, about one in four hundred is told that the file is busy."""
    told: list[str] = []

    class Busy(sqlite3.Connection):
        def execute(self, sql: str, *args: Any) -> sqlite3.Cursor:
            if "journal_mode" in sql and not told:
                told.append(sql)
                error = sqlite3.OperationalError("database is locked")
                error.sqlite_errorname = "SQLITE_BUSY"
                raise error
            return super().execute(sql, *args)

    monkeypatch.setattr(sqlite3, "connect", functools.partial(sqlite3.connect, factory=Busy))
    with History(tmp_path / "h") as history:
        assert history.begin("c", [KEY], {}, "1").number == 1
    assert told


def test_no_history_to_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nightly", "compare", "--history", str(tmp_path / "no")]) == 2
    assert "there is no history" in capsys.readouterr().err
    assert not (tmp_path / "no").exists()


def test_a_full_disk_is_one_line_and_half_a_cell_is_none(tmp_path: Path) -> None:
    with History(tmp_path / "h") as history:
        history.begin("c", [KEY], {}, "1")
        (pages,) = history._db.execute("PRAGMA page_count").fetchone()
        history._db.execute(f"PRAGMA max_page_count = {pages}")  # answers as a full disk does
        noise = random.Random(0).randbytes(300_000).hex()
        with pytest.raises(EnvironmentFault, match="full"):
            history.record(1, dataclasses.replace(cell_for(), report=run_result([noise])))
        history._db.execute("PRAGMA max_page_count = 100000")
        assert history.night(1).missing == (KEY,)
        history.record(1, cell_for())


def test_two_hundred_cells_and_twenty_nights_load_quickly(tmp_path: Path) -> None:
    keys = [KEY._replace(model=f"m{i}.gguf") for i in range(200)]
    gemms = {f"blk.{i}.ffn_down.weight": i / 7 for i in range(100)}
    with History(tmp_path / "h") as history:
        history._db.execute("PRAGMA synchronous = OFF")
        first = dataclasses.replace(cell_for(), gemms=gemms, report=None)
        for number in range(1, 21):
            history.begin("c", keys, {}, "1")
            if number == 1:
                for key in keys:
                    history.record(1, dataclasses.replace(first, key=key))
            else:
                columns = "key, outcome, reason, exit_code, seconds, host, versions, facts, gemms"
                history._db.execute(f"INSERT INTO cell SELECT ?, {columns} FROM cell WHERE night = 1", (number,))
        nights = history.nights()
        work = steps(history.nights)
        assert history.night(20).cells[keys[5]].gemms == gemms
    assert sum(len(n.cells) for n in nights) == 4_000
    print(f"{work / 4_000:.1f} lines of Python a cell")
    assert work < 32 * 4_000  # the products of a cell are read on demand
