"""A random model of a real one's shape, for benchmarks."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
from tqdm import tqdm

from ...formats import FILE_TYPES, FORMATS, ElementFormat, WeightFormat
from ...llama import Llama
from ..inputs import WEIGHTS

N_EMBD, N_FF, N_HEAD, N_HEAD_KV, N_VOCAB = 2048, 5632, 32, 4, 32000
#: llama.cpp's file types. All matrices of a model have one type, except in Q4_K_M: see `type_of`.
FILES = {**{name: FILE_TYPES[name] for name, fmt in FORMATS.items() if fmt.legacy}, "F16": FILE_TYPES["F16"],
         "Q4_K_M": FILE_TYPES["Q4_K"]}  # fmt: skip


def shapes(n_layer: int) -> list[tuple[str, int, int]]:
    """Name, rows and columns of each matrix."""
    n_kv = N_EMBD // N_HEAD * N_HEAD_KV
    out = [("token_embd.weight", N_VOCAB, N_EMBD), ("output.weight", N_VOCAB, N_EMBD)]
    for i in range(n_layer):
        out += [
            (f"blk.{i}.attn_q.weight", N_EMBD, N_EMBD),
            (f"blk.{i}.attn_k.weight", n_kv, N_EMBD),
            (f"blk.{i}.attn_v.weight", n_kv, N_EMBD),
            (f"blk.{i}.attn_output.weight", N_EMBD, N_EMBD),
            (f"blk.{i}.ffn_gate.weight", N_FF, N_EMBD),
            (f"blk.{i}.ffn_up.weight", N_FF, N_EMBD),
            (f"blk.{i}.ffn_down.weight", N_EMBD, N_FF),
        ]
    return out


def type_of(kind: str, name: str, n_layer: int) -> WeightFormat:
    """The type of a matrix in a file of this kind. For Q4_K_M it is that of llama_model_quantize (llama-quant.cpp):
    Q4_K, and Q6_K for the output matrix and, in the layers that get more bits, for attn_v and ffn_down."""
    if kind != "Q4_K_M":
        return WEIGHTS[kind]
    more = name == "output.weight"
    if ".attn_v." in name or ".ffn_down." in name:
        i, eighth = int(name.split(".")[1]), n_layer // 8
        more = i < eighth or i >= 7 * n_layer // 8 or (i - eighth) % 3 == 2
    return FORMATS["Q6_K" if more else "Q4_K"]


def make_model(path: Path, kind: str, n_layer: int, seed: int = 0) -> None:
    """Write a model of Gaussian weights with variance 1/K, so that activations keep their size through the layers."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("random TinyLlama-1.1B")
    writer.add_context_length(2048)
    writer.add_embedding_length(N_EMBD)
    writer.add_block_count(n_layer)
    writer.add_feed_forward_length(N_FF)
    writer.add_head_count(N_HEAD)
    writer.add_head_count_kv(N_HEAD_KV)
    writer.add_rope_dimension_count(N_EMBD // N_HEAD)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(N_VOCAB)
    writer.add_file_type(FILES[kind])
    bytes_ = [f"<0x{i:02X}>" for i in range(256)]
    tokens = ["<unk>", "<s>", "</s>", *bytes_, *(f"word{i}" for i in range(N_VOCAB - 259))]
    kinds = [gguf.TokenType.UNKNOWN, *[gguf.TokenType.CONTROL] * 2, *[gguf.TokenType.BYTE] * 256]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * N_VOCAB)
    writer.add_token_types([*kinds, *[gguf.TokenType.NORMAL] * (N_VOCAB - len(kinds))])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    rng = np.random.default_rng(seed)
    matrices = shapes(n_layer)
    norms = ["output_norm.weight"]
    norms += [f"blk.{i}.{part}_norm.weight" for i in range(n_layer) for part in ("attn", "ffn")]
    for name, n, k in matrices:
        fmt = type_of(kind, name, n_layer)
        if isinstance(fmt, ElementFormat):  # the writer takes the shape of elements
            writer.add_tensor_info(name, (n, k), np.dtype(np.float16), n * k * 2)
            continue
        size, raw_dtype = fmt.row_bytes(k), gguf.GGMLQuantizationType(fmt.type_id)
        writer.add_tensor_info(name, (n, size), np.dtype(np.uint8), n * size, raw_dtype=raw_dtype)
    for name in norms:
        writer.add_tensor_info(name, (N_EMBD,), np.dtype(np.float32), 4 * N_EMBD)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    with Llama() as llama:
        for name, n, k in tqdm(matrices, desc="making the model", unit="tensor", disable=None):
            fmt, rows = type_of(kind, name, n_layer), []
            for i in range(0, n, 4096):
                values = rng.standard_normal((min(4096, n - i), k), np.float32) / np.float32(k**0.5)
                f16 = isinstance(fmt, ElementFormat)
                rows.append(values.astype(np.float16) if f16 else llama.quantize(fmt.type_id, values))
            writer.write_tensor_data(np.concatenate(rows))
    for _ in norms:
        writer.write_tensor_data(np.ones(N_EMBD, np.float32))
    writer.close()


def model_at(path: Path | None, folder: Path, kind: str, n_layer: int) -> Path:
    """The model to measure on: `path` where it is a file; otherwise it is made there, or in `folder`."""
    path = path or folder
    if path.is_dir():
        path = path / f"random-1.1B-{n_layer}-{kind}.gguf"
    if not path.exists():
        make_model(path, kind, n_layer)
    return path
