"""Random conditions: they hold for their witnesses, and read in C++ as they are evaluated here."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np

from tools.measure.guards import Comparison, Guard, Quantity, comparison, guard, log_uniform

SIZE = Quantity("N", "N", lambda rng: log_uniform(rng, 1, 1 << 18))
CODE = Quantity("codes[j]", "data", lambda rng: float(rng.integers(-128, 128)))
SCALE = Quantity(
    "d", "data", lambda rng: float(np.float32(rng.standard_normal() * 2.0 ** rng.integers(-20, 10))), False
)
PRODUCT = Quantity("M * N", "product", lambda rng: log_uniform(rng, 1, 1 << 36))
QUANTITIES = (SIZE, CODE, SCALE, PRODUCT)


def evaluated(text: str, values: dict[str, float]) -> bool:
    """A condition in C++, of whole numbers with the sign of the dividend in remainders."""
    for name in sorted(values, key=len, reverse=True):
        text = text.replace(name, "v" + str(sorted(values).index(name)))
    text = re.sub(r"\(?(v\d)\)? % (\d+)", r"fmod(\1, \2)", text.replace("&&", "and"))
    text = re.sub(r"(\d[\d.]*(?:e[-+]\d+)?)f\b", r"float32(\1)", re.sub(r"(?<=\d)ll\b", "", text))
    variables = {f"v{sorted(values).index(name)}": value for name, value in values.items()}
    return bool(eval(text, {"fmod": np.fmod, "float32": np.float32} | variables))


def test_a_condition_holds_for_its_witness_and_reads_as_it_is_evaluated() -> None:
    rng = np.random.default_rng(3)
    forms, held = Counter[str](), Counter[bool]()
    for _ in range(600):
        witness = {of.name: of.draw(rng) for of in QUANTITIES}
        made = guard(rng, QUANTITIES, witness)
        assert made.holds(witness), (made.text, witness)
        assert evaluated(made.text, witness), (made.text, witness)
        other = {of.name: of.draw(rng) for of in QUANTITIES}
        assert bool(made.holds(other)) == evaluated(made.text, other), (made.text, other)
        forms.update(made.forms)
        held[bool(made.holds(other))] += 1
    assert forms.keys() == {"==", "<", ">=", "window", "remainder"}
    assert min(forms.values()) > 60
    assert held[False] > 150 < held[True]


def test_arrays_are_compared_at_once() -> None:
    made = Guard((Comparison("i", "place", "remainder", (4, 1)), Comparison("N", "N", ">=", (9,))))
    assert made.text == "i % 4 == 1 && N >= 9"
    assert made.kind == "N and place"
    assert np.flatnonzero(made.holds({"i": np.arange(9), "N": 9})).tolist() == [1, 5]
    assert not np.any(made.holds({"i": np.arange(9), "N": 8}))


def test_a_remainder_has_the_sign_of_the_dividend() -> None:
    assert Comparison("q", "data", "remainder", (7, -3)).holds(-10)
    assert not Comparison("q", "data", "remainder", (7, 4)).holds(-10)


def test_a_number_without_another_one_beside_it_is_compared_for_equality() -> None:
    zero = Quantity("m", "data", lambda rng: 0.0, False)
    rng = np.random.default_rng(0)
    assert {comparison(rng, zero, 0.0).text for _ in range(40)} == {"m == 0.0f", "m >= 0.0f"}
