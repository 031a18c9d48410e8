"""Importance matrices are read as llama.cpp reads them, and every claim of a file is checked."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gguf_verify.audit.importance import read_importance
from gguf_verify.support.errors import MalformedFile
from tests.support.importance_files import dat, imatrix_gguf
from tests.support.tools import write_model

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
