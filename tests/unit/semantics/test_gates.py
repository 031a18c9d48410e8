"""The gates pass outputs that are right, and fail outputs that are wrong in a known way."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest

from gguf_verify.formats.block import BlockFormat
from gguf_verify.formats.iq1_m import IQ1_M
from gguf_verify.formats.mxfp4 import MXFP4
from gguf_verify.formats.nvfp4 import NVFP4
from gguf_verify.formats.q4_0 import Q4_0
from gguf_verify.hosts.memory import POISON
from gguf_verify.semantics import gates
from gguf_verify.semantics.accumulation import LANES_LIMIT, SCORE_LIMIT
from gguf_verify.semantics.definition import Semantics
from gguf_verify.semantics.definitions.q8_0_cpu import Q8_0_CPU
from gguf_verify.semantics.definitions.q8_1 import Q8_1_RAW
from gguf_verify.semantics.encodings.q8_1 import encode_q8_1
from gguf_verify.semantics.exact import product
from gguf_verify.semantics.gates import judge
from gguf_verify.semantics.order import ASCENDING
from gguf_verify.semantics.result import exact_result
from gguf_verify.semantics.sums import Product
from tests.support.exact_products import (
    IDS,
    LEGACY,
    PAIRS,
    QK,
    QK_K,
    Bytes,
    activations,
    each_pair,
    real_weights,
    whole_row,
)

# a user must not see NumPy's warnings
pytestmark = pytest.mark.filterwarnings("error")


def fewer(fmt: BlockFormat, rows: int) -> int:
    """All of these rows for the formats with an encoder, a third for the other twenty."""
    return rows if fmt in LEGACY else -(-rows // 3)


def undeclared(p: Product) -> Product:
    """The same product for a kernel that declares no order."""
    return dataclasses.replace(p, ordered=None)


@pytest.fixture(scope="module")
def judged() -> Product:
    return product(Q8_1_RAW, Q4_0, real_weights(Q4_0, 24, 512), activations(Q8_1_RAW, 5, 512), order=ASCENDING)


@each_pair
def test_the_ordered_result_passes(semantics: Semantics, fmt: BlockFormat) -> None:
    p = product(semantics, fmt, real_weights(fmt, fewer(fmt, 40), 512), activations(semantics, 6, 512), order=ASCENDING)
    judgement = judge(p.ordered, p)
    assert judgement.passed
    assert not judgement.bad.any()
    assert judgement.differing_bits == 0
    assert 0 < judgement.utilisation < 0.5
    assert 0 < judgement.score < 6
    assert judgement.nmse < 1e-12
    assert judge(p.ordered, undeclared(p)).differing_bits is None


@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize(
    "value",
    [np.nan, np.inf, -np.inf, POISON.view(np.float32), np.float32(0), np.float32(1e30)],
    ids=["nan", "inf", "-inf", "unwritten", "zero", "huge"],
)
def test_one_wrong_element_fails_alone(judged: Product, value: float, declared: bool) -> None:
    y = judged.ordered.copy()
    y[3, 7] = value
    judgement = judge(y, judged if declared else undeclared(judged))
    assert not judgement.passed
    assert np.argwhere(judgement.bad).tolist() == [[3, 7]]
    assert judgement.worst == (3, 7)
    assert judgement.utilisation > 1
    assert judgement.score > SCORE_LIMIT


def test_all_unwritten_fails_everywhere(judged: Product) -> None:
    y = np.full(judged.exact.shape, POISON.view(np.float32), np.float32)
    assert judge(y, undeclared(judged)).bad.all()


@pytest.mark.parametrize("toward", [np.inf, -np.inf])
def test_one_ulp_fails_only_a_declared_order(judged: Product, toward: float) -> None:
    y = judged.ordered.copy()
    y[2, 11] = np.nextafter(y[2, 11], np.float32(toward))
    judgement = judge(y, judged)
    assert np.argwhere(judgement.bad).tolist() == [[2, 11]]
    assert judgement.differing_bits == 1
    assert judgement.utilisation < 1
    assert judge(y, undeclared(judged)).passed


def test_the_sign_of_zero_is_a_bit() -> None:
    w, x = np.zeros((3, 18), np.uint8), activations(Q8_1_RAW, 2, 32)
    p = product(Q8_1_RAW, Q4_0, w, x, order=ASCENDING)
    assert judge(p.ordered, p).passed
    assert judge(-p.ordered, p).differing_bits == 6
    assert judge(-p.ordered, undeclared(p)).passed
    # the bound is zero, so anything else is wrong, however small
    assert judge(p.ordered + np.float32(2.0**-148), undeclared(p)).bad.all()


def test_an_infinite_oracle_passes_nothing() -> None:
    """s overflows: the kernel and the oracle agree on infinity or NaN, and nothing was verified."""
    x = encode_q8_1(np.full((1, QK), 5000, np.float32))
    p = product(Q8_1_RAW, Q4_0, real_weights(Q4_0, 3, QK), x, order=ASCENDING)
    assert not np.isfinite(p.exact).any()
    for y in (p.ordered, np.zeros_like(p.ordered)):
        assert judge(y, p).bad.all()
        assert judge(y, undeclared(p)).bad.all()


def with_code_off_by_one(fmt: BlockFormat, w: Bytes, row: int, block: int) -> Bytes:
    """One bit of the codes flipped: of those that change the codes least the one of a median effect on the values.

    In most formats a code goes up or down by one; in those with a grid an entry or a sign is another.
    """
    at = slice(block * fmt.block_bytes, (block + 1) * fmt.block_bytes)
    right = np.ascontiguousarray(w[row : row + 1, at])
    flips = np.packbits(np.eye(8 * fmt.block_bytes, dtype=np.uint8), axis=1, bitorder="little")
    flipped = right ^ flips
    same_scales = (fmt.scales(flipped) == fmt.scales(right)).all(axis=-1)
    same_minima = (fmt.minima(flipped) == fmt.minima(right)).all(axis=-1)
    change = np.abs(fmt.codes(flipped).astype(int) - fmt.codes(right).astype(int)).sum(axis=-1)
    with np.errstate(invalid="ignore", over="ignore"):
        effect = np.abs(fmt.decode(flipped) - fmt.decode(right)).sum(axis=-1)
    candidates = same_scales & same_minima & (effect > 0)
    candidates &= change == change[candidates].min()
    ranked = np.flatnonzero(candidates)[np.argsort(effect[candidates], kind="stable")]
    wrong = w.copy()
    wrong[row, at] = flipped[ranked[len(ranked) // 2]]
    return wrong


def with_scale_one_percent_off(fmt: BlockFormat, w: Bytes, row: int, block: int) -> Bytes:
    """The scale of the block one percent larger, or off in a low bit: IQ1_M's in the fourth, fp4's in the lowest."""
    wrong = w.copy()
    at = block * fmt.block_bytes
    if fmt is IQ1_M:
        wrong[row, at + fmt.field_offset("scales") + 1] ^= 0x80
    elif fmt in (MXFP4, NVFP4):
        wrong[row, at] ^= 1
    else:
        at += fmt.field_offset("d")
        d = wrong[row, at : at + 2].view("<f2")
        d[0] = np.float16(float(d[0]) * 1.01)
    return wrong


# row lengths with a row and a value in the block to spoil in each
PLACES = ((32, 0, 0), (128, 3, 64), (4096, 2, 3200), (14336, 5, 14335))


@pytest.mark.parametrize("spoil", [with_code_off_by_one, with_scale_one_percent_off])
@pytest.mark.parametrize(("semantics", "fmt"), PAIRS, ids=IDS)
def test_one_wrong_block_fails(
    semantics: Semantics, fmt: BlockFormat, spoil: Callable[[BlockFormat, Bytes, int, int], Bytes]
) -> None:
    """A correct computation on weights one block of which is wrong, judged without a declared order."""
    for k, row, value in PLACES if fmt in LEGACY else PLACES[1:]:
        k, block = whole_row(fmt, k), value // fmt.block_size
        w, x = real_weights(fmt, 8, k), activations(semantics, 4, k)
        p = undeclared(product(semantics, fmt, w, x))
        judgement = judge(exact_result(semantics, fmt, spoil(fmt, w, row, block), x).astype(np.float32), p)
        said = f"K={k}: utilisation {judgement.utilisation:.3g}, score {judgement.score:.3g}"
        assert np.unique(np.argwhere(judgement.bad)[:, 1]).tolist() == [row], said
        assert judgement.worst[1] == row, said
        assert judgement.score > 1.5 * LANES_LIMIT, said
        if k <= QK_K:
            assert judgement.utilisation > 10, said


def test_the_score_sees_what_the_bound_does_not() -> None:
    """One 4-bit code among 14336: about 1 against the bound, thousands against the spread."""
    w, x = real_weights(Q4_0, 8, 14336), activations(Q8_0_CPU, 4, 14336)
    wrong = exact_result(Q8_0_CPU, Q4_0, with_code_off_by_one(Q4_0, w, 5, 447), x).astype(np.float32)
    judgement = judge(wrong, undeclared(product(Q8_0_CPU, Q4_0, w, x)))
    assert judgement.utilisation < 3
    assert judgement.score > 1000
    assert judgement.bad[:, 5].all()


@each_pair
def test_one_percent_fails_where_nmse_does_not(semantics: Semantics, fmt: BlockFormat) -> None:
    for k in (64, 4096, 14336):
        k = whole_row(fmt, k)
        w, x = real_weights(fmt, 6, k), activations(semantics, 2, k)
        p = undeclared(product(semantics, fmt, w, x))
        judgement = judge((1.01 * p.exact).astype(np.float32), p)
        assert judgement.bad.mean() > 0.8, k  # all but results near zero
        assert judgement.nmse < 5e-4  # what llama.cpp's own op test would let pass


def test_slack_widens_both_gates(judged: Product) -> None:
    p = undeclared(judged)
    slack = np.full(p.exact.shape, 1e-2)
    y = (p.exact + 0.9e-2).astype(np.float32)
    assert judge(y, p).bad.all()
    assert judge(y, p, slack).passed
    assert judge((p.exact + 1.2e-2).astype(np.float32), p, slack).bad.all()
    y[0, 0] = np.nan
    assert np.argwhere(judge(y, p, slack).bad).tolist() == [[0, 0]]


def test_nmse_is_over_all_elements(judged: Product) -> None:
    y = (judged.exact * 1.5).astype(np.float32)
    assert judge(y, judged).nmse == pytest.approx(0.25, rel=1e-5)


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("fault", ["none", "near the limits", "NaN", "infinite", "zero", "all wrong", "one bit"])
def test_tiles_of_rows_are_judged_as_the_whole(
    fault: str, ordered: bool, judged: Product, monkeypatch: pytest.MonkeyPatch
) -> None:
    p, rng = judged if ordered else undeclared(judged), np.random.default_rng(3)
    assert judged.ordered is not None
    y, at = judged.ordered.copy(), rng.random(judged.exact.shape) < 0.1
    if fault == "near the limits":
        limit = np.minimum(p.bound, p.limit * p.spread)
        y[at] = (p.exact + rng.choice([-1.001, -0.999, 0.5, 1.1, 2], at.shape) * limit)[at]
    elif fault == "one bit":
        y[at] = np.nextafter(y[at], np.float32(np.inf))
    elif fault == "all wrong":
        y *= np.float32(1.01)
    elif fault != "none":
        y[at] = {"NaN": np.nan, "infinite": -np.inf, "zero": 0}[fault]
    whole = judge(y, p)
    for outputs in (1, 3 * len(y), y.size - 1):
        monkeypatch.setattr(gates, "_TILE", outputs)
        tiles = judge(y, p)
        for name in ("bad", "suspected", "doubtful"):
            assert (getattr(tiles, name) == getattr(whole, name)).all(), name
        for name in ("utilisation", "score", "worst", "differing_bits", "power"):
            assert getattr(tiles, name) == getattr(whole, name), name
        assert tiles.nmse == pytest.approx(whole.nmse, nan_ok=True)
        assert (tiles.product.spread == whole.product.spread).all()
        assert (tiles.product.exact == whole.product.exact).all()
