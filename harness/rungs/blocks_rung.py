"""Rung 2, blocks: does one weight block × one activation block give llama.cpp's number?

Every block of every quantized tensor, against one block of real activations. The kernel runs with K=32 on one column of
blocks at a time; llama.cpp computes all columns in one op on a view of the same bytes. At K=32 nothing hides behind a
sum; and so that nothing hides behind a zero, each column takes its activations from the token whose codes hold the
fewest, and where zeros are left the column is judged again on drawn activations that have none. A second row with the
largest code everywhere takes integer sums to where they would overflow a type that is too narrow.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..container import Tensor, printable
from ..errors import KernelFault
from ..formats import Q8_1, BlockFormat
from ..formats.legacy import QK
from ..reference import Evaluation, LlamaRefused
from ..semantics import product
from ..semantics.activations import encode_q8_1
from .drawn import drawn, largest_codes
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
            elif not tensor.nbytes:
                result.skip("empty tensors")
            elif len(tensor.shape) < 2:
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
    session = run.session
    rows_by_width: dict[int, npt.NDArray[np.float32]] = {}
    left = dict(wanted)
    capture = session.llama.capture(session.prompt)
    for gemm in run.progress("blocks", capture, total=run.n_matrices(), unit="GEMM"):
        if isinstance(gemm, Evaluation):
            break
        if not np.isfinite(gemm.x).all():
            result.leave(gemm.tensor, "its activations are not finite")
            left.pop(gemm.tensor, None)
            continue
        tensor = left.pop(gemm.tensor, None)
        if tensor is None and gemm.x.shape[1] in rows_by_width:
            continue
        x = _fewest_zeros(gemm.x)
        rows_by_width.setdefault(x.shape[1], x)
        if tensor is not None:
            _one_tensor(run, result, tensor, x)
    for tensor in left.values():
        if tensor.k not in rows_by_width:
            result.leave(tensor.name, f"no GEMM of the graph has activations of its width, {tensor.k}")
        else:
            result.notes.append(
                f"{printable(tensor.name, 64)} is no GEMM of this graph: checked on another's activations"
            )
            _one_tensor(run, result, tensor, rows_by_width[tensor.k])


def _zeros(x: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
    """How many codes of each activation block are zero, int64[M, K/32], for x float32[M, K]."""
    blocks = encode_q8_1(x).reshape(len(x), -1, Q8_1.block_bytes)
    return np.asarray((Q8_1.codes(blocks) == 0).sum(axis=-1))


def _fewest_zeros(x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """float32[1, K]: each block of 32 from the row of x in which its codes hold the fewest zeros."""
    best = _zeros(x).argmin(axis=0)
    blocks = x.reshape(len(x), -1, QK)
    return np.ascontiguousarray(blocks[best, np.arange(len(best))].reshape(1, -1))


def _one_tensor(run: Run, result: RungResult, tensor: Tensor, x: npt.NDArray[np.float32]) -> None:
    fmt = tensor.type.format
    assert fmt is not None
    failed = result.n_failures
    rows = run.row_bytes(tensor)
    step = max(1, _CHUNK_VALUES // tensor.k)
    lacking = np.flatnonzero(_zeros(x)[0])
    x = np.concatenate([x, largest_codes(x)])
    if len(lacking):
        other = x[:1].copy().reshape(-1, QK)
        other[lacking] = drawn((1, tensor.k), x[:1], run.options.seed).reshape(-1, QK)[lacking]
        x = np.concatenate([x, other.reshape(1, -1)])
        name = "blocks judged again on drawn activations"
        result.figures[name] = result.figures.get(name, 0) + len(rows) * len(lacking)
    try:
        for start in range(0, len(rows), step):
            _one_chunk(run, result, tensor, fmt, rows[start : start + step], start, x)
    except KernelFault as error:
        result.fail(Failure(f"{printable(tensor.name, 64)}: {error}", tensor.name))
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
    theirs = run.library.block_products(fmt.type_id, rows, x, run.options.threads)  # [K/32, M, N], M 2 or 3
    columns = np.ascontiguousarray(rows.reshape(len(rows), -1, fmt.block_bytes).transpose(1, 0, 2))
    for b, column in enumerate(columns):
        part = np.ascontiguousarray(x[:, b * fmt.block_size : (b + 1) * fmt.block_size])
        m = 3 if len(part) == 3 and (part[2] != part[0]).any() else 2  # the third differs where the first has zeros
        part = part[:m]
        own = run.semantics.encode(part) if run.semantics.encode else part.view(np.uint8)
        y = kernel.gemm(kernel.upload(fmt, column), kernel.quantize(part))
        expected = product(run.semantics, fmt, column, own, ordered=kernel.ordered)
        judge_output(result, "kernel", tensor, y, expected, run.semantics, own, None, start, b)
        own = llama_semantics.encode(part)
        expected = product(llama_semantics, fmt, column, own)
        judge_output(result, "llama.cpp", tensor, theirs[b][:m], expected, llama_semantics, own, None, start, b)
