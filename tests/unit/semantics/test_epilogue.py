"""A right kernel that fuses operations behind its product is within their bound; one that fuses them wrongly is not."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gguf_verify.formats.block import BlockFormat
from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.semantics.definitions.f32 import F32
from gguf_verify.semantics.drawn import companions
from gguf_verify.semantics.epilogue import Epilogue, filled_up, stored
from gguf_verify.semantics.epilogues import OPERATIONS
from gguf_verify.semantics.epilogues.operation import Fused, added
from gguf_verify.semantics.exact import product
from gguf_verify.semantics.gates import judge
from gguf_verify.semantics.sums import Product
from tests.support.fused import Floats, multiplied, weights

M, N, K = 5, 37, 512
TYPES = ("Q4_0", "Q4_K", "MXFP4", "IQ2_XXS")
ALL = [FORMATS[name] for name in TYPES]
Operands = dict[str, Any]


def activations(size: float = 1.0, m: int = M, k: int = K) -> Floats:
    return (np.random.default_rng(2).standard_normal((m, k)) * size).astype(np.float32)


def as_bytes(x: Floats) -> np.ndarray:
    return np.ascontiguousarray(x).view(np.uint8)


def expected(epilogue: Epilogue, fmt: BlockFormat, w: np.ndarray, x: Floats) -> Product:
    def multiply(rows: np.ndarray) -> Product:
        return product(F32, fmt, rows, as_bytes(x))

    return epilogue.applied(multiply(w), fmt, w, as_bytes(x), multiply)


def silu(z: Floats) -> Floats:
    return (z / (np.float32(1) + np.exp(-z))).astype(np.float32)


def fast_silu(z: Floats) -> Floats:
    """With exp off by as much as __expf may be, in turn up and down, and a division off by two ulps."""
    z = z.astype(np.float32)
    sign = np.where(np.arange(z.size).reshape(z.shape) % 2, 1.0, -1.0)
    off = 1 + sign * (2 + np.floor(1.173 * np.abs(z.astype(np.float64)))) * 2.0**-24
    with np.errstate(over="ignore"):
        e = (np.exp(-z.astype(np.float64)) * off).astype(np.float32)
    d = (np.float32(1) + e).astype(np.float64)
    return np.where(d > 2.0**126, 0, z / d * (1 - sign * 2.0**-23)).astype(np.float32)


def gelu(z: Floats) -> Floats:
    t = np.tanh(np.float32(math.sqrt(2 / math.pi)) * z * (1 + np.float32(0.044715) * z * z))
    return np.float32(0.5) * z * (1 + t)


def plain(fmt: BlockFormat, w: np.ndarray, x: Floats, given: Operands) -> Floats:
    return multiplied(fmt, w, x)


Kernel = Callable[[BlockFormat, np.ndarray, Floats, Operands], Floats]

#: What is declared → a right kernel of it.
RIGHT: dict[tuple[str, ...], list[Kernel]] = {
    ("bias",): [
        lambda f, w, x, o: multiplied(f, w, x) + o["bias"],
        lambda f, w, x, o: begun_with(o["bias"], f, w, x),
    ],
    ("residual",): [lambda f, w, x, o: multiplied(f, w, x) + o["residual"]],
    ("scale",): [
        lambda f, w, x, o: multiplied(f, w, x) * o["scale"][0],
        lambda f, w, x, o: multiplied(f, w, x * o["scale"][0]),
    ],
    ("row_scale",): [lambda f, w, x, o: multiplied(f, w, x) * o["row_scale"]],
    ("token_scale",): [lambda f, w, x, o: multiplied(f, w, x) * o["token_scale"][:, None]],
    ("scale", "bias", "residual"): [
        lambda f, w, x, o: (multiplied(f, w, x) * o["scale"][0] + o["bias"]) + o["residual"],
        lambda f, w, x, o: multiplied(f, w, x) * o["scale"][0] + (o["bias"] + o["residual"]),
    ],
    ("silu_gate",): [
        lambda f, w, x, o: silu(multiplied(f, w, x)) * multiplied(f, o["up"], x),
        lambda f, w, x, o: fast_silu(multiplied(f, w, x)) * multiplied(f, o["up"], x),
    ],
    ("relu_gate",): [lambda f, w, x, o: np.maximum(multiplied(f, w, x), 0) * multiplied(f, o["up"], x)],
    ("gelu_gate",): [lambda f, w, x, o: gelu(multiplied(f, w, x)) * multiplied(f, o["up"], x)],
    ("bias", "silu_gate"): [lambda f, w, x, o: silu(multiplied(f, w, x) + o["bias"]) * multiplied(f, o["up"], x)],
}

#: What is declared, what is wrong → the kernel.
WRONG: dict[tuple[str, str], Kernel] = {
    ("bias", "left out"): plain,
    ("bias", "of the row before"): lambda f, w, x, o: multiplied(f, w, x) + np.roll(o["bias"], 1),
    ("bias", "by token"): lambda f, w, x, o: multiplied(f, w, x) + np.resize(o["bias"], (len(x), 1)),
    ("bias", "of the last row only"): lambda f, w, x, o: multiplied(f, w, x) + np.r_[o["bias"][:-1], 0],
    ("residual", "twice"): lambda f, w, x, o: multiplied(f, w, x) + 2 * o["residual"],
    ("residual", "of the first token"): lambda f, w, x, o: multiplied(f, w, x) + o["residual"][:1],
    ("residual", "transposed"): lambda f, w, x, o: multiplied(f, w, x) + o["residual"].T.reshape(len(x), -1),
    ("scale", "left out"): plain,
    ("scale", "squared"): lambda f, w, x, o: multiplied(f, w, x) * o["scale"][0] ** 2,
    ("scale bias", "bias first"): lambda f, w, x, o: (multiplied(f, w, x) + o["bias"]) * o["scale"][0],
    ("row_scale", "of the row behind"): lambda f, w, x, o: multiplied(f, w, x) * np.roll(o["row_scale"], -1),
    ("silu_gate", "gate and up swapped"): lambda f, w, x, o: silu(multiplied(f, o["up"], x)) * multiplied(f, w, x),
    ("silu_gate", "without the minus"): lambda f, w, x, o: (
        multiplied(f, w, x) / (1 + np.exp(multiplied(f, w, x))) * multiplied(f, o["up"], x)
    ),
    ("silu_gate", "up is the gate"): lambda f, w, x, o: silu(multiplied(f, w, x)) * multiplied(f, w, x),
    ("silu_gate", "sigmoid alone"): lambda f, w, x, o: (
        multiplied(f, o["up"], x) / (1 + np.exp(-multiplied(f, w, x)))
    ),
    ("silu_gate", "up of the next row"): lambda f, w, x, o: (
        silu(multiplied(f, w, x)) * multiplied(f, np.roll(o["up"], -1, axis=0), x)
    ),
    ("silu_gate", "gelu"): lambda f, w, x, o: gelu(multiplied(f, w, x)) * multiplied(f, o["up"], x),
    ("gelu_gate", "silu"): lambda f, w, x, o: silu(multiplied(f, w, x)) * multiplied(f, o["up"], x),
    ("silu_gate", "a half exp"): lambda f, w, x, o: (
        multiplied(f, w, x) / (1 + np.exp(-multiplied(f, w, x).astype(np.float16)).astype(np.float32))
    ) * multiplied(f, o["up"], x),
    ("silu_gate", "no product, NaN"): lambda f, w, x, o: np.full((len(x), len(w)), np.nan, np.float32),
}  # fmt: skip


def begun_with(bias: Floats, fmt: BlockFormat, w: np.ndarray, x: Floats) -> Floats:
    """The bias is what the sum over k begins with."""
    values = fmt.decode(w.reshape(len(w), -1, fmt.block_bytes)).reshape(len(w), -1)
    total = np.broadcast_to(bias, (len(x), len(w))).astype(np.float32)
    for at in range(values.shape[1]):
        total = total + x[:, at, None] * values[None, :, at]
    return total


@pytest.mark.parametrize("fmt", ALL, ids=TYPES)
@pytest.mark.parametrize("names", RIGHT, ids=" ".join)
def test_right_kernels_pass(names: tuple[str, ...], fmt: BlockFormat) -> None:
    epilogue, w = Epilogue(names), weights(fmt, N, K)
    for size in (0.01, 1.0, 30.0):
        x = activations(size)
        given = epilogue.operands(fmt, w, as_bytes(x))
        p = expected(epilogue, fmt, w, x)
        for kernel in RIGHT[names]:
            with np.errstate(all="ignore"):
                y = kernel(fmt, w, x, given).astype(np.float32)
            judged = judge(y, p)
            assert judged.passed, (size, judged.utilisation, judged.score)


@pytest.mark.parametrize("which", WRONG, ids=": ".join)
def test_wrong_kernels_fail(which: tuple[str, str]) -> None:
    epilogue, fmt = Epilogue(tuple(which[0].split())), FORMATS["Q4_0"]
    w = weights(fmt, N, K)
    for size in (0.03, 1.0):
        x = activations(size)
        with np.errstate(all="ignore"):
            y = WRONG[which](fmt, w, x, epilogue.operands(fmt, w, as_bytes(x))).astype(np.float32)
        assert not judge(y, expected(epilogue, fmt, w, x)).passed


def test_fused_halves_hide_neither_the_product_nor_the_operand() -> None:
    """Rounded to half, a product without its bias, and the bias of a product with one wrong block, still differ."""
    fmt, epilogue = FORMATS["Q4_0"], Epilogue(("bias",))
    w = weights(fmt, N, K)
    wrong = w.copy()
    wrong[:, 2:18] ^= 0x11
    for size in (0.03, 1.0, 10.0):
        x = activations(size)
        p = expected(epilogue, fmt, w, x)
        once = np.abs(p.exact) * 2.0**-11 + 2.0**-25 + p.bound
        bias = epilogue.operands(fmt, w, as_bytes(x))["bias"]
        assert (np.abs(multiplied(fmt, w, x) - p.exact) > once).mean() > 0.95
        assert (np.abs(multiplied(fmt, wrong, x) + bias - p.exact) > once).mean() > 0.95


def test_accumulation_adds_to_what_the_output_held() -> None:
    fmt, epilogue = FORMATS["Q4_K"], Epilogue(("scale", "accumulate"))
    w, x = weights(fmt, N, K), activations()
    given = epilogue.operands(fmt, w, as_bytes(x), "float16")
    assert given["output"].shape == (M, N)
    assert given["output"].dtype == np.float16
    p = expected(epilogue, fmt, w, x)
    y = multiplied(fmt, w, x) * given["scale"][0]
    assert judge(y + given["output"].astype(np.float32), p).passed
    assert not judge(y, p).passed, "overwritten"
    assert not judge(given["output"].astype(np.float32), p).passed, "never written"


@pytest.mark.parametrize("fmt", ALL, ids=TYPES)
def test_parts_of_a_product_have_the_operands_of_the_whole(fmt: BlockFormat) -> None:
    epilogue = Epilogue(("row_scale", "token_scale", "bias", "residual", "silu_gate", "accumulate"))
    w, x = weights(fmt, N, K), activations()
    whole = expected(epilogue, fmt, w, x)
    tokens, rows = slice(1, 4), slice(7, 20)
    part = expected(epilogue, fmt, np.ascontiguousarray(w[rows]), np.ascontiguousarray(x[tokens]))
    np.testing.assert_allclose(part.exact, whole.exact[tokens, rows], rtol=1e-12)
    all_of, some = (
        epilogue.operands(fmt, a, as_bytes(b))
        for a, b in ((w, x), (np.ascontiguousarray(w[rows]), np.ascontiguousarray(x[tokens])))
    )
    repeated = filled_up(all_of, range(1, 4), range(7, 20), w.shape[1])
    for name, values in some.items():
        np.testing.assert_array_equal(values, repeated[name], err_msg=name)


def test_operands_of_a_wider_call_repeat() -> None:
    fmt, epilogue = FORMATS["Q4_0"], Epilogue(("bias", "residual", "silu_gate"))
    w, x = weights(fmt, 3, 64), activations(m=2, k=64)
    given = epilogue.operands(fmt, w, as_bytes(x))
    wide = filled_up(given, [0, 1, 1], [0, 1, 2, 0], w.shape[1] + 18)
    assert wide["residual"].shape == (3, 4)
    assert wide["bias"][3] == given["bias"][0]
    assert wide["residual"][2, 3] == given["residual"][1, 0]
    np.testing.assert_array_equal(wide["up"][3], np.r_[given["up"][0], given["up"][0, :18]])


def test_every_type_holds_an_operand_exactly() -> None:
    fmt, names = FORMATS["Q4_0"], ("scale", "row_scale", "token_scale", "bias", "residual")
    w, x = weights(fmt, 200, 256), activations(k=256)
    wide, halves, bfloats = (
        Epilogue(names).operands(fmt, w, as_bytes(x), dtype, dtypes=dict.fromkeys([*names], dtype))
        for dtype in ("float32", "float16", "bfloat16")
    )
    for name in names:
        np.testing.assert_array_equal(halves[name].astype(np.float32), wide[name])
        assert bfloats[name].dtype == np.uint16
        np.testing.assert_array_equal((bfloats[name].astype(np.uint32) << 16).view(np.float32), wide[name])
    assert (wide["row_scale"] != 1).all()
    assert len(set(wide["bias"])) > 60


def test_neutral_operands_leave_the_product() -> None:
    fmt, w, x = FORMATS["Q4_0"], weights(FORMATS["Q4_0"], N, K), activations()
    epilogue = Epilogue(("row_scale", "scale", "bias", "residual", "accumulate"))
    assert epilogue.has_neutral
    given = epilogue.operands(fmt, w, as_bytes(x), neutral=True)
    y = multiplied(fmt, w, x)
    fused = y * given["row_scale"] * given["scale"][0] + given["bias"] + given["residual"] + given["output"]
    np.testing.assert_array_equal(fused, y)
    gate = Epilogue(("silu_gate",))
    assert not gate.has_neutral
    with pytest.raises(ValueError, match="silu_gate"):
        gate.operands(fmt, w, as_bytes(x), neutral=True)


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=FORMATS.keys())
def test_companions_are_other_finite_weights(fmt: BlockFormat) -> None:
    if not fmt.weights:
        pytest.skip("no weights")
    for k in (fmt.block_size, 3 * fmt.block_size):
        w = weights(fmt, 9, k)
        up = companions(fmt, w)
        assert up.shape == w.shape
        assert fmt.finite(up.reshape(-1, fmt.block_bytes)).all()
        assert (up != w).any(axis=1).all()


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("biased",), "not one of"),
        (("bias", "bias"), "once"),
        (("silu_gate", "relu_gate"), "one gate"),
        ((), "at least"),
        (("accumulate", "bias"), "at its end"),
    ],
)
def test_what_cannot_be_declared(names: tuple[str, ...], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Epilogue(names)


def test_what_can_be_declared() -> None:
    assert {"bias", "residual", "scale", "silu_gate"} <= set(OPERATIONS)
    with pytest.raises(ValueError, match="float64"):
        stored(np.zeros(1), "float64")
    fmt, w, x = FORMATS["Q4_0"], weights(FORMATS["Q4_0"], N, K), as_bytes(activations())
    with pytest.raises(ValueError, match="second product"):
        Epilogue(("silu_gate",)).applied(product(F32, fmt, w, x), fmt, w, x)


@pytest.mark.parametrize("z", [-1e30, -200.0, -88.5, -87.1, -20.0, -1e-30, 0.0, 1e-30, 3.0, 100.0, 1e30])
def test_gates_of_any_size(z: float) -> None:
    """The bound holds where exp overflows or vanishes, and stays finite."""
    one = np.ones((1, 1))
    up = Product(3 * one, 1e-6 * one, 1e-6 * one, None)
    epilogue = Epilogue(("silu_gate",))
    fmt = FORMATS["Q4_0"]
    w = weights(fmt, 1, 32)
    gate = Product(z * one, abs(z) * 1e-7 * one, abs(z) * 1e-7 * one, None)
    p = epilogue.applied(gate, fmt, w, np.zeros((1, 128), np.uint8), lambda _: up)
    with np.errstate(all="ignore"):
        for function in (silu, fast_silu):
            assert judge(function(np.array([[z]], np.float32)) * np.float32(3), p).passed
    assert np.isfinite(p.bound).all()


def spread_out(n: int = 4000) -> np.ndarray:
    """float32 values of both signs and of sizes from 0.01 to 80, [1, n]."""
    rng = np.random.default_rng(3)
    return (rng.choice([-1, 1], (1, n)) * np.exp(rng.uniform(-4.6, 4.4, (1, n)))).astype(np.float32)


def known(values: np.ndarray, bound: np.ndarray | float = 0.0) -> Product:
    """A product that is known, up to a bound."""
    bound = np.broadcast_to(bound, values.shape).astype(np.float64)
    return Product(values.astype(np.float64), bound, bound, None)


@pytest.mark.parametrize("off", ["gate", "up", "function"])
def test_each_part_of_the_bound_of_a_gate(off: str) -> None:
    """A gate or an up that is as wrong as it may be, or an exponential as bad as CUDA's fast one, uses the bound up to
    a good part, and is within it."""
    gate, up = spread_out(), spread_out()[:, ::-1]
    epilogue, fmt = Epilogue(("silu_gate",)), FORMATS["Q4_0"]
    w, share = weights(fmt, 1, 32), 2.0**-12
    wrong = np.where(np.arange(gate.size) % 2, 1 + share, 1 - share).astype(np.float32)
    of = known(gate, np.abs(gate) * share if off == "gate" else 0.0)
    other = known(up, np.abs(up) * share if off == "up" else 0.0)
    p = epilogue.applied(of, fmt, w, np.zeros((1, 128), np.uint8), lambda _: other)
    function = fast_silu if off == "function" else silu
    y = function(gate * wrong if off == "gate" else gate) * (up * wrong if off == "up" else up)
    judged = judge(y, p)
    assert judged.passed
    assert 0.3 < judged.utilisation <= 1
    twice = p.exact + 4 * (y - p.exact)
    assert not judge(twice.astype(np.float32), p).passed


def test_each_part_of_the_bounds_of_sums_and_factors() -> None:
    """A value that is as wrong as it may be, then biased or multiplied, is within a bound that is not much wider."""
    values, fmt, share = spread_out(), FORMATS["Q4_0"], 2.0**-16
    w, x = weights(fmt, values.size, 32), np.zeros((1, 128), np.uint8)
    wrong = np.where(np.arange(values.size) % 2, 1 + share, 1 - share).astype(np.float32)
    for name, fused in (("bias", np.add), ("residual", np.add), ("row_scale", np.multiply)):
        epilogue = Epilogue((name,))
        operand = epilogue.operands(fmt, w, x)[name]
        for bound, y in ((0.0, values), (np.abs(values) * share, values * wrong)):
            p = epilogue.applied(known(values, bound), fmt, w, x)
            judged = judge(fused(y, operand).astype(np.float32), p)
            assert (np.abs(fused(y, operand) - p.exact) <= p.bound).all(), name
            assert judged.utilisation > 0.3


def test_a_bias_may_be_the_first_term_of_the_sum() -> None:
    """Where it is far larger than the product, its own roundings are those of as many partial sums."""
    k, bias = 4096, np.float32(1.8)
    total = bias
    for _ in range(k):
        total += np.float32(2.0**-24 * 1.01)
    exact = known(np.full((1, 1), k * 2.0**-24 * 1.01), 1e-12)
    p = added(exact, np.full(1, bias, np.float64), Fused(k, lambda: exact))
    assert abs(total - p.exact[0, 0]) > 2.0**-16, "the order matters here"
    assert judge(np.full((1, 1), total), p).utilisation < 1
