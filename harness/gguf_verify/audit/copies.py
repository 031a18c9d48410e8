"""Matrices that are byte-for-byte copies of others in the file: a converter wrote one of them twice.

Tensors are compared if their scans found the same figures. Some copies are intended:

- Vectors, biases and tensors of one value may be equal in many layers.
- Vocabulary matrices serve as the embeddings, the output and those of layers that predict further tokens.
- A whole layer may be repeated, in merges that make a model deeper, or in layers that share their weights.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

from ..gguf.consistency import BLOCK
from ..gguf.file import Tensor
from ..gguf.model import Model
from ..gguf.records import Finding
from ..support.text import quoted
from .content import Content, finding_at
from .zeros import is_constant, is_vocabulary, is_weights

#: Smaller matrices may be equal by chance or by initialization.
_LEAST_BYTES = 1 << 10
_PIECE = 1 << 24


def copy_findings(contents: Sequence[Content], model: Model) -> Iterator[Finding]:
    """Yield a finding for each matrix that is a copy of an earlier one."""
    if model.metadata.get("general.type") == "imatrix":
        return
    known: dict[Hashable, list[Tensor]] = {}
    copies: list[tuple[Content, Tensor]] = []
    for content in contents:
        tensor, figures = content.tensor, _figures(content)
        if figures is None or is_vocabulary(tensor, model):
            continue
        others = known.setdefault(figures, [])
        first = next((t for t in others if _same(t, tensor)), None)
        if first is None:
            others.append(tensor)
        else:
            copies.append((content, first))
    repeated = _repeated_layers(contents, copies)
    for content, first in copies:
        if (_layer(content.tensor), _layer(first)) in repeated:
            continue
        found = f"{quoted(content.tensor.name)} is a copy of {quoted(first.name)}"
        yield finding_at(content, 0, "copy", "a matrix of its own", found)


def _figures(content: Content) -> Hashable | None:
    """Return a key that copies share; None for a tensor that may be a copy."""
    tensor, scan = content.tensor, content.scan
    if scan is None or tensor.nbytes < _LEAST_BYTES or not is_weights(tensor) or is_constant(content):
        return None
    return (
        tensor.type.name, tensor.shape, scan.zero_scales, scan.zero_blocks, scan.subnormal_scales, scan.negative_scales,
        tuple(scan.scale or ()), tuple(scan.minimum or ()), tuple(scan.obeying), scan.codes.tobytes(),
    )  # fmt: skip


def _same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors of equal size have the same bytes."""
    mine, theirs = one.raw, other.raw
    return all((mine[at : at + _PIECE] == theirs[at : at + _PIECE]).all() for at in range(0, len(mine), _PIECE))


def _layer(tensor: Tensor) -> int:
    """Return the tensor's layer; -1 if it is in none."""
    match = BLOCK.match(tensor.name)
    return int(match[1]) if match else -1


def _repeated_layers(contents: Sequence[Content], copies: Sequence[tuple[Content, Tensor]]) -> set[tuple[int, int]]:
    """Return the pairs of a layer and the earlier layer that all its matrices are copied from."""
    matrices: dict[int, set[str]] = {}
    for content in contents:
        if _figures(content) is not None:
            matrices.setdefault(_layer(content.tensor), set()).add(content.tensor.name)
    shared: dict[tuple[int, int], set[str]] = {}
    for content, first in copies:
        pair = _layer(content.tensor), _layer(first)
        if content.tensor.name == first.name.replace(f"blk.{pair[1]}.", f"blk.{pair[0]}.", 1):
            shared.setdefault(pair, set()).add(content.tensor.name)
    return {pair for pair, names in shared.items() if pair[0] >= 0 and names == matrices[pair[0]]}
