"""A score that fails is judged by the orders in which kernels add up, and by the product that is made again."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from gguf_verify.formats.block import BlockFormat
from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.rungs.remade import Remade
from gguf_verify.semantics.definition import Semantics
from gguf_verify.semantics.definitions import llama_cpu_semantics
from gguf_verify.semantics.definitions.f32 import F32
from gguf_verify.semantics.exact import product
from gguf_verify.semantics.gates import judge
from tests.support.exact_products import Bytes, Floats, activations, real_weights, whole_row
from tests.support.lane_kernels import alternating, in_lanes, of_one_block, with_late_outlier

# a user must not see NumPy's warnings
pytestmark = pytest.mark.filterwarnings("error")

Data = Callable[[int, int], Floats]
STRUCTURED: dict[str, Data] = {
    "runs of 4": lambda m, k: alternating(m, k, 4),
    "runs of 16": lambda m, k: alternating(m, k, 16),
    "late outlier": lambda m, k: with_late_outlier(activations(F32, m, k).view(np.float32)),
}
#: Kinds of terms: an offset, a minimum and a stored sum, minima of superblocks, a scale of each 16, a zero point.
KINDS = [("Q4_0", 4096), ("Q4_1", 4096), ("Q5_1", 2048), ("Q4_K", 4096), ("Q6_K", 4096), ("IQ4_XS", 4096)]
ALL = [(name, k) for name in FORMATS for k in (2048, 32768)]


def remade(semantics: Semantics, fmt: BlockFormat, w: Bytes, read: Bytes, k: int) -> Remade:
    """The product of a kernel that reads the weights `read` in place of w."""

    def make(x: Floats) -> tuple[Floats, Bytes]:
        encoded = semantics.bytes_of(x)
        return in_lanes(semantics, fmt, read, encoded), encoded

    return Remade(semantics, fmt, w, make, (2, k))


def one_wrong_code(semantics: Semantics, fmt: BlockFormat, w: Bytes, x: Bytes, row: int) -> Bytes:
    """The weights with one bit of a row's first block flipped: the first one that moves an output by twice the limit of
    its score. Of structured activations, many codes of a block have the same sum as before."""
    given = w[row : row + 1]
    before = product(semantics, fmt, given, x)
    at = fmt.block_bytes - 2
    for bit, byte in itertools.product((1, 0, 2, 3), (at, *(i for i in range(fmt.block_bytes) if i != at))):
        wrong = given.copy()
        wrong[0, byte] ^= 1 << bit
        if fmt.finite(wrong[:, : fmt.block_bytes]).all():
            moved = np.abs(product(semantics, fmt, wrong, x).exact - before.exact)
            if (moved > 2 * before.limit * before.spread).any():
                return np.concatenate([w[:row], wrong, w[row + 1 :]])
    raise AssertionError("no bit of the block moves an output")


@pytest.mark.parametrize("data", STRUCTURED)
@pytest.mark.parametrize(("name", "k"), [*KINDS, *ALL])
def test_lanes_with_large_sums_pass(name: str, k: int, data: str) -> None:
    fmt = FORMATS[name]
    semantics, k = llama_cpu_semantics(fmt), whole_row(fmt, k)
    w, x = real_weights(fmt, 4, k), semantics.bytes_of(STRUCTURED[data](2, k))
    for lanes, first in ((8, 0), (4, k // 64)):
        judgement = judge(in_lanes(semantics, fmt, w, x, lanes, first), product(semantics, fmt, w, x))
        assert judgement.passed, (lanes, judgement.score)


@pytest.mark.parametrize("data", STRUCTURED)
def test_an_ascending_order_alone_would_fail_them(data: str) -> None:
    fmt = FORMATS["Q4_1"]
    semantics = llama_cpu_semantics(fmt)
    w, x = real_weights(fmt, 4, 4096), semantics.bytes_of(STRUCTURED[data](2, 4096))
    y = in_lanes(semantics, fmt, w, x, first=127 if data == "late outlier" else 0)
    # As if the terms were added in ascending order.
    assert not judge(y, replace(product(semantics, fmt, w, x), lanes=None)).passed
    assert judge(y, product(semantics, fmt, w, x)).passed


@pytest.mark.parametrize("data", ["runs of 4", "runs of 16"])
@pytest.mark.parametrize(("name", "k"), [*KINDS, *ALL])
def test_one_wrong_code_fails_all_the_same(name: str, k: int, data: str) -> None:
    """By lane orders where it exceeds what any of them can round, else by the product that is made again."""
    fmt = FORMATS[name]
    semantics, k = llama_cpu_semantics(fmt), whole_row(fmt, k)
    w, x = real_weights(fmt, 4, k), semantics.bytes_of(STRUCTURED[data](2, k))
    wrong = one_wrong_code(semantics, fmt, w, x, 2)
    judgement = judge(in_lanes(semantics, fmt, wrong, x), product(semantics, fmt, w, x))
    if judgement.doubtful.any():
        judgement = remade(semantics, fmt, w, wrong, k).settled(judgement, 1.0)
    assert np.flatnonzero(judgement.bad.any(axis=0)).tolist() == [2]
    assert not judgement.doubtful.any()


@pytest.mark.parametrize(("name", "k"), [("Q4_0", 8192), ("Q4_1", 4096), *ALL])
def test_rows_of_one_block_are_a_suspicion_that_another_product_settles(name: str, k: int) -> None:
    """Each addition rounds the same way, so no independent roundings explain the error."""
    fmt = FORMATS[name]
    semantics, k = llama_cpu_semantics(fmt), whole_row(fmt, k)
    w, x = of_one_block(real_weights(fmt, 4, k), fmt), semantics.bytes_of(alternating(2, k, 16))
    right = judge(in_lanes(semantics, fmt, w, x), product(semantics, fmt, w, x))
    assert right.passed or right.unsettled
    if right.doubtful.any():
        assert remade(semantics, fmt, w, w, k).settled(right, 1.0).passed
    wrong = w.copy()
    wrong[1, fmt.block_bytes - 2] ^= 4
    found = judge(in_lanes(semantics, fmt, wrong, x), product(semantics, fmt, w, x))
    if found.doubtful.any():
        found = remade(semantics, fmt, w, wrong, k).settled(found, 1.0)
    assert found.bad[:, 1].any()
    assert not found.bad[:, [0, 2, 3]].any()


@pytest.mark.parametrize("m", [1, 2, 7])
def test_a_fault_that_the_first_random_activations_hide_is_found(m: int) -> None:
    """What a wrong weight adds to few outputs may be small by chance, so few tokens are made again several times."""
    fmt = FORMATS["Q4_0"]
    semantics, k = llama_cpu_semantics(fmt), 8192
    w, x = of_one_block(real_weights(fmt, 4, k), fmt), semantics.bytes_of(alternating(m, k, 16))
    wrong = w.copy()
    wrong[1, 1000] ^= 4
    judgement = judge(in_lanes(semantics, fmt, w, x), product(semantics, fmt, w, x))
    judgement = replace(judgement, doubtful=np.ones_like(judgement.doubtful))
    calls: list[Floats] = []

    def make(x: Floats) -> tuple[Floats, Bytes]:
        calls.append(x)
        encoded = semantics.bytes_of(x)
        return in_lanes(semantics, fmt, w if len(calls) == 1 else wrong, encoded), encoded

    settled = Remade(semantics, fmt, w, make, (m, k)).settled(judgement, 1.0)
    assert settled.bad[:, 1].any()
    assert not settled.bad[:, [0, 2, 3]].any()
    assert len(calls) * m >= 8
    assert len({x.tobytes() for x in calls}) == len(calls)


def test_a_suspicion_counts_as_wrong_until_it_is_settled() -> None:
    fmt = FORMATS["Q4_0"]
    semantics, k = llama_cpu_semantics(fmt), 8192
    w, x = of_one_block(real_weights(fmt, 4, k), fmt), semantics.bytes_of(alternating(2, k, 16))
    judgement = judge(in_lanes(semantics, fmt, w, x), product(semantics, fmt, w, x))
    assert judgement.unsettled
    assert not judgement.passed
    assert (judgement.bad == judgement.suspected).all()
    assert judgement.cleared(np.zeros(4, bool)).passed
    assert not judgement.cleared(np.ones(4, bool)).passed


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1"])
def test_a_lane_that_drops_one_addition_fails(name: str) -> None:
    """An error of one lane's term, on data whose lanes hold large sums."""
    fmt = FORMATS[name]
    semantics, k = llama_cpu_semantics(fmt), 4096
    w, x = real_weights(fmt, 4, k), semantics.bytes_of(alternating(2, k, 4))
    p = product(semantics, fmt, w, x)
    one_block = product(
        semantics, fmt, np.ascontiguousarray(w[:, : fmt.block_bytes]), semantics.bytes_of(alternating(2, 32, 4))
    )
    y = in_lanes(semantics, fmt, w, x)
    y[:, 3] -= (one_block.bound[:, 3] * 2.0**24 / 9 / 8).astype(np.float32)  # an eighth of the block's magnitude
    assert judge(y, p).bad[:, 3].all()


def test_an_error_beyond_all_roundings_is_no_suspicion() -> None:
    fmt = FORMATS["Q4_0"]
    semantics, k = llama_cpu_semantics(fmt), 4096
    w, x = real_weights(fmt, 4, k), semantics.bytes_of(alternating(2, k, 4))
    p = product(semantics, fmt, w, x)
    y = (p.exact + 0.5 * p.bound).astype(np.float32)
    judgement = judge(y, p)
    assert judgement.bad.all()
    assert not judgement.unsettled
    assert not judgement.cleared(np.zeros(4, bool)).passed


def test_values_in_lanes_of_threads_pass() -> None:
    """Activations of float32, each product added by itself by 32 threads that take four values at a time."""
    fmt, k = FORMATS["Q4_0"], 8192
    w, x = real_weights(fmt, 4, k), alternating(2, k, 4)
    terms = (x[:, None] * fmt.decode(w.reshape(4, -1, fmt.block_bytes)).reshape(1, 4, k)).astype(np.float32)
    turns = terms.reshape(2, 4, -1, 32, 4)
    acc = np.zeros((2, 4, 32), np.float32)
    for turn in range(turns.shape[2]):
        for i in range(4):
            acc += turns[:, :, turn, :, i]
    y = np.ascontiguousarray(np.add.accumulate(acc, axis=-1, dtype=np.float32)[..., -1])
    assert judge(y, product(F32, fmt, w, x.view(np.uint8))).passed
