"""Packings that only move bits are inverted; others are distinguished from them."""

from __future__ import annotations

import numpy as np
import pytest

from gguf_verify.diagnosis.permutation import MOST_BITS, Lost, Moves, find_moves

SHAPE = (5, 36)


def shuffled(rows: np.ndarray) -> np.ndarray:
    """All bits in a random order, some inverted, with constants between them."""
    bits = np.unpackbits(rows.reshape(-1))
    rng = np.random.default_rng(1)
    order, flip = rng.permutation(bits.size), rng.integers(0, 2, bits.size, dtype=np.uint8)
    return np.packbits(np.concatenate([bits[order] ^ flip, np.array([0, 1, 1, 0, 1, 0, 0, 1], np.uint8)]))


def test_takes_apart() -> None:
    moves = find_moves(shuffled, SHAPE)
    assert isinstance(moves, Moves)
    rows = np.random.default_rng(7).integers(0, 256, SHAPE, dtype=np.uint8)
    assert (moves.rows(shuffled(rows), SHAPE) == rows).all()


@pytest.mark.parametrize("bit", [0, 777, 5 * 36 * 8 - 1])
def test_finds_a_lost_bit(bit: int) -> None:
    def pack(rows: np.ndarray) -> np.ndarray:
        bits = np.unpackbits(rows.reshape(-1))
        bits[bit] = 0
        return np.packbits(bits)

    assert find_moves(pack, SHAPE) == Lost(1, 5 * 36 * 8, bit // 8, 7 - bit % 8)


def test_is_no_permutation() -> None:
    for pack in (
        lambda rows: rows.reshape(-1) + rows.reshape(-1)[::-1],  # carries
        lambda rows: np.packbits(np.unpackbits(rows.reshape(-1)) ^ np.unpackbits(rows.reshape(-1))[::-1]),
        lambda rows: rows.reshape(-1)[: 4 + int(rows.sum()) % 3],
    ):
        assert isinstance(find_moves(pack, SHAPE), str)
    assert "more than" in str(find_moves(lambda rows: rows, (MOST_BITS // 8 + 1, 1)))


def test_a_fault_that_planted_bits_do_not_show() -> None:
    """A dependence on two bits at once shows on random rows."""

    def pack(rows: np.ndarray) -> np.ndarray:
        made = rows.reshape(-1).copy()
        made[0] ^= (made[1] & made[2]) >> 7 & (made[3] >> 6)
        return made

    assert isinstance(find_moves(pack, SHAPE), str)
