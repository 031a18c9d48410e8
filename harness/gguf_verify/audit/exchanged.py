"""Search for the rows or the tensor that a wrong tensor was really made from.

Converters exchange tensors of one shape (gate and up), and permute rows for a rotary embedding twice or with the wrong
number of heads. A row of the file is taken for the quantization of the nearest row of the source if its squared
distance is below `_NEAR` of that row's squared length: types of one bit leave about 0.3, and unrelated rows are at
about 2. Some rows are searched among all rows, which identifies the fault. If the whole order can be found, llama.cpp
quantizes the source's rows in that order, which proves it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ..formats.block import BlockFormat
from ..formats.tensor_types import FLOAT_TYPES
from ..gguf.file import Tensor
from ..gguf.origin import Origin
from ..llama.files import Requantized
from ..support.protocol import evenly
from ..support.text import quoted

Floats = npt.NDArray[np.float32]
Order = npt.NDArray[np.int64]
#: Quantizes an origin by llama.cpp and compares the result with the tensor.
Remake = Callable[[Origin], Requantized]

#: Limit of the squared distance over the squared length of the source's row, for a row to count as made from it.
_NEAR = 0.5
#: Number of rows to search for: from the first differing one on, and evenly spaced.
_FROM_FIRST, _EVENLY = 8, 24
#: Number of columns to compare rows in, and of rows in a tensor up to which the whole order is searched.
_COLUMNS, _MOST_ROWS = 256, 8192
#: Rows decoded at a time.
_CHUNK = 4096
#: Fraction of the misplaced rows that must match another place.
_SHARE = 0.9
_NAMED = 3


def exchanged(tensor: Tensor, fmt: BlockFormat, first: int, others: Sequence[Origin], remake: Remake) -> str:
    """Describe what a tensor was made from instead of its own source rows; "" if not found.

    Args:
        first: row of the first wrong block.
        others: tensors of the source with this shape; the tensor's own comes first.
    """
    others = [o for o in others if o.type.name in FLOAT_TYPES or o.type.format is not None]
    with np.errstate(all="ignore"):  # values may not be finite; those are near nothing
        picked = np.unique([*range(first, min(first + _FROM_FIRST, tensor.n_rows)), *evenly(tensor.n_rows, _EVENLY)])
        columns = np.asarray(evenly(tensor.k, _COLUMNS))
        rows = _decoded(tensor, fmt, picked, columns)
        for other in others[1:]:
            # only of rows that are not all zeros
            near = _near_each(rows, _picked(other, picked, columns))[rows.any(axis=1)]
            if near.size and near.mean() >= _SHARE:
                proven = not remake(other).differing
                return (
                    f"is{', byte for byte,' if proven else ''} llama.cpp's quantization of the source's "
                    f"{quoted(other.name)}"
                )
        return _other_rows(tensor, fmt, others[:1], picked, columns, rows, remake)


def _other_rows(
    tensor: Tensor, fmt: BlockFormat, own: Sequence[Origin], picked: Order, columns: Order, rows: Floats, remake: Remake
) -> str:
    """Search for the rows of the tensor's own source in another order."""
    if not own or tensor.n_rows < 2:
        return ""
    (origin,) = own
    found = _nearest(rows, origin, columns)
    moved = (found != picked) & ~_near_each(rows, _picked(origin, picked, columns))
    if not moved.any() or (found[moved] >= 0).mean() < _SHARE:
        return ""
    pairs = [(int(r), int(s)) for r, s in zip(picked[moved], found[moved], strict=True) if s >= 0]
    what = "holds the source's rows in another order"
    if tensor.n_rows <= _MOST_ROWS:
        order = _whole_order(tensor, fmt, origin, columns)
        pairs = [(r, int(s)) for r, s in enumerate(order) if r != s]
        before = order if origin.order is None else origin.order[order]
        if not remake(replace(origin, order=before)).differing:
            what = "is, byte for byte, llama.cpp's quantization of the source's rows in another order"
        what += f" ({len(pairs):,} of {tensor.n_rows:,} moved)"
    said = [f"row {r} is the source's row {s}" for r, s in pairs[:_NAMED]]
    return f"{what}: {', '.join(said)}{' …' if len(pairs) > _NAMED else ''}"


def _whole_order(tensor: Tensor, fmt: BlockFormat, origin: Origin, columns: Order) -> Order:
    """Return for each row the nearest row of the source, or the row itself if none is near."""
    every = np.arange(tensor.n_rows)
    order = np.concatenate(
        [
            _nearest(_decoded(tensor, fmt, every[at : at + _CHUNK], columns), origin, columns)
            for at in range(0, tensor.n_rows, _CHUNK)
        ]
    )
    return np.where(order < 0, every, order)


def _decoded(tensor: Tensor, fmt: BlockFormat, picked: Order, columns: Order) -> Floats:
    """Decode rows of the tensor, float32[rows, columns]."""
    raw = np.concatenate([tensor.blocks(int(r), int(r) + 1) for r in picked])
    values = np.asarray(fmt.decode(raw.reshape(-1, fmt.block_bytes)), np.float32)
    return np.nan_to_num(values.reshape(len(picked), -1)[:, columns])


def _picked(origin: Origin, picked: Order, columns: Order) -> Floats:
    """Return rows of the source, float32[rows, columns]."""
    return np.concatenate([origin.rows(int(r), int(r) + 1)[:, columns] for r in picked])


def _near_each(rows: Floats, theirs: Floats) -> npt.NDArray[np.bool_]:
    """Whether each row is near the source's row at the same place; a row of zeros is near none."""
    length = (theirs.astype(np.float64) ** 2).sum(axis=1)
    return np.asarray(((rows.astype(np.float64) - theirs) ** 2).sum(axis=1) < _NEAR * length)


def _nearest(rows: Floats, origin: Origin, columns: Order) -> Order:
    """Return for each row the nearest row of the source, -1 if none is near."""
    best = np.full(len(rows), np.inf)
    found = np.full(len(rows), -1, np.int64)
    own = (rows.astype(np.float64) ** 2).sum(axis=1)
    for start, theirs in _chunks(origin, columns):
        length = (theirs**2).sum(axis=1)
        share = (own[:, None] + length - 2 * (rows @ theirs.T)) / length
        share = np.where(np.isfinite(share), share, np.inf)
        at = share.argmin(axis=1)
        nearer = share[np.arange(len(rows)), at] < best
        best[nearer], found[nearer] = share[np.arange(len(rows)), at][nearer], (start + at)[nearer]
    return np.where(best < _NEAR, found, -1)


def _chunks(origin: Origin, columns: Order) -> Iterator[tuple[int, npt.NDArray[np.float64]]]:
    for start in range(0, origin.n_rows, _CHUNK):
        yield start, origin.rows(start, min(start + _CHUNK, origin.n_rows))[:, columns].astype(np.float64)
