"""Families: for every product a kernel that can compute it."""

from __future__ import annotations

import pytest

from gguf_verify.formats.tensor_types import ELEMENTS, FORMATS
from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.kernels.by_name import find_kernel, on_host
from gguf_verify.kernels.families import DEFAULT_KERNEL, FAMILIES
from gguf_verify.kernels.ladder import KERNELS
from gguf_verify.kernels.shipped import ELEMENT_KERNELS
from gguf_verify.kernels.site import Cards
from gguf_verify.kernels.spec import KernelSpec, Problem
from gguf_verify.support.errors import UsageError


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
                        assert sm is not None or spec.name in ("q8_1_dp4a", "f32_naive", "f16_naive")


def test_every_kernel_of_the_top_is_chosen_somewhere() -> None:
    fmt = FORMATS["Q4_0"]
    chosen = {FAMILIES["q8_1"].choose(Problem(fmt, m, 4096, 4096, 90)).name for m in (1, 8, 16, 4096)}
    assert chosen == {"q8_1_gemv", "q8_1_columns", "q8_1_split_k", "q8_1_wgmma"}


#: By type, with K = 4096: the kernels of 1, 2, 4, 8, 16, 32 and 64 tokens with N = 4096, then with 14336, by their
#: first letters.
CHOICES = {
    "Q4_0": ("gggcsss", "ddgcsww"),
    "Q4_1": ("ggccsss", "ddccssw"),
    "Q5_0": ("gggcgss", "gggcsww"),
    "Q5_1": ("ggccgss", "ggccssw"),
    "Q8_0": ("gggcsss", "ggccsww"),
    "Q2_K": ("dddssss", "dddsssw"),
    "Q3_K": ("dddssss", "dddsssw"),
    "Q4_K": ("dddssss", "dddsssw"),
    "Q5_K": ("dddssss", "dddsssw"),
    "Q6_K": ("dddssss", "dddsssw"),
    "IQ1_M": ("dddssss", "dddsssw"),
    "IQ2_XS": ("dddssss", "dddsssw"),
    "IQ3_XXS": ("dddssss", "dddssww"),
    "IQ4_NL": ("dddssss", "dddssww"),
    "MXFP4": ("dddssss", "dddssww"),
    "NVFP4": ("dddssss", "dddsssw"),
}


@pytest.mark.parametrize("kind", CHOICES)
def test_choices_on_hopper(kind: str) -> None:
    """Where figures of one H100 or H200 exist, these are at most 5 % slower there than another member that was measured
    alike, but for eight tokens (docs/benchmarks.md, "Choices of the families")."""
    letters = {"g": "q8_1_gemv", "d": "q8_1_decode", "c": "q8_1_columns", "s": "q8_1_split_k", "w": "q8_1_wgmma"}
    for n, expected in zip((4096, 14336), CHOICES[kind], strict=True):
        for m, letter in zip((1, 2, 4, 8, 16, 32, 64), expected, strict=True):
            chosen = FAMILIES["q8_1"].choose(Problem(FORMATS[kind], m, n, 4096, 90)).name
            assert chosen == letters[letter], (m, n)


def test_choices_beyond_what_was_measured() -> None:
    """Rows whose activations do not fit beside two stages, rows of one part, and other cards."""
    choose, q8_0, q2_k = FAMILIES["q8_1"].choose, FORMATS["Q8_0"], FORMATS["Q2_K"]
    assert [choose(Problem(q8_0, 8, 4096, k, 90)).name for k in (4096, 14336)] == ["q8_1_columns", "q8_1_gemv"]
    assert [choose(Problem(q2_k, 8, 14336, k, 90)).name for k in (1024, 4096)] == ["q8_1_wgmma", "q8_1_split_k"]
    for sm in (80, 89, 100, 120):
        assert choose(Problem(q8_0, 8, 4096, 4096, sm)).name == "q8_1_gemv"
        assert choose(Problem(FORMATS["Q4_1"], 1, 14336, 4096, sm)).name == "q8_1_gemv"
        assert choose(Problem(q2_k, 4, 14336, 4096, sm)).name == "q8_1_decode"


@pytest.mark.parametrize("kind", ["Q4_K", "IQ3_S", "NVFP4"])
def test_other_types_have_tensor_cores_too(kind: str) -> None:
    choose = FAMILIES["q8_1"].choose
    on_hopper = [choose(Problem(FORMATS[kind], m, 4096, 4096, 90)).name for m in (1, 4, 8, 16, 4096)]
    assert on_hopper == ["q8_1_decode", "q8_1_decode", "q8_1_split_k", "q8_1_split_k", "q8_1_wgmma"]
    for sm in (75, 89, 120):
        others = [choose(Problem(FORMATS[kind], m, 4096, 4096, sm)).name for m in (1, 8, 64)]
        assert others == ["q8_1_decode", "q8_1_decode", "q8_1_mma"]


def test_f16_by_tokens() -> None:
    """On Hopper weights become halves in registers; before it there are tensor cores, too."""
    family, fmt = FAMILIES["f16"], FORMATS["Q4_K"]
    assert {family.choose(Problem(fmt, m, 14336, 4096, 90)).name for m in (1, 128, 512, 4096)} == {"f16_wgmma"}
    assert {family.choose(Problem(fmt, m, 4096, 4096, sm)).name for m in (1, 4096) for sm in (75, 89, 120)} == {
        "f16_mma"
    }


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
    said = r"no kernel is called 'q8'; did you mean 'q8_1'\? there are: q8_1, f16, f32, f16_naive"
    with pytest.raises(UsageError, match=said):
        find_kernel("q8")
