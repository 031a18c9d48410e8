"""Every type through all rungs, and one wrong bit of each field of its blocks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gguf_verify import verify
from gguf_verify.formats.block import BlockFormat
from gguf_verify.formats.layout import Field
from gguf_verify.formats.mxfp4 import MXFP4
from gguf_verify.formats.nvfp4 import NVFP4
from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.gguf.model import open_model
from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.kernels.ladder import KERNELS
from gguf_verify.llama.library import Llama
from gguf_verify.results.options import Options
from tests.support.tools import TamperedKernel, patched_block
from tests.support.typed_models import model_of

#: llama.cpp's file type of what the gguf package cannot write.
TENSOR = "blk.1.ffn_down.weight"


QUICK: dict[str, Any] = {"prompt": "Once upon", "n_predict": 2, "progress": False, "threads": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("types")


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=FORMATS)
def test_all_rungs(fmt: BlockFormat, folder: Path, llama: Llama) -> None:
    path = model_of(fmt, folder, llama)
    with open_model(path) as model:
        assert model.tensors[TENSOR].type.name == fmt.name
    report = verify(path, host=CpuHost(1), options=Options(probes="brief", **QUICK))
    assert report.exit_code == 0, [f.what for r in report.rungs for f in r.failures] or report.rungs
    for rung in report.rungs:
        for who, worst in rung.worst.items():
            assert worst.utilisation <= 0.5, (rung.name, who, worst)
            assert rung.worst[who].score <= 20, (rung.name, who, rung.worst[who].score)


@pytest.mark.parametrize(
    ("fmt", "kernel"),
    [
        pytest.param(fmt, name, id=f"{fmt.name}-{name}")
        for fmt in FORMATS.values()
        for name, spec in KERNELS.items()
        if name != "q8_1_dp4a" and spec.covers(fmt)
    ],
)
def test_other_kernels(fmt: BlockFormat, kernel: str, folder: Path, llama: Llama) -> None:
    path = model_of(fmt, folder, llama)
    options = Options(probes="brief", tensor="attn_q|ffn_down", **QUICK)
    report = verify(path, kernel=kernel, host=CpuHost(1), rungs=["layers"], options=options)
    assert report.exit_code == 0, [f.what for r in report.rungs for f in r.failures]


FIELDS = [pytest.param(fmt, field, id=f"{fmt.name}-{field.name}") for fmt in FORMATS.values() for field in fmt.fields]


@pytest.mark.parametrize(("fmt", "field"), FIELDS)
def test_one_wrong_bit_is_named(fmt: BlockFormat, field: Field, folder: Path, llama: Llama) -> None:
    """A code, a scale, a minimum, a sign, a grid index: the meaning of the lowest bit of the field's first item."""
    path = model_of(fmt, folder, llama)
    with open_model(path) as model:
        tensor = model.tensors[TENSOR]
        blocks = np.array(tensor.raw).reshape(-1, fmt.block_bytes)
        altered = blocks.copy()
        altered[:, fmt.field_offset(field.name)] ^= 1
        with np.errstate(all="ignore"):
            changed = (fmt.decode(blocks) != fmt.decode(altered)).any(axis=1) & fmt.finite(altered)
        counts = {raw.tobytes(): n for raw, n in zip(*np.unique(blocks, axis=0, return_counts=True), strict=True)}
        at = next(i for i in np.flatnonzero(changed) if counts[blocks[i].tobytes()] == 1)
        row, block = divmod(int(at), tensor.blocks_per_row)
        offset = tensor.block_offset(row, block)
    kernel = TamperedKernel("q8_1_dp4a", blocks[at].tobytes(), altered[at].tobytes())
    options = Options(probes="brief", tensor=f"^{TENSOR}$", **QUICK)
    report = verify(path, kernel=kernel, rungs=["blocks"], options=options)
    assert report.exit_code == 1
    assert {(f.tensor, f.row, f.block, f.byte_offset) for f in report.rungs[0].failures} == {
        (TENSOR, row, block, offset)
    }


#: MXFP4: a scale, a byte of codes, whether that is an error.
SCALES = (
    (255, 0x00, True), (255, 0x11, True),  # NaN by the standard: llama.cpp's check of a file refuses it
    (254, 0x33, False), (254, 0x30, False), (254, 0x40, True), (254, 0x0C, True),
    (253, 0x55, False), (253, 0x06, True), (253, 0xF0, True), (252, 0xFF, False), (0, 0x77, False),
)  # fmt: skip


def test_mxfp4_values_that_no_float_holds(folder: Path, tmp_path: Path, llama: Llama) -> None:
    """The scale is a float; a value is 12 times as large, or the scale stands for NaN: an error, placed."""
    path = model_of(MXFP4, folder, llama)
    for row, (scale, codes, wrong) in enumerate(SCALES):
        raw = bytes([scale]) + bytes(9) + bytes([codes]) + bytes(6)
        block = np.frombuffer(raw, np.uint8)
        finite = np.isfinite(llama.to_float(MXFP4.type_id, block, 32)).all() and llama.validate(MXFP4.type_id, block)
        assert MXFP4.finite(block) == finite == (not wrong)
        path = patched_block(path, tmp_path / "altered.gguf", TENSOR, row, 3, 0, raw)
    report = verify(
        path, host=CpuHost(1), rungs=["bytes"], options=Options(probes="brief", tensor=f"^{TENSOR}$", progress=False)
    )
    found = [(f.tensor, f.row, f.block) for f in report.rungs[0].failures]
    assert found == [(TENSOR, row, 3) for row, (*_, wrong) in enumerate(SCALES) if wrong]
    assert all("stands for NaN, or a value overflows" in f.what for f in report.rungs[0].failures)


def test_every_byte_is_a_scale_of_nvfp4(llama: Llama) -> None:
    """0x7F and 0xFF, NaN elsewhere, are 0 and 240 for llama.cpp, and no value overflows."""
    blocks = np.full((64, 36), 0x77, np.uint8)
    blocks[:, :4] = np.arange(256).reshape(64, 4)
    assert NVFP4.finite(blocks).all()
    assert np.isfinite(llama.to_float(NVFP4.type_id, blocks.reshape(-1), 64 * 64)).all()
    assert llama.validate(NVFP4.type_id, blocks.reshape(-1))
