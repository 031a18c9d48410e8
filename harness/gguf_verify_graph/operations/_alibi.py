"""Masks of attention scores, and their ALiBi slopes."""

from __future__ import annotations

import numpy as np

from gguf_verify.llama.node import F16, F32, Doubles, Node, NoDefinition, Operand

from .arithmetic import ULP, arithmetic


def slopes(node: Node, heads: int, max_bias: float) -> tuple[Doubles, Doubles]:
    """Return the slope of each head, and its relative error: float64[heads] each.

    With b = max_bias and n the largest power of two that is at most the number of heads, head h has

        m^k    m = 2^(-b/n), k = h + 1 if h < n       m = 2^(-b/(2n)), k = 2·(h - n) + 1 for the others

    and 1 where b is not positive. The exponents are exact. m is a float32 power; raising it to k multiplies its
    error by k.
    """
    if not max_bias > 0 or not heads:
        return np.ones(heads), np.zeros(heads)
    n, h = 1 << (heads.bit_length() - 1), np.arange(heads)
    k = np.where(h < n, h + 1, 2 * (h - n) + 1)
    exponents = k * np.where(h < n, max_bias / n, max_bias / 2 / n)
    return np.exp2(-exponents), (ULP * arithmetic("CPU").power) * k + ULP * arithmetic(node.backend).power


def mask_of(node: Node, mask: Operand, rows: int, columns: int, sizes: tuple[int, int]) -> None:
    """Check that `mask` is a mask of scores [sizes, at least rows, columns] whose batches divide `sizes`.

    Raises NoDefinition.
    """
    ne3, ne2, ne1, ne0 = mask.shape
    fits = ne0 == columns and ne1 >= rows and ne2 > 0 < ne3 and sizes[1] % ne2 == 0 and sizes[0] % ne3 == 0
    if mask.type_id not in (F16, F32) or not fits:
        raise NoDefinition(f"{node.operation} with a mask of {mask.type} {mask.ne}")
