"""Passes over llama.cpp's graph in which other outputs are grafted in place of its own, for the tokens rung."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Collection, Generator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ...checks import ALONE
from ...formats.block import QK
from ...gguf.matrices import label
from ...llama.evaluations import Evaluation
from ...llama.gemms import Gemm
from ...llama.process import LlamaRefused
from ...results.calls import Call
from ...results.failures import Failure
from ...results.rungs import PartialResult, RungResult
from ...semantics.sums import UNIT_ROUNDOFF, gamma
from ...support.errors import KernelFault
from ...support.progress import under_way
from ..calls import calling, limit_addresses
from ..exact import Distances, ExactProducts
from ..explain import Attempts, Explanations, Place, WrongCall, WrongOutput
from ..judging import KERNEL, judge_whole
from ..known import Known
from ..layers.call import ACTIVATIONS
from ..run import Matrix, Run
from .passes import ExactPasses, activations

Floats = npt.NDArray[np.float32]
Replace = Callable[[Gemm], Floats | None]
#: The steps of a pass (see `interface.Steps`), which returns logits or embeddings, one row for each token.
Pass = Generator[WrongOutput | None, None, Floats]


@dataclass(frozen=True)
class GraftTask:
    """One output of the kernel, which was grafted.

    Args:
        tensor: name of the weights.
        y: the output float32[M, N].
        x: the activations as the kernel's definition has them, uint8[M, row bytes].
        values: float32[M, K], where the kernel quantized them itself; None: it took x.
        who: whose output it is.
        call: that gave it.
        known: what the rung had found.
    """

    tensor: str
    y: Floats
    x: npt.NDArray[np.uint8]
    values: Floats | None
    who: str
    call: Call
    known: Known

    def judge(self, run: Run) -> GraftFound:
        """Judge it, whatever the kernel fuses behind its products. Raises EnvironmentFault."""
        plain = run.kernel.neutral()
        assert plain is not None
        return self._judged(replace(run, kernel=plain))

    def _judged(self, run: Run) -> GraftFound:
        tensor, call, part = run.model.tensors[self.tensor], self.call, self.known.part()
        fmt = tensor.type.weights
        assert fmt is not None
        matrix = Matrix(tensor, fmt, run.row_bytes(tensor)[call.first_row : call.first_row + call.n])
        kernel, semantics = run.kernel.of(fmt, call.m, call.n, call.k), run.semantics(fmt)
        exact, explanations = ExactProducts(run, part), self.known.explanations_in(part, run)
        name, broken = label(tensor, call.first_row), False
        taken = self.x if self.values is None else self.values
        try:
            wrong = judge_whole(run, part, matrix, call.first_row, self.y, semantics, self.x, kernel.order, exact, call)
            if wrong is not None:
                explanations.add(
                    WrongCall(
                        fmt, semantics, matrix.rows, taken, self.x, self.y, kernel.order, self.who, tensor.name, name,
                        *wrong, call=call, kernel=kernel,
                    )
                )  # fmt: skip
        except KernelFault as error:  # of its author's oracle, or where it is called again to explain a wrong output
            part.fail(Failure.of(error, f"{name}: {error}", tensor.name))
            from ...diagnosis.experiments import Experiments

            tried = Experiments(kernel, fmt, semantics, matrix.rows, taken, run.options.threads)
            explanations.add_fault(error, tried, Place(self.who, tensor.name, name, call))
            broken = True
        limit_addresses(run, part)
        return GraftFound(part, explanations.attempts, exact.distances, broken)


@dataclass(frozen=True)
class GraftFound:
    """The findings of one output: see `GemmFound`. `broken`: the kernel, or its author's oracle, broke its
    contract."""

    part: PartialResult
    attempts: Attempts
    distances: Distances | None = None
    broken: bool = False


def rounding_noise(k: int) -> float:
    """Noise as large as the rounding errors of a float32 sum: a sum of nb terms is off by u/√3·√Σ S[b]²; if S[b]² grows
    evenly to the square of the result, that is u·√(nb/6) times the result."""
    return UNIT_ROUNDOFF * float(np.sqrt(k / QK / 6))


def bound_noise(k: int) -> float:
    """Noise as large as the bound γ_n·Σ|a|·|w|, n = nb + 8: over k products of random sign, that sum is about √k times
    the result."""
    return gamma(k // QK + 8) * float(np.sqrt(k))


class Grafts:
    """Evaluations of one batch of tokens.

    Args:
        grafted: how many GEMMs a pass replaced, at most.
        tested: whether one of them was multiplied by the kernel under test.
        faulty: tensors in whose products the kernel broke its contract; llama.cpp's outputs stay in their place.
    """

    def __init__(self, run: Run, result: RungResult, tokens: list[int]) -> None:
        self.run, self.result, self.tokens = run, result, tokens
        self.grafted = 0
        self.tested = False
        self.faulty: set[str] = set()
        #: Tensors whose products have all been replaced so far, and those with one that was not.
        self._replaced: set[str] = set()
        self._kept: set[str] = set()
        #: Whether llama.cpp is spared what the kernel multiplies: until a product cannot be replaced.
        self._sparing = run.backend.mapped
        #: Pass → how many of its products were given to be judged.
        self._asked = {True: 0, False: 0}
        #: What the kernel gave, which is judged while llama.cpp computes.
        self._judged = run.judges.later(run)
        self.exact = ExactProducts(run, result)
        self.passes = ExactPasses(run, result, tokens, self.faulty, self._sparable)
        self._explanations = Explanations(result, run.options.threads, holds=bool(run.options.save_case))

    def plain(self) -> Floats:
        """llama.cpp's own logits or embeddings, one row for each token.

        llama.cpp's own outputs, taken apart into GEMMs and put back, must give the same bits: every pass relies on
        that. Raises LlamaRefused where they do not.
        """
        llama = self.run.session.llama

        def own(gemm: Gemm) -> Floats | None:
            wanted = self.run.wants(gemm.tensor)
            known = wanted and self.run.matrix(self.result, gemm) is not None
            (self._replaced if known else self._kept).add(gemm.tensor)
            return gemm.y if wanted else None

        plain = llama.evaluate(self.tokens).logits
        again = llama.graft(self.tokens, own).logits
        if plain.tobytes() != again.tobytes():
            raise LlamaRefused("llama.cpp's own outputs, put back in place, change its logits: no graft can be judged")
        return plain

    def by_kernel(self, shared: bool) -> Pass:
        """A pass with the kernel's outputs; see `kernel`. Returns logits or embeddings. Raises BudgetSpent.

        llama.cpp computes none of these products itself. Where the kernel breaks its contract in one, the pass begins
        anew, and llama.cpp computes them all from then on, since its own output stays in place there.
        """
        what = "kernel on llama.cpp's activations" if shared else "kernel"
        if self._sparing:
            spared = self._sparable()
            try:
                return (yield from self.graft(what, self.kernel(shared), spared))
            except LlamaRefused:
                if not spared & (self.faulty | self._kept):
                    raise
                self._sparing = False
        return (yield from self.graft(what, self.kernel(shared)))

    def _sparable(self) -> frozenset[str]:
        return frozenset(self._replaced - self._kept - self.faulty)

    def graft(self, what: str, replace: Replace, spared: Collection[str] = ()) -> Pass:
        """A pass in which `replace` gives the outputs of the selected tensors' GEMMs. Returns logits or embeddings.

        Args:
            spared: see `LoadedModel.grafting`.

        Raises BudgetSpent; LlamaRefused also where an output of a spared tensor is lacking.
        """
        count = 0
        with self.run.bar(f"tokens: {what}", self.run.matrix_bytes(), "B") as bar:

            def counted(gemm: Gemm) -> Floats | None:
                nonlocal count
                self.run.budget.check()
                under_way(bar, gemm.tensor)
                wanted = self.run.wants(gemm.tensor)
                y = replace(gemm) if wanted else None
                count += y is not None
                if y is None:
                    self._kept.add(gemm.tensor)
                bar.update(self.run.bytes_of(gemm) if wanted else 0)
                return y

            steps = self.run.session.llama.grafting(self.tokens, counted, ACTIVATIONS, spared)
            try:
                evaluation = yield from self._joining(steps)
            except Exception:  # whatever ended the pass: what the kernel gave until then is judged
                self._join_judged(all_of_them=True)
                raise
            self._join_judged(all_of_them=True)
        self.grafted = max(self.grafted, count)
        for name, why in evaluation.unsupported.items():
            if self.run.wants(name):
                self.result.leave(name, why)
        return evaluation.logits

    def kernel(self, shared: bool) -> Replace:
        """The kernel's outputs, judged, on its own activations or on llama.cpp's activation bytes."""
        run, uses = self.run, itertools.count()

        def replace(gemm: Gemm) -> Floats | None:
            matrix = self.run.matrix(self.result, gemm)
            if matrix is None:
                return None
            use = next(uses)
            if gemm.tensor in self.faulty:
                return None
            kernel, semantics = self.run.kernel.of(matrix.fmt, *gemm.shape), self.run.semantics(matrix.fmt)
            x = activations(run, gemm, matrix, shared)
            call = Call(
                kind="graft", number=int(not shared), first_row=gemm.first_row, use=use, m=len(gemm.x),
                n=len(matrix.rows), k=matrix.tensor.k,
            )  # fmt: skip
            taken, who = (x, "kernel on llama.cpp's activations") if shared else (gemm.x, KERNEL.name)
            try:
                with calling(call):
                    weights = kernel.upload(matrix.fmt, matrix.rows)
                    y = kernel.gemm(weights, x) if shared else kernel.product(weights, gemm.x)
                if run.only is not None and (run.only.number, run.only.use) != (call.number, call.use):
                    return y  # it is grafted, since the products that follow take what comes of it
                self.tested = self.tested or self.run.kernel.is_under_test(matrix.fmt)
                if run.only is not None:
                    self.result.count(ALONE)
                elif use < self._asked[shared]:
                    return y  # before the pass began anew, it was judged
                self._asked[shared] = use + 1
            except KernelFault as error:
                self._join_judged(all_of_them=True)  # what came before
                self.faulty.add(gemm.tensor)
                name = label(matrix.tensor, gemm.first_row)
                self.result.fail(Failure.of(error, f"{name}: {error}", gemm.tensor))
                from ...diagnosis.experiments import Experiments

                tried = Experiments(kernel, matrix.fmt, semantics, matrix.rows, taken, self.run.options.threads)
                self._explanations.add_fault(error, tried, Place(who, gemm.tensor, name, error.call))
                return None
            # of each of so many products the cause is not sought: the layers rung did that
            known = dataclasses.replace(Known.of(self.result, self._explanations), causes=())
            task = GraftTask(gemm.tensor, y, x, None if shared else gemm.x, who, call, known)
            if semantics.oracle is None:
                self._judged.give(task)
                return y
            found = task.judge(self.run)
            self._join(task, found)
            return None if found.broken else y  # its author may have broken its contract

        return replace

    def _joining(self, steps: Generator[None, None, Evaluation]) -> Generator[WrongOutput | None, None, Evaluation]:
        """The steps of a pass; after each one, the outputs that were judged until then are joined."""
        while True:
            try:
                next(steps)
            except StopIteration as end:
                evaluation: Evaluation = end.value
                return evaluation
            self._join_judged()
            yield self._explanations.attempts.first

    def _join_judged(self, all_of_them: bool = False) -> None:
        """Join what was found with outputs that were grafted."""
        for task, found in self._judged.found(all_of_them):
            assert isinstance(task, GraftTask)
            self._join(task, found)

    def _join(self, task: GraftTask, found: GraftFound) -> None:
        self.result.join(found.part)
        self._explanations.join(found.attempts)
        self.exact.join(found.distances)
        if found.broken:
            self.faulty.add(task.tensor)
