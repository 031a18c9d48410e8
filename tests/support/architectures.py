"""A tiny random model of every family of llama.cpp's graphs, so that all operations of these graphs occur."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from gguf_verify.llama.library import Llama
from tests.support import attention_models, graphs, recurrent_models, unusual_models

#: Writes the model to a path and returns the path.
ARCHITECTURES: dict[str, Callable[[Llama, Path], Path]] = {
    "llama3": attention_models.llama3,
    "qwen3moe": attention_models.qwen3moe,
    "gemma2": attention_models.gemma2,
    "gemma3": attention_models.gemma3,
    "mamba": recurrent_models.mamba,
    "mamba2": recurrent_models.mamba2,
    "rwkv6": recurrent_models.rwkv6,
    "rwkv7": recurrent_models.rwkv7,
    "bert": partial(graphs.bert, kind="Q8_0"),
    "t5": partial(graphs.t5, kind="Q8_0"),
    "gpt-oss": attention_models.gpt_oss,
    "qwen3next": recurrent_models.qwen3next,
    "falcon-h1": recurrent_models.falcon_h1,
    "jamba": recurrent_models.jamba,
    "granite-hybrid": recurrent_models.granite_hybrid,
    "deepseek2": partial(graphs.deepseek, kind="Q8_0"),
    "phi3": attention_models.phi3,
    "mpt": attention_models.mpt,
    "bloom": attention_models.bloom,
    "gptneox": attention_models.gptneox,
    "starcoder": attention_models.starcoder,
    "rwkv6qwen2": recurrent_models.rwkv6qwen2,
    "apertus": unusual_models.apertus,
    "qwen2vl": unusual_models.qwen2vl,
    "lfm2": unusual_models.lfm2,
    "gemma3n": unusual_models.gemma3n,
    "wavtokenizer": unusual_models.wavtokenizer,
    "minimax-m3": unusual_models.minimax_m3,
    "kimi-linear": unusual_models.kimi_linear,
    "deepseek4": unusual_models.deepseek4,
}
