"""Random combinations of rows: right outputs are not suspicious, and wrong ones are as promised."""

from __future__ import annotations

import numpy as np
import pytest

from gguf_verify.formats.block import BlockFormat
from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.rungs.generated_inputs import drawn
from gguf_verify.semantics import combinations
from gguf_verify.semantics.combinations import COUNT, LIMIT, MISSED, Combinations
from gguf_verify.semantics.definition import Semantics, quantized_inside
from gguf_verify.semantics.definitions import SEMANTICS
from gguf_verify.semantics.exact import product
from gguf_verify.semantics.screen import bilinear
from gguf_verify.support.errors import EnvironmentFault
from tests.support.exact_products import real_weights
from tests.support.strict_arrays import CardArray, StrictDevice

N, M, K = 640, 4, 512
DEFINITIONS = {**SEMANTICS, "q8_1 inside": quantized_inside(SEMANTICS["q8_1"])}
KINDS = ["Q4_0", "Q4_1", "Q8_0", "Q2_K", "Q4_K", "Q6_K", "IQ3_S", "MXFP4"]


def of(semantics: Semantics, fmt: BlockFormat) -> bool:
    try:
        (semantics.inside or semantics).uses_sum(fmt)
    except ValueError:
        return False
    return bilinear(semantics, fmt)


PAIRS = [
    (kind, name) for kind in KINDS for name, s in DEFINITIONS.items() if not s.of_elements and of(s, FORMATS[kind])
]


def made(kind: str, name: str) -> tuple[Combinations, np.ndarray, np.ndarray, np.ndarray]:
    """The combinations, a right output float32[M, N], the exact one of the combinations, and its variance."""
    fmt, semantics = FORMATS[kind], DEFINITIONS[name]
    w = real_weights(fmt, N, K)
    x = semantics.bytes_of(drawn((M, K), np.ones((1, 1), np.float32), 1))
    right = product(semantics, fmt, w, x)
    combined = Combinations(fmt, w, 7, 2)
    return combined, right.exact.astype(np.float32), combined.expected(semantics, x), (right.spread**2).sum(axis=1)


@pytest.mark.parametrize(("kind", "name"), PAIRS)
def test_right_outputs_and_one_wrong_one(kind: str, name: str) -> None:
    """A single wrong output is found whatever the signs, from the size on that is promised."""
    combined, y, expected, variance = made(kind, name)
    assert not combined.suspicious(y, expected, variance).any()
    rng = np.random.default_rng(3)
    for n in rng.integers(0, N, 8):
        m = int(rng.integers(0, M))
        wrong = y.copy()
        wrong[m, n] += np.float32(2.01 * LIMIT * np.sqrt(variance[m]))
        assert np.flatnonzero(combined.suspicious(wrong, expected, variance)).tolist() == [m]


def test_the_combinations_are_those_of_the_exact_product() -> None:
    fmt, semantics = FORMATS["Q4_1"], SEMANTICS["q8_1"]
    w, x = real_weights(fmt, N, K), semantics.bytes_of(drawn((M, K), np.ones((1, 1), np.float32), 1))
    combined = Combinations(fmt, w, 7)
    assert set(np.unique(combined.signs)) == {-1.0, 1.0}
    assert combined.signs.shape == (COUNT, N)
    whole = product(semantics, fmt, w, x).exact @ combined.signs.T
    np.testing.assert_allclose(combined.expected(semantics, x), whole, rtol=1e-10, atol=1e-9 * np.abs(whole).max())


def test_definitions_share_what_is_decoded() -> None:
    """An offset that one takes off the codes and another multiplies by the sums: the same weights."""
    fmt = FORMATS["Q4_0"]
    w, values = real_weights(fmt, N, K), drawn((M, K), np.ones((1, 1), np.float32), 1)
    both = Combinations(fmt, w, 7)
    for name in ("q8_1", "mmq", "q8_0_cpu"):
        x = SEMANTICS[name].bytes_of(values)
        alone = Combinations(fmt, w, 7).expected(SEMANTICS[name], x)
        np.testing.assert_allclose(
            both.expected(SEMANTICS[name], x), alone, rtol=1e-10, atol=1e-10 * np.abs(alone).max()
        )


def test_errors_that_cancel_in_sums_do_not_cancel_here() -> None:
    """Two rows that are exchanged, errors of both signs, and all rows wrong by little."""
    combined, y, expected, variance = made("Q4_0", "q8_1")
    swapped = y.copy()
    swapped[:, [10, 500]] = swapped[:, [500, 10]]
    assert combined.suspicious(swapped, expected, variance).all()
    rng = np.random.default_rng(4)
    for size in (0.01, 0.2, 1.0, 30.0):  # the root of the sum of squares is four limits, of any share of the rows
        e = rng.standard_normal((M, N)) * (rng.random((M, N)) < min(1.0, size))
        e *= (4.0 * LIMIT * np.sqrt(variance) / np.sqrt((e**2).sum(axis=1)))[:, None]
        assert combined.suspicious((y + e).astype(np.float32), expected, variance).all()
    assert MISSED < 1e-5


def test_groups_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many rows are divided, and an error that the rounding of all of them would hide is found."""
    monkeypatch.setattr(combinations, "GROUP", 100)
    combined, y, expected, variance = made("Q4_0", "q8_1")
    assert [rows.start for rows in combined.groups] == [0, 91, 182, 274, 365, 457, 548]
    assert combined.groups[-1].stop == N
    assert expected.shape == (M, 7 * COUNT)
    assert not combined.suspicious(y, expected, variance).any()
    y[1, 300] += np.float32(2.2 * LIMIT * np.sqrt(variance[1] * combined.share))
    assert combined.suspicious(y, expected, variance).tolist() == [False, True, False, False]


def test_what_is_not_finite_is_suspicious() -> None:
    combined, y, expected, variance = made("Q4_0", "q8_1")
    y[2, 77] = np.nan
    assert combined.suspicious(y, expected, variance).tolist() == [False, False, True, False]
    assert combined.suspicious(y, expected, np.zeros(M)).all()
    assert combined.suspicious(y, expected, np.full(M, np.inf)).all()


@pytest.mark.parametrize(("kind", "name"), [("Q4_0", "q8_1"), ("Q4_K", "mmq"), ("Q6_K", "f32")])
def test_on_a_card(kind: str, name: str) -> None:
    """The same sums, on a double of a card, some rows at a time."""
    fmt, semantics = FORMATS[kind], DEFINITIONS[name]
    w, x = real_weights(fmt, N, K), semantics.bytes_of(drawn((M, K), np.ones((1, 1), np.float32), 1))
    here = Combinations(fmt, w, 7).expected(semantics, x)
    combined = Combinations(fmt, w, 7, device=StrictDevice(rows_at_a_time=100))
    there = combined.expected(semantics, x)
    np.testing.assert_allclose(there, here, rtol=1e-10, atol=1e-9 * np.abs(here).max())
    exact = product(semantics, fmt, w, x)
    y, variance = exact.exact.astype(np.float32), (exact.spread**2).sum(axis=1)
    assert not combined.suspicious(y, there, variance).any()
    y[1, 3] += np.float32(2.1 * LIMIT * np.sqrt(variance[1]))
    assert combined.suspicious(y, there, variance).tolist() == [m == 1 for m in range(M)]


@pytest.mark.parametrize("wrong", ["weights", "exact products", "outputs"])
def test_a_card_that_adds_up_otherwise_ends_the_run(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A card whose sums were all zero would find no output suspicious: NumPy adds up some of them, too."""
    fmt, semantics = FORMATS["Q4_1"], DEFINITIONS["q8_1"]
    w, x = real_weights(fmt, N, K), semantics.bytes_of(drawn((M, K), np.ones((1, 1), np.float32), 1))
    combined, y = Combinations(fmt, w, 7, device=StrictDevice()), np.ones((M, N), np.float32)
    if wrong == "outputs":
        expected = combined.expected(semantics, x)
    elif wrong == "exact products":
        combined.expected(semantics, x)
    ufunc_of = CardArray.__array_ufunc__

    def without_sums(self, ufunc, method, *inputs, **kwargs):
        made = ufunc_of(self, ufunc, method, *inputs, **kwargs)
        if ufunc is np.matmul:
            made.held[...] = 0
        return made

    monkeypatch.setattr(CardArray, "__array_ufunc__", without_sums)
    with pytest.raises(EnvironmentFault, match=f"other numbers than NumPy: combinations of {wrong}"):
        _ = combined.suspicious(y, expected, np.ones(M)) if wrong == "outputs" else combined.expected(semantics, x)
