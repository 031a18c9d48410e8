"""A tiny model of every family of graphs: llama.cpp loads it and evaluates a prompt, and together they hold the
operations that models have."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gguf_verify.llama.evaluations import Evaluation
from gguf_verify.llama.library import Llama
from tests.support.architectures import ARCHITECTURES
from tests.support.graph_operations import PROMPT, graph_operations

#: Weights are small enough that inputs and outputs of products keep their ordinary size.
LARGEST = 100
MOST_BYTES = 3 << 20

#: The operations of all graphs together.
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


def test_operations_of_all_together(models: dict[str, Path]) -> None:
    """A fixed list: if llama.cpp builds another graph, this fails."""
    assert set().union(*graph_operations(models.values())) == OPERATIONS
