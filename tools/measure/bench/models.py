"""Random llamas of any shape, generated about as fast as a disk can write.

Blocks hold random bytes, and d = N(1, 0.2)/(r·√K), where r is the root mean square of weights under d = 1; a minimum is
the multiple of d that makes the mean weight zero, and without a minimum, d has a random sign. So weights have
variance 1/K, and activations keep their size through the layers. Codes come from a pool of `_POOL` blocks, at a
random place for each piece of a matrix; every block has its own d. Threads write pieces of `_PIECE` bytes, so the
memory does not grow with the model.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import gguf
import numpy as np
from tqdm import tqdm

from gguf_verify.formats.block import BlockFormat
from gguf_verify.formats.element import ElementFormat
from gguf_verify.formats.tensor_types import FILE_TYPES, FORMATS, WeightFormat
from gguf_verify.support import scratch
from gguf_verify.support.array_types import Bytes
from gguf_verify.support.command_line import cores
from gguf_verify.support.errors import EnvironmentFault, UsageError

from ..inputs import WEIGHTS, can_write, in_type

_POOL, _PIECE, _SAMPLE = 1 << 16, 1 << 22, 1 << 12
_ALIGNMENT = 32
#: Tokens of the vocabulary before the words: three special ones, and one for each byte.
_NO_WORDS = 259
#: A prompt's tokens before its first letter: the special one, and the three bytes of the space that is put before it.
BEFORE_LETTERS = 4


def _scale_fields(fmt: WeightFormat) -> list[str]:
    """Return the names of a block's half scale and, if there is one, of the half that multiplies its minima."""
    return [f.name for f in fmt.fields if f.dtype == "<f2"] if isinstance(fmt, BlockFormat) else []


def _can_be_made(name: str) -> bool:
    return can_write(WEIGHTS[name]) and (name in ("F16", "BF16") or bool(_scale_fields(WEIGHTS[name])))


#: llama.cpp's file types. All matrices of a model have one type, except in Q4_K_M: see `type_of`.
FILES = {
    **{name: number for name, number in FILE_TYPES.items() if _can_be_made(name)},
    "Q4_K_M": FILE_TYPES["Q4_K"],
}


@dataclass(frozen=True)
class Shape:
    """A llama's shape: blocks, values of an embedding, rows of a feed-forward matrix, heads of queries and of keys, and
    tokens of the vocabulary. Raises UsageError if no llama can have it."""

    layers: int
    width: int
    ff: int
    heads: int
    kv_heads: int
    vocab: int

    def __post_init__(self) -> None:
        for what, least, value in (
            ("layers", 1, self.layers), ("width", 32, self.width), ("ff", 32, self.ff), ("heads", 1, self.heads),
            ("kv-heads", 1, self.kv_heads), ("vocab", _NO_WORDS, self.vocab),
        ):  # fmt: skip
            if not least <= value <= 1 << 20:
                raise UsageError(f"--{what} {value}: it must be between {least} and {1 << 20:,}")
        if self.width % (2 * self.heads) or self.heads % self.kv_heads:
            raise UsageError(
                f"a width of {self.width} is not {self.heads} heads of an even size, or these are no multiple of "
                f"{self.kv_heads} heads of keys: give --heads and --kv-heads"
            )

    def wide(self, width: int) -> Shape:
        """Return the shape with another width: heads keep their size, proportions stay, and ff is a multiple of 256."""
        size = self.width // self.heads
        heads = max(1, width // size)
        kv_heads = next(n for n in range(max(1, heads * self.kv_heads // self.heads), heads + 1) if heads % n == 0)
        ff = max(256, round(self.ff / self.width * width / 256) * 256)
        return replace(self, width=width, heads=heads, kv_heads=kv_heads, ff=ff)

    @property
    def matrices(self) -> list[tuple[str, int, int]]:
        """Return the name, rows and columns of each matrix."""
        embd, ff, kv = self.width, self.ff, self.width // self.heads * self.kv_heads
        of_block = (
            ("attn_q", embd, embd), ("attn_k", kv, embd), ("attn_v", kv, embd), ("attn_output", embd, embd),
            ("ffn_gate", ff, embd), ("ffn_up", ff, embd), ("ffn_down", embd, ff),
        )  # fmt: skip
        out = [("token_embd.weight", self.vocab, embd), ("output.weight", self.vocab, embd)]
        return out + [(f"blk.{i}.{name}.weight", n, k) for i in range(self.layers) for name, n, k in of_block]


SHAPES = {
    "1.1B": Shape(22, 2048, 5632, 32, 4, 32000),  # TinyLlama
    "8B": Shape(32, 4096, 14336, 32, 8, 128256),  # Llama 3
    "70B": Shape(80, 8192, 28672, 64, 8, 128256),
}


def type_of(kind: str, name: str, n_layer: int) -> WeightFormat:
    """Return the type of a matrix in a file of this kind. Q4_K_M follows llama_model_quantize (llama-quant.cpp): Q4_K,
    and Q6_K for the output matrix and, in the layers with more bits, for attn_v and ffn_down."""
    if kind != "Q4_K_M":
        return WEIGHTS[kind]
    more = name == "output.weight"
    if ".attn_v." in name or ".ffn_down." in name:
        i, eighth = int(name.split(".")[1]), n_layer // 8
        more = i < eighth or i >= 7 * n_layer // 8 or (i - eighth) % 3 == 2
    return FORMATS["Q6_K" if more else "Q4_K"]


@dataclass(frozen=True)
class RandomModel:
    """A model that can be generated.

    Args:
        kind: of the file; a name of `FILES`.

    Raises UsageError if a row is not a whole number of blocks.
    """

    shape: Shape
    kind: str
    seed: int = 0

    def __post_init__(self) -> None:
        for name, _, k in self.shape.matrices:
            fmt = self.type_of(name)
            unit = fmt.block_size if isinstance(fmt, BlockFormat) else 2
            if k % unit:
                raise UsageError(f"rows of {k} values are no whole blocks of {fmt.name}, which have {unit}")

    def type_of(self, name: str) -> WeightFormat:
        """Return the type of a matrix."""
        return type_of(self.kind, name, self.shape.layers)

    @property
    def file_name(self) -> str:
        s = self.shape
        return f"random-{s.layers}x{s.width}-{s.ff}-{s.heads}-{s.kv_heads}-{s.vocab}-{self.kind}-{self.seed}.gguf"

    @cached_property
    def tensors(self) -> list[tuple[str, WeightFormat | None, int, int, int]]:
        """Return the name, type, rows, columns and bytes of each tensor in the file's order; norms have no type
        here."""
        found: list[tuple[str, WeightFormat | None, int, int, int]] = [
            (name, fmt, n, k, n * _row_bytes(fmt, k))
            for name, n, k in self.shape.matrices for fmt in (self.type_of(name),)
        ]  # fmt: skip
        norms = [f"blk.{i}.{part}_norm" for i in range(self.shape.layers) for part in ("attn", "ffn")]
        width = self.shape.width
        return found + [(f"{name}.weight", None, 1, width, 4 * width) for name in ("output_norm", *norms)]

    @property
    def data_bytes(self) -> int:
        """Return the bytes of all tensors; the rest of the file is less than 64 bytes per token and tensor."""
        return sum(_aligned(size) for *_, size in self.tensors)

    def make(self, path: Path) -> None:
        """Write the file. Raises EnvironmentFault if the disk has no room for it."""
        need = self.data_bytes + 64 * (self.shape.vocab + len(self.tensors)) + (1 << 20)
        if (free := shutil.disk_usage(path.parent).free) < need:
            raise EnvironmentFault(
                f"{path.parent} has {free / 1e9:.1f} GB free, and the model needs {need / 1e9:.1f} GB: --keep FOLDER "
                "puts it elsewhere"
            )
        unfinished = path.with_name(f"{path.name}.unfinished")
        try:
            self._write_head(unfinished)
            with unfinished.open("r+b") as file:
                start = _aligned(file.seek(0, os.SEEK_END))
                file.truncate(start + self.data_bytes)
                self._write_tensors(file.fileno(), start)
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)

    def _write_head(self, path: Path) -> None:
        shape, writer = self.shape, gguf.GGUFWriter(path, "llama")
        writer.add_name("random llama")
        writer.add_context_length(1 << 15)
        writer.add_embedding_length(shape.width)
        writer.add_block_count(shape.layers)
        writer.add_feed_forward_length(shape.ff)
        writer.add_head_count(shape.heads)
        writer.add_head_count_kv(shape.kv_heads)
        writer.add_rope_dimension_count(shape.width // shape.heads)
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_vocab_size(shape.vocab)
        writer.add_file_type(FILES[self.kind])
        bytes_ = [f"<0x{i:02X}>" for i in range(256)]
        kinds = [gguf.TokenType.UNKNOWN, *[gguf.TokenType.CONTROL] * 2, *[gguf.TokenType.BYTE] * 256]
        words = shape.vocab - _NO_WORDS
        writer.add_tokenizer_model("llama")
        writer.add_token_list(["<unk>", "<s>", "</s>", *bytes_, *(f"word{i}" for i in range(words))])
        writer.add_token_scores([0.0] * shape.vocab)
        writer.add_token_types([*kinds, *[gguf.TokenType.NORMAL] * words])
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        for name, fmt, n, k, size in self.tensors:
            if fmt is None:
                writer.add_tensor_info(name, (k,), np.dtype(np.float32), size)
                continue
            # the writer expects the shape in bytes for blocks, and in elements otherwise
            columns = size // n if isinstance(fmt, BlockFormat) else k
            raw_dtype = gguf.GGMLQuantizationType(fmt.type_id)
            writer.add_tensor_info(
                name, (n, columns), np.dtype(np.uint8 if columns != k else np.uint16), size, raw_dtype=raw_dtype
            )
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        writer.close()

    def _write_tensors(self, file: int, start: int) -> None:
        kinds = {(fmt, k) for _, fmt, _, k, _ in self.tensors if fmt is not None}
        rows = {(fmt, k): _RandomRows(fmt, k, self.seed) for fmt, k in kinds}

        def write(piece: tuple[int, WeightFormat | None, int, int, tuple[int, int]]) -> int:
            at, fmt, k, size, number = piece
            norm = np.ones(k, np.float32).view(np.uint8)
            made = norm if fmt is None else rows[fmt, k].bytes_of(size, (self.seed, *number))
            left = made.data
            while left:
                written = os.pwrite(file, left, at)
                left, at = left[written:], at + written
            return size

        with (
            ThreadPoolExecutor(cores()) as pool,
            tqdm(total=self.data_bytes, desc="making the model", unit="B", unit_scale=True, disable=None) as bar,
        ):
            for size in pool.map(write, self._pieces(start)):
                bar.update(size)

    def _pieces(self, at: int) -> Iterator[tuple[int, WeightFormat | None, int, int, tuple[int, int]]]:
        """Yield the place in the file, type, columns, bytes, and numbers of the tensor and the piece."""
        for number, (_, fmt, n, k, size) in enumerate(self.tensors):
            if fmt is None:
                yield at, fmt, k, size, (number, 0)
            else:
                row = size // n
                step = max(1, _PIECE // row)
                for first in range(0, n, step):
                    yield at + first * row, fmt, k, min(step, n - first) * row, (number, first)
            at += _aligned(size)


class _RandomRows:
    """Random rows of k weights of a type."""

    def __init__(self, fmt: WeightFormat, k: int, seed: int) -> None:
        self._fmt = fmt
        rng = np.random.default_rng((seed, fmt.type_id, k))
        if isinstance(fmt, ElementFormat):
            values = rng.standard_normal((1, _POOL * 32), np.float32) / np.float32(k**0.5)
            self._pool: Bytes = in_type(fmt, values).view(np.uint8).reshape(-1, 2)
            return
        self._pool = rng.integers(0, 256, (_POOL, fmt.block_bytes), np.uint8)
        self._fields = _scale_fields(fmt)
        parts = []
        for chosen in self._fields:  # a weight is linear in d and in the factor of its minimum
            blocks = self._pool[:_SAMPLE].copy()
            for name in self._fields:
                fmt.view(blocks)[name] = name == chosen
            parts.append(fmt.decode(blocks).astype(np.float64))
        ratio = -parts[0].mean() / parts[1].mean() if len(parts) > 1 else 0.0
        self._factors = (1.0, ratio)
        weights = sum(part * factor for part, factor in zip(parts, self._factors, strict=False))
        self._scale = 1 / float(np.sqrt(np.mean(weights**2))) / k**0.5

    def bytes_of(self, size: int, seed: tuple[int, ...]) -> Bytes:
        """Return random bytes: whole blocks, or elements."""
        rng = np.random.default_rng(seed)
        width = self._pool.shape[1]
        start = int(rng.integers(0, len(self._pool)))
        first = self._pool[start:].reshape(-1)[:size]
        out = np.empty(size, np.uint8)
        out[: len(first)] = first
        pool = self._pool.reshape(-1)
        for at in range(len(first), size, len(pool)):
            out[at : at + len(pool)] = pool[: size - at]
        if isinstance(self._fmt, BlockFormat):
            structs = self._fmt.view(out.reshape(-1, width))
            d = (rng.standard_normal(len(structs), np.float32) * np.float32(0.2) + 1) * np.float32(self._scale)
            if len(self._fields) == 1:
                d *= rng.integers(0, 2, len(d), np.int8) * np.int8(2) - np.int8(1)
            for name, factor in zip(self._fields, self._factors, strict=False):
                structs[name] = d * np.float32(factor)
        return out


def _row_bytes(fmt: WeightFormat, k: int) -> int:
    return fmt.row_bytes(k) if isinstance(fmt, BlockFormat) else 2 * k


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


@contextmanager
def model_file(keep: Path | None, model: RandomModel) -> Iterator[Path]:
    """Provide the model's file: in this folder, generated if needed, or a temporary one. Raises EnvironmentFault."""
    with nullcontext(keep) if keep is not None else scratch.temporary("measure") as folder:
        path = folder / model.file_name
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if not path.exists():
                model.make(path)
        except OSError as error:
            raise EnvironmentFault(f"{path} cannot be written: {error.strerror or error}") from None
        yield path
