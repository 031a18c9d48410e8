"""Blocks that are far larger than all others of their tensor, and weights that only spread widely."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.gguf.model import open_model
from gguf_verify.gguf.records import Finding
from gguf_verify.llama.library import Llama
from tests.support.audits import TINY, rule, run
from tests.support.tools import edited_model, patched, write_model

Q4_0 = TINY["Q4_0"]
NORM = "blk.1.attn_norm.weight"
Floats = npt.NDArray[np.float32]


def outliers(path: Path) -> list[Finding]:
    return [f for f in run(path, readers=False).findings if f.id == rule("outlier")]


def damaged(target: Path, name: str, row: int, block: int, at: int, bit: int) -> tuple[Path, int]:
    """A copy of the fixture with a bit of a block flipped, and where the block begins."""
    raw = Q4_0.read_bytes()
    with open_model(Q4_0) as model:
        start = model.tensors[name].block_offset(row, block)
    return patched(Q4_0, target, start + at, bytes([raw[start + at] ^ bit])), start


@pytest.mark.parametrize(("row", "block"), [(0, 0), (100, 3), (255, 7)])
def test_a_flipped_bit_of_a_scale(row: int, block: int, tmp_path: Path) -> None:
    path, start = damaged(tmp_path / "m.gguf", "blk.1.attn_q.weight", row, block, at=1, bit=0x40)
    (one,) = outliers(path)
    assert (one.start, one.stop, one.severity, one.owner) == (start, start + 18, "warning", "blk.1.attn_q.weight")
    assert one.found.startswith(f"row {row} block {block} of 'blk.1.attn_q.weight' (Q4_0): a scale of ")


def test_several_flipped_bits(tmp_path: Path) -> None:
    path, _ = damaged(tmp_path / "m.gguf", "blk.1.attn_q.weight", 5, 1, at=1, bit=0x40)
    raw = path.read_bytes()
    with open_model(path) as model:
        at = model.tensors["blk.1.attn_q.weight"].block_offset(9, 2) + 1
    (one,) = outliers(patched(path, tmp_path / "n.gguf", at, bytes([raw[at] ^ 0x40])))
    assert " and 1 more of " in one.found


def test_a_weight_of_a_norm(tmp_path: Path) -> None:
    with open_model(Q4_0) as model:
        start = model.tensors[NORM].offset + 400
    (one,) = outliers(patched(Q4_0, tmp_path / "m.gguf", start, np.float32(1e30).tobytes()))
    assert (one.start, one.stop, one.owner) == (start, start + 4, NORM)
    assert f"row 0 element 100 of '{NORM}' (F32): a value of 1e+30; " in one.found


@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0", "Q4_K", "Q6_K", "IQ4_XS"])
@pytest.mark.parametrize("field", ["d", "m"])
def test_every_scale_and_minimum_counts(kind: str, field: str, llama: Llama, tmp_path: Path) -> None:
    fmt = FORMATS[kind]
    if field == "m" and not fmt.has_min:
        pytest.skip("the type has no minimum")
    weights = np.random.default_rng(2).standard_normal((32, 512), np.float32) * np.float32(0.1)
    rows = llama.quantize(fmt.type_id, weights)
    assert outliers(write_model(tmp_path / "m.gguf", {"w.weight": (rows, kind)})) == []
    name = {"m": "dmin" if kind == "Q4_K" else "m"}.get(field, "d")
    at = fmt.field_offset(name) + 1 + fmt.block_bytes
    rows.reshape(-1)[at] ^= 0x40
    (one,) = outliers(write_model(tmp_path / "n.gguf", {"w.weight": (rows, kind)}))
    assert f"row 0 block {1 % (512 // fmt.block_size)} of 'w.weight'" in one.found


@pytest.mark.parametrize(
    "values",
    [
        np.exp(np.random.default_rng(3).standard_normal((64, 256)) * 6),  # over ten orders of magnitude
        np.r_[np.full(255, 0.5), 300.0][None].repeat(8, axis=0),  # a channel that is larger
        np.r_[np.zeros(255), 300.0][None].repeat(8, axis=0),  # nothing but zeros beside
        np.where(np.arange(256) < 8, 1.0, 1e-30)[None].repeat(32, axis=0),  # many that are tiny
    ],
)
def test_weights_that_spread_widely(values: npt.NDArray[np.float64], tmp_path: Path) -> None:
    assert outliers(write_model(tmp_path / "m.gguf", {"w.weight": (values.astype(np.float32), "F32")})) == []


def test_factors_of_frequencies_are_no_weights(tmp_path: Path) -> None:
    """1e30 is how converters switch a frequency off."""
    factors = np.where(np.arange(128) < 120, 1.0, 1e30).astype(np.float32)
    assert outliers(edited_model(Q4_0, tmp_path / "m.gguf", more={"rope_freqs.weight": factors})) == []
