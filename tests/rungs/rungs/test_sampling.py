"""Large matrices are sampled: what a wrong kernel does outside of the sample is found all the same."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gguf_verify.gguf.model import open_model
from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.report.writer import Kind
from gguf_verify.results.options import Options
from gguf_verify.results.report import Report
from gguf_verify.rungs import sampling
from gguf_verify.verification import verify
from tests.support.shown import json_of, last_line, text_of
from tests.support.tools import FIXTURES

MODEL = FIXTURES / "tiny-Q4_0.gguf"
TENSOR = "blk.1.ffn_up"
WRONG = """
import numpy as np
import numpy_q4_0
from gguf_verify import kernel

@kernel(["Q4_0"], semantics="q8_1")
def gemm(w, x, shape):
    w = np.array(w).reshape(shape.n, -1)
    if len(w) > {row} and shape.k > 32:
        w[{row}, {byte}] ^= {mask}
    return numpy_q4_0.gemm(w, x, shape)
"""


@pytest.fixture(autouse=True)
def small_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fixture's matrices are large."""
    monkeypatch.setattr(sampling, "SMALL", 1 << 12)
    monkeypatch.setattr(sampling, "_SAMPLE", 1 << 12)
    monkeypatch.setattr(sampling, "ROWS", 8)


def verified(kernel: str, *rungs: str, tensor: str | None = TENSOR, **options: Any) -> Report:
    chosen = Options(tensor=tensor, progress=False, probes="brief", prompt="The cat", n_predict=2, **options)
    return verify(MODEL, kernel, CpuHost(1), rungs or None, chosen)


def test_a_right_kernel_is_verified_and_says_what_a_sample_can_miss() -> None:
    report = verified("q8_1")
    assert report.exit_code == 0, report.rungs
    assert report.verdict == "verified"
    sampled = {rung.name: rung.sampled for rung in report.rungs if rung.sampled is not None}
    size = 2 * max(part.smallest or 0.0 for part in sampled.values())
    assert 0 < size < 1
    assert report.words == (
        "verified (tensors 'blk.1.ffn_up'; quick; 2 of 32 tokens; sampled: misses errors above "
        f"{size:.1g} times the outputs' size with a probability of at most 2e-06)"
    )
    assert list(sampled) == ["blocks", "layers", "tokens"]
    assert all(0 < part.alone < part.of for part in sampled.values())
    shown = text_of(Kind.RUN, report, detail=2)
    assert last_line(shown).startswith("VERIFIED (tensors 'blk.1.ffn_up'; quick; 2 of 32 tokens; sampled: misses ")
    assert "every output, one by one (in part): " in shown
    assert json_of(Kind.RUN, report)["rungs"][1]["sampled"]["what"] == "blocks"


def test_thorough_judges_every_element() -> None:
    report = verified("q8_1", "blocks", "layers", thorough=True)
    assert report.verdict == "verified"
    assert "sampled" not in report.words
    assert all(rung.sampled is None for rung in report.rungs)
    assert "--thorough" in report.command  # `--effort` has no name for few probes and every element


@pytest.mark.parametrize(("rung", "seed"), [("layers", 0), ("layers", 1), ("layers", 2), ("tokens", 3)])
def test_one_wrong_code_anywhere_is_found(rung: str, seed: int, tmp_path: Path) -> None:
    """The smallest error of a code, in a row that is drawn; its row is named."""
    rng = np.random.default_rng((9, seed))
    row, block, code = int(rng.integers(0, 300)), int(rng.integers(0, 8)), int(rng.integers(0, 16))
    file = tmp_path / "wrong.py"
    file.write_text(WRONG.format(row=row, byte=block * 18 + 2 + code, mask=int(rng.choice([1, 0x10]))))
    report = verified(f"{file}:gemm", rung, sandbox="none")
    assert report.exit_code == 1
    assert {f.row for f in report.rungs[0].failures} == {row}
    assert report.rungs[0].sampled is None  # all was judged in the end


def test_columns_of_blocks_are_sampled_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is wrong in a column that is drawn is found, named by its number in the row, and repeated alone."""
    monkeypatch.setattr(sampling, "_COLUMNS", 3)
    right = verified("q8_1", "blocks").rungs[0]
    assert right.verdict == "passed"
    assert right.sampled is not None
    assert right.sampled.of == 8 * 768
    assert right.sampled.alone == right.checked["blocks"] == 3 * 40  # columns and rows of 2^12 weights
    file = tmp_path / "last.py"
    with open_model(MODEL) as model:
        tensor = next(t for name, t in model.tensors.items() if TENSOR in name)
        last = bytes(tensor.raw[tensor.row_bytes - 18 : tensor.row_bytes])  # the last block of the first row
    file.write_text(WRONG.format(row=0, byte=2, mask=1).replace("shape.k > 32", f"bytes(w[0]) == {last!r}"))
    wrong = verified(f"{file}:gemm", "blocks", sandbox="none").rungs[0]
    assert {(f.row, f.block) for f in wrong.failures} == {(0, 7)}
    (call,) = {f.call for f in wrong.failures}
    assert call is not None
    again = verified(f"{file}:gemm", "blocks", sandbox="none", only_call=call.id).rungs[0]
    assert {(f.row, f.block) for f in again.failures} == {(0, 7)}


def test_runs_of_rows() -> None:
    """They are apart, the seed draws them, and the first and the last rows are among them."""
    for n in (64, 65, 1000):
        drawn = sampling.runs(n, 8, 4, (1, n))
        assert (drawn[0].start, drawn[-1].stop) == (0, n)
        assert len(drawn) == 8
        assert all(a.stop <= b.start for a, b in itertools.pairwise(drawn))
        assert drawn == sampling.runs(n, 8, 4, (1, n))
    assert sampling.runs(1000, 8, 4, (2,)) != sampling.runs(1000, 8, 4, (3,))


def test_what_is_drawn_depends_on_the_outputs() -> None:
    """So a kernel cannot make its errors vanish in combinations that it knows."""
    y = np.ones((2, 3), np.float32)
    digests = {sampling._digest(name, [y, other]) for name in ("a", "b") for other in (y, np.nextafter(y, 2))}
    assert len(digests) == 4
    assert sampling._digest("a", [y, y]) == sampling._digest("a", [y.copy(), y])
