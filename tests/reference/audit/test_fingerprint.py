"""Which quantizer made a tensor."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from gguf_verify.audit.fingerprint import IMPORTANCE, REFERENCE, fingerprint
from gguf_verify.formats.block import BlockFormat
from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.llama.library import Llama
from gguf_verify.report.writer import Kind
from tests.support.audits import Bytes, one_tensor, run, scanned
from tests.support.shown import text_of
from tests.support.tools import LEGACY


@pytest.fixture(scope="module")
def rng() -> np.random.Generator:
    return np.random.default_rng(11)


def amax_over(fmt: BlockFormat, x: npt.NDArray[np.float32], steps: int) -> Bytes:
    """A quantizer such as people write: scale max|x|/steps, codes symmetric about the offset."""
    d = (np.abs(x).max(axis=1) / np.float32(steps)).astype(np.float16)
    inverse = np.where(d != 0, 1 / np.where(d != 0, d, 1).astype(np.float32), 0)
    q = np.round(x * inverse[:, None]).clip(-steps, min(steps, 127)).astype(int) + fmt.offset
    if fmt.bits == 8:
        return fmt.pack(d=d, qs=q.astype(np.int8))
    qs = ((q[:, :16] & 15) | (q[:, 16:] & 15) << 4).astype(np.uint8)
    if fmt.bits == 4:
        return fmt.pack(d=d, qs=qs)
    qh = np.packbits(((q >> 4) & 1).astype(np.uint8), axis=1, bitorder="little").view("<u4")[:, 0]
    return fmt.pack(d=d, qs=qs, qh=qh)


def consistent(fmt: BlockFormat, blocks: Bytes, llama: Llama, path: Path) -> tuple[str | None, dict[str, float]]:
    scan = scanned(one_tensor(path, blocks.reshape(64, -1), fmt.name), llama)
    print_ = fingerprint(fmt, [scan])
    assert print_.blocks == (fmt.scale(blocks) != 0).sum()
    shares = {r.producer: n / print_.blocks for r, n in print_.obeying}
    return (print_.consistent.producer if print_.consistent else None), shares


@pytest.mark.parametrize("fmt", LEGACY.values(), ids=list(LEGACY))
def test_producers_are_told_apart(fmt: BlockFormat, llama: Llama, rng: np.random.Generator, tmp_path: Path) -> None:
    x = rng.standard_normal((64, 2048), np.float32) * np.float32(0.02)
    x[3, :32] = 0
    path = tmp_path / "m.gguf"
    producer, shares = consistent(fmt, llama.quantize(fmt.type_id, x).reshape(-1, fmt.block_bytes), llama, path)
    assert (producer, shares[REFERENCE]) == (REFERENCE, 1)
    importance = np.exp(rng.standard_normal(2048)).astype(np.float32)
    weighted = llama.quantize(fmt.type_id, x, importance).reshape(-1, fmt.block_bytes)
    producer, shares = consistent(fmt, weighted, llama, path)
    if fmt.bits == 8:  # llama.cpp has no other way for Q8_0
        assert producer == REFERENCE
    else:
        assert producer == IMPORTANCE
        assert shares[REFERENCE] < 0.9
    if not fmt.has_min:
        steps = {4: 7, 5: 15, 8: 128}[fmt.bits]
        foreign = amax_over(fmt, x.reshape(-1, 32), steps)
        producer, shares = consistent(fmt, foreign, llama, path)
        assert producer is not None
        assert f"max|x|/{steps}" in producer
        assert shares[REFERENCE] < (0.6 if fmt.bits == 8 else 0.01)


def test_random_codes_have_no_producer(llama: Llama, rng: np.random.Generator, tmp_path: Path) -> None:
    blocks = rng.integers(0, 256, (6400, 18), np.uint8)
    blocks[:, 1] = 0x2C
    producer, shares = consistent(FORMATS["Q4_0"], blocks, llama, tmp_path / "m.gguf")
    assert producer is None
    assert 0 < shares[REFERENCE] < 1


def test_one_block_that_disobeys(llama: Llama, rng: np.random.Generator, tmp_path: Path) -> None:
    """All blocks or none: one of 6400 excludes a producer."""
    fmt = FORMATS["Q4_0"]
    blocks = llama.quantize(2, rng.standard_normal((64, 3200), np.float32)).reshape(-1, 18).copy()
    path = tmp_path / "m.gguf"
    assert consistent(fmt, blocks, llama, path)[0] == REFERENCE
    blocks[4321, 2:] = 0x77  # neither a lowest code nor a highest
    producer, shares = consistent(fmt, blocks, llama, path)
    assert producer is None
    assert shares[REFERENCE] == shares[IMPORTANCE] == 6399 / 6400
    text = text_of(Kind.AUDIT, run(path, readers=False))
    assert "99.9844 % of 6,400" in text
    assert "no known rule holds throughout" in text


def test_zeros_have_no_producer(llama: Llama, tmp_path: Path) -> None:
    scan = scanned(one_tensor(tmp_path / "m.gguf", np.zeros((4, 180), np.uint8), "Q4_0"), llama)
    assert fingerprint(FORMATS["Q4_0"], [scan]).consistent is None
