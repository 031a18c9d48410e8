"""The possible definitions of a product of llama.cpp's CUDA backend, in order of trial.

Source: ggml-cuda of llama.cpp v0.5.0, ggml-cuda.cu (ggml_cuda_mul_mat, ggml_cuda_mul_mat_id, ggml_cuda_mul_mat_cublas),
mmvq.cu, vecdotq.cuh, mmq.cu, mmq-load-tiles.cuh, quantize.cu, mmvf.cu, mmf.cu, mmf.cuh, mma.cuh. Types, sizes, steps
and the requested precision select the kernel. Where GPUs of compute capability 7.5 and later differ, a node has the
definitions of each. A choice that depends on the environment (GGML_CUDA_CUBLAS_COMPUTE_TYPE) or the build
(GGML_CUDA_FORCE_CUBLAS) is not known.

Quantized weights and float32 activations: MMVQ for few columns and MMQ for more, each by the format's definition. The
one for this number of columns comes first; both are tried, since the limit between them depends on the GPU. Deviations
from the definitions of `formats`:

    IQ2_XXS, IQ2_XS,    MMVQ divides integers, which drops remainders, for 32 values at a time:
    IQ2_S, IQ3_XXS      d·d_a·⌊(Σ_g s[g]·S[g] + ⌊Σ_g S[g]/2⌋)/D⌋, ⌊⌋ towards zero, S[g] = Σ q_w·q_a of the groups g with
                        scales d·(2·s[g] + 1)/(2·D); D is 4 for IQ2 and 2 for IQ3_XXS
    IQ1_S               grid + 1 is multiplied, and (delta - 1)·d·(2s + 1) is multiplied by the sum s of the raw values:
                        in MMVQ as in `mmq_older`, in MMQ as in `mmq`
    Q2_K                MMQ is `mmq_d2s6`

The quantizers of activations are built with fast math (`semantics.fast_math`): see `codes_on_cuda`.

Values: float32 weights, and everything multiplied by cuBLAS:

    f32         mmvf, for few columns; cuBLAS without tensor cores
    f16, bf16   activations rounded to the weights' type: mmf, for at most 16 columns, and cuBLAS
    tf32        mmf of float32, and cuBLAS, whose math mode is CUBLAS_TF32_TENSOR_OP_MATH. Tensor cores read the upper
                19 bits of a float32 ("cut") in mmf; cuBLAS first rounds to them, to nearest even (measured on an H200)
    f16 added in float16 by lanes
                mmvf of half weights, unless the node requests float32: each of up to 512 lanes multiplies and adds its
                values in halves, and the lanes are added in float32 (see below). Not in a MUL_MAT_ID; the only
                definition for one column of a matrix with an even number of columns
    f16 added in float16 or by tensor cores, with outputs of float16
                cuBLAS by CUBLAS_COMPUTE_16F, unless the node requests float32; also for weights dequantized to half:
                types without MMQ, and weights multiplied by half activations. Not where mmf takes the weights

Sums of tensor cores are those of an H100 (`semantics.accumulation`), whose bound also covers other GPUs, or otherwise
those of a V100, whose bound is the widest.

Products of half weights with one column of activations on CUDA (ggml-cuda/mmvf.cu, mul_mat_vec_f; llama.cpp v0.5.0).

A block of B threads, 32 to 256, has two lanes per thread: lane 2j + i adds up a[k]·w[k] for k = 2·(j + B·step) + i, in
halves. B is the smallest number that minimises the number of steps. The lanes are added in float32. With u = 2^-11, n
steps and the partial sums S of a lane:

    bound    ((1 + u)^(n+1) - 1)·Σ|a·w| + K·2^-24 + γ_16·Σ|a·w|, which includes underflow and rounding of products
    spread   1/√3 times the root of Σ (u·S)² + (u·a·w)², over all steps and lanes, and of 16·(2^-24)²·Σ|a·w|²
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from gguf_verify.formats.block import BlockFormat
from gguf_verify.formats.element import ElementFormat
from gguf_verify.formats.llama_products import MMVQ_TOKENS
from gguf_verify.formats.tensor_types import ELEMENTS, WeightFormat
from gguf_verify.llama.node import F32 as FLOAT32
from gguf_verify.llama.node import Bytes, Doubles, Node, NoDefinition, Operand, element_bytes
from gguf_verify.semantics.accumulation import in_tensor_cores
from gguf_verify.semantics.cuda import mmvq_tokens
from gguf_verify.semantics.declared import declared
from gguf_verify.semantics.definition import Semantics
from gguf_verify.semantics.definitions import SEMANTICS, llama_cpu_semantics
from gguf_verify.semantics.definitions.f32 import F32
from gguf_verify.semantics.encoding import Encoding as SemanticsEncoding
from gguf_verify.semantics.narrow import HALF
from gguf_verify.semantics.sums import UNIT_ROUNDOFF, Product, gamma

from .codes_on_cuda import definition_of_codes, products_of
from .definition import Definition, Floats

#: The compute capability, times ten, whose limit between MMVQ and MMQ is tried first.
_SM = 90
#: Tensor cores: (L, F) of an H100, and of a V100.
_UNITS = ({"L": 16, "F": 25}, {"L": 4, "F": 23})
#: GGML_PREC_F32, and the largest number of rows of weights at which a batch of matrices is thin (mmvf.cu).
_PRECISE, _THIN = 10, 512
#: Number of bits of a float32 that TF32 lacks.
_CUT = 13


def on_cuda(node: Node, fmt: WeightFormat, columns: int, of_expert: int | None = None) -> tuple[Definition, ...]:
    """Return the definitions of a MUL_MAT or a MUL_MAT_ID.

    Args:
        columns: of the activations; of a MUL_MAT_ID the tokens.
        of_expert: of a MUL_MAT_ID, the tokens of one expert.

    Raises NoDefinition.
    """
    if isinstance(fmt, BlockFormat):
        return _of_blocks(node, fmt, columns, of_expert)
    experts, w = of_expert is not None, node.source(0)
    floats = node.source(1).type_id == FLOAT32
    in_mmf = floats and _fits_mmf(w, columns, experts)
    found = list(of_values(fmt))
    if fmt.name != "F16":
        return tuple(found)
    default = experts or node.integer(0) != _PRECISE
    if floats and default and not experts and columns <= MOST_COLUMNS and _fits_mmvf(w):
        if columns == 1 and (w.ne[1] <= _THIN or w.ne[2] * w.ne[3] == 1):
            return (in_lanes(fmt),)  # on every GPU
        found.append(in_lanes(fmt))
    if default and not in_mmf:
        found += _in_half(fmt)
    return tuple(found)


def _of_blocks(node: Node, fmt: BlockFormat, columns: int, of_expert: int | None) -> tuple[Definition, ...]:
    default = of_expert is not None or node.integer(0) != _PRECISE
    if node.source(1).type_id != FLOAT32:
        return _dequantized(fmt, default)
    (mmvq, mmq), llama = products_of(fmt), fmt.llama
    limits = (llama.mmvq_tokens_of_experts,) if of_expert is not None else tuple(llama.mmvq_tokens.values())
    always, ever = min((MMVQ_TOKENS, *limits)), MMVQ_TOKENS
    if not mmq and of_expert is not None and columns > always:  # expert by expert
        columns = of_expert
    found = [definition_of_codes(SEMANTICS[mmvq], fmt, True)] if mmvq and columns <= ever else []
    if mmq and columns > always:
        found.append(definition_of_codes(SEMANTICS[mmq], fmt, False))
    if columns > mmvq_tokens(fmt, _SM, of_expert is not None):
        found.reverse()
    return (*found, *(() if mmq or found else _dequantized(fmt, default)))


def _fits_mmvf(w: Operand) -> bool:
    """Return whether mmvf takes weights of these sizes and steps (mmvf.cu, ggml_cuda_should_use_mmvf)."""
    size = element_bytes(w.type_id)
    return w.ne[0] % 2 == 0 and w.nb[0] == size and all(step % (2 * size) == 0 for step in w.nb[1:])


def _fits_mmf(w: Operand, columns: int, experts: bool) -> bool:
    """Return whether mmf takes them (mmf.cu, ggml_cuda_should_use_mmf)."""
    size = element_bytes(w.type_id)
    most = 16 if not experts else 512 if w.ne[1] <= 1024 else 128
    whole = w.ne[0] % (32 * (4 // size)) == 0 and w.ne[1] % 32 == 0
    return whole and columns <= most and _fits_mmvf(w)


def of_values(fmt: WeightFormat) -> tuple[Definition, ...]:
    """Return the definitions for F32, F16 or BF16 weights, with sums in float32 or in tensor cores."""
    found = [Definition(F32, fmt)]
    if fmt.name in ("F16", "BF16"):
        found.append(Definition(llama_cpu_semantics(fmt), fmt))
        name = fmt.name.lower()
        found += [Definition(declared(name, accumulates=u), fmt, coarse=u is _UNITS[1]) for u in _UNITS]
    return (*found, *_in_tf32(fmt))


def _dequantized(fmt: BlockFormat, default: bool) -> tuple[Definition, ...]:
    """Return the definitions for quantized weights that cuBLAS multiplies: as halves, or as float32 on request.

    Args:
        default: whether the node has default precision, not GGML_PREC_F32.
    """
    return _in_half(fmt) if default else (Definition(F32, fmt), *_in_tf32(fmt))


def _in_half(fmt: WeightFormat) -> tuple[Definition, ...]:
    made = [declared("f16", accumulates=u, output="float16") for u in _UNITS]
    made.append(declared("f16", accumulates="float16", output="float16"))
    return tuple(Definition(s, fmt) for s in made)


# ---- TF32 ------------------------------------------------------------------------------------------------------------


def cut_to_tf32(x: Floats) -> Floats:
    """Return float32 without the last 13 bits, as tensor cores read it."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return (bits & np.uint32(0xFFFFFFFF << _CUT & 0xFFFFFFFF)).view(np.float32)


def round_to_tf32(x: Floats) -> Floats:
    """Return float32 rounded to 11 significant bits, ties to even."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    with np.errstate(over="ignore"):
        near = bits + np.uint32((1 << _CUT - 1) - 1) + (bits >> np.uint32(_CUT) & np.uint32(1))
    return np.where(np.isfinite(x), cut_to_tf32(near.view(np.float32)), x)


def _tf32(name: str, to: Callable[[Floats], Floats], unit: dict[str, int]) -> Semantics:
    encoding = SemanticsEncoding(
        name=name,
        title=f"activations in TF32, {name}",
        source="llama.cpp CUDA (mmf.cuh, cuBLAS)",
        encode=lambda x: to(x).view(np.uint8).reshape(len(x), -1),
        dtype="float32",
    )
    return replace(
        F32,
        name=name,
        title="Σ tf32(a)·tf32(w)",
        encoding=encoding,
        any_format=False,
        elements=None,
        source="llama.cpp CUDA (mmf.cuh, cuBLAS)",
        accumulation=in_tensor_cores(unit["L"], unit["F"]),
    )


_TF32 = tuple(
    (_tf32(name, to, unit), to, unit is _UNITS[1])
    for name, to in (("tf32, cut", cut_to_tf32), ("tf32", round_to_tf32))
    for unit in _UNITS
)


def _in_tf32(fmt: WeightFormat) -> list[Definition]:
    """Return the definitions of the decoded weights with both factors in TF32."""
    return [
        Definition(semantics, ELEMENTS["F32"], weights=partial(_decoded, fmt, to), coarse=coarse)
        for semantics, to, coarse in _TF32
    ]


def _decoded(fmt: WeightFormat, to: Callable[[Floats], Floats], w: Bytes) -> Bytes:
    """Return rows of weights as float32, uint8[N, 4·K]."""
    values = fmt.decode(w.reshape(len(w), -1, fmt.block_bytes)) if isinstance(fmt, BlockFormat) else fmt.decode(w)
    return to(np.asarray(values, np.float32).reshape(len(w), -1)).view(np.uint8)


_WARP, _MOST = 32, 256
#: Additions of lanes: five within a warp, five across warps, and some margin.
_ADDED = 16
#: Number of elements of an array of partial sums.
_AT_ONCE = 1 << 21
_TAKEN = declared("f16", accumulates="float16")
#: Largest number of columns (mmvf.cuh, MMVF_MAX_BATCH_SIZE); GPUs since Ampere allow one.
MOST_COLUMNS = 8


def threads_of(k: int) -> int:
    """Return B for rows of k values."""
    return min(range(_WARP, _MOST + 1, _WARP), key=lambda threads: (-(-k // (2 * threads)), threads))


def in_lanes(fmt: WeightFormat) -> Definition:
    """Return the definition for weights that are halves."""
    assert isinstance(fmt, ElementFormat)

    def multiplied(w: Bytes, a: Bytes) -> Product:
        weights, values = fmt.decode(w).astype(np.float64), _TAKEN.values_of(a).astype(np.float64)
        step = max(1, _AT_ONCE // max(1, values.size))
        parts = [_lanes(weights[start : start + step], values) for start in range(0, len(weights), step)]
        exact, bound, spread = (np.concatenate(of, axis=1) for of in zip(*parts, strict=True))
        return Product(exact, bound, spread, None)

    return Definition(_TAKEN, fmt, "f16, added in float16 by lanes", multiplied)


def _lanes(w: Doubles, a: Doubles) -> tuple[Doubles, Doubles, Doubles]:
    """Return the exact products [M, n], their bound and their spread."""
    k = a.shape[1]
    lanes = 2 * threads_of(k)
    w, a = (np.pad(v, ((0, 0), (0, -k % lanes))).reshape(len(v), -1, lanes) for v in (w, a))
    terms = a[:, None] * w[None]  # [M, n, steps, lanes]
    sums = np.cumsum(terms, axis=2)
    size, steps = np.abs(terms).sum(axis=(2, 3)), terms.shape[2]
    if not np.abs(terms).sum(axis=2).max(initial=0.0) < HALF.overflows:
        raise NoDefinition("sums in half that may overflow")
    lost = k * 2 * HALF.underflow
    bound = np.expm1((steps + 1) * np.log1p(HALF.unit)) * size + lost + gamma(_ADDED) * size
    squares = HALF.unit**2 * ((sums**2).sum(axis=(2, 3)) + (terms**2).sum(axis=(2, 3)))
    spread = np.sqrt((squares + _ADDED * (UNIT_ROUNDOFF * size) ** 2 + k * HALF.underflow**2) / 3)
    return terms.sum(axis=(2, 3)), bound, spread
