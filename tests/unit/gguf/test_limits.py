"""No file makes the parser hang or take memory without bound."""

from __future__ import annotations

import os
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from gguf_verify.gguf.mapped import Mapped
from gguf_verify.gguf.model import open_model
from gguf_verify.gguf.parser import parse
from gguf_verify.gguf.records import MAX_PER_RULE
from gguf_verify.gguf.rules import RULES
from gguf_verify.gguf.storage import Budget, Strings
from gguf_verify.support.errors import MalformedFile
from tests.support import corpus
from tests.support.corpus import STRING, A, Entry
from tests.support.crafted_files import assert_tiles, by_name, save
from tests.support.work import steps


@pytest.mark.parametrize("entry", [e for e in corpus.BAD if "2^" in e.name or "-1" in e.name], ids=by_name)
def test_giant_counts_allocate_nothing(entry: Entry, tmp_path: Path) -> None:
    path, _ = save(entry, tmp_path)
    tracemalloc.start()
    try:
        parse(path).close()
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


#: Hostile files: the repeated element, and the size in MB. An object for each string would take 5 to 10 times as much.
LARGE = {
    "empty strings": (lambda n: corpus.array("k", corpus.STRING, n // 8, [bytes(n // 8 * 8)]), 2),
    "short strings": (lambda n: corpus.array("k", corpus.STRING, n // 9, [corpus.text("x") * (n // 9)]), 2),
    "bad strings": (lambda n: corpus.array("k", corpus.STRING, n // 9, [corpus.text(b"\xff") * (n // 9)]), 4),
    "long strings": (lambda n: corpus.array("k", corpus.STRING, 2, [corpus.text("😀" * (n // 8))] * 2), 24),
    "numbers": (lambda n: corpus.array("k", corpus.F64, n // 8, [bytes(n // 8 * 8)]), 24),
    "bools": (lambda n: corpus.array("k", corpus.BOOL, n, [b"\2" * n]), 24),
    "nested numbers": (lambda n: corpus.array("k", corpus.ARRAY, 1, [corpus.u32(0), corpus.u64(n), bytes(n)]), 24),
    "nested arrays": (lambda n: corpus.array("k", corpus.ARRAY, n // 12, [(corpus.u32(0) + bytes(8)) * (n // 12)]), 24),
    "a string": (lambda n: corpus.pair("k", corpus.STRING, corpus.text("x" * n + "😀")), 24),
    "a bad string": (lambda n: corpus.pair("k", corpus.STRING, corpus.text(b"x" * n + b"\xff")), 24),
    "a key": (lambda n: corpus.pair("k" * n + "😀", corpus.U8, b"\1"), 24),
}


def _peak(path: Path, budget: Budget) -> int:
    tracemalloc.start()
    try:
        parse(path, 0, budget).close()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", LARGE)
def test_memory_does_not_grow_with_the_file(kind: str, tmp_path: Path) -> None:
    """Beyond the budget for held values."""
    make, mb = LARGE[kind]
    path = tmp_path / "large.gguf"
    path.write_bytes(corpus.gguf([make(mb * 1_000_000)], [], []).data)
    assert path.stat().st_size >= mb * 999_000
    assert _peak(path, Budget(held=1 << 18)) < {2: 1.6, 4: 3.2, 24: 10}[mb] * 1e6


def test_memory_of_a_refused_tensor_name(tmp_path: Path) -> None:
    path = tmp_path / "large.gguf"
    path.write_bytes(corpus.gguf([], [corpus.info("n" * 24_000_000 + "😀", [1], corpus.T_F32, 0)], []).data)
    assert _peak(path, Budget()) < 1e6


def test_memory_of_a_key_and_of_a_tensor(tmp_path: Path) -> None:
    """At most 2^16 keys and 2^17 tensors, 64 MiB of values and 8 MiB of keys: at these rates, 400 MB."""
    path = tmp_path / "many.gguf"
    path.write_bytes(corpus.gguf([corpus.pair(f"{i:063}😀", corpus.BOOL, b"\2") for i in range(5000)], [], []).data)
    assert _peak(path, Budget()) < 5000 * 1000
    infos = [corpus.info(f"{i:059}😀", [5, 1, 1, 1], corpus.T_F32, 96 * i) for i in range(5000)]
    path.write_bytes(corpus.gguf([], infos, [bytes(96 * 5000)]).data)  # with padding and a gap each
    assert _peak(path, Budget()) < 5000 * 1500


def test_values_beyond_the_budget_are_read_from_the_file(tmp_path: Path) -> None:
    words = [f"word {i}" for i in range(1000)]
    pairs = [
        corpus.pair("held", corpus.STRING, corpus.text("é" * 10)),
        corpus.pair("text", corpus.STRING, corpus.text("é" * 1000)),
        corpus.array("words", corpus.STRING, 1000, [corpus.text(w) for w in words]),
        corpus.array("numbers", corpus.U16, 1000, [struct.pack("<1000H", *range(1000))]),
        corpus.array("bools", corpus.BOOL, 1000, [b"\0\1" * 500]),
        corpus.array("nested", corpus.ARRAY, 1, [corpus.u32(corpus.U8), corpus.u64(1000), bytes(1000)]),
    ]
    path = tmp_path / "m.gguf"
    path.write_bytes(corpus.gguf(pairs).data)
    with parse(path, 0, Budget(held=100)) as file:
        data = file.metadata
        assert data["held"] == "é" * 10
        assert isinstance(data["text"], memoryview)
        assert str(data["text"], "utf-8") == "é" * 1000
        assert data["words"] == words
        assert np.array_equal(np.asarray(data["numbers"]), np.arange(1000))
        assert np.asarray(data["bools"]).dtype == np.bool_
        assert np.asarray(data["bools"]).sum() == 500
        for key in ("numbers", "bools"):
            value = data[key]
            assert isinstance(value, np.ndarray)
            assert not value.flags.writeable
            assert np.shares_memory(value, file.buffer)
        words_now = data["words"]
        assert isinstance(words_now, Strings)
        os.truncate(path, 150)
        for key in ("text", "words", "numbers", "bools", "nested"):
            with pytest.raises(MalformedFile, match="byte 150: the file ends here now"):
                data[key]
    assert data["held"] == "é" * 10
    with pytest.raises(ValueError, match="closed"):
        data["words"]
    assert list(data) == ["held", "text", "words", "numbers", "bools", "nested"]


def test_file_cut_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(corpus.gguf(infos=[], data=[]).data)
    closed = []
    close = Mapped.close
    monkeypatch.setattr("gguf_verify.gguf.parser._Parser.read_alignment", lambda _: os.truncate(path, 10))

    def noted(mapped: Mapped) -> None:
        closed.append(mapped.path)
        close(mapped)

    monkeypatch.setattr(Mapped, "close", noted)
    with pytest.raises(MalformedFile, match="the file ends"):
        open_model(path)
    assert closed == [path]


def test_strings_that_change_under_the_reader(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    pairs = [corpus.array("words", corpus.STRING, 2, [corpus.text("ab"), corpus.text("cd")])]
    path.write_bytes(corpus.gguf(pairs).data)
    with parse(path, 0, Budget(held=0)) as file:
        words = file.metadata["words"]
        assert words == ["ab", "cd"]
        at = path.read_bytes().index(b"ab")
        with path.open("r+b") as out:
            out.seek(at - 8)
            out.write(corpus.u64(1 << 40))
        for read in (lambda: words[1], lambda: list(words), lambda: words[:1]):
            with pytest.raises(MalformedFile, match="element 0 of an array of strings has changed"):
                read()


@pytest.mark.parametrize("held", [0, 1 << 20])
def test_arrays_of_strings_act_as_lists(held: int, tmp_path: Path) -> None:
    """Across the pieces in which they are read, and the places that are known."""
    expected = [f"é{i}" if i % 3 else "" for i in range(17000)]
    path = tmp_path / "m.gguf"
    texts = [corpus.text(w) for w in expected]
    path.write_bytes(corpus.gguf([corpus.array("words", corpus.STRING, len(texts), texts)]).data)
    with parse(path, 0, Budget(held=held)) as file:
        words = file.metadata["words"]
        assert isinstance(words, Strings)
        assert list(words) == expected
        assert words == expected
        assert words != expected[1:]
        assert words != expected[:-1]
        assert words != [*expected[1:], ""]
        assert words != "words"
        for i in (0, 63, 64, 8191, 8192, 8193, 16383, 16384, 16999, -1, -17000):
            assert words[i] == expected[i]
        for piece in (slice(60, 70), slice(8190, 8200), slice(-3, None), slice(5, 2), slice(100, 50, -7)):
            assert words[piece] == expected[piece]
        for i in (17000, -17001):
            with pytest.raises(IndexError):
                words[i]
        assert "é16999" in words
        assert np.asarray(words).tolist() == expected


@pytest.mark.parametrize("bad", [(0,), (8191, 8192), (5, 16999), (16384,)])
def test_strings_that_are_not_utf8_are_placed(bad: tuple[int, ...], tmp_path: Path) -> None:
    words = [b"\xe2\x82" if i in bad else "€".encode() for i in range(17000)]  # half a character, or a whole one
    words[1] = "é€😀".encode()
    chunks = [corpus.text(w) for w in words]
    chunks[bad[0]] = corpus.Mark(b"\xe2\x82")
    chunks.insert(bad[0], corpus.u64(2))
    built = corpus.gguf([corpus.array("words", corpus.STRING, len(words), chunks)])
    path = tmp_path / "m.gguf"
    path.write_bytes(built.data)
    with parse(path) as file:
        (finding,) = file.findings
    assert finding.id == RULES["bad-utf8"].id
    assert (finding.start, finding.stop) == (built.start, built.stop)
    assert finding.found == f"'\\xe2\\x82' in element {bad[0]}" + (" and 1 more" if len(bad) > 1 else "")


@pytest.mark.parametrize("held", [0, 4 << 20])
def test_bools_are_judged_in_all_pieces(held: int, tmp_path: Path) -> None:
    values = bytearray(b"\0\1" * (3 << 19))
    values[(1 << 20) + 5] = values[(2 << 20) + 7] = values[(2 << 20) + 8] = 2
    path = tmp_path / "m.gguf"
    path.write_bytes(corpus.gguf([corpus.array("k", corpus.BOOL, len(values), [bytes(values)])]).data)
    with parse(path, 0, Budget(held=held)) as file:
        (finding,) = file.findings
        assert finding.found == f"the bool 2 in element {(1 << 20) + 5} and 2 more"
        assert file.buffer[finding.start : finding.stop].tolist() == [2]
        assert np.array_equal(np.asarray(file.metadata["k"]).astype(bool), np.frombuffer(values, np.uint8) > 0)


def test_lengths_are_no_text(tmp_path: Path) -> None:
    """Strings are looked at together, lengths and all: those must neither make a text wrong nor complete one."""
    words = [corpus.text("x" * 0xAC)] * 40
    path = tmp_path / "m.gguf"
    path.write_bytes(corpus.gguf([corpus.array("words", STRING, 40, words)]).data)
    with parse(path) as file:
        assert file.findings == ()
    words[20] = corpus.text(b"\xe2\x82")  # with the low byte of the next length it would be a euro sign
    path.write_bytes(corpus.gguf([corpus.array("words", STRING, 40, words)]).data)
    with parse(path) as file:
        assert [f.found for f in file.findings] == ["'\\xe2\\x82' in element 20"]


def test_a_string_of_many_pieces_that_ends_in_half_a_character(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    for text, bad in ((b"x" * 1048575 + "é".encode(), False), (b"x" * 1048577 + b"\xc3", True)):
        path.write_bytes(corpus.gguf([corpus.pair("k", corpus.STRING, corpus.text(text))]).data)
        with parse(path, 0, Budget(held=0)) as file:
            assert [f.id for f in file.findings] == [RULES["bad-utf8"].id] * bad


def test_more_strings_or_keys_than_the_budget(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    words = [corpus.array(f"words{i}", corpus.STRING, 2, [corpus.text("x")] * 2) for i in range(2)]
    path.write_bytes(corpus.gguf(words).data)
    for budget, accepted in ((Budget(strings=4), True), (Budget(strings=3), False), (Budget(key_bytes=12), True),
                             (Budget(key_bytes=11), False)):  # fmt: skip
        with parse(path, 0, budget) as file:
            assert [f.id for f in file.findings] == [RULES["metadata-size"].id] * (not accepted)


def test_sparse_files_cost_nothing(tmp_path: Path) -> None:
    """1 TB of trailing bytes, of a gap, 2 GiB of padding, none of which takes a block of the disk."""
    far = 1 << 40
    aligned = corpus.pair("general.alignment", corpus.U32, corpus.u32(1 << 31))
    two = [corpus.info("a", [1], corpus.T_F32, 0), corpus.info("b", [1], corpus.T_F32, 1 << 31)]
    files = {
        "trailing": (corpus.gguf().data, far),
        "gap": (corpus.with_second(corpus.info("b", [32, 2], corpus.T_Q4_0, far), [A]).data, far + 4096),
        "padding": (corpus.gguf([aligned], two, [], alignment=1).data, 3 << 31),
    }
    for name, (data, size) in files.items():
        path = tmp_path / name
        path.write_bytes(data)
        os.truncate(path, size)
        with path.open("rb") as sparse, pytest.raises(OSError, match="No such device or address"):
            os.lseek(sparse.fileno(), size // 2, os.SEEK_DATA)
        assert steps(lambda: parse(path).close()) < 2000  # noqa: B023 - called at once
        assert_tiles(path)


def test_padding_is_looked_at_behind_a_hole(tmp_path: Path) -> None:
    aligned = corpus.pair("general.alignment", corpus.U32, corpus.u32(1 << 23))
    path = tmp_path / "m.gguf"
    header = corpus.gguf([aligned], [corpus.info("a", [8], corpus.T_F32, 0)], [], alignment=1).data
    middle, last = (3 << 20) + 5, (1 << 23) - 1
    for places in ((len(header),), (middle,), (last,), (middle, last)):
        path.write_bytes(header)
        with path.open("r+b") as out:
            for at in places:
                out.seek(at)
                out.write(b"\1")
            out.truncate((1 << 23) + 32)
        with parse(path) as file:
            assert [(f.id, f.start, f.stop) for f in file.findings if f.id != RULES["padding-cut"].id] == [
                (RULES["nonzero-padding"].id, places[0], places[-1] + 1)
            ]


def test_findings_are_capped_with_the_total(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(corpus.gguf([corpus.pair(f"{i}", corpus.BOOL, b"\2") for i in range(50)]).data)
    with parse(path) as file:
        assert len(file.findings) == MAX_PER_RULE
        assert file.findings[-1].found.endswith("(and 30 more of this kind)")


def test_large_vocabulary_is_fast(tmp_path: Path) -> None:
    count = 128_000
    words = b"".join(corpus.text(f"token {i}") for i in range(count))
    path = tmp_path / "m.gguf"
    path.write_bytes(corpus.with_pair(corpus.array("tokenizer.ggml.tokens", corpus.STRING, count, [words])).data)
    with parse(path) as file:
        tokens = file.metadata["tokenizer.ggml.tokens"]
        assert isinstance(tokens, Strings)
        assert len(tokens) == count
        assert tokens[-1] == f"token {count - 1}"
    assert steps(lambda: parse(path).close()) < 9 * count  # seven lines a word
