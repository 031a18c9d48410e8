"""Rung 2, blocks: does one weight block × one activation block give llama.cpp's number?

Every block of every quantized tensor, against the blocks of one real activation row. The kernel runs with K=32 on one
column of blocks at a time; llama.cpp computes all columns in one op on a view of the same bytes. At K=32 nothing hides
behind a sum.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..container import Tensor
from ..errors import KernelFault
from ..formats import BlockFormat
from ..reference import Evaluation, LlamaRefused
from ..semantics import product
from .judging import judge_output
from .result import Failure, RungResult
from .run import Run

_CHUNK_VALUES = 1 << 25


def blocks_rung(run: Run) -> RungResult:
    """Judge every block's product. Raises EnvironmentFault where llama.cpp dies."""
    result = RungResult("blocks")
    with result.timed():
        wanted = {}
        for tensor in run.selected():
            if not tensor.type.quantized:
                result.skip("tensors not quantized")
            elif tensor.type.format is None:
                result.leave(tensor.name, f"type {tensor.type.name} is not covered")
            elif len(tensor.shape) != 2:
                result.leave(tensor.name, f"{len(tensor.shape)} dimensions, not a matrix")
            else:
                wanted[tensor.name] = tensor
        if wanted:
            try:
                _check(run, result, wanted)
            except LlamaRefused as error:
                result.leave("all tensors", str(error))
    return result


def _check(run: Run, result: RungResult, wanted: dict[str, Tensor]) -> None:
    rng = np.random.default_rng(run.options.seed)
    session = run.session
    rows_by_width: dict[int, npt.NDArray[np.float32]] = {}
    left = dict(wanted)
    capture = session.llama.capture(session.prompt)
    for gemm in run.progress("blocks", capture, total=len(wanted), unit="tensor"):
        if isinstance(gemm, Evaluation):
            break
        x = gemm.x[rng.integers(len(gemm.x))][None]
        if not np.isfinite(x).all():
            result.leave(gemm.tensor, "its activations are not finite")
            left.pop(gemm.tensor, None)
            continue
        rows_by_width.setdefault(x.shape[1], x)
        tensor = left.pop(gemm.tensor, None)
        if tensor is not None:
            _one_tensor(run, result, tensor, x)
    for tensor in left.values():
        x = rows_by_width.get(tensor.k)
        if x is None:
            result.leave(tensor.name, f"no GEMM of the graph has activations of its width, {tensor.k}")
        else:
            result.notes.append(f"{tensor.name} is no GEMM of this graph: checked on another's activations")
            _one_tensor(run, result, tensor, x)


def _one_tensor(run: Run, result: RungResult, tensor: Tensor, x: npt.NDArray[np.float32]) -> None:
    fmt = tensor.type.format
    assert fmt is not None
    failed = result.n_failures
    rows = run.row_bytes(tensor)
    step = max(1, _CHUNK_VALUES // tensor.k)
    try:
        for start in range(0, len(rows), step):
            _one_chunk(run, result, tensor, fmt, rows[start : start + step], start, x)
    except KernelFault as error:
        result.fail(Failure(f"{tensor.name}: {error}", tensor.name))
    blocks = rows.size // fmt.block_bytes
    result.count("tensors")
    result.count("blocks", blocks)
    result.details.append(
        {"tensor": tensor.name, "type": fmt.name, "blocks": blocks, "failures": result.n_failures - failed}
    )


def _one_chunk(
    run: Run, result: RungResult, tensor: Tensor, fmt: BlockFormat, rows: npt.NDArray[np.uint8], start: int,
    x: npt.NDArray[np.float32],
) -> None:  # fmt: skip
    kernel, llama_semantics = run.kernel, run.llama_semantics(fmt)
    assert llama_semantics.encode is not None
    theirs = run.library.block_products(fmt.type_id, rows, x, run.options.threads)  # [K/32, 1, N]
    columns = np.ascontiguousarray(rows.reshape(len(rows), -1, fmt.block_bytes).transpose(1, 0, 2))
    for b, column in enumerate(columns):
        part = np.ascontiguousarray(x[:, b * fmt.block_size : (b + 1) * fmt.block_size])
        own = run.semantics.encode(part) if run.semantics.encode else part.view(np.uint8)
        y = kernel.gemm(kernel.upload(fmt, column), kernel.quantize(part))
        expected = product(run.semantics, fmt, column, own, ordered=kernel.ordered)
        judge_output(result, "kernel", tensor, y, expected, lambda _m, _n: None, start, b)
        expected = product(llama_semantics, fmt, column, llama_semantics.encode(part))
        judge_output(result, "llama.cpp", tensor, theirs[b], expected, lambda _m, _n: None, start, b)
