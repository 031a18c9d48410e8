"""Tiny random models with layers that carry a state from token to token, alone or beside attention.

The decays are as those of trained models: states forget within some tens of tokens.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gguf_verify.llama.library import Llama
from tests.support.tiny_models import EPSILON, EXPERTS, HEAD, HEADS, RMS, USED, WIDTH, Tiny

#: Of a state-space layer: its inner width, and how many tokens its convolution spans.
INNER, SPAN = 2 * WIDTH, 4
STATE, RANK = 16, 8
#: Of the second generation, whose heads are 64 wide: the state's length, heads and groups.
STATE_2, HEADS_2, GROUPS_2 = 128, INNER // HEAD, 2
LORA = 32


def _convolution(make: Tiny, blk: str, width: int, bias: bool = True) -> None:
    make.floats(f"{blk}ssm_conv1d.weight", make.drawn(width, SPAN, scale=SPAN**-0.5))
    if bias:
        make.vectors(blk, ".bias", ssm_conv1d=width)


def _scan(make: Tiny, blk: str, norms: bool = False) -> None:
    """A layer of Mamba's first generation; `norms`: of what its input selects."""
    make.matrices(blk, ssm_in=(2 * INNER, WIDTH), ssm_x=(RANK + 2 * STATE, INNER), ssm_out=(WIDTH, INNER))
    make.matrices(blk, "F32", ssm_dt=(INNER, RANK))
    _convolution(make, blk, INNER)
    make.floats(f"{blk}ssm_dt.bias", make.drawn(INNER, shift=-2))
    make.floats(f"{blk}ssm_a", -np.broadcast_to(np.arange(1, STATE + 1) / 4, (INNER, STATE)))
    make.floats(f"{blk}ssm_d", make.drawn(INNER, shift=1))
    if norms:
        make.norms(blk, "ssm_dt_norm", width=RANK)
        make.norms(blk, "ssm_b_norm", "ssm_c_norm", width=STATE)


def _scan_2(make: Tiny, blk: str) -> None:
    """A layer of Mamba's second generation: one decay for each head."""
    convolved = INNER + 2 * GROUPS_2 * STATE_2
    make.matrices(blk, ssm_in=(INNER + convolved + HEADS_2, WIDTH), ssm_out=(WIDTH, INNER))
    _convolution(make, blk, convolved)
    make.floats(f"{blk}ssm_dt.bias", make.drawn(HEADS_2, shift=-2))
    make.floats(f"{blk}ssm_a", -np.linspace(0.5, 4, HEADS_2).reshape(-1, 1))
    make.floats(f"{blk}ssm_d", make.drawn(HEADS_2, 1, shift=1))
    make.floats(f"{blk}ssm_norm.weight", make.drawn(GROUPS_2, INNER // GROUPS_2, shift=1))


def _scan_keys(make: Tiny, second: bool) -> None:
    make.keys({
        RMS: 1e-5, "ssm.conv_kernel": SPAN, "ssm.inner_size": INNER,
        "ssm.state_size": STATE_2 if second else STATE, "ssm.time_step_rank": HEADS_2 if second else RANK,
    })  # fmt: skip
    if second:
        make.keys({"ssm.group_count": GROUPS_2})


def mamba(llama: Llama, path: Path) -> Path:
    """State-space layers alone, of the first generation."""
    make = Tiny(llama, path, "mamba", heads=0, width_ff=0)
    _scan_keys(make, second=False)
    make.ends(tied=True)
    for i in range(make.layers):
        make.norms(f"blk.{i}.", "attn_norm")
        _scan(make, f"blk.{i}.")
    return make.written(path)


def mamba2(llama: Llama, path: Path) -> Path:
    """State-space layers alone, of the second generation."""
    make = Tiny(llama, path, "mamba2", heads=0, width_ff=0)
    _scan_keys(make, second=True)
    make.ends(tied=True)
    for i in range(make.layers):
        make.norms(f"blk.{i}.", "attn_norm")
        _scan_2(make, f"blk.{i}.")
    return make.written(path)


def jamba(llama: Llama, path: Path) -> Path:
    """A state-space layer with experts, then a layer that attends without positions."""
    make = Tiny(llama, path, "jamba", "Q8_0")
    _scan_keys(make, second=False)
    make.keys({"attention.head_count_kv": [0, 1], "expert_count": EXPERTS, "expert_used_count": USED})
    make.ends(tied=True)
    for i in range(make.layers):
        blk = f"blk.{i}."
        make.norms(blk, "attn_norm", "ffn_norm")
        if i == 0:
            _scan(make, blk, norms=True)
            make.experts(blk, make.width_ff, "Q8_0", "Q8_0")
        else:
            make.attention(blk)
            make.dense(blk)
    return make.written(path)


def granite_hybrid(llama: Llama, path: Path) -> Path:
    """A state-space layer of the second generation, then one that attends; embeddings, residuals and logits scaled."""
    make = Tiny(llama, path, "granitehybrid")
    _scan_keys(make, second=True)
    make.keys({
        "attention.head_count_kv": [0, 1], "attention.scale": 0.1, "embedding_scale": 4.0, "residual_scale": 0.5,
        "logit_scale": 2.0, "expert_count": EXPERTS, "expert_used_count": USED,
        "expert_shared_feed_forward_length": 64,
    })  # fmt: skip
    make.ends(tied=True)
    for i in range(make.layers):
        blk = f"blk.{i}."
        make.norms(blk, "attn_norm", "ffn_norm")
        if i == 0:
            _scan_2(make, blk)
        else:
            make.attention(blk)
        make.experts(blk, make.width_ff, "Q8_0", "Q8_0")
        make.shared_expert(blk, 64)
    return make.written(path)


def falcon_h1(llama: Llama, path: Path) -> Path:
    """Attention and a state-space layer side by side in each layer."""
    make = Tiny(llama, path, "falcon-h1")
    _scan_keys(make, second=True)
    make.keys({"attention.head_count_kv": 1})
    make.ends()
    for i in range(make.layers):
        blk = f"blk.{i}."
        make.norms(blk, "attn_norm")
        make.floats(f"{blk}ffn_norm", make.drawn(WIDTH, shift=1))
        _scan_2(make, blk)
        make.attention(blk)
        make.dense(blk)
    return make.written(path)


def qwen3next(llama: Llama, path: Path) -> Path:
    """A gated delta net, then gated attention, each followed by experts with a shared one."""
    make = Tiny(llama, path, "qwen3next", "Q8_0")
    keys, values = HEAD, 2 * HEAD
    make.keys({
        RMS: 1e-6, "attention.head_count_kv": 1, "full_attention_interval": 2, "rope.dimension_count": HEAD // 4,
        "ssm.conv_kernel": SPAN, "ssm.inner_size": values, "ssm.state_size": HEAD, "ssm.time_step_rank": 2,
        "ssm.group_count": 1, "expert_count": EXPERTS, "expert_used_count": USED, "expert_feed_forward_length": 64,
        "expert_shared_feed_forward_length": 64,
    })  # fmt: skip
    make.ends()
    for i in range(make.layers):
        blk = f"blk.{i}."
        make.norms(blk, "attn_norm", "post_attention_norm")
        if i == 0:
            make.matrices(blk, attn_qkv=(2 * keys + values, WIDTH), attn_gate=(values, WIDTH), ssm_ba=(4, WIDTH))
            make.matrices(blk, ssm_out=(WIDTH, values))
            _convolution(make, blk, 2 * keys + values, bias=False)
            make.floats(f"{blk}ssm_dt.bias", make.drawn(2, shift=-1))
            make.floats(f"{blk}ssm_a", [-0.5, -2])
            make.norms(blk, "ssm_norm", width=HEAD)
        else:
            make.attention(blk, gated=True)
            make.norms(blk, "attn_q_norm", "attn_k_norm", width=HEAD)
        make.experts(blk, 64, "Q8_0", "Q8_0")
        make.vectors(blk, ffn_gate_inp_shexp=WIDTH)
        make.shared_expert(blk, 64)
    return make.written(path)


def _interpolations(make: Tiny, blk: str, **shapes: tuple[int, ...]) -> None:
    """Between a token and the one before it."""
    for name, shape in shapes.items():
        make.floats(f"{blk}{name}.weight", make.drawn(*shape, shift=0.5))


def rwkv6(llama: Llama, path: Path) -> Path:
    """Receptance-weighted states whose decay depends on the token; states and outputs halved after two layers."""
    make = Tiny(llama, path, "rwkv6", heads=0, layers=3)
    make.keys({
        EPSILON: 1e-5, "wkv.head_size": HEAD, "time_mix_extra_dim": LORA, "time_decay_extra_dim": LORA,
        "rescale_every_n_layers": 2, "token_shift_count": 2,
    })  # fmt: skip
    make.ends(bias=True)
    make.norms("", "token_embd_norm", bias=True)
    square = (WIDTH, WIDTH)
    for i in range(make.layers):
        blk = f"blk.{i}."
        make.norms(blk, "attn_norm", "attn_norm_2", "time_mix_ln", bias=True)
        make.matrices(
            blk, time_mix_w1=(5 * LORA, WIDTH), time_mix_decay_w1=(LORA, WIDTH), time_mix_decay_w2=(WIDTH, LORA),
            time_mix_key=square, time_mix_value=square, time_mix_receptance=square, time_mix_gate=square,
            time_mix_output=square, channel_mix_key=(make.width_ff, WIDTH), channel_mix_value=(WIDTH, make.width_ff),
            channel_mix_receptance=square,
        )  # fmt: skip
        make.matrices(blk, "F32", time_mix_w2=(5, WIDTH, LORA))
        row = (1, 1, WIDTH)
        _interpolations(
            make, blk, time_mix_lerp_x=row, time_mix_lerp_fused=(5, *row), channel_mix_lerp_k=row,
            channel_mix_lerp_r=row,
        )  # fmt: skip
        make.vectors(blk, time_mix_first=(HEADS, HEAD))
        make.floats(f"{blk}time_mix_decay.weight", make.drawn(WIDTH, scale=1, shift=-2))
    return make.written(path)


def rwkv7(llama: Llama, path: Path) -> Path:
    """States that a delta rule changes; each layer's values are mixed with the first one's."""
    make = Tiny(llama, path, "rwkv7", heads=0)
    make.keys({
        EPSILON: 1e-5, "wkv.head_size": HEAD, "token_shift_count": 2,
        **{f"attention.{name}_lora_rank": LORA for name in ("decay", "iclr", "value_residual_mix", "gate")},
    })  # fmt: skip
    make.ends(bias=True)
    make.norms("", "token_embd_norm", bias=True)
    square = (WIDTH, WIDTH)
    for i in range(make.layers):
        blk = f"blk.{i}."
        make.norms(blk, "attn_norm", "attn_norm_2", "time_mix_ln", bias=True)
        make.matrices(
            blk, time_mix_key=square, time_mix_value=square, time_mix_receptance=square, time_mix_output=square,
            channel_mix_key=(make.width_ff, WIDTH), channel_mix_value=(WIDTH, make.width_ff),
            **{f"time_mix_{name}1": (LORA, WIDTH) for name in "wavg"},
            **{f"time_mix_{name}2": (WIDTH, LORA) for name in "wavg"},
        )  # fmt: skip
        _interpolations(make, blk, time_mix_lerp_fused=(6, 1, 1, WIDTH), channel_mix_lerp_k=(1, 1, WIDTH))
        make.vectors(blk, **{f"time_mix_{name}": WIDTH for name in ("w0", "a0", "v0", "r_k")})
        make.norms(blk, "time_mix_k_k", "time_mix_k_a")
    return make.written(path)


def rwkv6qwen2(llama: Llama, path: Path) -> Path:
    """Gated linear attention of grouped heads in place of a transformer's attention."""
    make = Tiny(llama, path, "rwkv6qwen2")
    make.keys({
        RMS: 1e-6, "attention.head_count_kv": 1, "wkv.head_size": HEAD, "time_mix_extra_dim": LORA,
        "time_decay_extra_dim": LORA, "token_shift_count": 1,
    })  # fmt: skip
    make.ends()
    square, kv = (WIDTH, WIDTH), (HEAD, WIDTH)
    for i in range(make.layers):
        blk = f"blk.{i}."
        make.norms(blk, "attn_norm", "ffn_norm")
        make.matrices(
            blk, time_mix_w1=(5 * LORA, WIDTH), time_mix_decay_w1=(LORA, WIDTH), time_mix_decay_w2=(WIDTH, LORA),
            time_mix_key=kv, time_mix_value=kv, time_mix_receptance=square, time_mix_gate=square,
            time_mix_output=square,
        )  # fmt: skip
        make.vectors(blk, ".bias", time_mix_key=HEAD, time_mix_value=HEAD, time_mix_receptance=WIDTH)
        make.matrices(blk, "F32", time_mix_w2=(5, WIDTH, LORA))
        _interpolations(make, blk, time_mix_lerp_x=(1, 1, WIDTH), time_mix_lerp_fused=(5, 1, 1, WIDTH))
        make.floats(f"{blk}time_mix_decay.weight", make.drawn(WIDTH, scale=1, shift=-2))
        make.dense(blk)
    return make.written(path)
