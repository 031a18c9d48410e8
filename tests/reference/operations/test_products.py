"""MUL_MAT, MUL_MAT_ID and OUT_PROD: right on the CPU backend, and planted faults are seen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gguf_verify.formats.block import BlockFormat
from gguf_verify.formats.tensor_types import ELEMENTS, FORMATS
from gguf_verify.llama.library import Llama
from gguf_verify.llama.node import F32
from gguf_verify.semantics.definitions import ENCODINGS
from gguf_verify.support.array_types import Array
from gguf_verify_graph.operations import Node, Operand, judge, parameters
from gguf_verify_graph.operations.matrices import Matrix, judged
from gguf_verify_graph.operations.product_definitions import VECTOR_COLUMNS, definitions
from gguf_verify_graph.operations.products import says_hadamard
from gguf_verify_graph.operations.random_inputs import random_values, random_weights
from tests.support.operations import Fault, check_faults, check_undefined, computed, source, stale, with_output
from tests.support.operations import rows_shifted as rows_one_off

# ---- faults ----------------------------------------------------------------------------------------------------------


def _format(node: Node) -> BlockFormat | None:
    return FORMATS.get(node.source(0).type)


def _wrong_code(node: Node) -> Node | None:
    """One bit of one code of one block is another."""
    fmt = _format(node)
    if fmt is None:
        return None
    field = max((f for f in fmt.fields if f.dtype != "<f2"), key=lambda f: f.nbytes)
    at = fmt.field_offset(field.name) + field.nbytes // 2

    def flip(blocks: Array) -> Array:
        blocks[-1, -1, -1, at] ^= 1
        return blocks

    return source(node, 0, flip)


def _in_half(node: Node) -> Node | None:
    """Activations rounded to half."""
    if node.source(1).type != "F32" or node.source(0).type == "F16":
        return None
    return source(node, 1, lambda x: x.astype(np.float16).astype(np.float32))


def _last_block_left_out(node: Node) -> Node | None:
    """The last block, or the last value, of each row of weights meets nothing."""
    fmt = _format(node)
    count = 1 if fmt is None else fmt.block_size

    def cut(x: Array) -> Array:
        x[..., -count:] = 0
        return x

    return None if node.source(1).type != "F32" else source(node, 1, cut)


def _last_term_left_out(node: Node) -> Node | None:
    def cut(z: Array) -> Array:
        z[..., -1, :] = 0
        return z

    return source(node, 1, cut) if node.source(1).contiguous else None


def _wrong_head(node: Node) -> Node | None:
    """Heads meet the matrix of i mod n, not that of i / r."""
    n, heads = node.source(0).ne[2], node.source(1).ne[2]
    if n in (1, heads):
        return None
    return source(node, 0, lambda w: w[:, np.arange(heads) % n])


def _summed_in_half(node: Node, data: Array) -> Array | None:
    """Products are added up in half."""
    if node.source(0).type not in ELEMENTS or data.shape[:2] != (1, 1) or not 8 < node.source(0).ne[0] < 300:
        return None
    w, x = (node.source(i).values[0, 0].astype(np.float16) for i in (0, 1))
    if node.op == "OUT_PROD":
        w, x = w.T, x.T
    made = np.zeros((len(x), len(w)), np.float16)
    for k in range(w.shape[1]):
        made += x[:, k, None] * w[:, k]
    return np.asarray(made.reshape(data.shape), np.float32)


def _other_scale(node: Node, data: Array) -> Array | None:
    """The Hadamard transform with a scale that is off by one part in 2^16."""
    return data * np.float32(1 + 2.0**-16) if node.op == "MUL_MAT" and says_hadamard(node) else None


def test_faults_of_products(llama: Llama) -> None:
    check_faults(
        llama, "MUL_MAT", Fault("a wrong code", _wrong_code), Fault("activations in half", _in_half),
        Fault("the last block left out", _last_block_left_out), Fault("a wrong head", _wrong_head),
        Fault("summed in half", in_output=_summed_in_half), Fault("another scale", in_output=_other_scale),
        Fault("a row left out", in_output=stale), Fault("rows one off", in_output=rows_one_off),
        Fault("weights' rows one off", lambda node: source(node, 0, lambda w: np.roll(w, 1, axis=2))),
    )  # fmt: skip


def test_faults_of_experts(llama: Llama) -> None:
    check_faults(
        llama, "MUL_MAT_ID", Fault("a wrong code", _wrong_code), Fault("activations in half", _in_half),
        Fault("the last block left out", _last_block_left_out),
        Fault("a token's experts exchanged", lambda node: source(node, 2, lambda ids: np.roll(ids, 1, axis=-1))),
        Fault("experts of the token before", lambda node: source(node, 2, lambda ids: np.roll(ids, 1, axis=-2))),
        Fault("experts' matrices one off", lambda node: source(node, 0, lambda w: np.roll(w, 1, axis=1))),
        Fault("activations of the other expert", lambda node: source(node, 1, lambda x: np.roll(x, 1, axis=2))),
        Fault("a row left out", in_output=stale), Fault("rows one off", in_output=rows_one_off),
    )  # fmt: skip


def test_faults_of_outer_products(llama: Llama) -> None:
    check_faults(
        llama, "OUT_PROD", Fault("z in half", _in_half), Fault("the last term left out", _last_term_left_out),
        Fault("a wrong head", _wrong_head), Fault("a wrong code", _wrong_code),
        Fault("summed in half", in_output=_summed_in_half),
        Fault("z's rows one off", lambda node: source(node, 1, lambda z: np.roll(z, 1, axis=2))),
        Fault("a row left out", in_output=stale), Fault("rows one off", in_output=rows_one_off),
    )  # fmt: skip


def test_one_wrong_code_is_detected_in_every_format(llama: Llama) -> None:
    seen = set()
    for node in computed(llama, "MUL_MAT"):
        fmt, other = _format(node), _wrong_code(node)
        if fmt is not None and other is not None and node.source(0).ne[0] > fmt.block_size:
            made = llama.compute_node(other)
            assert made is not None
            if not judge(replace(node, output=made.output)).passed:
                seen.add(fmt.name)
    assert seen == set(FORMATS)


# ---- what is not finite, and what is not defined ---------------------------------------------------------------------


def test_infinite_and_nan_outputs_must_match(llama: Llama) -> None:
    rng = np.random.default_rng(3)
    for dtype in (np.float32, np.float16):
        x = rng.standard_normal((5, 40)).astype(np.float32)
        x[1, 3], x[2, 4], x[3, 5], x[3, 6] = np.inf, np.nan, np.inf, -np.inf
        node = Node("MUL_MAT", (Operand.of(np.abs(rng.standard_normal((7, 40))).astype(dtype)), Operand.of(x)),
                    Operand.blank(0, 5, 7))  # fmt: skip
        made = llama.compute_node(node)
        assert made is not None
        assert judge(made).passed
        data = np.array(made.output.data)
        assert np.isinf(data[0, 0, 1, 2])
        data[0, 0, 1, 2] = 1e30
        found = judge(with_output(made, data))
        assert (found.wrong, found.place) == (1, (0, 0, 1, 2))


def _product(w: Operand, x: Operand, *shape: int, backend: str = "CPU") -> Node:
    return Node("MUL_MAT", (w, x), Operand.blank(0, *shape), backend=backend)


def test_nodes_without_a_definition() -> None:
    f32, wide = Operand.blank(0, 5, 64), Operand.blank(0, 3, 32)
    blocks = Operand.blank(FORMATS["Q4_0"].type_id, 5, 64)
    endless = Operand.of(np.full((3, 64), np.inf, np.float32))
    routed, lost = (Operand.of(np.full((3, 2), i, np.int32)) for i in (0, 4))
    x = Operand.blank(0, 3, 1, 64)
    check_undefined(
        _product(f32, wide, 3, 5), _product(f32, Operand.blank(0, 3, 64), 5, 3), _product(blocks, endless, 3, 5),
        _product(Operand.blank(0, 2, 5, 64), Operand.blank(0, 3, 4, 64), 3, 4, 5),
        _product(Operand.blank(26, 5, 64), Operand.blank(0, 3, 64), 3, 5),
        _product(blocks, blocks, 5, 5), _product(f32, Operand.blank(0, 3, 64), 3, 5, backend="Metal"),
        Node("MUL_MAT_ID", (Operand.blank(0, 4, 5, 64), x, lost), Operand.blank(0, 3, 2, 5)),
        Node("MUL_MAT_ID", (Operand.blank(0, 4, 5, 64), x, routed), Operand.blank(0, 3, 3, 5)),
        Node("OUT_PROD", (f32, f32), Operand.blank(0, 64, 63)), Node("OUT_PROD", (f32, wide), Operand.blank(0, 32, 64)),
        replace(_product(f32, Operand.blank(0, 3, 48), 3, 48), parameters=parameters(0, 1)),
    )  # fmt: skip


# ---- backends with several definitions -------------------------------------------------------------------------------


def _in_vulkan(node: Node) -> Node:
    return replace(node, backend="Vulkan", device="Vulkan0")


def test_vulkan_uses_the_first_definition_that_admits_the_output() -> None:
    rng = np.random.default_rng(5)
    w, x = rng.standard_normal((6, 320)).astype(np.float32), rng.standard_normal((9, 320)).astype(np.float32)
    halves = [a.astype(np.float16).astype(np.float64) for a in (w, x)]
    in_half = np.zeros((9, 6), np.float16)
    for k in range(320):
        in_half = (in_half + halves[1][:, k, None] * halves[0][:, k]).astype(np.float16)
    made = {
        "f32": x.astype(np.float64) @ w.T.astype(np.float64), "f16": halves[1] @ halves[0].T,
        "f16, added in float16": in_half,
    }  # fmt: skip
    for name, y in made.items():
        node = Node("MUL_MAT", (Operand.of(w), Operand.of(x)), Operand.of(np.asarray(y, np.float32)))
        found = judge(_in_vulkan(node))
        assert (found.definition, found.passed) == (name, True)
    wrong = np.asarray(made["f32"], np.float32)
    wrong[2, 3] += 100
    node = _in_vulkan(Node("MUL_MAT", (Operand.of(w), Operand.of(x)), Operand.of(wrong)))
    found = judge(node)
    assert (found.wrong, found.place) == (1, (0, 0, 2, 3))
    assert found.extent == ((0, 0, 1), (0, 0, 1), (2, 2, 1), (3, 3, 1))


def test_half_sums_are_recognised_by_their_bits() -> None:
    """One large term early on, beside which later ones are lost: a definition with sums in float32, whose weights may
    be far off, admits most of these outputs, and not all."""
    rng = np.random.default_rng(5)
    w = random_weights(rng, FORMATS["Q4_0"], 40, 768)
    x = rng.standard_normal((12, 768)).astype(np.float32) * np.float32(0.05)
    x[:, 100] = 100
    weights, taken = (a.astype(np.float16).astype(np.float64) for a in (w.values[0, 0], x))
    y = np.zeros((12, 40), np.float16)
    for k in range(768):
        y = (y + taken[:, k, None] * weights[:, k]).astype(np.float16)
    node = _in_vulkan(Node("MUL_MAT", (w, Operand.of(x)), Operand.of(y.astype(np.float32))))
    assert judge(node).passed
    assert judge(node).definition.endswith("added in float16")
    parts = [np.zeros((12, 40), np.float16) for _ in range(3)]  # the columns split over workgroups
    for k in range(768):
        at = k // 256
        parts[at] = (parts[at] + taken[:, k, None] * weights[:, k]).astype(np.float16)
    split = sum(part.astype(np.float32) for part in parts)
    assert judge(with_output(node, np.asarray(split)[None, None])).definition.endswith("added in float16")
    wrong = np.array(node.output.data)
    wrong[0, 0, 7, 3] *= -1
    assert judge(with_output(node, wrong)).wrong == 1


@pytest.mark.parametrize("columns", [1, VECTOR_COLUMNS, VECTOR_COLUMNS + 1])
@pytest.mark.parametrize("name", [*FORMATS, *ELEMENTS])
def test_every_definition_of_vulkan_computes_something(name: str, columns: int) -> None:
    fmt = (FORMATS | ELEMENTS)[name]
    rng = np.random.default_rng(7)
    node = Node("MUL_MAT", (None,), Operand.blank(0, columns, 5), backend="Vulkan")
    tried = definitions(node, fmt, columns)
    assert len({each.title for each in tried}) == len(tried)
    k = 2 * fmt.block_size if isinstance(fmt, BlockFormat) else 64
    w = np.zeros((5, k // fmt.block_size * fmt.block_bytes), np.uint8)
    x = rng.standard_normal((columns, k)).astype(np.float32)
    rows = np.arange(columns)
    for each in tried:
        found = judged(node, (each,), x, [Matrix(lambda: w, rows, rows)])
        assert (found.definition, found.elements) == (each.title, 5 * columns)


def test_vulkan_quantizes_activations_like_the_cpu_except_ties() -> None:
    x = np.random.default_rng(9).standard_normal((20, 256)).astype(np.float32)
    node = Node("MUL_MAT", (None,), Operand.blank(0, 1, 5), backend="Vulkan")
    encodings = (each.semantics.encoding for each in definitions(node, FORMATS["Q4_0"], 1))
    ours = next(encoding for encoding in encodings if encoding.quantizes)
    same = ours.encode(x) == ENCODINGS["q8_1_cpu"].encode(x)
    assert same.mean() > 0.99
    assert ours.encode(np.zeros_like(x)).max() == 0


def test_a_wrong_output_is_judged_by_the_definition_of_the_others(llama: Llama) -> None:
    """On a backend with several definitions a wider one admits what the right one does not."""
    rng = np.random.default_rng(0)
    w, x = random_weights(rng, ELEMENTS["F32"], 64, 320), random_values(rng, F32, (9, 320))
    right = llama.compute_node(Node("MUL_MAT", (w, x), Operand.blank(F32, 9, 64)))
    assert right is not None
    node = replace(right, backend="Vulkan")
    assert judge(node).definition == "f32"
    data = np.array(node.output.data)
    data[0, 0, 4, 7] += 2.0**-9 * np.abs(data).max()
    found = judge(with_output(node, data))
    assert (found.definition, found.wrong, found.place) == ("f32", 1, (0, 0, 4, 7))
