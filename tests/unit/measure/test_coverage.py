"""The coverage of the shipped kernels: a kernel that counts what it executes, and the results of several."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from gguf_verify.formats.tensor_types import ELEMENTS, FORMATS
from gguf_verify.hosts.compiler import counts_fault
from gguf_verify.hosts.schedule import Schedule
from gguf_verify.kernels.ladder import KERNELS
from gguf_verify.kernels.shipped import ShippedKernel
from gguf_verify.results.coverage import Executed
from gguf_verify.support.errors import UsageError
from gguf_verify.support.paths import kernel_root
from gguf_verify.support.sources import file_digest
from tools.measure.coverage import (
    CountingHost,
    as_entry,
    below,
    collected,
    default_subjects,
    from_entry,
    load,
    sources,
    tables,
)  # fmt: skip
from tools.measure.mutation.recording import Subject

GEMM, QUANTIZER = "gemm/q8_1/04_dp4a.cu", "quantize/q8_1.cuh"
NAIVE, TILED = Subject("q8_1_naive", "Q4_0"), Subject("q8_1_tiled", "Q5_1")


@pytest.mark.skipif(counts_fault() is not None, reason=f"code is not counted here: {counts_fault()}")
def test_a_shipped_kernel_counts_what_it_executes() -> None:
    host = CountingHost(kernel_root())
    x = np.ones((2, 64), np.float32)

    def multiply(kernel: ShippedKernel) -> None:
        kernel.product(kernel.upload(FORMATS["Q4_0"], np.full((3, 36), 0x24, np.uint8)), x)

    kernel = ShippedKernel(KERNELS["q8_1_dp4a"], host)
    multiply(kernel)
    found = host.executed()
    assert all(found[GEMM].lines.values())
    assert not any(name.startswith("emulator") for name in found)
    text = (kernel_root() / QUANTIZER).read_text().splitlines()
    of_nan = next(i for i, line in enumerate(text, 1) if "return q == q" in line)
    assert not all(found[QUANTIZER].branches[of_nan, 0])
    scheduled = kernel.under(Schedule(order="descending"))
    assert scheduled is not None
    x[0, 0] = np.nan
    multiply(scheduled)
    assert all(host.executed()[QUANTIZER].branches[of_nan, 0])


def test_runs_are_joined_by_source() -> None:
    one = 1 + next(i for i, line in enumerate((kernel_root() / GEMM).read_text().splitlines()) if "if (" in line)
    runs = {
        NAIVE: {GEMM: Executed({one: True, one + 1: False}, {(one, 0): (True, False)})},
        TILED: {GEMM: Executed({one: True, one + 1: True}, {(one, 0): (True, False)})},
    }
    result = collected(kernel_root(), dict(from_entry(as_entry(*run)) for run in runs.items()))
    of = result.sources[GEMM]
    assert (of.kernels, of.types) == (("q8_1_naive", "q8_1_tiled"), ("Q4_0", "Q5_1"))
    assert of.sha256 == file_digest(kernel_root() / GEMM)
    assert (of.coverage.lines_run, of.coverage.lines, of.coverage.branches_run) == (2, 2, 0)
    (place,) = of.coverage.never
    assert (place.line, place.branch) == (one, True)
    assert "if (" in place.source
    assert QUANTIZER in result.not_run
    made = tables(result)
    assert f"`{GEMM}:{one}` | one way only" in made["never"]
    assert f"| `{GEMM}` | 2 | 2 | 2 of 2 | 0 of 1 | 1 |" in made["sources"]
    assert "2 verifications" in made["run"]


def test_each_shipped_kernel_and_type_is_measured_by_default() -> None:
    found = {(subject.kernel, subject.fmt) for subject in default_subjects()}
    for kernel, spec in KERNELS.items():
        assert {fmt for fmt in FORMATS if (kernel, fmt) in found} == {
            fmt for fmt in FORMATS if spec.covers(FORMATS[fmt])
        }
    assert {fmt for kernel, fmt in found if kernel not in KERNELS} == ELEMENTS.keys()


def test_only_kernels_count() -> None:
    root = kernel_root()
    assert GEMM in sources(root)
    assert not any(name.startswith("emulator") for name in sources(root))
    assert below(root, str(root / GEMM)) == GEMM
    assert below(root, str(root / "emulator" / "runner.hpp")) is None
    assert below(root, "/usr/include/math.h") is None


def test_each_shipped_kernel_is_published() -> None:
    assert {spec.file for spec in KERNELS.values()} <= load().sources.keys()


def test_a_source_that_changed_is_marked() -> None:
    result = load()
    name, of = next(iter(result.sources.items()))
    other = replace(result, sources={name: replace(of, sha256="0" * 64)})
    assert f"`{name}` (changed since)" in tables(other)["sources"]


def test_damaged_results(tmp_path: Path) -> None:
    (tmp_path / "coverage.json").write_text("{")
    with pytest.raises(UsageError, match="holds no results"):
        load(tmp_path / "coverage.json")
