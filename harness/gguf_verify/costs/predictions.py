"""The difference between a model's predictions and its source's, both evaluated by llama.cpp on the same text.

Definitions follow llama.cpp's `llama-perplexity` (tools/perplexity/perplexity.cpp): the text's tokens are cut into
chunks of 512, and the first token of each chunk is replaced by BOS if the vocabulary adds one. Predictions in the
second half of each chunk are scored, so that each has at least half a chunk of context. With p the source's
probabilities, q the model's, and t the next token of the text:

    perplexity = exp(mean(−ln q[t]))
    KL = Σ p·(ln p − ln q) of each prediction; reported: mean, percentiles (linear interpolation) and maximum
    top-1 agreement = fraction of predictions in which p and q have the same most probable token

Unlike there, a text shorter than a chunk is one chunk, and the source's logits are not rounded to 16 bits in between.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
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
        self._agreed = 0

    def add(self, source: Floats, model: Floats, following: list[int]) -> None:
        """Add the scores of predictions, float32[predictions, vocabulary], given the tokens that follow."""
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
            self._agreed += int((log_p.argmax(axis=1) == log_q.argmax(axis=1)).sum())

    def cost(self, name: str, sha256: str, tokens: int, chunk: int, chunks: int) -> TextCost:
        found = np.asarray(self._divergences)
        return TextCost(
            text=name,
            sha256=sha256,
            tokens=tokens,
            chunk=chunk,
            chunks=chunks,
            scored=len(found),
            perplexity=_perplexity(self._losses),
            source_perplexity=_perplexity(self._source_losses),
            kl_mean=float(found.mean()),
            kl_max=float(found.max()),
            kl_percentiles={f"{p:g}%": float(np.percentile(found, p)) for p in PERCENTILES},
            top1=self._agreed / len(found),
        )


def _batches(n: int, expected: npt.NDArray[Any]) -> Iterator[tuple[slice, npt.NDArray[Any]]]:
    for at in range(0, n, _AT_ONCE):
        yield slice(at, at + _AT_ONCE), expected[at : at + _AT_ONCE]


def _perplexity(losses: list[float]) -> float:
    mean = math.fsum(losses) / len(losses)
    return math.exp(mean) if mean < 700 else math.inf


def _log_softmax(logits: Floats) -> Doubles:
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    return np.asarray(wide - np.log(np.exp(wide).sum(axis=1, keepdims=True)))
