"""Families in a run: the kernel that was chosen is the one that is judged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.kernels.family import Family, FamilyOnHost
from gguf_verify.kernels.ladder import KERNELS
from gguf_verify.kernels.shipped import ShippedKernel
from gguf_verify.kernels.spec import KernelSpec, Problem
from gguf_verify.results.options import Options
from gguf_verify.results.report import Report
from gguf_verify.verification import verify
from tests.support.tools import ROOT, altered_kernel

Q4_0 = ROOT / "fixtures" / "tiny-Q4_0.gguf"


class ByTokens(Family):
    """Kernels of three layouts and orders, by the number of tokens."""

    def choose(self, problem: Problem) -> KernelSpec:
        few = {1: "q8_1_gemv", 2: "q8_1_split_k"}
        return KERNELS[few.get(problem.m, "q8_1_naive" if problem.m < 9 else "q8_1_dp4a")]


class OfACard(Family):
    """What would be taken on a card."""

    sm: int

    def __init__(self, sm: int) -> None:
        super().__init__("q8_1", "")
        object.__setattr__(self, "sm", sm)

    def choose(self, problem: Problem) -> KernelSpec:
        return super().choose(replace(problem, sm=self.sm))


def run(root: Path | None = None) -> Report:
    options = Options(
        probes="brief", prompt="The import statement", n_predict=2, progress=False,
        tensor="blk.0.attn_q|blk.1.ffn_down",
    )  # fmt: skip
    kernel = FamilyOnHost(ByTokens("q8_1", ""), CpuHost(1), root)
    return verify(Q4_0, kernel, rungs=["layers", "tokens"], options=options)


def test_a_family_verifies() -> None:
    report = run()
    assert report.exit_code == 0, [f.what for r in report.rungs for f in r.failures]
    assert report.environment.kernel.name == "q8_1"
    assert report.environment.kernel.order == "of the kernel that is chosen"
    layers = report.rungs[0]
    by = {d.kernel for d in layers.details}
    assert by == {"q8_1_dp4a"}
    assert layers.figures["GEMMs by q8_1_dp4a"] == layers.checked["GEMMs"]


@pytest.mark.parametrize("sm", [80, 90])
def test_a_cards_choices(sm: int) -> None:
    """What would be taken there, on the CPU."""
    options = Options(probes="brief", prompt="The import statement", n_predict=2, progress=False)
    report = verify(Q4_0, FamilyOnHost(OfACard(sm), CpuHost(2)), rungs=["layers", "tokens"], options=options)
    assert report.exit_code == 0, [f.what for r in report.rungs for f in r.failures]


def test_a_wrong_member_is_seen_and_named_by_its_tokens(tmp_path: Path) -> None:
    """Which only one number of tokens meets."""
    old, new = "if (n < N && token < tokens) y[", "if (n < N && token < tokens && n != 7) y["
    wrong = altered_kernel(tmp_path, "q8_1_gemv", "gemm/q8_1/08_gemv.cu", old, new)
    report = run(wrong.root)
    assert report.exit_code == 1
    first = report.rungs[0].failures[0]
    assert " at M=1" in first.what
    assert first.row == 7


def test_a_fault_of_quantizing_on_the_way_is_placed(tmp_path: Path) -> None:
    """Which neither Q8_1 bytes nor four tokens or fewer meet: the replay must take the failing call's way."""
    old = "low = four_bytes(p.q), high"
    new = "low = four_bytes(p.q) ^ (b == 3 ? 1u : 0u), high"
    wrong = altered_kernel(tmp_path, "q8_1_gemv", "gemm/q8_1/08_gemv.cu", old, new)
    options = Options(probes="brief", prompt="The import statement", n_predict=1, progress=False, tensor="blk.0.attn_q")
    report = verify(Q4_0, wrong, rungs=["layers"], options=options)
    assert report.exit_code == 1
    failures = report.rungs[0].failures
    assert not any(f" at M={m}:" in f.what for m in (1, 2, 3, 4) for f in failures)
    assert {f.block for f in failures} == {3}


def test_a_kernel_by_name_is_no_family() -> None:
    report = verify(Q4_0, ShippedKernel(KERNELS["q8_1_dp4a"], CpuHost(2)), rungs=["layers"], options=Options(
        prompt="The import statement", n_predict=1, progress=False, tensor="blk.0.attn_q", probes="brief"))  # fmt: skip
    assert report.exit_code == 0
    assert not [name for name in report.rungs[0].figures if name.startswith("GEMMs by")]
