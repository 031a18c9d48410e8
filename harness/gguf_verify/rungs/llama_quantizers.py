"""Figures about the quantizers of llama.cpp's backends: the number of codes that fast math changes. A change that fast
math does not explain fails."""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

from ..gguf.file import Tensor
from ..gguf.matrices import where
from ..llama.backends import Backend
from ..results.failures import Failure
from ..results.rungs import RungResult
from ..semantics.definition import Semantics
from ..semantics.fast_math import Agreement, compare_activations
from .run import Run

#: Gaussian activations that the quantizers get beside the model's.
_ROWS, _VALUES = 8, 1 << 17


class Quantizers:
    """Counts of one rung, over all activations that `check` is given, each once: products share them."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        #: Path and digest of activations → how llama.cpp's bytes of them agree; for `join`.
        self.seen: dict[tuple[str, bytes], Agreement] = {}

    def check(
        self, result: RungResult, semantics: Semantics, x: npt.NDArray[np.float32], theirs: npt.NDArray[np.uint8],
        tensor: Tensor, first_row: int = 0,
    ) -> None:  # fmt: skip
        """Compare llama.cpp's bytes of x with the encoder's; what fast math does not explain fails."""
        agreement = compare_activations(semantics, x, theirs)
        path = self._backend.path(semantics)
        assert path is not None
        digest = (path, hashlib.sha256(x.tobytes()).digest())
        self.seen.setdefault(digest, agreement)
        if agreement.unexplained is not None:
            m, block, what = agreement.unexplained
            result.fail(
                Failure(
                    f"llama.cpp's quantizer ({path}): activations of {where(tensor, first_row)}, token {m} block "
                    f"{block}: a {what} that neither IEEE division nor fast math gives", tensor.name, token=m,
                    culprit="llama.cpp",
                )
            )  # fmt: skip

    def join(self, seen: dict[tuple[str, bytes], Agreement]) -> None:
        """Count what another of these has seen, as if it had been checked here."""
        for digest, agreement in seen.items():
            self.seen.setdefault(digest, agreement)

    def report(self, run: Run, result: RungResult) -> None:
        """The counts as figures, and those of Gaussian activations."""
        counts: dict[str, Agreement] = {}
        for (path, _), agreement in self.seen.items():
            counts[path] = counts[path] + agreement if path in counts else agreement
        for path, of_model in sorted(counts.items()):
            result.figures[f"{path}'s activation codes"] = of_model.codes
            result.figures[f"{path}'s ambiguous codes"] = of_model.ambiguous
            result.figures[f"{path}'s codes off IEEE division, per million"] = of_model.per_million
            result.figures[f"{path}'s half scales off"] = of_model.differing_scales
            semantics = self._backend.quantizer(path)
            x = np.random.default_rng(run.options.seed).standard_normal((_ROWS, _VALUES), np.float32)
            drawn = compare_activations(semantics, x, self._backend.activations(semantics.name, x))
            result.figures[f"{path}'s Gaussian codes"] = drawn.codes
            result.figures[f"{path}'s Gaussian codes off, per million"] = drawn.per_million
