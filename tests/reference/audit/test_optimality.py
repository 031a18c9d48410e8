"""Tensors that llama.cpp made with an importance matrix break no rule, whatever the matrix; damaged ones break one."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from gguf_verify.audit.optimality import Judgement, judge
from gguf_verify.audit.source import uses_importance
from gguf_verify.formats.block import BlockFormat
from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.llama.library import Llama

K, N = 512, 64
Bytes = npt.NDArray[np.uint8]
#: Scalar codes of every kind; grids; the others, whose tables take llama.cpp seconds to make, are slow.
SCALAR = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS")
GRIDS = ("IQ2_XXS", "IQ3_XXS", "IQ3_S")
SLOW_GRIDS = ("IQ2_XS", "IQ2_S", "IQ1_S", "IQ1_M")


def importances(rng: np.random.Generator) -> dict[str, npt.NDArray[np.float32]]:
    spread = rng.standard_normal(K)
    return {
        "equal": np.ones(K, np.float32),
        "three orders": np.exp(spread).astype(np.float32),
        "eight orders": np.exp(2.5 * spread).astype(np.float32),
    }


def judged(fmt: BlockFormat, x: npt.NDArray[np.float32], made: Bytes, threads: int = 1) -> Judgement:
    raw = made.reshape(len(x), -1, fmt.block_bytes)
    return judge(fmt, lambda a, b: x[a:b], lambda a, b: raw[a:b], len(x), K, threads=threads)


def weights(rng: np.random.Generator, kind: str) -> npt.NDArray[np.float32]:
    drawn = rng.standard_normal((N, K)) if kind == "normal" else rng.laplace(size=(N, K))
    return (0.02 * drawn).astype(np.float32)


@pytest.mark.parametrize("name", [*SCALAR, *GRIDS, *SLOW_GRIDS])
def test_right_and_damaged(name: str, llama: Llama) -> None:
    fmt = FORMATS[name]
    rng = np.random.default_rng(5)
    for draw in ("normal", "laplace"):
        x = weights(rng, draw)
        for what, importance in importances(rng).items():
            made = llama.quantize(fmt.type_id, x, importance)
            right = judged(fmt, x, made)
            assert not right.wrong, (draw, what, right)
            assert right.outliers.count == 0, (draw, what, right)
            # two rows exchanged, and all of them
            for order in (np.r_[1, 0, 2:N], np.roll(np.arange(N), 7)):
                exchanged = judged(fmt, x, made[order])
                assert exchanged.wrong, (draw, what)
                assert min(k.first for k in (exchanged.codes, exchanged.far) if k.count) < 2 * K // fmt.block_size
            # all of them in the other direction
            assert judged(fmt, -x, made).wrong
            if name in SCALAR:
                _damage_of_blocks(fmt, x, made)
            elif draw == "normal" and what != "eight orders" and "d" in (fmt.dtype.names or ()):
                damaged = made.reshape(-1, fmt.block_bytes).copy()
                damaged.view(fmt.dtype)[11, 0]["d"] *= np.float16(2)
                found = judged(fmt, x, damaged)
                assert (found.far.count, found.far.first) == (1, 11), what
                damaged.view(fmt.dtype)[11, 0]["d"] *= np.float16(0.25)
                assert judged(fmt, x, damaged).outliers.first == 11, what


def _damage_of_blocks(fmt: BlockFormat, x: npt.NDArray[np.float32], made: Bytes) -> None:
    """One block of all: its scale twice and half as large, and zero; and all of its codes one step off."""
    number = 5 * (K // fmt.block_size) + 1
    for factor in (2, 0.5, 0):
        damaged = made.reshape(-1, fmt.block_bytes).copy()
        damaged.view(fmt.dtype)[number, 0]["d"] *= np.float16(factor)
        found = judged(fmt, x, damaged)
        assert found.wrong, (fmt.name, factor)
        # where its whole row is too far, that begins a block before
        assert number in {k.first for k in (found.codes, found.scales, found.far) if k.count}
    damaged = made.reshape(-1, fmt.block_bytes).copy()
    qs = fmt.field_offset("qs" if "qs" in (fmt.dtype.names or ()) else "ql")
    damaged[number, qs : qs + 8] ^= 0x22
    found = judged(fmt, x, damaged)
    assert (found.codes.count, found.codes.first) == (1, number)


def test_one_wrong_scale_in_a_large_tensor(llama: Llama) -> None:
    """A single superblock of sixteen thousand, with all threads."""
    fmt = FORMATS["Q4_K"]
    rng = np.random.default_rng(9)
    x = (0.02 * rng.standard_normal((8192, K))).astype(np.float32)
    made = llama.quantize(fmt.type_id, x, np.exp(rng.standard_normal(K)).astype(np.float32))
    assert not judged(fmt, x, made, threads=2).wrong
    damaged = made.reshape(-1, fmt.block_bytes).copy()
    damaged.view(fmt.dtype)[12_345, 0]["d"] *= np.float16(1.1)
    found = judged(fmt, x, damaged, threads=2)
    assert (found.codes.count, found.codes.first) == (1, 12_345)


def test_each_matrix_has_importances_of_its_own(llama: Llama) -> None:
    fmt = FORMATS["IQ3_XXS"]
    rng = np.random.default_rng(3)
    x = weights(rng, "normal")
    half = [
        llama.quantize(fmt.type_id, part, np.exp(3 * rng.standard_normal(K)).astype(np.float32))
        for part in (x[:32], x[32:])
    ]
    raw = np.concatenate(half).reshape(N, -1, fmt.block_bytes)
    found = judge(fmt, lambda a, b: x[a:b], lambda a, b: raw[a:b], N, K, n_matrices=2)
    assert not found.wrong
    assert found.outliers.count == 0


@pytest.mark.parametrize(
    ("name", "uses"), [("Q4_0", True), ("Q4_K", True), ("Q8_0", False), ("TQ2_0", False), ("MXFP4", False)]
)
def test_which_types_an_importance_changes(name: str, uses: bool, llama: Llama) -> None:
    assert uses_importance(FORMATS[name], llama) is uses
