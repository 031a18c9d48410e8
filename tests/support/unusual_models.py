"""Tiny random models of families whose graphs hold operations that hardly any other has."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gguf_verify.llama.library import Llama
from tests.support.recurrent_models import SPAN
from tests.support.tiny_models import EPSILON, EXPERTS, HEAD, HEADS, RMS, USED, WIDTH, Tiny

#: llama.cpp's constants of gemma3n (llama-hparams.h): parallel streams, their rank, the width of a layer's own input.
STREAMS, LAUREL, OWN = 4, 64, 256
#: Of latent attention: the ranks, and each head's parts without and with positions.
RANK, NOPE, ROPE = 128, 64, 32


def apertus(llama: Llama, path: Path) -> Path:
    """An activation of its own, xIELU."""
    make = Tiny(llama, path, "apertus")
    make.keys({"attention.head_count_kv": 1, RMS: 1e-5})
    for name, value in (("alpha_n", 0.8), ("alpha_p", 0.7), ("beta", 0.5), ("eps", -1e-6)):
        make.writer.add_float32(f"xielu.{name}", value)
    make.ends()
    for i in range(make.layers):
        blk = f"blk.{i}."
        make.norms(blk, "attn_norm", "ffn_norm")
        make.norms(blk, "attn_q_norm", "attn_k_norm", width=HEAD)
        make.attention(blk)
        make.dense(blk, gated=False)
    return make.written(path)


def qwen2vl(llama: Llama, path: Path) -> Path:
    """Rotary positions of four kinds, each for a section of every head."""
    make = Tiny(llama, path, "qwen2vl")
    make.keys({"attention.head_count_kv": 1, RMS: 1e-6, "rope.dimension_sections": [8, 12, 12, 0]})
    make.ends()
    for i in range(make.layers):
        blk = f"blk.{i}."
        make.norms(blk, "attn_norm", "ffn_norm")
        make.attention(blk)
        make.vectors(blk, ".bias", attn_q=make.width_q, attn_k=make.width_kv, attn_v=make.width_kv)
        make.dense(blk)
    return make.written(path)


def lfm2(llama: Llama, path: Path) -> Path:
    """A layer of short gated convolutions, then one that attends."""
    make = Tiny(llama, path, "lfm2")
    make.keys({"attention.head_count_kv": [0, 1], RMS: 1e-5, "shortconv.l_cache": 3})
    make.matrices("", token_embd=(make.n_vocab, WIDTH))
    make.norms("", "token_embd_norm")
    for i in range(make.layers):
        blk = f"blk.{i}."
        make.norms(blk, "attn_norm", "ffn_norm")
        if i == 0:
            make.floats(f"{blk}shortconv.conv.weight", make.drawn(WIDTH, 3, scale=0.6))
            make.matrices(f"{blk}shortconv.", in_proj=(3 * WIDTH, WIDTH), out_proj=(WIDTH, WIDTH))
        else:
            make.norms(blk, "attn_q_norm", "attn_k_norm", width=HEAD)
            make.attention(blk)
        make.dense(blk)
    return make.written(path)


def gemma3n(llama: Llama, path: Path) -> Path:
    """Several streams of which one is computed and the others are predicted; activations that are cut off at a
    quantile; inputs of each layer."""
    make = Tiny(llama, path, "gemma3n", "Q8_0")
    make.keys({"attention.head_count_kv": 1, RMS: 1e-6, "attention.sliding_window": 4, "rope.freq_base_swa": 1e4})
    make.ends(tied=True)
    others = (STREAMS - 1, WIDTH, WIDTH)
    make.matrices(
        "", "F16", altup_proj=others, altup_unembd_proj=others, per_layer_model_proj=(OWN * make.layers, WIDTH),
        per_layer_token_embd=(make.n_vocab, OWN * make.layers),
    )  # fmt: skip
    make.norms("", "per_layer_proj_norm", width=OWN)
    for i in range(make.layers):
        blk = f"blk.{i}."
        make.norms(
            blk, "attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm", "post_norm", "altup_router_norm",
            "laurel_post_norm", "altup_correct_scale",
        )  # fmt: skip
        make.norms(blk, "attn_q_norm", "attn_k_norm", width=HEAD)
        make.attention(blk)
        make.dense(blk)
        make.matrices(blk, inp_gate=(OWN, WIDTH), proj=(WIDTH, OWN), laurel_l=(LAUREL, WIDTH), laurel_r=(WIDTH, LAUREL))
        make.matrices(
            blk, "F32", altup_correct_coef=(STREAMS, STREAMS), altup_predict_coef=(STREAMS**2, STREAMS),
            altup_router=(STREAMS, WIDTH),
        )  # fmt: skip
    return make.written(path)


def wavtokenizer(llama: Llama, path: Path) -> Path:
    """A decoder of sounds: convolutions over time, norms of groups of channels."""
    width, blocks = 64, 6
    make = Tiny(llama, path, "wavtokenizer-dec", heads=0, layers=blocks, width_ff=128, width=width)
    make.keys({
        EPSILON: 1e-6, "attention.group_norm_epsilon": 1e-6, "attention.group_norm_groups": 8,
        "features_length": width, "posnet.embedding_length": width, "posnet.block_count": blocks,
        "convnext.embedding_length": width, "convnext.block_count": 1,
    })  # fmt: skip
    make.ends(tied=True, bias=True)
    make.matrices("", output=(width, width))
    make.vectors("", ".bias", output=width, conv1d=(width, 1))
    make.norms("", "token_embd_norm", bias=True)
    make.halves("conv1d.weight", width, width, 7)
    for i in range(blocks):
        blk = f"posnet.{i}."
        attends = i == 2
        norms = ["norm1", "norm2"] if not attends and i < 5 else ["attn_norm"]
        convolutions = ["attn_q", "attn_k", "attn_v", "attn_output"] if attends else ["conv1", "conv2"]
        for norm in norms:
            make.floats(f"{blk}{norm}.weight", make.drawn(width, 1, shift=1))
            make.vectors(blk, ".bias", **{norm: (width, 1)})
        for name in convolutions if i < 5 else []:
            make.halves(f"{blk}{name}.weight", width, width, 1 if attends else 3)
            make.vectors(blk, ".bias", **{name: (width, 1)})
    blk = "convnext.0."
    make.halves(f"{blk}dw.weight", width, 1, 7)
    make.vectors(blk, ".bias", dw=(width, 1), pw1=128, pw2=width)
    make.norms(blk, "norm", bias=True)
    make.norms(blk, "gamma")
    make.matrices(blk, pw1=(128, width), pw2=(width, 128))
    return make.written(path)


def minimax_m3(llama: Llama, path: Path) -> Path:
    """Sparse attention: an indexer picks the blocks of keys that each group of heads sees."""
    make = Tiny(llama, path, "minimax-m3", "Q8_0", heads=4, kv_heads=2)
    make.keys({
        "attention.head_count_kv": 2, "attention.key_length": HEAD, "attention.value_length": HEAD, RMS: 1e-6,
        "rope.dimension_count": HEAD // 2, "leading_dense_block_count": 1, "expert_count": EXPERTS,
        "expert_used_count": USED, "expert_feed_forward_length": 64, "expert_shared_count": 1,
        "expert_gating_func": 2, "expert_weights_scale": 2.0, "expert_weights_norm": True,
        "attention.indexer.head_count": 2, "attention.indexer.key_length": HEAD, "attention.indexer.top_k": 2,
        "attention.indexer.block_size": 2, "attention.indexer.local_blocks": 1,
    })  # fmt: skip
    make.ends()
    for i in range(make.layers):
        blk = f"blk.{i}."
        make.norms(blk, "attn_norm", "ffn_norm")
        make.norms(blk, "attn_q_norm", "attn_k_norm", width=HEAD)
        make.attention(blk)
        if i == 0:
            make.dense(blk)
            continue
        make.experts(blk, 64, "Q8_0", "Q8_0")
        make.vectors(blk, ".bias", exp_probs_b=EXPERTS)
        make.shared_expert(blk, 64)
        make.matrices(f"{blk}indexer.", q_proj=(2 * HEAD, WIDTH), k_proj=(HEAD, WIDTH))
        make.norms(f"{blk}indexer.", "q_norm", "k_norm", width=HEAD)
    return make.written(path)


def kimi_linear(llama: Llama, path: Path) -> Path:
    """A delta net whose gates are of each channel, then latent attention without positions."""
    make = Tiny(llama, path, "kimi-linear")
    make.keys({
        RMS: 1e-5, "attention.head_count_kv": [0, 1], "attention.key_length": RANK + ROPE,
        "attention.value_length": RANK, "attention.key_length_mla": NOPE + ROPE, "attention.value_length_mla": HEAD,
        "attention.kv_lora_rank": RANK, "rope.dimension_count": ROPE, "ssm.conv_kernel": SPAN, "kda.head_dim": HEAD,
        "expert_count": EXPERTS, "expert_used_count": USED, "expert_feed_forward_length": 64,
        "expert_shared_count": 1, "leading_dense_block_count": 1, "expert_gating_func": 2,
        "expert_weights_scale": 2.0,
    })  # fmt: skip
    make.ends()
    for i in range(make.layers):
        blk = f"blk.{i}."
        make.norms(blk, "attn_norm", "ffn_norm")
        wide = HEADS * HEAD
        if i == 0:
            for part in "qkv":
                make.matrices(blk, **{f"attn_{part}": (wide, WIDTH)})
                make.floats(f"{blk}ssm_conv1d_{part}.weight", make.drawn(wide, 1, SPAN, scale=0.5))
            make.matrices(
                blk, ssm_f_a=(HEAD, WIDTH), ssm_f_b=(wide, HEAD), ssm_g_a=(HEAD, WIDTH), ssm_g_b=(wide, HEAD),
                ssm_beta=(HEADS, WIDTH), attn_output=(WIDTH, wide),
            )  # fmt: skip
            make.floats(f"{blk}ssm_a", np.array([[-0.5], [-2]]))
            make.floats(f"{blk}ssm_dt.bias", make.drawn(wide, shift=-1))
            make.norms(blk, "ssm_norm", width=HEAD)
            make.dense(blk)
            continue
        make.norms(blk, "attn_kv_a_norm", width=RANK)
        make.matrices(
            blk, attn_q=(HEADS * (NOPE + ROPE), WIDTH), attn_kv_a_mqa=(RANK + ROPE, WIDTH),
            attn_k_b=(HEADS, RANK, NOPE), attn_v_b=(HEADS, HEAD, RANK), attn_output=(WIDTH, wide),
        )  # fmt: skip
        make.experts(blk, 64, "Q8_0", "Q8_0")
        make.vectors(blk, ".bias", exp_probs_b=EXPERTS)
        make.shared_expert(blk, 64)
    return make.written(path)


def deepseek4(llama: Llama, path: Path) -> Path:
    """Hyper-connections between layers, keys compressed by 4 and by 128, of which an indexer picks; positions that are
    taken back after attention; experts scored by the root of a softplus."""
    heads, streams, groups, rank = 4, 4, 2, 64
    make = Tiny(llama, path, "deepseek4", "Q8_0", heads=heads, layers=3)
    ratios = [0, 4, 128]
    make.keys({
        RMS: 1e-6, "attention.head_count_kv": 1, "attention.key_length": HEAD, "attention.value_length": HEAD,
        "rope.dimension_count": ROPE, "attention.q_lora_rank": rank, "attention.sliding_window": 4,
        "expert_count": EXPERTS, "expert_used_count": USED, "expert_feed_forward_length": 64,
        "expert_shared_count": 1, "expert_weights_scale": 1.5, "expert_weights_norm": True, "expert_gating_func": 4,
        "swiglu_clamp_exp": 2.0, "attention.indexer.head_count": 4, "attention.indexer.key_length": 128,
        "attention.indexer.top_k": 2, "attention.output_group_count": groups, "attention.output_lora_rank": 32,
        "attention.compress_rope_freq_base": 1.6e5, "attention.compress_ratios": ratios,
        "hyper_connection.count": streams, "hyper_connection.sinkhorn_iterations": 2,
        "hyper_connection.epsilon": 1e-6, "hash_layer_count": 0,
    })  # fmt: skip
    make.ends()
    mix = (2 + streams) * streams
    make.matrices("", "F32", output_hc_fn=(streams, streams * WIDTH))
    make.vectors("", output_hc_base=streams, output_hc_scale=1)
    for i, ratio in enumerate(ratios):
        blk = f"blk.{i}."
        make.norms(blk, "attn_norm", "ffn_norm")
        make.norms(blk, "attn_q_a_norm", width=rank)
        make.norms(blk, "attn_kv_a_norm", width=HEAD)
        make.vectors(blk, attn_sinks=heads)
        make.matrices(
            blk, attn_q_a=(rank, WIDTH), attn_q_b=(heads * HEAD, rank), attn_kv=(HEAD, WIDTH),
            attn_output_a=(32 * groups, heads * HEAD // groups), attn_output_b=(WIDTH, 32 * groups),
        )  # fmt: skip
        for part in ("attn", "ffn"):
            make.matrices(blk, "F32", **{f"hc_{part}_fn": (mix, streams * WIDTH)})
            make.vectors(blk, **{f"hc_{part}_base": mix})
            make.floats(f"{blk}hc_{part}_scale.weight", make.drawn(3, shift=1))
        if ratio:
            _compressor(make, f"{blk}attn", HEAD * (1 + (ratio == 4)), HEAD, ratio)
        if ratio == 4:
            _compressor(make, f"{blk}indexer", 2 * 128, 128, ratio)
            make.matrices(f"{blk}indexer.", proj=(4, WIDTH), attn_q_b=(4 * 128, rank))
        make.experts(blk, 64, "Q8_0", "Q8_0")
        make.vectors(blk, ".bias", exp_probs_b=EXPERTS)
        make.shared_expert(blk, 64)
    return make.written(path)


def _compressor(make: Tiny, prefix: str, rows: int, width: int, ratio: int) -> None:
    make.matrices(f"{prefix}_", compressor_kv=(rows, WIDTH), compressor_gate=(rows, WIDTH))
    make.vectors(f"{prefix}_", compressor_ape=(ratio, rows))
    make.norms(f"{prefix}_", "compressor_norm", width=width)
