"""The data that wrong rows, or wrong tokens, have and correct ones do not."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from .classes import CLASSES
from .fault import Case
from .operands import Doubles
from .separation import MARGIN, Feature, Rule, Table, approximate, evidence, flag, number, rules

Bools = npt.NDArray[np.bool_]

#: The fewest wrong and correct rows (or tokens), and the fraction of the outputs of the wrong ones that is wrong.
_FEWEST, _FULL = 4, 0.9
#: The fraction of the rows that meet a condition which are wrong, if it is not exact.
_MOSTLY = 0.9


def shared_data(case: Case, bad: Bools) -> tuple[str, ...]:
    """Describe the data of wrong rows and of wrong tokens of outputs bool[M, N]; nothing that may be chance."""
    if not np.isfinite(case.right.exact).all():
        return ()
    return tuple(_lines(case, bad))


def _lines(case: Case, bad: Bools) -> Iterator[str]:
    for what, of, table in (("row", bad.T, _of_rows(case)), ("token", bad, _of_tokens(case))):
        wrong = np.asarray(of.any(axis=1))
        if min(wrong.sum(), (~wrong).sum()) < _FEWEST or of[wrong].mean() < _FULL:
            continue
        rule = _certain(table, wrong)
        if rule is not None:
            yield f"{what}s are {rule.words(table)}"


def _certain(table: Table, wrong: Bools) -> Rule | None:
    """Return the shortest rule, if it is much shorter than the list of wrong rows."""
    exact = next(iter(rules(table, wrong)), None)
    rule = exact or approximate(table, wrong, _MOSTLY)
    if rule is None:
        return None
    # the rows that an approximate rule gets wrong are to be listed
    left = 0.0 if exact is rule else evidence(wrong[rule.holds(table)], ordered=False)
    return rule if evidence(wrong, ordered=False) - rule.bits - left >= MARGIN else None


def _of_rows(case: Case) -> Table:
    p = case.parts
    found = {of.words: _any(of.words, "row", of.holds(p)) for of in CLASSES if of.of_weights}
    found |= _extremes("row", "scale", p.d)
    return found | (_extremes("row", "minimum", p.m) if case.fmt.has_min else {})


def _of_tokens(case: Case) -> Table:
    p = case.parts
    found = {of.words: _any(of.words, "token", of.holds(p)) for of in CLASSES if not of.of_weights}
    found |= _extremes("token", "s", p.s)
    values = np.abs(p.a * p.e[..., None]).max(axis=-1)
    return found | _extremes("token", "scale", p.e if case.quantized else values)


def _any(words: str, what: str, holds: Bools) -> Feature:
    return flag(f"the {what} has {words}", f"the {what} has no {words}", holds.any(axis=1))


def _extremes(what: str, name: str, values: Doubles) -> dict[str, Feature]:
    size = np.abs(values)
    return {
        f"largest {name}": number(f"the largest |{name}| of the {what}", size.max(axis=1)),
        f"least {name}": number(f"the least |{name}| of the {what}", size.min(axis=1)),
    }
