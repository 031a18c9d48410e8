"""Families: for every product a kernel that can compute it; what was chosen is what is judged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gguf_verify.formats import ELEMENTS, FORMATS
from gguf_verify.hosts import CpuHost
from gguf_verify.kernels import DEFAULT_KERNEL, FAMILIES, KERNELS, find_kernel, on_host
from gguf_verify.kernels.family import Family, FamilyOnHost
from gguf_verify.kernels.shipped import ELEMENT_KERNELS, ShippedKernel
from gguf_verify.kernels.site import Cards
from gguf_verify.kernels.spec import KernelSpec, Problem
from gguf_verify.results import Options
from gguf_verify.support.errors import UsageError
from gguf_verify.verification import Report, verify
from tests.support.tools import ROOT, altered_kernel

Q4_0 = ROOT / "fixtures" / "tiny-Q4_0.gguf"


@pytest.mark.parametrize("name", FAMILIES)
def test_what_is_chosen_can_compute_it(name: str) -> None:
    """And nothing is chosen on the CPU that is slow there."""
    family = FAMILIES[name]
    for fmt in FORMATS.values():
        for m in (1, 2, 7, 8, 9, 16, 17, 64, 128, 512, 4096):
            for n in (1, 256, 4096, 14336, 151936):
                for k in (fmt.block_size, 512, 4096, 14336):
                    for sm in (None, 75, 80, 86, 89, 90, 100, 120):
                        spec = family.choose(Problem(fmt, m, n, k, sm))
                        assert spec in family.members
                        assert spec.covers(fmt)
                        assert sm is None or spec.cards.target(str(sm)) is not None
                        assert sm is not None or spec.name in ("q8_1_dp4a", "f32_naive")


def test_every_kernel_of_the_top_is_chosen_somewhere() -> None:
    fmt = FORMATS["Q4_0"]
    chosen = {FAMILIES["q8_1"].choose(Problem(fmt, m, 4096, 4096, 90)).name for m in (1, 16, 4096)}
    assert chosen == {"q8_1_gemv", "q8_1_split_k", "q8_1_wgmma"}


def test_a_later_step_that_claims_a_product_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it can compute it; else the step before it, and in the end the first."""
    family, fmt = FAMILIES["f32"], FORMATS["Q4_0"]
    step = KernelSpec("f32_new", "gemm/f32/99_new.cu", "f32", None, "", formats=frozenset({"Q4_0"}), cards=Cards(90),
                      fastest=lambda problem: problem.m == 3)  # fmt: skip
    monkeypatch.setitem(KERNELS, "f32_new", step)
    assert family.choose(Problem(fmt, 3, 1, 32, None)) is step
    assert family.choose(Problem(fmt, 3, 1, 32, 90)) is step
    assert family.choose(Problem(fmt, 3, 1, 32, 80)).name == "f32_tiled"
    assert family.choose(Problem(FORMATS["Q8_0"], 3, 1, 32, 90)).name == "f32_tiled"
    assert family.choose(Problem(fmt, 2, 1, 32, None)).name == "f32_naive"


def test_a_family_multiplies_nothing_itself() -> None:
    family = on_host(find_kernel("q8_1"), CpuHost(1))
    assert not any(hasattr(family, name) for name in ("gemm", "product", "quantize", "upload", "order", "layout"))


@pytest.mark.parametrize("semantics", ["mmq", "q8_0_cpu"])
def test_no_step_declares_a_definition_whose_activations_nothing_makes(semantics: str) -> None:
    with pytest.raises(ValueError, match="no shipped quantizer"):
        KernelSpec("new", "gemm/new.cu", semantics, None, "")


def test_names() -> None:
    host = CpuHost(1)
    assert find_kernel(DEFAULT_KERNEL) is FAMILIES["q8_1"]
    assert not set(FAMILIES) & set(KERNELS)
    kernel = on_host(find_kernel("f32"), host)
    assert (kernel.name, kernel.semantics, kernel.order_in_words) == ("f32", "f32", "of the kernel that is chosen")
    for fmt in ELEMENTS.values():
        assert kernel.of(fmt, 1, 1, 1).spec is ELEMENT_KERNELS[fmt.name]
    assert on_host(find_kernel("q8_1_mma"), host).of(FORMATS["Q4_0"], 1, 1, 32).name == "q8_1_mma"
    with pytest.raises(UsageError, match="no kernel is called 'q8'; there are: q8_1, f32, f32_naive"):
        find_kernel("q8")


class ByTokens(Family):
    """Kernels of three layouts and orders, by the number of tokens."""

    def choose(self, problem: Problem) -> KernelSpec:
        few = {1: "q8_1_gemv", 2: "q8_1_split_k"}
        return KERNELS[few.get(problem.m, "q8_1_naive" if problem.m < 9 else "q8_1_dp4a")]


class OfACard(Family):
    """What would be taken on a card."""

    def __init__(self, sm: int) -> None:
        super().__init__("q8_1", "")
        object.__setattr__(self, "sm", sm)

    def choose(self, problem: Problem) -> KernelSpec:
        return super().choose(replace(problem, sm=self.sm))


def run(root: Path | None = None) -> Report:
    options = Options(prompt="The import statement", n_predict=3, progress=False)
    kernel = FamilyOnHost(ByTokens("q8_1", ""), CpuHost(2), root)
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


@pytest.mark.slow
@pytest.mark.parametrize("sm", [80, 90])
def test_a_cards_choices(sm: int) -> None:
    """What would be taken there, on the CPU."""
    options = Options(prompt="The import statement", n_predict=2, progress=False)
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
    """Which neither Q8_1 bytes nor another number of tokens meet: the replay must take the failing call's way."""
    old = "codes[at * 4 + c] = {four_bytes(p.q), four_bytes(p.q + 4)};"
    new = "codes[at * 4 + c] = {four_bytes(p.q) ^ (block == 3 ? 1u : 0u), four_bytes(p.q + 4)};"
    wrong = altered_kernel(tmp_path, "q8_1_gemv", "gemm/q8_1/08_gemv.cu", old, new)
    options = Options(prompt="The import statement", n_predict=1, progress=False, tensor="blk.0.attn_q")
    report = verify(Q4_0, wrong, rungs=["layers"], options=options)
    assert report.exit_code == 1
    failures = report.rungs[0].failures
    assert {f.what.split(" at M=")[1].split(":")[0] for f in failures} <= {"1", "2", "3", "4"}
    assert {f.block for f in failures} == {3}


def test_a_kernel_by_name_is_no_family() -> None:
    report = verify(Q4_0, ShippedKernel(KERNELS["q8_1_dp4a"], CpuHost(2)), rungs=["layers"], options=Options(
        prompt="The import statement", n_predict=1, progress=False, tensor="blk.0.attn_q"))  # fmt: skip
    assert report.exit_code == 0
    assert not [name for name in report.rungs[0].figures if name.startswith("GEMMs by")]
