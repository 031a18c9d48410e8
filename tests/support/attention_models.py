"""Tiny random models whose layers attend: what distinguishes each is said at its function."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gguf_verify.llama.library import Llama
from tests.support.tiny_models import EPSILON, EXPERTS, HEAD, HEADS, RMS, USED, Tiny


def llama3(llama: Llama, path: Path) -> Path:
    """Rotary positions with a factor for each frequency; grouped heads; matrices in BF16."""
    make = Tiny(llama, path, "llama", "BF16")
    make.keys({"attention.head_count_kv": 1, "rope.dimension_count": HEAD, RMS: 1e-5})
    make.ends()
    make.floats("rope_freqs.weight", np.linspace(1, 8, HEAD // 2))
    for i in range(make.layers):
        blk = f"blk.{i}."
        make.norms(blk, "attn_norm", "ffn_norm")
        make.attention(blk)
        make.dense(blk)
    return make.written(path)


def qwen3moe(llama: Llama, path: Path) -> Path:
    """Experts in Q8_0 and Q4_K; norms of each head's queries and keys."""
    make = Tiny(llama, path, "qwen3moe", "Q8_0")
    make.keys({
        "attention.head_count_kv": 1, RMS: 1e-6, "expert_count": EXPERTS, "expert_used_count": USED,
        "expert_feed_forward_length": 256,
    })  # fmt: skip
    make.ends()
    for i in range(make.layers):
        blk = f"blk.{i}."
        make.norms(blk, "attn_norm", "ffn_norm")
        make.norms(blk, "attn_q_norm", "attn_k_norm", width=HEAD)
        make.attention(blk)
        make.experts(blk, 256, "Q8_0", "Q4_K")
    return make.written(path)


def gemma2(llama: Llama, path: Path) -> Path:
    """Soft caps on scores and logits, a sliding window in every other layer, norms behind each part, tied ends."""
    make = Tiny(llama, path, "gemma2")
    make.keys({
        "attention.head_count_kv": 1, RMS: 1e-6, "attention.sliding_window": 4, "attn_logit_softcapping": 5.0,
        "final_logit_softcapping": 3.0,
    })  # fmt: skip
    make.ends(tied=True)
    for i in range(make.layers):
        blk = f"blk.{i}."
        make.norms(blk, "attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
        make.attention(blk)
        make.dense(blk)
    return make.written(path)


def gemma3(llama: Llama, path: Path) -> Path:
    """A sliding window with its own rotary base, norms of each head's queries and keys."""
    make = Tiny(llama, path, "gemma3")
    make.keys({
        "attention.head_count_kv": 1, RMS: 1e-6, "attention.sliding_window": 4, "rope.freq_base": 1e6,
        "attention.sliding_window_pattern": 2, "rope.freq_base_swa": 1e4, "final_logit_softcapping": 5.0,
    })  # fmt: skip
    make.ends(tied=True)
    for i in range(make.layers):
        blk = f"blk.{i}."
        make.norms(blk, "attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
        make.norms(blk, "attn_q_norm", "attn_k_norm", width=HEAD)
        make.attention(blk)
        make.dense(blk)
    return make.written(path)


def gpt_oss(llama: Llama, path: Path) -> Path:
    """Attention sinks, a sliding window, YaRN positions, experts in MXFP4 with biases and a clamped SwiGLU."""
    make = Tiny(llama, path, "gpt-oss", "Q8_0")
    make.keys({
        "attention.head_count_kv": 1, RMS: 1e-5, "attention.sliding_window": 4, "expert_count": EXPERTS,
        "expert_used_count": USED, "expert_feed_forward_length": 128, "rope.scaling.type": "yarn",
        "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 16,
    })  # fmt: skip
    make.ends()
    for i in range(make.layers):
        blk = f"blk.{i}."
        make.norms(blk, "attn_norm", "post_attention_norm")
        make.attention(blk, bias=True)
        make.floats(f"{blk}attn_sinks.weight", make.drawn(HEADS, scale=1))
        make.experts(blk, 128, "MXFP4", "MXFP4", bias=True)
    return make.written(path)


def phi3(llama: Llama, path: Path) -> Path:
    """Queries, keys and values of one matrix, gates and values of one matrix, long and short rotary factors."""
    make = Tiny(llama, path, "phi3", kv_heads=HEADS)
    make.keys({RMS: 1e-5, "rope.scaling.original_context_length": 16, "rope.scaling.attn_factor": 1.2})
    make.ends()
    make.floats("rope_factors_long.weight", np.linspace(1, 16, HEAD // 2))
    make.floats("rope_factors_short.weight", np.linspace(1, 2, HEAD // 2))
    for i in range(make.layers):
        blk = f"blk.{i}."
        make.norms(blk, "attn_norm", "ffn_norm")
        make.attention(blk, joined=True)
        make.matrices(blk, ffn_up=(2 * make.width_ff, make.width), ffn_down=(make.width, make.width_ff))
    return make.written(path)


def mpt(llama: Llama, path: Path) -> Path:
    """Linear biases of attention (ALiBi) in place of positions; queries, keys and values are clamped."""
    make = Tiny(llama, path, "mpt", kv_heads=HEADS)
    make.keys({EPSILON: 1e-5, "attention.clamp_kqv": 1.5, "attention.max_alibi_bias": 8.0})
    make.ends(tied=True)
    for i in range(make.layers):
        blk = f"blk.{i}."
        make.norms(blk, "attn_norm", "ffn_norm")
        make.attention(blk, joined=True)
        make.dense(blk, gated=False)
    return make.written(path)


def bloom(llama: Llama, path: Path) -> Path:
    """Linear biases of attention, a norm of the embeddings, biases everywhere."""
    make = Tiny(llama, path, "bloom", "F32", kv_heads=HEADS)
    make.keys({EPSILON: 1e-5})
    make.ends(tied=True, bias=True)
    make.norms("", "token_embd_norm", bias=True)
    for i in range(make.layers):
        blk = f"blk.{i}."
        make.norms(blk, "attn_norm", "ffn_norm", bias=True)
        make.attention(blk, bias=True, joined=True)
        make.dense(blk, gated=False, bias=True)
    return make.written(path)


def gptneox(llama: Llama, path: Path) -> Path:
    """Attention and feed-forward part side by side, rotary positions of a quarter of each head, GELU."""
    make = Tiny(llama, path, "gptneox", kv_heads=HEADS)
    make.keys({EPSILON: 1e-5, "use_parallel_residual": True, "rope.dimension_count": HEAD // 4})
    make.ends(bias=True)
    for i in range(make.layers):
        blk = f"blk.{i}."
        make.norms(blk, "attn_norm", "ffn_norm", bias=True)
        make.attention(blk, bias=True, joined=True)
        make.dense(blk, gated=False, bias=True)
    return make.written(path)


def starcoder(llama: Llama, path: Path) -> Path:
    """Learned positions, all heads with one key and one value."""
    make = Tiny(llama, path, "starcoder")
    make.keys({"attention.head_count_kv": 1, EPSILON: 1e-5})
    make.ends(tied=True, bias=True)
    make.matrices("", "F32", position_embd=(64, make.width))
    for i in range(make.layers):
        blk = f"blk.{i}."
        make.norms(blk, "attn_norm", "ffn_norm", bias=True)
        make.attention(blk, bias=True, joined=True)
        make.dense(blk, gated=False, bias=True)
    return make.written(path)
