"""The plan of the layers rung: it follows llama.cpp's capture of the graph, and decides which GEMMs are judged and
which further calls are made with each. Nothing is judged here."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator

import numpy as np

from ...gguf.file import Tensor
from ...llama.evaluations import Evaluation
from ...llama.gemms import Gemm
from ...results.rungs import PartialResult, RungResult
from ..graph_uses import not_multiplied, why_not_checked
from ..known import Known
from ..pool import Step
from ..rounds import Round, leave, rounds
from ..run import Run
from .call import ACTIVATIONS
from .task import GemmTask


class OncePerType:
    """Work that is done with one GEMM of each type of weights: the first that gets that far."""

    def __init__(self) -> None:
        self._given: set[str] = set()
        self._done: set[str] = set()

    def give(self, kind: str) -> bool:
        """Whether the next task is to do it, as predicted at dispatch."""
        given = kind not in self._given
        self._given.add(kind)
        return given

    def right(self, kind: str, asked: bool, came: bool) -> bool:
        """Whether the prediction for the next task of the graph was correct; if not, it must be judged again.

        Args:
            asked: the prediction.
            came: the task got that far.
        """
        if came:
            self._given.add(kind)
            wanted = kind not in self._done
            self._done.add(kind)
            return asked == wanted
        if asked and kind not in self._done:
            self._given.discard(kind)  # another must do it
        return True


class Plan:
    """The passes over the graph, which tasks come of them, and which rows of which matrices they multiply.

    Args:
        matrices: tensors that are to be judged, by name.
        known: what is known when a task is given out.
        seen: gets the names of the tensors in the products that were seen.
        own_alone: only the model's own products are judged, and each with one token: see `later`.
    """

    def __init__(
        self, run: Run, matrices: dict[str, Tensor], known: Callable[[], Known], seen: set[str], own_alone: bool = False
    ) -> None:
        self.own_alone = own_alone
        self._run, self._matrices, self._known, self._seen = run, matrices, known, seen
        self.schedules, self.probes = OncePerType(), OncePerType()
        self._covered = {name: np.zeros(t.n_rows, bool) for name, t in matrices.items()}
        self._idle = 0
        #: Tensor and first row of a matrix → how many products with it were seen.
        self._uses: dict[tuple[str, int], int] = {}
        #: Format, N and K of the GEMMs at which the kernel also runs with other numbers of tokens.
        self._shapes: set[tuple[str, int, int]] = set()

    def steps(self) -> Generator[Step[GemmTask]]:
        """Each product of each pass. Raises LlamaRefused, EnvironmentFault."""
        run, session, settled, refused = self._run, self._run.session, set[str](), set[str]()
        begin = Step[GemmTask]()
        if session.note:
            begin.said.note(session.note)
        yield begin
        for turn in rounds(run, self._matrices, settled):
            for number, gemm in self._products(turn):
                said, task = PartialResult(name=""), None
                if isinstance(gemm, Evaluation):
                    self._leave_unsupported(said, gemm)
                    if number == 0 and turn.first:
                        self._seen |= set(gemm.unsupported)
                        self._leave_unused(said, gemm)
                        settled |= {*self._matrices} - self._seen | {*gemm.unsupported}
                elif run.wants(gemm.tensor):
                    self._note_rows(gemm)
                    if turn.chooses(gemm.tensor) and run.budget.spent:
                        refused.add(gemm.tensor)
                    elif turn.chooses(gemm.tensor):
                        self._idle += gemm.idle
                        task = self._task(said, gemm, number == 0)
                yield Step(said, task)
        end = Step[GemmTask]()
        leave(run, end.said, self._matrices, {*turn.waiting, *refused} - settled)
        yield end

    def _products(self, turn: Round) -> Iterator[tuple[int, Gemm | Evaluation]]:
        """The products of each pass over the graph, with the number of the pass."""
        session = self._run.session
        for number, (tokens, position) in enumerate(session.passes()):
            first = number == 0
            capture = session.llama.capture(tokens, ACTIVATIONS, checksum=first, idle=first, position=position)
            what = "layers" if first else f"layers, token {number}"
            yield from ((number, gemm) for gemm in turn.progress(self._run, what, capture))

    def report(self, result: RungResult) -> None:
        """Record the findings that depend on all passes."""
        for name, rows in self._covered.items():
            if name in self._seen and rows.any() and not rows.all():
                result.leave(name, f"no product of this graph uses {int((~rows).sum())} of its {len(rows)} rows")
        if self._idle:
            result.note(
                f"{self._idle} matrices (experts) got no token: they were judged on activations of others, against "
                "llama.cpp's product of these outside the graph"
            )

    def _task(self, said: PartialResult, gemm: Gemm, first: bool) -> GemmTask | None:
        """The task of one product; None if it is not judged, which is recorded unless it was requested."""
        run, only = self._run, self._run.only
        key = gemm.tensor, gemm.first_row
        use = self._uses[key] = self._uses.get(key, -1) + 1
        if only is not None and ((only.first_row, only.use) != (gemm.first_row, use) or not only.fits(gemm.shape)):
            return None
        if gemm.idle:
            gemm = gemm.outside_graph()
        matrix = run.matrix(said, gemm)
        if matrix is None:
            return None
        if not np.isfinite(gemm.x).all():
            said.leave(gemm.tensor, "its activations are not finite")
            return None
        kind = matrix.fmt.name
        if self.own_alone:
            return GemmTask(gemm, use, first and only is None, False, False, False, self._known())
        shape = (kind, len(matrix.rows), matrix.tensor.k)
        new_shape = shape not in self._shapes
        self._shapes.add(shape)
        return GemmTask(
            gemm, use, first and only is None, new_shape, self.schedules.give(kind), self.probes.give(kind),
            self._known(),
        )  # fmt: skip

    def _note_rows(self, gemm: Gemm) -> None:
        self._seen.add(gemm.tensor)
        if gemm.tensor in self._covered:
            self._covered[gemm.tensor][gemm.first_row : gemm.first_row + gemm.y.shape[1]] = True

    def _leave_unsupported(self, said: PartialResult, done: Evaluation) -> None:
        """Record the products of a pass that could not be tapped."""
        for name, why in done.unsupported.items():
            if self._run.wants(name):
                said.leave(name, why)

    def _leave_unused(self, said: PartialResult, done: Evaluation) -> None:
        """Record matrices that the first pass did not multiply."""
        for name, tensor in self._matrices.items():
            if name in self._seen:
                continue
            kind = not_multiplied(tensor, done)
            if kind is not None:
                said.skip(kind)
            else:
                said.leave(name, why_not_checked(tensor, done))
