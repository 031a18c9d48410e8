"""Faults of fields, bits, pairs, integers, tails and series of calls, each written here as a wrong kernel writes it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

from gguf_verify.diagnosis.diagnose import FEWEST, diagnose
from gguf_verify.diagnosis.experiments import Experiments
from gguf_verify.diagnosis.fault import Case
from gguf_verify.diagnosis.faults import FAULTS
from gguf_verify.diagnosis.fitted import fitted
from gguf_verify.diagnosis.identify import definition_named
from gguf_verify.diagnosis.operands import Predicted
from gguf_verify.formats.block import BlockFormat
from gguf_verify.formats.tensor_types import FORMATS, WeightFormat
from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.hosts.schedule import Schedule
from gguf_verify.kernels.domain import Domain, Extent
from gguf_verify.kernels.interface import Weights
from gguf_verify.kernels.ladder import KERNELS
from gguf_verify.kernels.shipped import ShippedKernel
from gguf_verify.llama.library import Llama
from gguf_verify.semantics.definitions import SEMANTICS
from gguf_verify.semantics.definitions.q8_1 import Q8_1_RAW
from gguf_verify.semantics.exact import product
from gguf_verify.semantics.gates import judge

Q8_1, F32 = SEMANTICS["q8_1"], SEMANTICS["f32"]
#: Of each fault: its id, and those that predict the same.
SPECIAL = {fault.id: {fault.id, *fault.special} for fault in FAULTS}


@pytest.fixture(scope="module")
def made(llama: Llama) -> Callable[..., np.ndarray]:
    """(type, K = 768) → weights uint8[16, row bytes] of it, quantized by llama.cpp."""

    @cache
    def rows(name: str, k: int = 768) -> np.ndarray:
        w = np.random.default_rng(0).standard_normal((16, k)).astype(np.float32) * np.float32(0.05)
        return llama.quantize(FORMATS[name].type_id, w, np.ones(k, np.float32)).reshape(16, -1)

    return rows


def activations(k: int = 768, m: int = 6) -> np.ndarray:
    return np.random.default_rng(100).standard_normal((m, k)).astype(np.float32)


def decoded(fmt: BlockFormat, rows: np.ndarray, change: Callable[[bytearray], None]) -> np.ndarray:
    """float64[N, K] by the slow decoder, of blocks that are changed before."""
    values = []
    for block in rows.reshape(-1, fmt.block_bytes):
        raw = bytearray(block.tobytes())
        change(raw)
        values.append(fmt.slow_decode(bytes(raw)))
    return np.array(values, np.float64).reshape(len(rows), -1)


def nibbles_from_byte_2(raw: bytearray) -> None:
    raw[4:20] = raw[2:18]


def pairs_of_the_next_group(raw: bytearray) -> None:
    """Q2_K: values 0…31 read the bits of values 32…63, and so on around."""
    for i in range(16, 80):
        raw[i] = (raw[i] >> 2 | raw[i] << 6) & 255


def fifth_bits_of_the_first_group(raw: bytearray) -> None:
    """Q5_K: every group reads bit 0."""
    for i in range(16, 48):
        raw[i] = 255 * (raw[i] & 1)


def high_bits_of_scales_in_minima(raw: bytearray) -> None:
    """Q4_K: the minima of groups 4…7 get the high bits of the scales."""
    for i in range(4):
        raw[8 + i] = raw[8 + i] & 63 | raw[4 + i] & 192


def high_bits_of_minima_missing(raw: bytearray) -> None:
    for i in range(4):
        raw[8 + i] &= 63


@pytest.mark.parametrize(
    ("name", "change", "fault"),
    [
        ("Q4_1", nibbles_from_byte_2, "field-offset"),
        ("Q2_K", pairs_of_the_next_group, "bits-elsewhere"),
        ("Q5_K", fifth_bits_of_the_first_group, "bits-elsewhere"),
        ("Q4_K", high_bits_of_scales_in_minima, "bits-elsewhere"),
        ("Q4_K", high_bits_of_minima_missing, "bits-elsewhere"),
    ],
)
def test_codecs(made: Callable[..., np.ndarray], name: str, change: Callable[[bytearray], None], fault: str) -> None:
    fmt, rows, x = FORMATS[name], made(name), activations()
    y = (x.astype(np.float64) @ decoded(fmt, rows, change).T).astype(np.float32)
    found = diagnose(y, fmt, F32, rows, x)
    assert {f.id for f in found.faults} == {fault}, found


def q8_1_parts(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """d, s [M, blocks] and codes [M, blocks, 32] of activations."""
    blocks = Q8_1.bytes_of(x).reshape(len(x), -1, 36)
    halves = np.ascontiguousarray(blocks[..., :4]).view(np.float16).astype(np.float64)
    return halves[..., 0], halves[..., 1], blocks[..., 4:].copy().view(np.int8).astype(np.int64)


def halves_of(rows: np.ndarray, size: int, at: int) -> np.ndarray:
    raw = rows.reshape(len(rows), -1, size)[..., at : at + 2].copy()
    return raw.view(np.float16)[..., 0].astype(np.float64)


def test_q4_1_with_neighbouring_words(made: Callable[..., np.ndarray]) -> None:
    """u0 = 2·i, u1 = 2·i + 1: the low nibbles of word i meet word 2i of the activations, the high ones word 2i + 1."""
    rows, x = made("Q4_1"), activations()
    d, s, a = q8_1_parts(x)
    qs = rows.reshape(16, -1, 20)[..., 4:].astype(np.int64)
    total = np.zeros((6, 16, 24), np.int64)
    for i in range(4):
        word = qs[..., 4 * i : 4 * i + 4]
        u0, u1 = a[..., 8 * i : 8 * i + 4], a[..., 8 * i + 4 : 8 * i + 8]
        total += np.einsum("mbi,nbi->mnb", u0, word & 15) + np.einsum("mbi,nbi->mnb", u1, word >> 4)
    y = np.einsum("mnb,mb,nb->mn", total, d, halves_of(rows, 20, 0)) + s @ halves_of(rows, 20, 2).T
    found = diagnose(y.astype(np.float32), FORMATS["Q4_1"], Q8_1, rows, x)
    assert found.faults
    assert {f.id for f in found.faults} <= SPECIAL["values-paired-wrongly"], found


def test_q5_0_with_a_wrong_bit_offset(made: Callable[..., np.ndarray]) -> None:
    """Word i takes its fifth bits from 8·i and 8·i + 4, not from 4·i and 4·i + 16."""
    rows, x = made("Q5_0"), activations()
    d, s, a = q8_1_parts(x)
    blocks = rows.reshape(16, -1, 22)
    bits = np.unpackbits(blocks[..., 2:6], axis=-1, bitorder="little").astype(np.int64)
    q = np.concatenate([blocks[..., 6:] & 15, blocks[..., 6:] >> 4], axis=-1).astype(np.int64)
    for i in range(4):
        q[..., 4 * i : 4 * i + 4] += 16 * bits[..., 8 * i : 8 * i + 4]
        q[..., 16 + 4 * i : 20 + 4 * i] += 16 * bits[..., 8 * i + 4 : 8 * i + 8]
    w = halves_of(rows, 22, 0)
    y = np.einsum("mbi,nbi,mb,nb->mn", a, q, d, w) - 16 * s @ w.T
    found = diagnose(y.astype(np.float32), FORMATS["Q5_0"], Q8_1, rows, x)
    assert {f.id for f in found.faults} == {"bits-elsewhere"}, found


@pytest.mark.parametrize("which", ["weights", "activations"])
def test_signs_lost(made: Callable[..., np.ndarray], which: str) -> None:
    rows, x = made("Q8_0"), activations()
    d, _, a = q8_1_parts(x)
    q = rows.reshape(16, -1, 34)[..., 2:].copy().view(np.int8).astype(np.int64)
    q, a = (np.abs(q), a) if which == "weights" else (q, np.abs(a))
    y = np.einsum("mbi,nbi,mb,nb->mn", a, q, d, halves_of(rows, 34, 0))
    found = diagnose(y.astype(np.float32), FORMATS["Q8_0"], Q8_1, rows, x)
    assert [f.id for f in found.faults] == ["signedness"]
    assert f"signs of {which} lost" in found.lines[0]


@pytest.mark.parametrize("saturates", [False, True])
def test_sums_of_16_bits(made: Callable[..., np.ndarray], saturates: bool) -> None:
    rows, x = made("Q8_0"), np.abs(activations()) + np.float32(2)
    rows = rows.copy()
    rows.reshape(16, -1, 34)[:, ::3, 2:] = 120  # what real codes seldom add up to
    d, _, a = q8_1_parts(x)
    q = rows.reshape(16, -1, 34)[..., 2:].copy().view(np.int8).astype(np.int64)
    sums = np.einsum("mbi,nbi->mnb", a, q)
    narrow = np.clip(sums, -32768, 32767) if saturates else sums.astype(np.int16).astype(np.int64)
    y = np.einsum("mnb,mb,nb->mn", narrow, d, halves_of(rows, 34, 0))
    found = diagnose(y.astype(np.float32), FORMATS["Q8_0"], Q8_1, rows, x)
    assert [f.id for f in found.faults] == ["integers-too-narrow"]
    assert ("saturate" if saturates else "wrap") in found.lines[0]


def test_a_scale_that_is_read_as_bfloat16(made: Callable[..., np.ndarray]) -> None:
    rows, x = made("Q8_0"), activations()
    q = rows.reshape(16, -1, 34)[..., 2:].copy().view(np.int8).astype(np.float64)
    bits = rows.reshape(16, -1, 34)[..., :2].copy().view(np.uint16)[..., 0].astype(np.uint32)
    w = (q * (bits << 16).view(np.float32)[..., None]).reshape(16, -1)
    y = (x.astype(np.float64) @ w.T).astype(np.float32)
    assert "scale-as-bfloat16" in {f.id for f in diagnose(y, FORMATS["Q8_0"], F32, rows, x).faults}


def test_a_block_of_zeros(made: Callable[..., np.ndarray]) -> None:
    """0/0 in one token's block: its outputs are NaN, the others right. NaN in other tokens is no such fault."""
    rows, x = made("Q4_0"), activations()
    x[2, 64:96] = 0
    y = product(Q8_1, FORMATS["Q4_0"], rows, Q8_1.bytes_of(x)).exact.astype(np.float32)
    other = y.copy()
    y[2], other[3] = np.nan, np.nan
    assert [f.id for f in diagnose(y, FORMATS["Q4_0"], Q8_1, rows, x).faults] == ["zero-block"]
    assert not diagnose(other, FORMATS["Q4_0"], Q8_1, rows, x).faults


@pytest.mark.parametrize(("count", "fault"), [(0.0, "end-of-k-dropped"), (2.0, "end-of-k-twice")])
def test_the_end_of_a_single_block(made: Callable[..., np.ndarray], count: float, fault: str) -> None:
    """K is one block, as in the blocks rung: half of it is left out, or added twice."""
    rows, x = made("Q8_0", 32), activations(32)
    fmt = FORMATS["Q8_0"]
    assert isinstance(fmt, BlockFormat)
    w = decoded(fmt, rows, lambda _: None)
    w[:, 16:] *= count
    y = (x.astype(np.float64) @ w.T).astype(np.float32)
    assert fault in {f.id for f in diagnose(y, fmt, F32, rows, x).faults}


def test_values_that_are_not_doubled(made: Callable[..., np.ndarray]) -> None:
    rows, x = made("MXFP4"), activations()
    y = product(Q8_1, FORMATS["MXFP4"], rows, Q8_1.bytes_of(x)).exact.astype(np.float32) / np.float32(2)
    assert [f.id for f in diagnose(y, FORMATS["MXFP4"], Q8_1, rows, x).faults] == ["power-of-two"]


@pytest.mark.parametrize("name", ["Q4_0", "Q4_K"])
def test_no_fault_steals_the_name_of_another(made: Callable[..., np.ndarray], name: str) -> None:
    """A sample of the faults with many variants: their own name, or that of a special case."""
    fmt, rows, x, number = FORMATS[name], made(name), activations(), 0
    case = Case(Q8_1, fmt, rows, Q8_1.bytes_of(x), x)
    for fault in (f for f in FAULTS if f.many):
        for which, made_wrong in fault.of(case):
            number += 1
            p = made_wrong if isinstance(made_wrong, Predicted) else made_wrong.predicted()
            if number % 9 or not np.isfinite(p.exact).all():
                continue
            found = diagnose(p.exact.astype(np.float32), fmt, Q8_1, rows, x)
            assert found.wrong < FEWEST or fault.named_by({f.id for f in found.faults}), (which, found)


# -- series of calls ---------------------------------------------------------------------------------------------------


class Odd(ShippedKernel):
    """The right kernel, and what a fault makes of its operands and of its outputs."""

    def __init__(self, fault: Callable[[np.ndarray, np.ndarray, Callable[..., np.ndarray]], np.ndarray]) -> None:
        super().__init__(KERNELS["q8_1_naive"], CpuHost(1))
        self.fault, self.rows = fault, np.zeros(0)

    def upload(self, fmt: WeightFormat, rows: np.ndarray) -> Weights:
        self.fmt, self.rows = fmt, rows
        return super().upload(fmt, rows)

    def under(self, schedule: Schedule) -> None:  # which would be the right kernel
        return None

    def product(self, weights: Weights, x: np.ndarray) -> np.ndarray:
        def right(rows: np.ndarray, x: np.ndarray) -> np.ndarray:
            return super(Odd, self).product(super(Odd, self).upload(self.fmt, rows), x)

        return self.fault(self.rows, x, right)


def keeps(what: int, first: bool) -> Callable[..., np.ndarray]:
    kept: dict[tuple[int, ...], np.ndarray] = {}

    def fault(rows: np.ndarray, x: np.ndarray, right: Callable[..., np.ndarray]) -> np.ndarray:
        operands = [rows, x]
        key = operands[what].shape
        old = kept.get(key, operands[what])
        if key not in kept or not first:
            kept[key] = operands[what].copy()
        operands[what] = old
        return right(*operands)

    return fault


def for_the_first_call() -> Callable[..., np.ndarray]:
    """As many tokens as the first call of some rows and columns had are right, and the rest is zero."""
    kept: dict[tuple[int, ...], int] = {}

    def fault(rows: np.ndarray, x: np.ndarray, right: Callable[..., np.ndarray]) -> np.ndarray:
        y = right(rows, x)
        y[kept.setdefault(rows.shape, len(x)) :] = 0
        return y

    return fault


def where(tokens: Callable[[int], np.ndarray], rows: Callable[[int], np.ndarray]) -> Callable[..., np.ndarray]:
    def fault(w: np.ndarray, x: np.ndarray, right: Callable[..., np.ndarray]) -> np.ndarray:
        y = right(w, x)
        y[np.ix_(tokens(len(x)), rows(len(w)))] *= np.float32(1.5)
        return y

    return fault


def every(n: int) -> np.ndarray:
    return np.ones(n, bool)


@pytest.mark.parametrize(
    ("fault", "name", "said"),
    [
        (lambda: keeps(0, True), "cached-by-shape", "weights"),
        (lambda: keeps(1, True), "cached-by-shape", "activations"),
        (lambda: keeps(0, False), "stale-workspace", "weights"),
        (lambda: keeps(1, False), "stale-workspace", "activations"),
        (for_the_first_call, "cached-by-shape", "with 10 tokens is wrong after one with 3"),
        (
            lambda: where(lambda m: every(m) & (9 <= m <= 40), every),
            "window-of-m",
            "24, 28, 31 to 33, 36, 40 are wrong",
        ),
        (lambda: where(every, lambda n: every(n) & (n in (63, 64, 65))), "window-of-n", "63 to 65 are wrong"),
        (lambda: where(lambda m: np.arange(m) >= m // 16 * 16, every), "partial-tile", "tokens past the last whole"),
        (lambda: where(every, lambda n: np.arange(n) >= n // 64 * 64), "partial-tile", "tile of 64"),
        (lambda: where(lambda m: (np.arange(m) >= m // 8 * 8) & (m > 8), every), "partial-tile", "tile of 8"),
        (lambda: where(every, every), "", ""),
        (lambda: where(lambda m: np.arange(m) == 2, every), "", ""),
    ],
)
def test_series_of_calls(
    made: Callable[..., np.ndarray], fault: Callable[[], Callable[..., np.ndarray]], name: str, said: str
) -> None:
    rows, x = np.resize(made("Q4_0", 64), (70, 36)), activations(64, 20)
    rows = rows.copy()
    rows[:, 2] = np.arange(70)
    found = list(Experiments(Odd(fault()), FORMATS["Q4_0"], Q8_1, rows, x).named())
    assert [f.id for f in found] == ([name] if name else [])
    assert all(said in f.words for f in found)


def test_a_window_of_columns(made: Callable[..., np.ndarray]) -> None:
    def fault(rows: np.ndarray, x: np.ndarray, right: Callable[..., np.ndarray]) -> np.ndarray:
        return right(rows, x) * np.float32(1.5 if x.shape[1] > 2560 else 1)

    rows, x = made("Q4_0", 4096)[:3], activations(4096, 2)
    found = list(Experiments(Odd(fault), FORMATS["Q4_0"], Q8_1, rows, x).named())
    assert [f.id for f in found] == ["window-of-k"]
    assert "from K = 2592 on, and none up to 2560" in found[0].words


def test_a_block_of_the_last_columns_is_no_window_of_columns(made: Callable[..., np.ndarray]) -> None:
    """Fewer columns are right only because they lack it."""
    rows, x = made("Q4_0", 320)[:3].copy(), activations(320, 2)
    rows[:, 9 * 18 : 9 * 18 + 2] = (0x34, 0x12)

    def fault(rows: np.ndarray, x: np.ndarray, right: Callable[..., np.ndarray]) -> np.ndarray:
        marked = (rows.reshape(len(rows), -1, 18)[..., :2] == (0x34, 0x12)).all(axis=-1).any(axis=-1)
        return right(rows, x) * np.where(marked, np.float32(1.5), np.float32(1))

    found = list(Experiments(Odd(fault), FORMATS["Q4_0"], Q8_1, rows, x).named())
    assert "window-of-k" not in [f.id for f in found]


def test_what_only_some_sizes_have_is_named_so(made: Callable[..., np.ndarray]) -> None:
    """Halved values explain the outputs, but would make smaller calls wrong, too, which are right."""

    def fault(rows: np.ndarray, x: np.ndarray, right: Callable[..., np.ndarray]) -> np.ndarray:
        return right(rows, x) * np.float32(0.5 if len(x) == 13 else 1)

    rows, x, kernel = made("Q4_0", 64), activations(64, 13), Odd(fault)
    right = product(Q8_1, FORMATS["Q4_0"], rows, Q8_1.bytes_of(x)).exact.astype(np.float32)
    named = diagnose((right / 2).astype(np.float32), FORMATS["Q4_0"], Q8_1, rows, x).explanations
    tried = Experiments(kernel, FORMATS["Q4_0"], Q8_1, rows, x)
    found = tried.beside(named)
    assert [f.id for f in found] == ["window-of-m"]
    assert "in the wrong calls, values of weights are off by a power of two (0.5 times)" in found[0].words
    always = Experiments(Odd(lambda rows, x, of: of(rows, x) / 2), FORMATS["Q4_0"], Q8_1, rows, x)
    assert [f.id for f in always.beside(named)] == ["power-of-two"]


class Multiples(Odd):
    """A kernel whose N are multiples of 64."""

    @property
    def domain(self) -> Domain:
        return Domain(n=Extent(64, None, 64))


def scaled(by: Callable[[int, int, int], float]) -> Callable[..., np.ndarray]:
    """Outputs are multiplied by what depends on M, N and K."""
    return lambda rows, x, right: right(rows, x) * np.float32(by(len(x), len(rows), x.shape[1]))


def for_the_first_scale() -> Callable[..., np.ndarray]:
    """Outputs are multiplied by the largest activation of the first call of a shape, and divided by their own."""
    kept: dict[tuple[int, ...], np.float32] = {}

    def fault(rows: np.ndarray, x: np.ndarray, right: Callable[..., np.ndarray]) -> np.ndarray:
        key, own = (*rows.shape, *x.shape), np.abs(x).max()
        return right(rows, x) * (kept.setdefault(key, own) / own)

    return fault


@pytest.mark.parametrize(
    ("by", "name", "said"),
    [
        (lambda m, n, k: 0.5 if m > 7 else 1, "window-of-m", "M ≥ 8"),
        (lambda m, n, k: 1.01 if m < 20 else 1, "window-of-m", "M < 20"),
        (lambda m, n, k: 0.5 if n > 40 else 1, "window-of-n", "N ≥ 41"),
        (lambda m, n, k: 1.01 if n % 4 == 2 else 1, "window-of-n", "those where N mod 4 = 2:"),
        (lambda m, n, k: 0.5 if k > 200 else 1, "window-of-k", "from K = 224 on"),
        (lambda m, n, k: 3 if k % 128 else 1, "", ""),
        (lambda m, n, k: 0.5, "power-of-two", ""),
        (lambda m, n, k: 1.01, "constant-factor", ""),
    ],
)
def test_a_fault_that_only_some_sizes_have_is_none_of_all(
    made: Callable[..., np.ndarray], by: Callable[[int, int, int], float], name: str, said: str
) -> None:
    """The name is a window's where calls of other sizes are right, and the fault's where all are wrong."""
    rows, x = np.resize(made("Q4_0", 256), (50, 144)).copy(), activations(256, 13)
    rows[:, 2] = np.arange(50)
    kernel = Odd(scaled(by))
    named = diagnose(kernel.product(kernel.upload(FORMATS["Q4_0"], rows), x), FORMATS["Q4_0"], Q8_1, rows, x)
    found = Experiments(kernel, FORMATS["Q4_0"], Q8_1, rows, x).beside(named.explanations)
    assert [f.id for f in found] == ([name] if name else [])
    assert all(said in f.words for f in found)


def rest_of_k(tile: int, rows_too: slice = slice(None)) -> Callable[..., np.ndarray]:
    """The rest of K past whole tiles is skipped, in some rows."""

    def fault(rows: np.ndarray, x: np.ndarray, right: Callable[..., np.ndarray]) -> np.ndarray:
        y, k = right(rows, x), x.shape[1] // tile * tile
        short = right(rows[:, : k // 32 * 18], x[:, :k]) if k else np.zeros_like(y)
        y[:, rows_too] = short[:, rows_too]
        return y

    return fault


@pytest.mark.parametrize(
    ("k", "fault", "said"),
    [
        (288, rest_of_k(128), "K mod 64 = 32 at the end"),
        (288, rest_of_k(128, slice(1, None, 2)), "K mod 64 = 32 at the end"),
        (288, rest_of_k(64, slice(3)), "K mod 64 = 32 at the end"),
        (448, rest_of_k(128, slice(5, None)), "K mod 128 = 64 at the end"),
    ],
)
def test_the_end_of_k_that_right_calls_allow_is_named(
    made: Callable[..., np.ndarray], k: int, fault: Callable[..., np.ndarray], said: str
) -> None:
    """Calls with other K are right, which another length of the end, as much here, would make wrong; and calls with
    fewer rows may be right where only some rows have the fault."""
    rows, x, kernel = made("Q4_0", k)[:7], activations(k, 3), Odd(fault)
    y = kernel.product(kernel.upload(FORMATS["Q4_0"], rows), x)
    named = diagnose(y, FORMATS["Q4_0"], Q8_1, rows, x)
    assert "end-of-k-dropped" in {f.id for f in named.faults}
    found = Experiments(kernel, FORMATS["Q4_0"], Q8_1, rows, x).beside(named.explanations)
    assert [f.id for f in found] == ["end-of-k-dropped"]
    assert said in found[0].words


def test_a_fault_of_some_rows_must_show_in_them(made: Callable[..., np.ndarray]) -> None:
    """Rows that are wrong in a call of 13 tokens alone have no fault of all calls."""

    def fault(rows: np.ndarray, x: np.ndarray, right: Callable[..., np.ndarray]) -> np.ndarray:
        y = right(rows, x)
        y[:, 1::2] *= np.float32(0.5 if len(x) % 13 == 0 else 1)
        return y

    rows, x, kernel = made("Q4_0", 64), activations(64, 13), Odd(fault)
    y = kernel.product(kernel.upload(FORMATS["Q4_0"], rows), x)
    named = diagnose(y, FORMATS["Q4_0"], Q8_1, rows, x)
    assert [f.id for f in named.faults] == ["power-of-two"]
    found = Experiments(kernel, FORMATS["Q4_0"], Q8_1, rows, x).beside(named.explanations)
    assert [f.id for f in found] == ["window-of-m"]


def test_a_factor_of_a_call_that_is_right_by_itself_is_no_name(made: Callable[..., np.ndarray]) -> None:
    """What a kernel keeps of an earlier call makes a factor of this one; with another shape it is right."""
    rows, x = made("Q4_0"), activations()
    kernel = Odd(for_the_first_scale())
    weights = kernel.upload(FORMATS["Q4_0"], rows)
    kernel.product(weights, 2 * x)
    named = diagnose(kernel.product(weights, x), FORMATS["Q4_0"], Q8_1, rows, x)
    assert [f.id for f in named.faults] == ["power-of-two"]
    found = Experiments(kernel, FORMATS["Q4_0"], Q8_1, rows, x).beside(named.explanations)
    assert not {f.id for f in found} & {"power-of-two", "constant-factor"}


def by_value(rows: np.ndarray, x: np.ndarray, right: Callable[..., np.ndarray]) -> np.ndarray:
    """Both factors as float32, multiplied and added in ascending k."""
    p = Case(Q8_1_RAW, FORMATS["Q8_0"], rows, Q8_1_RAW.bytes_of(x), x).parts
    w, a = (v.reshape(len(v), -1).astype(np.float32) for v in (p.q * p.d[..., None], p.a * p.e[..., None]))
    return np.ascontiguousarray(np.add.accumulate(a.T[:, :, None] * w.T[:, None, :], axis=0, dtype=np.float32)[-1])


@pytest.mark.parametrize(
    ("fault", "k", "fits"),
    [
        (by_value, 256, True),
        (by_value, 96, True),
        (lambda rows, x, right: right(rows, x) * (1 + np.float32(4e-6) * (-1) ** np.arange(len(rows))), 1024, False),
    ],
)
def test_adding_by_values_is_advised_only_if_it_fits_other_lengths(
    made: Callable[..., np.ndarray], fault: Callable[..., np.ndarray], k: int, fits: bool
) -> None:
    """Over long rows, its bound also holds factors that no rounding makes; over short ones it does not."""
    rows, x, kernel = made("Q8_0", k), activations(k), Odd(fault)
    y = kernel.product(kernel.upload(FORMATS["Q8_0"], rows), x).astype(np.float32)
    name = "q8_1, added in values"
    by_values = definition_named(name)
    assert judge(y, product(by_values, FORMATS["Q8_0"], rows, by_values.bytes_of(x))).passed
    tried = Experiments(kernel, FORMATS["Q8_0"], Q8_1, rows, x)
    assert tried.fitting((name,)) == ((name,) if fits else ())


def test_the_last_tile_of_rows_is_named_by_its_size(made: Callable[..., np.ndarray]) -> None:
    """Some rows of the last tile of 128 are wrong where it is half full; the domain is multiples of 64."""

    def fault(rows: np.ndarray, x: np.ndarray, right: Callable[..., np.ndarray]) -> np.ndarray:
        y = right(rows, x)
        y[:, len(rows) // 128 * 128 + 1 :] *= np.float32(1.5)
        return y

    rows, x = np.resize(made("Q4_0", 64), (64, 36)).copy(), activations(64, 4)
    rows[:, 2] = np.arange(64)
    found = list(Experiments(Multiples(fault), FORMATS["Q4_0"], Q8_1, rows, x).named())
    assert [f.id for f in found] == ["partial-tile"]
    assert "only where N is no multiple of 128" in found[0].words


def test_what_right_outputs_contradict_is_no_name(made: Callable[..., np.ndarray]) -> None:
    """A fault in outputs here and there, whose neighbours are right, is not what the kernel does."""
    rows, x = made("Q4_0"), activations()
    right = product(Q8_1, FORMATS["Q4_0"], rows, Q8_1.bytes_of(x)).exact.astype(np.float32)
    some = np.random.default_rng(0).random(right.shape) < 0.5
    assert not diagnose(np.where(some, right / 2, right), FORMATS["Q4_0"], Q8_1, rows, x).faults
    whole = np.where(np.arange(16) < 8, right / 2, right)
    assert [f.id for f in diagnose(whole, FORMATS["Q4_0"], Q8_1, rows, x).faults] == ["power-of-two"]


@pytest.mark.parametrize(
    ("change", "name", "said"),
    [
        (lambda y: y * np.float32(1.0001), "constant-factor", "1.0001 times"),
        (lambda y: -y, "constant-factor", "-1 times"),
        (lambda y: np.roll(y, 2, axis=1), "rows-exchanged", "row 2 gets that of 0"),
        (lambda y: y[::-1], "tokens-exchanged", "token 0 gets that of 5"),
        (lambda y: y * np.array([1.01, 1.02] * 8, np.float32), "", ""),
        (lambda y: y * np.array([1.01, 1] * 8, np.float32), "constant-factor", "1.01 times"),
        (lambda y: y + np.float32(1), "term-factor", "1 is added to each output"),
        (lambda y: y + np.float32(1) * (np.arange(16) % 2), "term-factor", "1 is added to each output"),
    ],
)
def test_what_is_read_off_outputs(
    made: Callable[..., np.ndarray], change: Callable[[np.ndarray], np.ndarray], name: str, said: str
) -> None:
    rows, x = made("Q4_0"), activations()
    right = product(Q8_1, FORMATS["Q4_0"], rows, Q8_1.bytes_of(x)).exact.astype(np.float32)
    found = diagnose(np.ascontiguousarray(change(right)), FORMATS["Q4_0"], Q8_1, rows, x)
    assert [f.id for f in found.faults] == ([name] if name else [])
    assert all(said in f.words for f in found.faults)


@pytest.mark.parametrize(("signs", "said"), [((1, 1), "1 + 3e-06 times"), ((1, -1), "")])
def test_a_factor_is_named_only_where_it_explains_the_errors(
    made: Callable[..., np.ndarray], signs: tuple[int, int], said: str
) -> None:
    """Errors within the bound are wrong by their score; any factor near one leaves outputs within the bound, too."""
    rows, x = made("Q4_0"), activations()
    case = Case(Q8_1, FORMATS["Q4_0"], rows, Q8_1.bytes_of(x), x)
    y = (case.right.exact * (1 + 3e-6 * np.tile(signs, 8))).astype(np.float32)
    found = fitted(y, case, np.ones(y.shape, bool))
    assert (found is not None) == bool(said)
    assert found is None or said in found.match.words


def test_what_changes_from_call_to_call_is_no_window(made: Callable[..., np.ndarray]) -> None:
    calls = iter(range(10**6))

    def fault(rows: np.ndarray, x: np.ndarray, right: Callable[..., np.ndarray]) -> np.ndarray:
        return right(rows, x) * np.float32(1.5 if next(calls) % 3 == 0 else 1)

    assert not list(Experiments(Odd(fault), FORMATS["Q4_0"], Q8_1, made("Q4_0", 64), activations(64)).named())
