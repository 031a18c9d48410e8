"""llama.cpp's own activation bytes of a GEMM, in the layouts that exact products and kernels take."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ...formats import ACTIVATION_FORMATS, ElementFormat, WeightFormat
from ...formats.block import NO_TYPE_ID
from ...formats.q8_1 import Q8_1
from ...formats.q8_1_d4 import Q8_1_D4
from ...llama import Gemm
from ...semantics.definition import Semantics
from ...semantics.fast_math import as_q8_1

Bytes = npt.NDArray[np.uint8]

#: Formats (ggml's numbers) in which a capture is asked for each GEMM's activations.
ACTIVATIONS = tuple(fmt.type_id for fmt in ACTIVATION_FORMATS.values())


def llama_bytes(fmt: WeightFormat, gemm: Gemm, llama: Semantics) -> Bytes:
    """llama.cpp's own activation bytes, uint8[M, row bytes], as `product` takes them for llama.cpp's definition."""
    if isinstance(fmt, ElementFormat):
        rounded = gemm.x if fmt.type_id not in gemm.quantized else fmt.decode(gemm.quantized[fmt.type_id])
        return rounded.view(np.uint8)
    if llama.activations is None:
        return llama.bytes_of(gemm.x)
    return gemm.quantized[llama.activations.type_id]


def llama_activations(semantics: Semantics, fmt: WeightFormat, gemm: Gemm, llama: Semantics) -> Bytes:
    """llama.cpp's own activation bytes, uint8[M, row bytes], in the layout that a kernel of this definition takes.

    A kernel that quantizes its activations itself gets the values of the blocks that a kernel of blocks gets: as
    float32, quantized again, they have the same codes and scale, since the largest code of a block is 127. A kernel of
    a layout that llama.cpp does not make for this product gets this project's blocks of it; so does each where
    llama.cpp multiplies values.
    """
    if isinstance(fmt, ElementFormat):
        return llama_bytes(fmt, gemm, llama)
    if semantics.inside is not None:
        blocks = llama_activations(semantics.inside, fmt, gemm, llama)
        return semantics.bytes_of(semantics.inside.values_of(blocks)[:, : gemm.x.shape[1]])
    encoding, own = semantics.encoding, llama.encoding
    if own.format is None:
        return semantics.bytes_of(gemm.x)
    if encoding.rearranges is not None:
        plain, rearranged = encoding.rearranges
        return rearranged(llama_activations(replace(semantics, encoding=plain), fmt, gemm, llama))
    if encoding.format is Q8_1:
        if own.format is Q8_1_D4:
            return as_q8_1(gemm.quantized[Q8_1_D4.type_id], gemm.x)
        return gemm.quantized[Q8_1.type_id]
    if encoding.format is None:
        return semantics.bytes_of(own.values(gemm.quantized[own.format.type_id]))
    if encoding.format is own.format or encoding.format.type_id != NO_TYPE_ID:
        there = gemm.quantized.get(encoding.format.type_id)
        if there is not None:
            return there
    return semantics.bytes_of(gemm.x)  # llama.cpp makes none of this layout here
