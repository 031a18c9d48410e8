"""Split models, and names as they are printed."""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Sequence
from pathlib import Path

import gguf
import numpy as np
import pytest

from gguf_verify.gguf import ahead, model
from gguf_verify.gguf.file import GgufFile
from gguf_verify.gguf.model import RefusedFile, open_model
from gguf_verify.gguf.parser import parse
from gguf_verify.gguf.rules import RULES
from gguf_verify.gguf.storage import Budget
from tests.support import corpus
from tests.support.corpus import A, SplitEntry
from tests.support.crafted_files import by_name


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
