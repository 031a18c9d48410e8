"""Windows and relative positions: right on the CPU backend, and planted faults are seen."""

from __future__ import annotations

import numpy as np
import pytest

from gguf_verify.llama.library import Llama
from gguf_verify_graph.operations import Node
from tests.reference.operations.test_state_space import exchanged, halved, rolled
from tests.support.operations import Fault, check_faults, rows_shifted, source, stale

MOVEMENTS = ("WIN_PART", "WIN_UNPART", "GET_REL_POS")


def _turned(node: Node, data: np.ndarray) -> np.ndarray | None:
    """Rows and columns exchanged."""
    return data.swapaxes(1, 2) if data.shape[1] == data.shape[2] else None


@pytest.mark.parametrize("op", MOVEMENTS)
def test_faults_of_movements(llama: Llama, op: str) -> None:
    check_faults(
        llama, op, rolled(0, -1, "channels one off"), rolled(0, -2, "columns one off"),
        Fault("rows and columns exchanged", in_output=_turned), Fault("a row left out", in_output=stale),
        Fault("rows one off", in_output=rows_shifted),
        Fault("one bit", in_output=lambda node, data: np.nextafter(data, np.ones_like(data))),
    )  # fmt: skip


def test_faults_of_scores(llama: Llama) -> None:
    check_faults(
        llama, "ADD_REL_POS", exchanged(1, 2), halved(1), halved(2), rolled(1, -1, "one position off"),
        rolled(2, -2, "one query off"), rolled(1, 0, "another head"),
        Fault("one of the two left out", lambda node: source(node, 1, np.zeros_like)),
        Fault("a row left out", in_output=stale), Fault("rows one off", in_output=rows_shifted),
    )  # fmt: skip
