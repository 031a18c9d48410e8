"""What is said of a call of the kernel whose outputs are wrong: where they are, and what explains them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace

import numpy as np
import numpy.typing as npt

from ..diagnosis.diagnose import Diagnosis
from ..diagnosis.experiments import Experiments
from ..diagnosis.localisation import Blame, along_k
from ..diagnosis.pattern import Map, pattern, utilisation
from ..diagnosis.quantizer import diagnose_quantizer
from ..diagnosis.replay import diagnose_kernel
from ..diagnosis.seen import name_of
from ..formats import WeightFormat
from ..kernels.interface import Kernel
from ..results import Call, LocatedDiagnosis, OutOfRange, OutputMap, RungResult
from ..semantics import Order, Product, Semantics, judge, product
from ..semantics.gates import SCORE_LIMIT
from ..semantics.overflow import range_problem
from ..support.errors import Culprit, KernelFault, KernelFinding
from .judging import CHUNK_OUTPUTS

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

#: Diagnoses that a rung tries: each takes seconds, and one of errors of the order alone says nothing of what follows.
MOST_DIAGNOSES = 3
#: The verdict on outputs of which those that are wrong have no finite exact value.
OUT_OF_RANGE = "out of range"
#: The verdict on outputs that are within the bound and do not have the bits of the declared order.
ORDER = "another order"
#: Verdicts that a later call may say more than, the least telling first.
UNEXPLAINED = (ORDER, OUT_OF_RANGE, "unknown")
_OF_ORDER = (
    "the outputs are within the bound, but do not have the bits of the declared order: the block terms are added in "
    "another order, or rounded otherwise. Fix: declare no order, or add them in it with the same fused multiply-adds "
    "(kernels/common.cuh)"
)
_OF_SCORE = (
    "the outputs are within the bound, which holds for any order, but the errors are up to {:.3g} times the standard "
    f"deviation of rounding errors: more than the {SCORE_LIMIT:g} that rounding can explain"
)


@dataclass(frozen=True)
class WrongOutput:
    """What a call of the kernel gave, of whatever shape, where an output is wrong. It can be pickled.

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


def _telling(verdict: str) -> int:
    """How much a verdict says."""
    return UNEXPLAINED.index(verdict) if verdict in UNEXPLAINED else len(UNEXPLAINED)


@dataclass(frozen=True)
class _Wrong:
    """Which outputs of [M, N] are wrong; of these, which are so beyond their bits, and which have no finite exact
    value; the map of all. `score`: |y - o| / spread of the worst, where none is outside its bound; else None."""

    map: Map
    bad: npt.NDArray[np.bool_]
    outside: npt.NDArray[np.bool_]
    not_finite: npt.NDArray[np.bool_]
    score: float | None


@dataclass(frozen=True)
class WrongBytes:
    """A call of the kernel's quantizer that gave other bytes than the definition's.

    Args:
        semantics: the definition that the kernel declares.
        x: float32[M, K].
        got, expected: uint8[M, row bytes].
        who, tensor, where, m: as of a `WrongCall`; token m of the first wrong byte.
        block: the first wrong block of that token.
    """

    semantics: Semantics
    x: Floats
    got: Bytes
    expected: Bytes
    who: str
    tensor: str
    where: str
    m: int
    block: int


@dataclass
class Attempts:
    """What a part of a rung's work says of its wrong calls, in order, so that it can be joined to what came before.

    Args:
        made: of each attempt the diagnosis, None where nothing can be replayed, and whether it is one of the few that a
            rung makes.
        map: of the first wrong output.
        first: the first wrong call, where it is to be kept.
    """

    made: list[tuple[LocatedDiagnosis | None, bool]] = field(default_factory=list)
    map: OutputMap | None = None
    first: WrongOutput | None = None


class Explanations:
    """Of one rung, or a part of its work: the diagnosis of the first wrong call that can be explained.

    Args:
        result: of the rung.
        threads: for exact products.
        draws: the rung's result also gets the map of the first wrong output.
        keep: gets the wrong calls, in order: all, or the first of each part that is joined.
        left: diagnoses that it tries; None: MOST_DIAGNOSES.
        holds: the attempts hold the first call, for the `keep` of whoever joins them.
    """

    def __init__(
        self, result: RungResult, threads: int, draws: bool = False,
        keep: Callable[[WrongOutput], None] | None = None, left: int | None = None, holds: bool = False,
    ) -> None:  # fmt: skip
        self._keep, self._holds = keep, holds
        self._result, self._threads, self._draws = result, threads, draws
        self._left = MOST_DIAGNOSES if left is None else left
        #: For `join`.
        self.attempts = Attempts()
        #: No call was added, or joined with a part, that is to be kept.
        self.unkept = keep is not None

    @property
    def left(self) -> int:
        """Diagnoses that may still be tried."""
        return 0 if self._explained else self._left

    @property
    def undrawn(self) -> bool:
        """Whether the map of the first wrong output is to be drawn yet."""
        return self._draws and self._result.heat_map is None

    def join(self, part: Attempts) -> None:
        """Say what a part of the work says, as if its calls had been added here."""
        if self.undrawn:
            self._result.heat_map = part.map
        if part.first is not None:
            self._kept(part.first)
        for diagnosis, counted in part.made:
            if counted and (not self._left or self._explained):
                continue
            self._left -= counted
            if diagnosis is not None:
                self.say(diagnosis)

    def add(self, call: WrongCall) -> None:
        """Explain a call, where that says more than what is known. Raises KernelFault."""
        result, found = self._result, None
        self._kept(call)
        if self._holds and self.attempts.first is None:
            self.attempts.first = call.output
        if self.undrawn:
            found = self._look(call)
            result.heat_map = self.attempts.map = _output_map(call, found.map)
        if self._left and not self._explained:
            self._left -= 1
            self._attempt(self._diagnosis(call, found or self._look(call)))

    def _kept(self, call: WrongOutput) -> None:
        if self._keep is not None:
            self.unkept = False
            self._keep(call)

    def say(self, diagnosis: LocatedDiagnosis) -> None:
        """Keep a diagnosis that was made elsewhere, where that says more than what is known."""
        self._attempt(diagnosis, counted=False)

    def _attempt(self, diagnosis: LocatedDiagnosis | None, counted: bool = True) -> None:
        self.attempts.made.append((diagnosis, counted))
        if diagnosis is None:
            return
        told = -1 if self._result.diagnosis is None else _telling(self._result.diagnosis.verdict)
        if _telling(diagnosis.verdict) > told:
            self._result.diagnosis = diagnosis

    def add_bytes(self, wrong: WrongBytes) -> None:
        """Explain what a quantizer gave, where that says more than what is known."""
        if not self._left or self._explained:
            return
        self._left -= 1
        found = diagnose_quantizer(wrong.semantics, wrong.x, wrong.got, wrong.expected)
        self._attempt(
            LocatedDiagnosis(
                tensor=wrong.tensor, where=wrong.where, who=wrong.who, row=0, token=wrong.m, block=wrong.block,
                verdict=found.verdict, wrong=found.wrong, outputs=found.blocks, faults=found.faults, lines=found.lines,
            )
        )  # fmt: skip

    def add_fault(self, error: KernelFault, tried: Experiments, who: str, tensor: str, where: str) -> None:
        """Explain a call that gave no outputs to judge, where what was seen of it has a name.

        Args:
            tried: the kernel and the operands of the call.
        """
        found = name_of(error) if isinstance(error, KernelFinding) else None
        if found is None or not self._left or self._explained:
            return
        self._left -= 1
        if found.id in ("not-deterministic", "unwritten"):  # these have a cause
            found = tried.checked() or found
        self._attempt(
            LocatedDiagnosis(
                tensor=tensor, where=where, who=who, row=0, token=0, block=None, verdict="known fault", wrong=0,
                outputs=0, faults=(found,), lines=(f"{found.words}. Fix: {found.fix}",),
            )
        )  # fmt: skip

    @property
    def _explained(self) -> bool:
        """Whether no later call can say more."""
        return self._result.diagnosis is not None and self._result.diagnosis.verdict not in UNEXPLAINED

    def _look(self, call: WrongCall) -> _Wrong:
        """Judge the whole output again, over all its rows and tokens."""
        y = call.y
        grid = Map(*y.shape)
        bad, outside, not_finite = (np.zeros(y.shape, bool) for _ in range(3))
        score, within = 0.0, True
        step = max(grid.rows, CHUNK_OUTPUTS // len(y) // grid.rows * grid.rows)
        for start in range(0, len(call.rows), step):
            span = slice(start, start + step)
            expected = call.exact(span, self._threads)
            part = np.ascontiguousarray(y[:, span])
            bad[:, span] = judge(part, expected).bad
            not_finite[:, span] = ~np.isfinite(expected.exact)
            free = call.in_any_order(span, self._threads, expected)
            outside[:, span] = judge(part, free).bad & np.isfinite(expected.exact)
            grid.add(start, utilisation(part, expected), bad[:, span])
            far = outside[:, span]
            within &= bool((utilisation(part, free)[far] <= 1).all())
            with np.errstate(all="ignore"):
                errors = np.abs(part.astype(np.float64) - free.exact)[far] / free.spread[far]
            score = max(score, float(errors.max(initial=0.0)))
        return _Wrong(grid, bad, outside, not_finite, score if within and outside.any() else None)

    def _diagnosis(self, call: WrongCall, found: _Wrong) -> LocatedDiagnosis | None:
        """What explains the output; None where nothing can be replayed."""
        range_found = _out_of_range(call, found.not_finite)
        of_range = () if range_found is None else range_found[1]
        words = (*pattern(found.bad), *along_k(call.blames))
        if found.score is not None:
            words = (_OF_SCORE.format(found.score), *words)
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
            if replayed.verdict == "unknown":
                replayed = replace(replayed, faults=tuple(tried.named()))
            elif replayed.verdict == "known fault":
                replayed = replace(replayed, faults=tried.beside(replayed.explanations))
            said = replace(replayed, wrong=said.wrong, outputs=said.outputs, pattern=(*words, *of_range))
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


__all__ = ["MOST_DIAGNOSES", "ORDER", "Attempts", "Explanations", "WrongBytes", "WrongCall", "WrongOutput"]
