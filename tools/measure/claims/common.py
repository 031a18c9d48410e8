"""Common parts of the checks of claims: their sources, the record of a result, and the write-ups' quantizers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gguf_verify.formats.block import BlockFormat
from gguf_verify.formats.c_arithmetic import round_half_away
from gguf_verify.formats.q8_1 import Q8_1
from gguf_verify.formats.tensor_types import ELEMENTS, FORMATS
from gguf_verify.gguf.model import open_model
from gguf_verify.support.paths import CHECKOUT, kernel_root

from ..inputs import FIXTURES, UNQUANTIZED, Bytes, Floats, captured, decoded, rows_of
from ..markdown import BENCHMARKS, listed

Doubles = npt.NDArray[np.float64]

PROMPT = "Once upon a time there was a little cat who"
FIVE: tuple[BlockFormat, ...] = tuple(fmt for fmt in FORMATS.values() if fmt.legacy)


class Library(Protocol):
    """The functions of llama.cpp that the checks call; see `gguf_verify.llama.library.Llama`."""

    def versions(self) -> dict[str, Any]: ...
    def to_float(self, type_id: int, raw: Bytes, n: int) -> Floats: ...
    def from_float(self, type_id: int, x: Floats) -> Bytes: ...
    def quantize(self, type_id: int, x: Floats) -> Bytes: ...
    def multiply(self, type_id: int, w: Bytes, x: Floats) -> Floats: ...


def cuda_outputs() -> dict[str, npt.NDArray[Any]]:
    """Outputs and activations of llama.cpp's CUDA backend, measured on an H200."""
    with np.load(CHECKOUT / "tests" / "data" / "llama_cuda_h200.npz") as file:
        return dict(file)


@dataclass(frozen=True)
class Sources:
    """The sources for checking claims.

    Args:
        llama: llama.cpp's library.
        cuda: measured outputs of its CUDA backend.
        benchmarks: the text of docs/benchmarks.md, with its measured tables.
        kernels: the folder of the shipped kernels.
    """

    llama: Library
    cuda: Mapping[str, npt.NDArray[Any]] = field(default_factory=cuda_outputs)
    benchmarks: str = field(default_factory=BENCHMARKS.read_text)
    kernels: Path = field(default_factory=kernel_root)


@dataclass(frozen=True)
class Claim:
    """A claim and the verdict on it.

    Args:
        statement: the claim, in our words.
        verdict: "true", "false", "true only for …" or "not measured here", with a qualification.
        evidence: paragraphs and tables of Markdown.
        also: other tests that show it.
    """

    statement: str
    verdict: str
    evidence: tuple[str, ...]
    also: str = ""


def verdict(holds: Mapping[str, bool]) -> str:
    """Return the verdict for a claim, given the cases in which it holds."""
    names = [name for name, true in holds.items() if true]
    if len(names) == len(holds):
        return "true"
    return f"true only for {listed(names)}" if names else "false"


def figure(value: float, digits: int = 2) -> str:
    """Format a number with this many significant digits, and an exponent only if it is very large or small."""
    rounded = float(f"{value:.{digits}g}")
    return f"{rounded:,.0f}" if 10 ** (digits - 1) <= rounded < 1e6 else f"{value:#.{digits}g}".rstrip(".")


def nmse(y: npt.NDArray[Any], o: npt.NDArray[Any]) -> float:
    """Σ(y - o)² / Σo², in float64."""
    exact = o.astype(np.float64)
    return float(((y.astype(np.float64) - exact) ** 2).sum() / (exact**2).sum())


def span(values: Sequence[float], digits: int = 3) -> str:
    """Format a range, or one number if both ends print alike."""
    low, high = (figure(v, digits) for v in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def gaussian(seed: int, *shape: int) -> Floats:
    """Normally distributed float32 of mean 0 and variance 1."""
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


# ---- quantizers of write-ups -----------------------------------------------------------------------------------------


def written_up(fmt: BlockFormat, x: Floats) -> Bytes:
    """Quantize weights float32[rows, K] like the write-ups: uint8[rows, row bytes].

    Q4_0, Q5_0: d = max|x|/7 or /15 and q = round(x/d) + 8 or 16; Q4_1, Q5_1: d = (max - min)/15 or /31 and
    q = round((x - min)/d); Q8_0: d = max|x|/127 and q = round(x/d). `round` is C's roundf; all in float32.
    """
    blocks = x.reshape(len(x), -1, 32)
    top = 2**fmt.bits - 1
    low = blocks.min(axis=-1) if fmt.has_min else np.zeros(blocks.shape[:2], np.float32)
    if fmt.has_min:
        d = (blocks.max(axis=-1) - low) / np.float32(top)
    else:
        d = np.abs(blocks).max(axis=-1) / np.float32(top // 2)
    with np.errstate(divide="ignore", invalid="ignore"):
        q = np.where(d[..., None] > 0, round_half_away((blocks - low[..., None]) / d[..., None]), 0).astype(np.int64)
    return packed(fmt, d, low, q + fmt.offset).reshape(len(x), -1)


def packed(fmt: BlockFormat, d: Floats, m: Floats, q: npt.NDArray[np.int64]) -> Bytes:
    """Pack stored codes, int64[..., 32], with scales and minima, float32[...], to uint8[..., block bytes]."""
    fields: dict[str, npt.ArrayLike] = {"d": d.astype(np.float16)}
    if fmt.has_min:
        fields["m"] = m.astype(np.float16)
    if fmt.bits == 8:
        return fmt.pack(qs=q.astype(np.int8), **fields)
    codes = q.astype(np.uint8)
    if fmt.bits == 5:
        fields["qh"] = np.packbits(codes >> 4, axis=-1, bitorder="little").view("<u4")[..., 0]
    return fmt.pack(qs=codes[..., :16] & 15 | codes[..., 16:] << 4, **fields)


def with_sums(x: Bytes, s: npt.NDArray[Any] | float) -> Bytes:
    """Replace the sums of Q8_1 activations uint8[M, row bytes] by others: [M, K/32], or one number for all."""
    view = Q8_1.view(x.reshape(len(x), -1, Q8_1.block_bytes)).copy()
    with np.errstate(over="ignore"):
        view["s"] = np.asarray(s).astype(np.float16)
    return view.view(np.uint8).reshape(x.shape)


def sum_of_codes(x: Bytes) -> Floats:
    """d·Σq of Q8_1 activations uint8[M, row bytes], float32[M, K/32]."""
    view = Q8_1.view(x.reshape(len(x), -1, Q8_1.block_bytes))
    return np.asarray(view["d"].astype(np.float32) * view["qs"].sum(axis=-1, dtype=np.int32).astype(np.float32))


# ---- real weights and activations ------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def real_weights() -> dict[str, Floats]:
    """The matrices of the trained fixture before quantization."""
    with open_model(UNQUANTIZED) as model:
        found = {name: tensor for name, tensor in model.tensors.items() if tensor.type.name == "F16"}
        return {name: decoded(ELEMENTS["F16"], rows_of(tensor)) for name, tensor in found.items()}


@lru_cache(maxsize=2)
def real_products(model: str) -> list[tuple[BlockFormat, Bytes, Floats]]:
    """Format, weights and activations of each GEMM in llama.cpp's graph of a fixture."""
    return [(FORMATS[m.fmt.name], m.rows, m.x) for m in captured(FIXTURES / model, [PROMPT], 64)]
