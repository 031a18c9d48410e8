"""The catalogue of engines: its adapters are short and their own, its page is made of its results, and no verdict that
is not a pass goes unexplained."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.kernels.foreign.declared import parse
from gguf_verify.report.json import of_run
from gguf_verify.report.writer import Kind
from gguf_verify.results.options import Options
from gguf_verify.rungs.drawn import Drawn
from gguf_verify.support.errors import UsageError
from gguf_verify.verification import verify
from tests.support.shown import text_of
from tools.measure.engines import merged, page, runs
from tools.measure.engines.catalogue import FOLDER, Catalogue, Engine, Finding, Kernel, explaining, read

ADAPTERS = sorted(p for p in FOLDER.iterdir() if p.suffix in (".py", ".cu") and p.name != "build.py")
MOST_LINES = 60
BLOCK = re.compile(r"// \[gguf-verify\]\n(.*?)// \[/gguf-verify\]", re.S)


def row(verdict: str = "verified", kind: str = "Q4_0", adapter: str = "a.py:f", **more: Any) -> runs.Row:
    return runs.Row(engine="Engine", kernel="multiply", adapter=adapter, type=kind, verdict=verdict, **more)


def measured(*rows: runs.Row, **repetitions: runs.Output) -> runs.Measured:
    return runs.Measured(
        device="a card", date="2026-01-01", versions={"torch": "2"}, rows=rows, repetitions=repetitions
    )


FINDING = Finding(
    id="off-by-one", engine="Engine", title="It is off by one", seen="here", shows="Wrong.", cause="One.", fix="None.",
    kernels=("a.py:*",), types=("Q5_0",), repetition="print(1)", hosts=("cuda",),
)  # fmt: skip
CATALOGUE = Catalogue(
    (Engine(name="Engine", version="1", source="https://engine", built="By hand.", kernels=(
        Kernel(name="multiply", adapter="a.py:f", types=("Q4_0", "Q5_0", "Q8_0"), hosts=("cpu", "cuda")),
    )),), (FINDING,),
)  # fmt: skip


@pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda p: p.name)
def test_adapters_are_short(adapter: Path) -> None:
    lines = adapter.read_text().splitlines()
    assert len(lines) <= MOST_LINES
    assert max(map(len, lines)) <= 120


@pytest.mark.parametrize("adapter", [p for p in ADAPTERS if p.suffix == ".py"], ids=lambda p: p.name)
def test_python_adapters_declare_their_calls(adapter: Path) -> None:
    assert ast.get_docstring(ast.parse(adapter.read_text()))


@pytest.mark.parametrize("adapter", [p for p in ADAPTERS if p.suffix == ".cu"], ids=lambda p: p.name)
def test_cuda_adapters_declare_existing_kernels(adapter: Path) -> None:
    found = BLOCK.search(adapter.read_text())
    assert found is not None
    declared = parse("\n".join(line.removeprefix("//") for line in found[1].splitlines()))
    assert set(declared.of.formats) <= set(FORMATS)


def test_the_catalogue_names_adapters_and_types_that_exist() -> None:
    catalogue = read()
    for engine in catalogue.engines:
        for kernel in engine.kernels:
            name, _, of = kernel.adapter.partition(":")
            assert (FOLDER / name).is_file()
            assert of
            assert kernel.types
            assert set(kernel.types) <= set(FORMATS)
    used = {k.adapter.partition(":")[0] for e in catalogue.engines for k in e.kernels}
    assert used == {p.name for p in ADAPTERS}


def test_findings_are_complete() -> None:
    catalogue = read()
    assert len({f.id for f in catalogue.findings}) == len(catalogue.findings)
    for finding in catalogue.findings:
        assert all((finding.shows.strip(), finding.cause.strip(), finding.fix.strip(), finding.title))
        assert bool(finding.repetition) == bool(finding.hosts)
        compile(finding.repetition, finding.id, "exec")
        if finding.kernels:
            adapters = [(e.name, k.adapter, t) for e in catalogue.engines for k in e.kernels for t in k.types]
            assert any(finding.concerns(*one) for one in adapters), finding.id


def test_a_finding_concerns_its_kernels_and_types() -> None:
    assert explaining(CATALOGUE.findings, "Engine", "a.py:f", "Q5_0") == [FINDING]
    for other in (("Other", "a.py:f", "Q5_0"), ("Engine", "b.py:f", "Q5_0"), ("Engine", "a.py:f", "Q4_0")):
        assert not explaining(CATALOGUE.findings, *other)


def test_unverified_rows_need_a_finding() -> None:
    known, unknown, absent = row("mismatch", "Q5_0"), row("mismatch", "Q8_0"), row(runs.NOT_RUN, "Q4_0")
    assert page.unexplained({"cuda": measured(known, unknown, absent)}, CATALOGUE) == [unknown]
    assert page.unexplained({"cuda": measured(row("not all verified"))}, CATALOGUE)


def test_the_results_have_no_verdict_without_an_explanation() -> None:
    left = page.unexplained(page.load(), read())
    assert not left, [(r.adapter, r.type, r.verdict) for r in left]


def test_the_page_groups_types_with_one_verdict() -> None:
    rows = row(utilisation=0.1), row("mismatch", "Q5_0", utilisation=7.0), row(kind="Q8_0", utilisation=0.25)
    text = page.render({"cuda": measured(*rows, **{"off-by-one": runs.Output(text="1", exit_code=0)})}, CATALOGUE)
    assert "| Q4_0, Q8_0 |" in text
    assert "**verified**, 0.25" in text
    assert "| Q5_0 |" in text
    assert "mismatch, 7 " in text
    assert "[off-by-one](#off-by-one)" in text
    assert "3 pairs of a kernel and a weight type from 1 engines were tried, and 2 are verified" in text
    assert "On the GPU it prints:\n\n```\n1\n```" in text


def test_results_are_read_back(tmp_path: Path) -> None:
    results = {"cpu": measured(row(utilisation=0.5, says='a "word"'), row("mismatch", utilisation=None))}
    page.save(results, tmp_path / "engines.json")
    assert page.load(tmp_path / "engines.json") == results
    assert page.load(tmp_path / "none.json") == {}
    (tmp_path / "bad.json").write_text('{"cpu": 3}')
    with pytest.raises(UsageError, match=r"bad\.json contains no valid results"):
        page.load(tmp_path / "bad.json")


def test_a_later_measurement_replaces_rows_that_it_could_run() -> None:
    before = measured(row(kind="Q8_0"), row(kind="Q4_0"), x=runs.Output(text="old", exit_code=0))
    now = measured(row("mismatch", "Q4_0"), row(runs.NOT_RUN, "Q8_0"), row("mismatch", "Q5_0"))
    both = merged(before, now, CATALOGUE)
    assert [(r.type, r.verdict) for r in both.rows] == [
        ("Q4_0", "mismatch"),
        ("Q5_0", "mismatch"),
        ("Q8_0", "verified"),
    ]
    assert both.repetitions["x"].text == "old"


def test_devices_and_packages_of_earlier_rows_stay() -> None:
    before = replace(measured(row()), device="a card and another card", versions={"torch": "2", "triton": "3"})
    for device, devices in (("another card", "a card and another card"), ("c", "a card and another card and c")):
        now = replace(measured(row()), device=device, versions={"torch": "2.1"})
        both = merged(before, now, CATALOGUE)
        assert both.device == devices
        assert both.versions == {"torch": "2.1", "triton": "3"}


# ---- what a report says of one type ----------------------------------------------------------------------------------


def report(**more: Any) -> dict[str, Any]:
    details = [
        {"record": "gemm", "type": kind, "failures": 0, "own": own, "other_shapes": 0.5}
        for kind, own in (("Q4_0", 0.1), ("Q8_0", "inf"))
    ]
    envelopes = [{"type": kind, "under_test": True, "calls": 9, "domain": "M = 1"} for kind in ("Q4_0", "Q8_0")]
    worst = {"kernel": {"utilisation": 0.3, "where": "drawn.Q2_K.64x1024", "of_kernel": True}}
    rung = {
        "worst": worst,
        "failures": [],
        "unverified": [],
        "details": details,
        "envelopes": envelopes,
        "fault": None,
        **more,
    }
    return {"rungs": [rung], "exit_code": 1, "environment": {"kernel": {"definition": "q8_1"}}}


def test_each_type_has_a_verdict_of_its_own() -> None:
    failure = {"tensor": "drawn.Q8_0.64x1024", "block_type": "Q8_0", "what": "wrote outside"}
    both = report(failures=[failure])
    assert runs.row_of(both, "Q4_0") == {
        "type": "Q4_0", "verdict": "verified", "says": "", "definition": "q8_1", "domain": "M = 1", "utilisation": 0.5,
        "calls": 9,
    }  # fmt: skip
    assert (runs.row_of(both, "Q8_0")["verdict"], runs.row_of(both, "Q8_0")["says"]) == ("mismatch", "wrote outside")


def test_failures_beyond_the_listed_ones_count() -> None:
    listed = report()
    listed["rungs"][0]["details"][0]["failures"] = 3
    assert runs.row_of(listed, "Q4_0")["verdict"] == "mismatch"
    assert (
        runs.row_of(report(failures=[{"tensor": "", "block_type": "", "what": "all"}]), "Q4_0")["verdict"] == "mismatch"
    )


def test_nothing_computed_is_no_verdict() -> None:
    assert runs.row_of(report(), "Q5_0")["verdict"] == runs.NOT_RUN
    assert runs.row_of(report(fault="out of memory"), "Q4_0")["verdict"] == runs.NOT_RUN
    unverified = [{"name": "drawn.Q4_0.1x1", "why": "outside", "tensor": "drawn.Q4_0.1x1"}]
    assert runs.row_of(report(unverified=unverified), "Q4_0")["verdict"] == "not all verified"
    assert runs.row_of(report(unverified=unverified), "Q8_0")["verdict"] == "verified"


def test_a_kernel_without_its_engine_is_not_run(tmp_path: Path) -> None:
    kernel = msgspec.structs.replace(CATALOGUE.engines[0].kernels[0], needs=("library.so",))
    (made, *_) = runs.run_kernel(CATALOGUE.engines[0], kernel, "cpu", [], tmp_path)
    assert made.verdict == runs.NOT_RUN
    assert "built/library.so does not exist" in made.says


def test_a_repetition_runs_in_the_folder(tmp_path: Path) -> None:
    (tmp_path / "here").touch()
    prints = msgspec.structs.replace(FINDING, repetition="import os; print(os.listdir())")
    assert runs.repeat(prints, 30, tmp_path) == runs.Output(text="['here']", exit_code=0)
    raises = msgspec.structs.replace(FINDING, repetition="raise ValueError('no')")
    assert runs.repeat(raises, 30, tmp_path) == runs.Output(text="ValueError: no", exit_code=1)


# ---- adapters on small matrices --------------------------------------------------------------------------------------


def adapter(name: str) -> Iterator[Any]:
    spec = importlib.util.spec_from_file_location(f"engines_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
        yield module
    except (ImportError, OSError) as error:
        pytest.skip(f"{name} needs its engine: {error}")
    finally:
        del sys.modules[spec.name]


@pytest.fixture(params=["gguf_values", "torch_matmul", "tinygrad_weights"])
def of_values(request: pytest.FixtureRequest) -> Iterator[Any]:
    yield from adapter(request.param)


def test_values_are_those_of_the_file(of_values: Any) -> None:
    made = next(
        getattr(of_values, name) for name in ("product", "linear_float32", "linear") if hasattr(of_values, name)
    )
    fmt = FORMATS["Q4_0"]
    rows = np.random.default_rng(0).integers(0, 256, (3, 2 * fmt.block_bytes), np.uint8)
    rows.reshape(3, 2, -1)[..., 1] = 0x2C
    weights = np.asarray(made.pack(rows, "Q4_0"))
    np.testing.assert_array_equal(weights, fmt.decode(rows.reshape(3, 2, -1)).reshape(3, -1))


@pytest.mark.parametrize(("name", "rungs"), [("dequantize", ["values"]), ("product", ["blocks", "layers"])])
def test_adapters_are_verified_on_random_data(name: str, rungs: list[str]) -> None:
    options = Options(reference="none", probes="brief", progress=False)
    report = verify(Drawn(("Q4_0",), k=(64,)), f"{FOLDER / 'gguf_values.py'}:{name}", "cpu", options=options)
    assert [rung.name for rung in report.rungs] == rungs
    assert report.exit_code == 0
    found = runs.row_of(json.loads(json.dumps(of_run(report))), "Q4_0")
    assert (found["verdict"], found["says"]) == ("verified", "")
    assert found["calls"] > 0


# ---- llama.cpp-quant-gemm --------------------------------------------------------------------------------------------


@pytest.fixture
def build() -> Iterator[Any]:
    yield from adapter("build")


def checkout_of(folder: Path, *faults: str) -> Path:
    """What `build.py` looks for in a checkout of llama.cpp-quant-gemm."""
    header = folder / "checkout" / "kernels" / "gemm" / "gemm_quant_formats.cuh"
    header.parent.mkdir(parents=True)
    header.write_text("".join(f"x = {fault};\n" for fault in faults))
    (folder / "checkout" / ".git").mkdir()
    return folder / "checkout"


def test_a_checkout_is_laid_out_as_it_is_or_mended(tmp_path: Path, build: Any) -> None:
    checkout = checkout_of(tmp_path, *build.CURES)
    made = tmp_path / "built" / "quant_gemm"
    for cure, lines in ((True, build.CURES.values()), (False, build.CURES)):
        build.quant_gemm(checkout, tmp_path / "built", cure)
        text = (made / "kernels" / "gemm" / "gemm_quant_formats.cuh").read_text()
        assert text == "".join(f"x = {line};\n" for line in lines)
    assert not (made / ".git").exists()


def test_a_checkout_without_the_faults_is_not_mended(tmp_path: Path, build: Any) -> None:
    fault, *others = build.CURES
    with pytest.raises(SystemExit, match=f"{re.escape(fault)} not found"):
        build.quant_gemm(checkout_of(tmp_path, *others), tmp_path / "built", True)


#: A type → whether docs/what-passing-tests-could-not-see.md says that it is verified, and what it says else.
SAID = {
    "Q4_0": "", "Q5_0": "", "Q4_1": "the minimum's term is a quarter of what it should be",
    "Q5_1": "the minimum's term is a quarter of what it should be", "Q8_0": "at byte 2 of its weights",
}  # fmt: skip


@pytest.mark.parametrize("cure", [False, True])
@pytest.mark.parametrize("kind", SAID)
def test_verdicts_of_the_teaching_kernels_match_their_page(tmp_path: Path, build: Any, kind: str, cure: bool) -> None:
    """With the sources in `built`, as they are; nothing fetches them for a test."""
    source = FOLDER / "built" / "quant_gemm"
    header = source / "kernels" / "gemm" / "gemm_quant_formats.cuh"
    if not header.exists() or not all(fault in header.read_text() for fault in build.CURES):
        pytest.skip("llama.cpp-quant-gemm is not there as it is: see examples/engines/build.py")
    name = "quant_gemm_formats.cu"
    (tmp_path / name).write_bytes((FOLDER / name).read_bytes())
    build.quant_gemm(source, tmp_path / "built", cure)
    options = Options(reference="none", probes="brief", sanitize=True, progress=False)
    kernel = f"{tmp_path / name}:gemm_quant_kernel<OF>"
    report = verify(Drawn((kind,), k=(256,)), kernel, "cpu", rungs=["layers"], options=options)
    said = "" if cure else SAID[kind]
    assert report.exit_code == (1 if said else 0)
    assert said in " ".join(text_of(Kind.RUN, report).split())


@pytest.mark.parametrize(
    "row",
    [r for r in page.load()["cpu"].rows if r.engine == "llama.cpp-quant-gemm" and "registers" not in r.says],
    ids=lambda r: f"{r.adapter}-{r.type}",
)
def test_verdicts_match_the_table(row: runs.Row) -> None:
    """But for registers, which only CUDA's compiler counts."""
    if not (FOLDER / "built" / "quant_gemm").exists():
        pytest.skip("llama.cpp-quant-gemm is not there: see examples/engines/build.py")
    options = Options(reference="none", probes="brief", sanitize=True, progress=False)
    report = verify(Drawn((row.type,), k=(256,)), f"{FOLDER / row.adapter}", "cpu", rungs=["layers"], options=options)
    assert runs.VERDICTS[report.exit_code] == row.verdict
