"""Exact products and their bounds against rational arithmetic."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import pytest

from gguf_verify.formats.block import BlockFormat
from gguf_verify.formats.q4_0 import Q4_0
from gguf_verify.formats.q5_1 import Q5_1
from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.rungs.generated_inputs import any_blocks
from gguf_verify.semantics import exact as oracle
from gguf_verify.semantics.definition import Semantics
from gguf_verify.semantics.definitions import SEMANTICS
from gguf_verify.semantics.definitions.f32 import F32
from gguf_verify.semantics.definitions.q8_1 import Q8_1_RAW
from gguf_verify.semantics.definitions.q8_1_half import Q8_1_HALF
from gguf_verify.semantics.exact import product
from gguf_verify.semantics.gates import judge
from gguf_verify.semantics.order import ASCENDING
from gguf_verify.semantics.result import exact_result
from gguf_verify.semantics.rounding import add_rounded, chain_rounded
from gguf_verify.semantics.sums import gamma
from tests.support.exact_products import (
    IDS,
    LEGACY,
    PAIRS,
    QK_K,
    Bytes,
    activations,
    bits,
    each_pair,
    nearest_float32,
    random_weights,
    real_weights,
    smallest_row,
)

# a user must not see NumPy's warnings
pytestmark = pytest.mark.filterwarnings("error")


HALF_PRODUCTS = Q8_1_HALF


def read_activations(semantics: str, raw: bytes) -> list[tuple[Fraction, Fraction, list[int]]]:
    """(d, s or 0, codes) of each block of a row, from the structs of ggml-common.h."""
    layout = {"q8_0_cpu": "<e32b", "mmq_d4": "<f32b", "q8_k_cpu": "<f256b16h"}.get(semantics, "<ee32b")
    blocks = []
    for d, *rest in struct.iter_unpack(layout, raw):
        s = rest.pop(0) if layout == "<ee32b" else 0.0
        blocks.append((Fraction(d), Fraction(s), rest[:QK_K]))
    return blocks


def half_rounded(x: Fraction) -> Fraction:
    return Fraction(struct.unpack("<e", struct.pack("<e", float(x)))[0])  # the product of two halves is a double


def float32_rounded(x: Fraction) -> Fraction:
    return Fraction(nearest_float32(x))


OFFSETS = {"Q4_0": 8, "Q5_0": 16}


#: Zero points that llama.cpp multiplies apart.
ZEROS = {f.name: f.zero for f in FORMATS.values() if f.zero}


@dataclasses.dataclass
class Term:
    """What one scale of the weights and one of the activations belong to, exactly."""

    first: Fraction
    second: Fraction
    magnitude: Fraction
    steps: list[Fraction]  # what a declared order adds, one by one


def term_of(
    semantics: str, name: str, d_w: Fraction, m_w: Fraction, q_w: list[int], a: tuple[Fraction, Fraction, list[int]]
) -> Term:
    """Each definition spelled out."""
    d_a, s, q_a = a
    rounded = semantics == "mmq" and name in ("Q4_K", "Q5_K")
    if rounded:
        d_w, m_w = half_rounded(d_w), half_rounded(m_w)
    scale, second = d_w * d_a, Fraction(0)
    integer_offset = semantics in ("q8_0_cpu", "mmq_d4") or (semantics, name) == ("mmq", "Q4_0")
    if integer_offset:
        q_w = [q - OFFSETS.get(name, 0) for q in q_w]
    elif name in OFFSETS:
        second = -OFFSETS[name] * d_w * s
    elif name in ("Q4_1", "Q5_1") or rounded:
        second = m_w * s
    if semantics == "q8_1_half" and name in ("Q4_1", "Q5_1"):
        scale, second = half_rounded(scale), half_rounded(second)
    zero = ZEROS.get(name, 0) if semantics in ("q8_0_cpu", "q8_k_cpu") else 0
    dot = sum(x * y for x, y in zip(q_w, q_a, strict=True))
    magnitude = abs(scale) * sum((abs(x) + 2 * zero) * abs(y) for x, y in zip(q_w, q_a, strict=True)) + abs(second)
    steps = [float32_rounded(scale) * dot]
    if name in ("Q2_K", "Q4_K", "Q5_K") and not rounded:
        second = m_w * d_a * sum(q_a)
        magnitude += abs(m_w * d_a) * sum(map(abs, q_a))
        steps.append(m_w * float32_rounded(d_a * sum(q_a)))
    elif name in OFFSETS and not integer_offset:
        steps = [d_w * float32_rounded(d_a * dot - OFFSETS[name] * s)]
    elif name in ("Q4_1", "Q5_1") or rounded:
        steps.append(second)
    return Term(scale * dot, second, magnitude, steps)


@dataclasses.dataclass
class Rational:
    """One element of a product, exactly."""

    result: Fraction
    magnitude: Fraction
    steps: list[Fraction]  # what a declared order adds, one by one


def rational(semantics: Semantics, fmt: BlockFormat, w: bytes, x: bytes) -> Rational:
    size = fmt.block_bytes
    rows = [w[i : i + size] for i in range(0, len(w), size)]
    if semantics.activations is None:
        values = [Fraction(v) for row in rows for v in fmt.slow_decode(row)]
        steps = [v * Fraction(a) for v, a in zip(values, struct.unpack(f"<{len(values)}f", x), strict=True)]
        return Rational(sum(steps, Fraction(0)), sum(map(abs, steps), Fraction(0)), steps)
    blocks = np.frombuffer(w, np.uint8).reshape(-1, size)
    q_w = [int(q) for q in fmt.codes(blocks).ravel()]
    d_w = [Fraction(float(d)) for d in fmt.scales(blocks).ravel()]
    m_w = [Fraction(float(m)) for m in fmt.minima(blocks).ravel()]
    a = read_activations(semantics.name, x)
    of_a = len(a[0][2])
    terms = []
    values_of_term = 16 if fmt.group == 16 else 32
    for at in range(0, len(q_w), values_of_term):
        span = slice(at, at + values_of_term)
        d_a, s, q_a = a[at // of_a]
        inside = slice(at % of_a, at % of_a + values_of_term)
        g = at // fmt.group
        terms.append(term_of(semantics.name, fmt.name, d_w[g], m_w[g], q_w[span], (d_a, s, q_a[inside])))
    steps = [step for term in terms for step in term.steps]
    result = sum((term.first + term.second for term in terms), Fraction(0))
    return Rational(result, sum((term.magnitude for term in terms), Fraction(0)), steps)


def number_of_terms(semantics: Semantics, fmt: BlockFormat, k: int) -> int:
    """That may be added one by one: products and, where there are minima or sums, their terms."""
    if semantics is F32:
        return k
    apart = 2 if semantics.uses_sum(fmt) or fmt.has_min else 1
    return apart * k // (16 if fmt.group == 16 else 32)


def elements(semantics: Semantics, fmt: BlockFormat, w: Bytes, x: Bytes) -> Iterator[tuple[tuple[int, int], Rational]]:
    for m, row in enumerate(x):
        for n, weights in enumerate(w):
            yield (m, n), rational(semantics, fmt, weights.tobytes(), row.tobytes())


@pytest.mark.parametrize(
    ("semantics", "fmt"),
    [*PAIRS, *((HALF_PRODUCTS, f) for f in LEGACY)],
    ids=[*IDS, *(f"q8_1_half-{f.name}" for f in LEGACY)],
)
def test_product_is_exact(semantics: Semantics, fmt: BlockFormat) -> None:
    """Result, bound and the bits of the declared order against rational arithmetic, at several K."""
    legacy = [(32, 4, random_weights), (96, 4, random_weights), (160, 4, real_weights)]
    block = smallest_row(fmt)
    for k, rows, weights in legacy if fmt in LEGACY else [(block, 2, random_weights), (2 * block, 2, real_weights)]:
        w, x = weights(fmt, rows, k), activations(semantics, 3, k)
        p = product(semantics, fmt, w, x, order=ASCENDING)
        n = number_of_terms(semantics, fmt, k) + 8
        u = Fraction(1, 2**24)
        assert p.exact.shape == p.bound.shape == p.spread.shape == (3, rows)
        assert p.ordered is not None
        for at, exact in elements(semantics, fmt, w, x):
            assert abs(Fraction(p.exact[at]) - exact.result) <= exact.magnitude * Fraction(2, 10**15)
            bound = n * u / (1 - n * u) * exact.magnitude
            assert abs(Fraction(p.bound[at]) - bound) <= bound / 10**12
            acc = 0.0
            for step in exact.steps:
                acc = nearest_float32(Fraction(acc) + step)
            assert bits(p.ordered[at]) == bits(acc), (k, at)


def test_gamma() -> None:
    u = Fraction(1, 2**24)
    for n in (9, 456, 14344):
        assert gamma(n) == pytest.approx(float(n * u / (1 - n * u)), rel=1e-15)


@each_pair
def test_one_exact_result(semantics: Semantics, fmt: BlockFormat) -> None:
    """Two ways to the same number: block sums in integers, and one matrix product."""
    w, x = real_weights(fmt, 37, 1024), activations(semantics, 5, 1024)
    p = product(semantics, fmt, w, x)
    magnitude = p.bound / gamma(number_of_terms(semantics, fmt, 1024) + 8)
    for threads in (1, 2):
        assert (np.abs(exact_result(semantics, fmt, w, x, threads) - p.exact) <= 1e-12 * magnitude).all()


def test_half_products_have_no_matrix_product() -> None:
    """They are rounded inside a block: exact_result must not take the short way."""
    w, x = real_weights(Q5_1, 2, 64), activations(HALF_PRODUCTS, 2, 64)
    expected = product(HALF_PRODUCTS, Q5_1, w, x).exact
    assert (exact_result(HALF_PRODUCTS, Q5_1, w, x) == expected).all()
    assert (exact_result(Q8_1_RAW, Q5_1, w, x) != expected).any()


def test_chain_is_add_rounded_step_by_step() -> None:
    rng = np.random.default_rng(5)
    products = [rng.standard_normal((4, 50)) * 2.0 ** rng.integers(-60, 10, (4, 50)) for _ in range(30)]
    products = [p.astype(np.float32).astype(np.float64) for p in products]
    # sums that look like ties and are none: 1 + 2^-24 + 2^-60 rounds up, not to even
    products += [np.full((4, 50), 2.0**-24 + 2.0**-53), np.full((4, 50), -(2.0**-149) / 2)]
    expected = np.zeros((4, 50), np.float32)
    for p in products:
        expected = add_rounded(p, expected)
    one_stream, two_streams = np.array(products), [np.array(products[0::2]), np.array(products[1::2])]
    assert (chain_rounded([one_stream]).view(np.uint32) == expected.view(np.uint32)).all()
    assert (chain_rounded(two_streams).view(np.uint32) == expected.view(np.uint32)).all()
    one = np.array([[[1.0]], [[2.0**-24 + 2.0**-60]]])
    assert chain_rounded([one])[0, 0] == np.float32(1 + 2.0**-23)


@pytest.mark.parametrize("begun", [False, True])
def test_chain_sees_what_is_no_tie_wherever_it_is(begun: bool) -> None:
    """1 + 2^-24 + 2^-60, in any step of two streams and at any element, the only one that float64 does not hold."""
    start = np.ones((2, 3), np.float32) if begun else None
    for order in range(0 if begun else 1, 8):
        for element in range(6):
            products = np.zeros((4, 2, 6))
            if not begun:
                products[0, 0] = 1
            products.reshape(8, 6)[order, element] = 2.0**-24 + 2.0**-60
            streams = products.reshape(4, 2, 2, 3).swapaxes(0, 1)
            expected = np.ones(6, np.float32)
            expected[element] += np.float32(2.0**-23)
            assert (chain_rounded(list(streams), start).reshape(-1) == expected).all()


def test_chain_of_ties_is_done_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums that float64 holds need no care, and ties of small integers are many."""
    rng = np.random.default_rng(6)
    streams = [(rng.integers(-8, 8, (40, 3, 50)) * 2.0**-24 + np.float64(1) * (rng.random((40, 3, 50)) < 0.1))
               for _ in range(2)]  # fmt: skip
    monkeypatch.setattr("gguf_verify.semantics.rounding.add_rounded", None)
    for n in (1, 2):
        total = chain_rounded(streams[:n], np.ones((3, 50), np.float32))
        assert (total != np.sum(streams[:n], axis=(0, 1)) + 1).any()  # some were rounded


#: Values of a tile, and threads: each of either at least once.
SHARES = [(1, 5), (3 * 8 * 7, 1), (3 * 8 * 7, 2), (1 << 20, 2)]
ALL_SHARES = [(tile, threads) for tile in (1, 3 * 8 * 7, 1 << 20) for threads in (1, 2, 5)]


@pytest.mark.parametrize("shares", [SHARES, ALL_SHARES], ids=["some", "all"])
@each_pair
def test_tiles_and_threads_do_not_matter(
    semantics: Semantics, fmt: BlockFormat, shares: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    w, x = real_weights(fmt, 45 if fmt in LEGACY else 7, 256), activations(semantics, 3, 256)
    whole = product(semantics, fmt, w, x, order=ASCENDING)
    magnitude = whole.bound / gamma(264)
    for tile, threads in shares:
        monkeypatch.setattr(oracle, "_TILE", tile)
        p = product(semantics, fmt, w, x, order=ASCENDING, threads=threads)
        assert p.ordered is not None
        assert whole.ordered is not None
        assert (bits(p.ordered) == bits(whole.ordered)).all()
        # a BLAS may add in another order where the shape is another
        assert (np.abs(p.exact - whole.exact) <= 1e-13 * magnitude).all()
        np.testing.assert_allclose(p.bound, whole.bound, rtol=1e-12)
        np.testing.assert_allclose(p.spread, whole.spread, rtol=1e-12)
        assert (np.abs(exact_result(semantics, fmt, w, x, threads) - whole.exact) <= 1e-12 * magnitude).all()
    assert product(semantics, fmt, w, x).ordered is None


def test_one_row_and_one_column() -> None:
    w, x = real_weights(Q4_0, 1, 32), activations(Q8_1_RAW, 1, 32)
    p = product(Q8_1_RAW, Q4_0, w, x, order=ASCENDING, threads=4)
    assert p.exact.shape == (1, 1)
    assert judge(p.ordered, p).passed


@pytest.mark.parametrize("name", ["q8_1", "mmq", "mmq_d4"])
@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q2_K", "Q4_K", "Q5_K", "Q6_K"])
def test_blocks_whose_scales_a_definition_holds_have_finite_products(name: str, kind: str) -> None:
    """The scales of superblocks are multiplied out; where a definition rounds that to half, it may overflow."""
    fmt, semantics = FORMATS[kind], SEMANTICS[name]
    try:
        semantics.uses_sum(fmt)
    except ValueError:
        pytest.skip("not defined")
    blocks = any_blocks(fmt, 512, 3)
    finite = semantics.term.finite_scales(fmt, blocks)
    x = np.ones((1, fmt.block_size), np.float32)
    with np.errstate(all="ignore"):
        made = product(semantics, fmt, blocks, semantics.bytes_of(x)).exact[0]
    np.testing.assert_array_equal(np.isfinite(made), finite)
    assert finite.all() == (name != "mmq" or kind not in ("Q2_K", "Q4_K", "Q5_K"))
