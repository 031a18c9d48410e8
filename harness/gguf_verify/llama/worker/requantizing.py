"""Comparison of a tensor's rows with llama.cpp's quantization of its source's rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from .. import ggml
from .tensor_scan import Unusable

Bytes = npt.NDArray[np.uint8]

_FLOATS = 1 << 20  # values per chunk


class Spread(Protocol):
    """Yields the results of `work` for all starts in order; `nbytes` is the work per start."""

    def __call__(self, work: Callable[[int], Any], starts: Sequence[int], nbytes: int) -> Iterator[Any]: ...


def requantize(
    source: Bytes,
    source_type: int,
    target: Bytes,
    type_id: int,
    n_rows: int,
    k: int,
    importance: npt.NDArray[np.float32] | None = None,
    order: npt.NDArray[np.int64] | None = None,
    through: int | None = None,
    *,
    spread: Spread,
) -> tuple[dict[str, Any], Bytes]:
    """Quantize the rows of `source` with `ggml_quantize_chunk` and compare with `target`.

    Args:
        importance: float32[matrices, k], one row per matrix of consecutive rows; None for none. If llama.cpp makes the
            type only with an importance matrix, all columns then count the same.
        order: int64[n_rows], the source's row for each row; None for the same order.
        through: a type to round the values to first, F16 or BF16; None for none.
        spread: runs chunks, possibly in several threads.

    Returns:
        the number of `differing` blocks and the index of the `first`; `zeros`: blocks of the target that are all
        zeros; squared sums of the values (`energy`), of the target's `error` and of that of llama.cpp's result
        (`made_error`); and llama.cpp's version of the first differing block, uint8[block_bytes].
    """
    traits = ggml.ggml_get_type_traits(type_id).contents
    from_traits = ggml.ggml_get_type_traits(source_type).contents
    block_bytes = int(traits.type_size)
    quantized = bool(traits.is_quantized)
    if importance is None and source_type != type_id and ggml.ggml_quantize_requires_imatrix(type_id):
        importance = np.ones((1, k), np.float32)
    if k > _FLOATS and importance is None and order is None:
        # blocks are independent of rows, so long rows are processed in pieces
        unit = max(int(traits.blck_size), int(from_traits.blck_size))
        pieces = k // unit
        per = max(1, _FLOATS // unit)
        while pieces % per:
            per -= 1
        n_rows, k = n_rows * (pieces // per), per * unit
    row_bytes, source_row = len(target) // n_rows, len(source) // n_rows
    of_matrix = n_rows if importance is None else n_rows // len(importance)
    step = max(1, _FLOATS // k)
    by_row = source.reshape(n_rows, source_row)

    def floats(raw: Bytes, kind: int, n: int) -> npt.NDArray[np.float32]:
        own = ggml.ggml_get_type_traits(kind).contents
        if kind == ggml.F32:
            return np.frombuffer(raw.tobytes(), np.float32)
        if not own.to_float:
            raise Unusable(f"llama.cpp has no conversion from ggml type {kind}")
        values = np.empty(n, np.float32)
        own.to_float(ggml.pointer(raw), ggml.pointer(values), n)
        return values

    def compare(start: int) -> tuple[int, int, Bytes, npt.NDArray[np.float64]]:
        rows = min(step, of_matrix - start % of_matrix)
        if order is None:
            raw = source[start * source_row : (start + rows) * source_row]
        else:
            raw = np.ascontiguousarray(by_row[order[start : start + rows]]).reshape(-1)
        theirs = target[start * row_bytes : (start + rows) * row_bytes]
        values = None
        if source_type == type_id and through is None:
            made = raw
        else:
            values = floats(raw, source_type, rows * k)
            if through is not None and through != source_type:
                rounded = np.empty(rows * k * 2, np.uint8)
                ggml.ggml_quantize_chunk(through, ggml.pointer(values), ggml.pointer(rounded), 0, rows, k, None)
                values = floats(rounded, through, rows * k)
            made = np.empty(len(theirs), np.uint8)
            weights = None if importance is None else ggml.pointer(importance[start // of_matrix])
            ggml.ggml_quantize_chunk(type_id, ggml.pointer(values), ggml.pointer(made), 0, rows, k, weights)
        differs = np.flatnonzero((made != theirs).reshape(-1, block_bytes).any(axis=1))
        sums = np.zeros(4)
        if quantized and values is not None:
            sums[:3] = _sums(values, floats(theirs, type_id, rows * k), floats(made, type_id, rows * k))
            sums[3] = (~theirs.reshape(-1, block_bytes).any(axis=1)).sum()
        if not len(differs):
            return 0, -1, np.empty(0, np.uint8), sums
        at = int(differs[0])
        first = start * row_bytes // block_bytes + at
        return len(differs), first, made[at * block_bytes : (at + 1) * block_bytes].copy(), sums

    starts = [start for matrix in range(0, n_rows, of_matrix) for start in range(matrix, matrix + of_matrix, step)]
    total, first, block, sums = 0, -1, np.empty(0, np.uint8), np.zeros(4)
    for count, at, made, of_chunk in spread(compare, starts, step * row_bytes):
        if count and first < 0:
            first, block = at, made
        total += count
        sums += of_chunk
    names = ("energy", "error", "made_error")
    known = {name: float(value) if np.isfinite(value) else None for name, value in zip(names, sums, strict=False)}
    return {"differing": total, "first": first, **known, "zeros": int(sums[3])}, block


def _sums(x: npt.NDArray[np.float32], *others: npt.NDArray[np.float32]) -> list[float]:
    """Return Σx², and Σ(x - y)² for each y."""
    with np.errstate(invalid="ignore", over="ignore"):
        wide = x.astype(np.float64)
        return [float(np.dot(wide, wide)), *(float(np.dot(e, e)) for e in (wide - y for y in others))]
