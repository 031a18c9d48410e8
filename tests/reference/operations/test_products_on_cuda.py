"""Products as CUDA's kernels compute them, followed in Python: right results pass, others do not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gguf_verify.formats.block import BlockFormat
from gguf_verify.formats.tensor_types import ACTIVATION_FORMATS, ELEMENTS, FORMATS
from gguf_verify.llama.node import F16, F32
from gguf_verify.semantics.definitions import SEMANTICS
from gguf_verify.semantics.exact import product
from gguf_verify.support.array_types import Array
from gguf_verify_graph.operations import Node, Operand, judge, parameters
from gguf_verify_graph.operations.codes_on_cuda import products_of
from gguf_verify_graph.operations.product_definitions import definitions
from gguf_verify_graph.operations.products_on_cuda import cut_to_tf32, in_lanes, round_to_tf32, threads_of
from gguf_verify_graph.operations.random_inputs import random_values, random_weights
from tests.support.operations import with_output

f32 = np.float32
OTHERS = ("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ1_S")


def _node(w: Operand, x: Operand, y: Array) -> Node:
    return Node("MUL_MAT", (w, x), Operand.of(np.asarray(y, f32)), backend="CUDA", device="CUDA0")


def _towards_zero(a: int, b: int) -> int:
    return abs(a) // b * (1 if a >= 0 else -1)


def _block(fmt: BlockFormat, struct: Any, i: int, q: Array, a: Array, d_a: Any, s: Any) -> Any:
    """The term of block i of 32 as vecdotq.cuh computes it.

    Args:
        q, a: the codes of weights and activations.
    """
    d, products = f32(struct["d"]), [int(v) for v in q * a]
    first, second, whole = sum(products[:16]), sum(products[16:]), sum(products)
    if fmt.name == "IQ1_S":
        qh = int(struct["qh"][i])
        sign = -1 if qh & 0x8000 else 1
        grid = int((((q - sign) // 8 + 1) * a).sum())
        return d * f32((qh >> 11 & 14) + 1) * (d_a * f32(grid) + s * f32(sign / 8 - 1))
    if fmt.name == "IQ2_XXS":
        made = _towards_zero(whole * (int(struct["qs"][2 * i + 1]) >> 27 | 1), 8)
    elif fmt.name == "IQ3_XXS":
        scale = int(struct["scales_and_signs"][i]) >> 28
        made = _towards_zero(scale * whole + _towards_zero(whole, 2), 2)
    else:
        low, high = int(struct["scales"][i]) & 15, int(struct["scales"][i]) >> 4
        made = _towards_zero(first * low + second * high + _towards_zero(whole, 2), 4)
    return d * d_a * f32(made)


def _by_mmvq(fmt: BlockFormat, w: Array, x: Array) -> Array:
    """float32[M, N] of weights uint8[N, row bytes] and float32[M, K]."""
    taken = ACTIVATION_FORMATS["Q8_1"]
    acts = taken.view(SEMANTICS["q8_1"].bytes_of(x).reshape(len(x), -1, taken.block_bytes))
    blocks = w.reshape(len(w), -1, fmt.block_bytes)
    structs, codes = fmt.view(blocks), fmt.codes(blocks).astype(int).reshape(len(w), -1, 32)
    y = np.zeros((len(x), len(w)), f32)
    for m, n in np.ndindex(*y.shape):
        for b in range(codes.shape[1]):
            act = acts[m, b]
            d_a, s = f32(act["d"]), f32(act["s"])
            y[m, n] += _block(fmt, structs[n, b // 8], b % 8, codes[n, b], act["qs"].astype(int), d_a, s)
    return y


@pytest.mark.parametrize("name", OTHERS)
def test_mmvq(name: str) -> None:
    rng, fmt = np.random.default_rng(1), FORMATS[name]
    w, x = random_weights(rng, fmt, 8, 512), random_values(rng, 0, (2, 512))
    y = _by_mmvq(fmt, w.data[0, 0], np.array(x.data[0, 0]))
    found = judge(_node(w, x, y))
    assert found.passed, found
    assert found.definition == {"IQ1_S": "mmq_older"}.get(name, "q8_1, integer quotients")
    assert found.utilisation > 1 / 128
    plain = product(SEMANTICS["q8_1"], fmt, w.data[0, 0], SEMANTICS["q8_1"].bytes_of(np.array(x.data[0, 0]))).exact
    wrong = judge(_node(w, x, plain))  # without what MMVQ drops; of IQ1_S without the sum of the raw values
    assert wrong.wrong > wrong.elements / 2
    y[1, 3] *= f32(1 + 2.0**-12)
    assert judge(_node(w, x, y)).place == (0, 0, 1, 3)


def test_mmq_of_iq1_s_rounds_scale_and_minimum_to_half() -> None:
    rng, fmt = np.random.default_rng(2), FORMATS["IQ1_S"]
    w, x = random_weights(rng, fmt, 8, 512), random_values(rng, 0, (9, 512))
    acts = ACTIVATION_FORMATS["Q8_1"].view(SEMANTICS["mmq"].bytes_of(np.array(x.data[0, 0])).reshape(9, -1, 36))
    blocks = np.array(w.data[0, 0]).reshape(8, -1, fmt.block_bytes)
    structs, codes = fmt.view(blocks), fmt.codes(blocks).astype(int).reshape(8, -1, 32)
    y = np.zeros((9, 8), f32)
    for m, n in np.ndindex(*y.shape):
        for b in range(16):
            qh, act = int(structs[n, b // 8]["qh"][b % 8]), acts[m, b]
            sign = -1 if qh & 0x8000 else 1
            d = f32(structs[n, b // 8]["d"]) * f32((qh >> 11 & 14) + 1)
            grid = int((((codes[n, b] - sign) // 8 + 1) * act["qs"].astype(int)).sum())
            low = f32(np.float16(d * f32(sign / 8 - 1)))
            y[m, n] += f32(np.float16(d)) * f32(act["d"]) * f32(grid) + low * f32(act["s"])
    found = judge(_node(w, x, y))
    assert found.passed, found
    assert found.definition == "mmq"


@pytest.mark.parametrize("name", FORMATS)
def test_the_number_of_columns_selects_the_definition(name: str) -> None:
    """Where cards differ there are both definitions; outputs of cuBLAS are not those of MMVQ."""
    fmt = FORMATS[name]
    w, x = Operand.blank(fmt.type_id, 4, fmt.block_size), Operand.blank(0, 1, fmt.block_size)
    node = _node(w, x, np.zeros((1, 4)))
    mmvq, mmq = products_of(fmt)
    one, eight, many = ([d.semantics for d in definitions(node, fmt, m)] for m in (1, 8, 100))
    if mmvq:
        assert [s.name for s in one] == [mmvq]
        assert [s.name for s in eight] == [mmvq, *([mmq] if min(fmt.llama.mmvq_tokens.values(), default=8) < 8 else [])]
    assert [s.name for s in many] == [mmq] if mmq else {s.output for s in many} == {"float16"}


def _titles(rows: int, k: int, columns: int, *, precise: bool = False, experts: bool = False, name: str = "F16",
            matrices: int = 1) -> set[str]:  # fmt: skip
    fmt = ELEMENTS[name]
    w, x = Operand.blank(fmt.type_id, matrices, rows, k), Operand.blank(F32, columns, k)
    op, given = ("MUL_MAT_ID", columns) if experts else ("MUL_MAT", None)
    node = Node(op, (w, x), Operand.blank(F32, columns, rows), parameters(10 if precise else 0), backend="CUDA")
    made = definitions(node, fmt, columns, given)
    return {"lanes" if d.multiplied else "half outputs" if d.semantics.output == "float16" else "float32" for d in made}


def test_definitions_match_the_possible_kernels() -> None:
    """ggml_cuda_should_use_mmvf, ggml_cuda_should_use_mmf and ggml_cuda_mul_mat_cublas, over all cards."""
    assert _titles(64, 128, 1) == {"lanes"}
    assert _titles(640, 128, 1, matrices=2) == {"lanes", "float32"}  # not thin: mmf from Ampere on
    assert _titles(64, 128, 1, precise=True) == {"float32"}
    assert _titles(64, 127, 1) == {"float32", "half outputs"}  # odd rows: cuBLAS
    assert _titles(64, 128, 16) == {"float32"}
    assert _titles(64, 128, 17) == {"float32", "half outputs"}
    assert _titles(64, 128, 17, precise=True) == {"float32"}
    assert _titles(33, 128, 9) == {"float32", "half outputs"}
    assert _titles(64, 128, 3) == {"lanes", "float32"}
    assert _titles(64, 128, 1, experts=True) == {"float32"}
    assert _titles(33, 128, 1, experts=True) == {"float32", "half outputs"}
    for name in ("F32", "BF16"):
        assert _titles(33, 127, 100, name=name) == {"float32"}


def _added_in_half(rng: np.random.Generator, k: int, step: int) -> tuple[Operand, Operand, Array]:
    """Half weights, activations, and their product [9, 40] with sums that are rounded to half at each step."""
    w, x = random_values(rng, F16, (40, k)), Operand.of(rng.standard_normal((9, k)).astype(f32))
    weights, values = w.values[0, 0], np.array(x.data[0, 0]).astype(np.float16).astype(float)
    y = np.zeros((9, 40), np.float16)
    for at in range(0, k, step):
        y = (y + values[:, at : at + step] @ weights[:, at : at + step].T).astype(np.float16)
    return w, x, y


@pytest.mark.parametrize("k", [511, 4095])
@pytest.mark.parametrize("step", [1, 16])
def test_half_sums_do_not_admit_one_wrong_output(k: int, step: int) -> None:
    """The tolerance of such a long sum admits zero and the other sign, but the errors beside it are much smaller."""
    w, x, y = _added_in_half(np.random.default_rng(9), k, step)
    found = judge(_node(w, x, y))
    assert (found.passed, found.definition) == (True, "f16, added in float16, with outputs of float16")
    for wrong in (np.float16(0), -y[4, 7], y[4, 7] * np.float16(1.5)):
        data = y.copy()
        data[4, 7] = wrong if abs(y[4, 7]) > 1 else y[4, 7] + np.float16(4)
        found = judge(_node(w, x, data))
        assert (found.wrong, found.place) == (1, (0, 0, 4, 7))
    near = np.array(y, f32)
    near[4, 7] = np.nextafter(near[4, 7], f32(np.inf))  # no half, so not an output of cuBLAS
    found = judge(_node(w, x, near))
    assert (found.wrong, found.place) == (1, (0, 0, 4, 7))


def test_one_dominant_term_does_not_reject_other_rows() -> None:
    """Scores of a soft-max: of most outputs one term counts, whose errors are tiny, or one rounding of the result."""
    rng = np.random.default_rng(10)
    w, s = random_values(rng, F16, (64, 257)), rng.standard_normal((20, 257)) * np.logspace(-1, 2, 20)[:, None]
    p = np.exp(s - s.max(axis=1, keepdims=True))
    x = (p / p.sum(axis=1, keepdims=True)).astype(np.float16).astype(f32)
    y = np.zeros((20, 64), np.float16)
    for at in range(257):
        y = (y + x[:, at, None].astype(float) * w.values[0, 0][:, at]).astype(np.float16)
    assert judge(_node(w, Operand.of(x), y)).passed


def test_experts_without_mmq_are_multiplied_one_by_one() -> None:
    """Of 12 tokens an expert with 2 goes to MMVQ, and one with 10 is dequantized for cuBLAS."""
    rng, fmt = np.random.default_rng(5), FORMATS["IQ1_M"]
    w, x = random_weights(rng, fmt, 12, 256), Operand.of(rng.standard_normal((12, 1, 256)).astype(f32) * f32(0.01))
    w = Operand.of(np.concatenate([np.array(w.data[0])] * 2), w.type_id)
    ids = np.array([[0]] * 2 + [[1]] * 10, np.int32)
    values = np.array(x.data[0])[:, 0]
    by_mmvq = product(SEMANTICS["q8_1"], fmt, w.data[0, 0], SEMANTICS["q8_1"].bytes_of(values[:2])).exact
    y, weights = np.zeros((10, 12), np.float16), w.values[0, 1].astype(np.float16).astype(float)
    for k in range(256):
        y = (y + values[2:, k, None].astype(np.float16).astype(float) * weights[:, k]).astype(np.float16)
    out = np.concatenate([by_mmvq, y.astype(float)])[:, None]
    found = judge(Node("MUL_MAT_ID", (w, x, Operand.of(ids)), Operand.of(np.asarray(out, f32)), backend="CUDA"))
    assert found.passed, found
    assert found.definition.startswith("q8_1, f16")


@pytest.mark.parametrize("name", ["Q8_0", "Q4_0"])
def test_codes_that_fast_math_may_round_either_way_are_right(name: str) -> None:
    """max = 127 makes d = 1, so x = 2.5 lies in the middle of two codes."""
    fmt = FORMATS[name]
    w, values = random_weights(np.random.default_rng(3), fmt, 6, 64), np.ones((9, 64), f32)
    values[:, 0], values[:, 5] = 127, 2.5
    x = Operand.of(values)
    semantics = definitions(_node(w, x, np.zeros((9, 6))), fmt, 9)[0].semantics
    a = semantics.bytes_of(values)
    other = a.copy()
    assert semantics.activations is not None
    semantics.activations.view(other.reshape(9, -1, semantics.activations.block_bytes))["qs"][:, 0, 5] -= 1
    raw = np.array(w.data[0, 0])
    for taken in (a, other):
        found = judge(_node(w, x, product(semantics, fmt, raw, taken).exact))
        assert found.passed
        assert found.ambiguous >= 9
    semantics.activations.view(other.reshape(9, -1, semantics.activations.block_bytes))["qs"][:, 0, 5] -= 1
    assert not judge(_node(w, x, product(semantics, fmt, raw, other).exact)).passed


def _values(name: str, rng: np.random.Generator) -> tuple[Operand, Operand]:
    return random_weights(rng, ELEMENTS[name], 12, 320), random_values(rng, 0, (5, 320))


@pytest.mark.parametrize(("name", "to", "expected"), [
    ("F32", lambda x: x, "f32"), ("F32", cut_to_tf32, "tf32, cut"), ("F32", round_to_tf32, "tf32"),
    ("F16", lambda x: x, "f32"), ("F16", lambda x: x.astype(np.float16), "f16"), ("BF16", lambda x: x, "f32"),
    ("BF16", ELEMENTS["BF16"].round, "bf16"),
])  # fmt: skip
def test_values_are_judged_by_the_rounding_of_their_factors(name: str, to: Any, expected: str) -> None:
    w, x = _values(name, np.random.default_rng(4))
    weights = w.values[0, 0].astype(f32)
    y = to(np.array(x.data[0, 0])).astype(float) @ (to(weights) if name == "F32" else weights).astype(float).T
    found = judge(_node(w, x, y))
    assert found.passed
    assert found.definition.startswith(expected)
    assert found.definition.startswith("tf32, cut") == (expected == "tf32, cut")
    wrong = np.array(y, f32)
    wrong[2, 7] += f32(0.02 * np.abs(wrong).max())
    assert judge(with_output(_node(w, x, y), wrong[None, None])).wrong == 1


def test_sums_in_half_of_cublas() -> None:
    """CUBLAS_COMPUTE_16F with weights that have no MMQ."""
    rng, fmt = np.random.default_rng(5), FORMATS["IQ1_M"]
    w, x = random_weights(rng, fmt, 12, 256), Operand.of(rng.standard_normal((20, 256)).astype(f32) * f32(0.01))
    halves = [v.astype(np.float16).astype(float) for v in (w.values[0, 0], np.array(x.data[0, 0]))]
    y = np.zeros((20, 12), np.float16)
    for k in range(256):
        y = (y + halves[1][:, k, None] * halves[0][:, k]).astype(np.float16)
    found = judge(_node(w, x, y))
    assert found.passed
    assert "float16" in found.definition
    y[3, 4] *= np.float16(-1)
    assert not judge(_node(w, x, y)).passed
    assert not judge(replace(_node(w, x, y), backend="CPU")).passed


@pytest.mark.parametrize("k", [64, 256, 1100, 4096])
def test_halves_are_added_by_lanes(k: int) -> None:
    """mmvf: lanes of halves, which are added in float32."""
    rng = np.random.default_rng(6)
    w, x = random_values(rng, F16, (40, k)), random_values(rng, F32, (1, k))
    lanes = 2 * threads_of(k)
    padded = [np.pad(np.array(v.data[0, 0]).astype(np.float16), ((0, 0), (0, -k % lanes))) for v in (w, x)]
    weights, values = (v.reshape(len(v), -1, lanes) for v in padded)
    sums = np.zeros((40, lanes), np.float16)
    for step in range(weights.shape[1]):
        sums = sums + weights[:, step] * values[0, step]
    y = sums.astype(f32).sum(axis=1)[None]
    found = judge(_node(w, x, y))
    assert found.passed, found
    assert found.definition == "f16, added in float16 by lanes"
    assert found.utilisation > 1 / 64
    y[0, 7] += f32(0.03 * np.abs(y).max())
    assert judge(_node(w, x, y)).place == (0, 0, 0, 7)


def test_each_lane_of_a_short_row_has_one_term() -> None:
    w, x = random_values(np.random.default_rng(8), F16, (3, 64)), np.full((1, 64), 0.5, np.float16)
    made = in_lanes(ELEMENTS["F16"]).multiply(np.array(w.data[0, 0]).view(np.uint8), x.view(np.uint8))
    alone = 2.0**-11 * np.sqrt(2 * ((w.values[0, 0] / 2) ** 2).sum(axis=1) / 3)
    np.testing.assert_allclose(made.spread[0], alone, rtol=0.01)


def test_tf32_is_rounded_to_even() -> None:
    x = np.array([1 + 2.0**-11, 1 + 3 * 2.0**-11, -1 - 2.0**-11, 1 + 2.0**-11 + 2.0**-23, np.inf, 3e38], f32)
    assert round_to_tf32(x).tolist() == [1, 1 + 2.0**-9, -1, 1 + 2.0**-10, np.inf, float(round_to_tf32(x)[-1])]
    assert cut_to_tf32(x).tolist()[:4] == [1, 1 + 2.0**-10, -1, 1]
    assert np.isfinite(round_to_tf32(x)[-1])


def test_threads_of_a_block() -> None:
    assert [threads_of(k) for k in (2, 64, 66, 512, 1100, 4096)] == [32, 32, 64, 256, 192, 256]


def test_experts_may_each_have_another_definition() -> None:
    """The tokens of an expert decide whether its product is one of float32 or of TF32."""
    rng = np.random.default_rng(7)
    w, x = random_values(rng, F32, (2, 12, 74)), random_values(rng, F32, (9, 1, 74))
    ids = np.array([[0]] * 2 + [[1]] * 7, np.int32)
    values = [np.array(v.data[0]) for v in (w, x)]
    y = np.concatenate([
        values[1][:2, 0].astype(float) @ values[0][0].astype(float).T,
        round_to_tf32(values[1][2:, 0]).astype(float) @ round_to_tf32(values[0][1]).astype(float).T,
    ])[:, None]  # fmt: skip
    node = Node("MUL_MAT_ID", (w, x, Operand.of(ids)), Operand.of(np.asarray(y, f32)), backend="CUDA")
    found = judge(node)
    assert (found.passed, found.elements) == (True, 108)
    assert found.definition.startswith("f32, tf32")
    wrong = np.array(y, f32)
    wrong[1, 0, 3] += f32(0.001)
    found = judge(replace(node, output=Operand.of(wrong)))
    assert (found.wrong, found.place, found.definition) == (1, (0, 1, 0, 3), "f32")
    wrong[7, 0, 5] += f32(1)
    found = judge(replace(node, output=Operand.of(wrong)))
    assert (found.wrong, found.place) == (2, (0, 1, 0, 3))
    assert [of[:2] for of in found.extent] == [(0, 0), (1, 7), (0, 0), (3, 5)]
