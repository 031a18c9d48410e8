"""What llama.cpp's graph does with weights that it does not multiply."""

from __future__ import annotations

from ..gguf.file import Tensor
from ..llama import Evaluation

#: Operations (ggml's names) that use a weight value by value, or along one dimension: none of them is a GEMM, and none
#: makes a copy that could be multiplied later. An operation that is missing here leaves its weights unverified.
_NO_PRODUCTS = frozenset(
    {"ADD", "ADD_ID", "ADD1", "SUB", "MUL", "DIV", "SCALE", "UNARY", "ROPE", "SOFT_MAX", "FLASH_ATTN_EXT",
     "SSM_CONV", "SSM_SCAN", "RWKV_WKV6", "RWKV_WKV7", "GATED_LINEAR_ATTN"}
)  # fmt: skip


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
