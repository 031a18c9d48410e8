"""Branches of a kernel's code that wrong calls take, and correct ones do not.

The comparisons in its code are traced in a wrong call, and in calls of parts of its operands that are correct
(spectrum-based fault localisation: Jones and Harrold, Empirical Evaluation of the Tarantula Technique, ASE 2005). A
comparison with an outcome that occurs only in the wrong one is named.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..kernels.comparisons import Comparison, in_words
from ..kernels.launches import Launched, SparseProduct
from ..results.diagnoses import FaultMatch
from ..support.errors import EnvironmentFault, KernelFault
from .calls import Calls
from .observed import observed
from .operands import Bytes

#: Correct outputs that are traced, and the fewest that say something; rows and tokens of which they are chosen; thread
#: blocks of a call that are traced; multiplications of a call with all operands; and comparisons that are named: more
#: say nothing.
_OUTPUTS, _FEWEST_OUTPUTS, _ROWS, _TOKENS, _MOST_BLOCKS, _MOST_WORK, _FEW = 32, 8, 16, 8, 64, 1 << 24, 2
#: Units of K that are tried by themselves.
_MOST_UNITS = 32
#: Of so many correct calls, at most one has two outcomes that are named.
_RARELY = 8

Activations = npt.NDArray[Any]
#: Comparisons, each with a bit of `Operands.outcomes`.
_Taken = set[tuple[Comparison, int]]


def first_taken(calls: Calls, token: int, row: int) -> FaultMatch | None:
    """Name the branches that are only taken where an output is wrong; None if none or many are, or if they cannot be
    seen."""
    if not calls.kernel.compares or calls.semantics.epilogue is not None:
        return None
    try:
        alone = _repeated(calls, row, token)
        if calls.wrong(calls.run(*alone), calls.exact(*alone)).any():
            taken = _taken(calls, *alone)
            right, fewest = [*_right_outputs(calls, row, token)], _FEWEST_OUTPUTS
            if not right:
                right, fewest = [*_right_parts(replace(calls, rows=alone[0], x=alone[1]))], 2
        else:
            m, n = len(calls.x), len(calls.rows)
            if m * n * calls.k > _MOST_WORK:
                return None
            taken = _taken(calls, calls.rows, calls.x, row + token * n, token + row * m)
            right, fewest = [alone, *_right_parts(calls)], 2
        if len(right) < fewest:
            return None
        of_right = [_taken(calls, *operands) for operands in right]
        places, how = _places(taken - set().union(*of_right)), "behind a branch that no correct call takes"
        if not places and (of_unit := _wrong_unit(calls, *alone)) is not None:
            # with one block, comparisons are made once: those that are true together show
            units = [_taken(calls, *unit) for unit in itertools.islice(_right_units(calls, right), _OUTPUTS)]
            places = _places(_together(_taken(calls, *of_unit), units)) if len(units) > 1 else places
            how = "behind conditions that correct calls rarely meet together"
    except (KernelFault, EnvironmentFault):
        return None
    if not 0 < len(places) <= _FEW:
        return None
    lines = " and ".join(in_words(place, calls.kernel.texts) for place in places)
    return observed("first-taken-branch", f"wrong {how}: {lines}")


def _places(taken: _Taken) -> dict[str, None]:
    return dict.fromkeys(comparison.place for comparison, _ in sorted(taken, key=lambda one: one[0].number))


def _wrong_unit(calls: Calls, rows: Bytes, x: Activations) -> tuple[Bytes, Activations] | None:
    """The first unit of K that is wrong by itself, of a product; None if none is."""
    part = replace(calls, rows=rows, x=x)
    units = min(calls.k // calls.fmt.unit, _MOST_UNITS) if calls.fmt.unit in calls.kernel.domain.k else 0
    each = (part.first_columns(1, start) for start in range(units))
    return next((unit for unit in each if calls.wrong(calls.run(*unit), calls.exact(*unit)).any()), None)


def _right_units(calls: Calls, right: Sequence[tuple[Bytes, Activations]]) -> Iterator[tuple[Bytes, Activations]]:
    """Units of K of correct products that are correct by themselves: the first one of each, then the next ones."""
    for start in range(min(calls.k // calls.fmt.unit, _MOST_UNITS)):
        for rows, x in right:
            part = replace(calls, rows=rows, x=x)
            if start < part.k // calls.fmt.unit:
                unit = part.first_columns(1, start)
                if not calls.wrong(calls.run(*unit), calls.exact(*unit)).any():
                    yield unit


def _together(taken: _Taken, of_right: Sequence[_Taken]) -> _Taken:
    """Outcomes of two comparisons on one line of which correct calls rarely have both: what is wrong then may be within
    the bound of a larger output. GCC evaluates both sides of `a && b` where that is cheap, so that each outcome also
    occurs without the other one."""
    pairs = itertools.combinations(sorted(taken, key=lambda one: (one[0].place, one[0].number, one[1])), 2)
    found: _Taken = set()
    for one, other in pairs:
        beside = one[0] != other[0] and one[0].place == other[0].place
        if beside and _RARELY * sum(one in right and other in right for right in of_right) <= len(of_right):
            found |= {one, other}
    return found


def _repeated(calls: Calls, row: int, token: int) -> tuple[Bytes, Activations]:
    """The operands of one output: as few rows and tokens as the domain allows."""
    domain = calls.kernel.domain
    n, m = domain.n.up(1) or 1, domain.m.up(1) or 1
    return np.repeat(calls.rows[row : row + 1], n, axis=0), np.repeat(calls.x[token : token + 1], m, axis=0)


def _right_outputs(calls: Calls, row: int, token: int) -> Iterator[tuple[Bytes, Activations]]:
    """The operands of outputs that are correct, those of the same row and the same token first."""
    rows = [*dict.fromkeys([row, *np.linspace(0, len(calls.rows) - 1, _ROWS).astype(int).tolist()])]
    tokens = [*dict.fromkeys([token, *np.linspace(0, len(calls.x) - 1, _TOKENS).astype(int).tolist()])]
    domain = calls.kernel.domain
    rows, tokens = rows[: domain.n.down(len(rows)) or 0], tokens[: domain.m.down(len(tokens)) or 0]
    some = np.ascontiguousarray(calls.rows[rows]), np.ascontiguousarray(calls.x[tokens])
    right = ~calls.wrong(calls.run(*some), calls.exact(*some))
    pairs = sorted(np.argwhere(right).tolist(), key=lambda pair: (all(pair), pair))
    for m, n in pairs[:_OUTPUTS]:
        yield _repeated(calls, rows[n], tokens[m])


def _right_parts(calls: Calls) -> Iterator[tuple[Bytes, Activations]]:
    """Parts of the operands whose product is correct: of the tokens, of the rows and of the columns."""
    m, n, units = len(calls.x), len(calls.rows), calls.k // calls.fmt.unit
    parts = [(calls.rows, calls.x[:size]) for size in (1, m // 2, m - 1)]
    parts += [(calls.rows[:size], calls.x) for size in (1, n // 2, n - 1)]
    parts += [calls.first_columns(size) for size in (1, units // 2, units - 1) if size]
    for rows, x in parts:
        whole = len(rows) in calls.kernel.domain.n and len(x) in calls.kernel.domain.m
        if whole and len(rows) and len(x) and not calls.wrong(calls.run(rows, x), calls.exact(rows, x)).any():
            yield rows, x


def _taken(calls: Calls, rows: Bytes, x: Activations, *at: int) -> _Taken:
    """The outcomes of the comparisons in some thread blocks of a call. Raises KernelFault, EnvironmentFault.

    Args:
        at: places of outputs; the thread blocks near them are traced too.
    """
    fmt, m, n = calls.fmt, len(x), len(rows)
    encoded = calls.semantics.bytes_of(x) if x.dtype == np.float32 else x
    k = rows.shape[1] // fmt.block_bytes * fmt.block_size
    kernel = calls.kernel.of(fmt, m, n, k)
    launched = kernel.only_launch(fmt, m, n, k)
    if not isinstance(launched, Launched) or kernel.earlier(fmt, m, n, k):
        return set()
    blocks = launched.blocks
    near = {min(blocks - 1, place * blocks // (m * n)) for place in at}
    numbers = sorted({*np.linspace(0, blocks - 1, min(blocks, _MOST_BLOCKS)).astype(int).tolist(), *near})
    weights, activations = (np.ascontiguousarray(of).reshape(-1) for of in (rows, encoded))
    whole = SparseProduct(fmt, m, n, k, encoded.shape[1], weights, activations, kernel.lies(fmt, m, n, k))
    compared = kernel.compared(whole, numbers) or {}
    return {(one, bit) for one, of in compared.items() for bit in range(6) if of.outcomes >> bit & 1}
