"""Which definitions a product of llama.cpp's CUDA backend may have, in the order they are tried.

Read in ggml-cuda of llama.cpp v0.5.0: ggml-cuda.cu (ggml_cuda_mul_mat, ggml_cuda_mul_mat_id, ggml_cuda_mul_mat_cublas),
mmvq.cu, vecdotq.cuh, mmq.cu, mmq-load-tiles.cuh, quantize.cu, mmvf.cu, mmf.cuh, mma.cuh.

Quantized weights and float32 activations: MMVQ for few columns and MMQ for more, each by the format's definition. The
one for this number of columns comes first, since the limit between them depends on the card. Beyond those of `formats`:

    IQ2_XXS, IQ2_XS,    MMVQ divides integers, which drops remainders, of 32 values at a time:
    IQ2_S, IQ3_XXS      d·d_a·⌊(Σ_g s[g]·S[g] + ⌊Σ_g S[g]/2⌋)/D⌋, ⌊⌋ towards zero, S[g] = Σ q_w·q_a of the groups g with
                        scales d·(2·s[g] + 1)/(2·D); D is 4 of IQ2 and 2 of IQ3_XXS
    IQ1_S               grid + 1 is multiplied, and (delta - 1)·d·(2s + 1) meets the sum s of the raw values: in MMVQ as
                        in `mmq_older`, in MMQ as in `mmq`
    Q2_K                MMQ is `mmq_d2s6`

The quantizers of activations are built with fast math (`semantics.fast_math`): see `_codes_on_cuda`.

Values: float32 weights, and whatever cuBLAS multiplies:

    f32         mmvf, of few columns; cuBLAS without tensor cores
    f16, bf16   activations rounded to the weights' type: mmf, of at most 16 columns, and cuBLAS
    tf32        mmf of float32, and cuBLAS, whose math mode is CUBLAS_TF32_TENSOR_OP_MATH. Tensor cores read the upper
                19 bits of a float32 ("cut") in mmf; cuBLAS rounds to them before, to nearest even (measured on an H200)
    f16 added in float16 by lanes
                mmvf of half weights, unless the node asks for float32: each of up to 512 lanes multiplies and adds its
                values in halves, and the lanes are added in float32 (`_lanes_on_cuda`)
    f16 added in float16 or by tensor cores, with outputs of float16
                cuBLAS by CUBLAS_COMPUTE_16F, also with weights that are dequantized to half: of types without MMQ, and
                such as meet activations of half

Sums of tensor cores are those of an H100 (`semantics.accumulation`), whose bound holds for other cards' units, or else
those of a V100, whose bound is the widest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ..formats import ELEMENTS, BlockFormat, WeightFormat
from ..semantics import F32, SEMANTICS, Semantics, declared, llama_cpu_semantics
from ..semantics import Encoding as SemanticsEncoding
from ..semantics.accumulation import in_tensor_cores
from ..semantics.cuda import mmvq_tokens
from ._codes_on_cuda import definition_of_codes, products_of
from ._definition import Definition, Floats
from ._lanes_on_cuda import MOST_COLUMNS, in_lanes
from .node import F32 as FLOAT32
from .node import Bytes, Node

#: The compute capability, times ten, whose limit between MMVQ and MMQ is tried first.
_SM = 90
#: Tensor cores: (L, F) of an H100, and of a V100.
_UNITS = ({"L": 16, "F": 25}, {"L": 4, "F": 23})
#: Bits of a float32 that TF32 does not have.
_CUT = 13


def on_cuda(node: Node, fmt: WeightFormat, columns: int) -> tuple[Definition, ...]:
    """The definitions of a MUL_MAT or a MUL_MAT_ID.

    Args:
        columns: of the activations; of a MUL_MAT_ID the tokens.

    Raises NoDefinition.
    """
    if not isinstance(fmt, BlockFormat):
        return of_values(fmt, columns)
    if node.source(1).type_id != FLOAT32:
        return _dequantized(fmt)
    mmvq, mmq = products_of(fmt)
    few = columns <= mmvq_tokens(fmt, _SM, node.op == "MUL_MAT_ID")
    found = [
        definition_of_codes(SEMANTICS[name], fmt, is_few)
        for name, is_few in sorted(((mmvq, True), (mmq, False)), key=lambda pair: pair[1] is not few) if name
    ]  # fmt: skip
    return (*found, *(() if mmq else _dequantized(fmt)))


def _in_tensor_cores(of: Callable[[dict[str, int]], Semantics]) -> list[Semantics]:
    return [of(unit) for unit in _UNITS]


def of_values(fmt: WeightFormat, columns: int) -> tuple[Definition, ...]:
    """Of weights that are F32, F16 or BF16."""
    found = [Definition(F32, fmt)]
    if fmt.name == "F16":
        found += [Definition(llama_cpu_semantics(fmt), fmt)]
        found += [Definition(s, fmt) for s in _in_tensor_cores(lambda u: declared("f16", accumulates=u))]
    if fmt.name == "BF16":
        found += [Definition(s, fmt) for s in (llama_cpu_semantics(fmt), *_in_tensor_cores(
            lambda u: declared("bf16", accumulates=u)))]  # fmt: skip
    found += _in_tf32(fmt)
    if fmt.name == "F16":
        found += [in_lanes(fmt)] if columns <= MOST_COLUMNS else []
        found += _in_half(fmt)
    return tuple(found)


def _dequantized(fmt: BlockFormat) -> tuple[Definition, ...]:
    """Of quantized weights that cuBLAS multiplies: as halves, or as float32 where the node asks for that."""
    return (Definition(F32, fmt), *_in_tf32(fmt), *_in_half(fmt))


def _in_half(fmt: WeightFormat) -> tuple[Definition, ...]:
    made = [declared("f16", accumulates=u, output="float16") for u in _UNITS]
    made += [declared("f16", accumulates="float16"), declared("f16", accumulates="float16", output="float16")]
    return tuple(Definition(s, fmt) for s in made)


# ---- TF32 ------------------------------------------------------------------------------------------------------------


def cut_to_tf32(x: Floats) -> Floats:
    """float32 without the 13 last bits, as tensor cores read it."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return (bits & np.uint32(0xFFFFFFFF << _CUT & 0xFFFFFFFF)).view(np.float32)


def round_to_tf32(x: Floats) -> Floats:
    """float32 rounded to 11 significant bits, halves to even."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    with np.errstate(over="ignore"):
        near = bits + np.uint32((1 << _CUT - 1) - 1) + (bits >> np.uint32(_CUT) & np.uint32(1))
    return np.where(np.isfinite(x), cut_to_tf32(near.view(np.float32)), x)


def _tf32(name: str, to: Callable[[Floats], Floats], unit: dict[str, int]) -> Semantics:
    encoding = SemanticsEncoding(
        name=name, title=f"activations in TF32, {name}", source="llama.cpp CUDA (mmf.cuh, cuBLAS)",
        encode=lambda x: to(x).view(np.uint8).reshape(len(x), -1), dtype="float32",
    )  # fmt: skip
    return replace(
        F32, name=name, title="Σ tf32(a)·tf32(w)", encoding=encoding, any_format=False, elements=None,
        source="llama.cpp CUDA (mmf.cuh, cuBLAS)", accumulation=in_tensor_cores(unit["L"], unit["F"]),
    )  # fmt: skip


_TF32 = tuple(
    (_tf32(name, to, unit), to)
    for name, to in (("tf32, cut", cut_to_tf32), ("tf32", round_to_tf32)) for unit in _UNITS
)  # fmt: skip


def _in_tf32(fmt: WeightFormat) -> list[Definition]:
    """Both factors in TF32, of the decoded weights."""
    return [
        Definition(semantics, ELEMENTS["F32"], weights=lambda w, to=to: _decoded(fmt, w, to))  # type: ignore[misc]
        for semantics, to in _TF32
    ]


def _decoded(fmt: WeightFormat, w: Bytes, to: Callable[[Floats], Floats]) -> Bytes:
    """Rows of weights as float32, uint8[N, 4·K]."""
    values = fmt.decode(w.reshape(len(w), -1, fmt.block_bytes)) if isinstance(fmt, BlockFormat) else fmt.decode(w)
    return to(np.asarray(values, np.float32).reshape(len(w), -1)).view(np.uint8)


__all__ = ["cut_to_tf32", "of_values", "on_cuda", "round_to_tf32"]
