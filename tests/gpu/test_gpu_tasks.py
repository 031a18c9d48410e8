"""Dequantizers, quantizers and repackings of others on a GPU."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from gguf_verify.results.options import Options
from gguf_verify.verification import verify
from tests.rungs.kernels.test_foreign_tasks import DEQUANTIZE, PACK, QUANTIZE, TASKS
from tests.support.foreign_runs import Q4_0

pytestmark = pytest.mark.needs("gpu")


@pytest.mark.parametrize(
    ("declared", "macro", "verdict"),
    [
        (DEQUANTIZE, "", "passed"),
        (DEQUANTIZE, "WITHOUT_BOUND", "failed"),
        (QUANTIZE, "", "passed"),
        (PACK, "", "passed"),
    ],
)
def test_on_a_gpu(tmp_path: Path, declared: str, macro: str, verdict: str) -> None:
    shutil.copy(TASKS.with_suffix(".cu"), tmp_path)
    file = tmp_path / "declared.toml"
    file.write_text(f'code = "foreign_tasks.cu"\n{declared}\nmacros = {{ {f"{macro} = 1" if macro else ""} }}\n')
    options = Options(tensor="blk.0", progress=False, kernel_time_limit=600.0)
    assert verify(Q4_0, str(file), "gpu", options=options).rungs[-1].verdict == verdict
