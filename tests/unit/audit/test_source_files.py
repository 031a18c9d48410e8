"""Readers of the files beside a model: importance matrices, and the source's safetensors."""

from __future__ import annotations

import json
import struct
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gguf_verify.audit.importance import read_importance
from gguf_verify.audit.safetensors import read_header
from gguf_verify.audit.sources import open_source
from gguf_verify.gguf.mapped import Mapped
from gguf_verify.gguf.model import open_model
from gguf_verify.support.errors import MalformedFile
from tests.support.importance_files import dat, hugging_face, imatrix_gguf, safetensors
from tests.support.tools import FIXTURES, write_model

A = np.arange(8, dtype=np.float32) * 3


def test_the_older_format_divides_by_calls(tmp_path: Path) -> None:
    tail = struct.pack("<i", 100) + struct.pack("<i", 5) + b"words"
    found = read_importance(dat(tmp_path / "i.dat", {"a": (A, 3), "b": (A, 0)}, tail))
    assert found.entries["a"].tolist() == (A / np.float32(3)).tolist()
    assert found.entries["b"].tolist() == A.tolist()  # no calls: the sums as they are
    assert len(found.sha256) == 64


def test_a_later_entry_of_a_name_counts(tmp_path: Path) -> None:
    path = dat(tmp_path / "i.dat", {"a": (A, 1)})
    one = path.read_bytes()[4:]
    two = dat(tmp_path / "j.dat", {"a": (A + 1, 1)}).read_bytes()[4:]
    path.write_bytes(struct.pack("<i", 2) + one + two)
    assert read_importance(path).entries["a"].tolist() == (A + 1).tolist()


def test_each_expert_has_a_count(tmp_path: Path) -> None:
    """sum / count for each; 1 where an expert was never used; counts are rounded as by lround."""
    sums = np.stack([A, A * 2, A * 5])
    found = read_importance(imatrix_gguf(tmp_path / "i.gguf", {"x": (sums, np.array([2.5, 0, 4]))}))
    expected = [A / np.float32(3), np.ones(8, np.float32), A * 5 / np.float32(4)]
    assert np.array_equal(found.entries["x"].reshape(3, 8), np.stack(expected))


def broken() -> dict[str, bytes]:
    good = struct.pack("<i", 1) + struct.pack("<i", 1) + b"a" + struct.pack("<ii", 1, 8) + A.tobytes()
    return {
        "empty": b"", "three bytes": b"abc", "no entries": struct.pack("<i", 0), "negative": struct.pack("<i", -1),
        "2^31 entries": struct.pack("<i", 2**31 - 1), "cut in the values": good[:-1], "cut in a length": good[:6],
        "a name of 2^30 bytes": struct.pack("<ii", 1, 1 << 30) + b"a",
        "2^31 values": good[:13] + struct.pack("<i", 2**31 - 1) + A.tobytes(),
        "no values": good[:13] + struct.pack("<i", 0), "not finite": good[:-4] + b"\xff\xff\xff\xff",
        "negative importance": good[:-4] + struct.pack("<f", -1),
    }  # fmt: skip


@pytest.mark.parametrize("what", broken())
def test_broken_files_of_the_older_format(what: str, tmp_path: Path) -> None:
    path = tmp_path / "i.dat"
    path.write_bytes(broken()[what])
    with pytest.raises(MalformedFile) as caught:
        read_importance(path)
    assert "\n" not in str(caught.value)
    assert "importance" in str(caught.value)


@pytest.mark.parametrize("what", ["no sums", "sums alone", "counts alone", "other sizes", "not F32", "nan"])
def test_broken_gguf_files(what: str, tmp_path: Path) -> None:
    path = tmp_path / "i.gguf"
    row, three = A[None], np.ones((1, 3), np.float32)
    tensors: dict[str, dict[str, tuple[Any, str]]] = {
        "no sums": {"w": (row, "F32")}, "sums alone": {"w.in_sum2": (row, "F32")},
        "counts alone": {"v.in_sum2": (row, "F32"), "v.counts": (row[:, :1], "F32"), "w.counts": (row, "F32")},
        "other sizes": {"w.in_sum2": (row, "F32"), "w.counts": (three, "F32")},
        "not F32": {"w.in_sum2": (row.astype(np.float16), "F16"), "w.counts": (three, "F32")},
        "nan": {"w.in_sum2": (row * np.nan, "F32"), "w.counts": (row[:, :1] + 1, "F32")},
    }  # fmt: skip
    write_model(path, tensors[what])
    with pytest.raises(MalformedFile, match="not an importance matrix"):
        read_importance(path)


# ---- safetensors -----------------------------------------------------------------------------------------------------
# Safetensors files: headers that lie are refused in one line, names and rows are those of llama.cpp's converter.


F16 = FIXTURES / "tiny-F16.gguf"
FOUR = np.arange(4, dtype="<f4").tobytes()


def entry(start: object = 0, stop: object = 16, shape: object = (4,), dtype: object = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


HOSTILE: dict[str, dict[str, object]] = {
    "beyond the file": {"a": entry(0, 20, [5])}, "backwards": {"a": entry(16, 0)}, "another size": {"a": entry(0, 12)},
    "negative": {"a": entry(-16, 0)}, "huge": {"a": entry(0, 1 << 70)}, "a bool": {"a": entry(True, 16)},
    "overlap": {"a": entry(), "b": entry(8, 16, [2])}, "no entry": {"a": 5}, "no dtype": {"a": {"shape": [4]}},
    "shape of 2^80": {"a": entry(0, 16, [1 << 80])}, "a hundred dimensions": {"a": entry(0, 4, [1] * 100)},
}  # fmt: skip


@pytest.mark.parametrize("what", HOSTILE)
def test_headers_that_lie(what: str, tmp_path: Path) -> None:
    path = safetensors(tmp_path / "m.safetensors", {"z": ("F32", (4,), FOUR)}, **HOSTILE[what], z=entry(0, 0, [0]))
    with closing(Mapped(path)) as mapped, pytest.raises(MalformedFile, match="not a safetensors file") as caught:
        read_header(mapped)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("raw", [
    b"", b"1234567", struct.pack("<Q", 1 << 60) + b"{}", struct.pack("<Q", 2) + b"[]",
    struct.pack("<Q", 5) + b"{\xff\xfe}}",
    struct.pack("<Q", 100_000) + b"[" * 100_000, struct.pack("<Q", 24) + b'{"a":{},"a":{},"b":{} }  ',
], ids=["empty", "short", "length", "a list", "no text", "deep", "twice"])  # fmt: skip
def test_files_that_are_none(raw: bytes, tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(raw)
    with closing(Mapped(path)) as mapped, pytest.raises(MalformedFile, match="not a safetensors file"):
        read_header(mapped)


@pytest.mark.parametrize("split", [False, True])
def test_rows_are_those_of_the_converted_file(split: bool, tmp_path: Path) -> None:
    with open_model(F16) as model, open_source(hugging_face(tmp_path, split), model) as source:
        assert source.tensors.keys() == model.tensors.keys()
        assert (source.reasons, source.unmapped) == ({}, ())
        assert len(source.sha256()) == (2 if split else 1)
        for name in ("blk.0.attn_q.weight", "blk.2.attn_k.weight", "blk.1.ffn_down.weight", "output_norm.weight"):
            tensor, origin = model.tensors[name], source.tensors[name]
            ours = tensor.raw.view("<f4" if tensor.type.name == "F32" else "<f2").astype(np.float32)
            assert np.array_equal(origin.rows(0, origin.n_rows).reshape(-1), ours), name


@pytest.mark.parametrize(("weight_map", "said"), [
    ({"a": "../outside.safetensors"}, "not the name of a safetensors file"), ({"a": "/etc/passwd"}, "not the name of"),
    ({"a": 5}, "not a map"), ({}, "not a map"), ({"a": "missing.safetensors"}, "No such file"),
])  # fmt: skip
def test_an_index_leads_nowhere_else(weight_map: object, said: str, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with open_model(F16) as model, pytest.raises(MalformedFile, match=said):
        open_source(tmp_path, model)


def test_a_folder_without_any(tmp_path: Path) -> None:
    with open_model(F16) as model, pytest.raises(MalformedFile, match="no safetensors file"):
        open_source(tmp_path, model)


def test_unmapped_tensors_have_a_reason(tmp_path: Path) -> None:
    path = safetensors(tmp_path / "m.safetensors", {
        "model.norm.weight": ("F8_E4M3", (256,), bytes(256)), "some.other.name": ("F32", (4,), FOUR),
        "model.layers.0.self_attn.rotary_emb.inv_freq": ("F32", (4,), FOUR),
    })  # fmt: skip
    with open_model(F16) as model, open_source(path, model) as source:
        assert "F8_E4M3" in source.reasons["output_norm.weight"]
        assert [name for name, _ in source.unmapped] == ["some.other.name"]
        assert set(source.reasons) == set(model.tensors)  # any of them may be the one without a name


def test_an_architecture_whose_conversion_is_not_known(tmp_path: Path) -> None:
    other = write_model(tmp_path / "m.gguf", {"a": (np.zeros((2, 32), np.float32), "F32")})
    path = safetensors(tmp_path / "m.safetensors", {"a": ("F32", (4,), FOUR)})
    with open_model(other) as model, open_source(path, model) as source:
        assert "'test'" in source.reasons["a"]
