"""Right kernels that add in half or in tensor cores, simulated in NumPy, step by step and apart from the bounds."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]


def half(values: Doubles) -> Doubles:
    """To nearest even. The doubles that are given here hold each product and sum of two halves exactly."""
    with np.errstate(over="ignore"):
        return values.astype(np.float16).astype(np.float64)


def fused(a: Doubles, w: Doubles) -> Doubles:
    """`__hfma` in ascending k, [M, N] of a[M, K] and w[N, K]."""
    total = np.zeros((len(a), len(w)))
    for k in range(a.shape[1]):
        total = half(a[:, k, None] * w[None, :, k] + total)
    return total


def apart(a: Doubles, w: Doubles) -> Doubles:
    """`__hmul` and `__hadd` in ascending k."""
    total = np.zeros((len(a), len(w)))
    for k in range(a.shape[1]):
        total = half(half(a[:, k, None] * w[None, :, k]) + total)
    return total


def in_pairs(a: Doubles, w: Doubles) -> Doubles:
    """`__hfma2`: even and odd k apart, which are added at the end."""
    return half(fused(a[:, ::2], w[:, ::2]) + fused(a[:, 1::2], w[:, 1::2]))


def products_first(a: Doubles, w: Doubles) -> Doubles:
    """`__hmul` and `__hadd`, over a tree as a warp's reduction has it."""
    total = half(a[:, None, :] * w[None])
    while total.shape[2] > 1:
        if total.shape[2] % 2:
            total = np.concatenate([total, np.zeros((*total.shape[:2], 1))], axis=2)
        total = half(total[..., : total.shape[2] // 2] + total[..., total.shape[2] // 2 :])
    return total[..., 0]


def backwards(a: Doubles, w: Doubles) -> Doubles:
    """As `fused`, in descending k, in four lanes."""
    return half(sum((fused(a[:, lane::4][:, ::-1], w[:, lane::4][:, ::-1]) for lane in range(4)), np.zeros(())))


HALF_SUMS: tuple[Callable[[Doubles, Doubles], Doubles], ...] = (fused, apart, in_pairs, products_first, backwards)


def toward_zero(values: Doubles, bits: int) -> Doubles:
    """Cut off to so many bits of significand."""
    mantissa, exponent = np.frexp(values)
    return np.ldexp(np.trunc(np.ldexp(mantissa, bits)), exponent - bits)


def in_tensor_cores(a: Doubles, w: Doubles, products: int, fraction: int, least: int = -14) -> Doubles:
    """Ascending k: L products and the accumulator are cut off to F bits below the largest exponent, added, and cut off
    to float32. A product's exponent is the sum of those of its factors, which are at least `least` (an H200's bits)."""
    total = np.zeros((len(a), len(w)))
    of_a, of_w = (np.where(v == 0, -5000, np.maximum(np.frexp(v)[1] - 1, least)) for v in (a, w))
    for k in range(0, a.shape[1], products):
        these = slice(k, k + products)
        terms = np.concatenate([a[:, None, these] * w[None, :, these], total[..., None]], axis=2)
        of_total = np.where(total == 0, -5000, np.frexp(total)[1] - 1)
        exponents = np.concatenate([of_a[:, None, these] + of_w[None, :, these], of_total[..., None]], axis=2)
        exponent = exponents.max(axis=2)
        quantum = np.where(exponent > -1000, np.ldexp(1.0, exponent - fraction), 1.0)
        total = toward_zero((np.trunc(terms / quantum[..., None]) * quantum[..., None]).sum(axis=2), 24)
    return total
