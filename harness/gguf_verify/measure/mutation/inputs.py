"""What the measures of naming, localisation and false alarms are taken on: real weights, real activations, random ones.

Weights are a model's own matrices, or these quantized by llama.cpp to another type; activations are what llama.cpp's
own graph of the model multiplies them with, for texts of Python's language reference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import numpy.typing as npt

from ...formats import ELEMENTS, FORMATS, BlockFormat, WeightFormat
from ...gguf import Tensor, open_model
from ...llama import Gemm, Llama
from ...support.paths import CHECKOUT

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

ROOT = CHECKOUT
FIXTURES = ROOT / "fixtures"
QUANTIZED = (FIXTURES / "tiny-Q4_0.gguf", FIXTURES / "tiny-Q5_1.gguf")
UNQUANTIZED = FIXTURES / "tiny-F16.gguf"
WEIGHTS: dict[str, WeightFormat] = {**FORMATS, **ELEMENTS}


def text(seed: int, words: int) -> str:
    """So many words of the language reference, from a place that the seed chooses."""
    rng = np.random.default_rng(seed)
    names = sorted(topics)
    found: list[str] = []
    while len(found) < words:
        # letters alone: llama.cpp dies of characters that a small vocabulary has no tokens for
        of_topic = [w for w in topics[names[rng.integers(len(names))]].split() if w.isascii() and w.isalpha()]
        start = int(rng.integers(max(1, len(of_topic) - words)))
        found += of_topic[start : start + words - len(found)]
    return " ".join(found)


@dataclass(frozen=True)
class Matrix:
    """A matrix of weights and activations that meet it.

    Args:
        source: the model's file name, or how the weights were drawn.
        tensor: its name.
        fmt: the weights' format.
        rows: uint8[N, row bytes].
        x: float32[M, K].
        own: the bytes are the model's own, not quantized here.
    """

    source: str
    tensor: str
    fmt: WeightFormat
    rows: Bytes
    x: Floats
    own: bool = True

    @property
    def k(self) -> int:
        return int(self.x.shape[1])


def decoded(tensor: Tensor) -> Floats:
    """A tensor's values, float32[N, K]."""
    fmt = tensor.type.weights
    assert fmt is not None
    raw = tensor.raw.reshape(tensor.n_rows, -1, fmt.block_bytes)
    return np.ascontiguousarray(fmt.decode(raw).reshape(tensor.n_rows, tensor.k), np.float32)


def captured(path: Path, texts: Sequence[str], tokens: int, threads: int = 1) -> list[Matrix]:
    """The quantized, F32, F16 and BF16 matrices of a model that its graph multiplies, in the graph's order, with their
    activations for the texts, at most so many tokens each.

    Raises LlamaRefused where llama.cpp does not take the model.
    """
    with Llama() as llama, open_model(path) as model:
        info = llama.model.open(path, threads)
        tokens = min(tokens, info["n_ctx_train"]) if info["n_ctx_train"] > 0 else tokens
        llama.model.make_context(tokens)
        xs: dict[str, list[Floats]] = {}
        for of_text in texts:
            for gemm in llama.model.capture(llama.model.tokenize(of_text)[:tokens]):
                if isinstance(gemm, Gemm) and len(gemm.x) and np.isfinite(gemm.x).all():
                    xs.setdefault(gemm.tensor, []).append(gemm.x)
        found = []
        for name, of_tensor in xs.items():
            tensor = model.tensors[name]
            if tensor.type.weights is not None and len(tensor.shape) == 2:
                rows = np.array(tensor.raw).reshape(tensor.n_rows, tensor.row_bytes)
                found.append(Matrix(path.name, name, tensor.type.weights, rows, np.concatenate(of_tensor)))
    return found


def fits(fmt: WeightFormat, k: int) -> bool:
    """Whether a row of so many values can be of the format."""
    return k % fmt.block_size == 0 and (isinstance(fmt, BlockFormat) or k % 4 == 0)


def in_type(fmt: WeightFormat, w: Floats, llama: Llama) -> Bytes:
    """Weights float32[N, K] in a format, uint8[N, row bytes]; quantized by llama.cpp, each value as important."""
    if isinstance(fmt, BlockFormat):
        return llama.quantize(fmt.type_id, w, np.ones(w.shape[1], np.float32)).reshape(len(w), -1)
    if fmt.name == "F16":
        return np.ascontiguousarray(w.astype(np.float16)).view(np.uint8)
    if fmt.name == "BF16":
        return np.ascontiguousarray((w.view(np.uint32) >> 16).astype(np.uint16)).view(np.uint8)
    return np.ascontiguousarray(w).view(np.uint8)


def requantized(matrix: Matrix, fmt: WeightFormat, llama: Llama, rows: int) -> Matrix:
    """The first rows of a matrix in another format."""
    w = matrix.fmt.decode(matrix.rows[:rows].reshape(-1, matrix.fmt.block_bytes)).reshape(-1, matrix.k)
    return replace(matrix, fmt=fmt, rows=in_type(fmt, np.ascontiguousarray(w, np.float32), llama), own=False)
