"""The relative error of a GEMM that is due to the quantization of its weights.

For activations X[M, K] of the run, the weights W_q[N, K] of the model and W_f[N, K] of its source, both as float32:

    error = ‖X·W_qᵀ − X·W_fᵀ‖ / ‖X·W_fᵀ‖

with Frobenius norms over tokens and rows. Activations stay in float32, so this is the error of the weights alone; the
error of quantized activations belongs to the definitions (see `docs/concepts.md`).
"""

from __future__ import annotations

import math
import re

import numpy as np
import numpy.typing as npt

from ..formats.element import ElementFormat
from ..formats.tensor_types import WeightFormat
from ..gguf.file import Tensor
from ..gguf.matrices import label, matrix_of
from ..gguf.model import Model
from ..llama.evaluations import Evaluation
from ..llama.gemms import Gemm
from ..results.costs import GemmCost
from ..rungs.run import Run

Floats = npt.NDArray[np.float32]

#: Number of weights decoded at a time: 64 MiB of float32.
_MOST_WEIGHTS = 1 << 24
_IN_A_LAYER = re.compile(r"((?:enc\.|dec\.)?)(blk\.[0-9]{1,6})\.(.+)", re.DOTALL)


def measure(run: Run, source: Model, left: list[tuple[str, str]]) -> list[GemmCost]:
    """Measure each GEMM of the run's prompt, in the graph's order. `left` receives each skipped one and the reason.

    Raises LlamaRefused, EnvironmentFault.
    """
    session = run.session
    capture = session.llama.capture(session.prompt)
    found = []
    for gemm in run.progress("costs", capture, total=run.n_matrices(), unit="GEMM"):
        if isinstance(gemm, Evaluation):
            left += [(name, why) for name, why in gemm.unsupported.items() if run.wants(name)]
        elif run.wants(gemm.tensor) and not gemm.idle:
            made = _cost(run, source, gemm)
            if isinstance(made, GemmCost):
                found.append(made)
            else:
                left.append((gemm.tensor, made))
    return found


def _cost(run: Run, source: Model, gemm: Gemm) -> GemmCost | str:
    """Measure one GEMM; returns the reason if it has no cost."""
    tensor, original = run.model.tensors.get(gemm.tensor), source.tensors.get(gemm.tensor)
    if tensor is None or original is None:
        return "is not a tensor of both files"
    fmt, of_source = tensor.type.weights, original.type.weights
    for held, name in ((fmt, tensor.type.name), (of_source, original.type.name)):
        if held is None:
            return f"type {name} is not covered"
    assert fmt is not None
    assert of_source is not None
    m, n, k = gemm.shape
    if tensor.k != k or gemm.first_row + n > tensor.n_rows:
        return f"llama.cpp multiplies {n} rows of {k} values from row {gemm.first_row}"
    error = relative_error(gemm.x, _rows(tensor, gemm.first_row, n), fmt, _rows(original, gemm.first_row, n), of_source)
    if isinstance(error, str):
        return f"{label(tensor, gemm.first_row)}: {error}"
    layer, kind = place(gemm.tensor)
    return GemmCost(
        tensor=gemm.tensor,
        matrix=matrix_of(tensor, gemm.first_row),
        layer=layer,
        kind=kind,
        type=fmt.name,
        source_type=of_source.name,
        m=m,
        n=n,
        k=k,
        error=error,
    )


def place(name: str) -> tuple[str, str]:
    """Split a tensor's name into its layer ("" outside of layers) and its kind, the rest of the name."""
    found = _IN_A_LAYER.fullmatch(name)
    layer, kind = (found[1] + found[2], found[1] + found[3]) if found else ("", name)
    return layer, kind.removesuffix(".weight")


def _rows(tensor: Tensor, first: int, n: int) -> npt.NDArray[np.uint8]:
    return tensor.raw.reshape(tensor.n_rows, tensor.row_bytes)[first : first + n]


def relative_error(
    x: Floats,
    rows: npt.NDArray[np.uint8],
    fmt: WeightFormat,
    source_rows: npt.NDArray[np.uint8],
    source_fmt: WeightFormat,
) -> float | str:
    """Compute the relative error of the module's docstring; returns the reason if it is not a number.

    Args:
        x: activations, float32[M, K].
        rows, source_rows: the weights as stored in their files, uint8[N, row bytes], in formats `fmt`, `source_fmt`.
    """
    step = max(1, _MOST_WEIGHTS // max(1, x.shape[1]))
    moved = whole = 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        for at in range(0, len(rows), step):
            y = x @ _decoded(rows[at : at + step], fmt).T
            expected = x @ _decoded(source_rows[at : at + step], source_fmt).T
            moved += float(np.square(y.astype(np.float64) - expected).sum())
            whole += float(np.square(expected.astype(np.float64)).sum())
    if not math.isfinite(whole):
        return "the source's product is not finite"
    if not math.isfinite(moved):
        return "the product is not finite"
    return math.sqrt(moved / whole) if whole else "the source's product is zero"


def _decoded(rows: npt.NDArray[np.uint8], fmt: WeightFormat) -> Floats:
    """Decode weights to float32[N, K]."""
    if isinstance(fmt, ElementFormat):
        return fmt.decode(rows)
    return fmt.decode(rows.reshape(len(rows), -1, fmt.block_bytes)).reshape(len(rows), -1)
