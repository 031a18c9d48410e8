"""The producer's fingerprint: what the codes of a tensor's blocks say about the quantizer that wrote them.

A rule is about which codes a block with d ≠ 0 holds. It follows from how a quantizer chooses the scale; the share of
blocks that obey it is measured, and nothing else is claimed. A rule that every block obeys does not prove the producer;
one that many blocks break excludes it.

Sources: ggml/src/ggml-quants.c of llama.cpp v0.5.0. `quantize_row_*_ref`: the scale is the signed extreme over
-2^(bits-1), which gives that value code 0 (Q4_0, Q5_0); (max - min) over 2^bits - 1, which gives both ends a code
(Q4_1, Q5_1); max|x| over 127 (Q8_0, with an importance matrix too). `make_qx_quants`, with an importance matrix, tries
scales around the signed extreme over -2^(bits-1), between which the extreme has code 0 or 1. `make_qkx3_quants` does so
around (max - min) over 2^bits - 1: the greatest value has one of the two highest codes (measured, 8,192 blocks each).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..formats import BlockFormat
from ..llama import Scan


@dataclass(frozen=True)
class Rule:
    """A rule about the codes of a block.

    Args:
        producer: whose blocks obey it.
        text: the rule in words.
        all, any, none: masks of codes that all, one of which and none of which must occur; bit c is code c, of signed
            bytes bit 0 is -128, bit 1 -127, bit 2 127, bit 3 any other.
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


def rules_of(fmt: BlockFormat) -> tuple[Rule, ...]:
    """The rules that are known for a format, the narrowest producer first; of superblocks none is known."""
    if not fmt.legacy:
        return ()
    top = (1 << fmt.bits) - 1
    if fmt.bits == 8:
        low, almost, high = _codes(0), _codes(1), _codes(2)
        return (
            Rule(REFERENCE, "-127 or 127, and no -128", any=almost | high, none=low),
            Rule("a scale of max|x|/128", "-128 or 127", any=low | high),
        )
    if fmt.has_min:
        return (
            Rule(REFERENCE, f"codes 0 and {top}", all=_codes(0, top)),
            Rule(IMPORTANCE, f"code {top - 1} or {top}", any=_codes(top - 1, top)),
        )
    return (
        Rule(REFERENCE, "code 0", all=_codes(0)),
        Rule(IMPORTANCE, "code 0 or 1", any=_codes(0, 1)),
        Rule(f"a scale of max|x|/{top // 2}", f"code 1 or {top}, and no 0", any=_codes(1, top), none=_codes(0)),
    )


@dataclass(frozen=True)
class Fingerprint:
    """What the blocks of one type obey.

    Args:
        type: name of the type.
        blocks: those with d ≠ 0.
        obeying: (rule, blocks that obey it).
    """

    type: str
    blocks: int
    obeying: tuple[tuple[Rule, int], ...]

    @property
    def consistent(self) -> Rule | None:
        """The first rule that every block obeys; None where no rule holds throughout, or there is no block."""
        return next((rule for rule, n in self.obeying if self.blocks and n == self.blocks), None)


def fingerprint(fmt: BlockFormat, scans: Sequence[Scan]) -> Fingerprint:
    """Of the tensors of one type, scanned with the masks of `rules_of`."""
    rules = rules_of(fmt)
    totals = [sum(scan.obeying[i] for scan in scans) for i in range(len(rules))]
    return Fingerprint(
        fmt.name, sum(scan.blocks - scan.zero_scales for scan in scans), tuple(zip(rules, totals, strict=True))
    )
