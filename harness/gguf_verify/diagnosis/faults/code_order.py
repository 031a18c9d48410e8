"""Faults of the order of codes, and of the reading of their bits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ...formats.block import QK
from ..fault import Case, Variants, fault
from ..operands import Doubles, Parts

_INTERLEAVED = np.arange(32) // 2 + np.arange(32) % 2 * 16
_SEPARATED = np.argsort(_INTERLEAVED)
_EXCHANGED = (np.arange(32) + 16) % 32


def _by_32(codes: Doubles, order: npt.NDArray[np.intp]) -> Doubles:
    """Reorder codes [rows, terms, values] within each `len(order)` values."""
    return np.asarray(codes.reshape(len(codes), -1, len(order))[..., order].reshape(codes.shape))


def _has_fifth_bits(case: Case) -> bool:
    return case.fmt.has_fifth_bits


def _of_one_block_of_32(case: Case) -> bool:
    """Return whether the fifth bits are the bits of one word."""
    return case.fmt.has_fifth_bits and case.fmt.block_size == QK


def _has_nibbles(case: Case) -> bool:
    """Return whether two codes share a byte and their values are 16 or 32 apart."""
    return case.fmt.nibble_distance in (16, 32)


@fault(
    "activations-interleaved",
    "the activations' codes are not read in the order of the values",
    "the codes of Q8_1 are sequential: code k belongs to value k",
)
def activations_interleaved(case: Case) -> Variants:
    p = case.parts
    yield "code k of 32 read at k/2 + 16·(k mod 2)", replace(p, a=_by_32(p.a, _INTERLEAVED)).with_sums()
    yield "code k of 32 read at 2·(k mod 16) + k/16", replace(p, a=_by_32(p.a, _SEPARATED)).with_sums()


@fault(
    "fifth-bits-interleaved",
    "the fifth bits go to the wrong codes",
    "bit j of qh belongs to value j, and bit j + 16 to value j + 16",
    applies=_of_one_block_of_32,
)
def fifth_bits_interleaved(case: Case) -> Variants:
    p = case.parts
    offset = case.taken_off
    q = (p.q + offset).astype(np.int64)
    low, high = q & 15, q >> 4
    j = np.arange(16)

    def read(first: npt.NDArray[np.intp], second: npt.NDArray[np.intp]) -> Parts:
        order = np.concatenate([first, second])
        bits = np.where(order < 32, high[..., order % 32], 0)
        return replace(p, q=(low + 16 * bits - offset).astype(np.float64))

    yield "bits 2j and 2j + 1 for values j and j + 16", read(2 * j, 2 * j + 1)
    yield "bit 2j for value j", read(2 * j, j + 16)
    yield "bit 2(j + 16) for value j + 16", read(j, 2 * (j + 16))
    yield "bit j for both values", read(j, j)
    yield "the halves exchanged", read(j + 16, j)


@fault(
    "fifth-bits-missing",
    "the fifth bits are not added",
    "add 16·(bit j of qh) to code j",
    applies=_has_fifth_bits,
)
def fifth_bits_missing(case: Case) -> Variants:
    p = case.parts
    offset = case.taken_off
    low = np.mod(p.q + offset, 16) - offset
    yield "", replace(p, q=low)
    if _of_one_block_of_32(case):
        first = np.arange(QK) < 16
        yield "of values 0 to 15", replace(p, q=np.where(first, low, p.q))
        yield "of values 16 to 31", replace(p, q=np.where(first, p.q, low))


@fault(
    "nibbles-swapped",
    "low and high nibbles are exchanged",
    "the low nibbles are the first half of the values, the high nibbles the second",
    applies=_has_nibbles,
)
def nibbles_swapped(case: Case) -> Variants:
    p = case.parts
    step = case.fmt.nibble_distance or 0
    order = (np.arange(2 * step) + step) % (2 * step)
    yield "whole codes", replace(p, q=_by_32(p.q, order))
    if case.fmt.bits == 5:
        offset = case.taken_off
        low = np.mod(p.q + offset, 16)
        yield "the fifth bits as they should be", replace(p, q=p.q - low + _by_32(low, order))


@fault(
    "nibbles-in-pairs",
    "the nibbles of a byte are read as neighbouring values",
    "the low nibble of byte j is value j, its high nibble value j + 16 (K-quants: j + 32)",
    applies=_has_nibbles,
)
def nibbles_in_pairs(case: Case) -> Variants:
    p = case.parts
    if case.fmt.nibble_distance == 32:
        order = np.arange(64) // 2 + np.arange(64) % 2 * 32
        yield "low nibble j as value 2j, high as 2j + 1", replace(p, q=_by_32(p.q, order))
        return
    offset = case.taken_off
    yield "low nibble j as value 2j, high as 2j + 1", replace(p, q=_by_32(p.q, _INTERLEAVED))
    yield "high nibble j as value 2j, low as 2j + 1", replace(p, q=_by_32(_by_32(p.q, _EXCHANGED), _INTERLEAVED))
    if case.fmt.bits == 5:
        low = np.mod(p.q + offset, 16)
        rest = p.q - low
        yield "the same, with the fifth bits as they should be", replace(p, q=rest + _by_32(low, _INTERLEAVED))


@fault(
    "signedness",
    "codes are read with the wrong sign",
    "nibbles of weights are unsigned; codes of Q8_0 and of activations are signed bytes; each sign bit of an "
    "I-quant negates one value of its grid",
)
def signedness(case: Case) -> Variants:
    p, fmt = case.parts, case.fmt
    if fmt.low == 0:
        offset = case.taken_off
        stored = p.q + offset
        signed = np.where(stored >= 2.0 ** (fmt.bits - 1), stored - 2.0**fmt.bits, stored)
        yield "codes of weights as signed", replace(p, q=signed - offset)
        if fmt.offset:
            two = "codes of weights as two's complement, without the offset"
            yield two, replace(p, q=signed, m=np.zeros_like(p.m))
    if fmt.bits == 8 and fmt.low < 0:
        yield "codes of weights as unsigned", replace(p, q=np.mod(p.q, 256))
    if (p.q < 0).any():
        yield "signs of weights lost", replace(p, q=np.abs(p.q))
    if case.quantized:
        yield "signs of activations lost", replace(p, a=np.abs(p.a)).with_sums()
        yield "codes of activations as unsigned", replace(p, a=np.mod(p.a, 256)).with_sums()
