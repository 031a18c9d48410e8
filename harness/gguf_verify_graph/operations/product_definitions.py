"""The possible definitions of a backend's product, by the type of the weights and the number of columns.

    CPU      one: that of the type (`llama_cpu_semantics`), for any number of columns.
    CUDA     see `products_on_cuda`.
    Vulkan   several, depending on the device (ggml-vulkan.cpp: ggml_vk_mul_mat, ggml_vk_mul_mat_q_f16,
             ggml_vk_mul_mat_vec_q_f16, ggml_vk_get_mul_mat_mat_f16acc; llama.cpp v0.5.0):

             at most 8 columns, mul_mat_vec*.comp: everything in float32 (FLOAT_TYPE is float), minima of superblocks
             kept apart; activations that are not contiguous are first converted to half. With integer dot products
             (mul_mat_vecq.comp) activations are quantized to Q8_1.

             more columns, mul_mm.comp: weights are decoded in float32 and both factors rounded to half (FLOAT_TYPE is
             float16_t where the device has halves, otherwise float); IQ2, IQ3 and some other types first round the
             scale to half. Sums are float32, or halves by fused multiply-add (ACC_TYPE) at default precision. BF16
             weights are multiplied by activations rounded to bfloat16. With integer dot products (mul_mmq.comp)
             activations are quantized to Q8_1, and scales of superblocks are rounded to half in shared memory.

             Mesa's llvmpipe, which has halves but neither integer dot products nor cooperative matrices, computes up
             to 8 columns as f32, and more as f16 (F32 weights), bf16 (BF16) and f16 added in float16 (all others).

The sharpest definition comes first, and those with sums in halves last. Exceptions are those in a known order, which
have exact bits and no tolerance (`in_order`). `matrices.judged` describes the choice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from gguf_verify.formats.block import BlockFormat
from gguf_verify.formats.c_arithmetic import to_half
from gguf_verify.formats.tensor_types import ACTIVATION_FORMATS, WeightFormat
from gguf_verify.llama.node import Node, NoDefinition
from gguf_verify.semantics.declared import composed, declared
from gguf_verify.semantics.definition import Semantics
from gguf_verify.semantics.definitions import SEMANTICS, llama_cpu_semantics
from gguf_verify.semantics.definitions.f32 import F32
from gguf_verify.semantics.encoding import Encoding as SemanticsEncoding
from gguf_verify.semantics.term import Halves
from gguf_verify.semantics.terms.codes import CodeTerm
from gguf_verify.support.array_types import Bytes, Floats

from .definition import Definition
from .in_order import Ordered
from .products_on_cuda import on_cuda

#: Largest number of columns of Vulkan's mul_mat_vec (ggml-vulkan.cpp, mul_mat_vec_max_cols).
VECTOR_COLUMNS = 8
_Q8_1 = ACTIVATION_FORMATS["Q8_1"]


def definitions(node: Node, fmt: WeightFormat, columns: int, of_expert: int | None = None) -> tuple[Definition, ...]:
    """Return the possible definitions of a product with weights of a format on the node's backend, in order of trial.

    Args:
        columns: of the activations; of a MUL_MAT_ID the tokens.
        of_expert: of a MUL_MAT_ID, the tokens of one expert.

    Raises NoDefinition.
    """
    if node.backend == "CPU":
        return (Definition(llama_cpu_semantics(fmt), fmt),)
    if node.backend == "CUDA":
        return on_cuda(node, fmt, columns, of_expert)
    if node.backend == "Vulkan":
        found = [Definition(s, fmt) for s in _vulkan(fmt, columns)]
        first = next((i for i, d in enumerate(found) if d.semantics.encoding is not F32.encoding), len(found))
        return (*found[:first], *(d for one in found for d in _in_order(one)), *found[first:])
    raise NoDefinition(f"products of the backend {node.backend}")


def _in_order(definition: Definition) -> Iterator[Definition]:
    """Yield definitions with the bits of half sums of factors that are rounded to half once."""
    semantics = definition.semantics
    if definition.in_half and semantics.name == "f16":
        for fused in (False, True):
            ordered = Ordered(semantics, definition.fmt, fused)
            yield replace(definition, name=f"{semantics.name}, {ordered.words}", ordered=ordered)


def _vulkan(fmt: WeightFormat, columns: int) -> tuple[Semantics, ...]:
    blocks = isinstance(fmt, BlockFormat)
    if fmt.name == "BF16":
        return F32, llama_cpu_semantics(fmt)
    found = [F32]
    if columns <= VECTOR_COLUMNS:
        found += [SEMANTICS["f32_apart"]] if blocks else []
        found += [declared(activations="float16", term="values")]
    of_codes = [s for s in _OF_CODES if isinstance(fmt, BlockFormat) and _fits(s, fmt)]
    if columns == 1:
        return *found, *of_codes
    halves = [declared("f16")]
    halves += [declared(activations="float16", term="half_steps")] if blocks else []
    in_half = [declared("f16", accumulates="float16")]
    in_half += [declared(activations="float16", term="half_steps", accumulates="float16")] if blocks else []
    return *found, *of_codes, *halves, *in_half


# ---- activations in Q8_1 on Vulkan -----------------------------------------------------------------------------------


def encode_vulkan_q8_1(x: Floats) -> Bytes:
    """Encode activations float32[M, K] as Vulkan's Q8_1: uint8[M, K/32·36].

    d = max|x|/127 and q = round(x·(1/d)), both in float32; half(d) and s = half(d·Σ q) are stored
    (vulkan-shaders/quantize_q8_1.comp, v0.5.0). GLSL lets the device choose how `round` breaks ties, and its division
    may have an error of 2.5 ulps: here ties go to the even number, and the division is IEEE's.
    """
    blocks = x.reshape(len(x), -1, _Q8_1.block_size)
    with np.errstate(all="ignore"):
        d = np.abs(blocks).max(axis=-1) / np.float32(127)
        inverse = np.where(d != 0, np.float32(1) / d, np.float32(0))
        q = np.rint(blocks * inverse[..., None])
        s = d * q.sum(axis=-1, dtype=np.float32)
        codes = np.clip(np.nan_to_num(q), -128, 127).astype(np.int8)
    return _Q8_1.pack(d=to_half(d), s=to_half(s), qs=codes).reshape(len(x), -1)


_VULKAN_Q8_1 = SemanticsEncoding(
    name="vulkan_q8_1",
    title="Q8_1: d = half(max|x|/127), q = round(x·(1/d)), s = half(d·Σ q)",
    source="llama.cpp Vulkan (vulkan-shaders/quantize_q8_1.comp)",
    encode=encode_vulkan_q8_1,
    format=_Q8_1,
    values_per_sum=32,
)


class _HalfScales(CodeTerm):
    def meets_sum(self, fmt: BlockFormat) -> bool:
        return fmt.group >= _Q8_1.block_size

    def rounded(self, fmt: BlockFormat) -> Halves:
        return "scales" if fmt.groups > 1 else ""


_HALF_SCALES = _HalfScales(
    name="half_scales", title="d_w·d_a·Σ q_w·q_a + m_w·s, with d_w and m_w of superblocks rounded to half"
)
_OF_CODES: tuple[Semantics, ...] = tuple(
    replace(composed(_VULKAN_Q8_1, term), source="llama.cpp Vulkan (mul_mat_vecq.comp, mul_mmq.comp)")
    for term in (SEMANTICS["q8_1"].term, SEMANTICS["mmq_older"].term, _HALF_SCALES)
)


def _fits(semantics: Semantics, fmt: BlockFormat) -> bool:
    """Return whether the definition exists for a format: some need sums of 16 activations."""
    try:
        semantics.uses_sum(fmt)
    except ValueError:
        return False
    return True
