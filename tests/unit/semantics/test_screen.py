"""Products by matrix multiplication against those that walk through every term: what passes by them passes, and what
does not is judged by the others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from gguf_verify.formats.block import BlockFormat
from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.rungs.generated_inputs import any_bits, any_blocks
from gguf_verify.semantics import screen
from gguf_verify.semantics.declared import DECLARABLE, composed, declared
from gguf_verify.semantics.definition import Semantics, quantized_inside
from gguf_verify.semantics.definitions import ENCODINGS, SEMANTICS, TERMS
from gguf_verify.semantics.exact import product
from gguf_verify.semantics.gates import _LOOKED_AT, judge
from gguf_verify.semantics.order import ASCENDING, Order
from gguf_verify.semantics.screen import screened
from gguf_verify.semantics.terms import codes

N, M, BLOCKS = 24, 3, 4


@pytest.fixture(autouse=True)
def all_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of any size are screened."""
    monkeypatch.setattr(screen, "FEW", 0)
    monkeypatch.setattr(screen, "SMALL", 0)


def definitions() -> Iterator[Semantics]:
    yield from DECLARABLE.values()
    named = {(s.encoding.name, s.term.name) for s in DECLARABLE.values()}
    for encoding in ENCODINGS.values():
        for term in TERMS.values():
            if encoding.quantizes != term.of_values and (encoding.name, term.name) not in named:
                yield composed(encoding, term)
    yield quantized_inside(SEMANTICS["q8_1"])


def defined(semantics: Semantics, fmt: BlockFormat) -> bool:
    try:
        (semantics.inside or semantics).uses_sum(fmt)
    except ValueError:
        return False
    return True


PAIRS = [
    pytest.param(s, [f for f in FORMATS.values() if defined(s, f)], id=s.name + (" inside" if s.inside else ""))
    for s in definitions()
]  # fmt: skip


def operands(semantics: Semantics, fmt: BlockFormat, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    blocks = -(-BLOCKS * 256 // fmt.block_size)
    x = np.random.default_rng(seed).standard_normal((M, blocks * fmt.block_size)).astype(np.float32)
    x[0, ::97] *= 30
    return any_blocks(fmt, N * blocks, seed).reshape(N, -1), semantics.bytes_of(x)


@pytest.mark.parametrize(("semantics", "formats"), PAIRS)
def test_bound_and_spread_are_never_larger(semantics: Semantics, formats: list[BlockFormat]) -> None:
    for fmt in formats:
        w, x = operands(semantics, fmt)
        inner = semantics.inside or semantics
        order = ASCENDING if inner.order_known else None
        whole, quick = product(semantics, fmt, w, x, order), screened(semantics, fmt, w, x, order)
        if quick.of_rows is None:
            assert np.array_equal(quick.exact, whole.exact, equal_nan=True)
            continue
        finite = np.isfinite(whole.exact)
        assert (np.isfinite(quick.exact) == finite).all(), fmt.name
        (o, bound, spread), (oo, most, spreads) = (
            (of.exact[finite], of.bound[finite], of.spread[finite]) for of in (quick, whole)
        )
        assert (np.abs(o - oo) <= 1e-5 * most).all(), fmt.name
        assert (bound <= most).all(), fmt.name
        assert (spread <= spreads).all(), fmt.name
        assert (bound >= most * (1 - 1e-5)).all(), fmt.name
        assert (spread >= spreads / 30).all(), fmt.name
        if order is not None:
            assert quick.ordered is not None
            assert whole.ordered is not None
            assert (quick.ordered.view(np.uint32) == whole.ordered.view(np.uint32)).all(), fmt.name


@pytest.mark.parametrize(("semantics", "formats"), PAIRS)
def test_judged_alike(semantics: Semantics, formats: list[BlockFormat]) -> None:
    """Also close to both limits, where numbers are missing, and where weights or activations are no numbers."""
    rng = np.random.default_rng(1)
    for i, fmt in enumerate(formats):
        w, x = operands(semantics, fmt, i)
        w[1] = any_bits(fmt, w[1].size // fmt.block_bytes, i).reshape(-1)
        # lane orders are the same for both, and take longer than all others
        whole, quick = (replace(of(semantics, fmt, w, x), lanes=None) for of in (product, screened))
        with np.errstate(all="ignore"):
            limit = np.minimum(whole.bound, whole.limit * whole.spread)
            share = rng.choice([0, 0.01, 0.2, 0.6, 0.999, 1.001, 3], limit.shape)
            y = (whole.exact + rng.choice([-1, 1], limit.shape) * share * limit).astype(np.float32)
        y[2, 5], y[1, 6], y[0, 7] = np.nan, np.inf, 0
        by_whole, by_quick = judge(y, whole), judge(y, quick)
        assert (by_whole.bad == by_quick.bad).all(), fmt.name
        assert by_quick.utilisation == pytest.approx(by_whole.utilisation, rel=1e-4)
        assert by_quick.score == by_whole.score
        assert by_quick.product.of_rows is None
        right = np.where(by_whole.bad, 0, y)
        assert (judge(right, whole).bad == judge(right, quick).bad).all(), fmt.name


@pytest.mark.parametrize("seed", range(3))
def test_the_bits_of_a_declared_order_are_judged(seed: int) -> None:
    semantics, fmt = SEMANTICS["q8_1"], FORMATS["Q5_1"]
    w, x = operands(semantics, fmt, seed)
    quick = screened(semantics, fmt, w, x, ASCENDING)
    assert quick.ordered is not None
    y = quick.ordered.copy()
    assert judge(y, quick).passed
    y[1, 4] = np.nextafter(y[1, 4], np.float32(np.inf))
    assert np.argwhere(judge(y, quick).bad).tolist() == [[1, 4]]


@pytest.mark.parametrize("order", [ASCENDING, Order(96)], ids=str)
@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K"])
def test_the_bits_do_not_depend_on_how_many_terms_are_taken_together(
    kind: str, order: Order, monkeypatch: pytest.MonkeyPatch
) -> None:
    semantics, fmt = SEMANTICS["q8_1"], FORMATS[kind]
    w, x = operands(semantics, fmt)
    together = product(semantics, fmt, w, x, order).ordered
    for outputs in (1, 3):
        monkeypatch.setattr(codes, "_ELEMENTS", outputs * N * M)
        made = screened(semantics, fmt, w, x, order).ordered
        assert together is not None
        assert made is not None
        assert (made.view(np.uint32) == together.view(np.uint32)).all()


def test_only_what_may_be_wrong_is_computed_whole() -> None:
    semantics, fmt = SEMANTICS["q8_1"], FORMATS["Q4_0"]
    w, x = operands(semantics, fmt)
    quick, asked = screened(semantics, fmt, w, x), list[int]()
    assert quick.of_rows is not None
    of_rows = quick.of_rows

    def counted(rows):
        asked.extend(rows.tolist())
        return of_rows(rows)

    y = quick.exact.astype(np.float32)
    y[1, 3] += np.float32(2 * quick.bound[1, 3])
    object.__setattr__(quick, "of_rows", counted)
    judged = judge(y, quick)
    assert np.argwhere(judged.bad).tolist() == [[1, 3]]
    assert 3 in asked
    assert len(asked) <= _LOOKED_AT + 1 < N


def test_of_some_tokens() -> None:
    semantics, fmt = SEMANTICS["q8_1"], FORMATS["Q8_0"]
    w, x = operands(semantics, fmt)
    two = screened(semantics, fmt, w, x).rows(np.array([2, 0]))
    whole = product(semantics, fmt, w, x)
    assert two.of_rows is not None
    some = np.array([1, 5])
    assert (two.of_rows(some).spread == whole.spread[[2, 0]][:, some]).all()
    assert (two.settled(some).spread[:, some] == whole.spread[[2, 0]][:, some]).all()
    assert np.isinf(two.settled(some).spread[:, 2:5]).all()


@pytest.mark.parametrize(
    "said",
    [
        {"name": "q8_1", "output": "float16"},
        {"name": "q8_1", "accumulates": "float16"},
        {"name": "q8_1", "epilogue": ["bias"]},
        {"name": "q8_1_half"},
        {"name": "f32_apart"},
        {"activations": "float16", "term": "half_values"},
    ],
    ids=str,
)
def test_what_is_not_bilinear_is_computed_whole(said: dict) -> None:
    semantics, fmt = declared(**said), FORMATS["Q4_1"]
    w, x = operands(semantics, fmt)
    if semantics.epilogue is None:
        assert screened(semantics, fmt, w, x).of_rows is None


@pytest.mark.parametrize("limit", ["FEW", "SMALL"])
def test_small_products_are_computed_whole(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    semantics, fmt = SEMANTICS["q8_1"], FORMATS["Q4_0"]
    w, x = operands(semantics, fmt)
    terms = len(w) * len(x) * w.shape[1] // fmt.block_bytes
    for least in (0, 1):
        monkeypatch.setattr(screen, limit, {"FEW": len(x), "SMALL": terms}[limit] + least)
        assert (screened(semantics, fmt, w, x).of_rows is None) == bool(least)


@pytest.mark.filterwarnings("error")
def test_activations_without_a_finite_scale_fail_without_a_warning() -> None:
    semantics, fmt = SEMANTICS["q8_1"], FORMATS["Q4_0"]
    w, x = operands(semantics, fmt)
    x.view(np.float16)[1, 0] = np.inf  # the scale of token 1's first block
    quick, whole = screened(semantics, fmt, w, x), product(semantics, fmt, w, x)
    y = np.where(np.isfinite(whole.exact), whole.exact, 0).astype(np.float32)
    bad = judge(y, quick).bad
    assert bad[1].all()
    assert not bad[[0, 2]].any()
    assert (bad == judge(y, whole).bad).all()
