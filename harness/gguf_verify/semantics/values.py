"""Products of values: activations that are not quantized, by decoded weights.

For each output, in float64, with w as the term defines it: decoded (within one rounding to float32 of d·q + m), or
rounded to half or bfloat16,

    result  o = Σ_k a[k]·w[k]           bound  g(K)·Σ|a|·(|w| + e_w) + Σ|a|·e_w + τ

where g is the growth of the accumulation (`accumulation`; γ_n with n = K + 8 for float32). τ is the loss of products
that underflow, η each, and of numbers below φ that are flushed to zero: K products and as many sums, φ each, and all
terms with an operand below φ: a value a, or a weight below 2^8·φ, whose scale may be below φ (a code is below 2^8). e_w
is the largest error of w itself: see `terms.values`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..formats.block import BlockFormat
from ..formats.element import SLICE
from ..support.arrays import widened
from .accumulation import SCORE_LIMIT, Accumulation
from .device import Device
from .encoding import Encoding
from .narrow import Narrow
from .sums import Doubles, Floats, Product, in_float32_range, partial_sums, spread_of, walk

Bytes = npt.NDArray[np.uint8]
_NOTHING: Doubles = np.zeros(0)
#: An upper bound of the magnitude of any code.
MOST_CODE = 2.0**8


@dataclass(frozen=True)
class Activations:
    """Activations, decoded once for all tiles.

    Codes [nb, M, 32 or 16], their magnitudes, d, s and the size of s [nb, M, 1] each; or values [M, K] in float32,
    their magnitudes, and the values in float64.
    """

    q: Floats
    q_abs: Floats
    d: Doubles
    s: Doubles
    s_size: Doubles
    wide: Doubles

    @classmethod
    def of(cls, encoding: Encoding, x: Bytes, values: int, nb: int) -> Activations:
        """Decode tokens uint8[M, row bytes], in rows of nb terms; padding in a last block is dropped."""
        if not encoding.quantizes:
            floats = encoding.values(x)
            return cls(floats, np.abs(floats), _NOTHING, _NOTHING, _NOTHING, floats.astype(np.float64))
        a = encoding.operands(x, values)
        q = a.q[:nb]
        return cls(q, np.abs(q), a.d[:nb], a.s[:nb], a.s_size[:nb], _NOTHING)

    def apart(self, units: int) -> Activations:
        """Return those of each of `units` parts of a row on its own, as in `Blocks.apart`; only for codes."""
        of = {name: parts_apart(getattr(self, name), units) for name in ("q", "q_abs", "d", "s", "s_size")}
        return replace(self, **of)

    def on(self, device: Device) -> Activations:
        """Return the same on a device."""
        there = {of.name: device.put(getattr(self, of.name)) for of in fields(self) if of.name != "q_abs"}
        return Activations(q_abs=np.abs(there["q"]), **there)


def parts_apart(array: npt.NDArray[Any], units: int) -> npt.NDArray[Any]:
    """Reshape [nb, M, …] to [nb/units, units·M, …]: the parts of a row, side by side like tokens."""
    if not array.size:
        return array
    nb, m, last = array.shape
    return array.reshape(units, nb // units, m, last).swapaxes(0, 1).reshape(nb // units, units * m, last)


def term_values(fmt: BlockFormat) -> int:
    """Return the values of a term: 32, or 16 if only 16 share a scale."""
    return min(fmt.group, 32)


def by_term(fmt: BlockFormat, of_groups: Floats) -> Doubles:
    """Convert float32[n, blocks, groups] to float64[nb, 1, n]."""
    per_group = fmt.group // term_values(fmt)
    flat = of_groups.reshape(len(of_groups), -1)
    wide: Doubles = widened(flat)
    return np.repeat(wide, per_group, axis=1).T[:, None, :]


def by_slice(products: Doubles) -> Doubles:
    """Reshape [E, K] to [slices, 32, E], padded with zeros."""
    filled = np.pad(products, ((0, 0), (0, -products.shape[1] % SLICE)))
    return filled.reshape(len(products), -1, SLICE).transpose(1, 2, 0)


def exact_weights(fmt: BlockFormat, blocks: Bytes) -> Doubles:
    """Return d·q + m of uint8[..., block_bytes], float64[..., block_size], without the rounding of a decoded value."""
    q = fmt.codes(blocks).astype(np.float64)
    q = q.reshape(*q.shape[:-1], fmt.groups, fmt.group)
    q *= fmt.scales(blocks)[..., None]
    q += fmt.minima(blocks)[..., None]
    return q.reshape(*q.shape[:-2], fmt.block_size)


def of_values(a: Doubles, w: Doubles, size: int, accumulation: Accumulation, ordered: Floats | None = None) -> Product:
    """Compute the product of values float64[M, K] and float64[n, K], with `size` values in a term."""
    by_block = a.reshape(len(a), -1, size).transpose(1, 0, 2)
    w_by_block = w.reshape(len(w), -1, size).transpose(1, 2, 0)
    term = np.matmul(by_block, w_by_block)
    exact, carried = walk(term)
    partial = None
    if accumulation.name == "float16":  # `half2` adds even and odd k separately
        even = np.matmul(by_block[:, :, ::2], w_by_block[:, ::2])
        partial = partial_sums(even) + partial_sums(term - even)
        carried = np.maximum(carried, walk(even)[1] + walk(term - even)[1])
    lanes = np.matmul(by_block**2, w_by_block**2)
    spread = spread_of(term, carried, lanes, size, accumulation, partial)
    magnitude = np.abs(a) @ np.abs(w).T
    lost = (magnitude > 0) * (accumulation.underflow + 2 * accumulation.flushed) * a.shape[1]
    lost = lost + _of_flushed_operands(a, w, accumulation.flushed)
    bound = accumulation.growth(a.shape[1]) * magnitude + lost
    underflow = a.shape[1] * accumulation.underflow if accumulation.name == "float16" else 0.0
    made = Product(exact, bound, spread + lost, ordered, scale=np.sqrt(lanes.sum(axis=0)), underflow=underflow)
    return held(made, magnitude, accumulation)


def alignment_of_subnormals(
    a: Doubles, w: Doubles, narrow: Narrow | None, accumulation: Accumulation, off: Doubles | None = None
) -> Doubles | float:
    """Return the loss in tensor cores due to subnormal factors, beyond the bound of `of_values`, float64[M, n].

    Tensor cores align products by the sum of their factors' exponents, and the exponent of a subnormal factor is that
    of the smallest normal number ν. So the product of a and w is truncated like one of max(|a|, ν)·max(|w|, ν), in the
    one step that adds it. (On an H100 and an H200 outputs have the bits of this model with L = 16, F = 25, and with
    weights of 2^-24 not those of normalized exponents: tests/gpu/test_gpu_tensor_cores.py.) Zeros have no exponent.

    Args:
        narrow: the factors' type; None if they are float32.
        off: the largest error of a weight: one that is 0 here need not be 0 in a kernel.
    """
    if narrow is None or not accumulation.fraction:
        return 0.0
    size_a, size_w = np.abs(a), np.abs(w)
    more_a = np.maximum(narrow.normal - size_a, 0.0) * (size_a > 0)
    more_w = np.maximum(narrow.normal - size_w, 0.0) * ((size_w if off is None else size_w + off) > 0)
    if not (more_a.any() or more_w.any()):
        return 0.0
    more: Doubles = accumulation.unit * (more_a @ (size_w + more_w).T + size_a @ more_w.T)
    return more


def _of_flushed_operands(a: Doubles, w: Doubles, flushed: float) -> Doubles | float:
    """Return Σ|a|·|w| of the values below `flushed`, and of the weights below 2^8 times that, [M, n]."""
    size_a, size_w = np.abs(a), np.abs(w)
    small_a, small_w = size_a * (size_a < flushed), size_w * (size_w < MOST_CODE * flushed)
    lost: Doubles | float = 0.0
    if small_a.any():
        lost = small_a @ size_w.T
    if small_w.any():
        lost = lost + size_a @ small_w.T
    return lost


def held(p: Product, size: Doubles, accumulation: Accumulation) -> Product:
    """Return the product; not finite where the accumulator of a correct kernel may overflow.

    A correct kernel passes both gates. Its accumulator may overflow in some order, or does so in the declared one.

    Args:
        size: the sum of the magnitudes of all terms.
    """
    if p.ordered is not None:
        return in_float32_range(p)
    reach = size + np.minimum(p.bound, SCORE_LIMIT * p.spread)
    if (reach < accumulation.overflows).all():
        return p
    return replace(p, exact=np.where(reach >= accumulation.overflows, np.copysign(np.inf, p.exact), p.exact))
