"""What quantizers of activations should give, and what else is as right."""

from __future__ import annotations

import numpy as np
import pytest

from gguf_verify.rungs.generated_inputs import every_size, ties_of_codes
from gguf_verify.semantics.quantization import check_bytes, encoding, encodings, only_defined

X = np.random.default_rng(0).standard_normal((64, 512)).astype(np.float32)


@pytest.mark.parametrize("name", encodings())
def test_the_encoder_is_right(name: str) -> None:
    for x in (X, every_size(512), ties_of_codes(512)):
        for fast_math in (False, True):
            checked = check_bytes(encoding(name), x, encoding(name).encode(x), ordered=True, fast_math=fast_math)
            assert (checked.n_wrong, checked.moved, checked.other_sums) == (0, 0, 0)
            assert checked.codes > 0


@pytest.mark.parametrize("name", encodings())
@pytest.mark.parametrize("fast_math", [False, True])
def test_each_byte_counts(name: str, fast_math: bool) -> None:
    """Every bit of a block that is flipped is seen, unless fast math may do that."""
    semantics = encoding(name)
    made = semantics.encode(X)
    size = semantics.format.block_bytes
    rng = np.random.default_rng(1)
    for byte in range(0, size, 1 if size < 64 else 7):
        wrong = made.copy()
        token, block = rng.integers(0, 64), rng.integers(0, made.shape[1] // size)
        wrong[token, block * size + byte] ^= 0x10
        checked = check_bytes(semantics, X, wrong, ordered=True, fast_math=fast_math)
        assert checked.n_wrong == 1, byte
        assert [checked.wrong[0].m, checked.wrong[0].block] == [token, block]


@pytest.mark.parametrize("name", encodings())
@pytest.mark.parametrize("fast_math", [False, True])
def test_only_blocks_without_a_definition_become_zeros(name: str, fast_math: bool) -> None:
    of = encoding(name)
    x = every_size(512)
    x[0, 0], x[1, 300] = np.nan, np.inf
    checked = check_bytes(of, x, of.encode(x), fast_math=fast_math)
    given = only_defined(of, x, fast_math)
    again = check_bytes(of, given, of.encode(given), fast_math=fast_math)
    assert checked.unjudged == 2
    assert checked.undefined > 0
    assert (again.unjudged, again.undefined) == (0, 0)
    blocks, kept = (v.view(np.uint32).reshape(-1, of.format.block_size) for v in (x, given))
    zeros = (kept != blocks).any(axis=-1)
    assert not kept[zeros].any()
    assert 2 <= zeros.sum() < len(zeros) / 2  # blocks of 128, too


def test_ambiguous_codes() -> None:
    """With fast math a code may move by one step at a rounding boundary, not by two, and nowhere else."""
    semantics = encoding("q8_1")
    x = np.repeat(ties_of_codes(512), 4, axis=0)
    blocks = semantics.format.view(semantics.encode(x).reshape(4, 16, 36)).copy()
    x_blocks = x.reshape(4, 16, 32)
    ratio = np.abs(x_blocks / (np.abs(x_blocks).max(axis=-1, keepdims=True) / np.float32(127)))
    ties = np.abs(ratio % 1 - 0.5) < 1e-5
    assert ties.any()
    for step, where, wrong in ((1, ties, False), (2, ties, True), (1, ~ties & (ratio < 100), True)):
        moved = blocks.copy()
        moved["qs"][where] -= np.asarray(np.sign(x_blocks[where]) * step, np.int8)
        raw = moved.view(np.uint8).reshape(4, -1)
        assert check_bytes(semantics, x, raw).n_wrong > 0
        checked = check_bytes(semantics, x, raw, fast_math=True)
        assert (checked.n_wrong > 0) is wrong
        assert wrong or checked.moved == where.sum() <= checked.ambiguous


def test_sums_of_any_order() -> None:
    semantics = encoding("q8_1")
    x = np.random.default_rng(3).standard_normal((4096, 96)).astype(np.float32)
    made = semantics.encode(x)
    blocks = semantics.format.view(made.reshape(4096, 3, 36)).copy()
    blocks["s"] = np.cumsum(x.reshape(4096, 3, 32), axis=-1, dtype=np.float32)[..., -1]
    raw = blocks.view(np.uint8).reshape(4096, -1)
    assert (raw != made).any()
    checked = check_bytes(semantics, x, raw)
    assert checked.n_wrong == 0
    assert checked.other_sums > 0
    assert check_bytes(semantics, x, raw, ordered=True).n_wrong == checked.other_sums
    blocks["s"].view(np.uint16)[0, 0] += 1
    assert check_bytes(semantics, x, blocks.view(np.uint8).reshape(4096, -1)).n_wrong == 1
    blocks["s"][0, 0] = np.nan
    assert check_bytes(semantics, x, blocks.view(np.uint8).reshape(4096, -1)).n_wrong == 1


def test_what_is_not_judged() -> None:
    """A block with a NaN is nobody's definition; its neighbours are judged."""
    semantics = encoding("q8_1")
    x = X[:2].copy()
    x[0, 40] = np.nan
    made = semantics.encode(x)
    made[0, 36:72] = 0x55
    checked = check_bytes(semantics, x, made)
    assert (checked.n_wrong, checked.unjudged, checked.blocks) == (0, 1, 31)
    made[0, 72] ^= 1
    assert check_bytes(semantics, x, made).n_wrong == 1


def test_no_such_rows() -> None:
    with pytest.raises(ValueError, match="are not 64 rows of 512 values"):
        check_bytes(encoding("q8_1"), X, np.zeros((64, 36), np.uint8))
