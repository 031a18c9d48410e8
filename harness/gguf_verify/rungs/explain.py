"""Explanations of the kernel's calls with wrong outputs: where these are, and which fault makes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ..diagnosis.localisation import Blame, along_k
from ..diagnosis.observed import WINDOWS, name_of
from ..diagnosis.pattern import Map, pattern, utilisation
from ..formats.tensor_types import WeightFormat
from ..kernels.interface import Kernel
from ..results.calls import LIMIT, OWN, Call
from ..results.diagnoses import LocatedDiagnosis, OutOfRange
from ..results.products import OutputMap
from ..results.rungs import RungResult
from ..semantics.definition import Semantics
from ..semantics.exact import product
from ..semantics.gates import judge
from ..semantics.order import Order
from ..semantics.overflow import range_problem
from ..semantics.sums import Product
from ..support.arrays import get
from ..support.errors import Culprit, KernelFault, KernelFinding
from .judging import CHUNK_OUTPUTS

if TYPE_CHECKING:
    from ..diagnosis.experiments import Experiments

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

#: Diagnoses that a rung tries of each type of weights and rank of calls: each takes seconds, and one of errors of the
#: order alone says nothing of what follows.
MOST_DIAGNOSES = 3
#: Tokens and rows of the parts of a wrong output on which the diagnosis of another matrix is tried.
_TRIED = 16, 64
#: The verdict on outputs whose wrong elements have no finite exact value.
OUT_OF_RANGE = "out of range"
#: The verdict on outputs that are within the bound and do not have the bits of the declared order.
ORDER = "another order"
_OF_ORDER = (
    "the outputs are within the bound, but do not have the bits of the declared order: the block terms are added in "
    "another order, or rounded otherwise. Fix: declare no order, or add them in it with the same fused multiply-adds "
    "(kernels/common.cuh)"
)
_OF_SCORE = (
    "the outputs are within the bound, which holds for any order, but the errors are up to {:.3g} times the standard "
    "deviation of rounding errors: more than the {:g} that rounding can explain"
)


@dataclass(frozen=True)
class WrongOutput:
    """The outputs of a call of the kernel, of any shape, at least one of which is wrong. It can be pickled.

    Args:
        fmt, semantics: the weights' format, and the definition that the kernel declares.
        rows: weights uint8[N, row bytes].
        taken: the activations that the kernel took: float32[M, K] that it quantized itself, or uint8[M, row bytes].
        encoded: these as the kernel's definition has them, uint8[M, row bytes].
        y: float32[M, N].
        order: the declared order whose bits are required, if any.
        who: whose output it is, and at which M where it is not the graph's.
        tensor, where: name of the weights, and their name as it is shown.
        m, n: token and row of the first wrong element, the first row's.
        blames: what is to blame along K for the elements that were looked at.
        first_row: the number, in its matrix, of the first of the rows.
        block: the block of K that the rows are of, where they are of one.
        call: which call it is.
    """

    fmt: WeightFormat
    semantics: Semantics
    rows: Bytes
    taken: Floats | Bytes
    encoded: Bytes
    y: Floats
    order: Order | None
    who: str
    tensor: str
    where: str
    m: int
    n: int
    blames: tuple[Blame, ...] = ()
    first_row: int = 0
    block: int | None = None
    call: Call | None = None

    def exact(self, span: slice, threads: int) -> Product:
        """The exact product of these rows, which the output is judged by."""
        return product(self.semantics, self.fmt, self.rows[span], self.encoded, self.order, threads)

    def in_any_order(self, span: slice, threads: int, exact: Product) -> Product:
        """The same if no order were declared."""
        if self.order is None or self.semantics.epilogue is None:
            return replace(exact, ordered=None)
        return product(self.semantics, self.fmt, self.rows[span], self.encoded, None, threads)


@dataclass(frozen=True)
class WrongCall(WrongOutput):
    """Such an output, with the kernel that gave it."""

    kernel: Kernel = field(kw_only=True)

    @property
    def output(self) -> WrongOutput:
        """Without the kernel."""
        return WrongOutput(**{of.name: getattr(self, of.name) for of in fields(WrongOutput)})


@dataclass(frozen=True)
class _Wrong:
    """Which outputs of [M, N] are wrong; of these, which are so beyond their bits, and which have no finite exact
    value; the map of all. `score`: |y - o| / spread of the worst, and its limit, where none is outside its bound; else
    None."""

    map: Map
    bad: npt.NDArray[np.bool_]
    outside: npt.NDArray[np.bool_]
    not_finite: npt.NDArray[np.bool_]
    score: tuple[float, float] | None


@dataclass(frozen=True)
class Place:
    """Which call is explained: who, tensor, where, call are those of a `WrongCall`."""

    who: str
    tensor: str
    where: str
    call: Call | None


@dataclass(frozen=True)
class WrongBytes:
    """A call of the kernel's quantizer that gave other bytes than the definition's.

    Args:
        semantics: the definition that the kernel declares.
        x: float32[M, K].
        got, expected: uint8[M, row bytes].
        place: which call it is.
        type: of the weights.
        m: token of the first wrong byte.
        block: the first wrong block of that token.
    """

    semantics: Semantics
    x: Floats
    got: Bytes
    expected: Bytes
    place: Place
    type: str
    m: int
    block: int


@dataclass(frozen=True)
class Attempt:
    """The explanation of a wrong call.

    Args:
        type, rank: the weights' type, and the rank of the call.
        diagnosis: None where nothing can be replayed.
        map: of its output, if there is one.
        counted: it is one of the few that a rung makes.
    """

    type: str
    rank: int
    diagnosis: LocatedDiagnosis | None
    map: OutputMap | None = None
    counted: bool = True


@dataclass
class Attempts:
    """The explanations of a part of a rung's work, in order, so that they can be joined to those before.

    Args:
        made: the attempts.
        first: the first wrong call, where it is to be kept.
    """

    made: list[Attempt] = field(default_factory=list)
    first: WrongOutput | None = None


class Explanations:
    """Of one rung, or a part of its work: for each type of weights, the diagnosis of the most important wrong call.

    Args:
        result: of the rung.
        threads: for exact products.
        draws: the rung's result also gets the map of the output that its diagnosis explains.
        left: (type, rank of calls) → diagnoses that it still tries, where these are not MOST_DIAGNOSES.
        holds: the attempts hold the first wrong call, which is to be saved.
        known: diagnoses of other matrices, which name a cause.
    """

    def __init__(
        self, result: RungResult, threads: int, draws: bool = False, left: Mapping[tuple[str, int], int] | None = None,
        holds: bool = False, known: Sequence[LocatedDiagnosis] = (),
    ) -> None:  # fmt: skip
        self._holds, self._known = holds, known
        self._result, self._threads, self.draws = result, threads, draws
        #: Diagnoses that may still be tried: see `left`.
        self.left = dict(left or {})
        #: For `join`.
        self.attempts = Attempts()

    @property
    def unkept(self) -> bool:
        """Whether the first wrong call is to be saved, and there was none yet."""
        return self._holds and self.attempts.first is None

    def join(self, part: Attempts) -> None:
        """Say what a part of the work says, as if its calls had been added here."""
        if self.unkept:
            self.attempts.first = part.first
        for attempt in part.made:
            if not attempt.counted or self._tries(attempt.type, attempt.rank):
                self._say(attempt)

    def add(self, call: WrongCall) -> None:
        """Explain a call, where that says more than what is known. Raises KernelFault."""
        if self.unkept:
            self.attempts.first = call.output
        rank = OWN if call.call is None else call.call.rank
        if self._tries(call.fmt.name, rank):
            found = self._look(call)
            drawn = _output_map(call, found.map) if self.draws else None
            self._say(Attempt(call.fmt.name, rank, self._diagnosis(call, found), drawn))
        elif rank == OWN and call.tensor not in self._result.causes:  # of one tensor the first wrong call
            self._result.attribute(call.tensor, self._shared_cause(call))

    def _shared_cause(self, call: WrongCall) -> str:
        """The cause that is known from another matrix of the type, if it explains this call, too; else "".

        It is tried around the first wrong output and on the last rows, because a whole diagnosis takes seconds.
        """
        kept = next((d for d in self._known if d.type == call.fmt.name), None)
        if kept is None:
            return ""
        from ..diagnosis.diagnose import explains

        tokens, rows = _TRIED
        m, found = call.m // tokens * tokens, list[bool | None]()
        for n in {call.n // rows * rows, max(0, len(call.rows) - rows)}:
            y = np.ascontiguousarray(call.y[m : m + tokens, n : n + rows])
            w, x = call.rows[n : n + rows], call.taken[m : m + tokens]
            found.append(explains(kept, y, call.fmt, call.semantics, w, x, self._threads))
        return kept.cause if True in found and False not in found else ""

    def _tries(self, type: str, rank: int) -> bool:
        """Whether a further call of this type and rank may say more than what is known."""
        kept = next((d for d in self._result.diagnoses if d.type == type), None)
        explained = kept is not None and kept.explains and kept.rank <= rank
        return self.left.get((type, rank), MOST_DIAGNOSES) > 0 and not explained

    def say(self, diagnosis: LocatedDiagnosis) -> None:
        """Keep a diagnosis that was made elsewhere, where that says more than what is known."""
        self._say(Attempt(diagnosis.type, diagnosis.rank, diagnosis, counted=False))

    def _say(self, attempt: Attempt) -> None:
        self.attempts.made.append(attempt)
        key, found, result = (attempt.type, attempt.rank), attempt.diagnosis, self._result
        if attempt.counted:
            self.left[key] = self.left.get(key, MOST_DIAGNOSES) - 1
        if found is None:
            if result.diagnosis is None and result.heat_map is None:
                result.heat_map = attempt.map
        elif result.explain(found):
            if found.cause and found.rank == OWN and found.tensor not in result.causes:
                result.attribute(found.tensor, found.cause)
            if found.explains:
                self.left |= dict.fromkeys(((found.type, rank) for rank in range(found.rank, LIMIT + 1)), 0)
            if result.diagnosis is found:
                result.heat_map = attempt.map

    def add_bytes(self, wrong: WrongBytes) -> None:
        """Explain what a quantizer gave, where that says more than what is known."""
        place, rank = wrong.place, OWN if wrong.place.call is None else wrong.place.call.rank
        if not self._tries(wrong.type, rank):
            return
        from ..diagnosis.quantizer import diagnose_quantizer

        found = diagnose_quantizer(wrong.semantics, wrong.x, wrong.got, wrong.expected)
        located = LocatedDiagnosis(
            tensor=place.tensor, where=place.where, who=place.who, row=0, token=wrong.m, block=wrong.block,
            verdict=found.verdict, wrong=found.wrong, outputs=found.blocks, faults=found.faults, lines=found.lines,
            type=wrong.type, call=place.call,
        )  # fmt: skip
        self._say(Attempt(wrong.type, rank, located))

    def add_fault(self, error: KernelFault, tried: Experiments, place: Place) -> None:
        """Explain a call that gave no outputs to judge, where what was seen of it has a name.

        Args:
            tried: the kernel and the operands of the call.
        """
        found = name_of(error) if isinstance(error, KernelFinding) else None
        rank = OWN if place.call is None else place.call.rank
        if found is None:
            return
        if not self._tries(tried.fmt.name, rank):
            kept = next((d for d in self._known if d.type == tried.fmt.name), None)
            if kept is not None and place.tensor not in self._result.causes and found.id in {f.id for f in kept.faults}:
                self._result.attribute(place.tensor, kept.cause)
            return
        if found.id in ("not-deterministic", "unwritten"):  # these have a cause
            found = tried.checked() or found
        located = LocatedDiagnosis(
            tensor=place.tensor, where=place.where, who=place.who, row=0, token=0, block=None, verdict="known fault",
            wrong=0, outputs=0, faults=(found,), lines=(f"{found.words}. Fix: {found.fix}",), type=tried.fmt.name,
            call=place.call,
        )  # fmt: skip
        self._say(Attempt(tried.fmt.name, rank, located))

    def _look(self, call: WrongCall) -> _Wrong:
        """Judge the whole output again, over all its rows and tokens."""
        y = call.y
        grid = Map(*y.shape)
        bad, outside, not_finite = (np.zeros(y.shape, bool) for _ in range(3))
        score, limit, within = 0.0, 0.0, True
        step = max(grid.rows, CHUNK_OUTPUTS // len(y) // grid.rows * grid.rows)
        for start in range(0, len(call.rows), step):
            span = slice(start, start + step)
            expected = call.exact(span, self._threads)
            part = np.ascontiguousarray(y[:, span])
            bad[:, span] = judge(part, expected).bad
            not_finite[:, span] = ~np.isfinite(expected.exact)
            free = call.in_any_order(span, self._threads, expected)
            of_any_order = judge(part, free)
            outside[:, span] = of_any_order.bad & np.isfinite(expected.exact)
            grid.add(start, utilisation(part, expected), bad[:, span])
            far = outside[:, span]
            within &= bool((utilisation(part, free)[far] <= 1).all())
            with np.errstate(all="ignore"):
                errors = np.abs(part.astype(np.float64) - free.exact)[far] / get(of_any_order.product.spread)[far]
            score, limit = max(score, float(errors.max(initial=0.0))), free.limit
        by_score = within and outside.any() and score > limit
        return _Wrong(grid, bad, outside, not_finite, (score, limit) if by_score else None)

    def _diagnosis(self, call: WrongCall, found: _Wrong) -> LocatedDiagnosis | None:
        """The diagnosis of the output; None if nothing can be replayed."""
        # The catalogue of faults is imported when an output is wrong: a start would take a tenth longer.
        from ..diagnosis.branches import first_taken
        from ..diagnosis.diagnose import Diagnosis
        from ..diagnosis.experiments import Experiments
        from ..diagnosis.replay import diagnose_kernel

        range_found = _out_of_range(call, found.not_finite)
        of_range = () if range_found is None else range_found[1]
        words = (*pattern(found.bad), *along_k(call.blames))
        if found.score is not None:
            words = (_OF_SCORE.format(*found.score), *words)
        if found.bad.any() and (call.y[found.bad] == 0).all():
            words = ("all wrong outputs are zero", *words)
        culprit: Culprit = "kernel"
        said = Diagnosis(int(found.bad.sum()), found.bad.size)
        if found.outside.any():
            at_n, at_m = (int(i) for i in np.argwhere(found.outside.T)[0])
            replayed = diagnose_kernel(
                call.kernel, call.fmt, call.semantics, call.rows, call.taken, call.y, (at_m, at_n), self._threads
            )
            if not replayed.wrong:
                replayed = Diagnosis(said.wrong, said.outputs)
            tried = Experiments(call.kernel, call.fmt, call.semantics, call.rows, call.taken, self._threads)
            replayed = tried.settled(replace(replayed, pattern=words))
            branch = first_taken(tried, at_m, at_n)
            if branch is not None and all(fault.id in WINDOWS for fault in replayed.faults):
                places = (*(fault.words for fault in replayed.faults), *replayed.places)
                replayed = replace(replayed, faults=(branch,), places=places)
            elif branch is not None:
                replayed = replace(replayed, places=(branch.words, *replayed.places))
            said = replace(replayed, wrong=said.wrong, outputs=said.outputs, pattern=(*replayed.pattern, *of_range))
            verdict, lines = said.verdict, tuple(said.lines)
        elif (found.bad & ~found.not_finite).any():
            verdict, lines = ORDER, (_OF_ORDER, *words, *of_range)
        elif range_found is not None:
            culprit, lines = range_found[2], (*of_range, *words)
            verdict = OUT_OF_RANGE
        else:
            return None
        return LocatedDiagnosis(
            tensor=call.tensor, where=call.where, who=call.who, row=call.first_row + call.n, token=call.m,
            block=call.blames[0].block if call.blames else call.block, verdict=verdict, wrong=said.wrong,
            outputs=said.outputs, definitions=said.definitions, faults=said.faults, nearest=said.nearest,
            out_of_range=None if range_found is None else range_found[0], culprit=culprit, lines=lines,
            type=call.fmt.name, call=call.call,
        )  # fmt: skip


def _out_of_range(
    call: WrongCall, not_finite: npt.NDArray[np.bool_]
) -> tuple[OutOfRange, tuple[str, ...], Culprit] | None:
    """Why outputs have no finite exact value, which no kernel is to blame for: as data, in words, and who is; None
    where all have one or no number is found out of range."""
    if not not_finite.any():
        return None
    n, m = (int(i) for i in np.argwhere(not_finite.T)[0])
    values = call.taken[m].view(np.float32) if call.taken.dtype == np.float32 else None
    problem = range_problem(call.semantics, call.fmt, call.rows[n], call.encoded[m], values)
    if problem is None:
        return None
    made = OutOfRange(
        what=problem.what, row=call.first_row + n, token=m,
        block=problem.block if call.block is None else call.block, value=problem.value, limit=problem.limit,
        ratio=problem.ratio,
    )  # fmt: skip
    whose = f"row {call.first_row + n}" if problem.what.startswith("weight") else f"token {m}"
    lines = [
        f"{int(not_finite.sum()):,} of {not_finite.size:,} outputs have no finite exact value, and no kernel can give "
        f"one: in {whose}, {problem.words}"
    ]
    definition = call.semantics.inside or call.semantics
    if problem.to_blame == "file":
        lines.append("the file is at fault, not the kernel: see the bytes rung, or --audit")
    else:
        lines.append(f"the definition {definition.name} cannot represent these values: the kernel is not at fault")
    if problem.what == "s" and definition.raw_sum:
        lines.append("llama.cpp's CUDA backend keeps s = Σ x in a half too, and shares this hazard")
    return made, tuple(lines), problem.to_blame


def _output_map(call: WrongCall, grid: Map) -> OutputMap:
    tokens, rows = call.kernel.tile(call.fmt, grid.m, grid.n) or (0, 0)
    return OutputMap(
        tensor=call.tensor, where=call.where, who=call.who, m=grid.m, n=grid.n, tokens_per_cell=grid.tokens,
        rows_per_cell=grid.rows, utilisation=grid.worst.tolist(), wrong=grid.wrong.tolist(), tile_tokens=tokens,
        tile_rows=rows,
    )  # fmt: skip
