"""What CUDA's kernels do otherwise than the CPU's, followed in NumPy (measured on an H200)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gguf_verify.llama.node import F32
from gguf_verify_graph.operations import Node, Operand, judge, parameters
from gguf_verify_graph.operations.unary import VARIANTS

f32 = np.float32


def _on_cuda(node: Node, y: npt.NDArray[Any]) -> Node:
    return replace(node, backend="CUDA", device="CUDA0", output=Operand.of(np.asarray(y, f32)))


def test_masking_subtracts_the_largest_float() -> None:
    x = np.arange(12, dtype=f32).reshape(3, 4) - 5
    node = Node("DIAG_MASK_INF", (Operand.of(x),), Operand.blank(F32, 3, 4), parameters(0))
    above = np.arange(4) > np.arange(3)[:, None]
    lowered, endless = np.where(above, x - np.finfo(f32).max, x), np.where(above, -np.inf, x)
    assert judge(_on_cuda(node, lowered)).passed
    assert judge(_on_cuda(node, endless)).wrong == above.sum()
    assert judge(replace(node, output=Operand.of(np.asarray(endless, f32)))).passed


def test_a_quotient_by_a_large_number_may_be_zero() -> None:
    """x / (1 + exp(-x)) from -87.4 down, whose divisor is above 2^126."""
    x = np.array([[-87.0, -87.4, -88.0, -88.5, -50.0]], f32)
    node = Node("UNARY", (Operand.of(x),), Operand.blank(F32, 1, 5), parameters(VARIANTS.index("SILU")), "SILU")
    y = x.astype(float) / (1 + np.exp(-x.astype(float)))
    vanished = np.where(x < -87.35, -0.0, y)
    assert judge(_on_cuda(node, y)).passed
    assert judge(_on_cuda(node, vanished)).passed
    vanished[0, 4] = 0
    found = judge(_on_cuda(node, vanished))
    assert (found.wrong, found.place) == (1, (0, 0, 0, 4))


def test_running_sums_by_fours() -> None:
    """A thread takes its own four terms off the sum up to the last of them, and adds them again."""
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((200, 32)) * np.where(np.arange(32) % 4 == 3, 100, 1)).astype(f32)
    fours = np.cumsum(x.reshape(200, 8, 4), axis=2, dtype=f32)
    ends = np.cumsum(fours[..., 3], axis=1, dtype=f32)
    y = (fours + (ends - fours[..., 3])[..., None]).reshape(200, 32)
    node = Node("CUMSUM", (Operand.of(x),), Operand.blank(F32, 200, 32))
    found = judge(_on_cuda(node, y))
    assert found.passed
    assert found.utilisation > 1 / 16
    y[3, 9] += f32(2e-4)
    assert judge(_on_cuda(node, y)).place == (0, 0, 3, 9)


def test_outer_products_by_tf32() -> None:
    rng = np.random.default_rng(1)
    x, z = (rng.standard_normal((40, n)).astype(f32) for n in (6, 5))
    node = Node("OUT_PROD", (Operand.of(x), Operand.of(z)), Operand.blank(F32, 5, 6))
    rounded = [np.frombuffer(v.tobytes(), np.uint32).astype(np.uint64).reshape(v.shape) for v in (x, z)]
    near = [((v + 0xFFF + (v >> 13 & 1)) & ~np.uint64(0x1FFF)).astype(np.uint32).view(f32) for v in rounded]
    found = judge(_on_cuda(node, near[1].astype(float).T @ near[0].astype(float)))
    assert found.passed
    assert found.definition.startswith("tf32")
