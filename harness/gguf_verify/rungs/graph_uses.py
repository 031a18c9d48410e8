"""Weights that llama.cpp's graph does not multiply, and weights of zeros that make activations zero."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..gguf.file import Tensor
from ..gguf.model import Model
from ..llama.evaluations import Evaluation
from ..support.text import quoted

#: Operations (ggml's names) that use a weight value by value, or along one dimension: none of them is a GEMM, and none
#: makes a copy that could be multiplied later. An operation that is missing here leaves its weights unverified.
_NO_PRODUCTS = frozenset(
    {"ADD", "ADD_ID", "ADD1", "SUB", "MUL", "DIV", "SCALE", "UNARY", "ROPE", "SOFT_MAX", "FLASH_ATTN_EXT",
     "SSM_CONV", "SSM_SCAN", "RWKV_WKV6", "RWKV_WKV7", "GATED_LINEAR_ATTN"}
)  # fmt: skip
_BLOCK = re.compile(r"blk\.\d+\.")


def not_multiplied(tensor: Tensor, done: Evaluation) -> str | None:
    """The kind of a tensor that no product of the graph needs, for a report; None where that is not known."""
    operations = done.used.get(tensor.name, [])
    if operations:
        return "tensors in no product" if _NO_PRODUCTS.issuperset(operations) else None
    return "tensors only looked up" if tensor.name in done.lookup else None


def why_not_checked(tensor: Tensor, done: Evaluation) -> str:
    """Why a matrix that the graph did not multiply was not checked, where `not_multiplied` does not know its kind."""
    operations = [op for op in done.used.get(tensor.name, []) if op not in _NO_PRODUCTS]
    if operations:
        return f"the graph uses it in {', '.join(operations)}, which is not followed"
    return "no node of the graph used it for this prompt"


def zeros_before(model: Model, tensor: Tensor) -> str | None:
    """Which weights of the file make the activations of a matrix zero, in words; None where none of its layer are
    zeros. A norm's come first, which are a factor of every activation."""
    zero = [t for t in _of_layer(model, tensor) if t.nbytes and not t.raw.any()]
    zero.sort(key=lambda t: not t.name.endswith("norm.weight"))
    return f"{quoted(zero[0].name)} is zero from byte {zero[0].offset} on" if zero else None


def _of_layer(model: Model, tensor: Tensor) -> Iterator[Tensor]:
    """The other weights of a matrix's layer; of a matrix in none, those in none."""
    layer = _BLOCK.match(tensor.name)
    for other in model.tensors.values():
        found = _BLOCK.match(other.name)
        if (found and found[0]) == (layer and layer[0]) and other.name.endswith(".weight") and other is not tensor:
            yield other
