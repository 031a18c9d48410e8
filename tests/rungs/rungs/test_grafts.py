"""Grafts: what the kernel gave is judged, whatever ends a pass or comes up while it is judged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gguf_verify.llama.gemms import Gemm
from gguf_verify.llama.model import LoadedModel, returned
from gguf_verify.results.options import Options
from gguf_verify.results.rungs import RungResult
from gguf_verify.rungs.budget import BudgetSpent
from gguf_verify.rungs.opening import open_run
from gguf_verify.rungs.tokens import grafts as module
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
        returned(grafts.graft("a pass", one_then_no_time))
    assert judged == [TENSOR]


def test_a_fault_while_an_output_is_explained_is_the_tensors(found, monkeypatch: pytest.MonkeyPatch) -> None:
    grafts, _, result = found

    def faulty(*_: object) -> None:
        raise KernelFault("the kernel crashed when it was called again")

    monkeypatch.setattr(module, "judge_whole", faulty)
    assert np.isfinite(returned(grafts.graft("a pass", grafts.kernel(shared=False)))).all()
    assert grafts.faulty == {TENSOR}
    assert [f.culprit for f in result.failures] == ["kernel"]


@pytest.fixture
def three(monkeypatch: pytest.MonkeyPatch):
    """Grafts into three tensors; the call of each output that was judged; what llama.cpp was spared in each pass."""
    judged, spared = list[tuple[str, int, int | None]](), list[frozenset[str]]()

    def judge(run, result, matrix, first_row, y, semantics, x, order, exact, call) -> None:
        judged.append((matrix.tensor.name, call.number, call.use))

    grafting = LoadedModel.grafting

    def watched(self, tokens, replace, activations=(), of=(), *rest):
        spared.append(frozenset(of))
        return grafting(self, tokens, replace, activations, of, *rest)

    monkeypatch.setattr(module, "judge_whole", judge)
    monkeypatch.setattr(LoadedModel, "grafting", watched)
    options = Options(tensor=r"blk\.0\.attn_[qkv]", prompt="Once", n_predict=1, progress=False, threads=1)
    with open_run(Path(FIXTURES / "tiny-Q4_0.gguf"), "q8_1_naive", "cpu", options) as run:
        yield Grafts(run, RungResult(name="tokens", question=""), run.session.prompt), judged, spared
        run.close()


QKV = frozenset(f"blk.0.attn_{name}.weight" for name in "qkv")


def test_llama_computes_nothing_that_is_replaced(three) -> None:
    grafts, judged, spared = three
    grafts.plain()
    logits = returned(grafts.by_kernel(shared=False))
    exact = grafts.passes.logits(shared=False)
    assert spared == [frozenset(), QKV, QKV]
    assert np.abs(logits - exact).max() < 1e-3
    assert [(number, use) for _, number, use in judged] == [(1, 0), (1, 1), (1, 2)]
    assert {tensor for tensor, *_ in judged} == QKV
    np.testing.assert_array_equal(logits, returned(grafts.graft("all are computed", grafts.kernel(shared=False))))


def test_a_pass_begins_anew_where_an_output_is_lacking(three, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was judged is not judged again; llama.cpp's own output is in place of the one that is lacking, in this pass
    and in those that follow."""
    grafts, judged, spared = three
    grafts.plain()
    tensors, kernel = list[int](), grafts.run.kernel

    def product(weights, x):
        tensors.append(len(tensors))
        if len(tensors) == 2:
            raise KernelFault("it crashed")
        return type(kernel).product(kernel, weights, x)

    monkeypatch.setattr(kernel, "product", product, raising=False)
    monkeypatch.setattr(kernel, "of", lambda *_: kernel, raising=False)
    logits = returned(grafts.by_kernel(shared=False))
    (faulty,) = grafts.faulty
    assert spared == [frozenset(), QKV, frozenset()]
    assert [(number, use) for _, number, use in judged] == [(1, 0), (1, 2)]
    assert {tensor for tensor, *_ in judged} == QKV - {faulty}
    assert len(grafts.result.failures) == 1
    exact = grafts.passes.logits(shared=False)
    assert spared[-1] == QKV - {faulty}
    assert np.abs(logits - exact).max() < 1e-3

    def of_others(gemm: Gemm) -> np.ndarray | None:
        matrix = grafts.run.matrix(grafts.result, gemm)
        return None if gemm.tensor == faulty else product(kernel.upload(matrix.fmt, matrix.rows), gemm.x)

    np.testing.assert_array_equal(logits, returned(grafts.graft("by hand", of_others)))
