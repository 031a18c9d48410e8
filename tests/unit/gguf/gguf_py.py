"""gguf-py as the other side: it writes the files of tests, and must read from a good file what the parser reads."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np

from gguf_verify.gguf.consistency import check_consistency
from gguf_verify.gguf.file import GgufFile
from gguf_verify.gguf.model import open_model
from gguf_verify.gguf.parser import parse
from gguf_verify.gguf.records import Finding


def findings_of(
    path: Path, keys: Mapping[str, object], tensors: Mapping[str, np.ndarray] | None = None, kind: str = "model"
) -> list[Finding]:
    """Write a file and return its inconsistencies. Tensors of bytes are of type Q8_0."""
    writer = gguf.GGUFWriter(path, "test")
    writer.add_type(kind)
    for key, value in keys.items():
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, int):
            (writer.add_int32 if value < 0 else writer.add_uint32)(key, value)
        else:
            assert isinstance(value, float)
            writer.add_float32(key, value)
    for name, data in (tensors or {}).items():
        writer.add_tensor(name, data, raw_dtype=gguf.GGMLQuantizationType.Q8_0 if data.dtype == np.uint8 else None)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with open_model(path) as model:
        return list(check_consistency(model))


def why_gguf_py_errs(file: GgufFile) -> str | None:
    """Why gguf-py 0.19 is known to read a good file incorrectly, or not at all."""
    for tensor in file.tensors.values():
        if tensor.type.name == "Q2_0":
            return "it does not know the type"
        if tensor.type.name == "Q8_1":
            return "it has the size of a block wrong"
        if tensor.type.name == "BF16" and not tensor.shape:
            return "it fails on a single value of a type that NumPy does not have"
    if any(key.startswith("GGUF.") for key in file.metadata):
        return "it keeps the header's counts under such keys"
    return None


def assert_gguf_py_agrees(path: Path) -> str | None:
    """Compare everything that both read; returns why nothing was compared, if so."""
    with parse(path) as ours:
        why = why_gguf_py_errs(ours)
        if why:
            return why
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # NumPy's, where gguf-py computes with wrong numbers
            theirs = gguf.GGUFReader(path)
        assert ours.alignment == theirs.alignment
        assert ours.data_offset == theirs.data_offset or not theirs.tensors
        assert list(ours.metadata) == [key for key in theirs.fields if not key.startswith("GGUF.")]
        for key, mine in ours.metadata.items():
            expected = theirs.fields[key].contents()
            np.testing.assert_array_equal(np.asarray(mine), np.asarray(expected), err_msg=repr(key))
        assert [
            (t.name, t.shape, t.type.name, t.offset, t.nbytes, t.raw.tobytes()) for t in ours.tensors.values()
        ] == [
            (t.name, tuple(t.shape.tolist()), t.tensor_type.name, t.data_offset, t.n_bytes, t.data.tobytes())
            for t in theirs.tensors
        ]  # fmt: skip
    return None
