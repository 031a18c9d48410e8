"""Measure L and F of this GPU's tensor cores, for `accumulates = { L = …, F = … }` in a declaration. Needs CuPy."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "harness"))

from gguf_verify.semantics.definitions import ENCODINGS
from gguf_verify.semantics.tensor_cores import Floats, Multiply, probed
from gguf_verify.support.paths import kernel_root

SOURCE = kernel_root() / "probes" / "tensor_cores.cu"


def instruction(module: Any, cupy: Any, name: str, dtype: str) -> Multiply:
    """Return a function that multiplies by one launch of a probe."""

    def multiply(a: Floats, w: Floats, c: Floats) -> Floats:
        operands = [cupy.asarray(ENCODINGS[dtype].encode(v)) for v in (a, w)]
        d = cupy.empty(c.shape, np.float32)
        module.get_function(name)((1,), (32,), (*operands, cupy.asarray(np.ascontiguousarray(c)), d))
        return np.asarray(cupy.asnumpy(d), np.float32)

    return multiply


def main() -> None:
    """Print one line for each type."""
    import cupy

    module = cupy.RawModule(code=SOURCE.read_text(), backend="nvrtc")
    card = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    for name, dtype in (("mma_f16", "float16"), ("mma_bf16", "bfloat16")):
        products, fraction = probed(instruction(module, cupy, name, dtype))
        print(f"{card}, mma.sync.m16n8k16, {dtype}: L = {products}, F = {fraction}")


if __name__ == "__main__":
    main()
