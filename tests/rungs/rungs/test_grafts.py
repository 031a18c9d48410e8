"""Grafts: what the kernel gave is judged, whatever ends a pass or comes up while it is judged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gguf_verify.llama import Gemm
from gguf_verify.results import Options, RungResult
from gguf_verify.rungs.budget import BudgetSpent
from gguf_verify.rungs.opening import open_run
from gguf_verify.rungs.tokens import task as module
from gguf_verify.rungs.tokens.grafts import Grafts
from gguf_verify.support.errors import KernelFault
from tests.support.tools import FIXTURES

TENSOR = "blk.0.attn_q.weight"


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch):
    """Grafts of a kernel into one tensor, and the tensors whose outputs were judged."""
    judged = list[str]()
    monkeypatch.setattr(module, "judge_whole", lambda run, result, matrix, *_: judged.append(matrix.tensor.name))
    options = Options(tensor=TENSOR, prompt="Once", n_predict=1, progress=False, threads=1)
    with open_run(Path(FIXTURES / "tiny-Q4_0.gguf"), "q8_1_naive", "cpu", options) as run:
        result = RungResult(name="tokens", question="")
        yield Grafts(run, result, run.session.prompt), judged, result
        run.close()


def test_what_ends_a_pass_does_not_hide_what_was_given(found, monkeypatch: pytest.MonkeyPatch) -> None:
    grafts, judged, _ = found
    replace = grafts.kernel(shared=False)

    def one_then_no_time(gemm: Gemm) -> np.ndarray:
        y = replace(gemm)
        assert y is not None
        assert not judged
        raise BudgetSpent("no time is left")

    with pytest.raises(BudgetSpent):
        grafts.graft("a pass", one_then_no_time)
    assert judged == [TENSOR]


def test_a_fault_while_an_output_is_explained_is_the_tensors(found, monkeypatch: pytest.MonkeyPatch) -> None:
    grafts, _, result = found

    def faulty(*_: object) -> None:
        raise KernelFault("the kernel crashed when it was called again")

    monkeypatch.setattr(module, "judge_whole", faulty)
    assert np.isfinite(grafts.graft("a pass", grafts.kernel(shared=False))).all()
    assert grafts.faulty == {TENSOR}
    assert [f.culprit for f in result.failures] == ["kernel"]
