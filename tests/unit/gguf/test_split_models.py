"""Split models, and names as they are printed."""

from __future__ import annotations

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest

from gguf_verify.gguf import RULES, RefusedFile, open_model, printable
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
