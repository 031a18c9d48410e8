"""Faults of the places from which fields and bits of a block of weights are read, derived from the formats' layouts.

Each variant rearranges the bytes of the weights so that reading them correctly gives the values that a faulty kernel
reads. So every type is covered, whatever its codes mean.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial

import numpy as np
import numpy.typing as npt

from ...formats.block import BlockFormat
from ..fault import Case, LazyVariants, Variants, fault
from ..operands import Bytes, Parts, weight_parts

Places = npt.NDArray[np.intp]


def _reading(case: Case, rows: Bytes) -> Parts:
    """Return the operands with weights read from `rows`."""
    with np.errstate(all="ignore"):
        q, d, m = weight_parts(case.semantics, case.fmt, rows)
    return replace(case.parts, q=q, d=d, m=m)


# ---- fields ----------------------------------------------------------------------------------------------------------


# ---- bits ------------------------------------------------------------------------------------------------------------


@cache
def _kinds(fmt: BlockFormat) -> dict[tuple[str, int, int], Places]:
    """Return (name, lowest bit, width) → the places in the block of these bits of each member, [members, width]."""
    found: dict[tuple[str, int, int], dict[int, list[int]]] = {}
    for field in fmt.fields:
        first = 8 * fmt.field_offset(field.name)
        for piece in field.pieces():
            if piece.index is not None:
                at = first + field.item_bits * piece.item + piece.shift
                kind = found.setdefault((piece.name, piece.low, piece.width), {})
                kind[piece.index] = list(range(at, at + piece.width))
    return {kind: np.array([members[i] for i in sorted(members)]) for kind, members in found.items()}


def _orders(n: int) -> Iterator[tuple[str, Places]]:
    """Yield (words, the member that is read for each of n), n even.

    They are chunks of two halves interleaved or separated, halves exchanged, a neighbouring group, the first group for
    all.
    """
    at = np.arange(n)
    span = 2
    while span <= n and n % span == 0:
        yield f"halves of each {span} exchanged", at ^ span // 2
        chunk = 1
        while chunk < span // 2:
            inside = np.arange(span).reshape(2, -1, chunk).transpose(1, 0, 2).reshape(-1)
            apart = np.argsort(inside)
            for order, words in ((inside, "put apart"), (apart, "interleaved")):
                whole = (at // span * span).reshape(-1, span) + order
                yield f"the halves of each {span} {words} by {chunk}", whole.reshape(-1)
            chunk *= 2
        rows = 4
        while rows < span // 2:
            transposed = at // span * span + at % span % (span // rows) * rows + at % span // (span // rows)
            yield f"each {span} as {rows} rows, not {span // rows}", transposed
            rows *= 2
        within, group = at % span, 2
        while group < span:
            for moved, words in (((within + group) % span, "further"), ((within - group) % span, "before")):
                yield f"{group} {words} within {span}", at - within + moved
            yield f"of the first {group} of {span}", at - within + within % group
            group *= 2
        span *= 2


@fault(
    "field-offset",
    "a field of the weights' blocks is read from the wrong byte",
    "check the struct's members against the format's layout (docs/formats.md)",
    many=True,
    special=("scale-and-minimum-exchanged", "minimum-missing"),
)
def field_offset(case: Case) -> LazyVariants:
    fmt = case.fmt
    blocks = case.rows.reshape(len(case.rows), -1, fmt.block_bytes)

    def moved(to: int, start: int, size: int) -> Parts:
        made = blocks.copy()
        made[..., to : to + size] = blocks[..., start : start + size]
        return _reading(case, made.reshape(case.rows.shape))

    for field in fmt.fields:
        at, size = fmt.field_offset(field.name), field.nbytes
        for start in range(fmt.block_bytes - size + 1):
            if start != at:
                yield f"{field.name} from byte {start}, not {at}", partial(moved, at, start, size)


@fault(
    "bits-elsewhere",
    "bits of the weights' blocks are read from the wrong place",
    "check masks, shifts and indices against the format's layout (docs/formats.md)",
    many=True,
    special=(
        "nibbles-swapped",
        "nibbles-in-pairs",
        "fifth-bits-interleaved",
        "fifth-bits-missing",
        "activations-interleaved",
        "neighbouring-scale",
        "minimum-missing",
        "values-paired-wrongly",
        "signedness",
    ),
)
def bits_elsewhere(case: Case) -> LazyVariants:
    fmt = case.fmt
    bits = np.unpackbits(case.rows.reshape(len(case.rows), -1, fmt.block_bytes), axis=-1, bitorder="little")

    def with_bits(to: Places, of: Places | None) -> Parts:
        moved = bits.copy()
        moved[..., to] = 0 if of is None else bits[..., of]
        return _reading(case, np.packbits(moved, axis=-1, bitorder="little").reshape(case.rows.shape))

    kinds = _kinds(fmt)
    for (name, low, width), places in kinds.items():
        what = f"bits {low} to {low + width - 1} of {'codes' if name == 'x' else name + 's'}"
        if name != "x" or low:  # without its lowest bits nothing is left of a code
            yield f"{what} missing", partial(with_bits, places, None)
        if len(places) > 1 and len(places) % 2 == 0:
            for words, order in _orders(len(places)):
                yield f"{what}: {words}", partial(with_bits, places, places[order])
        for (other, same_low, same_width), elsewhere in kinds.items():
            if other != name and (same_low, same_width) == (low, width) and elsewhere.shape == places.shape:
                yield f"{what}: those of {other}s", partial(with_bits, places, elsewhere)
    # Codes in several pieces, all of which are read in the same wrong order.
    pieces = [places for (name, _, _), places in kinds.items() if name == "x" and len(places) == fmt.block_size]
    if pieces:
        whole = np.concatenate([places.ravel() for places in pieces])
        in_memory = np.concatenate([places[np.argsort(places[:, 0])].ravel() for places in pieces])
        yield "codes: in the order of memory", partial(with_bits, whole, in_memory)
    for words, order in _orders(fmt.block_size) if len(pieces) > 1 else ():
        elsewhere = np.concatenate([places[order].ravel() for places in pieces])
        yield f"whole codes: {words}", partial(with_bits, whole, elsewhere)


@fault(
    "values-paired-wrongly",
    "codes of weights are multiplied by the codes of other values",
    "value k of a block of weights multiplies value k of the block of activations: check the index of packed words",
    many=True,
    special=("activations-interleaved", "nibbles-swapped", "nibbles-in-pairs", "bits-elsewhere"),
)
def values_paired_wrongly(case: Case) -> Variants:
    p = case.parts
    values = p.a.reshape(len(p.a), -1, 32)
    for words, order in _orders(32):
        if "further" not in words and "before" not in words and "first" not in words:
            yield words, replace(p, a=values[..., order].reshape(p.a.shape)).with_sums()


@fault(
    "scale-as-bfloat16",
    "the half scale of weights is read as a bfloat16",
    "d is an IEEE half",
    applies=lambda c: c.fmt.has_half_scale,
)
def scale_as_bfloat16(case: Case) -> Variants:
    fmt, p = case.fmt, case.parts
    bits = fmt.view(case.rows.reshape(len(case.rows), -1, fmt.block_bytes))["d"].copy().view(np.uint16)
    with np.errstate(all="ignore"):
        d = np.repeat((bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64), p.per_block, axis=1)
    yield "", replace(p, d=d, m=p.m if fmt.has_min or not p.m.any() else -fmt.offset * d)
