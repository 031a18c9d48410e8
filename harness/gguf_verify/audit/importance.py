"""Importance matrices: the weight of each column of each tensor in llama.cpp's quantization.

Files of llama-imatrix, read as llama.cpp's quantize reads them (tools/quantize/quantize.cpp, `load_imatrix`, and
common/imatrix-loader.cpp; commit 0a32c5e; v0.5.0 has the same rules):

- GGUF: tensors `NAME.in_sum2`, float32[experts, K] of sums of squared activations, and `NAME.counts`, float32[experts].
  The importance is sum / round(count) for each expert; 1 if the count is zero.
- The older format (.dat), little-endian: int32 number of entries; for each entry int32 length of the name, name, int32
  calls, int32 number of values, float32 values. The importance is value / calls, or the value if calls is zero. Later
  entries of a name replace earlier ones. The data after the entries (chunks, data set) is not needed.

Files are untrusted: every length is compared with the remaining bytes before anything is read.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..gguf.file import Tensor
from ..gguf.mapped import Mapped
from ..gguf.model import Model, open_model
from ..support.array_types import Floats
from ..support.errors import MalformedFile
from ..support.text import printable, quoted

_SUMS, _COUNTS = ".in_sum2", ".counts"
#: Limit of entries in a file: more than any model has tensors.
MAX_ENTRIES = 1 << 17
#: Limit of a name in bytes: ggml keeps 63.
MAX_NAME = 1 << 10
_I32 = struct.Struct("<i")


@dataclass(frozen=True)
class Importance:
    """An importance matrix.

    Args:
        path: the file.
        sha256: its digest.
        entries: tensor → float32[experts · K], finite and not negative.
    """

    path: Path
    sha256: str
    entries: Mapping[str, Floats]

    def of(self, tensor: Tensor) -> Floats | None:
        """Return float32[matrices, K] for a tensor; None if the file has no entry for it, in which case llama.cpp
        quantizes without importance.

        Raises ValueError if the entry has another size: llama.cpp rejects that, except for the embedding.
        """
        entry = self.entries.get(tensor.name)
        if entry is None:
            return None
        matrices = tensor.shape[2] if len(tensor.shape) > 2 else 1
        if len(entry) == tensor.k * matrices:
            return entry.reshape(matrices, tensor.k)
        if tensor.name == "token_embd.weight":
            return None
        raise ValueError(f"the importance matrix has {len(entry):,} values for it, not {tensor.k * matrices:,}")


def read_importance(path: Path) -> Importance:
    """Read a file of either format. Raises MalformedFile with one line."""
    mapped = Mapped(path)
    try:
        gguf = mapped.size >= 4 and mapped.read()[:4].tobytes() == b"GGUF"
        if gguf:
            with open_model(path) as model:
                entries = _of_gguf(path, model)
        else:
            entries = _of_dat(path, mapped)
        for name, values in entries.items():
            if not (np.isfinite(values).all() and (values >= 0).all()):
                raise _malformed(path, f"the importance of {quoted(name)} holds values that are negative or not finite")
        return Importance(path, mapped.sha256(), entries)
    finally:
        mapped.close()


def _malformed(path: Path, what: str) -> MalformedFile:
    return MalformedFile(f"{printable(str(path))}: not an importance matrix: {what}")


def _of_gguf(path: Path, model: Model) -> dict[str, Floats]:
    entries: dict[str, Floats] = {}
    names = [name.removesuffix(_SUMS) for name in model.tensors if name.endswith(_SUMS)]
    if not names:
        raise _malformed(path, f"it holds no tensor whose name ends in {_SUMS}")
    lone = [name for name in model.tensors if name.endswith(_COUNTS) and name.removesuffix(_COUNTS) not in names]
    for name in [*names, *(name.removesuffix(_COUNTS) for name in lone)]:
        sums, counts = model.tensors.get(name + _SUMS), model.tensors.get(name + _COUNTS)
        if sums is None or counts is None:
            raise _malformed(path, f"{quoted(name)} has sums without counts, or counts without sums")
        if sums.type.name != "F32" or counts.type.name != "F32":
            raise _malformed(path, f"the sums and counts of {quoted(name)} are not F32")
        values, n = sums.raw.view("<f4"), counts.raw.view("<f4")
        if not len(n) or not len(values) or len(values) % len(n):
            raise _malformed(path, f"{quoted(name)} has {len(values):,} sums for {len(n):,} counts")
        if not np.isfinite(n).all() or (np.abs(n) > 2.0**62).any():
            raise _malformed(path, f"a count of {quoted(name)} is not a valid number of tokens")
        rounded = np.trunc(n.astype(np.float64) + np.copysign(0.5, n)).astype(np.float32)[:, None]  # lround
        of_experts = values.astype(np.float32).reshape(len(n), -1)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            entries[name] = np.where(rounded > 0, of_experts / rounded, np.float32(1)).reshape(-1)
    return entries


def _of_dat(path: Path, mapped: Mapped) -> dict[str, Floats]:
    raw, at = mapped.read(), 0

    def number(what: str, least: int, most: int) -> int:
        nonlocal at
        if at + 4 > len(raw):
            raise _malformed(path, f"it ends at byte {len(raw)}, before {what}")
        (value,) = _I32.unpack(raw[at : at + 4].tobytes())
        at += 4
        if not least <= value <= most:
            raise _malformed(path, f"byte {at - 4}: {what} is {value}")
        return int(value)

    entries: dict[str, Floats] = {}
    for i in range(number("the number of entries", 1, MAX_ENTRIES)):
        length = number(f"the length of name {i}", 1, min(MAX_NAME, len(raw) - at))
        name = raw[at : at + length].tobytes().partition(b"\0")[0].decode("utf-8", "surrogateescape")
        at += length
        calls = number(f"the calls of {quoted(name)}", -(1 << 31), (1 << 31) - 1)
        n = number(f"the number of values of {quoted(name)}", 1, max(1, (len(raw) - at - 4) // 4))
        if at + 4 * n > len(raw):
            raise _malformed(path, f"it ends at byte {len(raw)}, within the values of {quoted(name)}")
        values = np.frombuffer(raw[at : at + 4 * n].tobytes(), "<f4")
        at += 4 * n
        entries[name] = np.asarray(values / np.float32(calls) if calls > 0 else values, np.float32)
    return entries
