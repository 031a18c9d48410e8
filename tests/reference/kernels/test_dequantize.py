"""The kernel that dequantizes to halves, for the benchmarks, gives llama.cpp's values, rounded once."""

from __future__ import annotations

import numpy as np
import pytest

from gguf_verify.formats.block import BlockFormat
from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.hosts.cpu_host import CpuHost
from tools.measure.bench.matrices import LARGEST, SMALLEST, Dequantizer, blocks_of

WEIGHTS = [fmt for fmt in FORMATS.values() if fmt.weights]


@pytest.mark.parametrize("fmt", WEIGHTS, ids=lambda f: f.name)
def test_every_value_is_rounded_once(fmt: BlockFormat) -> None:
    blocks = blocks_of(fmt, np.random.default_rng(3), 257)
    host = CpuHost(1)
    halves = host.output(2 * blocks.shape[0] * fmt.block_size)
    Dequantizer(host).launch(fmt, host.upload(blocks), halves, len(blocks) * fmt.block_size)
    expected = fmt.decode(blocks).astype(np.float16)
    assert host.download(halves).tobytes() == expected.tobytes()


@pytest.mark.parametrize("fmt", WEIGHTS, ids=lambda f: f.name)
def test_blocks_are_of_the_usual_size(fmt: BlockFormat) -> None:
    blocks = blocks_of(fmt, np.random.default_rng(1), 64)
    most = np.abs(fmt.decode(blocks)).max(axis=-1)
    assert ((most >= SMALLEST) & (most <= LARGEST)).all()
    assert len(np.unique(blocks, axis=0)) == 64
