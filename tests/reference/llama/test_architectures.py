"""A tiny model of every family of graphs: llama.cpp loads it and evaluates a prompt, and together they hold the
operations that models have."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from gguf_verify.llama import Evaluation, Llama
from tests.support.architectures import ARCHITECTURES
from tests.support.graph_operations import PROMPT, graph_operations

#: What products with weights take and give is smaller: values keep their ordinary size.
LARGEST = 100
MOST_BYTES = 3 << 20

#: What is in no other family's graph, or in few: the operations for which a family was chosen.
HELD = {
    "llama3": {"ADD", "MUL", "RMS_NORM", "ROPE", "FLASH_ATTN_EXT", "SET_ROWS", "GET_ROWS", "MUL_MAT", "SWIGLU"},
    "qwen3moe": {"MUL_MAT_ID", "SOFT_MAX", "ARGSORT", "SUM_ROWS", "CLAMP", "DIV"},
    "gemma2": {"GEGLU", "TANH", "SCALE"},
    "gemma3": {"GEGLU", "TANH", "SCALE"},
    "mamba": {"SSM_CONV", "SSM_SCAN", "SILU", "CONCAT", "CPY", "CONT"},
    "mamba2": {"SSM_CONV", "SSM_SCAN", "SILU"},
    "rwkv6": {"RWKV_WKV6", "EXP", "NEG", "SQR", "SUB", "RELU", "TANH", "NORM"},
    "rwkv7": {"RWKV_WKV7", "L2_NORM", "SIGMOID", "REPEAT", "NEG"},
    "bert": {"GELU", "NORM", "CPY"},
    "t5": {"RELU", "SOFT_MAX", "CONT"},
    "gpt-oss": {"ADD_ID", "SWIGLU_OAI", "MUL_MAT_ID"},
    "qwen3next": {"GATED_DELTA_NET", "SOFTPLUS", "SIGMOID", "SSM_CONV"},
    "falcon-h1": {"SSM_SCAN", "FLASH_ATTN_EXT"},
    "jamba": {"SSM_SCAN", "FLASH_ATTN_EXT", "MUL_MAT_ID"},
    "granite-hybrid": {"SSM_SCAN", "FLASH_ATTN_EXT", "MUL_MAT_ID", "SCALE"},
    "deepseek2": {"CONCAT", "MUL_MAT_ID"},
    "phi3": {"ROPE", "SWIGLU"},
    "mpt": {"CLAMP", "GELU"},
    "bloom": {"NORM", "GELU"},
    "gptneox": {"NORM", "GELU", "ROPE"},
    "starcoder": {"NORM", "GELU"},
    "rwkv6qwen2": {"GATED_LINEAR_ATTN", "EXP", "NEG", "REPEAT"},
    "apertus": {"XIELU"},
    "qwen2vl": {"ROPE"},
    "lfm2": {"SSM_CONV", "CONCAT"},
    "gemma3n": {"MEAN", "SQR", "SQRT", "SUM_ROWS", "REPEAT", "GELU", "DIV"},
    "wavtokenizer": {"GROUP_NORM", "IM2COL", "SIGMOID", "SOFT_MAX"},
    "minimax-m3": {"POOL_2D", "TOP_K", "SWIGLU_OAI"},
    "kimi-linear": {"GATED_DELTA_NET", "SOFTPLUS"},
    "deepseek4": {
        "DSV4_HC_COMB", "DSV4_HC_PRE", "DSV4_HC_POST", "LIGHTNING_INDEXER", "ROPE_BACK", "SWIGLU_CLAMP", "FILL",
    },
}  # fmt: skip
#: What all graphs together hold.
OPERATIONS = {
    "ADD", "ADD_ID", "ARGSORT", "CLAMP", "CONCAT", "CONT", "CPY", "DIV", "DSV4_HC_COMB", "DSV4_HC_POST", "DSV4_HC_PRE",
    "EXP", "FILL", "FLASH_ATTN_EXT", "GATED_DELTA_NET", "GATED_LINEAR_ATTN", "GEGLU", "GELU", "GET_ROWS", "GROUP_NORM",
    "IM2COL", "L2_NORM", "LIGHTNING_INDEXER", "MEAN", "MUL", "MUL_MAT", "MUL_MAT_ID", "NEG", "NORM", "PERMUTE",
    "POOL_2D", "RELU", "REPEAT", "RESHAPE", "RMS_NORM", "ROPE", "ROPE_BACK", "RWKV_WKV6", "RWKV_WKV7", "SCALE",
    "SET_ROWS", "SIGMOID", "SILU", "SOFTPLUS", "SOFT_MAX", "SQR", "SQRT", "SSM_CONV", "SSM_SCAN", "SUB", "SUM_ROWS",
    "SWIGLU", "SWIGLU_CLAMP", "SWIGLU_OAI", "TANH", "TOP_K", "TRANSPOSE", "VIEW", "XIELU",
}  # fmt: skip


@pytest.fixture(scope="module")
def models(llama: Llama, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("architectures")
    return {name: write(llama, folder / f"{name}.gguf") for name, write in ARCHITECTURES.items()}


@pytest.fixture(scope="module")
def operations(models: dict[str, Path]) -> dict[str, Counter[str]]:
    return dict(zip(models, graph_operations(models.values()), strict=True))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_evaluates_a_prompt(models: dict[str, Path], name: str) -> None:
    assert models[name].stat().st_size < MOST_BYTES
    with Llama() as process:
        model = process.model
        opened = model.open(models[name], threads=1)
        model.make_context(len(PROMPT))
        if opened["encoder"] and opened["decoder"]:
            model.read_source(PROMPT)
        plain = model.evaluate(PROMPT).logits
        assert len(plain) == len(PROMPT)
        assert np.isfinite(plain).all()
        assert 0.1 < plain.std() < 10
        assert plain.std(axis=0).max() > 0.1, "all tokens have the same logits"
        for told in model.capture(PROMPT):
            if isinstance(told, Evaluation):
                assert told.unsupported == {}
                assert (told.logits == plain).all()
                continue
            for values in (told.x, told.y):
                assert np.isfinite(values).all()
                assert np.abs(values).max() < LARGEST


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_holds_the_operations_of_its_family(operations: dict[str, Counter[str]], name: str) -> None:
    assert HELD[name] - set(operations[name]) == set()


def test_operations_of_all_together(operations: dict[str, Counter[str]]) -> None:
    """A fixed list: if llama.cpp builds another graph, this says so."""
    assert set().union(*operations.values()) == OPERATIONS
