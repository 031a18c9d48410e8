"""Importance matrices and safetensors files as their programs write them, and broken ones."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


def dat(path: Path, entries: Mapping[str, tuple[Floats, int]], tail: bytes = b"") -> Path:
    """llama-imatrix's older format: name → (sums, calls)."""
    parts = [struct.pack("<i", len(entries))]
    for name, (values, calls) in entries.items():
        raw = name.encode()
        parts += [
            struct.pack("<i", len(raw)),
            raw,
            struct.pack("<ii", calls, values.size),
            values.astype("<f4").tobytes(),
        ]
    path.write_bytes(b"".join(parts) + tail)
    return path


def imatrix_gguf(path: Path, entries: Mapping[str, tuple[Floats, Floats]]) -> Path:
    """Its present format: name → (sums [experts, K], counts [experts])."""
    writer = gguf.GGUFWriter(path, "imatrix")
    writer.add_string("general.type", "imatrix")
    for name, (sums, counts) in entries.items():
        writer.add_tensor(f"{name}.in_sum2", np.ascontiguousarray(sums, np.float32))
        writer.add_tensor(f"{name}.counts", np.ascontiguousarray(counts, np.float32).reshape(-1, 1))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def safetensors(path: Path, tensors: Mapping[str, tuple[str, tuple[int, ...], bytes]], **header: object) -> Path:
    """name → (dtype, shape, bytes); `header` replaces entries."""
    made: dict[str, object] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, (dtype, shape, raw) in tensors.items():
        made[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(made | header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path
