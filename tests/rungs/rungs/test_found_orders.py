"""The order of summation of a kernel that declares none: found, and its bits compared; or refused with the reason."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gguf_verify.formats.block import BlockFormat
from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.kernels.domain import EVERYTHING
from gguf_verify.kernels.ladder import KERNELS
from gguf_verify.kernels.shipped import ShippedKernel
from gguf_verify.results.options import Options
from gguf_verify.results.products import OrderRecord
from gguf_verify.results.report import Report
from gguf_verify.results.rungs import RungResult
from gguf_verify.rungs.layers import order_probes, orders
from gguf_verify.rungs.layers.order_probes import Probes
from gguf_verify.rungs.layers.orders import probes_of
from gguf_verify.rungs.layers.sum_probes import SumProbes
from gguf_verify.rungs.layers.value_probes import ValueProbes
from gguf_verify.semantics.declared import IN_TENSOR_CORES
from gguf_verify.semantics.definition import Semantics
from gguf_verify.semantics.definitions import SEMANTICS
from gguf_verify.semantics.exact import product as exact_product
from gguf_verify.semantics.narrow import HALF
from gguf_verify.semantics.replay import FoundOrder, ValueArithmetic, compared, differing
from gguf_verify.semantics.rounding import add_rounded
from gguf_verify.semantics.summation import NoOrder, Rule
from gguf_verify.semantics.terms.values import VALUES
from gguf_verify.semantics.values import Activations
from gguf_verify.support.errors import KernelFault
from gguf_verify.verification import verify
from tests.support.exact_products import real_weights
from tests.support.narrow_sums import in_tensor_cores
from tests.support.tools import FIXTURES

Q8_1, F = SEMANTICS["q8_1"], np.float32
Terms = Iterator[list[np.ndarray]]
#: A row that is off by an ulp.
OFF = 7


class Adds:
    """A kernel whose outputs a function makes of each block's scales, integer sum, s and minimum."""

    order, adds_floats, domain = None, False, EVERYTHING

    def __init__(self, kind: str, added: Callable[[Terms], np.ndarray], parts: int = 1) -> None:
        self.fmt, self._added, self._parts = FORMATS[kind], added, parts

    def of(self, *_: object) -> Adds:
        return self

    def upload(self, _: object, w: np.ndarray) -> np.ndarray:
        return w

    def product(self, w: np.ndarray, x: np.ndarray) -> np.ndarray:
        blocks = w.reshape(len(w), -1, self.fmt.block_bytes)
        codes, of = (
            self.fmt.codes(blocks).astype(F),
            Activations.of(Q8_1.encoding, Q8_1.bytes_of(x), 32, blocks.shape[1]),
        )
        d, least = (v.reshape(len(w), -1).astype(F) for v in (self.fmt.scales(blocks), self.fmt.minima(blocks)))

        def terms() -> Terms:
            for b in range(blocks.shape[1]):
                spans = np.split(np.arange(32), self._parts)
                sums = [of.q[b][:, at] @ codes[:, b, at].T for at in spans]
                yield [d[:, b], of.d[b].astype(F), *sums, of.s[b].astype(F), least[:, b]]

        return self._added(terms())


def lanes(terms: Terms, count: int = 4) -> np.ndarray:
    sums: list[Any] = [F(0)] * count
    for b, (d, d_a, total, s, _) in enumerate(terms):
        sums[b % count] = sums[b % count] + d * (d_a * total - F(8) * s)
    return (sums[0] + sums[2]) + (sums[1] + sums[3])


def fused(terms: Terms) -> np.ndarray:
    total: Any = None
    for d, d_a, of_codes, s, least in terms:
        total = np.zeros_like(of_codes) if total is None else total
        total = add_rounded((d * d_a).astype(np.float64) * of_codes, total)
        total = total + least * s
    return np.asarray(total)


def backwards(terms: Terms) -> np.ndarray:
    total: Any = F(0)
    for d, d_a, of_codes, *_ in reversed(list(terms)):
        total = total + (d * d_a) * of_codes
    return np.asarray(total)


def rounded_twice(terms: Terms) -> np.ndarray:
    total: Any = F(0)
    for d, d_a, of_codes, s, _ in terms:
        total = total + ((d * d_a) * of_codes - d * (F(8) * s))
    return np.asarray(total)


def offset_apart(terms: Terms) -> np.ndarray:
    total: Any = F(0)
    for d, d_a, of_codes, s, _ in terms:
        total = (total + (d * d_a) * of_codes) - d * (F(8) * s)
    return np.asarray(total)


def with_minima(terms: Terms) -> np.ndarray:
    total: Any = F(0)
    for d, d_a, first, second, s, least in terms:
        total = total + (d * d_a) * first + least * s / F(2)
        total = total + (d * d_a) * second + least * s / F(2)
    return np.asarray(total)


def in_block(terms: Terms) -> np.ndarray:
    total: Any = F(0)
    for d, d_a, first, second, *_ in terms:
        total = total + (d * d_a) * first + (d * d_a) * second
    return np.asarray(total)


def in_double(terms: Terms) -> np.ndarray:
    return np.asarray(sum((d.astype(float) * d_a) * of_codes for d, d_a, of_codes, *_ in terms)).astype(F)


def probes(kernel: Any) -> Probes:
    return probes_of(kernel, Q8_1, kernel.fmt, real_weights(kernel.fmt, 64, 512), 1)


@pytest.mark.parametrize(
    ("kernel", "rule", "arithmetic"),
    [
        (Adds("Q4_0", lanes), Rule(4, joining="halves"), "1 integer sum for 32 values, each d·(d_a·Σ - 8·s), rounded"),
        (Adds("Q4_1", fused), Rule(), "1 integer sum and 1 of minima for 32 values, each (d·d_a)·(scale·Σ), fused"),
        (
            Adds("Q4_1", with_minima, 2),
            Rule(),
            "2 integer sums for 32 values, each (d·d_a)·(scale·Σ) + m·s/2, in turn, rounded",
        ),
        (Adds("Q4_0", rounded_twice), Rule(), "1 integer sum for 32 values, each (d·d_a)·Σ - d·8·s, rounded"),
        (
            Adds("Q4_0", offset_apart),
            Rule(),
            "1 integer sum for 32 values, each (d·d_a)·(scale·Σ) - d·8·s, in turn, rounded",
        ),
        (
            Adds("Q8_0", backwards),
            Rule(descending=True),
            "1 integer sum for 32 values, each (d·d_a)·(scale·Σ), rounded",
        ),
        (Adds("Q8_0", in_block, 2), Rule(), "2 integer sums for 32 values, each (d·d_a)·(scale·Σ), rounded"),
    ],
)
@pytest.mark.parametrize(("tokens", "columns"), [(3, 288), (1, 4096)])
def test_orders_are_found(kernel: Any, rule: Rule, arithmetic: str, tokens: int, columns: int) -> None:
    """Of short rows by themselves, and of long ones by their rule."""
    found = probes(kernel).order(tokens, 40, columns)
    assert isinstance(found, FoundOrder)
    assert (found.rule, found.arithmetic.words) == (rule, arithmetic)


def test_sums_of_codes_in_double_have_no_order() -> None:
    with pytest.raises(NoOrder, match="does not add two terms at a time in float32"):
        probes(Adds("Q4_1", in_double)).order(3, 40, 288)


def pairs_in_block(terms: Terms) -> np.ndarray:
    """Four integer sums of each block are added in pairs, and then to the row's sum."""
    total: Any = F(0)
    for d, d_a, *sums, _, _ in terms:
        first, second, third, fourth = ((d * d_a) * of for of in sums)
        total = total + ((first + second) + (third + fourth))
    return np.asarray(total)


class OffInSomeTokens(Adds):
    """A kernel of which outputs of a row are off by an ulp: of each third token, or if no activation is negative."""

    def __init__(self, positive: bool) -> None:
        super().__init__("Q4_0", lanes)
        self._positive = positive

    def product(self, w: np.ndarray, x: np.ndarray) -> np.ndarray:
        y = super().product(w, x).astype(F)
        off = (x >= 0).all(axis=1) & (x > 0).any(axis=1) if self._positive else np.arange(len(x)) % 3 == 1
        y[off, OFF] = np.nextafter(y[off, OFF], F(np.inf))
        return y


@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize("columns", [288, 4096])
def test_a_row_that_is_off_in_some_tokens_is_left_aside(positive: bool, columns: int) -> None:
    """Whichever probes see it; the order is that of the other rows."""
    found, without = (
        probes(kernel).order(3, 64, columns) for kernel in (OffInSomeTokens(positive), Adds("Q4_0", lanes))
    )
    assert found == replace(without, aside=(OFF,))
    assert f"without row {OFF}, where weights give other bits than in other rows" in found.words


def test_a_row_that_is_left_aside_is_not_compared() -> None:
    kernel, fmt = OffInSomeTokens(False), FORMATS["Q4_0"]
    found = probes(kernel).order(3, 64, 288)
    w, x = real_weights(fmt, 64, 288), np.random.default_rng(5).normal(size=(3, 288)).astype(F)
    y = kernel.product(w, x)
    assert not compared(found, Q8_1, fmt, w, Q8_1.bytes_of(x), y, lambda rows: iter(()))[1].any()
    y[0, OFF + 1] = np.nextafter(y[0, OFF + 1], F(np.inf))
    wrong = compared(found, Q8_1, fmt, w, Q8_1.bytes_of(x), y, lambda rows: iter(()))[1]
    assert np.argwhere(wrong).tolist() == [[0, OFF + 1]]


def single_codes(terms: Terms) -> np.ndarray:
    total: Any = F(0)
    for d, d_a, *products, _, _ in terms:
        for product in products:
            total = total + (d * d_a) * product
    return np.asarray(total)


class SomeRowsWithSingleCodes(Adds):
    """A quarter of the rows are computed by another loop."""

    def product(self, w: np.ndarray, x: np.ndarray) -> np.ndarray:
        y = Adds("Q8_0", in_block, 2).product(w, x)
        y[:, ::4] = super().product(w, x)[:, ::4]
        return y


@pytest.mark.parametrize(
    ("kernel", "why"),
    [
        (Adds("Q8_0", single_codes, 32), "single codes, not integer sums of several$"),
        (SomeRowsWithSingleCodes("Q8_0", single_codes, 32), r"or rows are faulty: outputs of \d of 64 rows show it"),
    ],
)
def test_the_reason_says_how_many_rows_add_single_codes(kernel: Adds, why: str) -> None:
    with pytest.raises(NoOrder, match=why):
        probes(kernel).order(3, 64, 64)


def test_a_tree_that_only_the_product_shows_is_no_mismatch() -> None:
    """The order within a block shows in no probe of single summands: other trees are tried for the product, too."""
    kernel, fmt = Adds("Q8_0", pairs_in_block, 4), FORMATS["Q8_0"]
    found = probes(kernel).order(3, 64, 288)
    assert len(found.also) == 2
    w, x = real_weights(fmt, 64, 288), np.random.default_rng(5).normal(size=(3, 288)).astype(F)
    operands = Q8_1, fmt, w, Q8_1.bytes_of(x), kernel.product(w, x), lambda rows: iter(())
    for other in found.also:
        assert compared(replace(other, also=()), *operands)[1].any()
        order, wrong = compared(replace(other, also=(found,)), *operands)
        assert order.tree == found.tree
        assert not wrong.any()


class AddsValues:
    """A kernel whose outputs a function makes of the products of decoded weights and activations, float64[K, M, N]."""

    order, adds_floats, domain = None, False, EVERYTHING

    def __init__(self, kind: str, added: Callable[[np.ndarray], np.ndarray]) -> None:
        self.fmt, self._added = FORMATS[kind], added

    def of(self, *_: object) -> AddsValues:
        return self

    def upload(self, _: object, w: np.ndarray) -> np.ndarray:
        return w

    def product(self, w: np.ndarray, x: np.ndarray) -> np.ndarray:
        values = self.fmt.decode(w.reshape(len(w), -1, self.fmt.block_bytes)).reshape(len(w), -1).astype(np.float64)
        return self._added(x.T[:, :, None].astype(np.float64) * values.T[:, None, :])


def ascending(products: np.ndarray) -> np.ndarray:
    total = np.zeros(products.shape[1:], F)
    for product in products:
        total = add_rounded(product, total)
    return total


def warp(products: np.ndarray) -> np.ndarray:
    """32 lanes of 8 values in turn, as loads of 16 bytes of halves give them, reduced by shuffles."""
    sums = np.zeros((32, *products.shape[1:]), F)
    for k, product in enumerate(products):
        sums[k // 8 % 32] += product.astype(F)
    while len(sums) > 1:
        sums = sums[: len(sums) // 2] + sums[len(sums) // 2 :]
    return np.asarray(sums[0])


def threads(products: np.ndarray) -> np.ndarray:
    """64 lanes of 16 values: rows of 512 values do not fill them."""
    sums = np.zeros((64, *products.shape[1:]), F)
    for k, product in enumerate(products):
        sums[k // 16 % 64] = add_rounded(product, sums[k // 16 % 64])
    total = sums[0]
    for other in sums[1:]:
        total = total + other
    return np.asarray(total)


def by_blocks(products: np.ndarray) -> np.ndarray:
    total = np.zeros(products.shape[1:], F)
    for start in range(0, len(products), 32):
        block = np.zeros(products.shape[1:], F)
        for product in products[start : start + 32]:
            block += product.astype(F)
        total += block
    return total


def of_values(kernel: Any) -> Probes:
    return probes_of(kernel, SEMANTICS["f32"], kernel.fmt, real_weights(kernel.fmt, 64, 512), 1)


@pytest.mark.parametrize(
    ("kind", "added", "words"),
    [
        ("Q4_K", ascending, "ascending k, of a·w, fused"),
        ("Q6_K", warp, "32 lanes, each in groups of 8 in ascending k, then halves onto each other, of a·w, rounded"),
        ("Q8_0", threads, "64 lanes, each in groups of 16 in ascending k, then in ascending order, of a·w, fused"),
        ("Q4_0", by_blocks, "groups of 32 in ascending k; each group by itself first, of a·w, rounded"),
    ],
)
def test_orders_of_values_are_found(kind: str, added: Callable[[np.ndarray], np.ndarray], words: str) -> None:
    """Of types with superblocks, too, and of lanes inside a block."""
    assert of_values(AddsValues(kind, added)).order(40, 3, 2048).words == words


def test_the_number_of_products_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order_probes, "MOST_PRODUCTS", 40)
    of = probes(Adds("Q4_0", lanes))
    with pytest.raises(NoOrder, match="it is not found by 40 products"):
        [of.order(1, 64, 512) for _ in range(9)]


def test_sums_of_values_in_double_have_no_order() -> None:
    kernel = AddsValues("Q4_0", lambda products: products.sum(axis=0).astype(F))
    with pytest.raises(NoOrder, match="no known arithmetic of a term gives the bits"):
        of_values(kernel).order(40, 3, 256)


@pytest.mark.parametrize("kind", [kind for kind, fmt in FORMATS.items() if hasattr(fmt, "block_bytes")])
def test_each_type_has_a_block_of_one_size(kind: str) -> None:
    kernel, rows = AddsValues(kind, ascending), np.zeros((1, 1), np.uint8)
    probes = ValueProbes.of(kernel, SEMANTICS["f32"], FORMATS[kind], rows, 1, VALUES)  # type: ignore[arg-type]
    assert len({*np.abs(probes.values).tolist()}) == 1


class AddsInTensorCores:
    """A kernel that adds 16 products of halves at once, in two lanes: exactly, or as tensor cores with L and F.

    A row may be off by an ulp.
    """

    order, adds_floats, domain, semantics = None, False, EVERYTHING, IN_TENSOR_CORES

    def __init__(self, kind: str, cores: tuple[int, int] | None, off: int | None = None) -> None:
        self.fmt, self._cores, self._off = FORMATS[kind], cores, off

    def of(self, *_: object) -> AddsInTensorCores:
        return self

    def upload(self, _: object, w: np.ndarray) -> np.ndarray:
        return w

    def product(self, w: np.ndarray, x: np.ndarray) -> np.ndarray:
        values = HALF.rounded(self.fmt.decode(w.reshape(len(w), -1, self.fmt.block_bytes)).reshape(len(w), -1))
        a = HALF.rounded(x)
        lanes = []
        for lane in range(2):
            at = [k for k in range(x.shape[1]) if k // 16 % 2 == lane]
            if self._cores is not None:
                lanes.append(in_tensor_cores(a[:, at], values[:, at], *self._cores).astype(F))
                continue
            lanes.append(np.zeros((len(x), len(w)), F))
            for start in range(0, len(at), 16):
                columns = at[start : start + 16]
                lanes[lane] = (lanes[lane] + a[:, columns] @ values[:, columns].T).astype(F)
        y = lanes[0] + lanes[1]
        if self._off is not None and self._off < len(w):
            y[:, self._off] = np.nextafter(y[:, self._off], F(np.inf))
        return np.asarray(y)


class AddsSubBlocks:
    """A kernel as llama.cpp's MMVQ: a lane adds its part of 32 values as integers, and two such sums of a superblock
    before it multiplies the superblock's scale; the lanes' sums are added in pairs. A row may be off by an ulp."""

    order, adds_floats, domain = None, False, EVERYTHING

    def __init__(self, kind: str, semantics: Semantics, off: int | None = None, parts: int = 2) -> None:
        self.fmt, self.semantics, self._off = FORMATS[kind], semantics, off
        self._spans = np.split(np.arange(32), parts)

    def of(self, *_: object) -> AddsSubBlocks:
        return self

    def upload(self, _: object, w: np.ndarray) -> np.ndarray:
        return w

    def product(self, w: np.ndarray, x: np.ndarray) -> np.ndarray:
        fmt, (n, m) = self.fmt, (len(w), len(x))
        blocks, nb = w.reshape(n, -1, fmt.block_bytes), x.shape[1] // 32
        of = Activations.of(self.semantics.encoding, self.semantics.bytes_of(x), 32, nb)
        rounded = self.semantics.term.rounded(fmt)  # scales and minima are halves: d and dmin are multiplied out
        names = [field.name for field in fmt.fields if field.dtype == "<f2" and not rounded]
        halves = {name: fmt.view(blocks)[name].astype(F).repeat(fmt.block_size // 32, axis=1) for name in names}
        one = np.ones((n, nb), F)
        factors = []
        for values, whole in ((fmt.scales(blocks), "d"), (fmt.minima(blocks), "dmin")):
            scales = self.semantics.term.round_scales(fmt, values.astype(np.float64))
            of_values = scales.repeat(fmt.group, axis=-1).reshape(n, nb, 32)
            with np.errstate(all="ignore"):
                factors.append(np.nan_to_num(of_values / halves.get(whole, one)[..., None]))
        codes = self.semantics.term.codes(fmt, blocks).reshape(n, nb, 32)
        integers = [codes * factors[0], factors[1]] if fmt.has_min else [codes * factors[0]]
        lanes = [np.zeros((m, n), F) for _ in range(2 * len(self._spans))]
        step = 1 if fmt.block_size == 32 else 2
        for start in range(0, nb, step):
            for part, at in enumerate(self._spans):
                sums = [np.zeros((m, n), F) for _ in integers]
                for b in range(start, start + step):
                    for i, numbers in enumerate(integers):
                        if i and self.semantics.term.reads_sum(fmt):  # a stored sum of 32 values
                            with np.errstate(all="ignore"):
                                sums[i] += (part == 0) * of.s[b].astype(F) * numbers[:, b, 0].astype(F)
                            continue
                        whole = of.q[b][:, at].astype(np.float64) @ numbers[:, b, at].T.astype(np.float64)
                        sums[i] += of.d[b].astype(F) * whole.astype(F)
                made = halves.get("d", one)[:, start] * sums[0]
                if fmt.has_min:
                    made = made + halves.get("dmin", one)[:, start] * sums[1]
                lanes[start // step % 2 * len(self._spans) + part] += made
        while len(lanes) > 1:
            lanes = [a + b for a, b in zip(lanes[: len(lanes) // 2], lanes[len(lanes) // 2 :], strict=True)]
        y = lanes[0]
        if self._off is not None and self._off < n:
            y[:, self._off] = np.nextafter(y[:, self._off], F(np.inf))
        return y


class AddsParts:
    """A kernel as llama.cpp's MMVQ of blocks with a stored s: each lane of a block takes a part of s, or one all of it.

    A row may be off by an ulp.
    """

    order, adds_floats, domain = None, False, EVERYTHING

    def __init__(self, kind: str, semantics: Semantics, shares: tuple[float, ...], off: int | None = None) -> None:
        self.fmt, self.semantics, self._shares, self._off = FORMATS[kind], semantics, shares, off

    def of(self, *_: object) -> AddsParts:
        return self

    def upload(self, _: object, w: np.ndarray) -> np.ndarray:
        return w

    def product(self, w: np.ndarray, x: np.ndarray) -> np.ndarray:
        fmt, (n, m), nb = self.semantics.term.reads(self.fmt), (len(w), len(x)), x.shape[1] // 32
        blocks = w.reshape(n, -1, fmt.block_bytes)
        of = Activations.of(self.semantics.encoding, self.semantics.bytes_of(x), 32, nb)
        codes = self.semantics.term.codes(fmt, blocks).reshape(n, nb, 32)
        d, least = (v.reshape(n, nb).astype(F) for v in (fmt.scales(blocks), fmt.minima(blocks)))
        spans = np.split(np.arange(32), len(self._shares))
        lanes = [np.zeros((m, n), F) for _ in range(2 * len(spans))]
        for b in range(nb):
            d_a, s = of.d[b].astype(F), of.s[b].astype(F)
            for part, (at, share) in enumerate(zip(spans, self._shares, strict=True)):
                total = (of.q[b][:, at] @ codes[:, b, at].T).astype(F)
                if any(field.name == "m" for field in fmt.fields):
                    scale, second = (  # halves, for a kernel with `__hmul2`
                        self.semantics.term.round_products(fmt, v.astype(np.float64)).astype(F)
                        for v in (d[:, b] * d_a, least[:, b] * s)
                    )
                    made = total * scale + second * F(share)
                else:
                    with np.errstate(all="ignore"):
                        ratio = np.nan_to_num(least[:, b] / d[:, b])
                    made = d[:, b] * (d_a * total + F(share) * ratio * s)
                lanes[b % 2 * len(spans) + part] += made
        while len(lanes) > 1:
            lanes = [a + b for a, b in zip(lanes[: len(lanes) // 2], lanes[len(lanes) // 2 :], strict=True)]
        y = lanes[0]
        if self._off is not None and self._off < n:
            y[:, self._off] = np.nextafter(y[:, self._off], F(np.inf))
        return y


Kernel = Any


def product_of(kernel: Kernel, columns: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    w = real_weights(kernel.fmt, 100, columns)
    x = np.random.default_rng(5).normal(size=(3, columns)).astype(F)
    return w, kernel.semantics.bytes_of(x), kernel.product(w, x)


def of_sub_blocks(kernel: Kernel) -> Probes:
    return probes_of(kernel, kernel.semantics, kernel.fmt, real_weights(kernel.fmt, 64, 512), 1)


def further_of(kernel: Kernel, w: np.ndarray) -> Callable[[np.ndarray], Iterator[tuple[np.ndarray, np.ndarray]]]:
    """Random products of three tokens."""
    return lambda rows: ((x, y[:, rows]) for x, y in of_sub_blocks(kernel).random(3, w, 16))


def assert_that_an_ulp_is_seen(kernel: Kernel, wrong: Kernel) -> None:
    """The bits of a correct kernel are those of the order, and an ulp of a row is seen, which has the order of others.

    The order is found although the faulty row is among those of the probes.
    """
    of_wrong = of_sub_blocks(wrong)
    found = of_wrong.order(3, 100, 512)
    assert not differing(found, kernel.semantics, kernel.fmt, *product_of(kernel, 512)).any()
    seen = differing(found, kernel.semantics, kernel.fmt, *product_of(wrong, 512))
    assert np.argwhere(seen)[:, 1].tolist() == [OFF] * 3
    assert of_wrong.tree_in(3, 100, 512, found, 2, OFF) == found.tree


@pytest.mark.parametrize("kind", ["Q4_0", "Q6_K"])
@pytest.mark.parametrize("cores", [None, (16, 25), (8, 24), (4, 23)])
def test_orders_of_instructions_of_tensor_cores_are_found(kind: str, cores: tuple[int, int] | None) -> None:
    kernel, wrong = (AddsInTensorCores(kind, cores, off) for off in (None, OFF))
    assert_that_an_ulp_is_seen(kernel, wrong)
    found = of_sub_blocks(kernel).order(3, 100, 1280)  # long rows, which have a rule
    assert not differing(found, kernel.semantics, kernel.fmt, *product_of(kernel, 1280)).any()
    how = "exact, rounded once" if cores is None else f"cut off at F = {cores[1]} bits"
    products = 16 if cores is None else cores[0]
    assert f"the {products} products of an instruction, {how}" in found.arithmetic.words


def test_an_arithmetic_that_only_the_product_shows_is_no_mismatch() -> None:
    """Two arithmetics that agree in all random products: the one that has all bits of the product is the kernel's."""
    kernel, wrong = (AddsInTensorCores("Q4_0", None, off) for off in (None, OFF))
    found = of_sub_blocks(kernel).order(3, 100, 512)
    assert isinstance(found.arithmetic, ValueArithmetic)
    first = replace(found, arithmetic=replace(found.arithmetic, fraction=25))
    assert differing(first, kernel.semantics, kernel.fmt, *product_of(kernel, 512)).any()
    w, x, y = product_of(kernel, 512)
    order, seen = compared(first, kernel.semantics, kernel.fmt, w, x, y, further_of(kernel, w))
    assert order == found
    assert not seen.any()
    off = product_of(wrong, 512)[2]
    assert compared(found, kernel.semantics, kernel.fmt, w, x, off, further_of(wrong, w))[1].sum() == 3


class WithTail(AddsInTensorCores):
    """Another loop computes the last rows: with the same tree, and another known arithmetic."""

    first = 97

    def product(self, w: np.ndarray, x: np.ndarray) -> np.ndarray:
        y = super().product(w, x)
        if len(w) > self.first:
            y[:, self.first :] = AddsInTensorCores(self.fmt.name, (16, 25)).product(w, x)[:, self.first :]
        return y


@pytest.mark.parametrize("first", [90, 99])
def test_rows_that_another_loop_adds_are_no_mismatch(first: int) -> None:
    """If these are so few outputs that they might have these bits by chance, further products decide."""
    kernel = WithTail("Q4_0", None)
    kernel.first = first
    found = of_sub_blocks(kernel).order(3, 100, 512)
    w, x, y = product_of(kernel, 512)
    with pytest.raises(NoOrder, match=f"{100 - first} rows have the bits of another arithmetic"):
        compared(found, kernel.semantics, kernel.fmt, w, x, y, further_of(kernel, w))


def test_few_outputs_that_have_such_bits_in_one_product_are_faulty() -> None:
    kernel, other = AddsInTensorCores("Q4_0", None), AddsInTensorCores("Q4_0", (16, 25))
    found = of_sub_blocks(kernel).order(3, 100, 512)
    w, x, y = product_of(kernel, 512)
    y[:, 99:] = product_of(other, 512)[2][:, 99:]
    _, wrong = compared(found, kernel.semantics, kernel.fmt, w, x, y, further_of(kernel, w))
    assert wrong[:, 99].any()
    assert not wrong[:, :99].any()


def test_an_order_of_fused_products_of_halves_is_found() -> None:
    kernel, fmt = ShippedKernel(KERNELS["f16_mma"], CpuHost(1)), FORMATS["Q4_0"]
    found = probes_of(kernel, IN_TENSOR_CORES, fmt, real_weights(fmt, 64, 512), 1).order(8, 64, 256)
    assert found.words == "one lane, the same in every 32 summands, of a·float16(float32(w)), rounded"


@pytest.mark.parametrize(
    ("kind", "name", "shares"),
    [
        *itertools.product(["Q4_0", "Q4_1", "Q5_0", "Q5_1"], ["q8_1"], [(0.5, 0.5), (0.25,) * 4, (0.0, 1.0)]),
        ("Q4_1", "q8_1_half", (0.5, 0.5)),
        ("Q5_1", "q8_1_half", (1.0,)),
        ("IQ1_S", "q8_1_delta", (1.0,)),
        ("IQ1_S", "q8_1_delta", (0.5, 0.5)),
    ],
)
def test_orders_of_lanes_that_take_parts_of_s_are_found(kind: str, name: str, shares: tuple[float, ...]) -> None:
    assert_that_an_ulp_is_seen(*(AddsParts(kind, SEMANTICS[name], shares, off) for off in (None, OFF)))


SUPERBLOCKS = [
    kind for kind, fmt in FORMATS.items() if isinstance(fmt, BlockFormat) and fmt.weights
    and not (fmt.block_size == 32 and fmt.min_times_sum and (fmt.has_min or fmt.offset))
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *itertools.product(["q8_1", "mmq_d4"], SUPERBLOCKS),
        ("mmq_older", "Q4_K"),
        ("mmq_older", "Q5_K"),
        ("mmq", "Q4_K"),
        ("mmq", "Q5_K"),
        ("mmq_d4", "Q4_0"),
        ("q8_k_cpu", "Q4_K"),
    ],
)
def test_orders_within_superblocks_are_found(kind: str, name: str) -> None:
    assert_that_an_ulp_is_seen(*(AddsSubBlocks(kind, SEMANTICS[name], off) for off in (None, OFF)))


def test_the_order_of_long_rows_repeats_that_of_short_ones() -> None:
    kernel = AddsSubBlocks("Q6_K", Q8_1, off=77)
    found = of_sub_blocks(kernel).order(3, 100, 2048)
    assert str(found.rule) == "4 lanes, the same in every 16 summands"
    seen = differing(found, Q8_1, kernel.fmt, *product_of(kernel, 2048))
    assert np.argwhere(seen)[:, 1].tolist() == [77] * 3


@pytest.mark.parametrize("kind", ["Q4_K", "Q6_K"])
def test_the_order_of_integer_tensor_cores_is_found(kind: str) -> None:
    """`mma.sync` of integers is exact: what is outside has an order."""
    kernel, fmt = ShippedKernel(KERNELS["q8_1_mma"], CpuHost(1)), FORMATS[kind]
    found = probes_of(kernel, Q8_1, fmt, real_weights(fmt, 64, 512), 1).order(8, 24, 512)
    assert str(found.rule) == "ascending k"
    assert "((d·scale)·d_a)·Σ" in found.arithmetic.words


def test_sums_of_superblocks_in_double_have_no_order() -> None:
    class InDouble(AddsSubBlocks):
        def product(self, w: np.ndarray, x: np.ndarray) -> np.ndarray:
            return exact_product(Q8_1, self.fmt, w, Q8_1.bytes_of(x)).exact.astype(F)

    with pytest.raises(NoOrder, match="no known arithmetic of a term gives the bits"):
        of_sub_blocks(InDouble("Q4_K", Q8_1)).order(3, 40, 512)


class AddsAsMmq:
    """A kernel as llama.cpp's MMQ of Q2_K: of 128 values, the stored s of the first 96 are added after their products,
    and minima of the last 32 to theirs before d_a is multiplied. A row may be off by an ulp.
    """

    order, adds_floats, domain, fmt = None, False, EVERYTHING, FORMATS["Q2_K"]
    semantics = SEMANTICS["mmq_d2s6"]

    def __init__(self, off: int | None) -> None:
        self._off = off

    def of(self, *_: object) -> AddsAsMmq:
        return self

    def upload(self, _: object, w: np.ndarray) -> np.ndarray:
        return w

    def product(self, w: np.ndarray, x: np.ndarray) -> np.ndarray:
        fmt, term, (n, m) = self.fmt, self.semantics.term, (len(w), len(x))
        blocks, parts = w.reshape(n, -1, fmt.block_bytes), x.shape[1] // 16
        of = Activations.of(self.semantics.encoding, self.semantics.bytes_of(x), 16, parts)
        codes = term.codes(fmt, blocks).reshape(n, parts, 16)
        d, least = (
            term.round_scales(fmt, v.astype(np.float64)).reshape(n, parts).astype(F)
            for v in (fmt.scales(blocks), fmt.minima(blocks))
        )
        y = np.zeros((m, n), F)
        for start in range(0, parts, 8):
            for p in range(start, start + 8, 2):
                made = np.zeros((m, n), F)
                for at in (p, p + 1):
                    made += d[:, at] * (of.q[at] @ codes[:, at].T).astype(F)
                for at in (p, p + 1) if p == start + 6 else ():
                    made += least[:, at] * of.q[at].sum(axis=1, keepdims=True).astype(F)
                y = add_rounded(of.d[p] * made.astype(np.float64), y)
            for at in range(start, start + 6):
                y = add_rounded(of.s[at] * least[:, at].astype(np.float64), y)
        if self._off is not None and self._off < n:
            y[:, self._off] = np.nextafter(y[:, self._off], F(np.inf))
        return y


def test_the_order_of_mmq_with_sums_of_some_values_is_found() -> None:
    assert_that_an_ulp_is_seen(AddsAsMmq(None), AddsAsMmq(OFF))


KERNEL = """
import numpy as np
from gguf_verify import kernel

Q4_0 = np.dtype([("d", "<f2"), ("qs", "u1", 16)])
Q8_1 = np.dtype([("d", "<f2"), ("s", "<f2"), ("qs", "i1", 32)])

@kernel(formats=["Q4_0"], semantics="q8_1")
def gemm(w, x, shape):
    w, x = w.view(Q4_0), x.view(Q8_1)
    codes = np.concatenate([w["qs"] & 15, w["qs"] >> 4], axis=-1).astype(np.float32)
    lanes = [np.zeros((shape.m, shape.n), np.float32) for _ in range(2)]
    for b in range(shape.k // 32):
        d_w, d_a, s = (v[:, b].astype(np.float32) for v in (w["d"], x["d"], x["s"]))
        products = x["qs"][:, b].astype(np.float32) @ codes[:, b].T
        lanes[b % 2] += d_w * (d_a[:, None] * products - 8 * s[:, None])
    y = lanes[0] + lanes[1]
    {change}
    return y
"""
ULP = "y[:, 77:78] = np.nextafter(y[:, 77:78], np.float32(np.inf))"
#: The rows past the last tile of 84 have another rounding, with fused multiply-adds.
TAIL = """
    if shape.n > 252:
        lanes = [np.zeros((shape.m, 4), np.float64) for _ in range(2)]
        for b in range(shape.k // 32):
            d_w, d_a, s = (v[:, b].astype(np.float32) for v in (w["d"][-4:], x["d"], x["s"]))
            inner = d_a[:, None] * (x["qs"][:, b].astype(np.float32) @ codes[-4:, b].T) - 8 * s[:, None]
            lanes[b % 2] = (lanes[b % 2] + d_w.astype(np.float64) * inner).astype(np.float32)
        y[:, -4:] = lanes[0] + lanes[1]
"""


def verified(change: str, tmp_path: Path) -> tuple[Report, RungResult, OrderRecord]:
    file = tmp_path / "kernel.py"
    file.write_text(KERNEL.format(change=change))
    options = Options(
        tensor=r"blk\.0\.attn_q", progress=False, probes="brief", prompt="The cat", n_predict=1, sandbox="none",
        order="find",
    )  # fmt: skip
    report = verify(FIXTURES / "tiny-Q4_0.gguf", f"{file}:gemm", CpuHost(1), ("layers",), options)
    (rung,) = report.rungs
    (record,) = (record for record in rung.details if isinstance(record, OrderRecord))
    return report, rung, record


def test_few_last_rows_with_another_rounding_are_no_mismatch(tmp_path: Path) -> None:
    report, _, record = verified(TAIL, tmp_path)
    assert report.exit_code == 0
    assert record.why is not None
    assert "have the bits of another arithmetic" in record.why


#: The rows past the last tile of 12 add two integer sums of a block: in products of 64 rows four others than in these.
TAIL_OF_TWELVE = """t = shape.n - shape.n % 12
    if t < shape.n:
        lanes = [np.zeros((shape.m, shape.n - t), np.float32) for _ in range(2)]
        for b in range(shape.k // 32):
            d_w, d_a, s = (v[:, b].astype(np.float32) for v in (w["d"][t:], x["d"], x["s"]))
            for part in (slice(0, 16), slice(16, 32)):
                products = x["qs"][:, b, part].astype(np.float32) @ codes[t:, b, part].T
                lanes[b % 2] += d_w * (d_a[:, None] * products - 4 * s[:, None])
        y[:, t:] = lanes[0] + lanes[1]"""


def test_rows_of_a_last_tile_are_no_mismatch(tmp_path: Path) -> None:
    report, rung, record = verified(TAIL_OF_TWELVE, tmp_path)
    assert report.exit_code == 0
    assert record.why is not None
    assert "without rows 60, 61, 62, 63" in record.why
    assert not any("bits equal" in note for note in rung.notes)


#: Row 77 of token 1 is added in ascending k.
IN_ANOTHER_ORDER = """if shape.n > 77:
        one = np.zeros(shape.m, np.float32)
        for b in range(shape.k // 32):
            d_a, s = (v[:, b].astype(np.float32) for v in (x["d"], x["s"]))
            products = x["qs"][:, b].astype(np.float32) @ codes[77, b]
            one += w["d"][77, b].astype(np.float32) * (d_a * products - 8 * s)
        y[1:2, 77] = one[1:2]"""


def test_the_reason_names_the_token_of_a_row_in_another_order(tmp_path: Path) -> None:
    report, _, record = verified(IN_ANOTHER_ORDER, tmp_path)
    assert report.exit_code == 0
    assert record.why is not None
    assert "row 77 of token 1 is added in another order" in record.why


@pytest.mark.parametrize(("change", "code"), [("", 0), (ULP, 1)])
def test_an_output_that_is_off_by_one_ulp_is_a_mismatch(change: str, code: int, tmp_path: Path) -> None:
    """In a row that is added like the others; without the fault the bits are equal. The score shows neither."""
    report, rung, record = verified(change, tmp_path)
    assert report.exit_code == code
    assert record.order == (
        "2 lanes, each in ascending k, then in ascending order, of "
        "1 integer sum for 32 values, each d·(d_a·Σ - 8·s), rounded"
    )
    assert record.tree == "0+2+4+6+(1+3+5+7)"
    assert record.differing == (record.m if change else 0)
    assert {failure.row for failure in rung.failures} == ({77} if change else set())
    assert any("bits equal" in note for note in rung.notes) == (not change)


def test_a_search_is_repeated_if_a_call_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, calls, kept = Adds("Q4_0", lanes), itertools.count(), dict[object, object]()
    product = kernel.product

    def fails_once(w: np.ndarray, x: np.ndarray) -> np.ndarray:
        if next(calls) == 0:
            raise KernelFault("no answer in time")
        return product(w, x)

    monkeypatch.setattr(kernel, "product", fails_once)
    run: Any = SimpleNamespace(resources=SimpleNamespace(get=lambda key, make: kept.setdefault(key, make())))
    tried = probes(kernel)
    with pytest.raises(NoOrder, match="no answer in time"):
        orders._found(run, tried, (3, 64, 288))
    assert orders._found(run, tried, (3, 64, 288)).rule is not None


def test_a_search_that_finds_no_order_is_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two matrices of one shape; each has the reason in its record."""
    searches = list[tuple[int, int, int]]()
    search = SumProbes.order

    def counted(self: SumProbes, m: int, n: int, k: int) -> FoundOrder:
        searches.append((m, n, k))
        return search(self, m, n, k)

    monkeypatch.setattr(SumProbes, "order", counted)
    file = tmp_path / "kernel.py"
    file.write_text(KERNEL.format(change="y = np.float32(1) * (lanes[1] * np.float32(1.25) - lanes[1] / 4 + lanes[0])"))
    options = Options(
        tensor=r"blk\.[01]\.attn_q", progress=False, probes="brief", prompt="The cat", n_predict=1, sandbox="none",
        order="find",
    )  # fmt: skip
    report = verify(FIXTURES / "tiny-Q4_0.gguf", f"{file}:gemm", CpuHost(1), ("layers",), options)
    records = [record for record in report.rungs[0].details if isinstance(record, OrderRecord)]
    assert len(records) == 2
    assert len({(record.m, record.n, record.k) for record in records}) == len(searches) == 1
    assert all(record.why for record in records)
