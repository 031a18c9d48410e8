"""A file that is gone through part by part does not stay in memory as a whole, and no view of it becomes invalid."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import pytest

from gguf_verify.gguf.mapped import Mapped

PART, PARTS = 1 << 20, 16
MOST = 2 << 20


def mapped_pages(path: Path) -> int:
    """Bytes of the mapped file that count as this process's memory."""
    found, total = False, 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        words = line.split()
        if "-" in words[0] and len(words) >= 5:
            found = words[-1] == str(path)
        elif found and words[0] == "Rss:":
            total += int(words[1]) << 10
    return total


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "m.gguf"
    path.write_bytes(np.arange(PARTS * PART // 4, dtype=np.uint32).tobytes() + b"rest")
    return path


def test_parts_that_were_requested_long_before(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gguf_verify.gguf.mapped._MAPPED", MOST)
    mapped, content = Mapped(path), path.read_bytes()
    views, most = [], 0
    for i in range(PARTS):
        views.append(mapped.part(i * PART + 3, (i + 1) * PART + 3))  # no part begins with a page
        assert views[-1].sum() >= 0
        most = max(most, mapped_pages(path))
    assert 0 < most <= MOST + 2 * PART
    for i, view in enumerate(views):  # all of them still hold their bytes
        assert view.tobytes() == content[i * PART + 3 : (i + 1) * PART + 3]
    mapped.close()
    assert views[0][1:5].view(np.uint32) == 1  # also those that are still held now
    with pytest.raises(ValueError, match="is closed"):
        mapped.part(0, 1)


def test_small_parts_are_not_remembered_for_ever(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gguf_verify.gguf.mapped._MAPPED", 64 * mmap.PAGESIZE)
    mapped = Mapped(path)
    for i in range(10_000):
        assert len(mapped.part(i % 7, i % 7)) == 0
    assert len(mapped._parts) <= 64
    mapped.close()
