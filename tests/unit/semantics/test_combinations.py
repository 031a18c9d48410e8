"""Random combinations of rows: right outputs are not suspicious, and wrong ones are as promised."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gguf_verify.formats.block import BlockFormat
from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.rungs.generated_inputs import drawn
from gguf_verify.semantics import combinations
from gguf_verify.semantics.combinations import COUNT, FALSE, LIMIT, MISSED, Combinations, Noise
from gguf_verify.semantics.definition import Semantics, quantized_inside
from gguf_verify.semantics.definitions import SEMANTICS
from gguf_verify.semantics.exact import product
from gguf_verify.semantics.order import ASCENDING
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


def made(kind: str, name: str) -> tuple[Combinations, np.ndarray, np.ndarray, Noise]:
    """The combinations, a right output float32[M, N], the exact one of the combinations, and its noise."""
    fmt, semantics = FORMATS[kind], DEFINITIONS[name]
    w = real_weights(fmt, N, K)
    x = semantics.bytes_of(drawn((M, K), np.ones((1, 1), np.float32), 1))
    right = product(semantics, fmt, w, x)
    combined = Combinations(fmt, w, 7, 2)
    expected, y = combined.expected(semantics, x), right.exact.astype(np.float32)
    return combined, y, expected, combined.noise(np.arange(N), y, right)


def without_pooling(noise: Noise) -> Noise:
    """So that single combinations decide."""
    return replace(noise, limit=np.inf)


@pytest.mark.parametrize(("kind", "name"), PAIRS)
def test_right_outputs_and_one_wrong_one(kind: str, name: str) -> None:
    """A single wrong output is found whatever the signs, from the size on that is promised."""
    combined, y, expected, noise = made(kind, name)
    assert not combined.suspicious(y, expected, noise)
    rng = np.random.default_rng(3)
    for n in rng.integers(0, N, 8):
        m = int(rng.integers(0, M))
        wrong = y.copy()
        wrong[m, n] += np.float32(2.01 * LIMIT * np.sqrt(noise.variance[m]) / combined.inverse[n])
        assert combined.suspicious(wrong, expected, without_pooling(noise))


def test_the_combinations_are_those_of_the_exact_product() -> None:
    fmt, semantics = FORMATS["Q4_1"], SEMANTICS["q8_1"]
    w, x = real_weights(fmt, N, K), semantics.bytes_of(drawn((M, K), np.ones((1, 1), np.float32), 1))
    combined = Combinations(fmt, w, 7)
    assert set(np.unique(combined.signs)) == {-1.0, 1.0}
    assert combined.signs.shape == (COUNT, N)
    expected = combined.expected(semantics, x)
    whole = (product(semantics, fmt, w, x).exact * combined.inverse) @ combined.signs.T
    np.testing.assert_allclose(expected, whole, rtol=1e-10, atol=1e-9 * np.abs(whole).max())


def test_definitions_share_what_is_decoded() -> None:
    """An offset that one takes off the codes and another multiplies by the sums: the same weights."""
    fmt = FORMATS["Q4_0"]
    w, values = real_weights(fmt, N, K), drawn((M, K), np.ones((1, 1), np.float32), 1)
    both = Combinations(fmt, w, 7)
    for name in ("q8_1", "mmq", "q8_0_cpu"):
        x = SEMANTICS[name].bytes_of(values)
        expected = both.expected(SEMANTICS[name], x)
        whole = (product(SEMANTICS[name], fmt, w, x).exact * both.inverse) @ both.signs.T
        np.testing.assert_allclose(expected, whole, rtol=1e-10, atol=1e-9 * np.abs(whole).max())


def test_errors_that_cancel_in_sums_do_not_cancel_here() -> None:
    """Two rows that are exchanged, errors of both signs, and all rows wrong by little."""
    combined, y, expected, noise = made("Q4_0", "q8_1")
    swapped = y.copy()
    swapped[:, [10, 500]] = swapped[:, [500, 10]]
    assert combined.suspicious(swapped, expected, without_pooling(noise))
    rng = np.random.default_rng(4)
    for size in (0.01, 0.2, 1.0, 30.0):  # the root of the sum of squares is four limits, of any share of the rows
        e = rng.standard_normal((M, N)) * (rng.random((M, N)) < min(1.0, size))
        e *= (4.0 * LIMIT * np.sqrt(noise.variance) / np.sqrt((e**2).sum(axis=1)))[:, None]
        wrong = (y + e / combined.inverse).astype(np.float32)
        assert combined.suspicious(wrong, expected, without_pooling(noise))
    assert MISSED < 1e-5


@pytest.mark.parametrize(("kind", "tokens"), [("Q8_0", 8), ("Q4_0", 8), ("Q4_0", 64), ("Q5_1", 8)])
def test_a_scale_that_is_off_by_one_ulp_is_seen_in_all_tokens_together(kind: str, tokens: int) -> None:
    """Every one of forty, in rows of 4096 that were not sampled, of any size; single combinations do not show it."""
    fmt, semantics, rng = FORMATS[kind], SEMANTICS["q8_1"], np.random.default_rng(5)
    rows, sampled = 1024, np.r_[0:64, 960:1024]
    values = rng.standard_normal((rows, 4096)) * np.exp(rng.standard_normal((rows, 1)))
    w = fmt.encode(values.astype(np.float32).reshape(rows, -1, fmt.block_size)).reshape(rows, -1)
    x = semantics.bytes_of(rng.standard_normal((tokens, 4096)).astype(np.float32))
    y = product(semantics, fmt, w, x, ASCENDING).ordered
    assert y is not None
    combined = Combinations(fmt, w, 3)
    expected = combined.expected(semantics, x)
    noise = combined.noise(sampled, y[:, sampled], product(semantics, fmt, w[sampled], x))
    assert not combined.suspicious(y, expected, noise)
    alone = 0
    for _ in range(40):
        row, block = int(rng.integers(64, 960)), int(rng.integers(4096 // fmt.block_size))
        wrong = w[row : row + 1].copy()
        wrong[0, block * fmt.block_bytes + fmt.field_offset("d")] ^= 1  # the lowest bit of the scale
        with_fault = y.copy()
        with_fault[:, row] = product(semantics, fmt, wrong, x, ASCENDING).ordered[:, 0]
        assert combined.suspicious(with_fault, expected, noise)
        alone += combined.suspicious(with_fault, expected, without_pooling(noise))
    assert alone < 40


@pytest.mark.parametrize("tokens", [1, 2, 30])
@pytest.mark.parametrize("equal", [False, True])
def test_the_limit_holds_for_tokens_of_equal_errors(tokens: int, equal: bool) -> None:
    """If all tokens have the same errors, their mean varies as one token's; otherwise less, and the limit is lower."""
    rng = np.random.default_rng((tokens, equal))
    y = rng.standard_normal((tokens, 2048))
    e = 1e-7 * y  # so that the sampled rows show the others' rounding without an error of their own
    y, e = (np.broadcast_to(of[:1] if equal else of, y.shape) for of in (y, e))
    noise = Noise.of(y[:, :256], e[:, :256], np.ones((tokens, 256)), 2048)
    largest = 0.0
    for _ in range(100):
        squares = ((e @ (1.0 - 2 * rng.integers(0, 2, (2048, COUNT)))) ** 2).mean(axis=1)
        largest = max(largest, float((squares / (noise.share * (y**2).sum(axis=1))).mean()))
    assert FALSE * 100 < 1e-3
    assert largest < noise.limit < (1.5 if tokens == 30 and not equal else 2.5)


def test_groups_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many rows are divided, and an error that the rounding of all of them would hide is found."""
    monkeypatch.setattr(combinations, "GROUP", 100)
    combined, y, expected, noise = made("Q4_0", "q8_1")
    assert [rows.start for rows in combined.groups] == [0, 91, 182, 274, 365, 457, 548]
    assert combined.groups[-1].stop == N
    assert expected.shape == (M, 7 * COUNT)
    assert not combined.suspicious(y, expected, noise)
    y[1, 300] += np.float32(2.2 * LIMIT * np.sqrt(noise.variance[1] * combined.share) / combined.inverse[300])
    assert combined.suspicious(y, expected, without_pooling(noise))


def test_what_is_not_finite_is_suspicious() -> None:
    combined, y, expected, noise = made("Q4_0", "q8_1")
    for variance in (np.zeros(M), np.full(M, np.inf)):
        assert combined.suspicious(y, expected, replace(noise, variance=variance))
    y[2, 77] = np.nan
    assert combined.suspicious(y, expected, without_pooling(noise))


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
    y = exact.exact.astype(np.float32)
    noise = combined.noise(np.arange(N), y, exact)
    assert not combined.suspicious(y, there, noise)
    y[1, 3] += np.float32(2.1 * LIMIT * np.sqrt(noise.variance[1]) / combined.inverse[3])
    assert combined.suspicious(y, there, noise)


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
    noise = Noise(np.ones(M), np.ones(M), 1.0)
    with pytest.raises(EnvironmentFault, match=f"other numbers than NumPy: combinations of {wrong}"):
        _ = combined.suspicious(y, expected, noise) if wrong == "outputs" else combined.expected(semantics, x)
