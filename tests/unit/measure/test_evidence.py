"""The measures of docs/evidence.md: executed code, the smallest fault that is found, and their tables."""

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
from tests.support.exact_products import real_weights
from tools.measure import markdown
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
)
from tools.measure.mutation.recording import Subject
from tools.measure.smallest import measure, smallest

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


# ---- smallest --------------------------------------------------------------------------------------------------------
# The smallest faults that are found: the search, and that combinations find smaller ones together than singly.


def test_the_smallest_power_of_two_that_is_found() -> None:
    for power in (0, 1, 7, 24):
        assert smallest(lambda share, least=2.0**-power: share >= least) == 2.0**-power  # type: ignore[misc]
    assert smallest(lambda share: True) == 2.0**-24
    assert smallest(lambda share: False) == np.inf


def test_combinations_find_smaller_faults_together() -> None:
    found = measure(FORMATS["Q8_0"], real_weights(FORMATS["Q8_0"], 1024, 256), 4, 0)
    assert found["together"] < found["single"] < 1
    assert found["sampled"] <= found["together"]


# ---- markdown --------------------------------------------------------------------------------------------------------
# Tables of Markdown, and the places of pages that are filled with them.


def test_a_table() -> None:
    assert markdown.table(["", "a"], [[1, "b"], [2, "c"]]) == "|  | a |\n|---|---|\n| 1 | b |\n| 2 | c |"


def test_a_share_is_never_rounded_to_all() -> None:
    shares = [markdown.percent(part, whole) for part, whole in ((0, 3), (1, 3), (99999, 100000), (3, 3), (0, 0))]
    assert shares == ["0 %", "33.33 %", "99.99 %", "100 %", "none"]


def test_places_of_a_page() -> None:
    text = "a\n<!-- bench: ladder -->\nold\n<!-- end -->\nb\n<!-- bench: card -->\n<!-- end -->\n"
    made = {"ladder": r"new \1", "card": "c"}
    filled = markdown.filled(text, made, "bench")
    assert filled == "a\n<!-- bench: ladder -->\nnew \\1\n<!-- end -->\nb\n<!-- bench: card -->\nc\n<!-- end -->\n"
    assert markdown.filled(filled, made, "bench") == filled
    assert markdown.marked(filled, "bench", "ladder") == r"new \1"
    for kind, name in (("bench", "decode"), ("mutation", "ladder")):
        with pytest.raises(UsageError, match=f"0 places are marked <!-- {kind}: {name} -->"):
            markdown.filled(text, {name: ""}, kind)
        with pytest.raises(ValueError, match=f"no place is marked <!-- {kind}: {name} -->"):
            markdown.marked(text, kind, name)
    with pytest.raises(UsageError, match="2 places are marked"):
        markdown.filled(2 * text, made, "bench")


@pytest.mark.parametrize(
    ("page", "kind", "names"),
    [
        (
            markdown.BENCHMARKS,
            "bench",
            (
                *("card", "definitions", "ladder", "ladder of f32", "fastest", "against llama.cpp", "other families"),
                *("against dequantize + cuBLAS", "rivals", "decode", "roofs", "choices", "verifications", "planted"),
            ),
        ),
        (markdown.EVIDENCE, "mutation", ("run", "kill", "naming", "alarms")),
    ],
)
def test_the_pages_have_every_place(page: Path, kind: str, names: tuple[str, ...]) -> None:
    markdown.filled(page.read_text(), dict.fromkeys(names, "x"), kind)
