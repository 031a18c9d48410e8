"""Passes over llama.cpp's graph in which other outputs are grafted in place of its own, for the tokens rung."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from ...diagnosis.experiments import Experiments
from ...formats import QK
from ...gguf.matrices import label
from ...llama import Gemm, LlamaRefused
from ...results import Call, Failure, RungResult
from ...semantics import UNIT_ROUNDOFF, exact_result, gamma
from ...support.errors import KernelFault
from ...support.progress import under_way
from ..calls import ALONE, calling
from ..exact import ExactProducts
from ..explain import Explanations
from ..judging import KERNEL
from ..known import Known
from ..layers.activations import ACTIVATIONS, llama_activations
from ..run import Matrix, Run
from .task import GraftFound, GraftTask

Floats = npt.NDArray[np.float32]
Replace = Callable[[Gemm], Floats | None]

#: Numbers of noise that are drawn for a pass; each output takes those from a place of its own on.
_POOL = 1 << 20


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
        #: Tensors whose products were all replaced so far, and those of which one was not.
        self._replaced: set[str] = set()
        self._kept: set[str] = set()
        #: What the kernel gave, which is judged while llama.cpp computes.
        self._judged = run.judges.later(run)
        self.exact = ExactProducts(run, result)
        self._explanations = Explanations(result, run.options.threads, keep=run.keep)

    def plain(self) -> Floats:
        """llama.cpp's own logits or embeddings, one row for each token.

        llama.cpp's own outputs, taken apart into GEMMs and put back, must give the same bits: every pass relies on
        that. Raises LlamaRefused where they do not.
        """
        llama = self.run.session.llama
        plain = llama.evaluate(self.tokens).logits
        again = llama.graft(self.tokens, lambda gemm: gemm.y if self.run.wants(gemm.tensor) else None).logits
        if plain.tobytes() != again.tobytes():
            raise LlamaRefused("llama.cpp's own outputs, put back in place, change its logits: no graft can be judged")
        return plain

    def graft(self, what: str, replace: Replace, exact: bool = False) -> Floats:
        """Logits or embeddings of a pass in which `replace` gives the outputs of the selected tensors' GEMMs.

        Args:
            exact: these are made of exact products, which are there for every GEMM that the kernel had replaced, so
                llama.cpp need not compute its own.

        Raises BudgetSpent.
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
                (self._kept if y is None else self._replaced).add(gemm.tensor)
                bar.update(self.run.bytes_of(gemm) if wanted else 0)
                return y

            spared = self._replaced - self._kept - self.faulty if exact else ()
            try:
                evaluation = self.run.session.llama.graft(self.tokens, counted, ACTIVATIONS, spared, self._join_judged)
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
            if matrix is None or gemm.tensor in self.faulty:
                return None
            kernel, semantics = self.run.kernel.of(matrix.fmt, *gemm.shape), self.run.semantics(matrix.fmt)
            x = self._activations(gemm, matrix, shared)
            call = Call(
                kind="graft", number=int(not shared), first_row=gemm.first_row, use=next(uses), m=len(gemm.x),
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
            except KernelFault as error:
                self._join_judged(all_of_them=True)  # what came before
                self.faulty.add(gemm.tensor)
                name = label(matrix.tensor, gemm.first_row)
                self.result.fail(Failure.of(error, f"{name}: {error}", gemm.tensor))
                tried = Experiments(kernel, matrix.fmt, semantics, matrix.rows, taken, self.run.options.threads)
                self._explanations.add_fault(error, tried, who, gemm.tensor, name)
                return None
            task = GraftTask(
                gemm.tensor, y, x, None if shared else gemm.x, who, call, Known.of(self.result, self._explanations)
            )
            if semantics.oracle is None:
                self._judged.give(task)
                return y
            found = task.judge(self.run)
            self._join(task, found)
            return None if found.broken else y  # its author may have broken its contract

        return replace

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

    def exact_product(self, shared: bool) -> Replace:
        """The exact products of the kernel's definition, rounded once; none of faulty tensors, as in the kernel's own
        passes."""

        def replace(gemm: Gemm) -> Floats | None:
            matrix = self.run.matrix(self.result, gemm)
            if matrix is None or gemm.tensor in self.faulty:
                return None
            x, semantics = self._activations(gemm, matrix, shared), self.run.semantics(matrix.fmt)
            device = self.run.device_for(matrix.rows, x)
            exact = exact_result(semantics, matrix.fmt, matrix.rows, x, self.run.options.threads, device)
            return exact.astype(np.float32)

        return replace

    def noisy(self, replace: Replace, seed: int, size: Callable[[int], float]) -> Replace:
        """The same outputs with noise.

        Args:
            size: K → the noise's standard deviation, in units of the root mean square of a row of outputs.
        """
        rng = np.random.default_rng((self.run.options.seed, seed))
        pool = rng.standard_normal(_POOL, np.float32)  # to draw all of it takes as long as a product

        def drawn(shape: tuple[int, int]) -> Floats:
            n, start = shape[0] * shape[1], int(rng.integers(_POOL))
            parts = [pool[start : start + n]]
            for at in range(len(parts[0]), n, _POOL):
                parts.append(pool[: n - at])
            return np.concatenate(parts).reshape(shape)

        def noisy(gemm: Gemm) -> Floats | None:
            y = replace(gemm)
            if y is None:
                return None
            rms = np.sqrt(np.mean(np.square(y, dtype=np.float64), axis=1, keepdims=True))
            noise = drawn(y.shape)
            noise *= (size(gemm.x.shape[1]) * rms).astype(np.float32)
            noise += y
            return noise

        return noisy

    def _activations(self, gemm: Gemm, matrix: Matrix, shared: bool) -> npt.NDArray[np.uint8]:
        """The activations as the kernel's definition has them: by its encoder or, `shared`, from llama.cpp's bytes."""
        semantics = self.run.semantics(matrix.fmt)
        if shared:
            llama = self.run.backend.definition_of(gemm, matrix.fmt, matrix.rows)
            return llama_activations(semantics, matrix.fmt, gemm, llama)
        return semantics.bytes_of(gemm.x)
