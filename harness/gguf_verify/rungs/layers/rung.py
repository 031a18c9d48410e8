"""The layers rung: does each GEMM of the real graph, on its real activations, give llama.cpp's output?

For each matrix of weights that llama.cpp multiplies for the prompt (MUL_MAT; each expert of a MUL_MAT_ID, with the rows
that were routed to it), let y_l be llama.cpp's output, y_k the kernel's, and o_k, o_l the exact products of the two
declared definitions:

    y_k - y_l = (y_k - o_k) + (o_k - o_l) + (o_l - y_l)

The first and the last term must be within their bounds; the middle one, the gap between the definitions, is exactly
known and is reported. The kernel also runs on llama.cpp's own activation bytes, where the two outputs are compared
directly. Weights that are not quantized are multiplied by a kernel of their own and have one definition, so that the
middle term is zero; "llama.cpp's activation bytes" are then its rounded activations, widened to float32, which the
kernel's own rounding leaves as they are.

If a backend of llama.cpp has several paths to a product, the graph is evaluated in as many passes as show all of them
(`llama.backends`). llama.cpp is judged on its own activation bytes. If its quantizer may differ from IEEE division, the
bytes are compared with the quantizer's definition: see `semantics.fast_math`.
"""

from __future__ import annotations

import zlib

import numpy as np

from ...diagnosis.experiments import Experiments
from ...formats import ElementFormat
from ...gguf import Tensor
from ...gguf.matrices import label, matrix_of, may_be_matrix
from ...llama import Evaluation, Gemm, LlamaRefused
from ...results import Call, Failure, GemmRecord, Headroom, RungResult, Side
from ...semantics import Semantics
from ...semantics.overflow import LARGEST_HALF, largest_half
from ...support.errors import KernelFault
from ..calls import begin_alone, end_alone
from ..envelope import OTHER_SHAPES, TypeProbes
from ..exact import ExactProducts
from ..experts import RoutingProbes
from ..explain import Explanations
from ..generated_inputs import every_size
from ..graph_uses import not_multiplied, why_not_checked
from ..interface import Rung
from ..judging import KERNEL
from ..llama_quantizers import Quantizers
from ..run import Matrix, Run
from ..schedules import check_schedules
from .activations import ACTIVATIONS
from .gemm import OTHER_M, SHARED, GemmJudge
from .outputs import Outputs
from .shapes import OTHER_M as OTHER_TOKENS
from .shapes import cut_trials

_REPACKED = "llama.cpp repacked weights: that it holds the file's bytes could not be checked"


def check(run: Run, result: RungResult) -> None:
    """Judge every GEMM with weights. Raises EnvironmentFault where llama.cpp crashes."""
    only = begin_alone(run, result)
    matrices = {t.name: t for t in run.selected() if may_be_matrix(t) and t.nbytes}
    passes = _Passes(run, result, matrices)
    try:
        if matrices:
            passes.check()
    except LlamaRefused as error:
        result.leave_all("GEMMs", str(error), "llama.cpp")
    if only is not None:
        return end_alone(result, only)
    result.skip("vectors", run.vectors(passes.seen))
    run.leave_idle(result)
    return None


RUNG = Rung(
    "layers", 3, "Does each GEMM of the real graph, on its real activations, give llama.cpp's output?", ("outputs",),
    check,
)  # fmt: skip


class _Passes:
    """The passes over the graph, and which rows of which matrices they multiplied.

    Args:
        matrices: tensors that are to be judged, by name.
    """

    def __init__(self, run: Run, result: RungResult, matrices: dict[str, Tensor]) -> None:
        self._run, self._result, self._matrices = run, result, matrices
        #: Names of the tensors in the products that were seen.
        self.seen: set[str] = set()
        self._covered = {name: np.zeros(t.n_rows, bool) for name, t in matrices.items()}

    def check(self) -> None:
        run, result = self._run, self._result
        session = run.session
        if session.note:
            result.note(session.note)
        gemms = _Gemms(run, result)
        idle = 0
        for number, (tokens, position) in enumerate(session.passes()):
            first = number == 0
            capture = session.llama.capture(tokens, ACTIVATIONS, checksum=first, idle=first, position=position)
            what = "layers" if first else f"layers, token {number}"
            for gemm in run.progress(what, capture, total=run.n_matrices(), unit="GEMM"):
                if isinstance(gemm, Evaluation):
                    self._leave_unsupported(gemm)
                    if first:
                        self.seen |= set(gemm.unsupported)
                        self._leave_unused(gemm)
                elif run.wants(gemm.tensor):
                    self._note_rows(gemm)
                    idle += gemm.idle
                    gemms.check(gemm, first)
        if run.only is not None:
            return
        gemms.report()
        for name, rows in self._covered.items():
            if name in self.seen and rows.any() and not rows.all():
                result.leave(name, f"no product of this graph uses {int((~rows).sum())} of its {len(rows)} rows")
        if idle:
            result.note(
                f"{idle} matrices (experts) got no token: they were judged on activations of others, against "
                "llama.cpp's product of these outside the graph"
            )

    def _note_rows(self, gemm: Gemm) -> None:
        self.seen.add(gemm.tensor)
        if gemm.tensor in self._covered:
            self._covered[gemm.tensor][gemm.first_row : gemm.first_row + gemm.y.shape[1]] = True

    def _leave_unsupported(self, done: Evaluation) -> None:
        """Record the products of a pass that could not be tapped."""
        for name, why in done.unsupported.items():
            if self._run.wants(name):
                self._result.leave(name, why)

    def _leave_unused(self, done: Evaluation) -> None:
        """Record matrices that the first pass did not multiply."""
        for name, tensor in self._matrices.items():
            if name in self.seen:
                continue
            kind = not_multiplied(tensor, done)
            if kind is not None:
                self._result.skip(kind)
            else:
                self._result.leave(name, why_not_checked(tensor, done))


class _Gemms:
    """All GEMMs of the rung, one after the other."""

    def __init__(self, run: Run, result: RungResult) -> None:
        self._run, self._result = run, result
        self._exact = ExactProducts(run, result)
        self._explanations = Explanations(result, run.options.threads, draws=True, keep=run.keep)
        #: Tensor and first row of a matrix → how many products with it were seen.
        self._uses: dict[tuple[str, int], int] = {}
        self._quantizers = Quantizers(run.backend)
        #: Format, N and K of the GEMMs at which the kernel also ran with other numbers of tokens.
        self._shapes: set[tuple[str, int, int]] = set()
        #: Types whose probes were made, and those whose kernel ran under other schedules.
        self._probed: set[str] = set()
        self._scheduled: set[str] = set()
        #: llama.cpp → one definition that it was judged by, and the gap to it in each GEMM.
        self._gaps: dict[Side, tuple[Semantics, list[float]]] = {}
        #: Tensor → the paths of the backend that were judged with it.
        self._paths: dict[str, set[str]] = {}

    def check(self, gemm: Gemm, checksum: bool) -> None:
        """Judge one GEMM; `checksum`: that of llama.cpp's weights was asked for."""
        run, result = self._run, self._result
        key = gemm.tensor, gemm.first_row
        use = self._uses[key] = self._uses.get(key, -1) + 1
        only = run.only
        if only is not None and ((only.first_row, only.use) != (gemm.first_row, use) or not only.fits(gemm.shape)):
            return
        if gemm.idle:
            gemm = gemm.outside_graph()
        matrix = run.matrix(result, gemm)
        if matrix is None:
            return
        if not np.isfinite(gemm.x).all():
            result.leave(gemm.tensor, "its activations are not finite")
            return
        llama = run.backend.definition(matrix.fmt, gemm.tokens, gemm.experts)
        if gemm.idle:
            gemm = run.backend.computed(gemm, llama, matrix.fmt, matrix.rows, run.options.threads)
        name, number = label(matrix.tensor, gemm.first_row), matrix_of(matrix.tensor, gemm.first_row)
        if checksum and only is None:
            self._check_bytes(gemm, matrix, name, number)
        failed = result.n_failures
        judged = GemmJudge(run, result, matrix, gemm, llama, use)
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
            tried = Experiments(kernel, matrix.fmt, judged.semantics, matrix.rows, gemm.x, run.options.threads)
            self._explanations.add_fault(error, tried, KERNEL.name, matrix.tensor.name, name)
            return
        if made is None:
            return
        if not gemm.x.any():
            result.leave(name, "its activations are all zero", matrix.tensor.name)
        self._record(judged, made, number, failed)

    def _check_bytes(self, gemm: Gemm, matrix: Matrix, name: str, number: int | None) -> None:
        """Compare llama.cpp's weights with the file's, by their checksums."""
        if gemm.crc32 is None:
            self._result.note(_REPACKED)
        elif zlib.crc32(matrix.rows.data) != gemm.crc32:
            what = f"{name}: llama.cpp holds other bytes than the file"
            self._result.fail(Failure(what, matrix.tensor.name, matrix=number, culprit="llama.cpp"))

    def _repeat(self, judged: GemmJudge, only: Call) -> None:
        """Make one call alone. Raises KernelFault."""
        matrix, gemm = judged.matrix, judged.gemm
        if only.kind == "schedule":
            check_schedules(
                self._run, self._result, matrix, gemm.x, gemm.first_row, self._explanations, judged.call("schedule")
            )
        elif only.kind in ("probe", "grid", "index"):
            self._probes(judged).check()
        elif only.kind == "routing":
            self._routings(judged).check()
        elif only.kind in ("own", "shared", "other-m", "reference", "cut", "quantizer", "every-size"):
            judged.repeat(only, self._exact)

    def _probes(self, judged: GemmJudge) -> TypeProbes:
        matrix = judged.matrix
        return TypeProbes(
            self._run, self._result, matrix.tensor, matrix.rows, judged.gemm.x, self._explanations, judged.call("probe")
        )

    def _routings(self, judged: GemmJudge) -> RoutingProbes:
        rows = self._run.row_bytes(judged.matrix.tensor)
        return RoutingProbes(self._run, self._result, judged.matrix.tensor, rows, judged.gemm.x, judged.call("routing"))

    def _judge(self, judged: GemmJudge, failed: int) -> Outputs:
        """Run and judge the kernel; at other shapes too, where the GEMM is right. Raises KernelFault."""
        run, matrix, gemm = self._run, judged.matrix, judged.gemm
        shape = (matrix.fmt.name, len(matrix.rows), matrix.tensor.k)
        new_shape = shape not in self._shapes
        self._shapes.add(shape)
        if run.options.sanitize:  # first: what ends an ordinary launch has a line only in a checked one
            self._check_schedules(judged)
        made = judged.run_kernel(OTHER_TOKENS if new_shape else (1,))
        path = run.backend.path(judged.llama)
        if path is not None:
            self._paths.setdefault(matrix.tensor.name, set()).add(path)
            self._quantizers.check(
                self._result, judged.llama, gemm.x, judged.llama_bytes, matrix.tensor, gemm.first_row
            )
        # before outputs are judged: what a race makes wrong are many outputs, and the race itself has a line
        if run.options.probes == "full":
            self._check_schedules(judged)
        judged.judge(made, self._exact)
        # where something is wrong already, it has a place in the graph, which says more than another shape
        if self._result.n_failures > failed:
            return made
        if new_shape:
            for i, trial in enumerate(cut_trials(matrix, made.other.values)):
                if run.kernel.domain.outside(len(trial.rows), trial.k) is None:
                    judged.try_shape(trial, i)
        if matrix.fmt.name not in self._probed:
            self._probed.add(matrix.fmt.name)
            judged.check_quantizer(every_size(matrix.tensor.k), judged.call("every-size"))
            probes = self._probes(judged)
            probes.check()
            judged.utilisation[OTHER_SHAPES] = max(judged.utilisation.get(OTHER_SHAPES, 0.0), probes.utilisation)
            self._routings(judged).check()
        return made

    def _check_schedules(self, judged: GemmJudge) -> None:
        """Once for each type. Raises KernelFault."""
        matrix, gemm = judged.matrix, judged.gemm
        if matrix.fmt.name not in self._scheduled:
            self._scheduled.add(matrix.fmt.name)
            check_schedules(
                self._run, self._result, matrix, gemm.x, gemm.first_row, self._explanations, judged.call("schedule")
            )

    def _record(self, judged: GemmJudge, made: Outputs, number: int | None, failed: int) -> None:
        result, matrix, gemm, kernel = self._result, judged.matrix, judged.gemm, made.kernel
        quantized = not isinstance(matrix.fmt, ElementFormat)
        if kernel.name != self._run.kernel.name and quantized:  # one of a family
            chosen = f"GEMMs by {kernel.name}"
            result.figures[chosen] = result.figures.get(chosen, 0) + 1
        if quantized:
            self._gaps.setdefault(judged.llama_side, (judged.llama, []))[1].append(judged.gap)
        tested = self._run.kernel.is_under_test(matrix.fmt)
        others = sum(y.size for y in made.others.values()) + judged.n_other_shapes
        result.count_beside("GEMMs", 1, tested)
        result.count_beside("outputs", gemm.y.size, tested)
        result.count_beside("outputs at other shapes", others, tested)
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

    def report(self) -> None:
        """Record what only the GEMMs together tell."""
        run, result = self._run, self._result
        self._exact.report()
        for name, paths in self._paths.items():
            for missing in sorted(set(run.backend.paths) - paths):
                result.leave(name, f"{missing} was not judged: no product of these graphs takes it there")
        for side, (definition, gaps) in self._gaps.items():
            path = run.backend.path(definition)
            if path is not None:
                result.figures[f"llama.cpp's GEMMs by {path}, {definition.name}"] = len(gaps)
            result.figures[f"gap to {side.name}, worst NMSE"] = max(gaps)
            result.figures[f"gap to {side.name}, median NMSE"] = float(np.median(gaps))
        self._quantizers.report(run, result)


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


__all__ = ["RUNG", "check"]
