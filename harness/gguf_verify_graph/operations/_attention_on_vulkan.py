"""FLASH_ATTN_EXT as llama.cpp's Vulkan backend computes it (vulkan-shaders/flash_attn.comp, flash_attn_base.glsl and
flash_attn_split_k_reduce.comp; ggml-vulkan.cpp, ggml_vk_flash_attn; v0.5.0).

A device without halves computes everything in float32, as does any device for bfloat16 keys without matrix cores for
them. With halves (FLOAT_TYPE is float16_t):

    q'      half(scale·q), or half(scale/c·q) with a soft cap c          k, v     rounded or decoded to half
    s[t]    q'·k[t], its soft cap and its mask in float32, or in halves (ACC_TYPE) unless parameter 3 requests float32
            (GGML_PREC_F32, which llama.cpp's models do)
    p[t]    half(exp(s[t] - M)), M = 3·0.6931 + the largest score so far
    y       half(half(1/Σ p)·Σ p·v), where Σ p is float32, and p·v and its sum are halves; that sum is multiplied by
            half(exp(M_old - M)) at each block of keys (32 or 64)

Every thread reads some of the keys, with its own M, and the threads' sums are added at the end. Where the keys are
split over workgroups, the workgroups' sums are added in float32; with scores in halves, the M and Σ p of each part are
stored as halves.

The bounds are those of `_attention_by_paths`. The rounding error of p is 2u, since SPIR-V lets the device choose the
rounding direction of the conversion.

Devices with integer dot products quantize the queries for Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0 keys (MMQ), and devices with
matrix cores for bfloat16 round further values to bfloat16. Such a node has no definition if none of the above fits.
"""

from __future__ import annotations

from gguf_verify.llama.node import BF16, Node
from gguf_verify.semantics.accumulation import IN_FLOAT16, IN_FLOAT32
from gguf_verify.semantics.narrow import HALF

from ._attention_by_paths import Path, judge_by, scaled_to_half
from ._attention_scores import format_of
from .judging import Judged

#: GGML_PREC_F32.
_FLOAT32 = 10
#: Types of keys for which a device with integer dot products quantizes the queries.
_OF_CODES = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")
_IN_FLOATS = Path("f32", "Vulkan", False, IN_FLOAT32)
_IN_HALVES = Path("halves, f32 scores", "Vulkan", True, IN_FLOAT32, scaled_to_half, conversion=2 * HALF.unit)
_ALL_HALVES = Path("halves, half scores", "Vulkan", True, IN_FLOAT16, scaled_to_half, conversion=2 * HALF.unit)


def judge_on_vulkan(node: Node) -> Judged:
    """Judge a FLASH_ATTN_EXT node. Raises NoDefinition."""
    k = node.source(1)
    format_of(node.source(2))
    paths: tuple[Path, ...] = (_IN_FLOATS,)
    if k.type_id != BF16:
        paths = (_IN_FLOATS, _IN_HALVES if node.integer(3) == _FLOAT32 else _ALL_HALVES)
    others = k.type_id == BF16 or k.type in _OF_CODES
    return judge_by(
        node, paths, f"attention over keys of {k.type} by integer dot products or matrix cores" if others else ""
    )
