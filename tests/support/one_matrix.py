"""The layers rung on one matrix of tiny-Q4_0.gguf, for tests of its probes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gguf_verify.formats.q4_0 import Q4_0
from gguf_verify.gguf.file import Tensor
from gguf_verify.gguf.model import Model
from gguf_verify.kernels.interface import Kernel
from gguf_verify.results.options import Options
from gguf_verify.results.rungs import RungResult
from gguf_verify.rungs.explain import Explanations
from gguf_verify.rungs.layers.probes.huge import HugeProbes
from gguf_verify.rungs.run import Run


@dataclass(frozen=True)
class OneMatrix:
    """A run of a kernel, the matrix, and the result that probes write to."""

    run: Run
    tensor: Tensor
    result: RungResult

    @classmethod
    def of(cls, kernel: Kernel, model: Model, **options: Any) -> OneMatrix:
        run = Run(model, kernel, Options(progress=False, threads=1, **options))
        return cls(run, model.tensors["blk.0.attn_k.weight"], RungResult(name="layers"))

    @property
    def large_products(self) -> HugeProbes:
        units = self.run.row_bytes(self.tensor).reshape(-1, Q4_0.block_bytes)
        like = np.ones((1, 256), np.float32)
        return HugeProbes(self.run, self.result, self.tensor, Q4_0, units, like, Explanations(self.result, 1))
