"""Definitions composed of an encoding, a term, sums and an output: right kernels pass, one wrong code does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from gguf_verify.formats.block import BlockFormat
from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.semantics.accumulation import SCORE_LIMIT, accumulation_of
from gguf_verify.semantics.declared import DECLARABLE, composed, declaration, declared
from gguf_verify.semantics.definition import Semantics
from gguf_verify.semantics.definitions import ENCODINGS, SEMANTICS, TERMS
from gguf_verify.semantics.exact import product
from gguf_verify.semantics.gates import judge
from gguf_verify.semantics.narrow import BFLOAT16, HALF, stored
from gguf_verify.semantics.order import ASCENDING
from gguf_verify.semantics.overflow import range_problem
from gguf_verify.semantics.result import exact_result
from gguf_verify.semantics.sums import Product
from gguf_verify.semantics.terms.values import ValueTerm
from scripts.tensor_cores import probed
from tests.support.exact_products import Bytes, Floats, generator, real_weights
from tests.support.narrow_sums import HALF_SUMS, Doubles, half, in_tensor_cores, toward_zero

CARDS = ((4, 23), (8, 24), (16, 25))
Q4_0, Q4_K, Q2_K, Q8_0 = (FORMATS[name] for name in ("Q4_0", "Q4_K", "Q2_K", "Q8_0"))
# a user must not see NumPy's warnings
pytestmark = pytest.mark.filterwarnings("error")


def inputs(k: int, m: int = 4) -> dict[str, Floats]:
    """Activations whose sums a half holds badly: large beside small, all of one sign, and of signs that cancel late."""
    rng = generator("compositions", str(k))
    wave = rng.uniform(0.9, 1, (m, k))
    spiky = rng.standard_normal((m, k))
    spiky[rng.random(spiky.shape) < 0.005] *= 300
    return {
        name: values.astype(np.float32)
        for name, values in {
            "normal": rng.standard_normal((m, k)),
            "alike": wave,
            "alternating": wave * np.where(np.arange(k) % 2, -1, 1),
            "halves of blocks": wave * np.where(np.arange(k) // 16 % 2, -1, 1),
            "outliers": spiky,
        }.items()
    }


def one_code_off(fmt: BlockFormat, w: Bytes) -> Bytes:
    """One 4-bit code of the first block of each row, off by one."""
    wrong = w.reshape(len(w), -1, fmt.block_bytes).copy()
    wrong[:, 0, -1] ^= 1
    return wrong.reshape(w.shape)


def values(semantics: Semantics, fmt: BlockFormat, w: Bytes, x: Floats) -> tuple[Doubles, Doubles]:
    """The operands as such a kernel multiplies them."""
    inner = semantics.inside or semantics
    assert isinstance(inner.term, ValueTerm)
    return inner.values_of(inner.bytes_of(x)).astype(np.float64), inner.term.values(fmt, w)[0]


# ---- sums ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fmt", "k"), [(Q4_0, 32), (Q4_0, 1024), (Q8_0, 256), (Q4_K, 512)], ids=lambda v: str(getattr(v, "name", v))
)
def test_right_sums_in_half_pass(fmt: BlockFormat, k: int) -> None:
    semantics, w = declared("f16", accumulates="float16"), real_weights(fmt, 8, k)
    for name, x in inputs(k).items():
        p = product(semantics, fmt, w, semantics.bytes_of(x))
        for added in HALF_SUMS:
            y = added(*values(semantics, fmt, w, x)).astype(np.float32)
            judged = judge(y, p)
            assert judged.passed, (name, added.__name__)
            assert judged.utilisation < 0.5
            assert judged.score < SCORE_LIMIT / 4


@pytest.mark.parametrize("name", ["f16", "bf16"])
@pytest.mark.parametrize("card", CARDS, ids=str)
def test_right_sums_in_tensor_cores_pass(name: str, card: tuple[int, int]) -> None:
    """By what is measured on a card, and by the default, which is that of the worst one."""
    for fmt, k in ((Q4_0, 32), (Q4_0, 2048), (Q4_K, 512)):
        w = real_weights(fmt, 8, k)
        for said in ("tensor", dict(zip("LF", card, strict=True))):
            semantics = declared(name, accumulates=said)
            for what, x in inputs(k).items():
                p = product(semantics, fmt, w, semantics.bytes_of(x))
                y = in_tensor_cores(*values(semantics, fmt, w, x), *card).astype(np.float32)
                judged = judge(y, p)
                assert judged.passed, (what, said)
                assert judged.utilisation < 0.5


@pytest.mark.parametrize(("name", "least"), [("f16", -14), ("bf16", -126)])
@pytest.mark.parametrize("k", [32, 1024])
def test_subnormal_factors_are_aligned_by_the_smallest_normal_number(name: str, least: int, k: int) -> None:
    semantics, card = declared(name, accumulates={"L": 16, "F": 25}), (16, 25)
    w = real_weights(Q8_0, 8, k).reshape(-1, Q8_0.block_bytes)
    w[:, :2] = np.full((len(w), 1), 2.0**-24, np.float16).view(np.uint8)
    w[:, 2:] = 1 + w[:, 2:] % 2  # d·q is one or two of the smallest halves
    w, x = w.reshape(8, -1), np.random.default_rng(1).uniform(0.01, 0.05, (3, k)).astype(np.float32)
    x[:, ::16] = 1.5  # smaller products are cut off in each step
    p = product(semantics, Q8_0, w, semantics.bytes_of(x))
    y = in_tensor_cores(*values(semantics, Q8_0, w, x), *card, least).astype(np.float32)
    assert judge(y, p).passed
    assert judge(np.float32(0.99) * y, p).bad.all()


def test_a_coarser_card_than_the_declared_one_fails() -> None:
    semantics, w, x = declared("f16", accumulates={"L": 16, "F": 25}), real_weights(Q4_0, 8, 32), inputs(32)["normal"]
    a, b = values(semantics, Q4_0, w, x)
    p = product(semantics, Q4_0, w, semantics.bytes_of(x))
    assert judge(in_tensor_cores(a, b, 16, 25).astype(np.float32), p).passed
    assert not judge(in_tensor_cores(a, b, 4, 12).astype(np.float32), p).passed


@pytest.mark.parametrize("accumulates", ["float16", "tensor"])
def test_one_wrong_code_is_seen_in_one_block(accumulates: str) -> None:
    """At K = 32, where the blocks rung looks."""
    semantics, w = declared("f16", accumulates=accumulates), real_weights(Q4_0, 8, 32)
    added: Callable[[Doubles, Doubles], Doubles] = HALF_SUMS[0]
    if accumulates == "tensor":
        added = lambda a, w: in_tensor_cores(a, w, 8, 24)  # noqa: E731
    for name in ("normal", "alike", "alternating"):
        x = inputs(32)[name]
        p = product(semantics, Q4_0, w, semantics.bytes_of(x))
        a, b = values(semantics, Q4_0, one_code_off(Q4_0, w), x)
        assert judge(added(a, b).astype(np.float32), p).bad.any(), name


@pytest.mark.parametrize(("fmt", "k"), [(Q4_0, 4096), (Q4_K, 512), (Q8_0, 64)], ids=["Q4_0", "Q4_K", "Q8_0"])
@pytest.mark.parametrize("takes", ["float16", "float32"])
def test_bits_of_fused_multiply_adds_in_half(fmt: BlockFormat, k: int, takes: str) -> None:
    """However long the row is, one unit in the last place is seen, and so is another order."""
    semantics, w = declared("f16", accumulates="float16", takes=takes), real_weights(fmt, 8, k)
    assert semantics.order_known
    x = (30 * generator("half bits", str(k)).standard_normal((3, k))).astype(np.float32)
    p = product(semantics, fmt, w, semantics.bytes_of(x), ASCENDING)
    decoded = fmt.decode(w.reshape(8, -1, fmt.block_bytes)).reshape(8, k)
    right = HALF_SUMS[0](half(x.astype(np.float64)), half(decoded.astype(np.float64))).astype(np.float32)
    assert judge(right, p).verified
    wrong = right.copy()
    wrong[1, 5] = np.nextafter(wrong[1, 5].astype(np.float16), np.float16(np.inf))
    assert np.argwhere(judge(wrong, p).bad).tolist() == [[1, 5]]
    other = HALF_SUMS[2](half(x.astype(np.float64)), half(decoded.astype(np.float64))).astype(np.float32)
    assert judge(other, p).bad.any()


def test_in_a_declared_order_a_half_overflows_only_if_its_sums_do() -> None:
    """In another order the sums of the first token might, too."""
    semantics, w = declared("f16", accumulates="float16", output="float16"), real_weights(Q8_0, 4, 8192)
    x = np.array([[2000], [45000]], np.float32) * np.ones((2, 8192), np.float32)
    given = semantics.bytes_of(x)
    assert not np.isfinite(product(semantics, Q8_0, w, given).exact).any()
    right = HALF_SUMS[0](*values(semantics, Q8_0, w, x))
    assert np.isfinite(right[0]).all()
    assert not np.isfinite(right[1]).all()
    judged = judge(right.astype(np.float32), product(semantics, Q8_0, w, given, ASCENDING))
    assert judged.bad.tolist() == (~np.isfinite(right)).tolist()


def test_no_order_of_float32_values_that_are_added_in_half_is_stated() -> None:
    semantics = declared("f32_apart", accumulates="float16")
    w, x = real_weights(Q4_0, 2, 32), inputs(32)["normal"]
    assert not semantics.order_known
    with pytest.raises(ValueError, match="no definition states the order ascending k of sums in float16"):
        product(semantics, Q4_0, w, semantics.bytes_of(x), ASCENDING)


def test_a_half_accumulator_that_may_overflow_is_the_definitions_fault() -> None:
    semantics, w = declared("f16", accumulates="float16"), real_weights(Q8_0, 1, 256)
    x = np.full((1, 256), 60000, np.float32)
    p = product(semantics, Q8_0, w, semantics.bytes_of(x))
    assert not np.isfinite(p.exact).any()
    assert judge(np.zeros((1, 1), np.float32), p).bad.all()
    problem = range_problem(semantics, Q8_0, w[0], semantics.bytes_of(x)[0])
    assert problem is not None
    assert (problem.what, problem.to_blame) == ("sum", "definition")
    assert np.isfinite(product(declared("f16"), Q8_0, w, semantics.bytes_of(x)).exact).all()


def test_the_probe_finds_the_numbers_of_a_card() -> None:
    for card in (*CARDS, (4, 25), (8, 23)):

        def instruction(a: Floats, w: Floats, c: Floats, card: tuple[int, int] = card) -> Floats:
            products, fraction = card
            a64, w64, total = a.astype(np.float64), w.astype(np.float64), c.astype(np.float64)
            for k in range(0, a.shape[1], products):
                parts = a64[:, None, k : k + products] * w64[None, :, k : k + products]
                terms = np.concatenate([parts, total[..., None]], axis=2)
                most = np.abs(terms).max(axis=2)
                quantum = np.where(most > 0, np.ldexp(1.0, np.frexp(most)[1] - 1 - fraction), 1.0)[..., None]
                total = toward_zero((np.trunc(terms / quantum) * quantum).sum(axis=2), 24)
            return total.astype(np.float32)

        assert probed(instruction) == card
    with pytest.raises(ValueError, match="nothing is cut off"):
        probed(lambda a, w, c: (a.astype(np.float64) @ w.T + c).astype(np.float32))
    with pytest.raises(ValueError, match="this is no matrix product"):
        probed(lambda a, w, c: np.arange(c.size, dtype=np.float32).reshape(c.shape))


# ---- outputs ---------------------------------------------------------------------------------------------------------


def bfloat16(values: npt.NDArray[np.float32]) -> Floats:
    """To nearest even, by the bits."""
    raw = values.view(np.uint32)
    return (raw + np.uint32(0x7FFF) + (raw >> 16 & 1) & np.uint32(0xFFFF0000)).view(np.float32)


ROUND = {"float16": lambda v: v.astype(np.float16).astype(np.float32), "bfloat16": bfloat16}


@pytest.mark.parametrize("output", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["q8_1", "f32"])
def test_outputs_of_16_bits(name: str, output: str) -> None:
    """A rounded result passes, one that is off by an ulp does not, and neither does one wrong code at K = 32."""
    semantics, plain = declared(name, output=output), SEMANTICS[name]
    for k in (32, 2048):
        w, x = real_weights(Q4_0, 16, k), inputs(k)["normal"]
        bytes_of = semantics.bytes_of(x)
        whole = product(plain, Q4_0, w, bytes_of, ASCENDING)
        assert whole.ordered is not None
        p = product(semantics, Q4_0, w, bytes_of)
        right = ROUND[output](whole.ordered)
        judged = judge(right, p)
        assert judged.passed
        assert judged.utilisation <= 1
        assert k > 32 or judged.utilisation > 0.5  # the rounding of the output is nearly all of it
        assert judge(right, product(semantics, Q4_0, w, bytes_of, ASCENDING)).differing_bits == 0
        narrow = HALF if output == "float16" else BFLOAT16
        off = right + 2 * np.sign(right) * narrow.half_ulp(np.abs(right).astype(np.float64))
        assert judge(off.astype(np.float32), p).bad.mean() > (0.9 if k == 32 else 0.5)
        assert judge(off.astype(np.float32), product(semantics, Q4_0, w, bytes_of, ASCENDING)).bad.all()
        assert (exact_result(semantics, Q4_0, w, bytes_of) == narrow.rounded(whole.exact)).all()
        if k == 32:
            wrong = product(plain, Q4_0, one_code_off(Q4_0, w), bytes_of, ASCENDING).ordered
            assert wrong is not None
            assert judge(ROUND[output](wrong), p).bad.mean() > 0.5


def test_an_output_that_a_half_does_not_hold_is_the_definitions_fault() -> None:
    w, x = real_weights(Q4_0, 8, 256), np.full((1, 256), 3e5, np.float32)
    semantics = declared("f32", output="float16")
    whole = product(declared("f32"), Q4_0, w, x.view(np.uint8))
    p = product(semantics, Q4_0, w, x.view(np.uint8))
    over = np.abs(whole.exact) >= 65520
    assert over.any()
    assert not over.all()
    assert (np.isfinite(p.exact) == ~over).all()
    n = int(np.flatnonzero(over[0])[0])
    problem = range_problem(semantics, Q4_0, w[n], x.view(np.uint8)[0])
    assert problem is not None
    assert (problem.what, problem.to_blame) == ("output", "definition")
    assert "the output overflows half here" in problem.words


def test_rounding_near_the_limits_of_a_half() -> None:
    """Halves around a value are as far apart as its exponent says, subnormal ones 2^-24, and 65519.9 is finite."""
    exact = np.array([[0.0, 2.0**-30, 1.0, 65503.0, 65519.0, 65519.999]])
    p = stored(Product(exact, np.full(exact.shape, 1e-6), np.full(exact.shape, 1e-8), None), "float16")
    assert (np.isfinite(p.exact) == [[True, True, True, True, True, True]]).all()
    assert p.bound[0, 0] == 1e-6 + 2.0**-25
    assert p.bound[0, 2] == 1e-6 + 2.0**-11
    assert p.bound[0, 3] == 1e-6 + 16
    wider = stored(Product(exact, np.full(exact.shape, 0.01), np.full(exact.shape, 0.01), None), "float16")
    assert (np.isfinite(wider.exact) == [[True, True, True, True, True, False]]).all()
    every = np.arange(1 << 16, dtype=np.uint16)
    halves = every.view(np.float16)[np.isfinite(every.view(np.float16))].astype(np.float64)
    assert (HALF.rounded(halves) == halves).all()
    rng = generator("bfloat16")
    some = (rng.standard_normal(4000) * 2.0 ** rng.integers(-140, 127, 4000)).astype(np.float32)
    assert (BFLOAT16.rounded(some).astype(np.float32).view(np.uint32) == bfloat16(some).view(np.uint32)).all()


# ---- encodings and terms ---------------------------------------------------------------------------------------------


def slow_mmq_d2s6(x: Floats) -> tuple[npt.NDArray[np.int64], list[Fraction], list[Fraction | None]]:
    """Codes, scales of 64 and sums of 16 of one row, in plain Python; None where a block has no room for the sum."""
    codes, scales, sums = [], [], []
    for at in range(0, x.size, 64):
        block = x[at : at + 64]
        inverse = np.float32(127) / np.abs(block).max()
        codes += [int(np.sign(v) * np.floor(np.abs(v) + np.float32(0.5))) for v in block * inverse]
        scales.append(Fraction(float(np.float16(np.float32(1) / inverse))))
    for at in range(0, x.size, 16):
        four = [[np.float32(v) for v in x[at + i : at + i + 4]] for i in range(0, 16, 4)]
        a, b, c, d = (((v[0] + v[1]) + v[2]) + v[3] for v in four)
        sums.append(Fraction(float(np.float16((a + c) + (b + d)))) if at % 128 < 96 else None)
    return np.array(codes), scales, sums


def test_mmq_of_q2_k_in_exact_arithmetic() -> None:
    semantics, k = SEMANTICS["mmq_d2s6"], 512
    w, x = real_weights(Q2_K, 3, k), inputs(k, 2)["normal"]
    p = product(semantics, Q2_K, w, semantics.bytes_of(x))
    blocks = w.reshape(3, -1, Q2_K.block_bytes)
    q_w = Q2_K.codes(blocks).reshape(3, -1, 16).astype(int)
    d_w, m_w = (v.astype(np.float16).astype(float).reshape(3, -1) for v in (Q2_K.scales(blocks), Q2_K.minima(blocks)))
    for m in range(2):
        codes, d_a, sums = slow_mmq_d2s6(x[m])
        for n in range(3):
            total = Fraction(0)
            for g in range(k // 16):
                part = codes[16 * g : 16 * g + 16]
                s = sums[g]
                s = d_a[g // 4] * int(part.sum()) if s is None else s
                total += Fraction(d_w[n, g]) * d_a[g // 4] * int(part @ q_w[n, g]) + Fraction(m_w[n, g]) * s
            assert abs(p.exact[m, n] - float(total)) <= 1e-12 * p.bound[m, n] / 2.0**-24


def test_mmq_of_q2_k_as_measured() -> None:
    """llama.cpp's own product of Q2_K with many tokens, on an H200."""
    measured = np.load(Path(__file__).parents[2] / "data" / "llama_cuda_h200.npz")
    w, x, y = (measured[name] for name in ("Q2_K/w", "x_many", "Q2_K/many"))
    for name, right in (("mmq_d2s6", True), ("q8_1", False)):
        semantics = SEMANTICS[name]
        assert judge(y, product(semantics, Q2_K, w, semantics.bytes_of(x))).passed == right


def test_older_mmq_in_exact_arithmetic() -> None:
    """Minima of superblocks meet the stored s, and scales are not rounded: another result than of `q8_1` and `mmq`."""
    semantics, k = SEMANTICS["mmq_older"], 512
    w, x = real_weights(Q4_K, 3, k), inputs(k, 2)["normal"]
    taken = semantics.bytes_of(x)
    p = product(semantics, Q4_K, w, taken)
    blocks, given = w.reshape(3, -1, Q4_K.block_bytes), taken.reshape(2, -1, 36)
    q_w, scales, minima = Q4_K.codes(blocks).reshape(3, -1, 32), Q4_K.scales(blocks), Q4_K.minima(blocks)
    d_w, m_w = scales.reshape(3, -1), minima.reshape(3, -1)
    for m in range(2):
        for n in range(3):
            total = Fraction(0)
            for b in range(k // 32):
                d, s = (Fraction(float(v)) for v in given[m, b, :4].view(np.float16))
                dot = int(given[m, b, 4:].view(np.int8).astype(int) @ q_w[n, b].astype(int))
                total += Fraction(float(d_w[n, b])) * d * dot + Fraction(float(m_w[n, b])) * s
            assert abs(p.exact[m, n] - float(total)) <= 1e-12 * p.bound[m, n] / 2.0**-24
    for other in ("q8_1", "mmq"):
        assert not judge(p.exact.astype(np.float32), product(SEMANTICS[other], Q4_K, w, taken)).passed


@pytest.mark.parametrize(
    ("plain", "packed", "scales"), [("mmq_ds4", "mmq_ds4_bytes", "<f2"), ("mmq_d4", "mmq_d4_bytes", "<f4")]
)
def test_blocks_of_llama_cpps_own_layout(plain: str, packed: str, scales: str) -> None:
    """16 bytes of scales before 128 codes, also where K ends within a block; and the same product."""
    for k in (32, 256, 288):
        x = inputs(k, 3)["normal"]
        fours, ones = ENCODINGS[packed].encode(x), ENCODINGS[plain].encode(x).reshape(3, -1, 36)
        assert fours.shape == (3, -(-k // 128) * 144) == (3, ENCODINGS[packed].row_bytes(k))
        for b in range(k // 32):
            block = fours[:, b // 4 * 144 : b // 4 * 144 + 144]
            assert (block[:, b % 4 * 4 : b % 4 * 4 + 4] == ones[:, b, :4]).all()
            assert (block[:, 16 + b % 4 * 32 : 48 + b % 4 * 32] == ones[:, b, 4:]).all()
        term = "mmq" if plain == "mmq_ds4" else "integers"
        of = [composed(ENCODINGS[name], TERMS[term]) for name in (plain, packed)]
        w = real_weights(Q4_0, 4, k)
        one, other = (product(s, Q4_0, w, s.bytes_of(x)) for s in of)
        assert (one.exact == other.exact).all()
        assert (one.bound == other.bound).all()
        assert (of[1].values_of(fours)[:, :k] == of[0].values_of(of[0].bytes_of(x))).all()
        assert np.dtype(scales).itemsize in (2, 4)


@pytest.mark.parametrize("fmt", [Q4_0, Q4_K], ids=lambda f: f.name)
def test_weights_of_half_arithmetic(fmt: BlockFormat) -> None:
    """Each step rounded to half: right by `half_steps`, wrong as weights that are rounded once."""
    k = 512
    w, x = real_weights(fmt, 6, k), inputs(k)["normal"]
    blocks = w.reshape(6, -1, fmt.block_bytes)
    q = fmt.codes(blocks).astype(np.float64).reshape(6, -1, fmt.groups, fmt.group)
    d, m = (half(v.astype(np.float64))[..., None] for v in (fmt.scales(blocks), fmt.minima(blocks)))
    stepwise = half(half(d * q) + m).reshape(6, k)
    steps, once = (declared(activations="float16", term=term) for term in ("half_steps", "half_values"))
    a = steps.values_of(steps.bytes_of(x)).astype(np.float64)
    y = (a @ stepwise.T).astype(np.float32)
    judged = judge(y, product(steps, fmt, w, steps.bytes_of(x)))
    assert judged.passed
    assert judged.utilisation < 0.5
    assert not judge(y, product(once, fmt, w, once.bytes_of(x))).passed
    assert not judge(y * np.float32(1.2), product(steps, fmt, w, steps.bytes_of(x))).passed


def test_activations_are_rounded_to_what_is_taken_before_they_are_quantized() -> None:
    semantics, w, x = declared("q8_1", takes="bfloat16"), real_weights(Q4_0, 4, 64), inputs(64)["normal"]
    taken = semantics.bytes_of(x)
    assert taken.shape == (4, 128)
    assert (semantics.values_of(taken).view(np.uint32) == bfloat16(x).view(np.uint32)).all()
    expected = product(SEMANTICS["q8_1"], Q4_0, w, SEMANTICS["q8_1"].bytes_of(bfloat16(x)))
    assert (product(semantics, Q4_0, w, taken).exact == expected.exact).all()


# ---- declarations ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DECLARABLE)
def test_every_name_is_declared_and_proposed(name: str) -> None:
    semantics = declared(name)
    assert declaration(semantics) == f'semantics = "{name}"'
    assert composed(semantics.encoding, semantics.term) is semantics


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"name": "q8_2"}, "did you mean 'q8_1'"),
        ({"name": "q8_1", "term": "sums"}, "leave it out, or activations and term"),
        ({"activations": "q8_1"}, "declares no term"),
        ({"activations": "q8_1", "term": "values"}, "with it go delta_sums, half_products, integers, "),
        ({"activations": "float16", "term": "sums"}, "with it go bfloat16_steps, "),
        ({"activations": "q8", "term": "sums"}, "activations 'q8': "),
        ({"name": "q8_1", "accumulates": "tensor"}, "leave it out"),
        ({"name": "f32", "accumulates": "tensor"}, 'go semantics "f16" and "bf16"'),
        ({"name": "f16", "accumulates": {"L": 4, "G": 1}}, "has the integers L and F"),
        ({"name": "f16", "accumulates": {"L": 0}}, "not 0 and 23"),
        ({"name": "f16", "accumulates": "int32"}, "accumulates 'int32' is not one of"),
        ({"name": "q8_1", "output": "int8"}, "output 'int8' is not one of"),
        ({"name": "q8_1", "takes": "int8"}, "takes 'int8' is not one of"),
    ],
)
def test_what_does_not_go_together_is_refused_in_one_line(said: dict[str, object], why: str) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011
        declared(**said)  # type: ignore[arg-type]
    assert why in str(refused.value)
    assert "\n" not in str(refused.value)


def test_what_a_declaration_composes() -> None:
    half_out = declared("q8_1", takes="float16", output="bfloat16", accumulates="float16")
    assert declaration(half_out) == (
        'semantics = "q8_1", takes = "float16", accumulates = "float16", output = "bfloat16"'
    )
    assert declared("f32", takes="float16").encoding is ENCODINGS["float16"]
    assert declared("f16", takes="float32").inside is not None
    card = declared("f16", accumulates={"L": 16, "F": 25})
    assert declaration(card) == 'semantics = "f16", accumulates = { L = 16, F = 25 }'
    assert card.accumulation == accumulation_of({"L": 16, "F": 25})
    mixed = declared(activations="q8_0_cpu", term="integers")
    assert declaration(mixed) == 'activations = "q8_0_cpu", term = "integers"'
    with pytest.raises(ValueError, match="has no sum s, which Q4_1 needs"):
        mixed.uses_sum(FORMATS["Q4_1"])
    with pytest.raises(ValueError, match="sums of 32 activations, and Q2_K needs those of 16"):
        replace(SEMANTICS["mmq"]).uses_sum(Q2_K)


def test_every_pair_has_the_same_result_by_two_ways() -> None:
    """`product` by blocks and `exact_result` by matrix products, for each pair of an encoding and a term."""
    seen = 0
    for fmt in (Q4_0, FORMATS["Q4_1"], Q4_K, Q2_K, FORMATS["Q3_K"]):
        w, x = real_weights(fmt, 3, 256), inputs(256, 2)["normal"]
        for encoding in ENCODINGS.values():
            for term in TERMS.values():
                if encoding.quantizes == term.of_values:
                    continue
                semantics = composed(encoding, term)
                try:
                    semantics.uses_sum(fmt)
                except ValueError:
                    continue
                taken = semantics.bytes_of(x)
                assert taken.shape[1] == encoding.row_bytes(256)
                p = product(semantics, fmt, w, taken)
                result = exact_result(semantics, fmt, w, taken)
                assert (np.abs(result - p.exact) <= 1e-5 * p.bound).all(), semantics.name
                seen += 1
    assert seen > 200
