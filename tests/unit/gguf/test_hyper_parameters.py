"""Values of keys with which no model can be computed."""

from __future__ import annotations

from math import inf, nan
from pathlib import Path

import gguf
import numpy as np
import pytest

from gguf_verify.gguf import Finding, check_consistency, open_model

#: Hyper-parameters of a sound model, with the zeros that stand for none.
SOUND: dict[str, object] = {
    "context_length": 1, "embedding_length": 64, "block_count": 1, "attention.head_count": 8,
    "attention.head_count_kv": 2, "attention.layer_norm_rms_epsilon": 1e-5, "attention.group_norm_epsilon": 64e-5,
    "rope.freq_base": 1e4, "rope.freq_base_swa": 0.5, "rope.scaling.factor": 0.0, "rope.scaling.attn_factor": 1.2,
    "rope.scaling.yarn_ext_factor": -1.0, "rope.dimension_sections": [16, 24, 24, 0], "xielu.eps": [-1e-6],
    "attention.scale": 0.0, "logit_scale": 0.0625, "residual_scale": 0.22, "embedding_scale": 12.0,
    "attn_logit_softcapping": 50.0, "final_logit_softcapping": 0.0, "expert_weights_scale": 0.0,
    "attention.clamp_kqv": 0.0, "attention.sliding_window": 0, "leading_dense_block_count": 0, "expert_count": 4,
    "expert_used_count": 4, "expert_shared_count": 0, "swiglu_clamp_exp": [0.0, 7.0], "feed_forward_length": [0, 256],
    "rescale_every_n_layers": 0, "activation_sparsity_scale": [-1.6, 1.6],
}  # fmt: skip


def found(path: Path, keys: dict[str, object], tensor: str | None = None, kind: str = "model") -> list[Finding]:
    """The findings of a file with these keys of its architecture, or whole keys that begin with a colon."""
    writer = gguf.GGUFWriter(path, "test")
    writer.add_type(kind)
    for name, value in keys.items():
        key = name[1:] if name.startswith(":") else f"test.{name}"
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        else:
            assert isinstance(value, float)
            writer.add_float32(key, value)
    if tensor is not None:
        writer.add_tensor(tensor, np.ones((2, 64), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with open_model(path) as model:
        return [f for f in check_consistency(model) if f.id >= "GGUF-091"]


def test_a_sound_model(tmp_path: Path) -> None:
    assert found(tmp_path / "m.gguf", SOUND) == []
    assert found(tmp_path / "own.gguf", {**SOUND, ":my.own.epsilon": 0.5}) == [], "a key that llama.cpp does not read"


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
        ("rope.freq_base", [0.0, -1e4]),
        ("rope.freq_base_swa", [0.0]),
        ("rope.scaling.factor", [-4.0]),
        ("rope.scaling.attn_factor", [0.0, -1.0]),
        ("attention.scale", [-0.1]),
        ("final_logit_softcapping", [-30.0]),
        ("context_length", [0]),
        ("embedding_length", [0]),
        ("block_count", [0]),
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
        ({"attention.head_count": 8, "attention.head_count_kv": 3}, "attention.head_count"),
        ({"attention.head_count": [8, 8], "attention.head_count_kv": [0, 3]}, "attention.head_count"),
        ({"attention.head_count": 8, "attention.head_count_kv": [8, 16]}, "attention.head_count"),
        ({"expert_count": 8, "expert_used_count": 9}, "expert_used_count"),
        ({"expert_count": 8, "expert_used_count": [2, 9]}, "expert_used_count"),
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


def test_types_of_tokens(tmp_path: Path) -> None:
    key = ":tokenizer.ggml.token_type"
    assert found(tmp_path / "m.gguf", {key: list(range(7))}) == []
    (one,) = found(tmp_path / "n.gguf", {key: [1, 7, -1]})
    assert (one.id, one.severity) == ("GGUF-093-token-type", "warning")
    assert one.found == "7 at element 1 (and 1 more) in tokenizer.ggml.token_type"
