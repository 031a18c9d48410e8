"""Blocks that are larger than all others of their tensor by orders of magnitude, as after a flipped bit.

The highest bit of a half's exponent multiplies a scale below 2 by 2^16, that of a float32's by up to 2^128. The
`LARGEST` largest blocks of a tensor are sorted: if one is `LIMIT` times the next, it and those above it are a finding.
Trained weights spread widely, but without such a gap: the largest ratio in gemma3-270m is 9.3 (a norm in F32), that of
its matrices is smaller, and that of tiny Llamas in F32, F16 and Q8_0 is 1.6. The limit is a hundred times that. The
next bit of a half's exponent multiplies a scale by 2^8 only, which is not detected.

The scan knows the largest scale of a tensor, and some of its blocks give the usual size. Scales are read again only if
the largest one is that far from usual.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ..formats.tensor_types import decode_elements
from ..gguf.file import Tensor
from ..gguf.model import Model
from ..gguf.records import Finding
from ..support.protocol import evenly
from ..support.text import quoted
from .content import Content, finding_at

Floats = npt.NDArray[np.float32]

#: Least ratio of a block's size to the next one's that is reported.
LIMIT = 1 << 10
#: Number of blocks that are sorted; fewer outliers than this can be found.
LARGEST = 16
#: Number of blocks that give a tensor's usual size.
_USUAL = 64
#: Largest ratio of a group's scale to the scale stored in its superblock.
_OF_GROUP = 128
_PIECE = 1 << 24


def outlier_findings(contents: Sequence[Content], model: Model) -> Iterator[Finding]:
    """Yield a finding for each tensor with blocks that are far larger than all its others."""
    if model.metadata.get("general.type") == "imatrix":  # squares of activations do have such columns
        return
    for content in contents:
        if content.tensor.name.startswith("rope_"):  # factors: 1e30 marks an unused frequency
            continue
        if not _suspect(content):
            continue
        sizes, numbers = largest_blocks(content.tensor)
        far = np.flatnonzero(sizes[:-1] >= LIMIT * sizes[1:])
        if len(far):
            yield _finding(content, sizes, numbers, int(far[0]) + 1)


def _suspect(content: Content) -> bool:
    """Whether the largest scale or minimum of a tensor is far from the usual one."""
    tensor, scan = content.tensor, content.scan
    if scan is None or scan.scale is None or scan.not_finite or scan.blocks < _USUAL:
        return False
    fmt = tensor.type.format
    least, most = scan.scale
    largest = max(most, *(abs(m) for m in scan.minimum or ()), 0.0)
    if not largest >= LIMIT * least:
        return False
    per_row = tensor.blocks_per_row
    places = [divmod(number, per_row) for number in evenly(scan.blocks, _USUAL)]
    some = np.stack([np.array(tensor.blocks(row, row + 1)[0, block]) for row, block in places])
    sizes = _sizes(tensor, some)
    usual = np.median(sizes[sizes > 0]) if (sizes > 0).any() else np.inf
    factor = _OF_GROUP if fmt is not None else 1
    return bool(factor * largest >= LIMIT * usual)


def largest_blocks(tensor: Tensor) -> tuple[Floats, npt.NDArray[np.int64]]:
    """Return the sizes of the largest nonzero blocks, in descending order, and their indices."""
    sizes, numbers = np.empty(0, np.float32), np.empty(0, np.int64)
    raw, step = tensor.raw.reshape(-1, tensor.type.block_bytes), max(1, _PIECE // tensor.type.block_bytes)
    for first in range(0, len(raw), step):
        found = _sizes(tensor, raw[first : first + step])
        top = np.argpartition(found, max(0, len(found) - LARGEST))[-LARGEST:]
        sizes, numbers = np.append(sizes, found[top]), np.append(numbers, top + first)
    order = np.argsort(-sizes, kind="stable")[:LARGEST]
    order = order[sizes[order] > 0]
    return sizes[order], numbers[order]


def _sizes(tensor: Tensor, blocks: npt.NDArray[np.uint8]) -> Floats:
    """Return the size of each block of uint8[n, block_bytes]: its largest scale, or its minimum in units of a code."""
    fmt = tensor.type.format
    if fmt is None:
        values = np.abs(decode_elements(tensor.type.name, np.ascontiguousarray(blocks).reshape(-1)))
        return np.asarray(values, np.float32)
    with np.errstate(over="ignore"):
        sizes = np.abs(fmt.scales(blocks)).max(axis=-1)
        if fmt.has_min:
            sizes = np.maximum(sizes, np.abs(fmt.minima(blocks)).max(axis=-1) / np.float32(1 << fmt.bits))
    return np.asarray(sizes, np.float32)


def _finding(content: Content, sizes: Floats, numbers: npt.NDArray[np.int64], n: int) -> Finding:
    tensor = content.tensor
    number = int(numbers[0])
    row, block = divmod(number, tensor.blocks_per_row)
    unit = "block" if tensor.type.quantized else "element"
    what = "scale" if tensor.type.quantized else "value"
    one = finding_at(content, number, "outlier", "", "")
    others = f" and {n - 1} more" if n > 1 else ""
    times = float(sizes[n - 1]) / float(sizes[n])
    found = (
        f"row {row} {unit} {block}{others} of {quoted(tensor.name)} ({tensor.type.name}): a {what} of "
        f"{float(sizes[0]):.4g}; the largest of all others is {float(sizes[n]):.4g}, 1/{times:.3g} of it"
    )
    return replace(one, expected=f"less than {LIMIT:,} times the next {what}", found=found)
