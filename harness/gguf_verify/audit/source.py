"""Compares each tensor with the source: are its bytes what llama.cpp makes of the file that it was quantized from?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from ..formats import FLOAT_TYPES, NO_TO_FLOAT
from ..gguf import Finding, Model, Tensor
from ..gguf.records import finding
from ..llama import Llama, LlamaRefused, Requantized
from ..support.text import printable, quoted
from .xray import XRay, llama_values, xray

#: Keys that llama.cpp writes when it quantized with an importance matrix.
IMPORTANCE_KEY = "quantize.imatrix.file"


@dataclass(frozen=True)
class Comparison:
    """One tensor against its source.

    Args:
        tensor: the file's tensor.
        source: the source's tensor of that name and shape, where there is one.
        result: the comparison; None where they could not be compared.
        unverified: why they could not be compared, or "".
        xrays: the first block that differs, as in the file and as llama.cpp makes it; None where a type has no blocks.
    """

    tensor: Tensor
    source: Tensor | None = None
    result: Requantized | None = None
    unverified: str = ""
    xrays: tuple[XRay, XRay] | None = None

    @property
    def first(self) -> tuple[int, int] | None:
        """Row and block of the first difference."""
        if self.result is None or not self.result.differing:
            return None
        return divmod(self.result.first, self.tensor.blocks_per_row)


def compare(
    tensor: Tensor, source: Model, llama: Llama, threads: int = 1, on_bytes: Callable[[int], object] = lambda _n: None
) -> Comparison:
    """Quantize the source's tensor as llama.cpp does, and compare. Raises EnvironmentFault where llama.cpp dies."""
    origin = source.tensors.get(tensor.name)
    if origin is None or origin.shape != tensor.shape:
        return Comparison(tensor)
    if not tensor.nbytes:
        return Comparison(tensor, origin, Requantized(0, -1, b""))
    same = origin.type == tensor.type
    if not same and (tensor.type.format is None and tensor.type.name not in FLOAT_TYPES):
        why = "llama.cpp quantizes nothing to it" if tensor.type.name in NO_TO_FLOAT else "is not covered"
        return Comparison(tensor, origin, unverified=f"type {tensor.type.name}: {why}")
    if not same and (origin.type.name in NO_TO_FLOAT and origin.type.name not in FLOAT_TYPES):
        return Comparison(
            tensor, origin, unverified=f"llama.cpp has no conversion from {origin.type.name}, the source's"
        )
    try:
        result = llama.files.requantize(tensor, origin, threads, on_bytes)
    except LlamaRefused as refusal:
        return Comparison(tensor, origin, unverified=str(refusal))
    compared = Comparison(tensor, origin, result)
    return compared if compared.first is None else replace(compared, xrays=_xrays(compared, llama))


def _xrays(compared: Comparison, llama: Llama) -> tuple[XRay, XRay] | None:
    tensor, result, first = compared.tensor, compared.result, compared.first
    if result is None or first is None or not tensor.type.quantized:
        return None
    made = np.frombuffer(result.block, np.uint8)
    values = llama.to_float(tensor.type.type_id, made, tensor.type.block_size)
    return (
        xray(tensor, *first, llama_values(llama, tensor, *first)),
        xray(tensor, *first, values, raw=result.block),
    )


def comparison_findings(comparisons: list[Comparison], model: Model, source: Model) -> Iterator[Finding]:
    """What the comparisons found wrong, and the tensors that only one of the files has."""
    named = IMPORTANCE_KEY in model.metadata
    because = "; the metadata name an importance matrix, without which llama.cpp makes other blocks" if named else ""
    for c in comparisons:
        tensor = c.tensor
        at = tensor.described[0]
        if c.source is None:
            other = source.tensors.get(tensor.name)
            found = "no such tensor" if other is None else f"one of shape {_shape(other)}"
            yield replace(
                finding("source-missing", at.start, at.stop, f"{quoted(tensor.name)} of shape {_shape(tensor)} in the "
                        f"source", found, tensor.name), part=tensor.part,
            )  # fmt: skip
        elif c.first is not None and c.result is not None:
            row, block = c.first
            start = tensor.block_offset(row, block)
            blocks = tensor.n_rows * tensor.blocks_per_row
            what = f"what llama.cpp makes of {c.source.type.name} as {tensor.type.name}"
            unit = "block" if tensor.type.quantized else "value"
            stop = start + tensor.type.block_bytes
            pair = f"{tensor.mapped.read()[start:stop].tobytes().hex()} for {c.result.block.hex()}"
            found = (
                f"{c.result.differing:,} of {blocks:,} {unit}s of {quoted(tensor.name)} differ, the first row {row} "
                f"{unit} {block}: {pair}{because}"
            )
            yield replace(finding("source-differs", start, stop, what, found, tensor.name), part=tensor.part)
    for name, other in source.tensors.items():
        if name not in model.tensors:
            yield finding("source-left", 0, 0, "every tensor of the source", f"no {quoted(name)}, which the source "
                          f"({printable(source.path.name)}) holds as {other.type.name}", name)  # fmt: skip


def _shape(tensor: Tensor) -> str:
    return " x ".join(map(str, tensor.shape)) or "1"
