"""Rung 1, bytes: does every byte of the file mean to us what it means to llama.cpp?

Every byte is owned by exactly one field of the container, and our decode of every quantized block is bit-equal to
llama.cpp's `to_float`. A scale that is not finite is an error of the file: nothing computed from it means anything.
"""

from __future__ import annotations

import numpy as np

from ..container import Tensor, check_claims, printable
from ..formats import BlockFormat
from .result import MAX_FAILURES, MAX_HEX_BYTES, Failure, RungResult
from .run import Run, where

_CHUNK_VALUES = 1 << 22


def bytes_rung(run: Run) -> RungResult:
    """Judge the file's bytes. Raises EnvironmentFault where llama.cpp dies."""
    result = RungResult("bytes")
    with result.timed():
        _container(run, result)
        tensors = run.selected()
        for tensor in run.progress("bytes", tensors, unit="tensor"):
            fmt = tensor.type.format
            if not tensor.type.quantized:
                result.skip("tensors not quantized")
            elif not tensor.nbytes:
                result.skip("empty tensors")
            elif fmt is None:
                result.leave(tensor.name, f"type {tensor.type.name} is not covered")
            else:
                _decode(run, result, tensor, fmt)
    return result


def _container(run: Run, result: RungResult) -> None:
    for part in run.model.parts:
        at = 0
        for owned in sorted(part.byte_map):
            if owned.start != at:
                result.fail(
                    Failure(f"bytes {at} to {owned.start} of {printable(part.path.name)} belong to no one field")
                )
            at = max(at, owned.stop)
        if at != part.size:
            result.fail(Failure(f"bytes {at} to {part.size} of {printable(part.path.name)} belong to no field"))
        result.count("bytes", part.size)
    for finding in (*run.model.findings, *check_claims(run.model)):
        if finding.effect in ("error", "refuse"):
            result.fail(Failure(finding.line()))
        else:
            result.notes.append(finding.line())


def _decode(run: Run, result: RungResult, tensor: Tensor, fmt: BlockFormat) -> None:
    rows = run.row_bytes(tensor)
    step = max(1, _CHUNK_VALUES // tensor.k)
    failed = result.n_failures
    for start in range(0, len(rows), step):
        chunk = np.ascontiguousarray(rows[start : start + step]).reshape(-1, fmt.block_bytes)
        ours = fmt.decode(chunk)
        theirs = run.library.to_float(fmt.type_id, chunk.reshape(-1), ours.size).reshape(ours.shape)
        differs = ours.view(np.uint32) != theirs.view(np.uint32)
        if differs.any():
            differs &= ~(np.isnan(ours) & np.isnan(theirs))
            _report(result, tensor, fmt, chunk, start, differs.any(axis=1), ours, theirs)
        finite = np.isfinite(fmt.scale(chunk)) & np.isfinite(fmt.minimum(chunk))
        if not finite.all():
            _report(result, tensor, fmt, chunk, start, ~finite, ours, None)
    blocks = rows.size // fmt.block_bytes
    result.count("tensors")
    result.count("blocks", blocks)
    result.details.append(
        {"tensor": tensor.name, "type": fmt.name, "blocks": blocks, "bytes": tensor.nbytes, "offset": tensor.offset,
         "failures": result.n_failures - failed}
    )  # fmt: skip


def _report(
    result: RungResult, tensor: Tensor, fmt: BlockFormat, chunk: np.ndarray, start: int, bad: np.ndarray,
    ours: np.ndarray, theirs: np.ndarray | None,
) -> None:  # fmt: skip
    """Record bad blocks, `bad` bool[blocks of the chunk]."""
    per_row = tensor.k // fmt.block_size
    wrong = np.flatnonzero(bad)
    shown = wrong[: max(0, MAX_FAILURES - len(result.failures))]
    result.n_failures += len(wrong) - len(shown)
    for i in shown:
        row, block = start + int(i) // per_row, int(i) % per_row
        common = {
            "tensor": tensor.name, "row": row, "block": block, "byte_offset": tensor.block_offset(row, block),
            "block_hex": chunk[i].tobytes()[:MAX_HEX_BYTES].hex(), "part": tensor.part,
        }  # fmt: skip
        if theirs is None:
            what = f"{where(tensor.name, row, block=block)}: the scale or minimum is not finite"
            result.fail(Failure(what, **common))
        else:
            j = int(np.argmax(ours[i].view(np.uint32) != theirs[i].view(np.uint32)))
            what = f"{where(tensor.name, row, block=block)}: value {j} decodes differently from llama.cpp's to_float"
            result.fail(Failure(what, got=float(ours[i, j]), expected=float(theirs[i, j]), **common))
