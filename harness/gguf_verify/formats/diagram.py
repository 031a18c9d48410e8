"""The bit diagram of a block, generated from the layout of its fields.

    half d               │ 15 … 0 │
    bytes 0…1            │ scale  │
    uint8 qs[j]          │ 7 6 5 4 │ 3 2 1 0 │
    bytes 2…17, j 0…15   │ x[j+16] │  x[j]   │

x[i] stands for the code of value i. If a code's bits are stored separately, a third line says which ones these are.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from .layout import Bits, Field, Items

_DOTS = ("…", "…", "…")


def bit_diagram(fields: Sequence[Field]) -> list[tuple[str, list[str]]]:
    """Return the diagram: field name → its lines, in file order. No line is longer than the layout needs."""
    split = {bits.name for field in fields for group in field.layout for bits in group.bits if bits.low}
    labels, cells, names = [], [], []
    start = 0
    for field in fields:
        for group in field.layout:
            labels.append(_label(field, group, start))
            cells.append(_cells(group, split))
            names.append(field.name)
        start += field.nbytes
    width = max(len(line) for label in labels for line in label)
    drawn: dict[str, list[str]] = {}
    for name, label, group_cells in zip(names, labels, cells, strict=True):
        lines = ["│ " + " │ ".join(row) + " │" for row in zip(*map(_centred, group_cells), strict=True)]
        lines = [line for line in lines if line.strip("│ ")]
        drawn.setdefault(name, []).extend(
            f"{label[i] if i < len(label) else '':<{width}}   {line}" for i, line in enumerate(lines)
        )
    return list(drawn.items())


def _label(field: Field, group: Items, start: int) -> tuple[str, str]:
    items = group.items
    size = field.item_bits // 8
    first, last = start + size * items[0], start + size * (items[-1] + 1) - 1
    where = f"bytes {first}…{last}" if last > first else f"byte {first}"
    if field.count == 1:
        return f"{field.c_type} {field.name}", where
    index = _index(items.start, items.step, len(items))
    return f"{field.c_type} {field.name}[{index}]", f"{where}, j 0…{len(items) - 1}" if len(items) > 1 else where


def _cells(group: Items, split: set[str]) -> list[tuple[str, str, str]]:
    """Return for each run of bits: bit numbers in the item, what it belongs to and, for names in `split`, which bits of
    that.
    """
    cells: list[tuple[str, str, str]] = []
    high = sum(bits.width for bits in group.bits)
    for bits in group.bits:
        whose = bits.name
        if bits.index is not None:
            whose += f"[{_index(bits.index, bits.step, len(group.items))}]"
        cells.append((_span(high - 1, high - bits.width), whose, _which(bits) if bits.name in split else ""))
        high -= bits.width
    if len(cells) > 5 and _regular(group.bits):
        return [*cells[:2], _DOTS, *cells[-2:]]
    return cells


def _regular(runs: Sequence[Bits]) -> bool:
    """Return whether the runs only differ in their index, by equal steps: then the first and last two suffice."""
    if len({(bits.width, bits.name, bits.low, bits.step) for bits in runs}) > 1:
        return False
    indices = [bits.index for bits in runs if bits.index is not None]
    return len(indices) == len(runs) and len({b - a for a, b in pairwise(indices)}) == 1


def _index(start: int, step: int, count: int) -> str:
    """Return the index of the j-th of `count` items."""
    if count == 1:
        return str(start)
    j = "j" if step == 1 else f"{step}j"
    return j + (f"{start:+d}" if start else "")


def _span(high: int, low: int) -> str:
    """Return bit numbers: all of them if they are few."""
    if high - low < 4:
        return " ".join(str(bit) for bit in range(high, low - 1, -1))
    return f"{high} … {low}"


def _which(bits: Bits) -> str:
    high = bits.low + bits.width - 1
    return f"bit {bits.low}" if bits.width == 1 else f"bits {high}…{bits.low}"


def _centred(cell: tuple[str, str, str]) -> tuple[str, ...]:
    width = max(map(len, cell))
    return tuple(f"{line:^{width}}" for line in cell)
