"""Which block of K is to blame: found in the call that failed, and said to be none where none is."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gguf_verify.diagnosis.localisation import Blame, along_k, blame
from gguf_verify.formats.tensor_types import FORMATS, WeightFormat
from gguf_verify.gguf.model import open_model
from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.kernels.interface import Weights
from gguf_verify.kernels.ladder import KERNELS
from gguf_verify.kernels.shipped import ShippedKernel
from gguf_verify.report.writer import Kind
from gguf_verify.results.options import Options
from gguf_verify.results.report import Report
from gguf_verify.semantics.definitions import SEMANTICS
from gguf_verify.semantics.exact import product
from gguf_verify.semantics.gates import judge
from gguf_verify.verification import verify
from tests.support.shown import json_of, text_of
from tests.support.tools import FIXTURES, altered_kernel

Q4_0 = FIXTURES / "tiny-Q4_0.gguf"
NAIVE = "gemm/q8_1/01_naive.cu"
M, N = 9, 40


class Wrong(ShippedKernel):
    """The right outputs, and then what a fault makes of them.

    Args:
        fault: (terms float64[M, N, blocks], a block's share of each output; outputs) → outputs.
    """

    def __init__(self, fault: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> None:
        super().__init__(KERNELS["q8_1_naive"], CpuHost(1))
        self.fault, self.calls = fault, 0

    def upload(self, fmt: WeightFormat, rows: np.ndarray) -> Weights:
        self.rows = rows.reshape(len(rows), -1, 18)
        return super().upload(fmt, rows)

    def product(self, weights: Weights, x: np.ndarray) -> np.ndarray:
        return self.gemm(weights, self.quantize(x))

    def gemm(self, weights: Weights, x: np.ndarray) -> np.ndarray:
        self.calls += 1
        y = super().gemm(weights, x)
        blocks = x.reshape(len(x), -1, 36)
        semantics = SEMANTICS["q8_1"]
        terms = np.stack(
            [
                product(
                    semantics,
                    FORMATS["Q4_0"],
                    np.ascontiguousarray(self.rows[:, b]),
                    np.ascontiguousarray(blocks[:, b]),
                ).exact
                for b in range(blocks.shape[1])
            ],
            axis=-1,
        )
        return self.fault(terms, y).astype(np.float32)


def only(b: int) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    return lambda terms, y: y + 0.01 * terms[..., b]


def from_token(m: int) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    return lambda terms, y: np.where(np.arange(len(y))[:, None] >= m, y * 1.01, y)


def clipped(terms: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Sums of more than two blocks lose some."""
    some = (np.abs(terms) > 0).sum(axis=-1) > 2
    return np.where(some, y * 1.01, y)


def found(fault: Callable[[np.ndarray, np.ndarray], np.ndarray], values: bool = False) -> tuple[Blame | None, int]:
    """Who is to blame for the first wrong output of the tiny model's rows of 8 blocks."""
    semantics, fmt = SEMANTICS["q8_1"], FORMATS["Q4_0"]
    with open_model(Q4_0) as model:
        tensor = model.tensors["blk.0.attn_q.weight"]
        rows = tensor.raw.reshape(tensor.n_rows, tensor.row_bytes)[:N].copy()
        x = np.random.default_rng(0).standard_normal((M, tensor.k)).astype(np.float32)
    kernel = Wrong(fault)
    weights, taken = kernel.upload(fmt, rows), semantics.bytes_of(x)
    bad = judge(kernel.gemm(weights, taken), product(semantics, fmt, rows, taken)).bad
    n, m = (int(i) for i in np.argwhere(bad.T)[0]) if bad.any() else (0, 0)
    kernel.calls = 0
    return blame(kernel, weights, rows, n, x if values else taken, m), kernel.calls


@pytest.mark.parametrize("values", [False, True])
@pytest.mark.parametrize("b", range(8))
def test_a_single_block(b: int, values: bool) -> None:
    who, calls = found(only(b), values)
    assert who == Blame(b, alone=True, only=True, blocks=8)
    assert calls <= 2 + 3 + 2
    assert list(along_k([who])) == [f"along K: only block {b} is wrong" + (", the last" if b == 7 else " of 8")]


def test_several_blocks() -> None:
    who, _ = found(lambda terms, y: y + 0.01 * terms[..., 3] + 0.02 * terms[..., 6])
    assert who == Blame(3, alone=True, only=False, blocks=8)
    assert list(along_k([who])) == ["along K: wrong from block 3 on, not only in that block"]


@pytest.mark.parametrize("m", [0, 3, 8])
def test_tokens_are_no_blocks(m: int) -> None:
    """What is wrong in some tokens only is wrong in them from the first block on, not from a block of their number."""
    who, _ = found(from_token(m))
    assert who is not None
    assert (who.block, who.only) == (0, False)


def test_the_sum_and_no_block() -> None:
    who, _ = found(clipped)
    assert who is not None
    assert (who.first, who.block) == (2, None)
    assert "no single block is wrong; the sum is wrong from block 2 on" in who.advice
    assert list(along_k([who, Blame(4, blocks=8)])) == [
        "along K: no block alone is wrong; the sum is wrong from block 2 or 4 on"
    ]


def test_not_k() -> None:
    who, calls = found(lambda _, y: np.roll(y, 1, axis=0))
    assert who == Blame(None, blocks=8)
    assert calls == 2
    assert "where the token's activations are all zero" in who.advice
    assert list(along_k([who])) == ["not K: wrong even where the token's activations are all zero"]


def test_not_the_same_twice() -> None:
    turn = iter(range(100))
    who, _ = found(lambda _, y: y if next(turn) else y * 1.01)
    assert who is not None
    assert not who.again
    assert "right when the kernel runs again" in who.advice
    assert list(along_k([who])) == ["not K: right when the kernel runs again"]


def test_a_window_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of large matrices some rows are multiplied again, which keep their place in tiles."""
    monkeypatch.setattr("gguf_verify.diagnosis.localisation._MOST_WORK", 0)
    monkeypatch.setattr("gguf_verify.diagnosis.localisation._WINDOW", 16)

    def fault(terms: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.where(np.arange(y.shape[1]) % 16 == 5, y + 0.01 * terms[..., 2], y)

    who, _ = found(fault)
    assert who == Blame(2, alone=True, only=True, blocks=8)


def test_elements_and_superblocks(tmp_path: Path) -> None:
    """32 values of a type without blocks count as one; the last may be fewer."""
    fmt, semantics = FORMATS["Q4_0"], SEMANTICS["q8_1"]
    kernel = altered_kernel(tmp_path, "q8_1_naive", NAIVE, "acc = accumulate(", "if (b != 1) acc = accumulate(")
    x = np.random.default_rng(0).standard_normal((2, 96)).astype(np.float32)
    rows = np.random.default_rng(0).integers(0, 16, (3, 54), dtype=np.uint8)
    rows.reshape(3, 3, 18)[..., :2] = np.array([0.01], np.float16).view(np.uint8)
    who = blame(kernel, kernel.upload(fmt, rows), rows, 0, semantics.bytes_of(x), 1)
    assert who == Blame(1, alone=True, only=True, blocks=3)


# -- what the report says of kernels that are wrong --------------------------------------------------------------------


def report_of(tmp_path: Path, old: str, new: str, file: str = NAIVE) -> tuple[Report, dict[str, Any], str]:
    kernel = altered_kernel(tmp_path, "q8_1_naive", file, old, new)
    options = Options(probes="brief", prompt="The import statement", tensor="blk.0.(attn_k|ffn_down)", progress=False)
    report = verify(Q4_0, kernel, rungs=["layers"], options=options)
    shown = text_of(Kind.RUN, report)
    said = json_of(Kind.RUN, report)["rungs"][0]["diagnosis"]
    assert all(part[:300] in shown for line in said["lines"] for part in line.split(". Fix: "))
    return report, said, shown


@pytest.mark.parametrize(
    ("old", "new", "place", "lines"),
    [
        ("wb[b].unpack(s, q)", "wb[b == 2 && i % N == 37 ? 1 : b].unpack(s, q)", (37, 0, 2),
         ["rows 37", "along K: only block 2 is wrong of 8"]),
        ("y[i] = acc", "y[i] = i / N >= 3 ? acc * 1.01f : acc", (0, 3, 0),
         ["tokens 3 to the last", "along K: wrong from block 0 on, not only in that block"]),
        ("y[i] = acc", "y[i] = i % 32 == 5 ? 0.0f : acc", (5, 0, 0),
         ["rows 5 of every 32 (tiles or warps of 32)", "along K: wrong from block 0 on"]),
        ("b < nb; ++b", "b < nb - 1; ++b", (0, 0, 7),
         ["everywhere", "along K: only block 7 is wrong, the last"]),
        ("y[i] = acc", "y[i % N * M + i / N] = acc", None, ["not K: wrong even where the token's activations are all"]),
        ("y[i] = acc", "if (i % N < 80) y[i] = acc", (80, 0, None),
         ["rows 80 to the last, where a tile of 16 begins", "never written"]),
        ("acc = accumulate(acc, ", "acc = acc + accumulate(0.0f, ", None,
         ["do not have the bits of the declared order", "fix: declare no order"]),
    ],
)  # fmt: skip
def test_reports(
    tmp_path: Path, old: str, new: str, place: tuple[int, int, int | None] | None, lines: list[str]
) -> None:
    report, said, shown = report_of(tmp_path, old, new)
    assert said["tensor"] == "blk.0.attn_k.weight"  # the first of the graph
    if place is not None:
        assert (said["row"], said["token"], said["block"]) == place
        row, token, block = place
        where = f"first wrong at row {row} token {token}{'' if block is None else f' block {block}'}"
        assert where in " ".join(shown.split())
        first = report.rungs[0].failures[0]
        assert (first.row, first.token, first.block) == place
    for line in lines:
        assert line in shown
    assert len(shown[shown.index("DIAGNOSIS") :].splitlines()) <= 28


def test_an_order_does_not_hide_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs that lack only the bits of the order come first; what is outside the bound is what is diagnosed, also
    where it is not among the rows that are replayed first."""
    monkeypatch.setattr(sys.modules["gguf_verify.diagnosis.diagnose"], "MOST_ROWS", 16)
    new = "acc = i % N < 20 ? acc + accumulate(0.0f, wb[b], s, half_to_float(xb->d), half_to_float(xb->s), sum, codes)"
    new += " : accumulate(i % N == 30 ? 2 * acc : acc, "
    _, said, shown = report_of(tmp_path, "acc = accumulate(acc, ", new)
    assert [fault["id"] for fault in said["faults"]] == ["window-of-k"]  # one block alone is right
    assert "do not have the bits of the declared order" not in shown
