"""Passes with exact products in place of llama.cpp's, each a task: a process that judges computes it with a llama.cpp
of its own, while the kernel's outputs are grafted in the process that plans."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from ...llama.gemms import Gemm
from ...results.rungs import PartialResult, RungResult
from ...semantics.result import exact_result
from ...support.progress import under_way
from ..budget import BudgetSpent
from ..layers.call import ACTIVATIONS, llama_activations
from ..pool import Pool
from ..run import Matrix, Run

Floats = npt.NDArray[np.float32]

#: Random numbers of noise for a pass; each output takes them from a place of its own.
_POOL = 1 << 20


@dataclass(frozen=True)
class Noise:
    """Noise on the outputs of a pass.

    Args:
        size: K → its standard deviation, in units of the root mean square of a row of outputs; a function that can be
            pickled.
        draw: number of the draw.
    """

    size: Callable[[int], float]
    draw: int


@dataclass(frozen=True)
class ExactPass:
    """A pass in which the exact products of the kernel's definition, rounded once, are grafted.

    Args:
        tokens: of the batch.
        shared: of llama.cpp's own activation bytes; else the definition's encoder makes them.
        noise: on these products, if any.
        faulty: tensors whose products stay llama.cpp's.
        spared: tensors all of whose products are replaced, which llama.cpp need not compute; they change no output.
    """

    tokens: tuple[int, ...]
    shared: bool
    noise: Noise | None
    faulty: frozenset[str]
    spared: frozenset[str] = field(compare=False)

    @property
    def what(self) -> str:
        """In words."""
        if self.noise is not None:
            return f"noise, draw {self.noise.draw + 1}"
        return "exact product on llama.cpp's activations" if self.shared else "exact product"

    def judge(self, run: Run) -> PassFound:
        """Compute it. Raises BudgetSpent, LlamaRefused, EnvironmentFault."""
        plain = run.kernel.neutral()
        assert plain is not None
        run = replace(run, kernel=plain)
        product = self._product(run)
        if self.noise is not None:
            product = _noisy(product, self.noise, run.options.seed)
        try:
            with run.bar(f"tokens: {self.what}", run.matrix_bytes(), "B") as bar:

                def grafted(gemm: Gemm) -> Floats | None:
                    run.budget.check()
                    under_way(bar, gemm.tensor)
                    y = product(gemm) if run.wants(gemm.tensor) else None
                    bar.update(run.bytes_of(gemm))
                    return y

                logits = run.session.llama.graft([*self.tokens], grafted, ACTIVATIONS, self.spared).logits
        except BudgetSpent:
            run.close_session()  # llama.cpp is in the middle of an answer
            raise
        return PassFound(PartialResult(name="tokens"), logits)

    def _product(self, run: Run) -> Callable[[Gemm], Floats | None]:
        known = RungResult(name="tokens", question="")  # the kernel's passes have recorded what is skipped

        def product(gemm: Gemm) -> Floats | None:
            matrix = run.matrix(known, gemm)
            if matrix is None or gemm.tensor in self.faulty:
                return None
            x, semantics = activations(run, gemm, matrix, self.shared), run.semantics(matrix.fmt)
            device = run.device_for(matrix.rows, x)
            exact = exact_result(semantics, matrix.fmt, matrix.rows, x, run.options.threads, device)
            return exact.astype(np.float32)

        return product


@dataclass
class PassFound:
    """The results of a pass: the time of its stages, and logits or embeddings, float32[tokens, …]."""

    part: PartialResult
    logits: Floats


class ExactPasses:
    """The exact passes of a rung.

    Args:
        tokens: of the batch.
        faulty: tensors whose products stay llama.cpp's, as they are known so far.
        spared: tensors all of whose products are replaced, likewise.
    """

    def __init__(
        self, run: Run, result: RungResult, tokens: list[int], faulty: set[str], spared: Callable[[], frozenset[str]]
    ) -> None:
        self._result, self._tokens, self._faulty, self._spared = result, tuple(tokens), faulty, spared
        # a llama.cpp of each process that judges would hold weights of its own on a GPU, or repacked ones
        elsewhere = run.backend.mapped and not run.options.repack
        judges = run.judges if elsewhere else Pool()
        self._later = judges.later(run)
        #: How many are computed at the same time.
        self.at_once = max(1, judges.wanted // 2)
        self._given = set[ExactPass]()
        self._logits = dict[ExactPass, Floats]()

    def begin(self, shared: bool, noise: Noise | None = None) -> ExactPass:
        """Have a pass computed, which will be needed."""
        of = ExactPass(self._tokens, shared, noise, frozenset(self._faulty), self._spared())
        if of not in self._given:
            self._given.add(of)
            self._later.give(of)
        return of

    def logits(self, shared: bool, noise: Noise | None = None) -> Floats:
        """Logits or embeddings of a pass, float32[tokens, …]. Raises what `ExactPass.judge` does."""
        wanted = self.begin(shared, noise)
        if wanted not in self._logits:
            for of, found in self._later.found(all_of_them=True):
                assert isinstance(of, ExactPass)
                self._result.join(found.part)
                self._logits[of] = found.logits
        return self._logits[wanted]


def activations(run: Run, gemm: Gemm, matrix: Matrix, shared: bool) -> npt.NDArray[np.uint8]:
    """The activations of a product as the kernel's definition has them, uint8[M, row bytes]: by its encoder or,
    `shared`, from llama.cpp's bytes."""
    semantics = run.semantics(matrix.fmt)
    if shared:
        llama = run.backend.definition_of(gemm, matrix.fmt, matrix.rows)
        return llama_activations(semantics, matrix.fmt, gemm, llama)
    return semantics.bytes_of(gemm.x)


def _noisy(product: Callable[[Gemm], Floats | None], noise: Noise, seed: int) -> Callable[[Gemm], Floats | None]:
    """The same outputs with noise."""
    rng = np.random.default_rng((seed, noise.draw))
    pool = rng.standard_normal(_POOL, np.float32)  # to draw all of it takes as long as a product

    def drawn(shape: tuple[int, int]) -> Floats:
        n, start = shape[0] * shape[1], int(rng.integers(_POOL))
        parts = [pool[start : start + n]]
        for at in range(len(parts[0]), n, _POOL):
            parts.append(pool[: n - at])
        return np.concatenate(parts).reshape(shape)

    def noisy(gemm: Gemm) -> Floats | None:
        y = product(gemm)
        if y is None:
            return None
        rms = np.sqrt(np.mean(np.square(y, dtype=np.float64), axis=1, keepdims=True))
        noise_of_y = drawn(y.shape)
        noise_of_y *= (noise.size(gemm.x.shape[1]) * rms).astype(np.float32)
        noise_of_y += y
        return noise_of_y

    return noisy
