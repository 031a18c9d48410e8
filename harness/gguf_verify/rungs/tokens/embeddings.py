"""The tokens rung of a model that does not generate: its embeddings of the prompt's tokens take the place of tokens.

The embeddings are compared element by element, with the kernel's output grafted in place of llama.cpp's at every GEMM
with weights:

(a) the kernel gets llama.cpp's own activation bytes: each element must be within 2·wobble + |e_x - e_l| of llama.cpp's
    embedding e_l. Here e_x is what the exact product gives when it is grafted on the same bytes, so that |e_x - e_l| is
    the difference between the two definitions;
(b) the kernel uses its own quantizer: each element must be within 2·wobble of what the exact product of the kernel's
    definition gives.

The wobble is how far correct arithmetic moves any element of an embedding. It is measured for each pass (a kernel of
float32 activations has codes only in the first): a difference in the last bit moves an activation's code by one step,
which moves further codes in later layers. Whether such a step occurs is chance, so noise of the size of float32
rounding would measure nothing at one time and much at another. The noise here is as large as the bound of each product,
the most that correct arithmetic may be off, and then codes do move. Two correct passes may both have moved, hence the
factor of two. Errors too small to be seen through the wobble are found where each grafted output is judged, which is
done in both of the kernel's passes.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ...llama.process import LlamaRefused
from ...results.failures import Failure
from ...results.products import EmbeddingRecord
from ...results.rungs import RungResult
from ...support.text import printable
from ..interface import Steps
from ..run import Run
from .grafts import Grafts, bound_noise
from .passes import Noise

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

#: Numbers of draws of noise: more if there are few numbers, as for a reranker's single score, which a
#: draw may leave where it is by chance (measured: of 17 Gaussian numbers, a given one is more than twice as large as
#: all others once in a thousand times).
_DRAWS, _DRAWS_OF_FEW, _FEW = 2, 16, 64


class Embeddings:
    """Judges the embeddings of a run's prompt."""

    def __init__(self, run: Run, result: RungResult) -> None:
        self.run, self.result = run, result
        self.grafts = Grafts(run, result, run.session.prompt)

    def judge(self) -> Steps:
        """Judge the embeddings. Raises LlamaRefused where llama.cpp gives nothing to compare with, KernelFault."""
        if self.run.only is not None:
            yield from self.grafts.graft("one call", self.grafts.kernel(shared=self.run.only.number == 0))
            return
        plain = self.plain = self.grafts.plain()
        if not np.isfinite(plain).all() or not plain.any():
            raise LlamaRefused("the model gives no embeddings that are finite and not zero")
        self.result.notes.append(f"the model does not generate: {self._what()} are compared, not greedy tokens")
        shared = yield from self.grafts.by_kernel(shared=True)
        for of_pass in (True, False):
            self._begin_exact(of_pass)
        ours = yield from self.grafts.by_kernel(shared=False)
        self.grafts.exact.report()
        if not self.grafts.grafted:
            if not self.grafts.faulty:
                self.result.leave_all("embeddings", "the graph has no GEMM to graft into")
            return
        exact, exact_shared = (self.grafts.passes.logits(of_pass) for of_pass in (False, True))
        wobble = {shared: self._wobble(shared, of) for shared, of in ((True, exact_shared), (False, exact))}
        gap = np.abs(exact_shared.astype(np.float64) - plain)
        self._compare("(a) on llama.cpp's activations", shared, plain, 2 * wobble[True] + gap)
        self._compare("(b) on its own quantizer", ours, exact, np.full(gap.shape, 2 * wobble[False]))
        self.result.count_beside("embeddings", len(plain), self.grafts.tested)
        self.result.count("GEMMs grafted", self.grafts.grafted)
        self.run.leave_idle(self.result)
        self.result.figures["wobble (a)"], self.result.figures["wobble (b)"] = wobble[True], wobble[False]
        for name, got in (("kernel (a)", shared), ("kernel (b)", ours), ("exact product (b)", exact)):
            self.result.figures[f"{name}: 1 - cosine to llama.cpp, worst"] = float(1 - _cosine(got, plain).min())
            self.result.figures[f"{name}: max |Δ| to llama.cpp"] = float(np.abs(got - plain).max())
        self.result.figures["kernel (b): max |Δ| to the exact product"] = float(np.abs(ours - exact).max())
        self._details(shared, ours, exact)

    def _begin_exact(self, shared: bool) -> None:
        """Have computed what pass (a) or (b) is compared with, while the kernel computes (b)."""
        self.grafts.passes.begin(shared)
        for noise in self._draws():
            self.grafts.passes.begin(shared, noise)

    def _draws(self) -> list[Noise]:
        draws = _DRAWS if self.plain.size >= _FEW else _DRAWS_OF_FEW
        return [Noise(bound_noise, draw) for draw in range(draws)]

    def _wobble(self, shared: bool, exact: Floats) -> float:
        """The largest move of any element when noise as large as the bound is added to the exact product of a pass."""
        moved = (self.grafts.passes.logits(shared, noise) - exact for noise in self._draws())
        return max(float(np.abs(by).max()) for by in moved)

    def _compare(self, what: str, got: Floats, expected: Floats, allowed: Doubles) -> None:
        """One failure a token: its element that is furthest out."""
        with np.errstate(all="ignore"):
            difference = np.abs(got.astype(np.float64) - expected)
            excess = difference / allowed
        bad = ~(difference <= allowed)
        for i in np.flatnonzero(bad.any(axis=1)):
            j = int(np.where(np.isnan(excess[i]), np.inf, excess[i]).argmax())
            self.result.fail(
                Failure(
                    f"{what}: element {j} of the embedding of token {i} is off by more than correct arithmetic is",
                    token=int(i), got=float(got[i, j]), expected=float(expected[i, j]), bound=float(allowed[i, j]),
                    utilisation=float(excess[i, j]),
                )
            )  # fmt: skip

    def _what(self) -> str:
        tokens = len(self.run.session.prompt)
        return (
            f"embeddings of the prompt's {tokens} tokens" if len(self.plain) == tokens else "its scores of the prompt"
        )

    def _details(self, shared: Floats, ours: Floats, exact: Floats) -> None:
        prompt = self.run.session.prompt
        pieces = self.run.session.llama.pieces(prompt) if len(prompt) == len(self.plain) else [""] * len(self.plain)
        cosines = [_cosine(got, self.plain) for got in (shared, ours, exact)]
        for i, piece in enumerate(pieces):
            a, b, o = (float(c[i]) for c in cosines)
            difference = float(np.abs(ours[i] - self.plain[i]).max())
            self.result.details.append(
                EmbeddingRecord(position=i, text=printable(piece), shared=a, own=b, exact=o, own_difference=difference)
            )


def _cosine(a: Floats, b: Floats) -> Doubles:
    """Cosine similarity of the rows, float64[tokens]; 0 where one is zero."""
    x, y = a.astype(np.float64), b.astype(np.float64)
    size = np.linalg.norm(x, axis=1) * np.linalg.norm(y, axis=1)
    return np.asarray(np.divide((x * y).sum(axis=1), size, out=np.zeros(len(x)), where=size > 0))
