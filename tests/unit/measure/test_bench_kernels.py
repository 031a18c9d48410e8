"""The benchmark of kernels on a stand-in for a GPU: the CPU host, with invented times."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.hosts.cpu_host import Buffer, CpuHost
from gguf_verify.kernels.grouped import Grouped
from gguf_verify.kernels.interface import Weights
from gguf_verify.kernels.ladder import KERNELS
from gguf_verify.kernels.launch import Launch
from gguf_verify.kernels.shipped import ShippedKernel
from gguf_verify.kernels.site import Site
from gguf_verify.semantics.definitions import SEMANTICS
from gguf_verify.semantics.order import Order
from gguf_verify.support.errors import KernelFault
from tools.measure.__main__ import main
from tools.measure.bench import experts, gpu, kernels, ours, sass, terms
from tools.measure.bench.matrices import Activations, Matrix, ends, nmse
from tools.measure.bench.ours import Ours

NUMPY: Any = SimpleNamespace(
    asarray=np.asarray, asnumpy=np.asarray, ascontiguousarray=np.ascontiguousarray,
    get_default_memory_pool=lambda: SimpleNamespace(free_all_blocks=lambda: None),
)  # fmt: skip
SHAPE = ["--n", "323", "--k", "64", "-m", "1", "21", "--types", "Q4_0", "--no-cublas", "--no-llama"]


class Card(CpuHost):
    """Buffers are arrays, as on a GPU."""

    sm = "90"
    cupy, clock_ghz, multiprocessors = NUMPY, 2.0, 100
    faults = nullcontext
    compiling = False

    def compile_ahead(self, sources: Any) -> None:
        self.compiling = True

    def upload(self, array: Any, what: str = "input") -> Any:
        return np.array(array).reshape(-1).view(np.uint8)

    def output(self, nbytes: int, what: str = "output") -> Any:
        return np.full(nbytes, 255, np.uint8)

    def launch(
        self, kernel: Any, grid: Any, block: Any, args: Sequence[Any], shared: int = 0, overlaps: bool = False
    ) -> None:
        assert not self.compiling, "compilers beside a measurement delay it"
        held = [Buffer(a, "array") if isinstance(a, np.ndarray) else a for a in args]
        super().launch(kernel, grid, block, held, shared, overlaps)

    def download(self, output: Any) -> Any:
        return output

    def await_compilers(self) -> None:
        self.compiling = False

    def describe(self) -> str:
        return "gpu: none (sm_90)"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Measure with these words; a product takes 10 µs in a graph, `dear.us` launched by itself, and `dear.few` in a
    graph of few."""
    dear = SimpleNamespace(us=1.0, few=1.0, launches=0)

    def alone(work: Any, cupy: Any) -> float:
        dear.launches += 1
        return dear.us

    def timed(works: Sequence[Any], repeat: int, cupy: Any) -> float:
        works[0]()
        return 10.0

    monkeypatch.setattr(kernels, "Queue", lambda: Card(1))
    monkeypatch.setattr(ours, "graph_us", timed)
    monkeypatch.setattr(ours, "once_us", alone)
    monkeypatch.setattr(ours, "few_us", lambda works, cupy: dear.few)
    monkeypatch.setattr(ours, "copies_of", lambda nbytes: 2)
    monkeypatch.setattr(kernels, "copy_tbs", lambda cupy, repeat: 4.0)
    monkeypatch.setattr(kernels, "empty_us", lambda queue, repeat: 1.0)
    monkeypatch.setattr(terms, "measured", lambda queue, repeat: [{"repeat": repeat}])

    def run(*words: str) -> Any:
        parser = argparse.ArgumentParser()
        kernels.add_arguments(parser)
        return kernels.Bench(parser.parse_args([*SHAPE, *words])).run()

    return SimpleNamespace(run=run, dear=dear)


def test_a_family_and_its_members(bench: Any, tmp_path: Path) -> None:
    file = tmp_path / "measured.json"
    data = bench.run("--kernels", "f32", "--members", "--json", str(file))
    assert json.loads(file.read_text()) == data
    found = [(r["who"], r["M"], r["us"], r.get("by")) for r in data["results"]]
    choice = [r for r in data["results"] if r["who"] == "f32"]
    assert [r["M"] for r in choice] == [1, 21]
    assert all(r["by"].startswith("f32_") and r["weight bytes"] == 323 * 36 for r in choice)
    assert {who for who, *_ in found} == {"f32", "f32_naive", "f32_tiled", "f32_vectorized"}
    assert len(found) == 6  # the choice is not timed again as a member
    assert data["faults"] == []
    assert list(data["header"]["families"]) == ["f32"]


def test_a_much_slower_member_is_not_timed(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """From `_MANY` tokens on it is not even launched for more, unless it is the choice there."""
    bench.dear.us, bench.dear.few = 400.0, 41.0
    data = bench.run("--kernels", "f32", "--members")
    assert sorted((r["who"], r["M"], r["us"]) for r in data["results"]) == [("f32", 1, 10.0), ("f32", 21, 10.0)]
    assert bench.dear.launches == 4
    monkeypatch.setattr(kernels, "_MANY", 1)
    data = bench.run("--kernels", "f32", "--members")
    assert [(r["who"], r["by"]) for r in data["results"]] == [("f32", "f32_tiled"), ("f32", "f32_vectorized")]
    assert bench.dear.launches == 4 + 3


def test_slow_launches_do_not_exclude_a_member(bench: Any) -> None:
    """By itself, a product of few microseconds takes as long as Python's launch of it."""
    bench.dear.us, bench.dear.few = 400.0, 40.0
    assert len(bench.run("--kernels", "f32", "--members")["results"]) == 6
    bench.dear.us = 400.1
    assert len(bench.run("--kernels", "f32", "--members")["results"]) == 2


def test_few_tokens_are_timed_before_many(bench: Any) -> None:
    """Those of every layout, and each choice before its members."""
    data = bench.run("--kernels", "q8_1", "f32", "--members", "-m", "21", "1")
    assert [r["M"] for r in data["results"]] == sorted(r["M"] for r in data["results"])
    for m in (1, 21):
        families = [r["who"] in ("q8_1", "f32") for r in data["results"] if r["M"] == m]
        assert families == sorted(families, reverse=True)
        assert sum(families) == 2 < len(families)


@pytest.mark.parametrize("ends", ["well", "no kernel", "a fault", "no memory"])
def test_rivals_are_timed_too(bench: Any, monkeypatch: pytest.MonkeyPatch, ends: str) -> None:
    """By tokens, until llama.cpp has no kernel or fails."""
    log: list[Any] = []

    class Llama:
        version = "0"

        def time(self, m: int, repeat: int) -> float | None:
            if ends == "a fault" and m == 21:
                raise KernelFault("wrong")
            return None if ends == "no kernel" else 3.0

        @contextmanager
        def weights(self, matrix: Matrix) -> Iterator[Llama]:
            if ends == "no memory":
                raise RuntimeError("no memory")
            yield self
            log.append("given back")

    def theirs(m: int, repeat: int, all_of: bool) -> Iterator[tuple[str, str, float | str]]:
        yield from (("A", "one", 2.0), ("A", "another", 1.0), ("B", "", "refused"))

    rivals = SimpleNamespace(of=lambda matrix: SimpleNamespace(time=theirs), cublas=lambda *a: {}, absent={})
    monkeypatch.setattr(kernels.Bench, "_llama", lambda self: Llama())
    monkeypatch.setattr(kernels.Bench, "_rivals", lambda self: rivals)
    data = bench.run("--kernels", "f32_tiled", "--rivals-n", "323")
    found = [(r["who"], r["M"], r["us"], r.get("by")) for r in data["results"]]
    by_llama = {"well": (1, 21), "a fault": (1,)}.get(ends, ())
    expected: list[Any] = []
    for m in (1, 21):
        expected += [("llama.cpp", m, 3.0, None)] if m in by_llama else []
        expected += [("A", m, 1.0, "another"), ("f32_tiled", m, 10.0, None)]
    assert found == expected
    assert log == ([] if ends == "no memory" else ["given back"])
    assert data["faults"] == {"a fault": ["wrong"], "no memory": ["no memory"]}.get(ends, [])
    assert ("llama.cpp, Q4_0" in data["absent"]) is (ends == "no kernel")
    assert data["absent"]["B, , Q4_0, M 1"] == "refused"


@pytest.mark.parametrize(("family", "sm", "timed"), [("q8_1", "90", True), ("f32", "90", False), ("q8_1", "89", False)])
def test_terms_are_timed_on_hopper(
    bench: Any, monkeypatch: pytest.MonkeyPatch, family: str, sm: str, timed: bool
) -> None:
    monkeypatch.setattr(Card, "sm", sm)
    assert bench.run("--kernels", family, "--repeat", "3", "-m", "1")["terms"] == ([{"repeat": 3}] if timed else [])


def test_a_wrong_probe_of_terms_is_reported(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(queue: Any, repeat: int) -> Any:
        raise KernelFault("wrong")

    monkeypatch.setattr(terms, "measured", wrong)
    data = bench.run("--kernels", "q8_1", "-m", "1")
    assert (data["faults"], data["terms"], len(data["results"])) == (["wrong"], [], 1)


def test_terms_are_checked_and_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """On every multiprocessor, with turns for 2 ms at 600 TFLOP/s."""
    probe, took, card = terms.Probe("OVERLAPPED", "OFFSET", 64, 2), list[Any](), Card(1)
    monkeypatch.setattr(terms, "probes", lambda: iter([probe]))

    def median(work: Any, products: int, repeat: int, cupy: Any) -> float:
        took.append((work.blocks, int(work.args[-1]), products, repeat))
        return 2000.0

    monkeypatch.setattr(terms, "median_us", median)
    (record,) = terms.measured(card, 3)  # type: ignore[arg-type]
    turns = int(2e-3 * 600e12 / 100 / (2 * 128 * 64 * 32 * 8)) // 2 * 2
    assert took == [(100, turns, 1, 3)]
    assert record["TFLOP/s"] == pytest.approx(600, rel=1e-3)
    assert (record["arrangement"], record["minimum"], record["columns"], record["warpgroups"]) == (
        "OVERLAPPED", "OFFSET", 64, 2
    )  # fmt: skip
    monkeypatch.setattr(terms.Probe, "expected", lambda self, turns: np.zeros(1, np.float32))
    with pytest.raises(KernelFault, match="the probe of terms has incorrect bits"):
        terms.measured(card, 3)  # type: ignore[arg-type]


def test_graphs_are_timed_after_the_warm_up() -> None:
    """A slower time is not kept: the graphs before the timed ones take at least two, and 20 ms."""
    took = iter([0.0, 15.0, 5.0, 4.0, 2.0, 3.0, 1000.0])
    done: list[None] = []
    event = SimpleNamespace(record=lambda stream: None, synchronize=lambda: None)
    cuda = SimpleNamespace(
        get_current_stream=lambda: None, Event=lambda: event, get_elapsed_time=lambda start, stop: next(took)
    )  # fmt: skip
    assert gpu.median_us(lambda: done.append(None), 10, 3, SimpleNamespace(cuda=cuda)) == 300.0
    assert len(done) == 6


def test_a_wrong_kernel_is_not_timed(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(self: Ours, kernel: ShippedKernel, m: int) -> None:
        raise KernelFault(f"{kernel.name} is wrong")

    monkeypatch.setattr(Ours, "check", wrong)
    data = bench.run("--kernels", "f32_tiled")
    assert data["results"] == []
    assert data["faults"] == ["f32_tiled is wrong"]


@pytest.mark.parametrize("name", ["q8_1_dp4a", "q8_1_naive"])
@pytest.mark.parametrize(("row", "token", "seen"), [(0, 20, True), (322, 0, True), (161, 9, False)])
def test_checked_rows_and_tokens(name: str, row: int, token: int, seen: bool) -> None:
    """The first and last rows, for every token against the naive kernel's bits, or else the first and last tokens."""
    card, fmt, spec = Card(1), FORMATS["Q4_0"], KERNELS[name]
    of = Ours(card, Matrix(fmt, 323, Activations(21, 64, 0, NUMPY), 0, NUMPY))  # type: ignore[arg-type]

    class Spoiled(Launch):
        def multiply(self, site: Site, weights: Weights, x: Any, out: Any, m: int) -> None:
            spec.launch.multiply(site, weights, x, out, m)
            if m == 21 and weights.n == 323:
                out.view(np.uint32).reshape(m, -1)[token, row] ^= 1

    of.check(ShippedKernel(spec, card), 21)
    wrong = ShippedKernel(replace(spec, launch=Spoiled()), card)
    if seen:
        with pytest.raises(KernelFault, match=f"{name} has incorrect bits: Q4_0, M 21, N 323, K 64"):
            of.check(wrong, 21)
    else:
        of.check(wrong, 21)


@pytest.mark.parametrize("name", ["q8_1_dp4a", "q8_1_naive", "f16_mma"])
def test_stale_memory_is_not_an_output(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool gives memory of the same size again, with the right outputs of the kernel before."""
    card, fmt, spec, kept = Card(1), FORMATS["Q4_0"], KERNELS[name], dict[int, Any]()
    monkeypatch.setattr(card, "output", lambda nbytes, what="": kept.setdefault(nbytes, np.zeros(nbytes, np.uint8)))
    of = Ours(card, Matrix(fmt, 323, Activations(21, 64, 0, NUMPY), 0, NUMPY))  # type: ignore[arg-type]

    class Nothing(Launch):
        def multiply(self, site: Site, weights: Weights, x: Any, out: Any, m: int) -> None:
            pass

    of.check(ShippedKernel(spec, card), 21)
    with pytest.raises(KernelFault, match=f"{name} has "):
        of.check(ShippedKernel(replace(spec, launch=Nothing()), card), 21)


def test_another_order_is_checked_by_its_bits() -> None:
    card = Card(1)
    of = Ours(card, Matrix(FORMATS["Q8_0"], 12, Activations(3, 256, 0, NUMPY), 0, NUMPY))  # type: ignore[arg-type]
    spec = replace(KERNELS["q8_1_dp4a"], order=Order(64))
    with pytest.raises(KernelFault, match="has incorrect bits"):
        of.check(ShippedKernel(spec, card), 3)
    unordered = replace(spec, order=None)
    of.check(ShippedKernel(unordered, card), 3)  # within the bound


def test_ends_and_errors() -> None:
    assert ends(5, 2).tolist() == [0, 1, 3, 4]
    assert ends(3, 10).tolist() == [0, 1, 2]
    assert nmse(np.array([1.0, 2.0]), np.array([1.0, 1.0])) == 0.5
    assert np.isnan(nmse(np.array([np.nan]), np.array([1.0])))
    matrix = Matrix(FORMATS["Q4_K"], 7, Activations(4, 256, 0, NUMPY), 0, NUMPY)
    exact = matrix.x.values.astype(np.float64) @ FORMATS["Q4_K"].decode(matrix.rows).reshape(7, 256).T.astype(
        np.float64
    )
    assert matrix.off(4, lambda tokens, rows: exact[tokens][:, rows]) == 0
    assert matrix.off(4, lambda tokens, rows: 1.1 * exact[tokens][:, rows]) == pytest.approx(0.01)


def test_a_mixture_of_experts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some slots are checked before a routing is timed; llama.cpp's outputs need only be near."""
    card, mixture = Card(1), experts.Mixture(FORMATS["Q4_0"], (4, 2, 40, 64), 5, 0)
    weights = Grouped(card).upload(mixture.fmt, mixture.rows, mixture.count)
    monkeypatch.setattr(experts, "graph_us", lambda works, repeat, cupy: float(len(works)))
    assert experts.ours_us(card, mixture, 5, weights, 3) == 8.0  # type: ignore[arg-type]
    routing = mixture.routings(5)[0]
    y = Grouped(card).routed(mixture.fmt, mixture.rows, SEMANTICS["q8_1"].bytes_of(mixture.x[:5]), routing)
    mixture.check(routing, y, exact=True)
    y[4, 1, 3] *= np.float32(1.001)
    mixture.check(routing, y, exact=False)
    with pytest.raises(KernelFault, match="the grouped product is wrong: Q4_0, 4 experts, M 5, slot 9"):
        mixture.check(routing, y, exact=True)
    y[4, 1] = -y[4, 1]
    with pytest.raises(KernelFault, match=r"llama\.cpp's MUL_MAT_ID is wrong"):
        mixture.check(routing, y, exact=False)


def test_the_table_of_experts() -> None:
    record = {"type": "Q4_0", "experts": 8, "top_k": 2, "N": 14336, "K": 4096}
    results = [{**record, "M": 1, "us": 20.0, "llama.cpp us": 30.0}, {**record, "M": 8, "us": 50.0}]
    assert experts.table({"results": results}).splitlines()[2] == (
        "| 8 | 2 | 14336 | 4096 | Q4_0 | 1.50× (20) | (50) |"
    )


LISTING = """\
.text.other:
        /*0000*/                   IDP.4A.S8.S8 R1, R2, R3, R4 ;
.text.gemm:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
.L_x_1:
        /*0010*/                   FADD R1, R2, R3 ;
.L_x_0:
        /*0020*/                   HGMMA.64x32x16.F32 R72, R96, gdesc[UR16], RZ, !UPT ;
        /*0030*/              @!P0 FFMA.FTZ R1, R2, R3, R4 ;
        /*0040*/                   LDS R4, [R5] ;
        /*0050*/               @P1 BRA `(.L_x_0) ;
        /*0060*/                   BRA `(.L_x_1) ;
.L_x_2:
        /*0070*/                   BRA `(.L_x_2);
"""


def test_instructions_of_the_inner_loop() -> None:
    """64·32·16 products of four warps are 8 outputs and slices of a lane, or 4 where half of each product is zero."""
    loop = sass.inner_loop(LISTING, "gemm")
    assert loop == sass.Loop(instructions=4, floats=1, products=8192, depth=16)
    assert loop.each(loop.instructions, 32) == 0.5
    assert loop.roof(32, 100, 2.0) == pytest.approx(100 * 128 * 2.0 / 0.5 * 64 / 1000)
    of_32 = sass.inner_loop(LISTING.replace("HGMMA.64x32x16.F32", "IMMA.16832.S8.S8"), "gemm")
    assert of_32 == sass.Loop(4, 1, 4096, 32)
    assert of_32.each(4, 16) == 2 * of_32.each(4, 32)
    assert sass.inner_loop(LISTING.replace("HGMMA.64x32x16.F32", "IDP.4A.S8.S8"), "gemm") == sass.Loop(4, 1, 128, 4)
    assert sass.inner_loop(LISTING, "other") is None
    assert sass.inner_loop(LISTING, "none") is None


def test_the_disassembler_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NVDISASM", str(tmp_path / "mine"))
    assert sass.disassembler() == tmp_path / "mine"


@pytest.mark.parametrize("text", ["no JSON", "[]", '{"results": [{}], "faults": []}'])
@pytest.mark.parametrize("bench", ["kernels", "experts"])
def test_files_without_measurements_are_rejected(
    bench: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "here.json"
    file.write_text(text)
    assert main(["bench", bench, "--from", str(file)]) == 2
    assert "holds no measurements" in capsys.readouterr().err
