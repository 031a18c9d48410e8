"""The source of a quantized model: a GGUF file, split or not, or a file or folder of safetensors.

Names in safetensors are those of the model's framework; gguf-py's table maps them to GGUF names. llama.cpp's converter
also changes some values (convert_hf_to_gguf.py of v0.5.0): for the architecture `llama`, which includes Mistral's
models, it reorders the rows of Q and K, so that the two halves of a rotated pair become neighbours
(`LlamaModel.permute`); for `qwen2` and `qwen3` it changes nothing. The changes for other architectures are not known
here. Every tensor that cannot be compared gets a reason, and is counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..formats.tensor_types import TensorType, tensor_type
from ..gguf.mapped import Mapped
from ..gguf.model import Model, open_model
from ..gguf.origin import Origin
from ..support.errors import MalformedFile, NoSuchFile
from ..support.partial_import import submodule
from ..support.text import printable, quoted
from .safetensors import read_header, read_json

#: Size limit of an index in bytes; one of a thousand shards has about ten million.
MAX_INDEX = 64 << 20
#: Architectures whose conversion is known → whether it permutes Q and K.
PERMUTED = {"llama": True, "qwen2": False, "qwen3": False}
#: dtype → ggml's number.
_TYPES = {"F32": 0, "F16": 1, "BF16": 30}
#: Tensors that the converter drops: they are recomputed, or belong to training.
_LEFT_OUT = (".attention.masked_bias", ".attention.bias", ".rotary_emb.inv_freq")


@dataclass
class Source:
    """The source of a model, open.

    Args:
        path: the path as given.
        kind: "GGUF" or "safetensors".
        tensors: GGUF name → tensor.
        reasons: GGUF name → why that tensor cannot be compared.
        unmapped: pairs of a name in the source's own files without a known GGUF name, and the reason.
        converted: whether a converter, which may round values, stands between the source and llama.cpp's file.
        files: the source's files.
        metadata: its keys; None for safetensors, which have none.
    """

    path: Path
    kind: str
    tensors: Mapping[str, Origin]
    reasons: Mapping[str, str] = field(default_factory=dict)
    unmapped: tuple[tuple[str, str], ...] = ()
    converted: bool = False
    files: tuple[Mapped, ...] = ()
    metadata: Mapping[str, object] | None = None
    _stack: ExitStack = field(default_factory=ExitStack)

    def sha256(self) -> tuple[str, ...]:
        """Return the digest of each file."""
        return tuple(mapped.sha256() for mapped in self.files)

    @property
    def changed(self) -> bool:
        """Whether a file changed since it was opened."""
        return any(mapped.changed for mapped in self.files)

    def close(self) -> None:
        self._stack.close()

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_source(path: Path, model: Model) -> Source:
    """Open the source of `model`. Raises MalformedFile, NoSuchFile and EnvironmentFault with one line."""
    if path.is_dir() or path.name.endswith((".safetensors", ".safetensors.index.json")):
        return _safetensors(path, model)
    source = open_model(path)
    stack = ExitStack()
    stack.callback(source.close)
    tensors = {name: Origin.of(tensor) for name, tensor in source.tensors.items()}
    files = tuple(p.mapped for p in source.parts)
    return Source(path, "GGUF", tensors, files=files, metadata=source.metadata, _stack=stack)


def _shards(path: Path) -> list[Path]:
    """Return the files of a source, in order; several only if an index lists them."""
    if path.name.endswith(".safetensors"):
        return [path]
    if path.is_dir():
        single, index = path / "model.safetensors", path / "model.safetensors.index.json"
        if not index.exists():
            if single.exists():
                return [single]
            found = sorted(path.glob("*.safetensors"))
            if len(found) == 1:
                return found
            what = f"{len(found)} safetensors files and no index" if found else "no safetensors file"
            raise MalformedFile(f"{printable(str(path))}: a folder with {what}; give the file's path")
        path = index
    mapped = Mapped(path)
    try:
        if mapped.size > MAX_INDEX:
            raise MalformedFile(f"{printable(str(path))}: an index of {mapped.size:,} bytes")
        files = read_json(mapped.read().tobytes(), path).get("weight_map")
    finally:
        mapped.close()
    if not isinstance(files, dict) or not files or not all(isinstance(f, str) for f in files.values()):
        raise MalformedFile(f"{printable(str(path))}: its weight_map is not a map of tensors to files")
    names = sorted(set(files.values()))
    for name in names:
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise MalformedFile(
                f"{printable(str(path))}: {quoted(name)} is not the name of a safetensors file beside it"
            )
    return [path.with_name(name) for name in names]


def _safetensors(path: Path, model: Model) -> Source:
    stack = ExitStack()
    try:
        files = []
        entries: dict[str, tuple[Mapped, Any]] = {}
        for shard in _shards(path):
            try:
                mapped = Mapped(shard)
            except NoSuchFile as error:
                if shard == path:
                    raise
                raise MalformedFile(str(error), error.id) from None  # the index lists it, so the index is malformed
            stack.callback(mapped.close)
            files.append(mapped)
            for name, entry in read_header(mapped).items():
                if name in entries:
                    raise MalformedFile(f"{printable(str(shard))}: {quoted(name)} is in another file too")
                entries[name] = mapped, entry
        tensors, reasons, unmapped = _mapped(entries, model)
        return Source(path, "safetensors", tensors, reasons, unmapped, True, tuple(files), _stack=stack)
    except BaseException:
        stack.close()
        raise


def _mapped(
    entries: Mapping[str, tuple[Mapped, Any]], model: Model
) -> tuple[dict[str, Origin], dict[str, str], tuple[tuple[str, str], ...]]:
    """Map tensors to GGUF names; returns them, GGUF names that cannot be compared with reasons, and unmapped names."""
    architecture = model.architecture or ""
    constants = submodule("gguf.constants")
    number = next((a for a, name in constants.MODEL_ARCH_NAMES.items() if name == architecture), None)
    if number is None or architecture not in PERMUTED:
        why = f"the conversion of architecture {quoted(architecture)} is not known"
        return {}, dict.fromkeys(model.tensors, why), tuple((name, why) for name in entries)
    blocks = model.metadata.get(f"{architecture}.block_count")
    if isinstance(blocks, bool) or not isinstance(blocks, int) or not 0 < blocks <= 1 << 14:
        raise MalformedFile(
            f"{printable(str(model.path))}: no {architecture}.block_count, which the mapping of names needs"
        )
    table = submodule("gguf.tensor_mapping").get_tensor_name_map(number, blocks)
    tensors: dict[str, Origin] = {}
    reasons: dict[str, str] = {}
    unmapped: list[tuple[str, str]] = []
    for called, (mapped, entry) in entries.items():
        if called.endswith(_LEFT_OUT):
            continue
        name = table.get_name(called, try_suffixes=(".weight", ".bias"))
        if name is None:
            unmapped.append((called, "gguf-py has no name for it"))
            continue
        kind = tensor_type(_TYPES[entry.dtype]) if entry.dtype in _TYPES else None
        if kind is None:
            reasons[name] = f"its source is {entry.dtype}, not F32, F16 or BF16"
            continue
        if name in tensors:
            reasons[name] = "several tensors of the source have this name"
            continue
        try:
            tensors[name] = _origin(name, called, kind, entry, mapped, model, PERMUTED[architecture])
        except ValueError as error:
            reasons[name] = str(error)
    for name in reasons:
        tensors.pop(name, None)
    if unmapped:
        for name in model.tensors.keys() - tensors.keys() - reasons.keys():
            reasons[name] = "no tensor of the source has its name, but some have names unknown to gguf-py"
    return tensors, reasons, tuple(unmapped)


def _origin(
    name: str, called: str, kind: TensorType, entry: Any, mapped: Mapped, model: Model, permuted: bool
) -> Origin:
    shape = tuple(reversed(entry.shape))
    while len(shape) > 1 and shape[-1] == 1:
        shape = shape[:-1]
    order = None
    if permuted and name.endswith((".attn_q.weight", ".attn_q.bias", ".attn_k.weight", ".attn_k.bias")):
        if name.endswith(".bias"):
            raise ValueError("biases of Q and K, whose order the converter changes, are not compared")
        order = _order(shape, _heads(model, ".attn_k." in name))
    return Origin(name, kind, shape, entry.offset, mapped, order, called)


def _heads(model: Model, of_k: bool) -> int:
    prefix = f"{model.architecture}.attention.head_count"
    for key in (*([f"{prefix}_kv"] if of_k else []), prefix):
        value = model.metadata.get(key)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        if value is not None:
            raise ValueError(f"{key} differs by layer, so the order of its rows is unknown")
    raise ValueError(f"without {prefix} the order of its rows is unknown")


def _order(shape: tuple[int, ...], heads: int) -> npt.NDArray[np.int64]:
    """Return the source's row for each row: `LlamaModel.permute`, applied to row numbers."""
    rows = shape[1] if len(shape) == 2 else 0
    if heads < 1 or not rows or rows % (2 * heads):
        raise ValueError(f"{rows} rows are not {heads} heads of pairs, so their order is unknown")
    return np.arange(rows).reshape(heads, 2, rows // heads // 2).swapaxes(1, 2).reshape(-1)
