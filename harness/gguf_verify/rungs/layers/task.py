"""The task of one GEMM of the graph: it is judged by itself, in a run of the same model, kernel and options."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from ...checks import ALONE
from ...checks import OTHER_SHAPES as OTHER_OUTPUTS
from ...formats.element import ElementFormat
from ...gguf.matrices import label, matrix_of
from ...hosts.choice import HOSTS
from ...hosts.schedule import Schedule
from ...llama.gemms import Gemm
from ...results.calls import Call
from ...results.failures import Failure
from ...results.margins import Headroom
from ...results.products import GemmRecord
from ...results.rungs import PartialResult
from ...semantics.fast_math import Agreement
from ...semantics.overflow import LARGEST_HALF, largest_half
from ...support.checksums import crc32
from ...support.errors import KernelFault
from ..calls import calling, limit_addresses
from ..exact import Distances, ExactProducts
from ..explain import Attempts, Place
from ..generated_inputs import every_size
from ..graph_uses import zeros_before
from ..judging import CHUNK_OUTPUTS, KERNEL
from ..known import Known
from ..llama_quantizers import Quantizers
from ..run import Matrix, Run
from ..schedules import BRIEF, check_schedules, omit
from .again import check_again
from .call import OTHER_M as OTHER_TOKENS
from .call import Activations, Outputs, cut_trials, with_more_tokens
from .gemm import OTHER_M, SHARED, GemmJudge
from .orders import check_order
from .probes.envelope import OTHER_SHAPES, TypeProbes
from .probes.routings import RoutingProbes

_REPACKED = "llama.cpp repacked weights: that it holds the file's bytes could not be checked"


@dataclass(frozen=True)
class GemmTask:
    """One GEMM, and what was decided of it.

    Args:
        gemm: as llama.cpp computed it; that of a matrix which the graph left idle is one outside of the graph.
        use: how many products with this matrix came before in the rung.
        checksum: the capture has the checksum of llama.cpp's weights.
        new_shape: no GEMM before had this type, N and K: the kernel also runs with other numbers of tokens, N and K.
        schedules: the kernel of this type also runs under other schedules.
        probes: the probes of this type are made, if the GEMM is correct.
        known: what the rung had found.
        later: the product was judged before; only what is made beside it counts.
    """

    gemm: Gemm
    use: int
    checksum: bool
    new_shape: bool
    schedules: bool
    probes: bool
    known: Known
    later: bool = False

    def judge(self, run: Run) -> GemmFound:
        """Run and judge the kernel, and llama.cpp. Raises EnvironmentFault."""
        return _Judging(self, run).found()


@dataclass(frozen=True)
class GemmFound:
    """The findings of one GEMM.

    Args:
        part: of the rung's result.
        attempts: what explains its wrong calls.
        at_schedules, at_probes: it reached the point at which other schedules and the probes are tried.
        path: of llama.cpp's backend that was judged.
        gap: NMSE between the two definitions' exact products; None where nothing was judged, or nothing is quantized.
        quantized: see `Quantizers.seen`.
        distances: of an author's oracle.
    """

    part: PartialResult
    attempts: Attempts
    at_schedules: bool = False
    at_probes: bool = False
    path: str | None = None
    gap: float | None = None
    quantized: dict[tuple[str, bytes], Agreement] = field(default_factory=dict)
    distances: Distances | None = None


class _Judging:
    """The judgement of one task."""

    def __init__(self, task: GemmTask, run: Run) -> None:
        self._task, self._run, self._gemm = task, run, task.gemm
        self._result = task.known.part()
        self._exact = ExactProducts(run, self._result)
        self._explanations = task.known.explanations_in(self._result, run)
        self._quantizers = Quantizers(run.backend)
        self._at_schedules = self._at_probes = False
        self._path: str | None = None
        self._gap: float | None = None

    def found(self) -> GemmFound:
        """Judge it. Raises EnvironmentFault."""
        self._check()
        limit_addresses(self._run, self._result)
        return GemmFound(
            self._result, self._explanations.attempts, self._at_schedules, self._at_probes, self._path, self._gap,
            self._quantizers.seen, self._exact.distances,
        )  # fmt: skip

    def _check(self) -> None:
        run, result, gemm, only = self._run, self._result, self._gemm, self._run.only
        matrix = run.matrix(result, gemm)
        assert matrix is not None, "a task is made of what is known"
        llama = run.backend.definition_of(gemm, matrix.fmt, matrix.rows)
        if gemm.idle:
            gemm = run.backend.computed(gemm, llama, matrix.fmt, matrix.rows, run.options.threads)
        name, number = label(matrix.tensor, gemm.first_row), matrix_of(matrix.tensor, gemm.first_row)
        if self._task.checksum:
            self._check_bytes(gemm, matrix, name, number)
        failed = result.n_failures
        judged = GemmJudge(run, result, matrix, gemm, llama, self._task.use)
        if not isinstance(matrix.fmt, ElementFormat):
            result.keep_headroom(_headroom(judged))
        try:
            with self._exact.of(matrix.tensor):
                made = self._judge(judged, failed) if only is None else None
                if only is not None:
                    self._repeat(judged, only)
            for wrong_bytes in judged.wrong_bytes:
                self._explanations.add_bytes(wrong_bytes)
            for call in judged.wrong.values():
                self._explanations.add(call)
        except KernelFault as error:  # also of its author's oracle
            result.fail(Failure.of(error, f"{name}: {error}", matrix.tensor.name, number))
            kernel = run.kernel.of(matrix.fmt, *gemm.shape)
            from ...diagnosis.experiments import Experiments

            tried = Experiments(kernel, matrix.fmt, judged.semantics, matrix.rows, gemm.x, run.options.threads)
            self._explanations.add_fault(error, tried, Place(KERNEL.name, matrix.tensor.name, name, error.call))
            return
        if made is None:
            return
        if not gemm.x.any():
            because = zeros_before(run.model, matrix.tensor)
            why = "its activations are all zero" + (f": {because}" if because else "")
            result.leave(name, why, matrix.tensor.name, "file" if because else "coverage")
        self._record(judged, made, number, failed)

    def _check_bytes(self, gemm: Gemm, matrix: Matrix, name: str, number: int | None) -> None:
        """Compare llama.cpp's weights with the file's, by their checksums."""
        if gemm.crc32 is None:
            self._result.note(_REPACKED)
        elif crc32(matrix.rows.reshape(-1).data, self._run.options.threads) != gemm.crc32:
            what = f"{name}: llama.cpp holds other bytes than the file"
            self._result.fail(Failure(what, matrix.tensor.name, matrix=number, culprit="llama.cpp"))

    def _repeat(self, judged: GemmJudge, only: Call) -> None:
        """Make one call alone. Raises KernelFault."""
        if only.kind == "schedule":
            self._run_schedules(judged)
        elif only.kind == "again" and only.m in OTHER_TOKENS:
            check_again(judged, judged.run_kernel((only.m,)), self._explanations)
        elif only.kind in ("probe", "grid", "index"):
            self._probes(judged, self._run).check()
        elif only.kind == "routing":
            self._routings(judged, self._run).check()
        elif only.kind in ("own", "shared", "other-m", "reference", "cut", "quantizer", "every-size"):
            judge_alone(judged, only, self._exact)

    def _probes(self, judged: GemmJudge, run: Run) -> TypeProbes:
        matrix = judged.matrix
        return TypeProbes(
            run, self._result, matrix.tensor, matrix.rows, judged.gemm.x, self._explanations, judged.call("probe")
        )

    def _routings(self, judged: GemmJudge, run: Run) -> RoutingProbes:
        rows = self._run.row_bytes(judged.matrix.tensor)
        tensor, call = judged.matrix.tensor, judged.call("routing")
        return RoutingProbes(run, self._result, tensor, rows, judged.gemm.x, self._explanations, call)

    def _judge(self, judged: GemmJudge, failed: int) -> Outputs:
        """Run and judge the kernel; at other shapes too, if the GEMM is correct. Raises KernelFault."""
        run, matrix, gemm, new_shape = self._run, judged.matrix, judged.gemm, self._task.new_shape
        if run.options.sanitize:  # first: what ends an ordinary launch has a line only in a checked one
            self._check_schedules(judged)
        made = judged.run_kernel(OTHER_TOKENS if new_shape else (1,))
        path = run.backend.path(judged.llama)
        if path is not None:
            self._path = path
            self._quantizers.check(
                self._result, judged.llama, gemm.x, judged.llama_bytes, matrix.tensor, gemm.first_row
            )
        # before outputs are judged: what a race makes wrong are many outputs, and the race itself has a line
        if run.options.probes != "brief":
            self._check_schedules(judged)
        else:
            self._leave_schedules()
        judged.judge(made, self._exact)
        if run.options.order == "find":
            check_order(judged, made)
        if new_shape and run.options.probes != "brief":
            check_again(judged, made, self._explanations)
        # a fault in the graph has a place there, which says more than another shape
        if self._result.n_failures > failed:
            return made
        if new_shape:
            for i, trial in enumerate(cut_trials(matrix, made.other.values)):
                if run.kernel.domain.outside(len(trial.rows), trial.k) is None:
                    judged.try_shape(trial, i)
        self._at_probes = True
        if self._task.probes:
            taken = Activations.of(judged.semantics, every_size(matrix.tensor.k))
            judged.check_quantizer(taken, judged.call("every-size"))
            in_half = run if self._task.later else replace(run, budget=run.budget.half())
            probes = self._probes(judged, in_half)
            probes.check()
            judged.utilisation[OTHER_SHAPES] = max(judged.utilisation.get(OTHER_SHAPES, 0.0), probes.utilisation)
            self._routings(judged, in_half).check()
        return made

    def _check_schedules(self, judged: GemmJudge) -> None:
        """Once, where it is this task's to do. Raises KernelFault."""
        again, self._at_schedules = self._at_schedules, True
        if self._task.schedules and not again:
            self._run_schedules(judged)

    def _leave_schedules(self) -> None:
        """Record what the brief plan skips."""
        omit(self._result, Schedule("descending"), BRIEF, "quick")
        if not self._run.options.sanitize:
            omit(self._result, Schedule(checked=True), BRIEF, "quick")
        if not HOSTS[self._run.kernel.host.name].emulated:
            self._result.omit("again", BRIEF, "quick")
        else:
            self._result.did("again", 0)

    def _run_schedules(self, judged: GemmJudge) -> None:
        """Raises KernelFault."""
        matrix, gemm = judged.matrix, judged.gemm
        check_schedules(
            self._run, self._result, matrix, gemm.x, gemm.first_row, self._explanations, judged.call("schedule")
        )

    def _record(self, judged: GemmJudge, made: Outputs, number: int | None, failed: int) -> None:
        result, matrix, gemm, kernel = self._result, judged.matrix, judged.gemm, made.kernel
        quantized = not isinstance(matrix.fmt, ElementFormat)
        tested, later = self._run.kernel.is_under_test(matrix.fmt), self._task.later
        if not later:
            if kernel.name != self._run.kernel.name and quantized:  # one of a family
                chosen = f"GEMMs by {kernel.name}"
                result.figures[chosen] = result.figures.get(chosen, 0) + 1
            if quantized:
                self._gap = judged.gap
            result.count_beside("GEMMs", 1, tested)
            result.count_beside("outputs", gemm.y.size, tested)
        others = sum(y.size for m, y in made.others.items() if not later or m > 1) + judged.n_other_shapes
        result.count_beside(OTHER_OUTPUTS, others, tested)
        worst = judged.utilisation
        result.details.append(
            GemmRecord(
                tensor=matrix.tensor.name, matrix=number, node=gemm.node, type=matrix.fmt.name, m=len(gemm.x),
                n=len(matrix.rows), k=matrix.tensor.k, kernel=kernel.name, llama_definition=judged.llama.name,
                own=worst[KERNEL], shared=worst[SHARED], other_m=worst[OTHER_M], other_shapes=worst.get(OTHER_SHAPES),
                llama=worst.get(judged.llama_side), gap_nmse=judged.gap, failures=result.n_failures - failed,
                under_test=tested,
            )
        )  # fmt: skip


def _headroom(judged: GemmJudge) -> Headroom | None:
    """How near the halves of the graph's activations, as the kernel's definition has them, come to overflowing."""
    found = largest_half(judged.semantics, judged.own.encoded)
    if found is None:
        return None
    what, token, block, value = found
    definition = judged.semantics.inside or judged.semantics
    return Headroom(
        what=what, tensor=judged.matrix.tensor.name, token=token, block=block, value=value, limit=LARGEST_HALF,
        of_llama=what == "d" or definition.raw_sum,
    )  # fmt: skip


Floats = npt.NDArray[np.float32]


def judge_alone(judged: GemmJudge, only: Call, exact: ExactProducts) -> None:
    """Make and judge one call alone, of a GEMM or at another shape of it. Raises KernelFault."""
    values = with_more_tokens(judged.gemm.x, max(OTHER_TOKENS), judged.run.options.seed)
    if only.kind == "cut":
        for number, trial in enumerate(cut_trials(judged.matrix, values)):
            if number == only.number:
                judged.try_shape(trial, number, only)
        return
    if only.kind in ("quantizer", "every-size"):
        if only.kind == "every-size":
            x, m = every_size(judged.matrix.tensor.k), len(judged.gemm.x)
        elif only.number:
            trials = list(cut_trials(judged.matrix, values))[only.number - 1 :]
            if not trials:
                return
            x, m = trials[0].x, len(judged.gemm.x)
        else:
            x, m = (judged.gemm.x, only.m) if only.m == len(judged.gemm.x) else (values[: only.m], only.m)
        judged.check_quantizer(Activations.of(judged.semantics, x), only, m)
        judged.result.count(ALONE)
        return
    m = only.m if only.kind == "other-m" else len(judged.gemm.x)
    x = values[:m] if only.kind == "other-m" else judged.gemm.x
    made = _made(judged, only, x)
    step = max(1, CHUNK_OUTPUTS // m)
    for start in range(0, len(judged.matrix.rows), step):
        span = slice(start, start + step)
        rows, theirs = judged.matrix.rows[span], None
        if only.kind in ("reference", "shared"):
            theirs = judged.expected(judged.llama, rows, judged.llama_bytes)
        if only.kind == "reference" and theirs is not None:
            judged.judge_llama(span, theirs)
        elif only.kind == "shared" and made is not None and theirs is not None:
            expected = judged.expected(judged.semantics, rows, judged.shared_bytes)
            judged.judge_kernel(SHARED, made, span, expected, judged.shared_bytes)
            if judged.run.backend.compared:
                judged.compare_directly(made, span, expected, theirs)
        elif made is not None:
            taken = judged.own if only.kind == "own" else Activations.of(judged.semantics, x)
            expected = exact.product(
                judged.semantics, judged.matrix.fmt, rows, taken.encoded, judged.calls.at(m)[0].order
            )
            side, detail = (KERNEL, "") if only.kind == "own" else (OTHER_M, f" at M={m}")
            judged.judge_kernel(side, made, span, expected, taken.encoded, taken.values, detail)
    judged.result.count(ALONE)


def _made(judged: GemmJudge, only: Call, x: Floats) -> Floats | None:
    """The kernel's output; None if the call is llama.cpp's. Raises KernelFault."""
    if only.kind == "reference":
        return None
    with calling(only):
        kernel, weights = judged.calls.at(len(x))
        return kernel.gemm(weights, judged.shared_bytes) if only.kind == "shared" else kernel.product(weights, x)
