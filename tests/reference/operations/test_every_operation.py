"""Every registered operation: what it draws is right on llama.cpp's CPU backend, and what is off further is wrong.

Operations whose variants or types have bounds of their own are in test_elementwise.py, test_glu.py and test_unary.py.
"""

from __future__ import annotations

import numpy as np
import pytest

from gguf_verify.llama.library import Llama
from gguf_verify_graph.operations import OPERATIONS
from tests.reference.operations.test_elementwise import OPS as ELEMENTWISE
from tests.support.operations import check_right, check_undefined, computed, source

#: Operations that are judged by bits or by a predicate, so that a utilisation says nothing.
BY_BITS = {
    "ARGMAX", "ARGSORT", "CONCAT", "CONT", "COUNT_EQUAL", "CPY", "DIAG", "DIAG_MASK_INF", "DIAG_MASK_ZERO", "DUP",
    "GET_REL_POS", "GET_ROWS", "IM2COL", "IM2COL_3D", "PAD", "PAD_REFLECT_1D", "REPEAT", "ROLL", "SET", "SET_ROWS",
    "TOP_K", "TRI", "WIN_PART", "WIN_UNPART",
}  # fmt: skip


@pytest.mark.parametrize("op", sorted(OPERATIONS.keys() - {*ELEMENTWISE, "GLU", "UNARY"}))
def test_right(llama: Llama, op: str) -> None:
    check_right(llama, op, tight=op not in BY_BITS)


#: An operation → the node that is tried, and how many of its sources have a definite shape.
SHAPES = {
    "ADD_REL_POS": (-1, 3), "CONV_2D": (-1, 2), "CONV_2D_DW": (-1, 2), "CONV_3D": (-1, 2), "CONV_TRANSPOSE_1D": (-1, 2),
    "CONV_TRANSPOSE_2D": (-1, 2), "GATED_DELTA_NET": (1, 6), "GATED_LINEAR_ATTN": (1, 5), "GET_REL_POS": (-1, 1),
    "IM2COL": (-1, 2), "IM2COL_3D": (-1, 2), "RWKV_WKV6": (1, 6), "RWKV_WKV7": (1, 7), "SOLVE_TRI": (1, 2),
    "SSM_CONV": (2, 2), "SSM_SCAN": (2, 7), "WIN_PART": (-1, 1), "WIN_UNPART": (-1, 1),
}  # fmt: skip


@pytest.mark.parametrize("op", SHAPES)
def test_shapes_that_do_not_fit(llama: Llama, op: str) -> None:
    number, sources = SHAPES[op]
    node = computed(llama, op)[number]
    check_undefined(*(source(node, i, lambda x: np.concatenate([x, x], axis=-1)) for i in range(sources)))
