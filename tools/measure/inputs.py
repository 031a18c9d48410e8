"""Inputs of measures: real weights in any type, real activations, and models made from them.

Weights are a model's own matrices, possibly quantized by llama.cpp to another type. Activations are captured from
llama.cpp's graph of the model, for texts from Python's language reference.
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

from gguf_verify.formats.block import BlockFormat
from gguf_verify.formats.tensor_types import ELEMENTS, FILE_TYPES, FORMATS, WeightFormat
from gguf_verify.gguf.file import Tensor
from gguf_verify.gguf.model import open_model
from gguf_verify.llama.gemms import Gemm
from gguf_verify.llama.library import Llama
from gguf_verify.support.paths import CHECKOUT

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

FIXTURES = CHECKOUT / "fixtures"
QUANTIZED = (FIXTURES / "tiny-Q4_0.gguf", FIXTURES / "tiny-Q5_1.gguf")
UNQUANTIZED = FIXTURES / "tiny-F16.gguf"
WEIGHTS: dict[str, WeightFormat] = {**FORMATS, **ELEMENTS}


def text(seed: int, words: int) -> str:
    """Return this number of words of the language reference, from places chosen by the seed."""
    rng = np.random.default_rng(seed)
    names = sorted(topics)
    found: list[str] = []
    while len(found) < words:
        # only letters: llama.cpp crashes on characters without tokens in a small vocabulary
        of_topic = [w for w in topics[names[rng.integers(len(names))]].split() if w.isascii() and w.isalpha()]
        start = int(rng.integers(max(1, len(of_topic) - words)))
        found += of_topic[start : start + words - len(found)]
    return " ".join(found)


@dataclass(frozen=True)
class Matrix:
    """A matrix of weights and the activations that it multiplies.

    Args:
        source: the model's file name, or how random weights were generated.
        tensor: its name.
        fmt: the weights' format.
        rows: uint8[N, row bytes].
        x: float32[M, K].
        own: whether the bytes are the model's own, not quantized here.
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
    """Decode weights uint8[N, row bytes] to float32[N, K]."""
    values = fmt.decode(rows.reshape(len(rows), -1, fmt.block_bytes))
    return np.ascontiguousarray(values.reshape(len(rows), -1), np.float32)


def rows_of(tensor: Tensor) -> Bytes:
    """Copy a tensor's bytes, uint8[N, row bytes]."""
    return np.array(tensor.raw).reshape(tensor.n_rows, tensor.row_bytes)


def captured(path: Path, texts: Sequence[str], tokens: int, threads: int = 1) -> list[Matrix]:
    """Return the quantized, F32, F16 and BF16 matrices in a model's graph, in its order, with their activations.

    The activations are those for the texts, with at most `tokens` tokens each. Raises LlamaRefused if llama.cpp rejects
    the model.
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
    """Whether a row of k values can have this format."""
    return k % fmt.block_size == 0 and (isinstance(fmt, BlockFormat) or k % 4 == 0)


def in_type(fmt: WeightFormat, w: Floats, llama: Llama | None = None) -> Bytes:
    """Convert weights float32[N, K] to a format, uint8[N, row bytes].

    llama.cpp quantizes them, with the same importance for each value, because some types require importances.
    """
    if isinstance(fmt, BlockFormat):
        assert llama is not None
        return llama.quantize(fmt.type_id, w, np.ones(w.shape[1], np.float32)).reshape(len(w), -1)
    if fmt.name == "F16":
        return np.ascontiguousarray(w.astype(np.float16)).view(np.uint8)
    if fmt.name == "BF16":
        return np.ascontiguousarray((w.view(np.uint32) >> 16).astype(np.uint16)).view(np.uint8)
    return np.ascontiguousarray(w).view(np.uint8)


def requantized(matrix: Matrix, fmt: WeightFormat, llama: Llama, rows: int) -> Matrix:
    """Convert the first rows of a matrix to another format."""
    return replace(
        matrix, fmt=fmt, rows=in_type(fmt, decoded(matrix.fmt, matrix.rows[:rows]), llama), own=False
    )  # fmt: skip


# -- models ------------------------------------------------------------------------------------------------------------


def write_tensors(path: Path, tensors: Mapping[str, tuple[WeightFormat, Bytes]], keys: Sequence[Any] = ()) -> Path:
    """Write a GGUF file with these matrices, name → (format, uint8[N, row bytes]); a matrix with one row is a vector.

    Args:
        keys: the metadata, as fields of the gguf package's reader.
    """
    writer = gguf.GGUFWriter(path, "llama")
    for field in keys:
        if not field.name.startswith("GGUF.") and field.name not in ("general.architecture", "general.file_type"):
            writer.add_key_value(
                field.name, field.contents(), field.types[0], field.types[1] if len(field.types) > 1 else None
            )
    for name, (fmt, rows) in tensors.items():
        # the writer expects arrays of elements, but bytes for block formats
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
    """Return the project's trained model with matrices of this type: a fixture, or made from the F16 in `folder`."""
    path = FIXTURES / f"tiny-{fmt.name}.gguf"
    if path.is_file():
        return path
    path = folder / path.name
    if path.exists():
        return path
    with (
        tempfile.TemporaryDirectory(dir=folder) as unfinished,
        Llama() as llama,
    ):  # other processes may make it at the same time
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
