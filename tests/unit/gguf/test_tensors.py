"""Tensors and metadata as gguf-py reads them."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest

from gguf_verify.gguf.consistency import check_consistency
from gguf_verify.gguf.model import open_model
from gguf_verify.gguf.parser import parse
from gguf_verify.gguf.rules import RULES
from gguf_verify.support.errors import MalformedFile
from tests.support import corpus
from tests.support.corpus import A, Entry
from tests.support.crafted_files import assert_tiles, by_name, save
from tests.support.needs import SHARED_MODELS, need
from tests.unit.gguf.gguf_py import assert_gguf_py_agrees

SHARED = ("TinyStories-656K-Q8_0.gguf", "TinyStories-656K-f16.gguf", "stories260K-ggml-org-f32.gguf")


@pytest.mark.parametrize("entry", corpus.GOOD, ids=by_name)
def test_agrees_with_gguf_py(entry: Entry, tmp_path: Path) -> None:
    path, _ = save(entry, tmp_path)
    assert assert_gguf_py_agrees(path) is None


@pytest.mark.parametrize("name", SHARED)
def test_shared_models_are_clean(name: str) -> None:
    need("shared-models")
    path = SHARED_MODELS / name
    assert assert_gguf_py_agrees(path) is None
    assert_tiles(path)
    with open_model(path) as model:
        assert model.findings == ()
        assert check_consistency(model) == ()
        assert model.architecture == "llama"
        assert model.size == path.stat().st_size
        model.begin_sha256()
        for _ in range(2):
            assert model.sha256() == (hashlib.sha256(path.read_bytes()).hexdigest(),)
        assert model.altered() is None
    with open_model(path) as model:
        model.begin_sha256()  # and it is closed before the digest is there


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
