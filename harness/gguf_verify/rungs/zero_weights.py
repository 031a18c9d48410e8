"""Activations that are all zero, where the file says why: weights that it holds as zeros."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..gguf.file import Tensor
from ..gguf.model import Model
from ..support.text import quoted

_BLOCK = re.compile(r"blk\.\d+\.")


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
