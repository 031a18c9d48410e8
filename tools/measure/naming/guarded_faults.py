"""Faults that only run under a condition: on sizes, on the place of an output, or on the data of a block.

Fault, condition and operands are random; a simulated kernel gives the outputs of the fault where the condition holds,
and correct ones elsewhere. The diagnosis may call it again, as it calls a real one. Its name is compared with the
fault, and each learnt rule of wrong rows or tokens with the condition, in calls of sizes that were not tried.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from gguf_verify.diagnosis.diagnose import FEWEST, Diagnosis
from gguf_verify.diagnosis.experiments import Experiments
from gguf_verify.diagnosis.fault import Case, Explanation
from gguf_verify.diagnosis.faults import FAULTS
from gguf_verify.diagnosis.operands import Parts
from gguf_verify.diagnosis.replay import diagnose_kernel
from gguf_verify.diagnosis.sizes import Learnt
from gguf_verify.formats.block import BlockFormat
from gguf_verify.formats.tensor_types import WeightFormat
from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.hosts.schedule import Schedule
from gguf_verify.kernels.interface import Weights
from gguf_verify.kernels.ladder import KERNELS
from gguf_verify.kernels.shipped import ShippedKernel
from gguf_verify.semantics.definitions import SEMANTICS

from ..guards import TILES, Bools, Quantity, Rng, guard
from ..inputs import Bytes, Floats, Matrix
from ..markdown import percent

RIGHT, UNKNOWN, WRONG, SILENT = "right", "unknown", "wrong", "changes too little"
#: Types of weights that are tried: with an offset, a minimum, neither, and scales of groups.
TYPES = ("Q4_0", "Q5_1", "Q8_0", "Q4_K")
#: The largest size of a call that fails, and how often a condition is drawn again that no such call meets.
_LARGEST, _TRIES = 260, 200


@dataclass(frozen=True)
class Condition:
    """A condition of an axis.

    Args:
        axis: "N" or "M".
        words: for the list of results.
        holds: (indices, size) → bool[indices].
        of_size: whether it asks for the size, also for a distance from the end, so that calls of other sizes may be
            correct.
    """

    axis: str
    words: str
    holds: Callable[[npt.NDArray[np.intp], int], Bools]
    of_size: bool


def condition(rng: Rng) -> Condition:
    """Return a random condition of a size, and of the place `i` in it."""
    axis = str(rng.choice(["N", "M"]))
    tile = int(rng.choice(TILES))

    def values(i: Any, size: int) -> dict[str, Any]:
        partial_tile = i - size // tile * tile
        return {axis: size, "i": i, f"i % {tile}": i % tile, f"{axis} - i": size - i, _after(axis, tile): partial_tile}

    size = int(rng.integers(2, _LARGEST))
    witness = values(int(rng.integers(size)), size)
    # the partial tile begins at 0
    draws = {axis: _LARGEST // 2, "i": _LARGEST // 2, f"i % {tile}": tile, f"{axis} - i": 40, _after(axis, tile): 1}
    quantities = [
        Quantity(name, "size" if name == axis else "place", partial(_below, most=most)) for name, most in draws.items()
    ]
    made = guard(rng, quantities, witness)
    of_size = any(axis in one.quantity for one in made.comparisons)

    def holds(at: npt.NDArray[np.intp], size: int) -> Bools:
        return np.broadcast_to(np.asarray(made.holds(values(at, size))), at.shape)

    return Condition(axis, made.text, holds, of_size)


def _after(axis: str, tile: int) -> str:
    """The place after the last whole tile."""
    return f"i - {axis} / {tile} * {tile}"


def _below(rng: Rng, most: int) -> float:
    return float(rng.integers(most))


@dataclass(frozen=True)
class DataCondition:
    """A condition of a block's data: `holds` returns it of the parts of a product, as bool[N or M, terms]."""

    words: str
    of_weights: bool
    holds: Callable[[Parts], Bools]


def data_condition(rng: Rng, parts: Parts) -> DataCondition | None:
    """Return a random condition of the data of blocks of weights (d, m, q) or of activations (e, s, a), by values that
    they have; None if a chosen part is constant."""
    of_weights = rng.random() < 0.5
    names = ("d", "m", "q") if of_weights else ("e", "s", "a")
    name = names[rng.integers(3)]
    values = np.unique(getattr(parts, name))
    if len(values) < 2:
        return None
    of = Quantity(name, "data", lambda rng: float(values[rng.integers(len(values))]), name in "qa")
    made = guard(rng, [of], {name: of.draw(rng)})

    def holds(parts: Parts) -> Bools:
        found: Bools = np.asarray(made.holds({name: getattr(parts, name)}))
        return np.asarray(found.any(axis=-1)) if name in "qa" else found

    return DataCondition(made.text, of_weights, holds)


@dataclass(frozen=True)
class Mutant:
    """A simulated kernel's fault.

    Args:
        fault: the id of the catalogue, or "" for outputs that no name explains.
        which: the variant.
        where: the condition in words.
        outputs: of a product with the fault, float64[M, N].
        condition: of an axis; None if it is of data.
    """

    fault: str
    which: str
    where: str
    outputs: Callable[[Case], npt.NDArray[np.float64]]
    condition: Condition | None


class Simulated(ShippedKernel):
    """The kernel `q8_1_naive` with a simulated fault; it accepts calls of any size."""

    def __init__(self, mutant: Mutant) -> None:
        super().__init__(KERNELS["q8_1_naive"], CpuHost(1))
        self._mutant, self._rows = mutant, np.zeros((0, 0), np.uint8)

    def of(self, fmt: WeightFormat, m: int, n: int, k: int) -> ShippedKernel:
        """Return itself: there is no variant for a shape."""
        return self

    def under(self, schedule: Schedule) -> None:
        """Return None: there are no threads."""
        return

    def upload(self, fmt: WeightFormat, rows: Bytes) -> Weights:
        """Keep the rows."""
        return Weights(fmt, len(rows), rows.shape[1] // fmt.block_bytes * fmt.block_size, rows)

    def product(self, weights: Weights, x: Floats) -> Floats:
        """Return the outputs of the fault."""
        semantics = self.definition
        case = Case(semantics, weights.fmt, weights.buffer, semantics.bytes_of(x), x)  # type: ignore[arg-type]
        with np.errstate(all="ignore"):
            return np.ascontiguousarray(self._mutant.outputs(case), np.float32)


def mutant(rng: Rng, case: Case) -> Mutant | None:
    """Return a random fault under a random condition; None if it cannot be drawn for such a product."""
    faulty = _faulty(rng, case)
    if faulty is None:
        return None
    fault, which, made = faulty
    if rng.random() < 0.6:
        of = condition(rng)

        def outputs(case: Case) -> npt.NDArray[np.float64]:
            m, n = case.right.exact.shape
            size = n if of.axis == "N" else m
            holds = of.holds(np.arange(size), size)
            mask = holds[None, :] if of.axis == "N" else holds[:, None]
            return np.where(mask, _values(made(case), case), case.right.exact)

        return Mutant(fault, which, of.words, outputs, of)
    data = data_condition(rng, case.parts)
    if data is None:
        return None

    def blended(case: Case) -> npt.NDArray[np.float64]:
        wrong, right = made(case), case.parts
        holds = data.holds(right)
        if not isinstance(wrong, Parts):
            some = np.asarray(holds.any(axis=1))
            mask = some[None, :] if data.of_weights else some[:, None]
            return np.where(mask, wrong, right.predicted().exact)
        fields = ("q", "d", "m") if data.of_weights else ("a", "e", "s")
        mixed = {
            f: np.where(holds[..., None] if f in "qa" else holds, getattr(wrong, f), getattr(right, f)) for f in fields
        }
        return replace(right, **mixed).predicted().exact

    return Mutant(fault, which, data.words, blended, None)


def _values(made: Any, case: Case) -> npt.NDArray[np.float64]:
    if isinstance(made, Parts):
        return made.predicted().exact
    return np.asarray(made if isinstance(made, np.ndarray) else made.exact)


def _faulty(rng: Rng, case: Case) -> tuple[str, str, Callable[[Case], Any]] | None:
    """Return the id, the variant and the outputs of a random fault."""
    if rng.random() < 0.3:
        by = float(rng.choice([0.0, 0.25, 0.5, 1.01, 1.5, 2.0, -1.0]))
        kind = int(rng.integers(4))
        changes: list[tuple[str, str, Callable[[Case], Any]]] = [
            ("term-factor", f"minimum times {by:g}", lambda c: replace(c.parts, m=by * c.parts.m)),
            ("term-factor", f"codes times {by:g}", lambda c: replace(c.parts, q=by * c.parts.q)),
            ("", "random outputs", lambda c: _noise(c)),
            ("", "zeros", lambda c: np.zeros(c.right.exact.shape)),
        ]
        return changes[kind]
    faults = [fault for fault in FAULTS if fault.applies(case)]
    fault = faults[rng.integers(len(faults))]
    names = [which for which, _ in fault.variants(case)]
    if not names:
        return None
    which = names[rng.integers(len(names))]

    def made(case: Case) -> Any:
        found = next((made for _, made in fault.of(case, (which,))), None)
        if found is None:
            return case.right.exact
        if isinstance(found, Parts):
            return found
        return found.exact if found.known is None else np.where(found.known, found.exact, case.right.exact)

    return fault.id, which, made


def _noise(case: Case) -> npt.NDArray[np.float64]:
    exact = case.right.exact
    m, n = (np.arange(size, dtype=np.float64) for size in exact.shape)
    return np.asarray(exact * (1.3 + 0.5 * np.sin(1e3 * np.sin(12.9898 * m[:, None] + 78.233 * n[None, :]))))


@dataclass(frozen=True)
class Outcome:
    """The answer to one mutant: the names, what they are, and what the learnt rules are ("" for none)."""

    fault: str
    which: str
    where: str
    type: str
    answer: str
    rule: str
    named: tuple[str, ...]
    words: tuple[str, ...]


def tried(matrix: Matrix, number: int, seed: int) -> Outcome | None:
    """Diagnose one random mutant on real weights and activations; None if none was found that changes outputs."""
    rng = np.random.default_rng((seed, number))
    fmt, semantics = matrix.fmt, SEMANTICS["q8_1"]
    assert isinstance(fmt, BlockFormat)
    for _ in range(_TRIES):
        m, n = int(rng.integers(2, 70)), int(rng.integers(2, _LARGEST))
        if rng.random() < 0.3:
            m, n = min(n, 128), min(m, 64)
        rows, x = _operands(matrix, m, n, rng)
        case = Case(semantics, fmt, rows, semantics.bytes_of(x), x)
        made = mutant(rng, case)
        if made is None:
            continue
        kernel = Simulated(made)
        y = kernel.product(kernel.upload(fmt, rows), x)
        bad = ~(np.abs(y - case.right.exact) <= case.right.bound)
        if bad.sum() >= FEWEST:
            rows, x = _operands(matrix, m, n, rng)
            fresh = Case(semantics, fmt, rows, semantics.bytes_of(x), x)
            return _outcome(made, kernel, case, fresh, y, bad)
    return None


def _operands(matrix: Matrix, m: int, n: int, rng: Rng) -> tuple[Bytes, Floats]:
    """Return rows and tokens of the matrix in a random order, repeated with blocks in other orders if it is small."""
    unit = matrix.fmt.block_bytes
    blocks = matrix.rows.reshape(len(matrix.rows), -1, unit)
    picked = blocks[rng.integers(len(blocks), size=n)]
    order = np.argsort(rng.random(picked.shape[:2]), axis=1)
    rows = np.take_along_axis(picked, order[..., None], axis=1).reshape(n, -1)
    x = matrix.x[rng.integers(len(matrix.x), size=m)] * rng.choice([-1, 1], size=(m, 1)) * rng.uniform(0.5, 2, (m, 1))
    return np.ascontiguousarray(rows), np.ascontiguousarray(x, np.float32)


def _outcome(made: Mutant, kernel: Simulated, case: Case, fresh: Case, y: Floats, bad: Bools) -> Outcome:
    fmt, semantics, rows, x = case.fmt, case.semantics, case.rows, case.values
    assert x is not None
    m, n = (int(i) for i in np.argwhere(bad)[0])
    experiments = Experiments(kernel, fmt, semantics, rows, x)
    found = experiments.settled(diagnose_kernel(kernel, fmt, semantics, rows, x, y, (m, n)))
    learnt = [of for series in ("by_tokens", "by_rows") if (of := _learnt(experiments, series)) is not None]
    return Outcome(
        made.fault, made.which, made.where, fmt.name, _answer(made, found, fresh), rated(made, learnt),
        tuple(f.id for f in found.faults) + found.definitions,
        (*found.lines, *(of.condition for of in learnt)),
    )  # fmt: skip


def _learnt(experiments: Experiments, series: str) -> Learnt | None:
    if series not in experiments.__dict__:  # the diagnosis did not need it
        return None
    learnt: Learnt | None = experiments.__dict__[series].learnt
    return learnt


def rated(made: Mutant, learnt: Sequence[Learnt]) -> str:
    """Rate the rules: RIGHT if those of the condition's axis predict it for any size, and there are no others."""
    if not learnt:
        return ""
    return RIGHT if made.condition is not None and all(_agrees(made.condition, of) for of in learnt) else WRONG


def _agrees(of: Condition, learnt: Learnt) -> bool:
    if learnt.axis.size != of.axis:
        return False
    return all(
        (learnt.wrong(size, np.arange(size)) == of.holds(np.arange(size), size)).all()
        for size in range(1, 2 * _LARGEST + 1)
    )


def _answer(made: Mutant, found: Diagnosis, fresh: Case) -> str:
    """Rate the names: right if one is the fault's, a size that it asks for, or predicts outputs of other operands.

    Args:
        fresh: a product of the same shape with other operands.
    """
    if found.wrong < FEWEST:
        return SILENT
    ids = {f.id for f in found.faults}
    if not ids:
        return WRONG if found.definitions else UNKNOWN
    accepted = {made.fault}
    if made.fault.startswith(("end-of-k", "stale-tile")):  # a row that is shorter than the tile is correct
        accepted.add("window-of-k")
    if made.condition is not None:
        accepted.add("partial-tile")
        if made.condition.of_size:
            accepted.add(f"window-of-{made.condition.axis.lower()}")
    fault = next((f for f in FAULTS if f.id == made.fault), None)
    if ids & accepted or (fault is not None and fault.named_by(ids)):
        return RIGHT
    y = made.outputs(fresh)
    return RIGHT if any(_predicts(e, y, fresh) for e in found.explanations if e.match.id in ids) else WRONG


def _predicts(explanation: Explanation, y: npt.NDArray[np.float64], fresh: Case) -> bool:
    predicted = explanation.predict(fresh)
    if predicted is None:
        return False
    near, part = np.abs(y - predicted.exact) <= predicted.bound + fresh.right.bound, explanation.part
    if part is None:
        return bool(near.all())
    near = near[: part.shape[0], : part.shape[1]]  # the diagnosis may have used fewer tokens or rows
    return bool(near[part[: near.shape[0], : near.shape[1]]].all())


def tallied(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Count answers, by kind of condition, and list the wrong ones."""
    by = {kind: Counter(o.answer for o in outcomes if _kind(o) == kind) for kind in ("sizes and places", "data")}
    return {
        "mutants": len(outcomes),
        "answers": dict(Counter(o.answer for o in outcomes)),
        "by condition": {kind: dict(of) for kind, of in by.items()},
        "rules": dict(Counter(o.rule for o in outcomes)),
        "wrong": [vars(o) for o in outcomes if WRONG in (o.answer, o.rule)],
    }


def rows(figures: dict[str, Any]) -> list[list[str]]:
    """Return table rows: quantity, measured, goal."""
    answers, rules = Counter(figures["answers"]), Counter(figures["rules"])
    changing, learnt = figures["mutants"] - answers[SILENT], rules[RIGHT] + rules[WRONG]

    def share(part: int, whole: int) -> str:
        return f"{percent(part, whole)} ({part:,} of {whole:,})" if whole else "none"

    return [
        ["correct name: faults under a random condition", share(answers[RIGHT], changing), ""],
        ["incorrect name: faults under a random condition", share(answers[WRONG], changing), "0 %"],
        ["a learnt rule of rows or tokens that does not hold for other sizes", share(rules[WRONG], learnt), "0 %"],
    ]


def _kind(outcome: Outcome) -> str:
    return "sizes and places" if "N" in outcome.where or "M" in outcome.where or "i " in outcome.where else "data"
