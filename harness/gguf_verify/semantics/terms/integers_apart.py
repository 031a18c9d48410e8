"""`integers_apart`: as `integers`, but zero points may be multiplied separately, as in SIMD code."""

from __future__ import annotations

from ..term import Term, has_offset

INTEGERS_APART = Term(
    name="integers_apart",
    title="as `integers`; the zero point of codes may be multiplied apart, in lanes that cancel late",
    integer_offset=has_offset,
    zero_apart=True,
)
