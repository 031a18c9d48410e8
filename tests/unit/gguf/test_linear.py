"""Hostile files cost no more than their size allows: twice the file takes about twice the work, counted in lines of
Python that run, and little memory."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from gguf_verify.audit.audit import coverage
from gguf_verify.gguf.parser import parse
from tests.support import hostile_files
from tests.support.crafted_files import assert_tiles
from tests.support.work import steps

#: Bytes of the smaller file.
SIZE = 1 << 15


def work(path: Path) -> int:
    """Lines run by a parse and by what an audit asks of the byte map."""

    def look() -> None:
        with parse(path) as file:
            assert not coverage(file)
            assert sum(file.byte_map.sizes().values()) == file.size

    return steps(look)


@pytest.mark.parametrize("kind", hostile_files.KINDS)
def test_twice_the_file_takes_twice_the_work(kind: str, tmp_path: Path) -> None:
    one = hostile_files.make(kind, SIZE, tmp_path / "one.gguf")
    four = hostile_files.make(kind, 4 * SIZE, tmp_path / "four.gguf")
    assert_tiles(one)
    work(one)  # what is made once in a process is made here
    ratio = max(1.0, four.stat().st_size / one.stat().st_size)
    assert work(four) < 1.05 * ratio * work(one) + 1000


@pytest.mark.parametrize("kind", hostile_files.KINDS)
def test_memory_of_a_hostile_file(kind: str, tmp_path: Path) -> None:
    """30 bytes for each of the file; what is kept of larger ones is limited, at 27 MB of keys for one."""
    path = hostile_files.make(kind, 1 << 18, tmp_path / "m.gguf")
    tracemalloc.start()
    try:
        with parse(path):
            assert tracemalloc.get_traced_memory()[1] < 30 * (1 << 18)
    finally:
        tracemalloc.stop()


def test_an_unusual_description_is_read_like_any_other(tmp_path: Path) -> None:
    """Ordinary ones are read in bulk; what is wrong with one between them is found at its place."""
    from tests.support import corpus

    good = [corpus.info(f"t{i}", [32], corpus.T_F32, 128 * i) for i in range(8)]
    data = [bytes(128 * 8)]
    wrong = {
        "GGUF-032-duplicate-tensor": corpus.info("t1", [32], corpus.T_F32, 128 * 5),
        "GGUF-031-long-tensor-name": corpus.info("n" * 64, [32], corpus.T_F32, 128 * 5),
        "GGUF-036-tensor-type": corpus.info("t5", [32], 4, 128 * 5),
        "GGUF-041-offset-misaligned": corpus.info("t5", [32], corpus.T_F32, 128 * 5 + 1),
        "GGUF-042-overlap": corpus.info("t5", [32], corpus.T_F32, 128 * 4),
        "GGUF-040-offset-outside": corpus.info("t5", [32], corpus.T_F32, 1 << 62),
    }
    path = tmp_path / "m.gguf"
    for id, info in wrong.items():
        path.write_bytes(corpus.gguf([], [*good[:5], info, *good[6:]], data).data)
        with parse(path) as file:
            assert file.refused is not None
            assert file.refused.id == id
        assert_tiles(path)
