"""Kernels that are compiled ahead of their use."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.hosts.ahead import Ahead
from gguf_verify.hosts.base import Source
from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.hosts.cupy_arrays import CheckedRows
from gguf_verify.hosts.kept import Kept
from gguf_verify.kernels.by_name import on_host
from gguf_verify.kernels.ladder import KERNELS
from gguf_verify.kernels.launches import Foresight
from gguf_verify.results.options import Options
from gguf_verify.rungs.opening import open_run
from gguf_verify.support.errors import EnvironmentFault
from gguf_verify.verification import compiling
from tests.support.tools import FIXTURES


def source(file: str, entry: str = "gemm") -> Source:
    return Source(Path("kernels"), file, entry, {"A": "1"}, "90")


def test_code_is_made_once_and_its_errors_are_raised_where_it_is_taken() -> None:
    made: list[str] = []

    def compiled(of: Source) -> bytes:
        made.append(of.file)
        if of.file == "wrong.cu":
            raise EnvironmentFault("it does not compile")
        return of.file.encode()

    ahead = Ahead(compiled)
    ahead.begin([source("a.cu"), source("a.cu", "other"), source("wrong.cu")])
    ahead.finish()
    assert ahead.taken(source("a.cu", "third")) == b"a.cu"
    assert ahead.taken(source("b.cu")) is None
    with pytest.raises(EnvironmentFault, match="does not compile"):
        ahead.taken(source("wrong.cu"))
    assert sorted(made) == ["a.cu", "wrong.cu"]
    ahead.close()


def test_who_finishes_waits_for_all_of_them() -> None:
    made: list[str] = []

    def compiled(of: Source) -> bytes:
        time.sleep(0.01)
        made.append(of.file)
        if of.file == "3.cu":
            raise EnvironmentFault("it does not compile")
        return b""

    ahead = Ahead(compiled)
    ahead.begin([source(f"{i}.cu") for i in range(20)])
    ahead.finish()
    assert len(made) == 20
    ahead.close()


def test_what_has_to_wait_is_left_to_who_needs_it() -> None:
    gate, begun = threading.Event(), threading.Event()

    def compiled(of: Source) -> bytes:
        begun.set()
        assert gate.wait(60)
        return b""

    ahead = Ahead(compiled)
    files = [source(f"{i}.cu") for i in range(20)]  # more than are compiled at a time
    ahead.begin(files)
    assert begun.wait(60)
    assert ahead.taken(files[-1]) is None
    ahead.close()
    ahead.begin([source("late.cu")])
    assert ahead.taken(source("late.cu")) is None
    gate.set()


def test_what_a_run_will_load_is_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once for each source that the family's kernels load for the shapes of the model, by a card's choice of kernels;
    a kernel that cannot be asked is left to who uses it."""
    asked: list[Source] = []
    told = threading.Event()

    def compile_ahead(sources: Iterable[Source]) -> None:
        asked.extend(sources)
        told.set()

    with open_run(FIXTURES / "tiny-Q4_0.gguf", "q8_1", CpuHost(1), Options(probes="brief", progress=False)) as run:
        host: Any = run.kernel.host
        compiling.compile_ahead(run)
        assert not asked  # the CPU host compiles what it is asked for
        monkeypatch.setattr(host, "compiles_ahead", True)
        monkeypatch.setattr(host, "sm", "90")
        monkeypatch.setattr(host, "compile_ahead", compile_ahead)
        compiling.compile_ahead(run)
        assert told.wait(60)
        files = {of.file for of in asked}
        assert {"pack/weights.cu", "quantize/q8_1.cu", "gemm/q8_1/08_gemv.cu", "gemm/q8_1/07_wgmma.cu"} <= files
        kernel = run.kernel.of(FORMATS["Q4_0"], 1, 256, 256)
        assert {of.key for of in kernel.sources(FORMATS["Q4_0"], 1, 256, 256)} <= {of.key for of in asked}
        asked.clear()
        told.clear()
        monkeypatch.setattr(Foresight, "load", lambda *_: 1 / 0)
        compiling.compile_ahead(run)
        assert told.wait(60)
        assert not asked


@pytest.mark.parametrize("name", ["q8_1_naive", "q8_1_gemv", "f32_tiled"])
def test_what_products_load_is_foreseen(name: str) -> None:
    class Loading(CpuHost):
        def load(self, root: Path, file: str, entry: str, defines: dict[str, str], target: str | None = None) -> Any:
            loaded.add(Source(root, file, entry, defines, target).key)
            return super().load(root, file, entry, defines, target)

    loaded: set[tuple[str, ...]] = set()
    fmt, m, n, k = FORMATS["Q4_0"], 3, 4, 64
    kernel = on_host(KERNELS[name], Loading(1)).of(fmt, m, n, k)
    foreseen = {of.key for of in kernel.sources(fmt, m, n, k)}
    weights = kernel.upload(fmt, np.zeros((n, k // 32 * 18), np.uint8))
    x = np.ones((m, k), np.float32)
    kernel.product(weights, x)
    kernel.gemm(weights, kernel.quantize(x))
    assert loaded == foreseen


# ---- kept ------------------------------------------------------------------------------------------------------------
# What a device keeps of weights.


def of_file(n: int) -> np.ndarray:
    w = np.arange(n, dtype=np.uint8).reshape(1, n)
    w.flags.writeable = False
    return w


def test_weights_of_a_file_are_kept_while_there_is_room() -> None:
    kept, first, second, third = Kept(100), of_file(3), of_file(3), of_file(3)
    assert kept.of("Q4_0", first, 60, lambda: "first") == "first"
    assert kept.of("Q4_0", second, 60, lambda: "second") is None
    assert kept.of("Q4_0", third, 40, lambda: "third") == "third"
    for w, expected in ((first, "first"), (third, "third")):
        assert kept.of("Q4_0", w, 60, lambda: "again") == expected
    assert kept.of("Q4_0", first[:, :2], 0, lambda: "a part") == "a part"
    assert kept.of("Q4_1", first, 0, lambda: "another type") == "another type"


def test_what_cannot_be_made_is_not_tried_again() -> None:
    kept, w, tried = Kept(100), of_file(3), list[int]()
    for _ in range(2):
        assert kept.of("Q4_0", w, 60, lambda: tried.append(1)) is None
    assert tried == [1]
    assert kept.of("Q4_0", of_file(4), 100, lambda: "it takes no room") == "it takes no room"


def test_of_other_weights_the_last_are_kept() -> None:
    kept, one, other = Kept(0), np.zeros((1, 3), np.uint8), np.zeros((1, 3), np.uint8)
    assert kept.of("Q4_0", one, 60, lambda: "a") == "a"
    assert kept.of("Q4_0", one, 60, lambda: "b") == "a"
    assert kept.of("Q4_0", other, 60, lambda: "c") == "c"
    assert kept.of("Q4_0", one, 60, lambda: "d") == "d"
    assert kept.of("Q4_0", one, 1 << 40, lambda: "e") == "d"
    assert kept.of("Q4_0", other, 1 << 40, lambda: "f") is None


def test_rows_are_known_by_where_they_were_taken_from() -> None:
    kept, w, numbers = Kept(100), of_file(3), np.array([2, 0])
    rows = w[0, numbers]
    kept.take_from(rows, w, numbers)
    assert kept.origin("Q4_0", rows) is None  # nothing is kept of these weights
    kept.of("Q4_0", w, 60, lambda: "whole")
    whole, found = kept.origin("Q4_0", rows) or ("", None)
    assert whole == "whole"
    assert found is numbers
    assert kept.origin("Q4_1", rows) is None
    assert kept.origin("Q4_0", rows.copy()) is None


def test_a_column_of_blocks_is_not_the_first_row() -> None:
    """Both begin at the same address and have the same shape."""
    kept, raw = Kept(100), np.arange(64, dtype=np.uint8)
    raw.flags.writeable = False
    column, row = raw.reshape(8, 8)[:, :4], raw[:32].reshape(8, 4)
    assert kept.of("Q4_0", column, 10, lambda: "column") == "column"
    assert kept.of("Q4_0", row, 10, lambda: "row") == "row"
    assert kept.of("Q4_0", column, 10, lambda: "again") == "column"


@pytest.mark.parametrize(("rows", "reads", "products"), [(4096, 160, 40), (200, 10, 10)])
def test_products_are_checked_where_each_follows_a_reading(rows: int, reads: int, products: int) -> None:
    """As where there is no room to keep what was read."""
    checked, found = CheckedRows(0), {True: 0, False: 0}
    for turn in range(320):
        read = turn % 2 == 0
        found[read] += bool(len(checked.sample(rows, read)))
    assert found == {True: reads, False: products}
