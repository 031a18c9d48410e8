"""Every registered operation: what it draws is right on llama.cpp's CPU backend, and what is off further is wrong.

Operations whose variants or types have bounds of their own are in test_elementwise.py, test_glu.py and test_unary.py.
"""

from __future__ import annotations

import pytest

from gguf_verify.llama.library import Llama
from gguf_verify_graph.operations import OPERATIONS
from tests.reference.operations.test_elementwise import OPS as ELEMENTWISE
from tests.support.operations import check_right

#: Operations that are judged by bits or by a predicate, so that a utilisation says nothing.
BY_BITS = {
    "ARGMAX", "ARGSORT", "CONCAT", "CONT", "COUNT_EQUAL", "CPY", "DIAG", "DIAG_MASK_INF", "DIAG_MASK_ZERO", "DUP",
    "GET_REL_POS", "GET_ROWS", "IM2COL", "IM2COL_3D", "PAD", "PAD_REFLECT_1D", "REPEAT", "ROLL", "SET", "SET_ROWS",
    "TOP_K", "TRI", "WIN_PART", "WIN_UNPART",
}  # fmt: skip


@pytest.mark.parametrize("op", sorted(OPERATIONS.keys() - {*ELEMENTWISE, "GLU", "UNARY"}))
def test_right(llama: Llama, op: str) -> None:
    check_right(llama, op, tight=op not in BY_BITS)
