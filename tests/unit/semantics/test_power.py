"""A bound is a check only if it can fail: products whose gates accept anything are not verified, and are judged more
closely where what correct kernels lose is known."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from gguf_verify.formats.block import BlockFormat
from gguf_verify.formats.tensor_types import ELEMENTS, FORMATS
from gguf_verify.semantics.accumulation import SCORE_LIMIT
from gguf_verify.semantics.closer import MISSED, limit
from gguf_verify.semantics.declared import declared
from gguf_verify.semantics.definition import Semantics
from gguf_verify.semantics.definitions import SEMANTICS
from gguf_verify.semantics.exact import product
from gguf_verify.semantics.gates import Judgement, judge
from gguf_verify.semantics.power import FEW
from gguf_verify.semantics.screen import screened
from gguf_verify.semantics.sums import Product
from tests.support.exact_products import Bytes, Floats, generator, real_weights
from tests.support.narrow_sums import HALF_SUMS, Doubles, half
from tests.unit.semantics.test_compositions import values

Q4_0, Q4_1, Q4_K, Q8_0 = (FORMATS[name] for name in ("Q4_0", "Q4_1", "Q4_K", "Q8_0"))
IN_HALF = declared("f16", accumulates="float16")


def normal(m: int, k: int, scale: float = 1.0) -> Floats:
    return (scale * generator("power", str(k)).standard_normal((m, k))).astype(np.float32)


def expected(semantics: Semantics, fmt: BlockFormat, n: int, x: Floats) -> Product:
    return product(semantics, fmt, real_weights(fmt, n, x.shape[1]), semantics.bytes_of(x))


def rounded(values: Doubles) -> Floats:
    return values.astype(np.float32)


@pytest.mark.parametrize("share", [0.0, 0.9])
@pytest.mark.parametrize(
    ("semantics", "k"),
    [
        (IN_HALF, 256), (IN_HALF, 4096), (IN_HALF, 32768), (declared("q8_1", accumulates="float16"), 32768),
        (declared("f32_apart", accumulates="float16"), 4096),
        (declared(activations="bfloat16", term="bfloat16_steps"), 4096),
        (declared("f16", accumulates="float16", output="float16"), 16384),
    ],
    ids=lambda v: v if isinstance(v, int) else v.name + v.rounded_words,
)  # fmt: skip
def test_zeros_and_a_constant_factor_are_never_verified(semantics: Semantics, k: int, share: float) -> None:
    fmt = Q8_0 if semantics.name == "q8_1" else Q4_0
    p = expected(semantics, fmt, 24, normal(4, k))
    assert not judge(rounded(share * p.exact), p).verified


@pytest.mark.parametrize("added", HALF_SUMS)
@pytest.mark.parametrize(("k", "m"), [(32, 2), (256, 4), (2048, 4)])
def test_correct_sums_in_half_are_verified(added: Callable[[Doubles, Doubles], Doubles], k: int, m: int) -> None:
    x, w = normal(m, k), real_weights(Q4_0, 24, k)
    y = rounded(added(*values(IN_HALF, Q4_0, w, x)))
    judgement = judge(y, product(IN_HALF, Q4_0, w, IN_HALF.bytes_of(x)))
    assert judgement.verified
    assert (judgement.closer is not None) == (k > 32)


@pytest.mark.parametrize("lanes", [1, 8])
@pytest.mark.parametrize("data", ["normal", "runs of 8", "equal"])
def test_block_sums_that_are_added_in_half_are_verified(data: str, lanes: int) -> None:
    """Also by lanes whose sums grow, where those of whole blocks cancel; nine tenths of the outputs are found."""
    semantics, k = declared("q8_1", accumulates="float16"), 4096
    x = {
        "normal": normal(4, k), "runs of 8": np.where(np.arange(k) // 8 % 2, -1.0, 1.0) * np.abs(normal(4, 1)),
        "equal": np.ones((4, k)),
    }[data].astype(np.float32)  # fmt: skip
    w, given = real_weights(Q8_0, 24, k), semantics.bytes_of(x)
    p = product(semantics, Q8_0, w, given)
    # d_w·d_a·Σ q_w·q_a of Q8_0 and Q8_1, of each of so many parts of each block, [M, N, blocks, lanes].
    of_w, of_x = w.reshape(len(w), -1, 34), given.reshape(len(given), -1, 36)
    d_w, d_a = (of[..., :2].copy().view(np.float16)[..., 0].astype(np.float64) for of in (of_w, of_x))
    q_w, q_a = (
        of.view(np.int8).astype(np.float64).reshape(*of.shape[:2], lanes, -1) for of in (of_w[..., 2:], of_x[..., 4:])
    )
    terms = half(d_w * d_a[:, None])[..., None] * np.einsum("nbli,mbli->mnbl", q_w, q_a)
    total: Doubles = np.zeros((4, 24, lanes))
    for b in range(k // 32):
        total = half(total + half(terms[:, :, b]))
    while total.shape[2] > 1:
        total = half(total[..., ::2] + total[..., 1::2])
    judgement = judge(rounded(total[..., 0]), p)
    assert judgement.verified
    assert judgement.closer is not None
    assert not judge(rounded(0.9 * p.exact), p).verified
    dropped = rounded(total[..., 0] - terms[:, :, :16].sum(axis=(2, 3)))
    assert not judge(dropped, p).verified


def test_lanes_that_hold_large_sums_are_no_reason_to_fail() -> None:
    """The score presumes random signs in lanes. The lane orders of half sums explain such outputs, and no other."""
    semantics, k = declared("q8_1", accumulates="float16"), 1024
    x = np.where(np.arange(k) // 8 % 2, -1, 1).astype(np.float32)[None]
    w = real_weights(Q4_K, 24, k)
    p = product(semantics, Q4_K, w, semantics.bytes_of(x))
    assert p.lanes is not None
    explained = SCORE_LIMIT * p.lanes.of(np.zeros(24, np.intp), np.arange(24)).deviation[None]
    wide = np.isin(np.arange(24), np.argsort((explained / p.spread)[0])[-3:])[None]
    assert (explained[wide] > 1.2 * SCORE_LIMIT * p.spread[wide]).all()
    assert judge(rounded(p.exact + 0.9 * explained * wide), p).passed
    assert (judge(rounded(p.exact + 1.1 * explained * wide), p).bad == wide).all()


@pytest.mark.parametrize("fmt", [Q4_0, Q8_0], ids=["Q4_0", "Q8_0"])
def test_lanes_whose_values_have_one_sign_are_no_mismatch(fmt: BlockFormat) -> None:
    """Four lanes that take two values in turn, of rows of equal blocks and of activations that alternate in fours."""
    x = np.where(np.arange(8192) // 4 % 2, -1, 1).astype(np.float32)[None]
    w = np.tile(real_weights(fmt, 24, 8192)[:, : fmt.block_bytes], 8192 // 32)
    a, b = values(IN_HALF, fmt, w, x)
    total = np.zeros((1, 24))
    for lane in range(4):
        of_lane = np.arange(8192) // 2 % 4 == lane
        total = half(total + HALF_SUMS[0](a[:, of_lane], b[:, of_lane]))
    assert judge(rounded(total), product(IN_HALF, fmt, w, IN_HALF.bytes_of(x))).passed


def test_of_a_long_row_one_wrong_token_is_found() -> None:
    """Each of its outputs is within the bound of any order, and within what one output may be off by."""
    x, w = normal(4, 2048), real_weights(Q4_0, 40, 2048)
    a, b = values(IN_HALF, Q4_0, w, x)
    p = product(IN_HALF, Q4_0, w, IN_HALF.bytes_of(x))
    y = rounded(HALF_SUMS[0](a, b))
    wrong = y.copy()
    wrong[2] *= np.float32(0.85)
    assert judge(y, p).verified
    found = judge(wrong, p)
    assert not (np.abs(wrong - p.exact) > p.bound).any()
    assert found.bad[2].any()
    assert not found.bad[[0, 1, 3]].any()


def test_weights_that_are_decoded_in_steps_are_verified() -> None:
    semantics = declared(activations="bfloat16", term="bfloat16_steps")
    x, w = normal(4, 4096), real_weights(Q8_0, 24, 4096)
    p = product(semantics, Q8_0, w, semantics.bytes_of(x))
    a, b = values(semantics, Q8_0, w, x)
    decoded = b.astype(np.float32)  # rounded once more to bfloat16, toward zero
    decoded = (decoded.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32).astype(np.float64)
    assert judge(rounded(a @ decoded.T), p).verified


@pytest.mark.parametrize("name", sorted(SEMANTICS))
def test_definitions_of_float32_sums_have_power(name: str) -> None:
    """Of one output as of many, at any length, of tiny and of large values."""
    semantics = SEMANTICS[name]
    if semantics.of_elements:
        pytest.skip("of weights that are not quantized")
    for fmt in (Q4_0, Q4_1, Q8_0, Q4_K):
        try:
            semantics.uses_sum(fmt)
        except ValueError:
            continue
        for k, scale in ((256, 1.0), (4096, 1e-3), (4096, 100.0)):
            x = normal(3, k, scale)
            p = expected(semantics, fmt, 20, x)
            if not np.isfinite(p.exact).all():
                continue
            assert judge(rounded(p.exact), p).power.weak == 0
            for m in range(3):
                exact, bound, spread = (of[m : m + 1, :1] for of in (p.exact, p.bound, p.spread))
                one = Product(exact, bound, spread, None, scale=None if p.scale is None else p.scale[m : m + 1, :1])
                assert not judge(rounded(one.exact), one).power.lacking


@pytest.mark.parametrize("kind", sorted(ELEMENTS))
def test_weights_that_are_not_quantized_have_power(kind: str) -> None:
    x, values = normal(3, 768), normal(20, 768)
    bits = (values.view(np.uint32) >> 16).astype(np.uint16)
    stored: dict[str, Bytes] = {
        "F32": values.view(np.uint8), "F16": values.astype(np.float16).view(np.uint8), "BF16": bits.view(np.uint8)
    }  # fmt: skip
    w = stored[kind].reshape(20, -1)
    p = product(SEMANTICS["f32"], ELEMENTS[kind], w, x.view(np.uint8).reshape(3, -1))
    assert judge(rounded(p.exact), p).power.weak == 0


def test_zero_outputs_do_not_count() -> None:
    """Zero weights, zero activations, and terms that cancel exactly or up to the rounding of float64."""
    semantics, x = SEMANTICS["f32"], normal(4, 512)
    w = np.zeros((20, 512 // 32 * 18), np.uint8)
    for given in (x, np.zeros_like(x)):
        p = product(semantics, Q4_0, w, semantics.bytes_of(given))
        assert judge(rounded(p.exact), p).verified
    rows = real_weights(Q4_0, 20, 256)
    twice, opposite = np.concatenate([rows, rows], axis=1), np.concatenate([x[:, :256], -x[:, :256]], axis=1)
    for given in (opposite, opposite * (1 + 1e-6 * (np.arange(512) < 256)).astype(np.float32)):
        p = product(semantics, Q4_0, twice, semantics.bytes_of(given))
        assert (np.abs(p.exact) < 1e-4).all()
        assert judge(rounded(p.exact), p).verified


@pytest.mark.parametrize(("output", "sums"), [("float16", "float32"), ("float32", "float16"), ("float16", "float16")])
def test_outputs_that_underflow_are_no_evidence(output: str, sums: str) -> None:
    """Of blocks with tiny scales zero is correct in halves: a correct product of them and few others has power, one of
    them alone is not verified, and zeros never are."""
    semantics, x = declared("f16", accumulates=sums, output=output), normal(40, 32, 0.05)
    w = real_weights(Q4_0, 3, 32)
    w[1:, :2] = np.array([2.0**-24], np.float16).view(np.uint8)

    def judged(rows: Bytes, share: float) -> Judgement:
        a, b = values(semantics, Q4_0, rows, x)
        y = HALF_SUMS[0](a, b) if sums == "float16" else a @ b.T
        y = y.astype(np.float16) if output == "float16" else y
        p = product(semantics, Q4_0, rows, semantics.bytes_of(x))
        return judge(rounded(share * y.astype(np.float64)), p)

    mixed = judged(w, 1.0)
    assert mixed.verified
    assert mixed.power.underflowing > mixed.power.outputs > 0
    assert not judged(w, 0.0).verified
    tiny = judged(w[1:], 1.0)
    assert tiny.passed
    assert not tiny.verified
    assert tiny.power.outputs < FEW


@pytest.mark.parametrize("fmt", [Q4_0, Q4_1, Q8_0, Q4_K], ids=["Q4_0", "Q4_1", "Q8_0", "Q4_K"])
def test_block_sums_that_underflow_in_half_are_no_evidence(fmt: BlockFormat) -> None:
    """Rows of tiny scales beside others: these are verified, and tiny ones alone say nothing, whatever they are."""
    semantics, k = declared("q8_1", accumulates="float16"), 512
    x = normal(4, k)
    w = real_weights(fmt, 24, k)
    tiny = w.copy()
    scales = tiny.reshape(24, -1, fmt.block_bytes)
    scales[..., :2] = np.array([2.0**-24], np.float16).view(np.uint8)
    if fmt.has_min:
        scales[..., 2:4] = 0
    mixed = np.concatenate([w[:4], tiny[4:]])
    for rows, size, verified in ((w, 1.0, True), (mixed, 1.0, True), (tiny, 0.01, False)):
        p = product(semantics, fmt, rows, semantics.bytes_of(np.float32(size) * x))
        judgement = judge(rounded(p.exact), p)
        assert judgement.passed
        assert judgement.verified == verified
        assert verified != judgement.power.empty
        assert not judge(rounded(0.0 * p.exact), p).verified


@pytest.mark.parametrize(
    "epilogue", [["scale"], ["row_scale", "token_scale"], ["silu_gate"], ["relu_gate", "scale"], ["scale", "residual"]]
)
def test_outputs_that_underflow_behind_an_epilogue_are_no_evidence(epilogue: list[str]) -> None:
    """Of half, and of sums in half: what is lost is multiplied like the sum. A residual that is added is evidence."""
    for sums, output in (("float16", "float32"), ("float32", "float16")):
        semantics = declared("f16", accumulates=sums, output=output, epilogue=epilogue)
        x, w = normal(40, 32, 1e-3), real_weights(Q4_0, 20, 32)
        w[:, :2] = np.array([2.0**-24], np.float16).view(np.uint8)
        p = product(semantics, Q4_0, w, semantics.bytes_of(x))
        judgement = judge(p.exact.astype(output).astype(np.float32), p)
        assert judgement.passed
        if "residual" in epilogue:
            assert judgement.power.outputs == p.exact.size
        else:
            assert not judgement.verified
            assert judgement.power.empty


def test_a_bound_that_is_not_finite_verifies_nothing() -> None:
    one = np.ones((4, 20))
    assert not judge(np.zeros((4, 20), np.float32), Product(one, one * np.inf, one * np.inf, None)).verified
    assert not judge(np.zeros((4, 20), np.float32), Product(one, one * np.nan, one, None)).verified
    assert judge(np.ones((4, 20), np.float32), Product(one, one * 1e-6, one * 1e-8, None)).verified


def test_a_screened_product_has_the_power_of_the_whole_one() -> None:
    semantics, x, w = SEMANTICS["f32"], normal(32, 4096), real_weights(Q4_0, 512, 4096)
    p = screened(semantics, Q4_0, w, semantics.bytes_of(x))
    assert p.of_rows is not None
    assert judge(rounded(p.exact), p).power.weak == 0


def test_bits_of_a_declared_order_have_power_whatever_the_bound() -> None:
    one = np.ones((4, 20))
    y = np.ones((4, 20), np.float32)
    assert judge(y, Product(one, one, one, y)).verified


@pytest.mark.parametrize("drift", [0.0, 0.7, 5.0])
@pytest.mark.parametrize("n", [1, 3, 16, 200])
def test_the_limit_of_outputs_together_is_that_of_a_noncentral_chi_square(n: int, drift: float) -> None:
    """Chernoff's bound of it is MISSED at most, and an eighth of its excess over the mean is exceeded."""
    noncentral = n * drift**2
    mean, allowed = n + noncentral, limit(n, noncentral)
    rng = np.random.default_rng(n)
    sums = ((rng.standard_normal((2000, n)) + drift) ** 2).sum(axis=1)
    assert (sums <= allowed).all()
    assert (sums > mean + (allowed - mean) / 8).any()
    tilt = np.linspace(0.001, 0.499, 500)
    exponent = noncentral * tilt / (1 - 2 * tilt) - n / 2 * np.log(1 - 2 * tilt) - tilt * allowed
    assert np.exp(exponent.min()) <= 1.01 * MISSED


def test_outputs_that_are_alike_count_once() -> None:
    """The errors of equal rows are equal, so one that is two deviations off is no reason to fail all."""
    x, w = normal(1, 4096), real_weights(Q4_0, 3, 4096)
    rows = np.repeat(np.arange(3), 40)
    p = product(IN_HALF, Q4_0, w[rows], IN_HALF.bytes_of(x))
    assert p.errors is not None
    lost = p.errors(np.arange(1), np.arange(120))
    y = rounded(p.exact + np.where(rows == 1, 2.0 * lost.deviation + lost.drift, 0.0))
    assert judge(y, p).passed
    different = product(IN_HALF, Q4_0, real_weights(Q4_0, 120, 4096), IN_HALF.bytes_of(x))
    assert different.errors is not None
    lost = different.errors(np.arange(1), np.arange(120))
    assert not judge(rounded(different.exact + 2.0 * lost.deviation + lost.drift), different).passed


@pytest.mark.parametrize(("products", "fraction"), [(900, 14), (32, 23), (3, 23), (16, 22), (16, 26), (0, 23)])
def test_tensor_cores_that_no_published_gpu_has_are_refused(products: int, fraction: int) -> None:
    with pytest.raises(ValueError, match=f"published GPUs add .* not {products} and {fraction}"):
        declared("f16", accumulates={"L": products, "F": fraction})
