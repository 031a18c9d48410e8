"""Runs of other people's kernels, as the tests' files in tests/support declare them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.kernels.foreign.opening import open_foreign
from gguf_verify.kernels.foreign.process import ForeignKernel
from gguf_verify.results.options import Options
from gguf_verify.results.report import Report
from gguf_verify.semantics.definitions import SEMANTICS
from gguf_verify.semantics.exact import product
from gguf_verify.semantics.gates import judge
from gguf_verify.verification import verify
from tests.support.tools import FIXTURES, ROOT

KERNELS = ROOT / "tests" / "support" / "foreign_kernels.py"


EXAMPLES = ROOT / "examples"


Q4_0 = FIXTURES / "tiny-Q4_0.gguf"


M, N, K = 5, 7, 96


def opened(name: str, time_limit: float = 20.0) -> ForeignKernel:
    return open_foreign(f"{KERNELS}:{name}", CpuHost(1), time_limit)


def operands() -> tuple[np.ndarray, np.ndarray]:
    """uint8[N, row bytes] of Q4_0, float32[M, K]."""
    rng = np.random.default_rng(5)
    rows = rng.integers(0, 256, (N, K // 32 * 18), np.uint8)
    rows.reshape(N, -1, 18)[..., 1] = 0x2C  # d about 0.06
    return rows, rng.standard_normal((M, K), np.float32)


def multiplied(kernel: ForeignKernel) -> bool:
    """Whether a product is right."""
    rows, x = operands()
    y = kernel.product(kernel.upload(FORMATS["Q4_0"], rows), x)
    semantics = SEMANTICS[kernel.semantics]
    return judge(y, product(semantics, FORMATS["Q4_0"], rows, semantics.bytes_of(x))).passed


def verified(kernel: Any, *rungs: str, tensor: str = "blk.0.attn_q", **options: Any) -> Report:
    brief: dict[str, Any] = {"probes": "brief", "prompt": "The", "n_predict": 1}
    chosen = Options(tensor=tensor, progress=False, **brief | options)
    return verify(Q4_0, kernel, CpuHost(1), rungs or ("blocks", "layers"), chosen)


def altered(folder: Path, example: str, old: str, new: str) -> Path:
    source = (EXAMPLES / example).read_text()
    assert old in source
    path = folder / example
    path.write_text(source.replace(old, new))
    return path
