"""CRC-32 of pieces that are put together."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from gguf_verify.support import checksums


@pytest.mark.parametrize("size", [0, 1, 999, 1000, 1001, 3000, 8765])
@pytest.mark.parametrize("threads", [1, 3])
def test_it_is_zlibs(size: int, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checksums, "PIECE", 1000)
    data = np.random.default_rng(size).integers(0, 256, size, np.uint8).data
    assert checksums.crc32(data, threads) == zlib.crc32(data)
