"""The parser against crafted files, and against files that change under it."""

from __future__ import annotations

import os
import re
import signal
import struct
import threading
from collections.abc import Sequence
from pathlib import Path

import gguf
import numpy as np
import pytest

from gguf_verify.gguf import ahead, model
from gguf_verify.gguf.consistency import check_consistency
from gguf_verify.gguf.file import GgufFile
from gguf_verify.gguf.model import RefusedFile, open_model
from gguf_verify.gguf.parser import parse
from gguf_verify.gguf.rules import RULES
from gguf_verify.gguf.storage import Budget
from gguf_verify.support.errors import EXIT_MALFORMED, NoSuchFile
from tests.support import corpus
from tests.support.corpus import A, Entry, SplitEntry
from tests.support.crafted_files import assert_tiles, by_name, save


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
        assert finding.effect == entry.effect


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


def test_every_prefix_of_a_file_is_reported_as_cut(tmp_path: Path) -> None:
    """The finding states the file's size and a larger one, which the whole file has at least."""
    built = corpus.gguf().data
    path = tmp_path / "cut.gguf"
    for size in range(1, len(built)):
        path.write_bytes(built[:size])
        with parse(path) as file:
            (finding,) = file.findings
        assert_tiles(path)
        if size >= len(built) - 28:  # only final padding is cut
            assert finding.effect == "warning", size
            continue
        assert finding.id in (RULES["truncated"].id, RULES["data-truncated"].id), size
        found = re.fullmatch(r"the file ends after (\d+) of at least (\d+) bytes", finding.found.replace(",", ""))
        assert found, finding
        assert size == int(found[1]) < int(found[2]) <= len(built), finding


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
        with pytest.raises(NoSuchFile, match="regular file"):
            parse(path)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


# ---- split models ----------------------------------------------------------------------------------------------------
# Split models, and names as they are printed.


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


def _split(folder: Path, names: str, extra: Sequence[list[bytes]] = ()) -> Path:
    """A model of parts with a tensor each; `extra` are key-value pairs of every part."""
    count = len(names)
    paths = [folder / f"m-{i + 1:05d}-of-{count:05d}.gguf" for i in range(count)]
    for i, (path, name) in enumerate(zip(paths, names, strict=True)):
        pairs = [corpus.pair("split.no", corpus.U16, struct.pack("<H", i))]
        pairs += [corpus.pair("split.count", corpus.U16, struct.pack("<H", count)), *extra]
        path.write_bytes(corpus.gguf(pairs, [corpus.info(name, [8], corpus.T_F32, 0)], [A]).data)
    return paths[0]


def _late_first(monkeypatch: pytest.MonkeyPatch, count: int) -> list[int]:
    """Makes `Ahead` parse `count` parts at the same time, and end the last one first; the order in which they end."""
    ended: list[int] = []
    together = threading.Barrier(count)
    turn = threading.Condition()

    def parse_backwards(path: Path, number: int, budget: Budget, load: int) -> GgufFile:
        together.wait(20)  # breaks where they are parsed one after the other
        with turn:
            assert turn.wait_for(lambda: len(ended) == count - number, 20)
            try:
                return parse(path, number, budget, load)
            finally:
                ended.append(number)
                turn.notify_all()

    monkeypatch.setattr(ahead, "parse", parse_backwards)
    return ended


def test_parts_are_parsed_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _split(tmp_path, "abcd")
    ended = _late_first(monkeypatch, 3)
    monkeypatch.setattr(
        model, "parse", lambda path, number, budget: parse(path, number, budget) if not number else 1 / 0
    )
    with open_model(path) as whole:
        assert [t.part for t in whole.tensors.values()] == [0, 1, 2, 3]
    assert ended == [3, 2, 1]


def test_the_first_part_that_is_wrong_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _split(tmp_path, "abcd")
    for number in (3, 4):
        part = tmp_path / f"m-{number:05d}-of-00004.gguf"
        part.write_bytes(b"GGUX" + part.read_bytes()[4:])
    ended = _late_first(monkeypatch, 3)
    with pytest.raises(RefusedFile, match=r"m-00003-of-00004\.gguf: byte 0:"):
        open_model(path)
    assert ended == [3, 2, 1]


@pytest.mark.parametrize(
    ("limit", "slug"),
    [("tensors", "tensor-count"), ("keys", "key-count"), ("key_bytes", "metadata-size"), ("strings", "metadata-size")],
)
def test_limits_hold_for_all_parts_together(
    limit: str, slug: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [corpus.array(f"w{i}", corpus.STRING, 20, [corpus.text("x")] * 20) for i in range(20)]
    path = _split(tmp_path, "abcd", words)
    with open_model(path) as whole:
        held = sum(len(part.tensors) for part in whole.parts)
        keys = sum(len(part.metadata) for part in whole.parts)
        taken = {"tensors": held, "keys": keys, "strings": 4 * 400}
        taken["key_bytes"] = sum(len(key) for part in whole.parts for key in part.metadata)
    said = set()
    for alone in (False, True):
        if alone:
            monkeypatch.setattr(ahead.Ahead, "take", lambda self, number, budget: None)
        monkeypatch.setattr(model, "Budget", lambda: Budget(**{limit: taken[limit]}))
        open_model(path).close()
        monkeypatch.setattr(model, "Budget", lambda: Budget(**{limit: taken[limit] - 1}))
        with pytest.raises(RefusedFile) as caught:
            open_model(path)
        assert (caught.value.finding.id, caught.value.finding.part) == (RULES[slug].id, 3)
        said.add(str(caught.value))
    assert len(said) == 1


def test_unused_parts_are_closed(tmp_path: Path) -> None:
    path = _split(tmp_path, "abcb")
    opened = len(os.listdir("/proc/self/fd"))
    with pytest.raises(RefusedFile, match="the name 'b' again"):
        open_model(path)
    (tmp_path / "m-00002-of-00004.gguf").unlink()
    with pytest.raises(RefusedFile, match="no file m-00002-of-00004"):
        open_model(path)
    assert len(os.listdir("/proc/self/fd")) == opened


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
