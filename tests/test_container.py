"""The container against crafted files, against gguf-py, and against files that change under it."""

from __future__ import annotations

import hashlib
import os
import struct
import time
import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest

from harness.container import KINDS, RULES, RefusedFile, check_claims, open_model, parse, printable
from harness.container.records import MAX_PER_RULE
from harness.errors import EXIT_MALFORMED, MalformedFile
from tests import corpus
from tests.corpus import A, Entry, SplitEntry

MODELS = Path(__file__).parents[2] / "shared" / "models"
SHARED = ("TinyStories-656K-Q8_0.gguf", "TinyStories-656K-f16.gguf", "stories260K-ggml-org-f32.gguf")


def by_name(entry: Entry | SplitEntry) -> str:
    return entry.name


def save(entry: Entry, folder: Path) -> tuple[Path, corpus.Built]:
    built = entry.build()
    path = folder / entry.file_name
    path.write_bytes(built.data)
    return path, built


def shared_model(name: str) -> Path:
    path = MODELS / name
    if not path.exists():
        pytest.skip(f"{name} is not at hand")
    return path


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
        assert check_claims(model) == ()


@pytest.mark.parametrize("entry", [*corpus.CLAIMS, *corpus.TRUE_CLAIMS], ids=by_name)
def test_each_lie_of_the_metadata_is_found(entry: Entry, tmp_path: Path) -> None:
    path, built = save(entry, tmp_path)
    with open_model(path) as model:
        assert model.findings == ()
        found = check_claims(model)
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
    assert set(RULES) - covered == {"expert-count"}  # tested below
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
        (finding,) = check_claims(model)
    assert finding.id == RULES["expert-count"].id
    assert (finding.start, finding.stop) == (built.start, built.stop)


# -- files that cannot be opened --------------------------------------------------------------------------------


def test_missing_file_directory_and_fifo(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "\x1b[31m.gguf").mkdir()
    for name, said in (("nothing.gguf", "No such file"), ("\x1b[31m.gguf", "a directory"), ("fifo", "regular file")):
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
        assert check_claims(model) == ()
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
        [*corpus.array("k", corpus.ARRAY, 80000, [_repeat(corpus.u32(corpus.ARRAY) + corpus.u64(0), 960000)])]
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
        assert isinstance(tokens, list)
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
