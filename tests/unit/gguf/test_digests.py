"""Digests of files and of their pieces."""

from __future__ import annotations

import hashlib
import itertools
from pathlib import Path

import pytest

from gguf_verify.gguf import digests as module
from gguf_verify.gguf.digests import digests, pieces_of, whole_of


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE", 1000)
    monkeypatch.setattr(module, "_BUFFER", 300)
    monkeypatch.setattr(module, "_LARGE_BUFFER", 300)


@pytest.mark.parametrize("size", [0, 1, 299, 300, 301, 999, 1000, 1001, 2000, 5432])
def test_of_any_size(size: int, tmp_path: Path) -> None:
    content = bytes(i * i % 251 for i in range(size))
    path = tmp_path / "file"
    path.write_bytes(content)
    with path.open("rb") as file:
        found = digests(file.fileno())
        assert found.whole == whole_of(file.fileno()) == hashlib.sha256(content).hexdigest()
        parts = [content[start : start + 1000] for start in range(0, size, 1000)]
        assert found.pieces == pieces_of(file.fileno()) == tuple(hashlib.sha256(part).digest() for part in parts)


def test_a_digest_can_be_cancelled(tmp_path: Path) -> None:
    path, times = tmp_path / "file", itertools.count(1)
    path.write_bytes(bytes(5000))
    with path.open("rb") as file:
        found = digests(file.fileno(), lambda: next(times) < 6)
        assert found.whole == hashlib.sha256(bytes(1300)).hexdigest() != whole_of(file.fileno())


@pytest.mark.parametrize("at", [0, 999, 1000, 2499])
def test_every_byte_counts(at: int, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(2500))
    with path.open("rb") as file:
        before = pieces_of(file.fileno())
    content = bytearray(2500)
    content[at] = 1
    path.write_bytes(content)
    with path.open("rb") as file:
        after = pieces_of(file.fileno())
    assert [a != b for a, b in zip(before, after, strict=True)] == [i == at // 1000 for i in range(3)]
