"""A formula that has only the value, the magnitude and the roundings of a block's term."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gguf_verify.diagnosis.fault import case_of
from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.semantics.accumulation import IN_FLOAT16, SCORE_LIMIT, Accumulation
from gguf_verify.semantics.definitions.q8_1 import Q8_1_RAW
from gguf_verify.semantics.exact import product
from gguf_verify.semantics.order import ASCENDING
from gguf_verify.semantics.result import exact_result
from gguf_verify.semantics.screen import bilinear
from gguf_verify.semantics.sums import Doubles
from gguf_verify.semantics.term import Blocks, BlockTerm, Roundings
from gguf_verify.semantics.terms.codes import SUMS
from tests.support.exact_products import activations, real_weights


class _Formula(BlockTerm):
    """The three methods of `sums`."""

    def value(self, of: Blocks) -> tuple[Doubles, ...]:
        return SUMS.value(of)

    def magnitude(self, of: Blocks) -> Doubles:
        return SUMS.magnitude(of)

    def roundings(self, of: Blocks, accumulation: Accumulation) -> Roundings:
        return SUMS.roundings(of, accumulation)


FORMULA = replace(Q8_1_RAW, name="formula", term=_Formula(name="formula", title="as `sums`"))


@pytest.mark.parametrize("kind", ["Q8_0", "Q5_1", "Q4_K"])
@pytest.mark.parametrize("accumulation", [Q8_1_RAW.accumulation, IN_FLOAT16], ids=str)
def test_sum_bound_and_spread_follow_from_three_methods(kind: str, accumulation: Accumulation) -> None:
    fmt = FORMATS[kind]
    w, x = real_weights(fmt, 4, 512), activations(Q8_1_RAW, 3, 512)
    own, known = (replace(s, accumulation=accumulation) for s in (FORMULA, Q8_1_RAW))
    made, expected = product(own, fmt, w, x), product(known, fmt, w, x)
    for name in ("exact", "bound", "spread", "scale", "underflow"):
        assert np.array_equal(getattr(made, name), getattr(expected, name)), name
    assert np.array_equal(exact_result(own, fmt, w, x), made.exact)


def test_what_it_does_not_define_is_not_assumed() -> None:
    fmt = FORMATS["Q5_1"]
    w, x = real_weights(fmt, 4, 512), activations(Q8_1_RAW, 3, 512)
    made = product(FORMULA, fmt, w, x)
    assert (made.lanes, made.errors, made.limit) == (None, None, SCORE_LIMIT)
    assert not bilinear(FORMULA, fmt)
    assert case_of(FORMULA, fmt, w, x) is None
    with pytest.raises(ValueError, match="no definition states the order ascending k of terms of formula"):
        product(FORMULA, fmt, w, x, ASCENDING)


@pytest.mark.parametrize("name", ["value", "magnitude", "roundings"])
def test_each_of_the_three_is_needed(name: str) -> None:
    kept = {other: getattr(_Formula, other) for other in ("value", "magnitude", "roundings") if other != name}
    with pytest.raises(TypeError, match=name):
        type("Part", (BlockTerm,), kept)(name="part", title="a part of a formula")
