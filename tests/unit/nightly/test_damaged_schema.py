"""A history whose schema quotes bytes that are no text."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from gguf_verify.support.errors import MalformedFile
from gguf_verify_nightly.history import History


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
