"""Identification and diagnosis: right names where they are known, "unknown" where not, silence where all is right."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gguf_verify.cli import main
from gguf_verify.diagnosis.diagnose import FEWEST, diagnose, explains
from gguf_verify.diagnosis.fault import Case
from gguf_verify.diagnosis.faults import FAULTS, LEFT_OUT
from gguf_verify.diagnosis.fitted import fitted
from gguf_verify.diagnosis.identify import definitions, expected, identify, known_inputs
from gguf_verify.diagnosis.operands import Parts, Predicted, parts_of
from gguf_verify.diagnosis.pattern import Map, pattern, utilisation
from gguf_verify.diagnosis.replay import diagnose_kernel
from gguf_verify.diagnosis.splits import SPLITS
from gguf_verify.diagnosis.weighed import Weighed
from gguf_verify.formats.tensor_types import ELEMENTS, FORMATS, WeightFormat
from gguf_verify.gguf.model import open_model
from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.hosts.memory import POISON
from gguf_verify.identification import identify_model
from gguf_verify.kernels.foreign.api import Shape
from gguf_verify.kernels.foreign.api import kernel as foreign
from gguf_verify.kernels.interface import Weights
from gguf_verify.kernels.ladder import KERNELS
from gguf_verify.kernels.shipped import ShippedKernel
from gguf_verify.llama.library import Llama
from gguf_verify.report.writer import Kind
from gguf_verify.results.calls import OWN, Call
from gguf_verify.results.diagnoses import LocatedDiagnosis
from gguf_verify.results.options import Options
from gguf_verify.results.rungs import RungResult
from gguf_verify.rungs.explain import Explanations, WrongCall
from gguf_verify.semantics.cuda import llama_cuda_semantics
from gguf_verify.semantics.definition import Semantics
from gguf_verify.semantics.definitions import SEMANTICS, llama_cpu_semantics
from gguf_verify.semantics.exact import product
from gguf_verify.semantics.gates import judge
from gguf_verify.verification import verify
from tests.support.shown import text_of
from tests.support.tools import FIXTURES, altered_kernel, write_model

Q4_0 = FIXTURES / "tiny-Q4_0.gguf"
Q5_1 = FIXTURES / "tiny-Q5_1.gguf"
NAIVE = "gemm/q8_1/01_naive.cu"
WEIGHTS: dict[str, WeightFormat] = {**FORMATS, **ELEMENTS}
#: One of each kind: offset, minimum, fifth bits, bytes, a superblock with minima, one with a zero point, a table.
SOME = ("Q4_0", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q6_K", "MXFP4")


@pytest.fixture(scope="module")
def made(llama: Llama) -> Callable[..., np.ndarray]:
    """(type, seed, n = 16) → weights uint8[n, row bytes of 768 values] of it, quantized by llama.cpp."""

    @cache
    def rows(name: str, seed: int = 0, n: int = 16) -> np.ndarray:
        w = np.random.default_rng(seed).standard_normal((n, 768)).astype(np.float32) * np.float32(0.05)
        if name in ELEMENTS:
            bits = {"F32": w, "F16": w.astype(np.float16), "BF16": (w.view(np.uint32) >> 16).astype(np.uint16)}[name]
            return np.ascontiguousarray(bits).view(np.uint8)
        fmt = FORMATS[name]
        return llama.quantize(fmt.type_id, w, np.ones(768, np.float32)).reshape(n, -1)

    return rows


def activations(seed: int, m: int = 6, k: int = 768) -> np.ndarray:
    return np.random.default_rng(100 + seed).standard_normal((m, k)).astype(np.float32)


# -- identification ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WEIGHTS)
def test_every_definition_is_told_from_every_other(made: Callable[..., np.ndarray], name: str) -> None:
    fmt = WEIGHTS[name]
    rows = made(name, 0, 4)
    for m in (1, 9):
        x = known_inputs(m, 768)
        for semantics in definitions(fmt):
            y = expected(semantics, fmt, rows, x).exact.astype(np.float32)
            found = identify(fmt, rows, x, y)
            assert found.names == (semantics.name,)
            assert len(found.candidates) >= len(definitions(fmt))
            assert found.next is None or found.next.nmse > 1e-9


@pytest.mark.parametrize("name", WEIGHTS)
def test_llama_is_identified(llama: Llama, made: Callable[..., np.ndarray], name: str) -> None:
    fmt = WEIGHTS[name]
    x = known_inputs(8, 768)
    y = llama.multiply(fmt.type_id, made(name, 0, 4), x)
    assert identify(fmt, made(name, 0, 4), x, y).names == (llama_cpu_semantics(fmt).name,)


def test_several_and_none_are_said(made: Callable[..., np.ndarray]) -> None:
    fmt, rows = FORMATS["Q4_1"], made("Q4_1", 0)
    x = np.ones((2, 768), np.float32)  # every quantizer gives the same codes, and sums that are halves
    y = product(SEMANTICS["q8_1"], fmt, rows, SEMANTICS["q8_1"].bytes_of(x)).exact.astype(np.float32)
    found = identify(fmt, rows, x, y)
    assert set(found.names) >= {"q8_1", "mmq"}
    assert found.coincide
    assert "the same on these data" in found.words
    assert identify(fmt, rows, x, y * np.float32(1.001)).words == "none of the known definitions"
    y[0, 0] = np.nan
    assert identify(fmt, rows, x, y).names == ()
    assert identify(fmt, np.zeros_like(rows), x, np.zeros_like(y)).names == ()  # zeros are no evidence
    with pytest.raises(ValueError, match="do not belong to 2 tokens and 16 rows"):
        identify(fmt, rows, x, y[:, 1:])


class ComputesMmq(ShippedKernel):
    """Declares q8_1, computes llama.cpp's MMQ."""

    def __init__(self) -> None:
        super().__init__(KERNELS["q8_1_naive"], CpuHost(1))

    def upload(self, fmt: WeightFormat, rows: np.ndarray) -> Weights:
        return dataclasses.replace(super().upload(fmt, rows), buffer=rows)

    def product(self, weights: Weights, x: np.ndarray) -> np.ndarray:
        mmq = SEMANTICS["mmq"]
        return product(mmq, weights.fmt, weights.buffer, mmq.bytes_of(x)).exact.astype(np.float32)


def test_a_kernel_that_computes_another_definition_is_told_which() -> None:
    report = identify_model(Q4_0, ComputesMmq(), options=Options(probes="brief", progress=False))
    assert report.exit_code == 1
    kernels = [p for p in report.products if p.who != "llama.cpp"]
    assert [p.m for p in kernels] == [1, 8, 9, 64]
    assert all(p.found is not None and p.found.names == ("mmq",) and not p.right for p in kernels)
    assert all(p.right for p in report.products if p.who == "llama.cpp")
    shown = text_of(Kind.IDENTIFICATION, report)
    said = (
        "q8_1_naive, Q4_0, M=1, 8, 9, 64: computes MMQ's Q4_0 (mmq), not MMVQ's Q4_0 (q8_1) as declared: the kernel "
        "is correct for that definition; declare mmq, or compare it with llama.cpp CUDA MMQ on tensor cores\n"
    )
    assert said in shown


@pytest.mark.parametrize("declared", ["q8_1", "f32"])
def test_another_definition_in_a_run(declared: str) -> None:
    """An author reads the same from the rungs: of a kernel that quantizes, and of one that is handed blocks of Q8_1."""

    @foreign(formats=["Q4_0"], semantics=declared)
    def gemm(weights: np.ndarray, x: np.ndarray, shape: Shape) -> np.ndarray:
        mmq = SEMANTICS["mmq"]
        taken = x if declared == "q8_1" else mmq.bytes_of(x)
        return product(mmq, FORMATS["Q4_0"], weights, taken).exact.astype(np.float32)

    options = Options(probes="brief", prompt="The import statement", tensor="blk.0.attn_q", progress=False)
    report = verify(Q4_0, gemm, "cpu", ["layers"], options)
    found = report.rungs[0].diagnosis
    assert found is not None
    assert found.verdict == "another definition"
    assert "mmq" in found.definitions
    called = {"q8_1": "MMVQ's Q4_0 (q8_1)", "f32": "Q4_0 with float32 activations (f32)"}[declared]
    for said in (
        "it computes MMQ's Q4_0 (mmq)",
        f", not {called} as declared: the kernel is correct for that",
        "declare mmq",
    ):
        assert said in text_of(Kind.RUN, report)
    told = identify_model(Q4_0, gemm, "cpu", Options(probes="brief", progress=False))
    assert told.exit_code == 1
    assert f"computes MMQ's Q4_0 (mmq), not {called} as declared" in text_of(Kind.IDENTIFICATION, told)


@pytest.mark.parametrize("first", [64, 1])
def test_identify_claims_another_definition_only_if_every_product_fits(first: int) -> None:
    """Weights are rounded to halves from some number of tokens on: of all, or of the largest product alone."""

    @foreign(formats=["Q4_0"], semantics="f32")
    def rounds(weights: Any, activations: Any, shape: Shape) -> Any:
        w = FORMATS["Q4_0"].decode(np.ascontiguousarray(weights).reshape(-1, 18)).reshape(shape.n, shape.k)
        if shape.m >= first:
            w = w.astype(np.float16).astype(np.float32)
        return (activations.astype(np.float64) @ w.T.astype(np.float64)).astype(np.float32)

    options = Options(probes="brief", progress=False, tensor="blk.0.attn_q", seed=0)
    report = identify_model(Q4_0, rounds, options=options)
    shown = text_of(Kind.IDENTIFICATION, report)
    assert report.exit_code == 1
    assert ("no definition fits all of its products" in shown) == (first > 1)
    assert ("the kernel is correct for that" in shown) == (first == 1)


def test_a_run_claims_another_definition_only_if_other_calls_fit() -> None:
    """Weights are rounded to halves in calls of 64 tokens and more; a report says so, and advises no definition."""

    @foreign(formats=["Q4_0"], semantics="f32")
    def rounds(weights: Any, activations: Any, shape: Shape) -> Any:
        w = FORMATS["Q4_0"].decode(np.ascontiguousarray(weights).reshape(-1, 18)).reshape(shape.n, shape.k)
        if shape.m >= 64:
            w = w.astype(np.float16).astype(np.float32)
        return (activations.astype(np.float64) @ w.T.astype(np.float64)).astype(np.float32)

    options = Options(probes="brief", prompt="The import statement", tensor="blk.0.attn_q", progress=False, seed=0)
    found = verify(Q4_0, rounds, "cpu", ["layers"], options).rungs[0].diagnosis
    assert found is not None
    assert not found.definitions
    assert not any("correct for that definition" in line for line in found.lines)


#: What llama.cpp says of a GPU that is played.
PLAYED = {"backend": "CUDA", "device": "CUDA0", "name": "a GPU that is played", "sm": 90}


@pytest.mark.parametrize("path", [Q4_0, Q5_1])
def test_identify_with_a_gpu_that_is_played(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    """llama.cpp's definition goes by M, and it is judged on the activations that it gives away: its quantizer may err
    by a code where IEEE division does not."""
    name = {Q4_0: "Q4_0", Q5_1: "Q5_1"}[path]
    fmt = FORMATS[name]

    def given_away(_: Llama, semantics: str, x: np.ndarray, backend: str) -> np.ndarray:
        assert backend == "gpu"
        taken = SEMANTICS[semantics].bytes_of(x)
        taken.reshape(len(x), -1, 36)[:, 2, 7] ^= 1  # one code a token
        return taken

    def multiply(self: Llama, type_id: int, w: np.ndarray, x: np.ndarray, threads: int, backend: str) -> np.ndarray:
        assert backend == "gpu"
        semantics = llama_cuda_semantics(fmt, len(x))
        return product(semantics, fmt, w, given_away(self, semantics.name, x, backend)).exact.astype(np.float32)

    monkeypatch.setattr(Llama, "start_backend", lambda *_: PLAYED)
    monkeypatch.setattr(Llama, "activations", given_away)
    monkeypatch.setattr(Llama, "multiply", multiply)
    report = identify_model(path, "q8_1_naive", "cpu", Options(probes="brief", progress=False, reference="gpu"))
    assert report.exit_code == 0, text_of(Kind.IDENTIFICATION, report)
    theirs = [p for p in report.products if p.who == "llama.cpp on the GPU"]
    few, many = (llama_cuda_semantics(fmt, m).name for m in (8, 9))
    assert [(p.m, p.declared) for p in theirs] == [(1, few), (8, few), (9, many), (64, many)]
    assert all(p.found is not None and p.declared in p.found.names for p in theirs)
    assert "a GPU that is played" in text_of(Kind.IDENTIFICATION, report)
    monkeypatch.setattr(Llama, "activations", lambda _, semantics, x, backend: SEMANTICS[semantics].bytes_of(x))
    assert (
        identify_model(path, "q8_1_naive", "cpu", Options(probes="brief", progress=False, reference="gpu")).exit_code
        == 1
    )


def test_identify_with_a_gpu_leaves_out_what_has_no_definition(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(Llama, "start_backend", lambda *_: PLAYED)
    monkeypatch.setattr(Llama, "multiply", lambda *_: pytest.fail("nothing is known of it"))
    w = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
    path = write_model(tmp_path / "f32.gguf", {"w": (w, "F32")})
    report = identify_model(path, "q8_1_naive", "cpu", Options(probes="brief", progress=False, reference="gpu"))
    assert report.exit_code == 5
    assert [kind for kind, _ in report.unable] == [f"F32, M={m}" for m in (1, 8, 9, 64)]
    assert "cuBLAS" in text_of(Kind.IDENTIFICATION, report)


def test_identify_of_a_wrong_kernel_names_the_fault(tmp_path: Path) -> None:
    kernel = altered_kernel(tmp_path, "q8_1_naive", "formats/q4_0.cuh", "Minimum::OFFSET", "Minimum::NONE")
    report = identify_model(Q4_0, kernel, options=Options(probes="brief", progress=False))
    assert report.exit_code == 1
    shown = text_of(Kind.IDENTIFICATION, report)
    assert "computes none of the known definitions (declared: q8_1" in shown
    assert "the s term is missing" in shown


def test_identify_at_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "found.json"
    assert main(["identify", "q8_1", str(Q5_1), "--host", "cpu", "-o", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "IDENTIFIED: each computes what it declares" in shown
    found = json.loads(out.read_text())
    assert {(p["who"], *p["identified"]) for p in found["products"]} == {
        ("q8_1_dp4a", "q8_1"), ("llama.cpp", "q8_1_cpu"),
    }  # fmt: skip
    # a model of zeros tells nothing
    zeros = write_model(tmp_path / "zeros.gguf", {"w": (np.zeros((4, 18 * 2), np.uint8), "Q4_0")})
    assert main(["identify", "q8_1", str(zeros), "--host", "cpu"]) == 5


# -- diagnosis ---------------------------------------------------------------------------------------------------------


def outputs(p: Predicted, rng: np.random.Generator, exactly: bool) -> np.ndarray:
    """What a kernel with a fault might give: some rounding of what it predicts, anything where it says nothing."""
    noise = 0.0 if exactly else 0.005 * np.where(np.isfinite(p.bound), p.bound, 0) * rng.uniform(-1, 1, p.exact.shape)
    y = np.where(True if p.known is None else p.known, p.exact + noise, rng.standard_normal(p.exact.shape))
    with np.errstate(over="ignore"):
        return y.astype(np.float32)


def check_catalogue(
    name: str, rows: np.ndarray, x: np.ndarray, declared: list[Semantics], seed: int, most: int | None = None
) -> int:
    """Each variant of each fault on these data, or the first `most`: its name must be among those given, and no other
    may be alone."""
    fmt, rng, named = FORMATS[name], np.random.default_rng(seed), 0
    for semantics in declared:
        case = Case(semantics, fmt, rows, semantics.bytes_of(x), x)
        right = product(semantics, fmt, rows, case.x)
        assert np.allclose(case.right.exact, right.exact, rtol=1e-6, atol=float(right.bound.max()))
        assert np.allclose(case.right.bound, right.bound, rtol=0.02)
        clean = diagnose(right.exact.astype(np.float32), fmt, semantics, rows, x)
        assert (clean.verdict, clean.lines) == ("right", [])
        for fault in FAULTS:
            for which, made in islice(fault.sample(case, seed), most):
                p = made if isinstance(made, Predicted) else made.predicted()
                y = outputs(p, rng, fault.id.endswith("accumulator"))
                found = diagnose(y, fmt, semantics, rows, x)
                if found.wrong < FEWEST:
                    continue
                if found.verdict == "unknown" and not np.isfinite(y).all():  # scales that are no scales: no evidence
                    assert fault.id in ("row-stride", "block-stride", "field-offset")
                    continue
                if np.count_nonzero(y) < FEWEST:  # as if nothing were computed: no evidence, and nothing may be said
                    assert fault.id == "subnormals-flushed"
                    assert (found.faults, found.nearest) == ((), None), (semantics.name, which, found)
                    continue
                assert fault.named_by({f.id for f in found.faults}), (semantics.name, fault.id, which, found)
                named += 1
    return named


@pytest.mark.parametrize("name", ["Q4_0", "Q4_K"])
def test_a_diagnosis_explains_another_product_or_not(made: Callable[..., np.ndarray], name: str) -> None:
    """It does if that has the same variant of a fault, and not if it has another fault, or another one in a part."""
    fmt, q8_1, rng = FORMATS[name], SEMANTICS["q8_1"], np.random.default_rng(0)

    def faulty(seed: int) -> dict[str, np.ndarray]:
        case = Case(q8_1, fmt, made(name, seed), q8_1.bytes_of(activations(seed)), activations(seed))
        of = {fault.id: next(iter(fault.of(case)), None) for fault in FAULTS if fault.id in chosen}
        assert all(of.values())
        parts = {name: variant[1] for name, variant in of.items() if variant is not None}
        term = next(part for part in SPLITS[0].parts(case)[1:] if part.meant)  # the offset or the minimum
        for factor in (0.875, 0.625):  # of no fault in the catalogue: they are read off the outputs
            parts[f"{factor} of a term"] = Weighed(SPLITS[0], {term.key: factor * term.meant}).predicted(case)
        return {n: outputs(p if isinstance(p, Predicted) else p.predicted(), rng, False) for n, p in parts.items()}

    chosen = {"nibbles-in-pairs", "nibbles-swapped"}
    first, other = faulty(0), faulty(1)
    for fault in first:
        said = diagnose(first[fault], fmt, q8_1, made(name, 0), activations(0))
        assert said.verdict == "known fault"
        located = LocatedDiagnosis(
            tensor="t", where="t", who="kernel", row=0, token=0, block=None, verdict=said.verdict, wrong=said.wrong,
            outputs=said.outputs, faults=said.faults, type=name,
        )  # fmt: skip
        rows, x = made(name, 1), activations(1)
        for of, y in other.items():
            assert explains(located, y, fmt, q8_1, rows, x) is (of == fault)
            result, kernel = RungResult(name="layers"), KERNELS["q8_1_naive"]
            call = WrongCall(
                fmt, q8_1, rows, x, q8_1.bytes_of(x), y, None, "kernel", "other", "other", 0, 0,
                call=Call(kind="own"), kernel=ShippedKernel(kernel, CpuHost()),
            )  # fmt: skip
            Explanations(result, 1, left={(name, OWN): 0}, known=[located]).add(call)
            assert result.causes == {"other": located.cause if of == fault else ""}
        right = product(q8_1, fmt, rows, q8_1.bytes_of(x)).exact.astype(np.float32)
        assert explains(located, right, fmt, q8_1, rows, x) is None
        mixed = other[fault].copy()
        mixed[:, ::2] = np.sqrt(np.abs(right[:, ::2])) + 3
        assert explains(located, mixed, fmt, q8_1, rows, x) is False


@pytest.mark.parametrize("name", SOME)
def test_catalogue(made: Callable[..., np.ndarray], name: str) -> None:
    rows, x = made(name, 0), activations(0)
    assert check_catalogue(name, rows, x, [SEMANTICS["q8_1"]], 0) > 100
    assert check_catalogue(name, rows, x, [SEMANTICS["f32"]], 0, most=1) > 14


def test_the_first_variant_of_each_fault(made: Callable[..., np.ndarray]) -> None:
    """`make test` has no more of the catalogue than this; `make test-all` has every variant, of every format."""
    rows, x = made("Q8_0", 0), activations(0)
    for semantics in ("q8_1", "f32"):
        assert check_catalogue("Q8_0", rows, x, [SEMANTICS[semantics]], 0, most=1) > 14


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", FORMATS)
def test_catalogue_of_every_format(made: Callable[..., np.ndarray], name: str, seed: int) -> None:
    check_catalogue(name, made(name, seed), activations(seed), definitions(FORMATS[name]), seed)


@pytest.mark.parametrize(("name", "bits"), [("IQ2_XS", "0 to 6"), ("IQ3_S", "0 to 7")])
def test_missing_bits_of_signs_are_lost_signs(made: Callable[..., np.ndarray], name: str, bits: str) -> None:
    """Without their signs, all values of a grid are positive: on any data, both are the same fault."""
    semantics, fmt, rows, x = SEMANTICS["f32"], FORMATS[name], made(name, 0), activations(0)
    elsewhere = next(fault for fault in FAULTS if fault.id == "bits-elsewhere")
    ((_, p),) = elsewhere.of(Case(semantics, fmt, rows, semantics.bytes_of(x), x), [f"bits {bits} of signs missing"])
    assert isinstance(p, Parts)
    found = diagnose(p.predicted().exact.astype(np.float32), fmt, semantics, rows, x)
    assert [(f.id, f.words) for f in found.faults] == [
        ("signedness", "codes are read with the wrong sign (signs of weights lost)")
    ]
    assert elsewhere.named_by({f.id for f in found.faults})


@pytest.mark.parametrize("path", [Q4_0, Q5_1])
def test_catalogue_on_real_weights(path: Path) -> None:
    with open_model(path) as model:
        tensor = model.tensors["blk.1.ffn_down.weight"]
        rows = tensor.raw.reshape(tensor.n_rows, tensor.row_bytes)[:20].copy()
        name, k = tensor.type.name, tensor.k
    assert check_catalogue(name, rows, activations(7, 5, k), [SEMANTICS["q8_1"]], 7) > 40


def only_one(rows: np.ndarray, x: np.ndarray, y_of: Callable[[Parts], Parts]) -> set[str]:
    semantics = SEMANTICS["q8_1"]
    p = parts_of(semantics, FORMATS["Q4_0"], rows, semantics.bytes_of(x))
    y = y_of(p).predicted().exact.astype(np.float32)
    found = diagnose(y, FORMATS["Q4_0"], semantics, rows, x)
    assert found.wrong
    assert found.verdict == ("known fault" if found.faults else "unknown")
    assert any("unknown" in line for line in found.lines) == (not found.faults)
    return {f.id for f in found.faults}


def _some(v: np.ndarray, f: Callable[[np.ndarray], np.ndarray], at: Any) -> np.ndarray:
    out = v.copy()
    out[at] = f(out[at])
    return out


#: A part of the product counts otherwise than it should → the name, and what is said of it.
WEIGHED: dict[str, tuple[Callable[[Parts], Parts], str, str]] = {
    "offset 7": (lambda p: dataclasses.replace(p, m=p.m * 7 / 8), "term-factor", "7 is subtracted from the codes"),
    "s halved": (lambda p: dataclasses.replace(p, s=p.s / 2), "term-factor", "is half of what it should be"),
    "one per cent of what is not the offset": (
        lambda p: dataclasses.replace(p, d=1.01 * p.d), "term-factor", "the codes' term is 1.01 times",
    ),
    "0.01 per cent": (lambda p: dataclasses.replace(p, e=p.e * 1.0001), "term-factor", "term is 1.0001 times"),
    "a mask of 7": (lambda p: dataclasses.replace(p, q=p.q % 8), "code-bits", "bit 3 of the codes counts 0, not 8"),
    "a shift by 3": (
        lambda p: dataclasses.replace(p, q=_some(p.q, lambda q: (2 * q) % 16, np.s_[..., 16:])),
        "code-bits", "bit 0 of the codes in high nibbles counts 2, not 1",
    ),
    "one code of 32 left out": (
        lambda p: dataclasses.replace(p, q=_some(p.q, lambda q: 0 * q, np.s_[..., 5])),
        "position-factor", "value 5 of each 32 counts 0 times",
    ),
    "one code of 32 negated": (
        lambda p: dataclasses.replace(p, a=_some(p.a, lambda a: -a, np.s_[..., 9])),
        "position-factor", "value 9 of each 32 counts -1 times",
    ),
    "the first block left out": (
        lambda p: dataclasses.replace(p, d=_some(p.d, lambda d: 0 * d, np.s_[:, 0])),
        "block-factor", "block 0 of K, but for its minimum or offset, counts 0 times",
    ),
    "the third block twice": (
        lambda p: dataclasses.replace(
            p, d=_some(p.d, lambda d: 2 * d, np.s_[:, 2]), m=_some(p.m, lambda m: 2 * m, np.s_[:, 2])
        ),
        "block-factor", "block 2 of K counts 2 times",
    ),
    "all blocks but the first three skipped": (
        lambda p: dataclasses.replace(
            p, d=_some(p.d, lambda d: 0 * d, np.s_[:, 3:]), m=_some(p.m, lambda m: 0 * m, np.s_[:, 3:])
        ),
        "end-of-k-dropped", "blocks 3 to ",
    ),
}  # fmt: skip


def test_a_constant_is_named(made: Callable[..., np.ndarray]) -> None:
    """What rounding leaves of the other terms is no factor."""
    rows, x = made("Q4_0", 0), activations(0)
    y = np.full((len(x), len(rows)), 12345, np.float32)
    for value in (12345, 0, np.nan):
        y[:] = value
        found = diagnose(y, FORMATS["Q4_0"], SEMANTICS["q8_1"], rows, x)
        assert [(f.id, f.words) for f in found.faults] == [
            ("constant-output", f"every output is {value}, whatever the operands are")
        ]
    y[:] = 12345
    semantics = SEMANTICS["q8_1"]
    named = fitted(y, Case(semantics, FORMATS["Q4_0"], rows, semantics.bytes_of(x), x), np.ones(y.shape, bool))
    assert named.match.id == "term-factor"
    assert "the codes' term is missing; " in named.match.words
    assert "; 12345 is added to each output" in named.match.words


OUTSIDE: dict[str, Callable[[Parts], Parts]] = {
    "one code off by one": lambda p: dataclasses.replace(p, q=_some(p.q, lambda q: q + 1, np.s_[:, 3, 3])),
    "s squared": lambda p: dataclasses.replace(p, s=p.s**2),
    "codes reversed": lambda p: dataclasses.replace(p, a=p.a[..., ::-1]),
    "codes rotated": lambda p: dataclasses.replace(p, a=np.roll(p.a, 1, axis=-1)),
    "blocks reversed": lambda p: dataclasses.replace(p, q=p.q[:, ::-1]),
    "two faults": lambda p: dataclasses.replace(p, m=0 * p.m, a=np.roll(p.a, 16, axis=-1)),
    "scales of the next token": lambda p: dataclasses.replace(p, e=np.roll(p.e, 1, axis=0)),
    "one per cent in a row": lambda p: dataclasses.replace(p, d=_some(p.d, lambda d: 1.01 * d, np.s_[3])),
}


@pytest.mark.parametrize("fault", WEIGHED)
def test_a_part_that_counts_otherwise_is_named_with_its_factor(made: Callable[..., np.ndarray], fault: str) -> None:
    change, name, said = WEIGHED[fault]
    semantics, fmt, rows, x = SEMANTICS["q8_1"], FORMATS["Q4_0"], made("Q4_0", 0), activations(0)
    y = change(parts_of(semantics, fmt, rows, semantics.bytes_of(x))).predicted().exact.astype(np.float32)
    found = diagnose(y, fmt, semantics, rows, x)
    assert [f.id for f in found.faults] == [name]
    assert said in found.faults[0].words


@pytest.mark.parametrize("factor", [0.25, -0.5, 3.0, 1.001])
@pytest.mark.parametrize("name", ["Q4_1", "Q5_1", "Q4_K"])
def test_any_factor_of_the_minimum_is_told(made: Callable[..., np.ndarray], name: str, factor: float) -> None:
    semantics, fmt, rows, x = SEMANTICS["q8_1"], FORMATS[name], made(name, 0), activations(0)
    p = parts_of(semantics, fmt, rows, semantics.bytes_of(x))
    y = dataclasses.replace(p, m=factor * p.m).predicted().exact.astype(np.float32)
    found = diagnose(y, fmt, semantics, rows, x)
    assert [f.id for f in found.faults] == ["term-factor"]
    times = "a quarter of" if factor == 0.25 else f"{factor:g} times"
    assert found.faults[0].words == f"the minimum's term is {times} what it should be"


#: Wrong codes of Q6_K, as they are stored, and of MXFP4 → what is said of them.
WRONG_CODES: dict[str, tuple[str, Callable[[np.ndarray], np.ndarray], str, str]] = {
    "upper bits shifted by 2": (
        "Q6_K", lambda q: (q & 15) + 4 * (q >> 4), "code-bits", "bit 4 of the codes counts 4, not 16",
    ),
    "upper bits joined with others": (
        "Q6_K", lambda q: (q & 15) | (q >> 4 << 2), "code-bits",
        "bits 2 and 4 of the codes count 4 less where both are set",
    ),
    "upper bits that flip others": (
        "Q6_K", lambda q: (q & 15) ^ (q >> 4 << 2), "code-bits",
        "bits 3 and 5 of the codes count 16 less where both are set",
    ),
    "offset 31": ("Q6_K", lambda q: q + 1, "term-factor", "31 is subtracted from the codes, not 32"),
    "lowest bit lost": ("Q3_K", lambda q: q & ~1, "code-bits", "bit 0 of the codes counts 0, not 1"),
    "an entry of the table": ("MXFP4", lambda q: np.where(q == 12, 11, q), "code-values", "value 12 count as 11"),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG_CODES)
def test_wrong_codes_are_told_bit_by_bit(made: Callable[..., np.ndarray], wrong: str) -> None:
    name, change, fault, said = WRONG_CODES[wrong]
    semantics, fmt, rows, x = SEMANTICS["q8_1"], FORMATS[name], made(name, 0), activations(0)
    p = parts_of(semantics, fmt, rows, semantics.bytes_of(x))
    zero = p.fmt.zero
    q = change((p.q + zero).astype(np.int64)).astype(np.float64) - zero
    found = diagnose(dataclasses.replace(p, q=q).predicted().exact.astype(np.float32), fmt, semantics, rows, x)
    assert [f.id for f in found.faults] == [fault]
    assert said in found.faults[0].words


def test_codes_read_in_the_order_of_memory(made: Callable[..., np.ndarray]) -> None:
    """Value i of Q6_K from nibble i of ql and pair i of qh: both pieces of a code lie elsewhere."""
    semantics, fmt, rows, x = SEMANTICS["q8_1"], FORMATS["Q6_K"], made("Q6_K", 0), activations(0)
    p = parts_of(semantics, fmt, rows, semantics.bytes_of(x))
    blocks = rows.reshape(len(rows), -1, fmt.block_bytes)
    low = np.stack([blocks[..., :128] & 15, blocks[..., :128] >> 4], axis=-1).reshape(*blocks.shape[:2], 256)
    high = np.stack([blocks[..., 128:192] >> s & 3 for s in (0, 2, 4, 6)], axis=-1).reshape(low.shape)
    q = (low | high << 4).astype(np.float64).reshape(p.q.shape) - 32
    found = diagnose(dataclasses.replace(p, q=q).predicted().exact.astype(np.float32), fmt, semantics, rows, x)
    assert [f.id for f in found.faults] == ["bits-elsewhere"]
    assert "in the order of memory" in found.faults[0].words


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("fault", OUTSIDE)
def test_what_is_not_in_the_catalogue_is_unknown(made: Callable[..., np.ndarray], fault: str, seed: int) -> None:
    assert only_one(made("Q4_0", seed), activations(seed), OUTSIDE[fault]) == set()


def test_noise_and_single_outputs_are_unknown(made: Callable[..., np.ndarray]) -> None:
    fmt, semantics, rows, x = FORMATS["Q4_0"], SEMANTICS["q8_1"], made("Q4_0", 0), activations(0)
    right = product(semantics, fmt, rows, semantics.bytes_of(x)).exact.astype(np.float32)
    rng = np.random.default_rng(0)
    for size in (1e-5, 1e-3, 1.0):
        y = right + np.float32(size) * rng.standard_normal(right.shape).astype(np.float32)
        assert diagnose(y, fmt, semantics, rows, x).verdict == "unknown"
    y = right.copy()
    y[2, 3] = np.nan
    found = diagnose(y, fmt, semantics, rows, x)
    assert (found.verdict, found.wrong) == ("unknown", 1)
    y[:, 5:] = np.uint32(POISON).view(np.float32)
    y[2, 3] = right[2, 3]
    found = diagnose(y, fmt, semantics, rows, x)
    assert [f.id for f in found.faults] == ["unwritten"]
    assert any("rows 5 to the last" in line for line in found.lines)


def test_only_a_part_of_the_outputs(made: Callable[..., np.ndarray]) -> None:
    fmt, semantics, rows, x = FORMATS["Q4_0"], SEMANTICS["q8_1"], made("Q4_0", 0), activations(0)
    p = parts_of(semantics, fmt, rows, semantics.bytes_of(x))
    y = p.predicted().exact.astype(np.float32)
    y[:, 8:] = dataclasses.replace(p, m=0 * p.m).predicted().exact.astype(np.float32)[:, 8:]
    found = diagnose(y, fmt, semantics, rows, x)
    assert [(f.id, f.everywhere) for f in found.faults] == [("offset-missing", False)]
    assert "in part of the outputs" in found.lines[0]


def test_another_definition_is_no_fault(made: Callable[..., np.ndarray]) -> None:
    fmt, rows, x = FORMATS["Q4_0"], made("Q4_0", 0), known_inputs(6, 768)
    cpu = SEMANTICS["q8_0_cpu"]
    y = product(cpu, fmt, rows, cpu.bytes_of(x)).exact.astype(np.float32)
    found = diagnose(y, fmt, SEMANTICS["q8_1"], rows, x)
    assert (found.verdict, found.definitions) == ("another definition", ("q8_0_cpu",))
    assert found.lines[0].startswith(
        "it computes the CPU's Q4_0 (q8_0_cpu), not MMVQ's Q4_0 (q8_1) as declared: the kernel is correct for that"
    )


def test_sums_that_overflow(made: Callable[..., np.ndarray]) -> None:
    fmt, rows = FORMATS["Q4_1"], made("Q4_1", 0)
    x = np.abs(activations(0)) * np.float32(4000)
    x[0] /= 4000
    semantics = SEMANTICS["f32"]
    wrong = next(f for f in FAULTS if f.id == "sum-overflows")
    case = Case(semantics, fmt, rows, semantics.bytes_of(x), x)
    made_wrong = next(made for _, made in wrong.of(case) if isinstance(made, Predicted))
    y = made_wrong.exact.astype(np.float32)
    assert [f.id for f in diagnose(y, fmt, semantics, rows, x).faults] == ["sum-overflows"]
    assert diagnose(y[1:], fmt, semantics, rows, x[1:]).verdict == "unknown"  # infinities alone are no evidence


def test_zeros_are_no_evidence(made: Callable[..., np.ndarray]) -> None:
    """Halves flush such small results to zero, but so does a kernel that computes nothing."""
    fmt, semantics, rows, x = FORMATS["Q4_0"], SEMANTICS["f32"], made("Q4_0", 0), activations(0) * np.float32(1e-12)
    assert diagnose(np.zeros((6, 16), np.float32), fmt, semantics, rows, x).verdict == "unknown"


def test_subnormal_scales(made: Callable[..., np.ndarray]) -> None:
    fmt, semantics, rows, x = FORMATS["Q8_0"], SEMANTICS["q8_1"], made("Q8_0", 0).copy(), activations(0)
    blocks = rows.reshape(-1, fmt.block_bytes)
    blocks[::3, :2] = np.array([3e-5], np.float16).view(np.uint8)
    p = parts_of(semantics, fmt, rows, semantics.bytes_of(x))
    y = dataclasses.replace(p, d=np.where(p.d < 2.0**-14, 0, p.d)).predicted().exact.astype(np.float32)
    assert {f.id for f in diagnose(y, fmt, semantics, rows, x).faults} == {"subnormals-flushed"}


# -- kernels that are wrong --------------------------------------------------------------------------------------------

Q4_0_CUH, Q5_1_CUH, QUANTIZER = "formats/q4_0.cuh", "formats/q5_1.cuh", "quantize/q8_1.cuh"
LOOP = "\n        for (int j = 0; j < 16; ++j)"


@pytest.mark.parametrize(
    ("path", "file", "old", "new", "fault"),
    [
        (Q4_0, Q4_0_CUH, "q[j] = qs[j] & 0x0F", "q[j] = (qs[j] & 0x0F) - 8", "offset-twice"),
        (Q4_0, Q4_0_CUH, "Minimum::OFFSET", "Minimum::NONE", "offset-missing"),
        (Q5_1, Q5_1_CUH, "Minimum::MEETS_S", "Minimum::NONE", "minimum-missing"),
        (Q5_1, Q5_1_CUH, "Minimum::MEETS_S", "Minimum::MEETS_CODES", "sum-of-codes"),
        (Q4_0, NAIVE, "q[k] * xb->qs[k]", "q[k] * xb->qs[k / 2 + k % 2 * 16]", "activations-interleaved"),
        (Q4_0, NAIVE, "q[k] * xb->qs[k]", "q[k] * (uint8_t)xb->qs[k]", "signedness"),
        (Q5_1, Q5_1_CUH, "(high >> j & 1)", "(high >> 2 * j & 1)", "fifth-bits-interleaved"),
        (Q4_0, Q4_0_CUH, f"q[j] = qs[j] & 0x0F;{LOOP} q[j + 16] = qs[j] >> 4",
         f"q[j] = qs[j] >> 4;{LOOP} q[j + 16] = qs[j] & 0x0F", "nibbles-swapped"),
        (Q4_0, NAIVE, "wb[b].unpack(s, q)", "wb[b && b == nb - 1 ? b - 1 : b].unpack(s, q)", "stale-tile"),
        (Q4_0, NAIVE, "b < nb; ++b", "b < nb - 1; ++b", "end-of-k-dropped"),
        (Q4_0, NAIVE, "w + i % N * nb", "w + i % N * (nb - 1)", "row-stride"),
        (Q4_0, NAIVE, "y[i] = acc", "y[i % N * M + i / N] = acc", "transposed"),
        (Q4_0, NAIVE, "acc = accumulate(", "acc = half_to_float(float_to_half(acc)); acc = accumulate(",
         "half-accumulator"),
        (Q4_0, NAIVE, "y[i] = acc", "y[i] = half_to_float(float_to_half(acc))", "half-accumulator"),
        (Q4_0, NAIVE, "accumulate(acc, wb[b], s,", "accumulate(acc, wb[b ? b - 1 : b], s,",
         "neighbouring-scale"),
        (Q4_0, QUANTIZER, "t = __fmul_rn(v[i], over_d)", "t = truncf(__fmul_rn(v[i], over_d))", "quantizer-truncates"),
        (Q4_0, QUANTIZER, "t = __fmul_rn(v[i], over_d)", "t = floorf(__fmul_rn(v[i], over_d))",
         "quantizer-truncates"),
        (Q4_0, Q4_0_CUH, "ZERO = 8.0f", "ZERO = 7.0f", "term-factor"),
        (Q4_0, Q4_0_CUH, "qs[j] >> 4", "(qs[j] >> 3) & 15", ""),
        (Q4_0, "common.cuh", "(d_a, products,", "(d_a, products * 1.01f,", "term-factor"),
    ],
)  # fmt: skip
def test_altered_kernels(tmp_path: Path, path: Path, file: str, old: str, new: str, fault: str) -> None:
    kernel = altered_kernel(tmp_path, "q8_1_naive", file, old, new)
    with open_model(path) as model:
        tensor = model.tensors["blk.0.attn_q.weight"]
        rows = tensor.raw.reshape(tensor.n_rows, tensor.row_bytes)[:40].copy()
        fmt, k = FORMATS[tensor.type.name], tensor.k
    x = activations(3, 9, k)
    y = kernel.product(kernel.upload(fmt, rows), x)
    semantics = SEMANTICS["q8_1"]
    found = diagnose_kernel(kernel, fmt, semantics, rows, x, y, (0, 0))
    assert found.wrong
    assert [f.id for f in found.faults] == ([fault] if fault else [])


def test_the_layers_rung_says_what_it_is(tmp_path: Path) -> None:
    kernel = altered_kernel(tmp_path, "q8_1_naive", Q4_0_CUH, "Minimum::OFFSET", "Minimum::NONE")
    options = Options(probes="brief", prompt="The import statement", tensor="blk.0.attn_q", progress=False)
    report = verify(Q4_0, kernel, rungs=["layers"], options=options)
    found = report.rungs[0].diagnosis
    assert found is not None
    assert (found.tensor, found.verdict) == ("blk.0.attn_q.weight", "known fault")
    assert [f.id for f in found.faults] == ["offset-missing"]
    shown = text_of(Kind.RUN, report)
    assert "DIAGNOSIS of the first wrong GEMM, blk.0.attn_q.weight:" in shown
    assert "the s term is missing" in shown
    right = verify(Q4_0, ShippedKernel(KERNELS["q8_1_naive"], CpuHost(1)), rungs=["layers"], options=options)
    assert right.rungs[0].diagnosis is None
    assert "DIAGNOSIS" not in text_of(Kind.RUN, right)


# -- patterns and maps -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "said"),
    [
        (np.s_[:, 17:18], "rows 17"),
        (np.s_[3:4, :], "tokens 3"),
        (np.s_[:, 96:], "rows 96 to the last, where a tile of 32 begins"),
        (np.s_[:, 5::16], "rows 5 of every 16 (tiles of 16)"),
        (np.s_[4:8, 32:64], "rows 32 to 63 × tokens 4 to 7"),
        (np.s_[:, :], "everywhere"),
        (np.s_[:, 0:0], ""),
    ],
)
def test_patterns(where: tuple[slice, slice], said: str) -> None:
    bad = np.zeros((20, 128), bool)
    bad[where] = True
    lines = pattern(bad)
    assert said in lines[0] if said else not lines


def test_other_patterns() -> None:
    bad = np.zeros((20, 130), bool)
    bad.reshape(-1)[3 : 20 * 130 // 32 * 32 : 32] = True
    assert "lanes 3 of each warp of 32 outputs" in pattern(bad)[0]
    bad = np.random.default_rng(0).random((20, 128)) < 0.05
    assert "scattered" in pattern(bad, [7, 7, 8])[0]
    assert pattern(bad, [7, 7, 8])[1] == "along K, the first wrong block: 7 to 8"


def test_a_map_loses_no_wrong_cell(made: Callable[..., np.ndarray]) -> None:
    """Whatever the sizes, and however many rows are put in at a time: the worst of each cell and its wrong outputs."""
    rng = np.random.default_rng(0)
    for m, n in ((1, 1), (3, 65), (16, 64), (17, 64), (100, 300), (131, 1000)):
        grid = Map(m, n)
        ratio, bad = rng.random((m, n)), rng.random((m, n)) < 0.01
        for start in range(0, n, 8 * grid.rows):
            part = slice(start, start + 8 * grid.rows)
            grid.add(start, ratio[:, part], bad[:, part])
        height, width = grid.worst.shape
        assert height <= 16
        assert width <= 64
        assert (height - 1) * grid.tokens < m <= height * grid.tokens
        for i in range(height):
            for j in range(width):
                at = np.s_[i * grid.tokens : (i + 1) * grid.tokens, j * grid.rows : (j + 1) * grid.rows]
                assert grid.worst[i, j] == ratio[at].max()
                assert grid.wrong[i, j] == bad[at].sum()
    semantics, rows = SEMANTICS["q8_1"], made("Q4_0", 0)
    p = product(semantics, FORMATS["Q4_0"], rows, semantics.bytes_of(activations(0)))
    y = p.exact.astype(np.float32)
    assert utilisation(y, p).max() == judge(y, p).utilisation


def test_the_catalogue_is_whole() -> None:
    ids = [f.id for f in FAULTS]
    assert len(set(ids)) == len(ids)
    assert all(f.words and f.fix and "\n" not in f.fix for f in FAULTS)
    assert LEFT_OUT
