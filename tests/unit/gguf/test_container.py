"""The container against crafted files, against gguf-py, and against files that change under it."""

from __future__ import annotations

import hashlib
import os
import signal
import struct
import time
import tracemalloc
from functools import partial
from pathlib import Path

import gguf
import numpy as np
import pytest

from gguf_verify.gguf import KINDS, RULES, RefusedFile, check_consistency, open_model, parse, printable
from gguf_verify.gguf.mapped import Mapped
from gguf_verify.gguf.records import MAX_PER_RULE
from gguf_verify.gguf.storage import Budget, Strings
from gguf_verify.support.errors import EXIT_MALFORMED, MalformedFile
from tests.support import corpus
from tests.support.corpus import STRING, A, Entry, SplitEntry
from tests.support.needs import SHARED_MODELS, need

SHARED = ("TinyStories-656K-Q8_0.gguf", "TinyStories-656K-f16.gguf", "stories260K-ggml-org-f32.gguf")


def by_name(entry: Entry | SplitEntry) -> str:
    return entry.name


def save(entry: Entry, folder: Path) -> tuple[Path, corpus.Built]:
    built = entry.build()
    path = folder / entry.file_name
    path.write_bytes(built.data)
    return path, built


def shared_model(name: str) -> Path:
    need("shared-models")
    return SHARED_MODELS / name


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


# -- the corpus -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", corpus.BAD, ids=by_name)
def test_each_bad_file_gives_exactly_its_finding(entry: Entry, tmp_path: Path) -> None:
    path, built = save(entry, tmp_path)
    assert entry.slug is not None
    with parse(path) as file:
        assert [(f.id, f.effect) for f in file.findings] == [(RULES[entry.slug].id, entry.effect)]
        (finding,) = file.findings
        assert (finding.start, finding.stop) == (built.start, built.stop), finding.line()
        assert (file.refused == finding) == (entry.effect == "refuse")
        assert "\n" not in finding.line()
        assert finding.line().isprintable()
        assert finding.why
        assert finding.expected
        assert finding.found


@pytest.mark.parametrize("entry", corpus.GOOD, ids=by_name)
def test_harmless_files_are_accepted_in_silence(entry: Entry, tmp_path: Path) -> None:
    path, _ = save(entry, tmp_path)
    with open_model(path) as model:
        assert model.findings == ()
        assert check_consistency(model) == ()


@pytest.mark.parametrize("entry", [*corpus.CLAIMS, *corpus.TRUE_CLAIMS], ids=by_name)
def test_each_lie_of_the_metadata_is_found(entry: Entry, tmp_path: Path) -> None:
    path, built = save(entry, tmp_path)
    with open_model(path) as model:
        assert model.findings == ()
        found = check_consistency(model)
        if entry.slug is None:
            assert found == ()
            return
        assert [f.id for f in found] == [RULES[entry.slug].id]
        (finding,) = found
        assert (finding.start, finding.stop) == (built.start, built.stop)
        assert finding.effect == "warning"


@pytest.mark.parametrize("entry", corpus.CORPUS, ids=by_name)
def test_byte_map_covers_every_byte_once(entry: Entry, tmp_path: Path) -> None:
    assert_tiles(save(entry, tmp_path)[0])


def test_every_rule_has_a_crafted_file() -> None:
    covered = {e.slug for e in corpus.CORPUS} | {e.slug for e in corpus.SPLITS}
    own = {slug for slug, rule in RULES.items() if rule.number < 100}  # those above are found by others
    assert own - covered == {"expert-count"}  # tested below
    ids = [rule.id for rule in RULES.values()]
    assert len({i[:8] for i in ids}) == len(ids)


@pytest.mark.parametrize("entry", [e for e in corpus.BAD if e.effect == "refuse"], ids=by_name)
def test_refused_file_is_one_line_with_name_and_byte(entry: Entry, tmp_path: Path) -> None:
    path, built = save(entry, tmp_path)
    with pytest.raises(RefusedFile) as caught:
        open_model(path)
    line = str(caught.value)
    assert caught.value.exit_code == EXIT_MALFORMED
    assert line.isprintable()
    assert len(line) < 1000
    assert line.startswith(f"{path}: byte {built.start}: ")


def test_expert_count(tmp_path: Path) -> None:
    pairs = [
        corpus.pair("general.architecture", corpus.STRING, corpus.text("llama")),
        corpus.marked(corpus.pair("llama.expert_count", corpus.U32, corpus.u32(4)), 2),
    ]
    built = corpus.gguf(pairs, [corpus.info("blk.0.ffn_up_exps.weight", [4, 1, 2], corpus.T_F32, 0)], [A])
    path = tmp_path / "experts.gguf"
    path.write_bytes(built.data)
    with open_model(path) as model:
        (finding,) = check_consistency(model)
    assert finding.id == RULES["expert-count"].id
    assert (finding.start, finding.stop) == (built.start, built.stop)


# -- files that cannot be opened --------------------------------------------------------------------------------


def test_what_is_no_regular_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "\x1b[31m.gguf").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "device").symlink_to("/dev/zero")
    for name, said in (("nothing.gguf", "No such file"), ("\x1b[31m.gguf", "a directory"), ("fifo", "regular file"),
                       ("loop", "symbolic links"), ("device", "regular file"), ("a\0b", "null byte"),
                       ("x" * 300, "name too long")):  # fmt: skip
        with pytest.raises(MalformedFile, match=said) as caught:
            open_model(tmp_path / name)
        assert str(caught.value).isprintable()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable_file(tmp_path: Path) -> None:
    path = tmp_path / "secret.gguf"
    path.write_bytes(corpus.gguf().data)
    path.chmod(0)
    with pytest.raises(MalformedFile, match="Permission denied"):
        open_model(path)


def test_every_prefix_of_a_file_is_judged(tmp_path: Path) -> None:
    """Cut anywhere, a file is refused, or short of padding only; and never crashes the parser."""
    built = corpus.gguf().data
    path = tmp_path / "cut.gguf"
    for size in range(len(built)):
        path.write_bytes(built[:size])
        with parse(path) as file:
            whole = size >= len(built) - 28  # what is cut is final padding
            assert [f.effect for f in file.findings] == (["warning"] if whole else ["refuse"]), size
        assert_tiles(path)


def test_every_byte_can_be_wrong(tmp_path: Path) -> None:
    """Any byte set to anything may be accepted or refused, but ends in a verdict and a whole map."""
    built = corpus.gguf().data
    path = tmp_path / "flipped.gguf"
    header = len(built) - sum(map(len, corpus.DATA))
    for at in range(header):
        for value in (0x00, 0x7F, 0xFF):
            path.write_bytes(built[:at] + bytes([value]) + built[at + 1 :])
            assert_tiles(path)


def test_file_that_turns_into_a_fifo_does_not_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look at it and its opening."""
    path = tmp_path / "m.gguf"
    os.mkfifo(path)
    regular = os.stat(__file__)
    monkeypatch.setattr("gguf_verify.gguf.mapped.os.stat", lambda _: regular)

    def waited(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, waited)
    signal.alarm(5)
    try:
        with pytest.raises(MalformedFile, match="regular file"):
            parse(path)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


# -- the tensors ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", corpus.GOOD, ids=by_name)
def test_agrees_with_gguf_py(entry: Entry, tmp_path: Path) -> None:
    path, _ = save(entry, tmp_path)
    assert_agreement(path)


@pytest.mark.parametrize("name", SHARED)
def test_shared_models_are_clean(name: str) -> None:
    path = shared_model(name)
    assert_agreement(path)
    assert_tiles(path)
    with open_model(path) as model:
        assert model.findings == ()
        assert check_consistency(model) == ()
        assert model.architecture == "llama"
        assert model.size == path.stat().st_size
        assert model.sha256() == (hashlib.sha256(path.read_bytes()).hexdigest(),)


def assert_agreement(path: Path) -> None:
    theirs = gguf.GGUFReader(path)
    with parse(path) as ours:
        assert ours.alignment == theirs.alignment
        assert ours.data_offset == theirs.data_offset or not theirs.tensors
        assert list(ours.tensors) == [t.name for t in theirs.tensors]
        assert list(ours.metadata) == [name for name in theirs.fields if not name.startswith("GGUF.")]
        for key, value in ours.metadata.items():
            expected = theirs.fields[key].contents()
            np.testing.assert_array_equal(np.asarray(value), np.asarray(expected), err_msg=key)
        for mine, their in zip(ours.tensors.values(), theirs.tensors, strict=True):
            assert mine.shape == tuple(their.shape.tolist())
            assert mine.type.name == their.tensor_type.name
            assert (mine.offset, mine.nbytes) == (their.data_offset, their.n_bytes)
            assert mine.raw.tobytes() == their.data.tobytes()


def test_overlap_of_one_byte(tmp_path: Path) -> None:
    aligned = corpus.pair("general.alignment", corpus.U32, corpus.u32(1))
    path = tmp_path / "m.gguf"
    for offset in (32, 31):
        infos = [corpus.info("a", [8], corpus.T_F32, 0), corpus.info("b", [8], corpus.T_F32, offset)]
        path.write_bytes(corpus.gguf([aligned], infos, [A, A], alignment=1, cut=32 - offset).data)
        with parse(path) as file:
            assert (file.refused and file.refused.id) == (None if offset == 32 else RULES["overlap"].id)


def test_blocks_are_views_at_their_offsets(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(corpus.model(corpus.T_Q8_0).data)
    with open_model(path) as model:
        tensor = model.tensors["blk.1.ffn_down.weight"]
        assert (tensor.k, tensor.n_rows, tensor.blocks_per_row) == (96, 64, 3)
        blocks = tensor.blocks(5, 9)
        assert blocks.shape == (4, 3, 34)
        assert np.shares_memory(blocks, model.parts[0].buffer)
        assert np.array_equal(tensor.blocks(0, 64).reshape(-1), tensor.raw)
        base = model.parts[0].buffer.ctypes.data
        assert blocks[2, 1].ctypes.data - base == tensor.block_offset(7, 1)
        assert not blocks.flags.writeable
        for row, block in ((64, 0), (0, 3), (-1, 0)):
            with pytest.raises(IndexError):
                tensor.block_offset(row, block)
        for rows in ((0, 65), (3, 2), (-1, 2)):
            with pytest.raises(IndexError):
                tensor.blocks(*rows)


def test_empty_tensor_has_no_blocks(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(corpus.gguf(infos=[corpus.info("e", [1 << 40, 0], corpus.T_Q4_0, 0)], data=[]).data)
    with open_model(path) as model:
        tensor = model.tensors["e"]
        assert tensor.raw.shape == (0,)
        assert tensor.blocks(0, 0).shape == (0, 1 << 35, 18)


def test_metadata_values(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(corpus.every_value_type().data)
    with open_model(path) as model:
        assert model.metadata["scalar.1"] == -1
        assert model.metadata["scalar.7"] is False
        assert model.metadata["scalar.8"] == "текст"
        assert model.metadata["array.8"] == ["текст", "текст"]
        assert model.metadata["scalar.10"] == 1 << 63
        assert isinstance(model.metadata["array.7"], np.ndarray)
        assert model.metadata["array.7"].dtype == np.bool_
    assert model.metadata["array.3"][0] == -1  # type: ignore[index]  # readable after closing


def test_file_cut_after_opening_is_an_error_not_a_crash(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(corpus.model().data)
    with open_model(path) as model:
        tensor = model.tensors["blk.1.ffn_down.weight"]
        os.truncate(path, 100)
        for read in (lambda: tensor.raw, lambda: tensor.blocks(0, 1), lambda: model.parts[0].buffer, model.sha256):
            with pytest.raises(MalformedFile, match="byte 100: the file ends here now"):
                read()
    with pytest.raises(ValueError, match="closed"):
        _ = tensor.raw


# -- bounds -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", [e for e in corpus.BAD if "2^" in e.name or "-1" in e.name], ids=by_name)
def test_giant_counts_allocate_nothing(entry: Entry, tmp_path: Path) -> None:
    path, _ = save(entry, tmp_path)
    tracemalloc.start()
    try:
        parse(path).close()
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def _repeat(chunk: bytes, size: int = 1 << 20) -> bytes:
    return chunk * (size // len(chunk))


#: Files just under 1 MB that make a reader work for every few bytes.
SLOW = {
    "keys": lambda: corpus.gguf([corpus.pair(f"{i:x}", corpus.U8, b"\2") for i in range(60000)], [], []),
    "bad bools": lambda: corpus.gguf([corpus.pair(f"{i:x}", corpus.BOOL, b"\2") for i in range(55000)], [], []),
    "empty strings": lambda: corpus.with_pair(corpus.array("k", corpus.STRING, 1 << 17, [_repeat(corpus.u64(0))])),
    "bad strings": lambda: corpus.with_pair(
        corpus.array("k", corpus.STRING, 1 << 16, [_repeat(corpus.text(b"\xff"), 9 << 16)])
    ),
    "nested arrays": lambda: corpus.with_pair(
        corpus.array("k", corpus.ARRAY, 16000, [(corpus.u32(corpus.ARRAY) + corpus.u64(0)) * 16000])
    ),
    "nested bad strings": lambda: corpus.with_pair(
        corpus.array("k", corpus.ARRAY, 16000, [(corpus.u32(STRING) + corpus.u64(1) + corpus.text(b"\xff")) * 16000])
    ),
    "arrays of a bad string": lambda: corpus.gguf(
        [corpus.array(f"{i:x}", STRING, 1, [corpus.text(b"\xff")]) for i in range(25000)], [], []
    ),
    "empty tensors": lambda: corpus.gguf(
        infos=[corpus.info(f"{i:x}", [0], corpus.T_F32, 0) for i in range(25000)], data=[]
    ),
    "gaps": lambda: corpus.gguf(
        infos=[corpus.info(f"{i:x}", [1], corpus.T_F32, 64 * i) for i in range(8000)], data=[_repeat(b"\1", 64 * 8000)]
    ),
    "out of order": lambda: corpus.gguf(
        infos=[corpus.info(f"{i:x}", [1], corpus.T_F32, 32 * (7999 - i)) for i in range(8000)], data=[bytes(32 * 8000)]
    ),
}


@pytest.mark.parametrize("name", SLOW)
def test_no_file_hangs_the_parser(name: str, tmp_path: Path) -> None:
    path = tmp_path / "slow.gguf"
    path.write_bytes(SLOW[name]().data)
    assert path.stat().st_size <= 1.2e6
    start = time.perf_counter()
    file = parse(path)
    assert time.perf_counter() - start < 2
    per_rule = {f.id: sum(g.id == f.id for g in file.findings) for f in file.findings}
    assert all(count <= MAX_PER_RULE for count in per_rule.values())
    assert_tiles(path)


#: Hostile files: what they repeat, and how many MB of it. An object for each string would take 5 to 10 times as much.
LARGE = {
    "empty strings": (lambda n: corpus.array("k", corpus.STRING, n // 8, [bytes(n // 8 * 8)]), 4),
    "short strings": (lambda n: corpus.array("k", corpus.STRING, n // 9, [corpus.text("x") * (n // 9)]), 4),
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
    """Beyond what the budget says may be held."""
    make, mb = LARGE[kind]
    path = tmp_path / "large.gguf"
    path.write_bytes(corpus.gguf([make(mb * 1_000_000)], [], []).data)
    assert path.stat().st_size >= mb * 999_000
    assert _peak(path, Budget(held=1 << 18)) < {4: 3.2, 24: 10}[mb] * 1e6


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


def test_what_exceeds_the_budget_is_read_from_the_file(tmp_path: Path) -> None:
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
    monkeypatch.setattr(Mapped, "close", lambda mapped: (closed.append(mapped.path), close(mapped)))
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
        for read in (lambda: words[1], lambda: list(words), lambda: words[:1]):  # type: ignore[index,call-overload]
            with pytest.raises(MalformedFile, match="element 0 of an array of strings has changed"):
                read()


@pytest.mark.parametrize("held", [0, 1 << 20])
def test_arrays_of_strings_act_as_lists(held: int, tmp_path: Path) -> None:
    """Across the pieces in which they are read, and the places that are known."""
    expected = [f"é{i}" if i % 3 else "" for i in range(17000)]
    path = tmp_path / "m.gguf"
    words = [corpus.text(w) for w in expected]
    path.write_bytes(corpus.gguf([corpus.array("words", corpus.STRING, len(words), words)]).data)
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


def test_parts_share_one_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / corpus.ONE).write_bytes(corpus.part(0))
    (tmp_path / corpus.TWO).write_bytes(corpus.part(1))
    for field, enough in (("tensors", 2), ("keys", 6)):
        for left in (enough, enough - 1):
            monkeypatch.setattr("gguf_verify.gguf.model.Budget", partial(Budget, **{field: left}))
            if left == enough:
                open_model(tmp_path / corpus.ONE).close()
                continue
            with pytest.raises(RefusedFile, match="in other parts") as caught:
                open_model(tmp_path / corpus.ONE)
            assert caught.value.finding.id == RULES[field[:-1] + "-count"].id
            assert caught.value.finding.part == 1


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
        start = time.perf_counter()
        parse(path).close()
        assert time.perf_counter() - start < 1
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
    start = time.perf_counter()
    with parse(path) as file:
        took = time.perf_counter() - start
        tokens = file.metadata["tokenizer.ggml.tokens"]
        assert isinstance(tokens, Strings)
        assert len(tokens) == count
        assert tokens[-1] == f"token {count - 1}"
    assert took < 1.5  # 0.05 s on an idle machine


# -- split models -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", corpus.SPLITS, ids=by_name)
def test_split_models(entry: SplitEntry, tmp_path: Path) -> None:
    for name, data in entry.files.items():
        (tmp_path / name).write_bytes(data)
    if entry.slug is None:
        with open_model(tmp_path / entry.opened) as model:
            assert len(model.parts) == len(entry.files) == len(model.sha256())
            assert [t.part for t in model.tensors.values()] == list(range(len(entry.files)))
            assert all(t.raw.tobytes() == A for t in model.tensors.values())
            assert model.size == sum(map(len, entry.files.values()))
            assert model.findings == ()
        return
    with pytest.raises(RefusedFile) as caught:
        open_model(tmp_path / entry.opened)
    assert caught.value.finding.id == RULES[entry.slug].id
    assert entry.named in str(caught.value)
    assert str(caught.value).isprintable()


# -- text -------------------------------------------------------------------------------------------------------


def test_printable() -> None:
    assert printable("blk.0.attn_q.weight") == "blk.0.attn_q.weight"
    assert printable("\x1b[31m\n\0") == "\\x1b[31m\\x0a\\x00"
    assert printable("\u202eevil\u2028\ufeff\U000e0041") == "\\u202eevil\\u2028\\ufeff\\U000e0041"
    assert printable(b"\xff".decode("utf-8", "surrogateescape")) == "\\xff"
    assert printable("\\xff") == "\\\\xff"
    assert printable("né 模型") == "né 模型"
    assert printable("abc", 3) == "abc"
    assert printable("abcd", 3) == "abc…"
    assert printable("\x1b" * 10**7, 8) == "\\x1b\\x1b…"


def test_names_in_messages_are_escaped(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(corpus.with_second(corpus.info("\x1b[31m\u202e", [33, 2], corpus.T_Q4_0, 32)).data)
    with pytest.raises(RefusedFile) as caught:
        open_model(path)
    assert "\\x1b[31m\\u202e" in str(caught.value)
    assert str(caught.value).isprintable()


def test_the_writer_writes_what_gguf_py_writes(tmp_path: Path) -> None:
    """The corpus's own writer, checked against gguf-py's."""
    path = tmp_path / "theirs.gguf"
    writer = gguf.GGUFWriter(path, "x")
    writer.add_bool("flag", True)
    writer.add_array("words", ["a", "b"])
    writer.add_tensor("t", np.frombuffer(A, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    mine = corpus.gguf(
        [
            corpus.pair("general.architecture", corpus.STRING, corpus.text("x")),
            corpus.pair("flag", corpus.BOOL, b"\1"),
            corpus.array("words", corpus.STRING, 2, [corpus.text("a"), corpus.text("b")]),
        ],
        [corpus.info("t", [8], corpus.T_F32, 0)],
        [A],
    )
    assert path.read_bytes() == mine.data
    assert struct.unpack_from("<4sI", mine.data) == (b"GGUF", 3)
