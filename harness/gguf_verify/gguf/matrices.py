"""Tensors as matrices of weights: which are there to be multiplied, and how a row of one is named."""

from __future__ import annotations

from ..formats import ElementFormat
from ..support.text import printable
from .file import Tensor


def may_be_matrix(tensor: Tensor) -> bool:
    """Whether a tensor is there to be multiplied, as far as its description tells: quantized, or of numbers that are
    multiplied and of two dimensions."""
    return tensor.type.quantized or (isinstance(tensor.type.weights, ElementFormat) and len(tensor.shape) > 1)


def rows_of_matrix(tensor: Tensor) -> int:
    """How many rows one of the tensor's matrices has."""
    return tensor.shape[1] if len(tensor.shape) > 1 else 1


def matrix_of(tensor: Tensor, row: int) -> int | None:
    """Which matrix (expert) of a tensor of three or more dimensions a row belongs to; None where it holds only one."""
    return row // tensor.shape[1] if len(tensor.shape) > 2 else None


def label(tensor: Tensor, row: int) -> str:
    """The name of a tensor, safe to print, and of the matrix with this row where it holds several."""
    matrix = matrix_of(tensor, row)
    kind = "expert" if "exps" in tensor.name else "matrix"  # llama.cpp's names: blk.0.ffn_up_exps.weight
    return printable(tensor.name, 64) + ("" if matrix is None else f" {kind} {matrix}")


def where(tensor: Tensor, row: int, token: int | None = None, block: int | None = None) -> str:
    """A place in words, safe to print; `row` counts through all matrices of the tensor."""
    text = f"{label(tensor, row)} row {row}"
    if matrix_of(tensor, row) is not None:
        text = f"{label(tensor, row)} row {row % tensor.shape[1]} (the tensor's row {row})"
    if block is not None:
        text += f" block {block}"
    return text if token is None else f"{text} token {token}"
