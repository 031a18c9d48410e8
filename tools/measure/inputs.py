"""What the measures are taken on: real weights in any type, real activations, and models made of them.

Weights are a model's own matrices, or these quantized by llama.cpp to another type. Activations are the ones with which
llama.cpp's own graph of the model multiplies them, for texts of Python's language reference.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from gguf_verify.formats import ELEMENTS, FILE_TYPES, FORMATS, BlockFormat, WeightFormat
from gguf_verify.gguf.file import Tensor
from gguf_verify.gguf.model import open_model
from gguf_verify.llama import Gemm, Llama
from gguf_verify.support.paths import CHECKOUT

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

FIXTURES = CHECKOUT / "fixtures"
QUANTIZED = (FIXTURES / "tiny-Q4_0.gguf", FIXTURES / "tiny-Q5_1.gguf")
UNQUANTIZED = FIXTURES / "tiny-F16.gguf"
WEIGHTS: dict[str, WeightFormat] = {**FORMATS, **ELEMENTS}


def text(seed: int, words: int) -> str:
    """So many words of the language reference, from a place that the seed chooses."""
    rng = np.random.default_rng(seed)
    names = sorted(topics)
    found: list[str] = []
    while len(found) < words:
        # letters alone: llama.cpp crashes on characters for which a small vocabulary has no tokens
        of_topic = [w for w in topics[names[rng.integers(len(names))]].split() if w.isascii() and w.isalpha()]
        start = int(rng.integers(max(1, len(of_topic) - words)))
        found += of_topic[start : start + words - len(found)]
    return " ".join(found)


@dataclass(frozen=True)
class Matrix:
    """A matrix of weights and the activations that it multiplies.

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


def decoded(fmt: WeightFormat, rows: Bytes) -> Floats:
    """The values of weights uint8[N, row bytes], float32[N, K]."""
    values = fmt.decode(rows.reshape(len(rows), -1, fmt.block_bytes))
    return np.ascontiguousarray(values.reshape(len(rows), -1), np.float32)


def rows_of(tensor: Tensor) -> Bytes:
    """A copy of a tensor's bytes, uint8[N, row bytes]."""
    return np.array(tensor.raw).reshape(tensor.n_rows, tensor.row_bytes)


def captured(path: Path, texts: Sequence[str], tokens: int, threads: int = 1) -> list[Matrix]:
    """The quantized, F32, F16 and BF16 matrices of a model that its graph multiplies, in the graph's order, with their
    activations for the texts, at most so many tokens each.

    Raises LlamaRefused where llama.cpp does not take the model.
    """
    with Llama() as llama, open_model(path) as model:
        info = llama.model.open(model, threads)
        tokens = min(tokens, info["n_ctx_train"]) if info["n_ctx_train"] > 0 else tokens
        llama.model.make_context(tokens)
        xs: dict[str, list[Floats]] = {}
        for of_text in texts:
            for gemm in llama.model.capture(llama.model.tokenize(of_text)[:tokens]):
                if isinstance(gemm, Gemm) and len(gemm.x) and np.isfinite(gemm.x).all():
                    xs.setdefault(gemm.tensor, []).append(gemm.x)
        return [
            Matrix(path.name, name, tensor.type.weights, rows_of(tensor), np.concatenate(of_tensor))
            for name, of_tensor in xs.items()
            if (tensor := model.tensors[name]).type.weights is not None and len(tensor.shape) == 2
        ]


def fits(fmt: WeightFormat, k: int) -> bool:
    """Whether a row of so many values can be of the format."""
    return k % fmt.block_size == 0 and (isinstance(fmt, BlockFormat) or k % 4 == 0)


def in_type(fmt: WeightFormat, w: Floats, llama: Llama | None = None) -> Bytes:
    """Weights float32[N, K] in a format, uint8[N, row bytes]. llama.cpp quantizes them, with the same importance for
    each value (some types need one)."""
    if isinstance(fmt, BlockFormat):
        assert llama is not None
        return llama.quantize(fmt.type_id, w, np.ones(w.shape[1], np.float32)).reshape(len(w), -1)
    if fmt.name == "F16":
        return np.ascontiguousarray(w.astype(np.float16)).view(np.uint8)
    if fmt.name == "BF16":
        return np.ascontiguousarray((w.view(np.uint32) >> 16).astype(np.uint16)).view(np.uint8)
    return np.ascontiguousarray(w).view(np.uint8)


def requantized(matrix: Matrix, fmt: WeightFormat, llama: Llama, rows: int) -> Matrix:
    """The first rows of a matrix in another format."""
    return replace(
        matrix, fmt=fmt, rows=in_type(fmt, decoded(matrix.fmt, matrix.rows[:rows]), llama), own=False
    )  # fmt: skip


# -- models ------------------------------------------------------------------------------------------------------------


def write_tensors(path: Path, tensors: Mapping[str, tuple[WeightFormat, Bytes]], keys: Sequence[Any] = ()) -> Path:
    """A GGUF file of these matrices, name → (format, uint8[N, row bytes]); a matrix of one row is a vector.

    Args:
        keys: fields of a reader of the gguf package, as the metadata.
    """
    writer = gguf.GGUFWriter(path, "llama")
    for field in keys:
        if not field.name.startswith("GGUF.") and field.name not in ("general.architecture", "general.file_type"):
            writer.add_key_value(
                field.name, field.contents(), field.types[0], field.types[1] if len(field.types) > 1 else None
            )
    for name, (fmt, rows) in tensors.items():
        # the writer takes the shape of elements, but the bytes of blocks
        values = rows.view({"F16": np.float16, "F32": np.float32}.get(fmt.name, np.uint8))
        writer.add_tensor(
            name, values[0] if len(rows) == 1 else values, raw_dtype=gguf.GGMLQuantizationType(fmt.type_id)
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def can_write(fmt: WeightFormat) -> bool:
    """Whether the gguf package can write a tensor of this format."""
    return fmt.type_id in {int(kind) for kind in gguf.GGMLQuantizationType}


def model_in(fmt: WeightFormat, folder: Path) -> Path:
    """The project's own trained model with its matrices in this type: a fixture, or made of the F16 one in `folder`."""
    path = FIXTURES / f"tiny-{fmt.name}.gguf"
    if path.is_file():
        return path
    path = folder / path.name
    if path.exists():
        return path
    with tempfile.TemporaryDirectory(dir=folder) as unfinished, Llama() as llama:  # other processes may make it too
        made = Path(unfinished) / path.name
        if not can_write(fmt):
            llama.quantize_file(UNQUANTIZED, made, FILE_TYPES[fmt.name], pure=True)
        else:
            with open_model(UNQUANTIZED) as model:
                tensors = {}
                for tensor in model.tensors.values():
                    own = tensor.type.weights
                    assert own is not None
                    is_matrix = len(tensor.shape) > 1 and fits(fmt, tensor.k)
                    rows = rows_of(tensor)
                    tensors[tensor.name] = (fmt, in_type(fmt, decoded(own, rows), llama)) if is_matrix else (own, rows)
            write_tensors(made, tensors, gguf.GGUFReader(UNQUANTIZED).fields.values())
        made.replace(path)
    return path
