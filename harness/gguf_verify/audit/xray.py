"""The x-ray of a block: its bytes, their meaning, and its values beside llama.cpp's. Nothing is printed.

See `places` for selecting a block, and for "blocks" of types without any.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..formats.tensor_types import NO_TO_FLOAT
from ..gguf.file import Tensor
from ..llama.library import Llama
from ..support.array_types import Floats
from ..support.plain import plain
from .block_reading import FieldBytes, Reading, read_block
from .places import Place, extent, grid, neighbour


@dataclass(frozen=True, kw_only=True)
class XRay(Reading):
    """The x-ray of one block: our decoding of it, its position, and llama.cpp's values.

    Args:
        file: path of the file; `part` is its index in a split model.
        tensor, type, shape: as in the file; the name is not escaped.
        n_rows, blocks_per_row: of the tensor.
        row, block: the block's position; `block` counts in its row.
        first: index in the row of its first value.
        n_values: number of its values.
        offset, stop: absolute byte range in the file, half-open.
        in_file: the bytes are the file's, not given by the caller for this position.
        previous, next: the neighbours in the file; None at the tensor's ends.
        raw: its bytes.
        elements: it is a window of elements, not a block.
        theirs: llama.cpp's values, float32; None if it has no conversion, or was not used.
        differs: indices of values whose bits differ; any NaN equals any NaN.
        asked: the requested byte, in words, or "".
        notes: what is missing and why.
    """

    file: str
    part: int
    tensor: str
    type: str
    shape: tuple[int, ...]
    n_rows: int
    blocks_per_row: int
    row: int
    block: int
    first: int
    n_values: int
    offset: int
    stop: int
    in_file: bool
    previous: Place | None
    next: Place | None
    raw: bytes
    elements: bool
    theirs: tuple[float, ...] | None
    differs: tuple[int, ...]
    asked: str
    notes: tuple[str, ...]

    @property
    def flat(self) -> int:
        """Index of the block in the tensor."""
        return self.row * self.blocks_per_row + self.block


def llama_values(llama: Llama, tensor: Tensor, row: int, block: int) -> Floats | None:
    """Return llama.cpp's `to_float` of a block, float32[values]; None if llama.cpp has no conversion from the type.

    Raises IndexError if the block does not exist, EnvironmentFault if llama.cpp dies, MalformedFile if the file has
    shrunk.
    """
    start, stop, n = extent(tensor, row, block)
    if tensor.type.name in NO_TO_FLOAT:
        return None
    return llama.to_float(tensor.type.type_id, np.array(tensor.mapped.read()[start:stop]), n)


def xray(
    tensor: Tensor,
    row: int,
    block: int,
    theirs: Floats | None,
    *,
    raw: bytes | None = None,
    asked: int | None = None,
) -> XRay:
    """Make the x-ray of one block.

    Args:
        tensor, row, block: as returned by `find_block`.
        theirs: llama.cpp's values, float32[values of the block], see `llama_values`; None if there are none.
        raw: bytes to examine instead of the file's, such as llama.cpp's own result for this block.
        asked: absolute offset of the requested byte.

    Raises IndexError if the block does not exist, ValueError if `theirs` or `raw` has the wrong size, MalformedFile if
    the file has shrunk.
    """
    start, stop, n = extent(tensor, row, block)
    content = tensor.mapped.read()[start:stop].tobytes() if raw is None else raw
    if len(content) != stop - start:
        raise ValueError(f"{len(content)} bytes for a block of {stop - start}")
    if theirs is not None and theirs.shape != (n,):
        raise ValueError(f"values of shape {theirs.shape} for a block of {n}")
    what = "block" if tensor.type.quantized else "window"
    kind, flat = tensor.type, row * grid(tensor).per_row + block
    read = read_block(kind.name, content, start)
    return XRay(
        **vars(read),
        file=str(tensor.mapped.path),
        part=tensor.part,
        tensor=tensor.name,
        type=kind.name,
        shape=tensor.shape,
        n_rows=tensor.n_rows,
        blocks_per_row=grid(tensor).per_row,
        row=row,
        block=block,
        first=block * grid(tensor).values,
        n_values=n,
        offset=start,
        stop=stop,
        in_file=raw is None,
        previous=neighbour(tensor, flat - 1),
        next=neighbour(tensor, flat + 1),
        raw=content,
        elements=not kind.quantized,
        theirs=None if theirs is None else tuple(theirs.tolist()),
        differs=() if read.ours is None or theirs is None else tuple(differing(read.ours, theirs)),
        asked="" if asked is None else _asked(read.fields, what, start, stop, asked),
        notes=tuple(_notes(kind.name, read.ours is not None, theirs)),
    )


def differing(a: Floats | Sequence[float], b: Floats | Sequence[float]) -> list[int]:
    """Return the indices of values whose float32 bits differ; any NaN equals any NaN."""
    x, y = np.asarray(a, np.float32), np.asarray(b, np.float32)
    differs = (x.view(np.uint32) != y.view(np.uint32)) & ~(np.isnan(x) & np.isnan(y))
    return [int(i) for i in np.flatnonzero(differs)]


def _notes(kind: str, decoded: bool, theirs: Floats | None) -> list[str]:
    notes = []
    if not decoded:
        notes.append(f"our decoder does not support {kind}: its fields are unknown here")
    if theirs is None and kind in NO_TO_FLOAT:
        notes.append(f"llama.cpp has no conversion from {kind} to compare with")
    elif theirs is None:
        notes.append("llama.cpp's values are not available")
    return notes


def _asked(fields: Sequence[FieldBytes], what: str, start: int, stop: int, asked: int) -> str:
    """Describe a byte, such as `byte 10 of the block, qs[2]: bits of x[18] and x[2]`."""
    if not start <= asked < stop:
        raise ValueError(f"byte {asked} is not in the {what}, which has bytes {start} to {stop - 1}")
    words = f"byte {asked - start} of the {what}"
    for field in fields:
        if not field.start <= asked - start < field.stop:
            continue
        size = field.field.item_bits // 8
        item, byte = divmod(asked - field.offset, size)
        words += f", {field.field.name}[{item}]" if field.field.count > 1 else f", {field.field.name}"
        words += f" byte {byte}" if size > 1 else ""
        here = sorted(
            p.index
            for p in field.field.pieces()
            if p.name == "x" and p.index is not None and p.item == item and 8 * byte - p.width < p.shift < 8 * byte + 8
        )
        if len(here) > 2 and here == list(range(here[0], here[-1] + 1)):
            words += f": bits of x[{here[0]}] to x[{here[-1]}]"
        elif here:
            words += f": bits of {' and '.join(f'x[{i}]' for i in here)}"
    return words


def to_dict(x: XRay) -> dict[str, Any]:
    """Convert the x-ray to plain objects that JSON can hold.

    Bytes are hex. Numbers that are not finite are the strings "NaN", "Infinity" and "-Infinity". Names are not escaped,
    except for bytes that are not UTF-8. Keys are those of `XRay`; a field has name, type, count, doc, start, stop,
    offset, hex and values; a neighbour has row, block and offset; a part of the codes has name, high, low and values.
    """
    made = plain({
        **{name: getattr(x, name) for name in x.__dataclass_fields__ if name not in ("raw", "items")},
        "hex": x.raw.hex(),
        "fields": [
            {"name": f.field.name, "type": f.field.c_type, "count": f.field.count, "doc": f.field.doc, "start": f.start,
             "stop": f.stop, "offset": f.offset, "hex": f.raw.hex(), "values": f.values}
            for f in x.fields
        ],
        "previous": x.previous and x.previous._asdict(),
        "next": x.next and x.next._asdict(),
    })  # fmt: skip
    assert isinstance(made, dict)
    return made
