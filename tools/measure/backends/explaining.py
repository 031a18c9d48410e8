"""The conditions under which a finding in docs/backends.toml explains wrong outputs of a node.

A wrong output of the same operation with other types, sizes or values is not explained.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from gguf_verify.formats.block import BlockFormat
from gguf_verify.formats.tensor_types import tensor_type
from gguf_verify_graph.operations import Judged, Node

from .page import Finding

#: GGML_PREC_F32, parameter 3 of FLASH_ATTN_EXT.
_PRECISE = 10
#: Rows per thread block of CUDA's mul_mat_vec_q if K is small.
_ROWS = 4


def _short_group(node: Node, judged: Judged) -> bool:
    """GROUP_NORM with fewer channels in the last group."""
    return node.source(0).ne[2] % node.integer(0) != 0


def _short_group_alone(node: Node, judged: Judged) -> bool:
    """Like `_short_group`; the first wrong output is in the last group, and no more outputs than that group's are
    wrong."""
    ne0, ne1, channels, batches = node.source(0).ne
    size = -(-channels // node.integer(0))
    left = channels % size
    return left > 0 and judged.place[1] >= channels - left and judged.wrong <= ne0 * ne1 * left * batches


def _other_heads(node: Node, judged: Judged) -> bool:
    return node.source(0).ne[0] != 64


def _high_bit(node: Node, judged: Judged) -> bool:
    """NVFP4 blocks with a scale whose highest bit is set."""
    known = tensor_type(node.source(0).type_id)
    if known is None or known.name != "NVFP4" or not isinstance(known.format, BlockFormat):
        return False
    rows = np.ascontiguousarray(node.source(0).data).reshape(-1, known.format.block_bytes)
    return bool((known.format.view(rows)["d"] & 0x80).any())


def _largest(node: Node) -> npt.NDArray[np.float64]:
    return np.asarray(node.source(0).values.max(axis=-1, initial=-np.inf))


def _top_of_negatives(node: Node, judged: Judged) -> bool:
    return node.output.ne[0] == 1 and bool((_largest(node) <= 0).any())


def _masked_row(node: Node, judged: Judged) -> bool:
    mask, q = node.optional(3), node.source(0)
    if mask is None or node.integer(3) == _PRECISE or q.ne[1] > 8 or q.ne[2] == node.source(1).ne[2]:
        return False
    return bool(np.isneginf(mask.data[:, :, : q.ne[1]].astype(np.float32)).all(axis=-1).any())


def _many_dimensions(node: Node, judged: Judged) -> bool:
    return node.source(0).ne[2] * node.source(0).ne[3] > 1


def _rows_of_experts(node: Node, judged: Judged) -> bool:
    """One token; the wrong outputs are in the first rows of experts other than the first."""
    if not judged.extent:
        return False
    w, (_, tokens, experts, rows) = node.source(0), judged.extent
    beyond = -w.ne[1] % _ROWS
    return w.blocks and node.source(2).ne[1] == 1 and tokens[1] == 0 and experts[0] > 0 and rows[1] < beyond


def _nothing_to_find(node: Node, judged: Judged) -> bool:
    with np.errstate(invalid="ignore"):
        greater = (node.source(0).values > -np.finfo(np.float32).max).any(axis=-1)
    return judged.got == -1 and judged.wrong <= int(np.count_nonzero(~greater))


def _infinite_square(node: Node, judged: Judged) -> bool:
    """XIELU with an infinite a·x²."""
    return bool(np.isnan(judged.got)) and bool(node.source(0).values[judged.place] < -1e18)


#: Finding → whether it explains a node's wrong outputs.
DESCRIBED: dict[str, Callable[[Node, Judged], bool]] = {
    "vulkan-group-norm": _short_group, "vulkan-rwkv-heads": _other_heads, "vulkan-nvfp4-scale": _high_bit,
    "vulkan-top-1": _top_of_negatives, "vulkan-masked-row": _masked_row, "cpu-count-equal": _many_dimensions,
    "cuda-rows-of-experts": _rows_of_experts, "cuda-nvfp4-scale": _high_bit, "cuda-group-norm": _short_group_alone,
    "cuda-argmax-of-nothing": _nothing_to_find, "cuda-xielu-nan": _infinite_square,
}  # fmt: skip


def explaining(node: Node, judged: Judged, known: Sequence[Finding]) -> str:
    """Return the id of the finding that explains a node's wrong outputs; "" if none does."""
    return next(
        (
            f.id for f in known if f.backend == node.backend and node.operation in f.operations
            and f.id in DESCRIBED and DESCRIBED[f.id](node, judged)
        ), "",
    )  # fmt: skip
