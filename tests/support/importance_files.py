"""Importance matrices and safetensors files as their programs write them, and broken ones."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np

from gguf_verify.gguf.model import open_model
from gguf_verify.support.array_types import Floats
from tests.support.tools import FIXTURES


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


def permuted_back(x: np.ndarray, heads: int) -> np.ndarray:
    """The inverse of LlamaModel.permute of convert_hf_to_gguf.py, written independently: row by row."""
    out = np.empty_like(x)
    half = len(x) // heads // 2
    for head in range(heads):
        for i in range(half):
            for part in range(2):
                out[head * 2 * half + part * half + i] = x[head * 2 * half + 2 * i + part]
    return out


def hugging_face(folder: Path, split: bool = False, finer: bool = False) -> Path:
    """The fixture under the names of its framework, in F16; as one file, or two and an index; or in F32, with
    digits that F16 does not hold."""
    names = {
        "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    }  # fmt: skip
    top = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
    tensors = {}
    with open_model(FIXTURES / "tiny-F16.gguf") as model:
        for name, t in model.tensors.items():
            base = name.removesuffix(".weight")
            if base in top:
                called = top[base]
            else:
                _, layer, what = base.split(".")
                called = f"model.layers.{layer}.{names[what]}"
            kind = "F32" if t.type.name == "F32" else "F16"
            x = t.raw.view("<f4" if kind == "F32" else "<f2").reshape(t.shape[::-1])
            if "attn_q." in name or "attn_k." in name:
                x = permuted_back(x, 8 if "attn_q." in name else 4)
            if finer and kind == "F16":
                kind, x = "F32", (x.astype(np.float32) * np.float32(1 + 2.0**-14)).astype("<f4")
            tensors[f"{called}.weight"] = (kind, x.shape, x.tobytes())
    if not split:
        safetensors(folder / "model.safetensors", tensors)
        return folder
    some = list(tensors)[:11]
    files = {name: f"model-0000{1 if name in some else 2}-of-00002.safetensors" for name in tensors}
    for file in set(files.values()):
        safetensors(folder / file, {name: t for name, t in tensors.items() if files[name] == file})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    return folder
