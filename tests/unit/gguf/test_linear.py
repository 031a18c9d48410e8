"""Hostile files cost no more than their size allows: twice the file takes about twice the work, counted in lines of
Python that run, and little memory."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from gguf_verify.audit.audit import coverage
from gguf_verify.gguf.parser import parse
from gguf_verify.gguf.records import MAX_PER_RULE
from tests.support import corpus, hostile_files
from tests.support.crafted_files import assert_tiles
from tests.support.invariants import STEPS, STEPS_A_BYTE
from tests.support.work import steps

#: An array of one string that is not UTF-8, without its own type.
NESTED = corpus.u32(corpus.STRING) + corpus.u64(1) + corpus.text(b"\xff")

#: Bytes of the smaller file.
SIZE = 1 << 15


def _many(chunk: Callable[[int], list[bytes]], nbytes: int) -> Callable[[int], bytes]:
    """Pairs of keys and values of `nbytes` each."""
    return lambda size: corpus.gguf([chunk(i) for i in range(size // nbytes)], [], []).data


#: Kinds that the fuzzer does not begin with: a finding for every few bytes.
KINDS = hostile_files.KINDS | {
    "keys of a bad bool": _many(lambda i: corpus.pair(f"{i:x}", corpus.BOOL, b"\2"), 19),
    "arrays of a bad string": _many(lambda i: corpus.array(f"{i:x}", corpus.STRING, 1, [corpus.text(b"\xff")]), 41),
    "an array of arrays of a bad string": lambda size: (
        corpus.with_pair(corpus.array("k", corpus.ARRAY, size // 21, [NESTED * (size // 21)])).data
    ),
}


def work(path: Path) -> int:
    """Lines run by a parse and by an audit's use of the byte map."""

    def look() -> None:
        with parse(path) as file:
            assert not coverage(file)
            assert sum(file.byte_map.sizes().values()) == file.size

    return steps(look)


@pytest.mark.parametrize("kind", KINDS)
def test_twice_the_file_takes_twice_the_work(kind: str, tmp_path: Path) -> None:
    one, four = tmp_path / "one.gguf", tmp_path / "four.gguf"
    one.write_bytes(KINDS[kind](SIZE))
    four.write_bytes(KINDS[kind](4 * SIZE))
    assert_tiles(one)
    assert steps(lambda: parse(four).close()) < STEPS + STEPS_A_BYTE * four.stat().st_size
    with parse(four) as file:
        assert max(Counter(finding.id for finding in file.findings).values(), default=0) <= MAX_PER_RULE
    work(one)  # work that is done once in a process is done here
    ratio = max(1.0, four.stat().st_size / one.stat().st_size)
    assert work(four) < 1.05 * ratio * work(one) + 1000


@pytest.mark.parametrize("kind", hostile_files.KINDS)
def test_memory_of_a_hostile_file(kind: str, tmp_path: Path) -> None:
    """30 bytes for each of the file; for larger files the kept part is limited, at 27 MB of keys for one."""
    path = hostile_files.make(kind, 1 << 18, tmp_path / "m.gguf")
    tracemalloc.start()
    try:
        with parse(path):
            assert tracemalloc.get_traced_memory()[1] < 30 * (1 << 18)
    finally:
        tracemalloc.stop()


def test_an_unusual_description_is_read_like_any_other(tmp_path: Path) -> None:
    """Ordinary ones are read in bulk; a wrong one between them is found at its place."""
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
