"""FLASH_ATTN_EXT as llama.cpp's CUDA backend computes it on NVIDIA GPUs (ggml-cuda/fattn.cu, fattn-common.cuh,
fattn-vec.cuh, fattn-mma-f16.cuh, fattn-tile.cuh; v0.5.0).

The GPU, the types and the sizes select the kernel (ggml_cuda_get_best_fattn_kernel). M is 3·0.6931 above the largest
score so far.

    vec     few queries. Floating-point keys: everything in float32. Quantized keys: scale·q becomes codes of Q8_1 with
            a float32 scale d and sum s, and s[t] = Σ d_k·d·Σ q_k·q_q + m_k·s as in MMVQ. Values are decoded to float32.
    mma     tensor cores: q' = half(half(scale)·half(q)); keys and values are converted to half; s[t] is float32, p
            is half, the sums of p·v are halves, and Σ p is float32
    tile    without tensor cores, and for heads of 40 and 72 values: q' = half(scale·q), a quarter of which is
            multiplied; each product q'·k is rounded to half and added in float32; the rest as in mma

The sums of warps and blocks are added and divided in float32. mma treats exp(M - M_new) as zero where the difference is
below -20, and so drops everything added before from both sums: these p are below 2^-28, and the bound allows 2^-25 for
each. Subnormal exponentials are flushed to zero.

The bounds are those of `_attention_by_paths`. For codes, with A[t] = Σ |d_k|·d·Σ|q_k·q_q| + |m_k·s|, the error of the
scores is γ_n·A with n = dims/2 + 16, plus the error of the sum s, γ_8·Σ|scale·q|·|m_k|. A code that fast math may round
either way adds |d_k·q_k|·d, and its scale adds WINDOW of the whole. The spread is u·√(n/3)·A. A row without any key has
no definition.
"""

from __future__ import annotations

import numpy as np

from gguf_verify.formats import BlockFormat
from gguf_verify.llama.node import Doubles, Node, NoDefinition, Operand
from gguf_verify.semantics.accumulation import IN_FLOAT32, SCORE_LIMIT, in_tensor_cores
from gguf_verify.semantics.fast_math import WINDOW
from gguf_verify.semantics.narrow import HALF
from gguf_verify.semantics.sums import UNIT_ROUNDOFF, gamma

from ._attention_by_paths import Floats, Path, judge_by, scaled_in_float32, scaled_to_half
from ._attention_scores import Scores, format_of
from .judging import Judged

_BLOCK = 32
#: Number of keys of a whole step (FATTN_KQ_STRIDE).
_KEYS = 256
#: Types of keys that have products with Q8_1 codes.
_OF_CODES = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")


def judge_on_cuda(node: Node) -> Judged:
    """Judge a FLASH_ATTN_EXT node. Raises NoDefinition."""
    k, mask = node.source(1), node.optional(3)
    format_of(node.source(2))
    if mask is not None and node.optional(4) is None:
        rows = mask.data[:, :, : node.source(0).ne[1]]
        if np.isneginf(rows.astype(np.float32)).all(axis=-1).any():
            raise NoDefinition("attention with a row that has no key: 0/0")
    first = (_VEC_OF_CODES, _VEC) if k.type in _OF_CODES else (_VEC,)
    return judge_by(node, first if vec_alone(node) else (*first, _MMA, _TILE))


def vec_alone(node: Node) -> bool:
    """Return whether every GPU with tensor cores (Turing or later) uses the vec kernel.

    ggml_cuda_get_best_fattn_kernel selects it for one query per head, unless several heads share keys and values of
    floating-point types.
    """
    (q, k, v), mask = (node.source(i) for i in range(3)), node.optional(3)
    of_one = q.ne[1] == 1 and q.ne[0] <= 256 and q.ne[0] % 64 == 0 and q.ne[0] != 192 and k.ne[1] % _KEYS == 0
    aligned = all(step % 16 == 0 for each in (q, k, v, mask) if each and not each.blocks for step in each.nb[1:])
    grouped = q.ne[2] >= 2 * k.ne[2] and mask is not None and not node.number(1) and aligned
    return of_one and (k.blocks or v.blocks or not grouped)


def _by_tensor_cores(q: Floats, scale: np.float32) -> Doubles:
    return HALF.rounded(HALF.rounded(np.atleast_1d(scale)) * HALF.rounded(q))


def _quarters(q: Floats, scale: np.float32) -> Doubles:
    return 4 * HALF.rounded(scaled_to_half(q, scale) / 4)


def _by_codes(q: Floats, scale: np.float32, keys: Operand) -> Scores:
    """Return the scores of quantized queries and keys."""
    fmt = format_of(keys)
    assert isinstance(fmt, BlockFormat)
    x = scaled_in_float32(q, scale).reshape(len(q), -1, _BLOCK)
    d = np.abs(x).max(axis=-1, keepdims=True) / 127
    ratio = np.divide(x, d, out=np.zeros_like(x), where=d > 0)
    codes = np.sign(ratio) * np.floor(np.abs(ratio) + 0.5)
    either = np.abs(np.abs(ratio) % 1 - 0.5) <= WINDOW * np.abs(ratio)
    blocks = np.ascontiguousarray(keys.data[0, 0]).reshape(keys.ne[1], -1, fmt.block_bytes)
    d_k, m_k = (of(blocks)[..., 0].astype(np.float64) for of in (fmt.scales, fmt.minima))  # [keys, blocks]
    q_k = fmt.codes(blocks).astype(np.float64)
    if not fmt.has_min and not fmt.offset:
        m_k = np.zeros_like(m_k)
    weights = (d_k[..., None] * q_k).reshape(len(d_k), -1)
    a = (codes * d).reshape(len(q), -1)
    s, s_size = x.sum(axis=-1), np.abs(x).sum(axis=-1)
    exact = a @ weights.T + s @ m_k.T
    size = np.abs(a) @ np.abs(weights).T + np.abs(s) @ np.abs(m_k).T
    n = keys.ne[0] // 2 + 16
    moved = ((either * d).reshape(len(q), -1) + WINDOW * np.abs(a)) @ np.abs(weights).T
    certain = gamma(8) * (s_size @ np.abs(m_k).T) + moved
    return Scores(exact, gamma(n) * size + certain, UNIT_ROUNDOFF * np.sqrt(n / 3) * size + certain / SCORE_LIMIT)


_VEC = Path("f32", "CUDA", False, IN_FLOAT32)
_VEC_OF_CODES = Path("queries in Q8_1, f32", "CUDA", False, IN_FLOAT32, taken=_by_codes)
_MMA = Path("tensor cores, half sums", "CUDA", True, in_tensor_cores(), _by_tensor_cores, divides=True)
_TILE = Path("half products, half sums", "CUDA", True, IN_FLOAT32, _quarters, products=HALF.unit, divides=True)
