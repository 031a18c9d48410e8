"""The difference between a model's predictions and its source's, both evaluated by llama.cpp on the same text.

Definitions follow llama.cpp's `llama-perplexity` (tools/perplexity/perplexity.cpp): the text's tokens are cut into
chunks of 512, and the first token of each chunk is replaced by BOS if the vocabulary adds one. Predictions in the
second half of each chunk are scored, so that each has at least half a chunk of context. With p the source's
probabilities, q the model's, and t the next token of the text:

    perplexity = exp(mean(−ln q[t]))
    KL = Σ p·(ln p − ln q) of each prediction; reported: mean, percentiles (linear interpolation) and maximum
    top-1 agreement = fraction of predictions in which p and q have the same most probable token

Unlike there, a text shorter than a chunk is one chunk, and the source's logits are not rounded to 16 bits in between.

Each figure has a standard error: that of independent predictions, which llama-perplexity prints, or that of independent
chunks if it is larger, since neighbouring predictions are alike. A figure is reported only if its standard error is at
most a tenth of it and at least 100 predictions were scored, because fewer do not determine the error either. A
percentile needs 10 predictions beyond it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from ..gguf.model import Model
from ..llama.process import LlamaRefused
from ..results.costs import TextCost
from ..rungs.run import Run
from ..rungs.session import opened_llama
from ..support.array_types import Doubles, Floats

#: Tokens per chunk, unless the text is shorter or the model was trained on fewer.
CHUNK = 512
PERCENTILES = (50.0, 90.0, 95.0, 99.0, 99.9)
#: The largest standard error of a figure relative to it, the fewest predictions, and the fewest beyond a percentile.
MOST_ERROR, LEAST, LEAST_BEYOND = 0.1, 100, 10
#: A standard error that is small beside any figure of interest, such as of a divergence that is all rounding.
NEGLIGIBLE = 1e-6
#: Predictions compared at a time: a vocabulary may have 2^18 tokens, each eight bytes in float64.
_AT_ONCE = 32


def measure(run: Run, source: Model, name: str, text: str, sha256: str) -> TextCost:
    """Compare the predictions of the run's model with its source's. Raises LlamaRefused, EnvironmentFault."""
    run.close_session()  # frees memory: two models are loaded below
    with _Predictor(run, run.model) as model, _Predictor(run, source) as before:
        tokens = model.tokens(text)
        if tokens != before.tokens(text):
            raise LlamaRefused("the source splits the text into other tokens")
        size = min(CHUNK, len(tokens), *(p.trained for p in (model, before) if p.trained > 0))
        first = size // 2
        if size - first < 2:
            raise LlamaRefused(f"the text has {len(tokens)} tokens, too few to predict one")
        chunks = [tokens[at : at + size] for at in range(0, len(tokens) - size + 1, size)]
        for predictor in (model, before):
            predictor.prepare(size)
        scores = _Scores()
        with run.bar("costs: predictions", len(chunks) * size, "token") as bar:
            for chunk in chunks:
                chunk = model.beginning(chunk)
                expected = chunk[first + 1 :]
                scores.add(before.logits(chunk, first)[:-1], model.logits(chunk, first)[:-1], expected)
                bar.update(size)
    return scores.cost(name=name, sha256=sha256, tokens=len(tokens), chunk=size, chunks=len(chunks))


class _Predictor:
    """A model in a llama.cpp process of its own."""

    def __init__(self, run: Run, model: Model) -> None:
        self._process = opened_llama(run.options)
        try:
            self._model = self._process.model
            options = run.options
            self._info: dict[str, Any] = self._model.open(model, options.threads, options.repack, options.reference)
        except BaseException:
            self._process.close()
            raise

    def __enter__(self) -> _Predictor:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.close()

    @property
    def trained(self) -> int:
        """Context length in tokens that the model was trained on."""
        return int(self._info["n_ctx_train"])

    def tokens(self, text: str) -> list[int]:
        return self._model.tokenize(text)

    def prepare(self, size: int) -> None:
        self._model.make_context(size)

    def beginning(self, chunk: list[int]) -> list[int]:
        """Replace the first token of a chunk by BOS if the vocabulary adds one."""
        bos = int(self._info["added_bos"])
        return [bos, *chunk[1:]] if bos >= 0 else chunk

    def logits(self, chunk: list[int], first: int) -> Floats:
        """Return float32[len(chunk) - first, vocabulary], for the tokens from `first` on."""
        return self._model.evaluate(chunk, first).logits


class _Scores:
    """Accumulated scores of all predictions."""

    def __init__(self) -> None:
        self._divergences: list[float] = []
        self._losses: list[float] = []
        self._source_losses: list[float] = []
        self._agreed: list[bool] = []
        self._ends: list[int] = []

    def add(self, source: Floats, model: Floats, following: list[int]) -> None:
        """Add the scores of a chunk's predictions, float32[predictions, vocabulary], given the tokens that follow."""
        if source.shape != model.shape:
            raise LlamaRefused(f"the source predicts {source.shape[1]} tokens, the model {model.shape[1]}")
        for rows, expected in _batches(len(following), np.asarray(following)):
            log_p, log_q = _log_softmax(source[rows]), _log_softmax(model[rows])
            if not (np.isfinite(log_p).all() and np.isfinite(log_q).all()):
                raise LlamaRefused("its logits are not finite")
            self._divergences += (np.exp(log_p) * (log_p - log_q)).sum(axis=1).tolist()
            at = np.arange(len(expected))
            self._source_losses += (-log_p[at, expected]).tolist()
            self._losses += (-log_q[at, expected]).tolist()
            self._agreed += (log_p.argmax(axis=1) == log_q.argmax(axis=1)).tolist()
        self._ends.append(len(self._losses))

    def cost(self, name: str, sha256: str, tokens: int, chunk: int, chunks: int) -> TextCost:
        losses, before, found = map(np.asarray, (self._losses, self._source_losses, self._divergences))
        agreed, n = np.asarray(self._agreed, np.float64), len(found)
        figures = {
            "perplexity": self._exponential(losses), "source_perplexity": self._exponential(before),
            "ratio": self._exponential(losses - before), "kl_mean": (float(found.mean()), self._error(found)),
            "top1": (float(agreed.mean()), self._error(agreed)),
        }  # fmt: skip
        known = {
            key: (value, error)
            for key, (value, error) in figures.items()
            if n >= LEAST and (error <= max(MOST_ERROR * value, NEGLIGIBLE) or math.isinf(value))
        }
        lacking = [error / value for key, (value, error) in figures.items() if key not in known and value]
        share = tokens / n  # of the text, for each prediction
        needed = max([LEAST, *(n * (error / MOST_ERROR) ** 2 for error in lacking if math.isfinite(error))])
        return TextCost(
            text=name,
            sha256=sha256,
            tokens=tokens,
            chunk=chunk,
            chunks=chunks,
            scored=n,
            **{key: known[key][0] if key in known else None for key in figures},
            kl_max=float(found.max()) if "kl_mean" in known else None,
            kl_percentiles={
                f"{p:g}%": float(np.percentile(found, p))
                for p in PERCENTILES
                if "kl_mean" in known and n * (100 - p) >= 100 * LEAST_BEYOND
            },
            errors={key: error for key, (_, error) in known.items()},
            enough=0 if len(known) == len(figures) else math.ceil(needed * share / 100) * 100,
        )

    def _error(self, values: Doubles) -> float:
        """The standard error of the mean of values, one for each prediction."""
        off = values - values.mean()
        n, chunks = len(values), len(self._ends)
        variance = float((off**2).sum()) / max(1, n - 1) / n
        if chunks > 1:
            sums = [float(off[start:stop].sum()) for start, stop in pairwise((0, *self._ends))]
            variance = max(variance, chunks / (chunks - 1) * math.fsum(v * v for v in sums) / n**2)
        return math.sqrt(variance)

    def _exponential(self, losses: Doubles) -> tuple[float, float]:
        """exp of the mean of losses, and its standard error to first order."""
        mean = math.fsum(losses) / len(losses)
        value = math.exp(mean) if mean < 700 else math.inf
        return value, value * self._error(losses)


def _batches(n: int, expected: npt.NDArray[Any]) -> Iterator[tuple[slice, npt.NDArray[Any]]]:
    for at in range(0, n, _AT_ONCE):
        yield slice(at, at + _AT_ONCE), expected[at : at + _AT_ONCE]


def _log_softmax(logits: Floats) -> Doubles:
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    return np.asarray(wide - np.log(np.exp(wide).sum(axis=1, keepdims=True)))
