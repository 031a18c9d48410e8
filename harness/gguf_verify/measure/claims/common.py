"""What the checks of claims share: their sources, the record that each returns, and the quantizers of write-ups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ...formats import FORMATS, BlockFormat
from ...formats.c_arithmetic import round_half_away
from ...formats.q8_1 import Q8_1
from ...gguf import open_model
from ...llama import Gemm, Llama
from ...support.paths import CHECKOUT, kernel_root

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

ROOT = CHECKOUT
FIXTURES = ROOT / "fixtures"
PROMPT = "Once upon a time there was a little cat who"
FIVE: tuple[BlockFormat, ...] = tuple(FORMATS[name] for name in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"))


class Library(Protocol):
    """What the checks call of llama.cpp; see `gguf_verify.llama.Llama`."""

    def versions(self) -> dict[str, Any]: ...
    def to_float(self, type_id: int, raw: Bytes, n: int) -> Floats: ...
    def from_float(self, type_id: int, x: Floats) -> Bytes: ...
    def quantize(self, type_id: int, x: Floats) -> Bytes: ...
    def multiply(self, type_id: int, w: Bytes, x: Floats) -> Floats: ...


def cuda_outputs() -> dict[str, npt.NDArray[Any]]:
    """Outputs and activations of llama.cpp's CUDA backend, measured on an H200 (tests/test_cuda_reference.py)."""
    with np.load(ROOT / "tests" / "data" / "llama_cuda_h200.npz") as file:
        return dict(file)


@dataclass(frozen=True)
class Sources:
    """What claims are checked against: llama.cpp's library, measured outputs of its CUDA backend, the measured
    tables of docs/benchmarks.md, and the kernels."""

    llama: Library
    cuda: Mapping[str, npt.NDArray[Any]] = field(default_factory=cuda_outputs)
    benchmarks: str = field(default_factory=lambda: (ROOT / "docs" / "benchmarks.md").read_text())
    kernels: Path = field(default_factory=kernel_root)


@dataclass(frozen=True)
class Claim:
    """A claim and what became of it.

    Args:
        statement: the claim, in our words.
        verdict: "true", "false", "true only for …" or "not measured here", with a qualification.
        evidence: paragraphs and tables of Markdown.
        also: tests beside the check itself that show it.
    """

    statement: str
    verdict: str
    evidence: tuple[str, ...]
    also: str = ""


def verdict(holds: Mapping[str, bool]) -> str:
    """In which of the named cases a claim holds, in words."""
    names = [name for name, true in holds.items() if true]
    if len(names) == len(holds):
        return "true"
    return f"true only for {listed(names)}" if names else "false"


def listed(names: Sequence[str]) -> str:
    """a, b and c"""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def figure(value: float, digits: int = 2) -> str:
    """So many digits, and no exponent where the number is neither large nor small."""
    rounded = float(f"{value:.{digits}g}")
    return f"{rounded:,.0f}" if 10 ** (digits - 1) <= rounded < 1e6 else f"{value:#.{digits}g}".rstrip(".")


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Of Markdown."""
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in [head, ["---"] * len(head), *rows])


def nmse(y: npt.NDArray[Any], o: npt.NDArray[Any]) -> float:
    """Σ(y - o)² / Σo², in float64."""
    exact = o.astype(np.float64)
    return float(((y.astype(np.float64) - exact) ** 2).sum() / (exact**2).sum())


def span(values: Sequence[float], digits: int = 3) -> str:
    """Least and greatest, as printed; one number where they print alike."""
    low, high = (figure(v, digits) for v in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def gaussian(seed: int, *shape: int) -> Floats:
    """float32 of zero mean and variance one."""
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


# ---- quantizers of write-ups -----------------------------------------------------------------------------------------


def written_up(fmt: BlockFormat, x: Floats) -> Bytes:
    """Weights float32[rows, K] as write-ups quantize them, uint8[rows, row bytes].

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
    """Blocks of codes as stored, int64[..., 32], with scales and minima float32[...]: uint8[..., block bytes]."""
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
    """Q8_1 activations uint8[M, row bytes] whose sums are others, [M, K/32] or one number."""
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
    """The matrices of the trained fixture, before their quantization."""
    with open_model(FIXTURES / "tiny-F16.gguf") as model:
        return {
            name: np.array(t.raw).view(np.float16).reshape(t.n_rows, t.k).astype(np.float32)
            for name, t in model.tensors.items()
            if t.type.name == "F16"
        }


@lru_cache(maxsize=2)
def real_products(model: str) -> list[tuple[BlockFormat, Bytes, Floats]]:
    """Format, weights and activations of each GEMM as llama.cpp's graph of a fixture has them."""
    path = FIXTURES / model
    with Llama() as llama, open_model(path) as file:
        llama.model.open(path, threads=1)
        llama.model.make_context(64)
        gemms = [g for g in llama.model.capture(llama.model.tokenize(PROMPT)) if isinstance(g, Gemm)]
        tensors = [file.tensors[g.tensor] for g in gemms]
        return [
            (FORMATS[t.type.name], np.array(t.raw).reshape(t.n_rows, -1), g.x)
            for t, g in zip(tensors, gemms, strict=True)
        ]
