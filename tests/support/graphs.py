"""Tiny random models of graphs that the trained fixtures do not have: experts, batched products, encoders.

Matrices are Gaussian of variance 1/K, so that activations keep their size, and quantized by llama.cpp (or F32, F16,
BF16); norms and what routes tokens to experts stay float32. Each takes a fraction of a second to write.
"""

from __future__ import annotations

import string
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

from gguf_verify.formats.element import ElementFormat
from gguf_verify.formats.tensor_types import ELEMENTS, FORMATS
from gguf_verify.llama.library import Llama
from gguf_verify.semantics.elements import round_to

WIDTH, WIDTH_FF, HEADS, LAYERS = 256, 512, 4, 2
HEAD = WIDTH // HEADS
#: Experts, of which each token gets USED; no token ever gets the last one.
EXPERTS, USED = 6, 2
CONTEXT = 64

Floats = npt.NDArray[np.float32]


def elements(kind: str, values: Floats) -> npt.NDArray[np.generic]:
    """Values rounded to F32, F16 or BF16 (whose bits are given as halves, for GGUFWriter knows no such type)."""
    if kind == "BF16":
        return (round_to(kind, values).view(np.uint32) >> 16).astype(np.uint16).view(np.float16)
    return values.astype({"F32": np.float32, "F16": np.float16}[kind])


class Maker:
    """Writes one model: metadata through `writer`, tensors by shape in NumPy's order."""

    def __init__(
        self, llama: Llama, path: Path, architecture: str, kind: str, seed: int, width_ff: int = WIDTH_FF,
        layers: int = LAYERS, width: int = WIDTH, heads: int = HEADS,
    ) -> None:  # fmt: skip
        self.llama, self.kind = llama, FORMATS.get(kind) or ELEMENTS[kind]
        self.writer = gguf.GGUFWriter(path, architecture)
        self.rng = np.random.default_rng(seed)
        self.writer.add_context_length(CONTEXT)
        self.writer.add_embedding_length(width)
        self.writer.add_block_count(layers)
        self.writer.add_feed_forward_length(width_ff)
        self.writer.add_head_count(heads)

    def matrix(self, name: str, *shape: int, shift: Floats | None = None) -> None:
        """Quantized; `shift` is added to every row."""
        values = self.rng.standard_normal((int(np.prod(shape[:-1])), shape[-1]), np.float32) / np.float32(
            shape[-1] ** 0.5
        )
        if shift is not None:
            values += shift
        if isinstance(self.kind, ElementFormat):
            kind = gguf.GGMLQuantizationType(self.kind.type_id)
            self.writer.add_tensor(name, elements(self.kind.name, values).reshape(shape), raw_dtype=kind)
            return
        raw = self.llama.quantize(self.kind.type_id, values)
        self.writer.add_tensor(
            name, raw.reshape(*shape[:-1], raw.shape[1]), raw_dtype=gguf.GGMLQuantizationType(self.kind.type_id)
        )

    def floats(self, name: str, values: npt.ArrayLike) -> None:
        self.writer.add_tensor(name, np.asarray(values, np.float32))

    def norm(self, name: str, width: int = WIDTH, bias: bool = False) -> None:
        self.floats(f"{name}.weight", 1 + 0.1 * self.rng.standard_normal(width))
        if bias:
            self.floats(f"{name}.bias", 0.1 * self.rng.standard_normal(width))

    def byte_tokens(self) -> int:
        """A SentencePiece vocabulary of bytes alone."""
        tokens = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), "\u2581"]
        kinds = [2, 3, 3, *[6] * 256, 1]
        self.writer.add_tokenizer_model("llama")
        self.writer.add_token_list(tokens)
        self.writer.add_token_scores([0.0] * len(tokens))
        self.writer.add_token_types(kinds)
        self.writer.add_bos_token_id(1)
        self.writer.add_eos_token_id(2)
        self.writer.add_vocab_size(len(tokens))
        return len(tokens)

    def close(self) -> None:
        self.writer.write_header_to_file()
        self.writer.write_kv_data_to_file()
        self.writer.write_tensors_to_file()
        self.writer.close()


def dense_llama(llama: Llama, path: Path, layers: int, kind: str = "Q4_0", seed: int = 1) -> Path:
    """A plain llama of so many layers."""
    make = Maker(llama, path, "llama", kind, seed, layers=layers)
    make.writer.add_rope_dimension_count(HEAD)
    make.writer.add_layer_norm_rms_eps(1e-5)
    n_vocab = make.byte_tokens()
    make.matrix("token_embd.weight", n_vocab, WIDTH)
    make.matrix("output.weight", n_vocab, WIDTH)
    make.norm("output_norm")
    for i in range(layers):
        make.norm(f"blk.{i}.attn_norm")
        make.norm(f"blk.{i}.ffn_norm")
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            make.matrix(f"blk.{i}.{name}.weight", WIDTH, WIDTH)
        for name, shape in (("gate", (WIDTH_FF, WIDTH)), ("up", (WIDTH_FF, WIDTH)), ("down", (WIDTH, WIDTH_FF))):
            make.matrix(f"blk.{i}.ffn_{name}.weight", *shape)
    make.close()
    return path


def _experts(make: Maker, i: int, width_ff: int) -> None:
    """Experts of a layer. The last one's logit is far below the others' where the embeddings' first value is large."""
    gate = make.rng.standard_normal((EXPERTS, WIDTH)) / WIDTH**0.5
    gate[:, 0], gate[-1] = 0, 0
    gate[-1, 0] = -10
    make.floats(f"blk.{i}.ffn_gate_inp.weight", gate)
    make.matrix(f"blk.{i}.ffn_gate_exps.weight", EXPERTS, width_ff, WIDTH)
    make.matrix(f"blk.{i}.ffn_up_exps.weight", EXPERTS, width_ff, WIDTH)
    make.matrix(f"blk.{i}.ffn_down_exps.weight", EXPERTS, WIDTH, width_ff)


def _first_large() -> Floats:
    shift = np.zeros(WIDTH, np.float32)
    shift[0] = 2
    return shift


def llama_moe(llama: Llama, path: Path, kind: str = "Q4_0", tied: bool = False, seed: int = 1) -> Path:
    """A llama whose feed-forward parts are experts; `tied`: its embeddings are its output matrix too."""
    make = Maker(llama, path, "llama", kind, seed, WIDTH)
    make.writer.add_head_count_kv(HEADS // 2)
    make.writer.add_rope_dimension_count(HEAD)
    make.writer.add_layer_norm_rms_eps(1e-5)
    make.writer.add_expert_count(EXPERTS)
    make.writer.add_expert_used_count(USED)
    n_vocab = make.byte_tokens()
    make.matrix("token_embd.weight", n_vocab, WIDTH, shift=_first_large())
    if not tied:
        make.matrix("output.weight", n_vocab, WIDTH)
    make.norm("output_norm")
    for i in range(LAYERS):
        make.norm(f"blk.{i}.attn_norm")
        make.norm(f"blk.{i}.ffn_norm")
        make.matrix(f"blk.{i}.attn_q.weight", WIDTH, WIDTH)
        make.matrix(f"blk.{i}.attn_k.weight", WIDTH // 2, WIDTH)
        make.matrix(f"blk.{i}.attn_v.weight", WIDTH // 2, WIDTH)
        make.matrix(f"blk.{i}.attn_output.weight", WIDTH, WIDTH)
        _experts(make, i, WIDTH)
    make.close()
    return path


def deepseek(llama: Llama, path: Path, kind: str = "Q4_0", seed: int = 1) -> Path:
    """Latent attention, whose heads' matrices are one batched product on strided activations; a dense layer, then one
    of experts with a shared one."""
    nope, rope, rank = 64, 32, 128
    make = Maker(llama, path, "deepseek2", kind, seed)
    make.writer.add_head_count_kv(1)
    make.writer.add_rope_dimension_count(rope)
    make.writer.add_layer_norm_rms_eps(1e-5)
    make.writer.add_q_lora_rank(rank)
    make.writer.add_kv_lora_rank(rank)
    make.writer.add_key_length(rank + rope)
    make.writer.add_value_length(rank)
    make.writer.add_key_length_mla(nope + rope)
    make.writer.add_value_length_mla(HEAD)
    make.writer.add_leading_dense_block_count(1)
    make.writer.add_expert_count(EXPERTS)
    make.writer.add_expert_used_count(USED)
    make.writer.add_expert_shared_count(1)
    make.writer.add_expert_feed_forward_length(WIDTH)
    make.writer.add_expert_weights_scale(1.0)
    n_vocab = make.byte_tokens()
    make.matrix("token_embd.weight", n_vocab, WIDTH, shift=_first_large())
    make.matrix("output.weight", n_vocab, WIDTH)
    make.norm("output_norm")
    for i in range(LAYERS):
        make.norm(f"blk.{i}.attn_norm")
        make.norm(f"blk.{i}.ffn_norm")
        make.norm(f"blk.{i}.attn_q_a_norm", rank)
        make.norm(f"blk.{i}.attn_kv_a_norm", rank)
        make.matrix(f"blk.{i}.attn_q_a.weight", rank, WIDTH)
        make.matrix(f"blk.{i}.attn_q_b.weight", HEADS * (nope + rope), rank)
        make.matrix(f"blk.{i}.attn_kv_a_mqa.weight", rank + rope, WIDTH)
        make.matrix(f"blk.{i}.attn_k_b.weight", HEADS, rank, nope)
        make.matrix(f"blk.{i}.attn_v_b.weight", HEADS, HEAD, rank)
        make.matrix(f"blk.{i}.attn_output.weight", WIDTH, WIDTH)
        if i == 0:
            make.matrix(f"blk.{i}.ffn_gate.weight", WIDTH_FF, WIDTH)
            make.matrix(f"blk.{i}.ffn_up.weight", WIDTH_FF, WIDTH)
            make.matrix(f"blk.{i}.ffn_down.weight", WIDTH, WIDTH_FF)
        else:
            _experts(make, i, WIDTH)
            make.matrix(f"blk.{i}.ffn_gate_shexp.weight", WIDTH, WIDTH)
            make.matrix(f"blk.{i}.ffn_up_shexp.weight", WIDTH, WIDTH)
            make.matrix(f"blk.{i}.ffn_down_shexp.weight", WIDTH, WIDTH)
    make.close()
    return path


def bert(
    llama: Llama, path: Path, kind: str = "Q4_0", ranks: bool = False, seed: int = 1, width_ff: int = WIDTH_FF,
    pools: bool = True,
) -> Path:  # fmt: skip
    """An encoder; `ranks`: a reranker, whose classifier pools, unless `pools` is false: then no node uses it."""
    make = Maker(llama, path, "bert", kind, seed, width_ff)
    pieces = [f"\u2581{c}" for c in string.ascii_lowercase] + list(string.ascii_lowercase)
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *pieces, "\u2581once", "\u2581upon", "\u2581time"]
    make.writer.add_layer_norm_eps(1e-12)
    make.writer.add_causal_attention(False)
    make.writer.add_pooling_type(gguf.PoolingType.RANK if ranks and pools else gguf.PoolingType.MEAN)
    make.writer.add_tokenizer_model("bert")
    make.writer.add_token_list(tokens)
    make.writer.add_token_types([3] * 5 + [1] * (len(tokens) - 5))
    make.writer.add_token_type_count(2)
    for name, token in (("pad", 0), ("unk", 1), ("bos", 2), ("sep", 3), ("mask", 4)):
        getattr(make.writer, f"add_{name}_token_id")(token)
    make.writer.add_vocab_size(len(tokens))
    make.matrix("token_embd.weight", len(tokens), WIDTH)
    make.floats("token_types.weight", make.rng.standard_normal((2, WIDTH)) / WIDTH**0.5)
    make.floats("position_embd.weight", make.rng.standard_normal((CONTEXT, WIDTH)) / WIDTH**0.5)
    make.norm("token_embd_norm", bias=True)
    for i in range(LAYERS):
        for part in ("attn_q", "attn_k", "attn_v", "attn_output"):
            make.matrix(f"blk.{i}.{part}.weight", WIDTH, WIDTH)
            make.floats(f"blk.{i}.{part}.bias", 0.1 * make.rng.standard_normal(WIDTH))
        make.matrix(f"blk.{i}.ffn_up.weight", width_ff, WIDTH)
        make.matrix(f"blk.{i}.ffn_down.weight", WIDTH, width_ff)
        make.norm(f"blk.{i}.attn_output_norm", bias=True)
        make.norm(f"blk.{i}.layer_output_norm", bias=True)
    if ranks:
        make.matrix("cls.weight", WIDTH, WIDTH)
        make.floats("cls.bias", 0.1 * make.rng.standard_normal(WIDTH))
        make.floats("cls.output.weight", make.rng.standard_normal((1, WIDTH)) / WIDTH**0.5)
        make.floats("cls.output.bias", [0.1])
    make.close()
    return path


def t5(llama: Llama, path: Path, kind: str = "Q4_0", decoder: bool = True, seed: int = 1) -> Path:
    """An encoder-decoder model whose embeddings are its output matrix too, or its encoder alone."""
    make = Maker(llama, path, "t5" if decoder else "t5encoder", kind, seed)
    pieces = ["\u2581", *string.ascii_letters, *(f"\u2581{c}" for c in string.ascii_lowercase)]
    tokens = ["<pad>", "</s>", "<unk>", *pieces]
    make.writer.add_layer_norm_rms_eps(1e-6)
    make.writer.add_key_length(HEAD)
    make.writer.add_value_length(HEAD)
    make.writer.add_relative_attn_buckets_count(32)
    make.writer.add_tokenizer_model("t5")
    make.writer.add_token_list(tokens)
    make.writer.add_token_scores([0.0, 0.0, 0.0, *(-float(len(tokens) - len(p)) / 10 for p in pieces)])
    make.writer.add_token_types([3, 3, 2] + [1] * len(pieces))
    for name, token in (("pad", 0), ("eos", 1), ("unk", 2)):
        getattr(make.writer, f"add_{name}_token_id")(token)
    make.writer.add_vocab_size(len(tokens))
    make.matrix("token_embd.weight", len(tokens), WIDTH)
    sides: list[tuple[str, list[str]]] = [("enc", ["attn"])]
    if decoder:
        make.writer.add_decoder_start_token_id(0)
        sides.append(("dec", ["attn", "cross_attn"]))
    for side, kinds in sides:
        make.norm(f"{side}.output_norm")
        for i in range(LAYERS):
            for attention in kinds:
                make.norm(f"{side}.blk.{i}.{attention}_norm")
                for part in "qkvo":
                    make.matrix(f"{side}.blk.{i}.{attention}_{part}.weight", WIDTH, WIDTH)
            make.norm(f"{side}.blk.{i}.ffn_norm")
            make.matrix(f"{side}.blk.{i}.ffn_up.weight", WIDTH_FF, WIDTH)
            make.matrix(f"{side}.blk.{i}.ffn_down.weight", WIDTH, WIDTH_FF)
        make.floats(f"{side}.blk.0.attn_rel_b.weight", make.rng.standard_normal((32, HEADS)))
    make.close()
    return path


MODELS: dict[str, Callable[..., Path]] = {"moe": llama_moe, "deepseek": deepseek, "bert": bert, "t5": t5}
