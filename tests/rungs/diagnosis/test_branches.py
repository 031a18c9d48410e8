"""Branches that only wrong calls take: their names, and kernels of which none can be named."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from gguf_verify.diagnosis.branches import first_taken
from gguf_verify.diagnosis.calls import Calls
from gguf_verify.formats.q4_0 import Q4_0
from gguf_verify.hosts.compiler import checks_fault
from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.kernels.foreign.opening import open_foreign
from gguf_verify.kernels.foreign.process import ForeignKernel
from gguf_verify.semantics.definitions import SEMANTICS
from tests.support.foreign_runs import altered

pytestmark = pytest.mark.skipif(checks_fault() is not None, reason=f"comparisons are not traced: {checks_fault()}")

OF_SHAPE = "if (M > 20 && N % 48 == 16) acc += 1.0f;"
OF_DATA = "if (wb.d == 0x3c01 && xb.qs[5] > 0) acc += 1.0f;"
M, N, K = 30, 64, 96


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForeignKernel]:
    before = "        acc += from_half(wb.d) * (from_half(xb.d) * sum"
    source = altered(
        tmp_path_factory.mktemp("branches"), "cuda_q4_0.cu", before, f"        {OF_SHAPE}\n        {OF_DATA}\n{before}"
    )
    opened = open_foreign(f"{source}:gemm", CpuHost(1))
    yield opened
    opened.close()


def calls(kernel: ForeignKernel, m: int, n: int, rows_with_scale: tuple[int, ...] = ()) -> Calls:
    rng = np.random.default_rng(5)
    rows = rng.integers(0, 256, (n, K // 32, 18), np.uint8)
    rows[..., :2] = 0x66, 0x24
    rows[[*rows_with_scale], 1, :2] = 0x01, 0x3C
    x = np.abs(rng.standard_normal((m, K), np.float32))
    return Calls(kernel, Q4_0, SEMANTICS["q8_1"], rows.reshape(n, -1), x)


def test_a_branch_of_the_shape(kernel: ForeignKernel) -> None:
    found = first_taken(calls(kernel, M, N), 7, 33)
    assert found is not None
    assert found.id == "first-taken-branch"
    assert found.words.endswith(f": {OF_SHAPE}")


def test_a_branch_of_the_data(kernel: ForeignKernel) -> None:
    found = first_taken(calls(kernel, 6, 50, (9,)), 2, 9)
    assert found is not None
    assert found.words.endswith(f": {OF_DATA}")


def test_where_no_output_is_correct_fewer_columns_may_be(kernel: ForeignKernel) -> None:
    found = first_taken(calls(kernel, 6, 50, tuple(range(50))), 2, 9)
    assert found is not None
    assert OF_DATA in found.words


def test_no_branch_of_a_kernel_that_is_wrong_everywhere_is_named(tmp_path: Path) -> None:
    source = altered(tmp_path, "cuda_q4_0.cu", "    y[i] = acc;", "    y[i] = 2.0f * acc;")
    wrong = open_foreign(f"{source}:gemm", CpuHost(1))
    try:
        assert first_taken(calls(wrong, 6, 50), 2, 9) is None
    finally:
        wrong.close()
