"""The producer's fingerprint: what the codes in a tensor's blocks say about the quantizer that wrote them.

A pattern says which codes a block with d ≠ 0 contains; it follows from the quantizer's choice of the scale. The share
of matching blocks is measured, and nothing else is concluded: a pattern that all blocks match does not prove the
producer; a pattern that many blocks do not match excludes it.

Sources: ggml/src/ggml-quants.c of llama.cpp v0.5.0. `quantize_row_*_ref`: the scale is the signed extreme over
-2^(bits-1), which gives that value code 0 (Q4_0, Q5_0); (max - min) over 2^bits - 1, which gives both ends a code
(Q4_1, Q5_1); max|x| over 127 (Q8_0, with an importance matrix too). `make_qx_quants`, with an importance matrix, tries
scales around the signed extreme over -2^(bits-1), between which the extreme has code 0 or 1. `make_qkx3_quants` tries
scales around (max - min) over 2^bits - 1: the largest value has one of the two highest codes (measured, 8,192 blocks
each).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..formats.block import BlockFormat
from ..llama.files import Scan


@dataclass(frozen=True)
class Pattern:
    """A pattern in the codes of a block.

    Args:
        producer: the quantizer whose blocks match it.
        text: the pattern in words.
        all, any, none: masks of the codes of which all, at least one, and none occur. Bit c is code c; for signed bytes
            bit 0 is -128, bit 1 is -127, bit 2 is 127 and bit 3 is any other.
    """

    producer: str
    text: str
    all: int = 0
    any: int = 0
    none: int = 0

    @property
    def masks(self) -> tuple[int, int, int]:
        return self.all, self.any, self.none


REFERENCE = "llama.cpp's reference quantizer"
IMPORTANCE = "llama.cpp with an importance matrix"


def _codes(*codes: int) -> int:
    return sum(1 << code for code in codes)


def patterns_of(fmt: BlockFormat) -> tuple[Pattern, ...]:
    """Return the known patterns of a format, the narrowest first. None are known for superblocks."""
    if not fmt.legacy:
        return ()
    top = (1 << fmt.bits) - 1
    if fmt.bits == 8:
        low, almost, high = _codes(0), _codes(1), _codes(2)
        return (
            Pattern(REFERENCE, "-127 or 127, and no -128", any=almost | high, none=low),
            Pattern("a scale of max|x|/128", "-128 or 127", any=low | high),
        )
    if fmt.has_min:
        return (
            Pattern(REFERENCE, f"codes 0 and {top}", all=_codes(0, top)),
            Pattern(IMPORTANCE, f"code {top - 1} or {top}", any=_codes(top - 1, top)),
        )
    return (
        Pattern(REFERENCE, "code 0", all=_codes(0)),
        Pattern(IMPORTANCE, "code 0 or 1", any=_codes(0, 1)),
        Pattern(f"a scale of max|x|/{top // 2}", f"code 1 or {top}, and no 0", any=_codes(1, top), none=_codes(0)),
    )


@dataclass(frozen=True)
class Fingerprint:
    """The patterns that the blocks of one type match.

    Args:
        type: name of the type.
        blocks: number of blocks with d ≠ 0.
        obeying: pairs of a pattern and the number of blocks that match it.
    """

    type: str
    blocks: int
    obeying: tuple[tuple[Pattern, int], ...]

    @property
    def consistent(self) -> Pattern | None:
        """The first pattern that every block matches; None if there is none, or no block."""
        return next((pattern for pattern, n in self.obeying if self.blocks and n == self.blocks), None)


def fingerprint(fmt: BlockFormat, scans: Sequence[Scan]) -> Fingerprint:
    """Compute the fingerprint of the tensors of one type, which were scanned with the masks of `patterns_of`."""
    patterns = patterns_of(fmt)
    totals = [sum(scan.obeying[i] for scan in scans) for i in range(len(patterns))]
    return Fingerprint(
        fmt.name, sum(scan.blocks - scan.zero_scales for scan in scans), tuple(zip(patterns, totals, strict=True))
    )
