"""Both encoders against llama.cpp's."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from gguf_verify.formats.block import BlockFormat
from gguf_verify.formats.q8_1 import Q8_1
from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.llama.library import Llama
from gguf_verify.semantics.definitions import ENCODINGS
from gguf_verify.semantics.quantization import check_bytes
from tests.support.format_cases import ALL, QK, Bytes, Floats, generator, sample, scalar_encode, vectorised_decode

ENCODED = [name for name, fmt in FORMATS.items() if fmt.encode_values]


TINY, FLT_MAX = np.float32(2.0**-149), np.finfo(np.float32).max


# GCC contracts x·id + 8.5 to one fused operation where the baseline of the machine has it: not on x86-64
bit_equal_encoders = pytest.mark.needs("x86-64")


# a user must not see NumPy's warnings either
pytestmark = pytest.mark.filterwarnings("error")


def vectorised_encode(fmt: BlockFormat, x: Floats) -> Bytes:
    return fmt.encode(x)


def assert_same_blocks(got: Bytes, expected: Bytes, x: Floats) -> None:
    differing = np.flatnonzero((got != expected).any(axis=1))
    if len(differing):
        b = differing[0]
        pytest.fail(
            f"{len(differing)} of {len(x)} blocks differ; {[v.hex() for v in x[b].tolist()]} => "
            f"{got[b].tobytes().hex()} {expected[b].tobytes().hex()}"
        )


def steps(fmt: BlockFormat) -> tuple[int, int]:
    """Range of (x - m)/d, or x/d, that the codes of a block span."""
    if fmt.bits == 8:
        return -127, 127
    top = 1 << fmt.bits
    return (0, top - 1) if fmt.has_min else (-top // 2, top // 2)


def powers(rng: np.random.Generator, n: int, low: int, high: int) -> npt.NDArray[np.float64]:
    return np.power(2.0, rng.integers(low, high + 1, (n, 1)), dtype=np.float64)


def gaussians(fmt: BlockFormat, rng: np.random.Generator) -> Floats:
    return (rng.normal(size=(20_000, QK)) * powers(rng, 20_000, -30, 20)).astype(np.float32)


def shifted(fmt: BlockFormat, rng: np.random.Generator) -> Floats:
    """Values of one sign, far from zero: x - min cancels."""
    return (rng.normal(size=(4000, QK)) + rng.choice([-100, -3, 3, 100], (4000, 1))).astype(np.float32)


def constants(fmt: BlockFormat, rng: np.random.Generator) -> Floats:
    value = np.concatenate([rng.normal(size=200), 2.0 ** np.arange(-120, 120), -(2.0 ** np.arange(-120, 120))])
    return np.repeat(value.astype(np.float32)[:, None], QK, axis=1)


def one_outlier(fmt: BlockFormat, rng: np.random.Generator) -> Floats:
    x = rng.normal(size=(4000, QK)).astype(np.float32)
    x[np.arange(4000), rng.integers(0, QK, 4000)] *= powers(rng, 4000, 3, 20)[:, 0].astype(np.float32)
    return x


def zeros(fmt: BlockFormat, rng: np.random.Generator) -> Floats:
    """+0 and -0 in every mixture, alone and below positive or above negative values: the first of equals counts."""
    x = np.where(rng.random((600, QK)) < 0.5, np.float32(0), np.float32(-0.0))
    x[0], x[1] = 0.0, -0.0
    some = rng.random((600, QK)) < 0.2
    some[:200] = False
    sign = np.where(np.arange(600) < 400, 1, -1)[:, None]
    return np.where(some, np.abs(rng.normal(size=(600, QK))) * sign, x).astype(np.float32)


def one_negative_zero(fmt: BlockFormat, rng: np.random.Generator) -> Floats:
    x = np.zeros((2 * QK, QK), np.float32)
    x[QK:] = -0.0
    at = np.arange(QK)
    x[at, at], x[QK + at, at] = -0.0, 0.0
    return x


def ties(fmt: BlockFormat, rng: np.random.Generator) -> Floats:
    """Values half-way between two codes, and up to two ulps beside; exactly half-way where d is a power of two."""
    n, (low, high) = 6000, steps(fmt)
    d = np.where(rng.random((n, 1)) < 0.5, powers(rng, n, -12, 12), rng.normal(size=(n, 1)))
    m = np.where(rng.random((n, 1)) < 0.5, 0, rng.integers(-64, 64, (n, 1)) * d) if fmt.has_min else 0
    x = ((rng.integers(low, high, (n, QK)) + 0.5) * d + m).astype(np.float32)
    x = (x.view(np.int32) + rng.integers(-2, 3, x.shape, np.int32) * (rng.random(x.shape) < 0.5)).view(np.float32)
    x[:, 0:1], x[:, 1:2] = low * d + m, high * d + m
    return x


def huge(fmt: BlockFormat, rng: np.random.Generator) -> Floats:
    """Up to the largest float32: half scales overflow. Of one sign for the affine formats (see the module's head)."""
    x = (rng.uniform(-1, 1, (2000, QK)) * float(FLT_MAX) * powers(rng, 2000, -110, 0)).astype(np.float32)
    x[::7, 5] = FLT_MAX
    x[3::7, 6] = -FLT_MAX
    if fmt.has_min:
        x = np.abs(x) * np.where(np.arange(2000) % 2, 1, -1).astype(np.float32)[:, None]
    return x


def half_boundaries(fmt: BlockFormat, rng: np.random.Generator) -> Floats:
    """Scales at the edges of the halves: ties between two of them, the least subnormal, overflow at 65520."""
    halves = np.arange(0, 0x7C00, 97, dtype=np.uint16).view(np.float16).astype(np.float64)
    after = np.append(halves[1:], 65536.0)
    d = np.concatenate([halves[1:], (halves + after) / 2, [65519, 65520, 65521, 2.0**-25, 2.0**-25 * 1.01]])
    d = np.concatenate([d, -d])[:, None]
    low, high = steps(fmt)
    x = (rng.uniform(low, high, (len(d), QK)) * d).astype(np.float32)
    x[:, 0:1], x[:, 1:2] = low * d, high * d
    return x


def denormal_scales(fmt: BlockFormat, rng: np.random.Generator) -> Floats:
    """d is a subnormal float32 of which 1/d is still finite."""
    n, (low, high) = 3000, steps(fmt)
    d = rng.uniform(1.001 * 2.0**-128, 2.0**-126, (n, 1)) * rng.choice([-1, 1], (n, 1))
    x = (rng.uniform(low, high, (n, QK)) * d).astype(np.float32)
    x[:, 0:1], x[:, 1:2] = low * d, high * d
    return x


def subnormals(fmt: BlockFormat, rng: np.random.Generator) -> Floats:
    """Subnormal values below a normal maximum: products that underflow."""
    x = (rng.integers(-1000, 1000, (2000, QK)) * float(TINY)).astype(np.float32)
    x[np.arange(2000), rng.integers(0, QK, 2000)] = (
        rng.choice([-1, 1], 2000) * powers(rng, 2000, -115, 3)[:, 0]
    ).astype(np.float32)
    return x


def scales_that_round_to_zero(fmt: BlockFormat, rng: np.random.Generator) -> Floats:
    """max/8 and the like round to zero: no inverse is taken."""
    return (rng.integers(-3, 4, (500, QK)) * float(TINY)).astype(np.float32)


def alternating_maxima(fmt: BlockFormat, rng: np.random.Generator) -> Floats:
    """+a and -a are both the greatest magnitude: the first decides the sign of d."""
    a = np.where(np.arange(QK) % 2, 1, -1) * rng.uniform(0.1, 9, (400, 1))
    a[::2] *= -1
    a = np.where(rng.random((400, QK)) < rng.choice([0.1, 0.5, 1], (400, 1)), a, rng.uniform(-0.1, 0.1, (400, QK)))
    return a.astype(np.float32)


ENCODE_CASES: dict[str, Callable[[BlockFormat, np.random.Generator], Floats]] = {
    f.__name__: f
    for f in (
        gaussians, shifted, constants, one_outlier, zeros, one_negative_zero, ties, huge, half_boundaries,
        denormal_scales, subnormals, scales_that_round_to_zero, alternating_maxima,
    )
}  # fmt: skip


# quantize_row_q8_1_ref is no type that ggml_quantize_chunk takes; it is reached through the table of types
_Q8_1_REF = """
import sys
import numpy as np
from gguf_verify.llama import ggml
x = np.frombuffer(sys.stdin.buffer.read(), np.float32).copy()
out = np.zeros(len(x) // 32 * 36, np.uint8)
ggml.ggml_get_type_traits(9).contents.from_float_ref(ggml.pointer(x), ggml.pointer(out), len(x))
sys.stdout.buffer.write(out.tobytes())
"""


def expected_blocks(fmt: BlockFormat, x: Floats, llama: Llama) -> Bytes:
    if fmt.name in FORMATS:
        return llama.quantize(fmt.type_id, x)
    run = subprocess.run(
        [sys.executable, "-c", _Q8_1_REF], input=x.tobytes(), capture_output=True, check=True,
        cwd=Path(__file__).resolve().parents[3],
    )  # fmt: skip
    return np.frombuffer(run.stdout, np.uint8).reshape(len(x), -1)


@pytest.mark.parametrize(("name", "fmt"), [("q8_0_ref", FORMATS["Q8_0"]), ("q8_1_ref", Q8_1)])
def test_reference_encodings_of_activations_are_ggmls(name: str, fmt: BlockFormat, llama: Llama) -> None:
    """Which multiply by 1/d: SIMD code, which multiplies by 127/max, gives other codes now and then."""
    x = generator("reference", "a").standard_normal((256, 4096)).astype(np.float32)
    made = ENCODINGS[name].encode(x)
    theirs = expected_blocks(fmt, x.reshape(-1, 32), llama)
    assert made.reshape(theirs.shape).tobytes() == theirs.tobytes()
    differ = made != ENCODINGS[name.replace("ref", "cpu")].encode(x)
    assert 0 < differ.sum() < 16
    assert check_bytes(ENCODINGS[name], x, made).n_wrong == 0


def has_finite_inverse(fmt: BlockFormat, x: Floats) -> npt.NDArray[np.bool_]:
    """Blocks for which C defines every cast of the quantizer."""
    wide = x.astype(np.float64)
    span = np.ptp(wide, axis=1) if fmt.has_min else np.abs(wide).max(axis=1)
    divisor = 127 if fmt.bits == 8 else (1 << fmt.bits) - 1 if fmt.has_min else 1 << (fmt.bits - 1)
    d = (span / divisor).astype(np.float32)
    return (span <= FLT_MAX) & ((d == 0) | (d > 2.0**-128))


@bit_equal_encoders
@pytest.mark.parametrize("encode", [vectorised_encode, scalar_encode])
@pytest.mark.parametrize("case", ENCODE_CASES)
@pytest.mark.parametrize("name", ENCODED)
def test_encode(name: str, case: str, encode: Callable[[BlockFormat, Floats], Bytes], llama: Llama) -> None:
    fmt = FORMATS[name]
    x = sample(ENCODE_CASES[case](fmt, generator(case, name)), encode)
    defined = has_finite_inverse(fmt, x)
    assert defined.mean() > 0.7  # the case is about something else
    x = x[defined]
    assert_same_blocks(encode(fmt, x), expected_blocks(fmt, x, llama), x)


@bit_equal_encoders
@pytest.mark.parametrize("encode", [vectorised_encode, scalar_encode])
def test_encode_q8_1(encode: Callable[[BlockFormat, Floats], Bytes], llama: Llama) -> None:
    """All cases at once, since each call starts a process."""
    fmt = ALL["Q8_1"]
    x = np.concatenate([sample(case(fmt, generator(name, "Q8_1")), encode) for name, case in ENCODE_CASES.items()])
    x = x[has_finite_inverse(fmt, x)]
    assert_same_blocks(encode(fmt, x), expected_blocks(fmt, x, llama), x)


@pytest.mark.parametrize("name", [*ENCODED, "Q8_1"])
def test_encoders_agree_where_c_leaves_the_cast_open(name: str) -> None:
    """1/d overflows; max - min overflows. Both follow x86, where such a cast gives INT_MIN."""
    fmt, rng = ALL[name], generator("open", name)
    tiny = (rng.normal(size=(1000, QK)) * 2.0 ** rng.uniform(-149, -125, (1000, 1))).astype(np.float32)
    wide = (rng.uniform(-1, 1, (1000, QK)) * float(FLT_MAX)).astype(np.float32)
    x = np.concatenate([tiny, wide])
    assert_same_blocks(vectorised_encode(fmt, x), scalar_encode(fmt, x), x)


@pytest.mark.parametrize("encode", [vectorised_encode, scalar_encode])
@pytest.mark.parametrize("name", [*ENCODED, "Q8_1"])
def test_encoding_is_within_half_a_step(name: str, encode: Callable[[BlockFormat, Floats], Bytes]) -> None:
    fmt = ALL[name]
    rng = generator("bounds", name)
    x = np.concatenate([case(fmt, rng)[:1500] for case in (gaussians, shifted, one_outlier, alternating_maxima)])
    # halves are subnormal below 2^-14, and then their error is not relative
    x = x[(np.ptp(x, axis=1) > 2.0**-6) & (np.abs(x).max(axis=1) < 60000)]
    assert len(x) > 2000
    wide = x.astype(np.float64)
    if fmt.has_min:
        span, divisor = np.ptp(wide, axis=1), (1 << fmt.bits) - 1
        half_errors = span + np.abs(wide.min(axis=1))
    else:
        span, divisor = np.abs(wide).max(axis=1), 127 if fmt.bits == 8 else 1 << (fmt.bits - 1)
        half_errors = span
    # half a step, and the roundings of d and m to a half (2^-11) and of the arithmetic
    bound = span / divisor / 2 + half_errors * 1.001 * 2.0**-11
    if fmt.offset:
        # codes end one step short of +extreme: -8…7
        x_abs = np.abs(wide)
        opposite = (wide * np.take_along_axis(wide, x_abs.argmax(axis=1)[:, None], axis=1)) < 0
        limit = np.where(opposite & (x_abs > (span * (1 - 1.5 / divisor))[:, None]), span[:, None] / divisor, 0)
        bound = np.maximum(bound[:, None], limit + half_errors[:, None] * 1.001 * 2.0**-11)
    else:
        bound = bound[:, None]
    error = np.abs(vectorised_decode(fmt, encode(fmt, x)).astype(np.float64) - wide)
    worst = (error / bound).max()
    assert worst <= 1
    assert worst > 0.9  # the bound says something


@pytest.mark.parametrize("name", sorted(set(ALL) - {*ENCODED, "Q8_1"}))
def test_others_are_quantized_by_llama_cpp_only(name: str) -> None:
    with pytest.raises(ValueError, match=f"only llama.cpp quantizes to {name}"):
        ALL[name].encode(np.zeros((1, ALL[name].block_size), np.float32))


@pytest.mark.parametrize("name", ENCODED)
def test_decoded_values_encode_to_themselves(name: str) -> None:
    """Codes on a grid that spans the whole range are fixed points, where d and m are exact."""
    fmt, rng = FORMATS[name], generator("fixed points", name)
    low, high = steps(fmt)
    high -= bool(fmt.offset)
    q = rng.integers(low, high + 1, (500, QK))
    q[:, 3], q[:, 4] = low, high
    x = (q * powers(rng, 500, -8, 8)).astype(np.float32)
    assert (fmt.decode(fmt.encode(x)) == x).all()
