"""The report does not depend on the process that judges a task, nor on the number of tasks that are dispatched before
the first is merged."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

import gguf_verify.verification.pipeline
from gguf_verify.kernels.shipped import ShippedKernel
from gguf_verify.llama.model import LoadedModel
from gguf_verify.llama.process import LlamaRefused
from gguf_verify.results.options import Options
from gguf_verify.results.report import Report
from gguf_verify.verification import verify
from tests.support.ahead import Ahead, told
from tests.support.tools import FIXTURES, altered_kernel

NAIVE = "gemm/q8_1/01_naive.cu"
OPTIONS = Options(
    probes="brief", prompt="The import statement", n_predict=2, tensor=r"blk\.0\.attn", progress=False, threads=1
)
Wrong = Callable[[str], ShippedKernel]


@pytest.fixture
def wrong(tmp_path: Path) -> Wrong:
    return lambda fault: altered_kernel(tmp_path, "q8_1_naive", NAIVE, "y[i] = acc", f"y[i] = {fault}")


def ahead(kernel: ShippedKernel, n: int, monkeypatch: pytest.MonkeyPatch) -> tuple[Report, Ahead]:
    judges = Ahead(n)
    with monkeypatch.context() as patch:
        patch.setattr(gguf_verify.verification.pipeline, "judges", lambda *_: nullcontext(judges))
        report = verify(FIXTURES / "tiny-Q4_0.gguf", kernel, rungs=["bytes", "blocks", "layers"], options=OPTIONS)
    return report, judges


@pytest.mark.parametrize(
    "fault",
    [
        # wrong in the first product alone: another one must make the probes of the type, and it was given out before
        "N == 256 && K == 256 && i % 7 == 3 ? 1.01f * acc : acc",
        # no outputs to judge, at other numbers of tokens than the graph's
        "acc; if (M == 3) y[M * N] = acc",
    ],
)
def test_the_report_is_the_same(wrong: Wrong, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    kernel = wrong(fault)
    here = told(verify(FIXTURES / "tiny-Q4_0.gguf", kernel, rungs=["bytes", "blocks", "layers"], options=OPTIONS))
    report, judges = ahead(kernel, 3, monkeypatch)
    assert told(report) == here
    assert judges.again_judged


def test_a_plan_that_breaks_off_keeps_earlier_findings(wrong: Wrong, monkeypatch: pytest.MonkeyPatch) -> None:
    """llama.cpp refuses to go on after some products: those before are judged and reported all the same."""
    capture = LoadedModel.capture

    def broken(self: LoadedModel, *args: object, **more: object) -> object:
        for i, gemm in enumerate(capture(self, *args, **more)):  # type: ignore[arg-type]
            if i == 6:
                raise LlamaRefused("no more")
            yield gemm

    monkeypatch.setattr(LoadedModel, "capture", broken)
    kernel = wrong("1.01f * acc")
    here = verify(FIXTURES / "tiny-Q4_0.gguf", kernel, rungs=["blocks", "layers"], options=OPTIONS)
    assert all(rung.n_failures and "no more" in rung.unverified[0].why for rung in here.rungs)
    monkeypatch.setattr(gguf_verify.verification.pipeline, "judges", lambda *_: nullcontext(Ahead(3)))
    there = verify(FIXTURES / "tiny-Q4_0.gguf", kernel, rungs=["blocks", "layers"], options=OPTIONS)
    assert told(there) == told(here)
