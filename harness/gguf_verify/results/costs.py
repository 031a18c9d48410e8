"""Records of the cost of a quantization."""

from __future__ import annotations

import math
from typing import NamedTuple

import msgspec

from .environment import FileInfo


class GemmCost(msgspec.Struct, frozen=True, kw_only=True):
    """The error that the quantization of one matrix adds to its GEMM, on the activations X of the run.

    Args:
        tensor, matrix: the weights' name, and which of its matrices (experts) this is, where it holds several.
        layer: as the file names it, such as "blk.0"; "" outside of layers.
        kind: the name without the layer, such as "attn_q".
        type, source_type: of the weights, and of the source's.
        m, n, k: tokens, rows, columns.
        error: ‖X·W_qᵀ − X·W_fᵀ‖ / ‖X·W_fᵀ‖, Frobenius norms, with the weights W_q and the source's W_f in float32.
    """

    tensor: str
    matrix: int | None
    layer: str
    kind: str
    type: str
    source_type: str
    m: int
    n: int
    k: int
    error: float


class TextCost(msgspec.Struct, frozen=True, kw_only=True):
    """The distance of the model's predictions on a text from its source's, by the definitions of `llama-perplexity`.

    Args:
        text, sha256: the text's name, and the digest of its UTF-8.
        tokens: of the whole text.
        chunk, chunks: tokens of a chunk, and the number of chunks that were evaluated; the rest of the text was
            skipped.
        scored: number of predictions that were compared: those in the second half of each chunk.
        perplexity, source_perplexity: of the model, and of its source.
        ratio: the first divided by the second; both models predict the same tokens, so its error is smaller.
        kl_mean, kl_max: Kullback-Leibler divergence of the model's probabilities from the source's, in nats.
        kl_percentiles: percentile, such as "99%" → divergence.
        top1: share of the predictions in which both have the same most probable token.
        errors: name of one of these fields → its standard error.
        enough: tokens of text that are needed for the figures that are None (or, of percentiles, missing) because the
            predictions are too few; 0 if there is none.
    """

    text: str
    sha256: str
    tokens: int
    chunk: int
    chunks: int
    scored: int
    perplexity: float | None
    source_perplexity: float | None
    ratio: float | None = None
    kl_mean: float | None
    kl_max: float | None
    kl_percentiles: dict[str, float]
    top1: float | None
    errors: dict[str, float] = {}
    enough: int = 0


class CostGroup(NamedTuple):
    """Several GEMMs: their common name, their weights' types, mean and largest error, and its tensor."""

    name: str
    types: str
    gemms: int
    mean: float
    worst: float
    worst_tensor: str


class QuantizationCosts(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of a quantization against the model that it was made from. Not part of any verdict.

    Args:
        source: the file of that model.
        gemms: of the run's prompt, in the graph's order.
        text: the comparison of predictions; None if there is none, and `left` says why.
        left: figures that could not be measured, and why.
        seconds: duration of the measurement.
    """

    source: FileInfo
    gemms: tuple[GemmCost, ...] = ()
    text: TextCost | None = None
    left: tuple[tuple[str, str], ...] = ()
    seconds: float = 0.0

    @property
    def by_layer(self) -> list[CostGroup]:
        """The GEMMs of each layer, in the graph's order; those outside of layers last."""
        names = sorted(dict.fromkeys(g.layer for g in self.gemms), key=lambda name: not name)
        return [self._group(name or "other", [g for g in self.gemms if g.layer == name]) for name in names]

    @property
    def by_kind(self) -> list[CostGroup]:
        """The GEMMs of each kind of tensor, in the graph's order."""
        names = dict.fromkeys(g.kind for g in self.gemms)
        return [self._group(name, [g for g in self.gemms if g.kind == name]) for name in names]

    @staticmethod
    def _group(name: str, found: list[GemmCost]) -> CostGroup:
        worst = max(found, key=lambda g: g.error)
        types = ", ".join(dict.fromkeys(g.type for g in found))
        mean = math.fsum(g.error for g in found) / len(found)
        return CostGroup(name, types, len(found), mean, worst.error, worst.tensor)
