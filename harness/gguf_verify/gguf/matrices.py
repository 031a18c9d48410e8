"""Tensors as matrices of weights: which ones are multiplied, and names for their rows."""

from __future__ import annotations

from ..formats.element import ElementFormat
from ..support.text import printable
from .file import Tensor


def may_be_matrix(tensor: Tensor) -> bool:
    """Return whether a tensor is probably used in a product, judging by its description.

    True if it is quantized, or has two dimensions and a type that is multiplied.
    """
    return tensor.type.quantized or (isinstance(tensor.type.weights, ElementFormat) and len(tensor.shape) > 1)


def rows_of_matrix(tensor: Tensor) -> int:
    """Return the number of rows of one of the tensor's matrices."""
    return tensor.shape[1] if len(tensor.shape) > 1 else 1


def matrix_of(tensor: Tensor, row: int) -> int | None:
    """Return the matrix (expert) that a row of a tensor belongs to; None if the tensor has only one matrix."""
    return row // tensor.shape[1] if len(tensor.shape) > 2 else None


def label(tensor: Tensor, row: int) -> str:
    """Return the name of a tensor, safe to print, with the number of the matrix with this row if it has several."""
    matrix = matrix_of(tensor, row)
    kind = "expert" if "exps" in tensor.name else "matrix"  # llama.cpp's names: blk.0.ffn_up_exps.weight
    return printable(tensor.name, 64) + ("" if matrix is None else f" {kind} {matrix}")


def where(tensor: Tensor, row: int, token: int | None = None, block: int | None = None) -> str:
    """Describe a place in words, safe to print; `row` counts through all matrices of the tensor."""
    text = f"{label(tensor, row)} row {row}"
    if matrix_of(tensor, row) is not None:
        text = f"{label(tensor, row)} row {row % tensor.shape[1]} (the tensor's row {row})"
    if block is not None:
        text += f" block {block}"
    return text if token is None else f"{text} token {token}"
