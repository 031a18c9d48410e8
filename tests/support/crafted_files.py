"""Saves crafted GGUF files and opens them."""

from __future__ import annotations

from pathlib import Path

from gguf_verify.gguf.parser import parse
from gguf_verify.gguf.records import KINDS
from tests.support import corpus
from tests.support.corpus import Entry, SplitEntry


def by_name(entry: Entry | SplitEntry) -> str:
    return entry.name


def save(entry: Entry, folder: Path) -> tuple[Path, corpus.Built]:
    built = entry.build()
    path = folder / entry.file_name
    path.write_bytes(built.data)
    return path, built


def assert_tiles(path: Path) -> None:
    """Every byte belongs to exactly one range."""
    with parse(path) as file:
        end = 0
        for r in file.byte_map:
            assert r.start == end, f"{r} does not follow byte {end}"
            assert r.stop > r.start
            assert r.kind in KINDS
            end = r.stop
        assert end == file.size == path.stat().st_size
        if file.refused is None:
            assert "unread" not in {r.kind for r in file.byte_map}
