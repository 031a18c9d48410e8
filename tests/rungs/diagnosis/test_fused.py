"""What is wrong with an epilogue is named, and no fault of the catalogue is named in its place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gguf_verify.diagnosis.diagnose import diagnose
from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.semantics.declared import declared
from gguf_verify.semantics.definition import Semantics
from gguf_verify.semantics.epilogue import Epilogue
from gguf_verify.semantics.exact import product
from gguf_verify.semantics.gates import judge
from tests.support.fused import multiplied, weights
from tests.unit.semantics.test_epilogue import K, M, N, activations, gelu, silu

FMT = FORMATS["Q4_0"]


def operands(*names: str) -> tuple[Semantics, Any, Any, dict[str, Any]]:
    semantics = declared("f32", epilogue=names)
    assert isinstance(semantics.epilogue, Epilogue)
    w, x = weights(FMT, N, K), activations()
    return semantics, w, x, semantics.epilogue.operands(FMT, w, x.view(np.uint8))


@pytest.mark.parametrize(
    ("names", "wrong", "said"),
    [
        (("bias",), lambda w, x, o: multiplied(FMT, w, x), "bias is omitted"),
        (("residual",), lambda w, x, o: multiplied(FMT, w, x) + 2 * o["residual"], "residual is done twice"),
        (
            ("scale", "bias"),
            lambda w, x, o: (multiplied(FMT, w, x) + o["bias"]) * o["scale"][0],
            "bias comes before scale",
        ),
        (("scale", "bias"), lambda w, x, o: multiplied(FMT, w, x), "no fused operation is applied"),
        (("accumulate",), lambda w, x, o: multiplied(FMT, w, x), "accumulate is omitted"),
        (
            ("silu_gate",),
            lambda w, x, o: silu(multiplied(FMT, o["up"], x)) * multiplied(FMT, w, x),
            "gate and up are exchanged",
        ),
        (
            ("silu_gate",),
            lambda w, x, o: gelu(multiplied(FMT, w, x)) * multiplied(FMT, o["up"], x),
            "the gate is GELU",
        ),
        (("bias",), lambda w, x, o: multiplied(FMT, w, x) + np.roll(o["bias"], 1), None),
    ],
)
def test_faults_of_epilogues(names: tuple[str, ...], wrong: Any, said: str | None) -> None:
    semantics, w, x, given = operands(*names)
    found = diagnose(wrong(w, x, given).astype(np.float32), FMT, semantics, w, x)
    assert found.wrong > M
    assert [fault.id for fault in found.faults] == (["epilogue"] if said else [])
    assert said is None or said in found.faults[0].words


def test_a_right_kernel_has_no_fault() -> None:
    semantics, w, x, given = operands("bias")
    y = multiplied(FMT, w, x) + given["bias"]
    assert judge(y, product(semantics, FMT, w, x.view(np.uint8))).passed
    assert not diagnose(y, FMT, semantics, w, x).wrong
