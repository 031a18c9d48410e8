"""Values of keys with which no model can be computed."""

from __future__ import annotations

from math import inf, nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gguf_verify.gguf.records import Finding
from tests.unit.gguf.gguf_py import findings_of

#: Hyper-parameters of a sound model, with the zeros that stand for none.
SOUND: dict[str, object] = {
    "context_length": 1, "embedding_length": 64, "block_count": 2, "attention.head_count": 8,
    "attention.head_count_kv": 2, "attention.layer_norm_rms_epsilon": 1e-5, "attention.group_norm_epsilon": 64e-5,
    "rope.freq_base": 1e4, "rope.freq_base_swa": 0.5, "rope.scaling.factor": 0.0, "rope.scaling.attn_factor": 1.2,
    "rope.scaling.yarn_ext_factor": -1.0, "rope.dimension_sections": [16, 24, 24, 0], "xielu.eps": [-1e-6],
    "attention.scale": 0.0, "logit_scale": 0.0625, "residual_scale": 0.22, "embedding_scale": 12.0,
    "attn_logit_softcapping": 50.0, "final_logit_softcapping": 0.0, "expert_weights_scale": 0.0,
    "attention.clamp_kqv": 0.0, "attention.sliding_window": 0, "leading_dense_block_count": 0, "expert_count": 4,
    "expert_used_count": 4, "expert_shared_count": 0, "swiglu_clamp_exp": [0.0, 7.0], "feed_forward_length": [0, 256],
    "rescale_every_n_layers": 0, "activation_sparsity_scale": [-1.6, 1.6], "pooling_type": 4, "expert_gating_func": 0,
}  # fmt: skip
#: Values of other models that llama.cpp's converters write, or that its loader takes no notice of.
UNUSUAL: dict[str, dict[str, object]] = {
    "mla": {
        "context_length": 163840, "embedding_length": 2048, "block_count": 27, "leading_dense_block_count": 1,
        "attention.head_count": 16, "attention.head_count_kv": 1, "attention.key_length": 576,
        "attention.value_length": 512, "attention.key_length_mla": 192, "attention.value_length_mla": 128,
        "attention.q_lora_rank": 0, "attention.kv_lora_rank": 512, "rope.dimension_count": 64, "expert_count": 64,
        "expert_used_count": 6, "expert_shared_count": 2, "expert_group_count": 8, "expert_group_used_count": 4,
        "expert_weights_scale": 2.5, "expert_gating_func": 4, "rope.scaling.type": "yarn", "rope.scaling.factor": 40.0,
        "rope.scaling.original_context_length": 4096, "rope.scaling.yarn_log_multiplier": 0.0707,
        "rope.scaling.yarn_beta_fast": 32.0, "rope.scaling.yarn_beta_slow": 1.0, "rope.scaling.yarn_attn_factor": -1.0,
    },
    "recurrent": {
        "context_length": 1 << 20, "embedding_length": 2560, "block_count": 64, "attention.head_count": 0,
        "feed_forward_length": 0, "vocab_size": 50280, "rope.dimension_count": 0, "attention.key_length": 0,
        "attention.value_length": 0, "ssm.conv_kernel": 4, "ssm.inner_size": 5120, "ssm.group_count": 0,
    },
    "hybrid": {
        "embedding_length": 128, "block_count": 3, "attention.head_count": [0, 8, 0],
        "attention.head_count_kv": [0, 2, 0], "rope.dimension_count": 128, "feed_forward_length": [0, 0, 512],
        "attention.recurrent_layers": [1, 0, 1], "expert_used_count": [0, 2, 2], "expert_count": 8,
    },
    "wkv": {"embedding_length": 2048, "wkv.head_size": 64, "attention.head_count": 0, "token_shift_count": 2},
    "dense": {"expert_count": 0, "expert_used_count": 0, "expert_group_count": 0, "expert_group_used_count": 0},
    "wide window": {
        "context_length": 8192, "attention.sliding_window": 262144, "rope.freq_base": 1e8, "rope.scaling.factor": 64.0,
        "embedding_length": 640, "attention.head_count": 4, "attention.key_length": 256, "rope.dimension_count": 256,
        "attention.key_length_swa": 64, "rope.dimension_count_swa": 64, "rope.freq_base_swa": 1e7,
    },
    "narrow heads": {
        "embedding_length": 5120, "attention.head_count": 32, "attention.key_length": 128, "rope.dimension_count": 0,
        "attention.max_alibi_bias": 8.0, "final_logit_softcapping": 1e30, "attention.clamp_kqv": 1e30,
    },
    "unscaled": {
        "rope.scaling.type": "none", "rope.scaling.factor": -1.0, "rope.scaling.yarn_beta_fast": 0.0,
        "rope.scaling.original_context_length": 0, "pooling_type": (1 << 32) - 1,
    },
    "parts": {
        "block_count": 2, "attention.head_count": 6, "vision.attention.head_count": 4, "expert_count": 4,
        "vision.attention.head_count_kv": 4, "vision.expert_used_count": 8, "vision.feed_forward_length": [1, 2, 3],
    },
    "short": {"context_length": 16, "rope.scaling.type": "linear", "rope.scaling.factor": 1e6},
    "all dense": {"block_count": 2, "leading_dense_block_count": 3},
    "unlimited": {"context_length": (1 << 32) - 1, ":general.quantization_version": 2},
}  # fmt: skip


def found(path: Path, keys: dict[str, object], *tensors: str, **how: Any) -> list[Finding]:
    """The findings of a file with these keys of its architecture, or whole keys that begin with a colon."""
    whole = {name[1:] if name.startswith(":") else f"test.{name}": value for name, value in keys.items()}
    of_file = findings_of(path, whole, dict.fromkeys(tensors, np.ones((2, 64), np.float32)), **how)
    return [f for f in of_file if f.id >= "GGUF-091"]


def test_a_sound_model(tmp_path: Path) -> None:
    assert found(tmp_path / "m.gguf", SOUND) == []
    assert found(tmp_path / "own.gguf", {**SOUND, ":my.own.epsilon": 0.5}) == [], "a key that llama.cpp does not read"


@pytest.mark.parametrize("keys", UNUSUAL.values(), ids=UNUSUAL)
def test_an_unusual_model(keys: dict[str, object], tmp_path: Path) -> None:
    assert found(tmp_path / "m.gguf", keys) == []


@pytest.mark.parametrize("key", ["a_new_scale", "attention.layer_norm_epsilon", ":tokenizer.ggml.scores", ":general.x"])
@pytest.mark.parametrize("value", [nan, inf, -inf])
@pytest.mark.parametrize("several", [False, True])
def test_every_number_is_finite(key: str, value: float, several: bool, tmp_path: Path) -> None:
    (one,) = found(tmp_path / "m.gguf", {key: [0.5, value, value] if several else value})
    assert (one.id, one.severity) == ("GGUF-091-key-not-finite", "error")
    where = " at element 1 (and 1 more)" if several else ""
    assert one.found.startswith(f"{value:g}{where} in ")


def test_the_numbers_of_an_adapter_are_finite(tmp_path: Path) -> None:
    (one,) = found(tmp_path / "m.gguf", {":adapter.lora.alpha": nan}, kind="adapter")
    assert one.owner == "adapter.lora.alpha"


@pytest.mark.parametrize(
    ("key", "wrong"),
    [
        ("attention.layer_norm_rms_epsilon", [0.0, -1e-5, 0.2, 1000.0]),
        ("attention.layer_norm_epsilon", [0.0, 1.0]),
        ("hyper_connection.epsilon", [-1e-6]),
        ("rope.freq_base", [0.0, -1e4, 1e-30, 1e-40]),
        ("rope.freq_base_swa", [0.0]),
        ("attention.compress_rope_freq_base", [0.0]),
        ("rope.scaling.factor", [-4.0, 1e30, 1e-30]),
        ("rope.scale_linear", [1e30]),
        ("rope.scaling.attn_factor", [0.0, -1.0, 1e30]),
        ("rope.scaling.yarn_ext_factor", [1e30]),
        ("rope.scaling.yarn_attn_factor", [1e30]),
        ("rope.scaling.yarn_log_multiplier", [-0.1]),
        ("rope.scaling.yarn_beta_fast", [0.0, -32.0]),
        ("rope.scaling.original_context_length", [-1]),
        ("rope.dimension_sections", [[16, -24, 24, 0]]),
        ("attention.scale", [-0.1, 1e30, 1e-30, 1e-40]),
        ("attention.clamp_kqv", [-8.0, 1e-30]),
        ("attention.sliding_window", [1 << 31]),
        ("final_logit_softcapping", [-30.0, 1e-30]),
        ("a_new_scale", [1e-40, -1e-40, [1.0, 1e-40]]),
        ("context_length", [0]),
        ("embedding_length", [0]),
        ("block_count", [0, -3]),
        ("a_new_count", [-1, [1, -1]]),
        ("ssm.inner_size", [-1]),
        ("wkv.head_size", [0]),
        (":clip.vision.attention.layer_norm_epsilon", [5.0]),
        (":clip.vision.image_std", [[0.5, 0.0, 0.5]]),
    ],
)
def test_a_value_without_a_meaning(key: str, wrong: list[object], tmp_path: Path) -> None:
    for i, value in enumerate(wrong):
        (one,) = found(tmp_path / f"{i}.gguf", {key: value})
        assert (one.id, one.severity) == ("GGUF-092-key-range", "error")
        assert one.owner == (key[1:] if key.startswith(":") else f"test.{key}")


@pytest.mark.parametrize(
    ("keys", "key"),
    [
        ({"attention.head_count": 8, "attention.head_count_kv": 3}, "attention.head_count_kv"),
        ({"attention.head_count": [8, 8], "attention.head_count_kv": [0, 3]}, "attention.head_count_kv"),
        ({"attention.head_count": 8, "attention.head_count_kv": [8, 16]}, "attention.head_count_kv"),
        ({"expert_count": 8, "expert_used_count": 9}, "expert_used_count"),
        ({"expert_count": 8, "expert_used_count": [2, 9]}, "expert_used_count"),
        ({"expert_count": 8, "expert_used_count": 0}, "expert_used_count"),
        ({"expert_count": 8, "expert_group_count": 3}, "expert_group_count"),
        ({"expert_count": 0, "expert_group_count": 4}, "expert_group_count"),
        ({"expert_group_count": 4, "expert_group_used_count": 5}, "expert_group_used_count"),
        ({"block_count": 4, "nextn_predict_layers": 5}, "nextn_predict_layers"),
        ({"block_count": 3, "feed_forward_length": [256, 256]}, "feed_forward_length"),
        ({"block_count": 3, "swiglu_clamp_exp": [7.0]}, "swiglu_clamp_exp"),
        ({"attention.head_count": 8, "attention.key_length": 0}, "attention.key_length"),
        ({"attention.head_count": 8, "attention.key_length": 64, "rope.dimension_count": 31}, "rope.dimension_count"),
        ({"attention.head_count": 8, "attention.key_length": 64, "rope.dimension_count": 66}, "rope.dimension_count"),
        ({"attention.head_count": 8, "embedding_length": 64, "rope.dimension_count": 10}, "rope.dimension_count"),
        (
            {"attention.head_count": 8, "attention.key_length": 64, "rope.dimension_count_swa": 66},
            "rope.dimension_count_swa",
        ),
        ({"embedding_length": 64, "wkv.head_size": 48}, "wkv.head_size"),
        ({"rope.scaling.yarn_beta_fast": 1.0, "rope.scaling.yarn_beta_slow": 32.0}, "rope.scaling.yarn_beta_slow"),
        ({"context_length": 16, "rope.scaling.factor": 1e9}, "rope.scaling.factor"),
    ],
)
def test_counts_that_have_no_meaning_beside_each_other(keys: dict[str, object], key: str, tmp_path: Path) -> None:
    (one,) = found(tmp_path / "m.gguf", keys)
    assert (one.id, one.owner) == ("GGUF-092-key-range", f"test.{key}")


def test_a_model_without_attention_has_no_heads(tmp_path: Path) -> None:
    keys: dict[str, object] = {"attention.head_count": 0, "attention.head_count_kv": 0}
    assert found(tmp_path / "m.gguf", keys, "blk.0.ssm_in.weight") == []
    (one,) = found(tmp_path / "n.gguf", keys, "blk.0.attn_q.weight")
    assert (one.id, one.owner) == ("GGUF-092-key-range", "test.attention.head_count")


@pytest.mark.parametrize("weight", ["attn_k", "attn_qkv"])
def test_attention_has_heads_of_keys(weight: str, tmp_path: Path) -> None:
    keys: dict[str, object] = {"attention.head_count": 8, "attention.head_count_kv": [0, 0]}
    (one,) = found(tmp_path / "m.gguf", keys, f"blk.0.{weight}.weight")
    assert (one.id, one.owner) == ("GGUF-092-key-range", "test.attention.head_count_kv")
    assert found(tmp_path / "n.gguf", {**keys, "attention.head_count_kv": [0, 1]}, f"blk.0.{weight}.weight") == []


@pytest.mark.parametrize(
    ("key", "known", "wrong"),
    [
        ("rope.scaling.type", ["none", "linear", "yarn", "longrope"], ["bananas"]),
        ("pooling_type", [0, 1, 4], [5, 99]),
        ("classifier.pooling_type", [1], [5]),
        ("expert_gating_func", [0, 4], [5]),
    ],
)
def test_a_value_that_llama_has_no_code_for(key: str, known: list[object], wrong: list[object], tmp_path: Path) -> None:
    for i, value in enumerate(known):
        assert found(tmp_path / f"known{i}.gguf", {key: value}) == []
    for i, value in enumerate(wrong):
        (one,) = found(tmp_path / f"wrong{i}.gguf", {key: value})
        assert (one.id, one.owner, one.severity) == ("GGUF-094-key-unknown", f"test.{key}", "warning")


def test_a_version_of_quantization_matters_to_quantized_files(tmp_path: Path) -> None:
    key = "general.quantization_version"
    assert findings_of(tmp_path / "m.gguf", {key: 99}, {"output.weight": np.ones((2, 64), np.float32)}) == []
    quantized = {"output.weight": np.ones((2, 68), np.uint8)}
    (one,) = findings_of(tmp_path / "n.gguf", {key: 99}, quantized)
    assert (one.id, one.expected, one.found) == (
        "GGUF-094-key-unknown", "2", "99 in general.quantization_version",
    )  # fmt: skip
    assert findings_of(tmp_path / "o.gguf", {key: 2}, quantized) == []


def test_types_of_tokens(tmp_path: Path) -> None:
    key = ":tokenizer.ggml.token_type"
    assert found(tmp_path / "m.gguf", {key: list(range(7))}) == []
    (one,) = found(tmp_path / "n.gguf", {key: [1, 7, -1]})
    assert (one.id, one.severity) == ("GGUF-093-token-type", "warning")
    assert one.found == "7 at element 1 (and 1 more) in tokenizer.ggml.token_type"


@pytest.mark.parametrize(
    ("types", "text"), [([5, 5], False), ([2, 3, 3, 5, 0], False), ([2, 3, 5, 1], True), ([6], True)]
)
def test_some_tokens_are_text(types: list[int], text: bool, tmp_path: Path) -> None:
    findings = found(tmp_path / "m.gguf", {":tokenizer.ggml.token_type": types})
    assert [f.id for f in findings] == ["GGUF-093-token-type"] * (not text)
