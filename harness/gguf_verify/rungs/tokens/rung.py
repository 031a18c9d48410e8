"""The tokens rung: does the model still say the same thing when its GEMMs are ours?

llama.cpp continues the prompt greedily. Then the prompt and the continuation are evaluated in one batch (teacher
forcing), with the kernel's output grafted in place of llama.cpp's at every GEMM with weights:

(a) the kernel gets llama.cpp's own activation bytes: every greedy token must be llama.cpp's;
(b) the kernel uses its own quantizer: every greedy token must be the one that the exact product of the kernel's
    definition gives when it is grafted in the same place.

A comparison of tokens is a blunt measure, so the kernel's output is also judged at each GEMM of both passes, on the
activations that it gets there. A token that differs is a tie, which is reported and does not fail, where the
reference's margin between the two candidates is at most twice the wobble. The wobble is how far correct arithmetic
moves the logits of that pass, because a difference in the last bit moves an activation's code by one step in a later
layer. It is measured by grafting the exact product with noise of the size of float32 rounding, never with the kernel,
so that a wrong kernel cannot widen the tolerance that it is judged by.

Where the kernel breaks its contract in the products with a tensor, that is a failure; llama.cpp's own outputs stay in
their place there, and the pass goes on.

A model that does not generate (an encoder, an embedding model) is judged by its embeddings: see `embeddings`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ...gguf.matrices import may_be_matrix
from ...llama.process import LlamaRefused
from ...results.failures import Failure
from ...results.products import TokenRecord
from ...results.rungs import RungResult
from ...support.errors import KernelFault
from ...support.text import printable
from ..budget import BudgetSpent
from ..calls import begin_alone, end_alone
from ..interface import Rung, Steps
from ..run import Run
from .embeddings import Embeddings
from .grafts import Grafts, rounding_noise
from .passes import Noise

Logits = npt.NDArray[np.float32]

#: Numbers of draws of noise: usually, and at most, if the first draws do not explain a token. The wobble is the
#: largest move of any logit. Whether a last bit moves a code is chance, and a kernel's pass in which one moved must not
#: be judged by draws in which none did (measured on a tiny model and prompts of 3 to 9 tokens: 27 of 48 draws moved a
#: logit by more than 1e-4, up to 0.25, the others by some 1e-6).
_DRAWS, _MOST_DRAWS = 2, 16
#: Estimated time of this rung, divided by that which is left, up to which it is begun.
_SLACK = 1.25


def check(run: Run, result: RungResult) -> Steps:
    """Judge the tokens. Raises EnvironmentFault if llama.cpp crashes."""
    for tensor in run.selected():
        why = run.uncovered(tensor) if tensor.type.quantized else None
        if why is not None:
            result.leave(tensor.name, why)
    if not any(may_be_matrix(t) and run.uncovered(t) is None for t in run.selected()):
        return
    if run.budget.limited and run.seconds_of_tokens > _SLACK * run.budget.left:
        result.leave_all("tokens", run.budget.words)
        result.note(f"the tokens would take about {run.seconds_of_tokens:.0f} s, and {run.budget.left:.0f} s were left")
        return
    only, plain = begin_alone(run, result), run.kernel.neutral()
    if plain is None:
        result.leave_all("tokens", "the operations that the kernel fuses behind its products cannot be disabled")
        return
    if plain is not run.kernel:
        result.note("what the kernel fuses was given operands that change nothing")
    try:
        run = replace(run, kernel=plain)
        yield from (Embeddings if run.session.embeds else _Tokens)(run, result).judge()
    except LlamaRefused as error:
        result.leave_all("tokens", str(error), error.culprit)
    except KernelFault as error:
        result.fail(Failure.of(error, str(error)))
    except BudgetSpent as error:
        run.close_session()  # llama.cpp is in the middle of an answer
        result.leave_all("tokens", str(error))
    if only is not None:
        end_alone(result, only)


RUNG = Rung(
    "tokens", 4, "Does the model still say the same thing when its GEMMs are ours?", ("tokens", "embeddings"), check,
    whole=True, own=True, turn=3,
)  # fmt: skip


class _Tokens:
    def __init__(self, run: Run, result: RungResult) -> None:
        self.run, self.result = run, result
        self.session = run.session
        self.first = len(self.session.prompt) - 1
        self.continuation = self.session.continuation(run.budget.check)
        self.grafts = Grafts(run, result, self.session.prompt + self.continuation[:-1])

    def judge(self) -> Steps:
        if self.run.only is not None:
            yield from self.grafts.graft("one call", self.grafts.kernel(shared=self.run.only.number == 0))
            return
        self.plain = self.grafts.plain()[self.first :]
        if not np.ptp(self.plain):
            raise LlamaRefused("the model gives no logits")
        own = self.plain.argmax(axis=1)
        for i in np.flatnonzero(own != np.array(self.continuation)):
            self.result.notes.append(f"llama.cpp's own greedy token {i} differs between one batch and one at a time")
        shared = (yield from self.grafts.by_kernel(shared=True))[self.first :]
        self._begin_exact(shared)
        ours = (yield from self.grafts.by_kernel(shared=False))[self.first :]
        self.grafts.exact.report()
        if not self.grafts.grafted:
            if not self.grafts.faulty:
                self.result.leave_all("tokens", "the graph has no GEMM to graft into")
            return
        exact = self._exact(False)
        ties = self._compare("(a) on llama.cpp's activations", shared, self.plain, None)
        ties += self._compare("(b) on its own quantizer", ours, exact, exact)
        self.result.count_beside("tokens", len(self.continuation), self.grafts.tested)
        self.result.count("GEMMs grafted", self.grafts.grafted)
        self.run.leave_idle(self.result)
        if ties:
            self.result.figures["ties"] = ties
        for name, logits in (("kernel", ours), ("exact product", exact)):
            self._distance(name, logits)
        self._details(shared, ours, exact)

    def _begin_exact(self, shared: Logits) -> None:
        """Have computed what pass (a) is compared with, if it must be, and pass (b), while the kernel computes (b)."""
        self.grafts.passes.begin(shared=False)
        if _differing(shared, self.plain).any():
            self.grafts.passes.begin(shared=True)
            self._begin_draws(True, range(_DRAWS))

    def _begin_draws(self, shared: bool, draws: Iterable[int]) -> None:
        for draw in draws:
            self.grafts.passes.begin(shared, Noise(rounding_noise, draw))

    def _exact(self, shared: bool, draw: int | None = None) -> Logits:
        """Logits of the exact product in pass (a) or (b), with noise of a draw if one is named."""
        noise = None if draw is None else Noise(rounding_noise, draw)
        return self.grafts.passes.logits(shared, noise)[self.first :]

    def _moved(self, shared: bool, exact: Logits, draw: int) -> float:
        """The largest move of any logit when rounding noise is added to the exact product of pass (a) or (b)."""
        return float(np.abs(self._exact(shared, draw) - exact).max())

    def _allowed(
        self, shared: bool, exact: Logits, expected: Logits, differ: npt.NDArray[np.intp], margins: Logits
    ) -> npt.NDArray[np.float64]:
        """How far correct arithmetic may move a logit of each token from the expected ones: by the wobble, and by the
        difference of the definitions at this token (zero in (b), where the exact product itself is expected).

        Args:
            differ, margins: the tokens that are to be explained, and the reference's margin at each.
        """
        gap = np.abs(exact - expected).max(axis=1).astype(np.float64)
        wobble, begun = 0.0, 0
        for draw in range(_MOST_DRAWS):
            if draw == begun:
                begun = min(_MOST_DRAWS, begun + (self.grafts.passes.at_once if begun else _DRAWS))
                self._begin_draws(shared, range(draw, begun))
            wobble = max(wobble, self._moved(shared, exact, draw))
            if draw + 1 >= _DRAWS and (margins <= 2 * (wobble + gap[differ])).all():
                break
        return np.asarray(wobble + gap, np.float64)

    def _compare(self, what: str, got: Logits, expected: Logits, exact: Logits | None) -> int:
        """Compare greedy tokens; returns the number of ties.

        Args:
            exact: the logits of the exact product, None where it has not been computed, as in (a).
        """
        for i in np.flatnonzero(~_finite(got)):
            self.result.fail(Failure(f"{what}: the logits of token {i} are not finite", token=int(i)))
        ours, theirs = got.argmax(axis=1), expected.argmax(axis=1)
        differ = np.flatnonzero(_differing(got, expected))
        if not len(differ):
            return 0
        shared = exact is None
        if exact is None:
            exact = self._exact(True)
        margins = expected[differ, theirs[differ]] - expected[differ, ours[differ]]
        allowed, ties = self._allowed(shared, exact, expected, differ, margins), 0
        pieces = self.session.llama.pieces([int(t) for i in differ for t in (ours[i], theirs[i])])
        for j, i in enumerate(differ):
            margin = float(expected[i, theirs[i]] - expected[i, ours[i]])
            said, should = (printable(p, 24) for p in pieces[2 * j : 2 * j + 2])
            if margin <= 2 * allowed[i]:
                ties += 1
                self.result.notes.append(
                    f"{what}: token {i} is '{said}', not '{should}': a tie, margin {margin:.2g}, "
                    f"exact arithmetic moves logits here by up to {allowed[i]:.2g}"
                )
            else:
                self.result.fail(
                    Failure(
                        f"{what}: token {i} is '{said}', expected '{should}'", token=int(i), got=float(got[i, ours[i]]),
                        expected=float(expected[i, theirs[i]]), bound=2 * float(allowed[i]),
                    )
                )  # fmt: skip
        return ties

    def _distance(self, name: str, logits: Logits) -> None:
        """Record distances to llama.cpp's logits, which are not judged."""
        p, q = _log_softmax(self.plain), _log_softmax(logits)
        kl = (np.exp(p) * (p - q)).sum(axis=1)
        self.result.figures[f"{name}: mean KL to llama.cpp"] = float(kl.mean())
        self.result.figures[f"{name}: max KL to llama.cpp"] = float(kl.max())
        agreement = float((logits.argmax(axis=1) == self.plain.argmax(axis=1)).mean())
        self.result.figures[f"{name}: top-1 agreement with llama.cpp"] = agreement
        self.result.figures[f"{name}: max |Δlogit| to llama.cpp"] = float(np.abs(logits - self.plain).max())

    def _details(self, shared: Logits, ours: Logits, exact: Logits) -> None:
        columns = [self.plain.argmax(axis=1), shared.argmax(axis=1), ours.argmax(axis=1), exact.argmax(axis=1)]
        pieces = self.session.llama.pieces(self.continuation)
        for i, piece in enumerate(pieces):
            theirs, a, b, o = (int(c[i]) for c in columns)
            self.result.details.append(TokenRecord(position=i, text=piece, llama=theirs, shared=a, own=b, exact=o))


def _finite(logits: Logits) -> npt.NDArray[np.bool_]:
    return np.asarray(np.isfinite(logits).all(axis=1))


def _differing(got: Logits, expected: Logits) -> npt.NDArray[np.bool_]:
    """Whether the greedy token is another, bool[tokens], where logits are finite."""
    return np.asarray((got.argmax(axis=1) != expected.argmax(axis=1)) & _finite(got))


def _log_softmax(logits: Logits) -> npt.NDArray[np.float64]:
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    return np.asarray(wide - np.log(np.exp(wide).sum(axis=1, keepdims=True)))
