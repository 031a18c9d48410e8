"""CRC-32 of pieces that are put together."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from gguf_verify.support.checksums import PIECE, crc32


@pytest.mark.parametrize("size", [0, 1, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE + 765])
@pytest.mark.parametrize("threads", [1, 3])
def test_it_is_zlibs(size: int, threads: int) -> None:
    data = np.random.default_rng(size).integers(0, 256, size, np.uint8).data
    assert crc32(data, threads) == zlib.crc32(data)
