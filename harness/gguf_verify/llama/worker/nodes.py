"""The matrices and rows that a MUL_MAT or MUL_MAT_ID node multiplies.

    MUL_MAT     y[i3, i2, i1] = W[i3 // r3, i2 // r2] · x[i3, i2, i1]     r: broadcast factors of the weights
    MUL_MAT_ID  y[t, u]       = W[ids[t, u]] · x[t, u % b]                b: rows of x per token, 1 or the experts used

The sources are ggml.h and ggml.c of llama.cpp v0.5.0. Indices are in NumPy's order, the slowest first. This module runs
in llama.cpp's process.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import ggml

PRODUCTS = ("MUL_MAT", "MUL_MAT_ID")
#: Operations whose result is a view of a tensor, used by a later node.
VIEWS = ("NONE", "VIEW", "RESHAPE", "PERMUTE", "TRANSPOSE")
#: Types without blocks that a product's weights may have.
ELEMENTS = (ggml.F32, ggml.F16, ggml.BF16)


def operation(t: Any) -> tuple[str, str]:
    """Return a node's operation, and the function of UNARY and GLU."""
    op = ggml.ggml_op_name(t.contents.op).decode()
    described = ggml.ggml_op_desc(t).decode()
    return op, described if described != op else ""


def is_view(node: Any) -> bool:
    """Whether a node computes nothing: its result is a view of another tensor."""
    return ggml.ggml_op_name(node.op).decode() in VIEWS


def is_computed(node: Any) -> bool:
    """Whether a node's output is computed: it is no view, and its branch of the graph is selected. llama.cpp calls the
    callback for nodes of every branch."""
    return not is_view(node) and ggml.is_computed(node)


@dataclass(frozen=True)
class Layout:
    """The matrices of a node, and the rows that each multiplies.

    Args:
        offsets: start of each matrix, in bytes of src[0]'s data.
        first_rows: row of the whole tensor at which each starts.
        nbytes: size of one matrix.
        matrix: index of the matrix that made each output row, int32[rows].
        row: row of the activations of each output row, int32[rows].
    """

    offsets: list[int]
    first_rows: list[int]
    nbytes: int
    matrix: npt.NDArray[np.int32]
    row: npt.NDArray[np.int32]


def weights_name(w: Any) -> str:
    """Return the name of the tensor that src[0] is, or is a view of."""
    whole = w.view_src.contents if w.view_src else w
    return str(whole.name.decode(errors="replace"))


def obstacle(node: Any) -> str | None:
    """Say why a product with weights cannot be split into matrices of whole rows, or None."""
    w, x = node.src[0].contents, node.src[1].contents
    whole = w.view_src.contents if w.view_src else w
    if x.type != ggml.F32:
        name = ggml.ggml_get_type_traits(x.type).contents.type_name
        return f"its activations are {name.decode() if name else x.type}, not float32"
    if w.ne[0] != whole.ne[0] or w.type != whole.type:
        return "a view of the weights with rows of another length"
    row_bytes = _row_bytes(w)
    steps = [w.view_offs, *(w.nb[i] for i in (1, 2, 3) if w.ne[i] > 1)]
    if w.nb[0] != ggml.ggml_type_size(w.type) or (w.ne[1] > 1 and w.nb[1] != row_bytes):
        return "a view of the weights whose rows are not contiguous"
    if any(step % row_bytes for step in steps):
        return "a view of the weights that does not start at a row"
    return None


def layout(node: Any) -> Layout:
    """Split a product without an `obstacle`. Raises ValueError for an expert that does not exist."""
    w, x = node.src[0].contents, node.src[1].contents
    row_bytes = _row_bytes(w)
    offsets = [i3 * w.nb[3] + i2 * w.nb[2] for i3 in range(w.ne[3]) for i2 in range(w.ne[2])]
    if ggml.ggml_op_name(node.op) == b"MUL_MAT_ID":
        ids = ggml.read_tensor(node.src[2], np.int32)  # [tokens, experts used]
        if ids.size and not (ids.min() >= 0 and ids.max() < len(offsets)):
            raise ValueError(f"routes a token to expert {ids.max() if ids.min() >= 0 else ids.min()} of {len(offsets)}")
        tokens, used = np.indices(ids.shape)
        matrix, row = ids, tokens * x.ne[1] + used % x.ne[1]
    else:
        i3, i2, _ = np.indices((x.ne[3], x.ne[2], x.ne[1]))
        matrix = i3 // (x.ne[3] // w.ne[3]) * w.ne[2] + i2 // (x.ne[2] // w.ne[2])
        row = np.arange(matrix.size)
    first_rows = [(w.view_offs + offset) // row_bytes for offset in offsets]
    return Layout(
        offsets, first_rows, w.ne[1] * row_bytes, matrix.ravel().astype(np.int32), row.ravel().astype(np.int32)
    )


def _row_bytes(w: Any) -> int:
    traits = ggml.ggml_get_type_traits(w.type).contents
    return int(w.ne[0] // traits.blck_size * traits.type_size)
