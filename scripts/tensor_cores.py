"""Measure L and F of this GPU's tensor cores, for `accumulates = { L = …, F = … }` in a declaration. Needs CuPy.

`accumulation` derives the bound from them. Tests of this kind are described by Fasi et al. (PeerJ Comput. Sci. 7:e330)
and by Khattak and Mikaitis (arXiv 2512.07004).

F: products 1, -1 and 2^-j at the first three places. Aligned to the largest exponent, 2^-j is cut off if j > F, and
kept otherwise; 1 and -1 cancel, so the result shows it exactly. F is the largest j that is kept.

L: products 1 and -1 at the first two places and 2^-(F+1) at place i. If i is added together with them, the small
product is cut off. If it is added later, they have cancelled before, and it is kept. L is the first place where it is
kept.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "harness"))

from gguf_verify.semantics.definitions import ENCODINGS
from gguf_verify.support.paths import kernel_root

SOURCE = kernel_root() / "probes" / "tensor_cores.cu"
Floats = npt.NDArray[np.float32]
#: a[M, K] and w[N, K], of values that the operands' type holds, and c[M, N] → float32[M, N], a·wᵀ + c of one
#: instruction.
Multiply = Callable[[Floats, Floats, Floats], Floats]
_MOST_FRACTION = 40


def probed(multiply: Multiply, m: int = 16, n: int = 8, k: int = 16) -> tuple[int, int]:
    """Measure L and F of tensor cores that multiply values of 16 bits.

    Args:
        multiply: one instruction of m tokens, n rows and k columns (mma.sync.m16n8k16); its products are exact.

    L is at most k: one instruction cannot show more. Raises ValueError if the outputs do not fit this model: not equal
    at every output, or never cut off.
    """

    def result(row: npt.NDArray[np.float64], accumulator: float = 0.0) -> float:
        a, w = np.tile(_halves(row)[0], (m, 1)), np.tile(_halves(row)[1], (n, 1))
        y = np.asarray(multiply(a, w, np.full((m, n), accumulator, np.float32)), np.float32)
        if y.shape != (m, n) or not (y == y[0, 0]).all():
            raise ValueError("equal rows and columns give different outputs: this is no matrix product")
        return float(y[0, 0])

    fraction = 0
    for bits in range(1, _MOST_FRACTION + 1):
        row = np.zeros(k)
        row[:3] = 1, -1, 2.0**-bits
        if result(row) != 2.0**-bits:
            break
        fraction = bits
    else:
        raise ValueError(f"nothing is cut off down to 2^-{_MOST_FRACTION}: the sums are computed in a different way")
    for place in range(2, k):
        row = np.zeros(k)
        row[0], row[1], row[place] = 1, -1, 2.0 ** -(fraction + 1)
        if result(row) != 0:
            return place, fraction
    return k, fraction


def _halves(products: npt.NDArray[np.float64]) -> tuple[Floats, Floats]:
    """Split products of ±2^-j into factors that a half holds."""
    exponent = np.where(products == 0, 0, np.frexp(products)[1] - 1)
    left = exponent // 2
    a = np.where(products == 0, 0.0, np.ldexp(np.sign(products), left))
    return a.astype(np.float32), np.where(products == 0, 0.0, np.ldexp(1.0, exponent - left)).astype(np.float32)


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
