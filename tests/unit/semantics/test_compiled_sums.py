"""Sums in a declared order that compiled code adds: NumPy's bits, or NumPy itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.hosts import compiled_sums
from gguf_verify.semantics.definition import Semantics
from gguf_verify.semantics.definitions.mmq import MMQ
from gguf_verify.semantics.definitions.q8_1 import Q8_1_RAW
from gguf_verify.semantics.definitions.q8_1_half import Q8_1_HALF
from gguf_verify.semantics.exact import each_block, product
from gguf_verify.semantics.order import ASCENDING, Order
from gguf_verify.semantics.terms import compiled
from gguf_verify.support import arrays
from gguf_verify.support.errors import EnvironmentFault
from tests.support.kernel_inputs import random_weights

K, M, N = 512, 9, 67


@pytest.fixture(autouse=True)
def offered(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Callable | None], None]]:
    """Offers a function, or NumPy's with None; at first the compiled ones, each call of which is checked."""
    monkeypatch.setattr(compiled, "_EACH", 1)
    monkeypatch.setattr(compiled, "_FEW", 1)
    monkeypatch.setattr(arrays, "_SUMS", [])

    def offer(add: Callable | None) -> None:
        arrays.offer_sums(lambda: add)

    compiled_sums.offer()
    yield offer
    arrays.compiled_sums.cache_clear()


def bits(semantics: Semantics, name: str, order: Order = ASCENDING, scale: float = 1.0) -> np.ndarray:
    fmt, rng = FORMATS[name], np.random.default_rng(5)
    w = random_weights(rng, fmt, N, K)
    x = semantics.bytes_of((scale * rng.standard_normal((M, K))).astype(np.float32))
    with np.errstate(all="ignore"):
        made = product(semantics, fmt, w, x, order)
    assert made.ordered is not None
    return made.ordered.view(np.uint32)


# a second addend: none, inside the term, m·s, m·d·Σq; terms of 32 and of 16 values
@pytest.mark.parametrize("name", ["Q8_0", "Q4_0", "Q5_1", "Q4_K", "Q6_K", "Q2_K"])
@pytest.mark.parametrize("order", [ASCENDING, Order(256)], ids=str)
def test_compiled_code_gives_the_bits_of_numpy(name: str, order: Order, offered: Callable, sums_added: list) -> None:
    made = bits(Q8_1_RAW, name, order)
    assert sums_added, "NumPy added them"
    offered(None)
    assert np.array_equal(made, bits(Q8_1_RAW, name, order))


@pytest.mark.parametrize("m", [1, 9])
def test_numpy_adds_blocks_side_by_side(m: int, offered: Callable) -> None:
    fmt, rng = FORMATS["Q4_K"], np.random.default_rng(6)
    w = random_weights(rng, fmt, N, 2 * K)
    x = Q8_1_RAW.bytes_of(rng.standard_normal((m, 2 * K)).astype(np.float32))

    def made() -> list[np.ndarray | None]:
        return [of.ordered for of in each_block(Q8_1_RAW, fmt, w, x, ASCENDING) or ()]

    ours = made()
    offered(None)
    assert len(ours) == 4
    assert all(np.array_equal(*pair) for pair in zip(ours, made(), strict=True))


def test_arrays_of_other_shapes_are_refused() -> None:
    add, of = arrays.compiled_sums(), lambda *shape: np.ones(shape, np.float32)
    with pytest.raises(ValueError, match="other numbers"):
        add(of(2, 3, 40), of(2, 3), of(2, 41), None, None, of(3, 40))


@pytest.fixture
def sums_added(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes of the sums that compiled code added."""
    seen: list[tuple[int, ...]] = []
    added = compiled.Compiled.__call__

    def spy(self, fmt, d, d_a, second, sums, acc):
        seen.append(sums.shape)
        return added(self, fmt, d, d_a, second, sums, acc)

    monkeypatch.setattr(compiled.Compiled, "__call__", spy)
    return seen


def test_numpy_adds_what_is_rounded_to_half_or_not_finite(offered: Callable, sums_added: list) -> None:
    halves = bits(Q8_1_HALF, "Q4_1")
    assert not sums_added
    infinite = bits(Q8_1_RAW, "Q4_1", scale=1e5)  # s overflows: infinities, and NaN where they cancel
    assert not np.isfinite(infinite.view(np.float32)).all()
    offered(None)
    assert np.array_equal(halves, bits(Q8_1_HALF, "Q4_1"))
    assert np.array_equal(infinite, bits(Q8_1_RAW, "Q4_1", scale=1e5))


def test_a_wrong_bit_is_noticed(offered: Callable) -> None:
    right = arrays.compiled_sums()

    def off_by_an_ulp(sums, d_a, d_w, z, m_w, acc) -> None:
        right(sums, d_a, d_w, z, m_w, acc)
        acc.view(np.uint32)[:] += 1

    offered(off_by_an_ulp)
    with pytest.raises(EnvironmentFault, match="differ from NumPy's"):
        bits(MMQ, "Q8_0")


def test_numpy_adds_them_without_a_compiler(monkeypatch: pytest.MonkeyPatch, sums_added: list) -> None:
    expected = bits(Q8_1_RAW, "Q5_1")
    assert sums_added
    sums_added.clear()

    def fails(*_: object, **_named: object) -> None:
        raise EnvironmentFault("no compiler")

    monkeypatch.setattr(compiled_sums, "shared_library", fails)
    arrays.compiled_sums.cache_clear()
    assert np.array_equal(expected, bits(Q8_1_RAW, "Q5_1"))
    assert not sums_added
