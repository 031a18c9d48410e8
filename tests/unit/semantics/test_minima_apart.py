"""`f32_apart`: what a kernel loses that multiplies offsets and minima by sums of activations, and what it must not."""

from __future__ import annotations

import numpy as np
import pytest

from gguf_verify.diagnosis.diagnose import diagnose
from gguf_verify.diagnosis.identify import identify
from gguf_verify.formats.block import BlockFormat
from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.rungs.generated_inputs import drawn, special
from gguf_verify.semantics.definitions import SEMANTICS
from gguf_verify.semantics.definitions.f32 import F32
from gguf_verify.semantics.exact import product
from gguf_verify.semantics.gates import judge
from tools.measure.inputs import Bytes, Floats

APART = SEMANTICS["f32_apart"]
LIKE = np.ones((1, 32), np.float32)


def weights(fmt: BlockFormat, n: int, k: int) -> Bytes:
    """Any codes under scales of one size."""
    rng = np.random.default_rng(4)
    blocks = rng.integers(0, 256, (n * k // fmt.block_size, fmt.block_bytes), np.uint8)
    for field in fmt.fields:
        if field.dtype == "<f2":
            fmt.view(blocks)[field.name] = rng.uniform(0.01, 0.02, len(blocks)).astype(np.float16)
    return blocks.reshape(n, -1)


def apart(fmt: BlockFormat, rows: Bytes, x: Floats, late: bool = False) -> Floats:
    """Σ d·Σ q·a + m·Σ a in float32, value by value; `late`: the two sums of a row meet at its end."""
    blocks, size = rows.reshape(len(rows), -1, fmt.block_bytes), min(fmt.group, 32)
    q = fmt.codes(blocks).astype(np.float32).reshape(len(rows), -1, size)
    d, m = (np.repeat(v.reshape(len(rows), -1), fmt.group // size, axis=1).astype(np.float32)
            for v in (fmt.scales(blocks), fmt.minima(blocks)))  # fmt: skip
    y, of_minima = np.zeros((2, len(x), len(rows)), np.float32)
    for b, a in enumerate(np.split(x, x.shape[1] // size, axis=1)):
        products, total = np.zeros_like(y), np.zeros((len(x), 1), np.float32)
        for i in range(size):
            products, total = products + a[:, i, None] * q[:, b, i], total + a[:, i, None]
        if late:
            y, of_minima = y + d[:, b] * products, of_minima + m[:, b] * total
        else:
            y = y + (d[:, b] * products + m[:, b] * total)
    return np.asarray(y + of_minima, np.float32)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q4_K", "Q6_K", "Q8_0"])
def test_what_is_lost_is_within_its_bound_alone(name: str, late: bool) -> None:
    fmt = FORMATS[name]
    rows, x = weights(fmt, 48, 1024), special(1024, LIKE, 1e6)
    y = apart(fmt, rows, x, late)
    right = product(APART, fmt, rows, F32.bytes_of(x))
    f32 = product(F32, fmt, rows, F32.bytes_of(x))
    found = judge(y, right)
    assert found.passed
    assert 0 < found.utilisation < 0.2
    assert found.score < 4
    assert (np.abs(right.exact - f32.exact) <= right.bound * (1e-6 if fmt.offset or not fmt.has_min else 1)).all()
    if fmt.offset:  # it fails where an outlier meets the code that stands for zero
        assert not judge(y, f32).passed


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q4_K"])
def test_one_wrong_code_fails(name: str) -> None:
    fmt = FORMATS[name]
    rows, x = weights(fmt, 16, 2048), drawn((4, 2048), LIKE, 3)
    wrong = rows.copy()
    wrong[5, fmt.block_bytes * 3 - 1] ^= 1  # in the last byte of a block, where codes are
    assert judge(apart(fmt, rows, x), product(APART, fmt, rows, F32.bytes_of(x))).passed
    assert (~judge(apart(fmt, wrong, x), product(APART, fmt, rows, F32.bytes_of(x))).bad.all(axis=0)).sum() == 15


def test_a_kernel_that_declares_f32_is_told() -> None:
    fmt = FORMATS["Q4_0"]
    rows, x = weights(fmt, 48, 1024), special(1024, LIKE, 1e6)
    y = apart(fmt, rows, x)
    assert identify(fmt, rows, x, y).names == ("f32_apart",)
    said = diagnose(y, fmt, F32, rows, x)
    assert said.verdict == "another definition"
    assert "declare f32_apart" in said.lines[0]
    # what fits the narrow bound is not called by the name of the wide one
    ordinary = drawn((4, 1024), LIKE, 3)
    exact = product(F32, fmt, rows, F32.bytes_of(ordinary)).exact.astype(np.float32)
    assert identify(fmt, rows, ordinary, exact).names == ("f32",)
