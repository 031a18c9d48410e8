"""Rung 4, tokens: does the model still say the same thing when its GEMMs are ours?

llama.cpp continues the prompt greedily; then prompt and continuation are evaluated in one batch (teacher-forced) with
the kernel's output grafted in place of llama.cpp's at every quantized GEMM:

(a) the kernel fed llama.cpp's own activation bytes: every greedy token must be llama.cpp's;
(b) the kernel on its own quantizer: every greedy token must be the one that the exact oracle of the kernel's semantics,
    grafted in the same place, gives.

Token by token is a blunt measure, so the kernel's output is also judged at each GEMM of both passes, on the activations
that it gets there. A token that differs is a tie, said and not failed, where the reference's margin between the two
candidates is at most twice the wobble: how far correct arithmetic moves the logits, because a last bit moves an
activation's code by one step in a later layer. It is measured by grafting the exact oracle with noise of the size of
float32 rounding, never with the kernel, so a wrong kernel cannot widen what it is judged by.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from ..container import Tensor, printable
from ..errors import KernelFault
from ..formats.legacy import QK
from ..reference import Evaluation, Gemm, LlamaRefused
from ..semantics import UNIT_ROUNDOFF, Semantics, exact_result
from .judging import judge_whole
from .layers_rung import ACTIVATIONS, llama_activations
from .result import Failure, RungResult
from .run import Run

Logits = npt.NDArray[np.float32]
Replace = Callable[[Gemm], npt.NDArray[np.float32] | None]

#: Noise is drawn so many times: the wobble is the largest move of any logit.
_DRAWS = 2


def tokens_rung(run: Run) -> RungResult:
    """Judge the tokens. Raises EnvironmentFault where llama.cpp dies."""
    result = RungResult("tokens")
    with result.timed():
        for tensor in run.selected():
            if tensor.type.quantized and tensor.type.format is None:
                result.leave(tensor.name, f"type {tensor.type.name} is not covered")
        if not any(t.type.format is not None for t in run.selected()):
            return result
        try:
            _Tokens(run, result).judge()
        except LlamaRefused as error:
            result.leave("all tokens", str(error))
        except KernelFault as error:
            result.fail(Failure(str(error)))
    return result


class _Tokens:
    def __init__(self, run: Run, result: RungResult) -> None:
        self.run, self.result = run, result
        self.session = run.session
        if self.session.info["encoder"] or not self.session.has_memory:
            raise LlamaRefused("an encoder or embedding model gives no greedy tokens")
        self.first = len(self.session.prompt) - 1
        self.continuation = self.session.continuation
        self.tokens = self.session.prompt + self.continuation[:-1]
        self.grafted = 0
        self._moved: float | None = None

    def judge(self) -> None:
        self.plain = self._logits(self.session.llama.evaluate(self.tokens))
        if not np.ptp(self.plain):
            raise LlamaRefused("the model gives no logits")
        own = self.plain.argmax(axis=1)
        for i in np.flatnonzero(own != np.array(self.continuation)):
            self.result.notes.append(f"llama.cpp's own greedy token {i} differs between one batch and one at a time")
        shared = self._graft("kernel on llama.cpp's activations", self._kernel(shared=True))
        ours = self._graft("kernel", self._kernel(shared=False))
        exact = self.exact = self._graft("exact oracle", self._oracle(self.run.semantics, shared=False))
        if not self.grafted:
            self.result.leave("all tokens", "the graph has no quantized GEMM to graft into")
            return
        ties = self._compare("(a) on llama.cpp's activations", shared, self.plain, None)
        ties += self._compare("(b) on its own quantizer", ours, exact, exact)
        self.result.count("tokens", len(self.continuation))
        self.result.count("GEMMs grafted", self.grafted)
        if ties:
            self.result.figures["ties"] = ties
        for name, logits in (("kernel", ours), ("oracle", exact)):
            self._distance(name, logits)
        self._details(shared, ours, exact)

    # ---- passes over the graph --------------------------------------------------------------------------------------

    def _logits(self, evaluation: Evaluation) -> Logits:
        return evaluation.logits[self.first :]

    def _graft(self, what: str, replace: Replace) -> Logits:
        total = sum(1 for t in self.run.selected() if t.type.format is not None)
        count = 0
        with self.run.bar(f"tokens: {what}", total, "GEMM") as bar:

            def counted(gemm: Gemm) -> npt.NDArray[np.float32] | None:
                nonlocal count
                y = replace(gemm) if self.run.wants(gemm.tensor) else None
                count += y is not None
                bar.update()
                return y

            evaluation = self.session.llama.graft(self.tokens, counted, ACTIVATIONS)
        self.grafted = max(self.grafted, count)
        for name, why in evaluation.unsupported.items():
            if self.run.wants(name):
                self.result.leave(name, why)
        return self._logits(evaluation)

    def _kernel(self, shared: bool) -> Replace:
        semantics, kernel = self.run.semantics, self.run.kernel

        def replace(gemm: Gemm) -> npt.NDArray[np.float32] | None:
            tensor = self._tensor(gemm)
            if tensor is None or tensor.type.format is None:
                return None
            fmt = tensor.type.format
            weights = kernel.upload(fmt, self.run.row_bytes(tensor))
            if shared:
                x = llama_activations(semantics, fmt, gemm, self.run.llama_semantics(fmt))
                y = kernel.gemm(weights, x)
            else:
                x = semantics.encode(gemm.x) if semantics.encode else gemm.x.view(np.uint8)
                y = kernel.gemm(weights, kernel.quantize(gemm.x))
            judge_whole(self.result, "kernel", tensor, y, semantics, x, kernel.ordered, self.run.options.threads)
            return y

        return replace

    def _tensor(self, gemm: Gemm) -> Tensor | None:
        """The GEMM's weights in the file; where they are not there, that is said."""
        tensor = self.run.model.tensors.get(gemm.tensor)
        if tensor is None:
            self.result.leave(gemm.tensor, "is no tensor of the file")
        return tensor

    def _oracle(self, semantics: Semantics, shared: bool) -> Replace:
        """Exact results of the kernel's semantics, rounded once."""

        def replace(gemm: Gemm) -> npt.NDArray[np.float32] | None:
            tensor = self._tensor(gemm)
            if tensor is None or tensor.type.format is None:
                return None
            fmt = tensor.type.format
            if shared:
                x = llama_activations(semantics, fmt, gemm, self.run.llama_semantics(fmt))
            else:
                x = semantics.encode(gemm.x) if semantics.encode else gemm.x.view(np.uint8)
            rows = self.run.row_bytes(tensor)
            return exact_result(semantics, fmt, rows, x, self.run.options.threads).astype(np.float32)

        return replace

    # ---- verdicts ---------------------------------------------------------------------------------------------------

    def _noisy(self, replace: Replace, seed: int) -> Replace:
        """The same outputs with rounding noise.

        A float32 sum of nb terms wanders by u/√3·√Σ S[b]²; with S[b]² growing evenly to the result's, that is
        u·√(nb/6) times the result, for which a row's root mean square stands.
        """
        rng = np.random.default_rng((self.run.options.seed, seed))

        def noisy(gemm: Gemm) -> npt.NDArray[np.float32] | None:
            y = replace(gemm)
            if y is None:
                return None
            rms = np.sqrt(np.mean(y.astype(np.float64) ** 2, axis=1, keepdims=True))
            size = UNIT_ROUNDOFF * np.sqrt(gemm.x.shape[1] / QK / 6) * rms
            return np.asarray(y + size * rng.standard_normal(y.shape), np.float32)

        return noisy

    def _wobble(self) -> float:
        """The largest move of any logit when rounding noise is added to the exact oracle of pass (b)."""
        if self._moved is None:
            oracle = self._oracle(self.run.semantics, shared=False)
            self._moved = 0.0
            for seed in range(_DRAWS):
                logits = self._graft(f"rounding noise, draw {seed + 1}", self._noisy(oracle, seed))
                self._moved = max(self._moved, float(np.abs(logits - self.exact).max()))
        return self._moved

    def _allowed(self, exact: Logits, expected: Logits) -> npt.NDArray[np.float64]:
        """How far right arithmetic may move a logit of each token from the expected ones: the wobble, anywhere, and
        what the definitions differ by at this token (zero in (b), where the exact oracle itself is expected)."""
        return np.asarray(self._wobble() + np.abs(exact - expected).max(axis=1), np.float64)

    def _compare(self, what: str, got: Logits, expected: Logits, exact: Logits | None) -> int:
        """Compare greedy tokens; returns the number of ties.

        Args:
            exact: the exact oracle on the kernel's activations, None where it has not been computed: (a).
        """
        wrong = ~np.isfinite(got).all(axis=1)
        for i in np.flatnonzero(wrong):
            self.result.fail(Failure(f"{what}: the logits of token {i} are not finite", token=int(i)))
        ours, theirs = got.argmax(axis=1), expected.argmax(axis=1)
        differ = np.flatnonzero((ours != theirs) & ~wrong)
        if not len(differ):
            return 0
        if exact is None:
            exact = self._graft(
                "exact oracle on llama.cpp's activations", self._oracle(self.run.semantics, shared=True)
            )
        allowed, ties = self._allowed(exact, expected), 0
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
        """Figures against llama.cpp's logits that nobody judges."""
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
            self.result.details.append(
                {"position": i, "text": piece, "llama.cpp": theirs, "kernel (a)": a, "kernel (b)": b, "oracle (b)": o}
            )


def _log_softmax(logits: Logits) -> npt.NDArray[np.float64]:
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    return np.asarray(wide - np.log(np.exp(wide).sum(axis=1, keepdims=True)))
