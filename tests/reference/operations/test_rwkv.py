"""RWKV_WKV6 and RWKV_WKV7: right on the CPU backend, and planted faults are seen."""

from __future__ import annotations

import numpy as np

from gguf_verify.llama.library import Llama
from tests.reference.operations.test_state_space import exchanged, halved, rolled
from tests.support.operations import Fault, check_faults, rows_shifted, source, stale


def test_wkv6_faults(llama: Llama) -> None:
    check_faults(
        llama, "RWKV_WKV6", exchanged(0, 1), exchanged(0, 2), rolled(4, 1, "decays one token off"),
        rolled(2, 2, "another head"), rolled(5, 2, "another sequence's state"), halved(5), halved(2),
        Fault("u left out", lambda node: source(node, 3, np.ones_like)),
        Fault("no decay", lambda node: source(node, 4, np.ones_like)),
        Fault("the last row of the new state left out", in_output=stale), Fault("rows one off", in_output=rows_shifted),
    )  # fmt: skip


def test_wkv7_faults(llama: Llama) -> None:
    check_faults(
        llama, "RWKV_WKV7", exchanged(2, 3), exchanged(4, 5), rolled(1, 1, "decays one token off"),
        rolled(0, 2, "another head"), rolled(6, 2, "another sequence's state"), halved(6), halved(0), halved(4),
        Fault("nothing of the state read", lambda node: source(node, 4, np.zeros_like)),
        Fault("b's sign", lambda node: source(node, 5, np.negative)),
        Fault("the last row of the new state left out", in_output=stale), Fault("rows one off", in_output=rows_shifted),
    )  # fmt: skip
