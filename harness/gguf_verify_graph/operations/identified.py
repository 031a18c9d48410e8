"""Identification of the definition of a backend's product of quantized weights, from its outputs.

Definitions whose activations are the values themselves cannot pass by chance: they come first and are always tried.
Definitions that round factors may pass for sums in half, whose errors are about as large as that rounding. So where the
outputs have the bits of such sums (`matrices.are_short`), a definition with a twin that has sums in half is excluded:
the twin has the same exact product, and a wider tolerance. Sums of few terms are less conclusive: `Ruling.out` names
the definitions that long rows excluded.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from gguf_verify.formats.block import BlockFormat
from gguf_verify.llama.node import Node, NoDefinition, Operand, demand
from gguf_verify.semantics.definition import Semantics
from gguf_verify.semantics.definitions.f32 import F32
from gguf_verify.support.array_types import Bytes, Floats

from .definition import Definition
from .matrices import Matrix, are_short, identified
from .product_definitions import definitions
from .random_inputs import floats, random_blocks


class Ruling(NamedTuple):
    """The definition of some outputs, and the titles of the definitions before it that round factors (all excluded)."""

    semantics: Semantics
    out: frozenset[str]


def identified_product(
    backend: str, fmt: BlockFormat, w: Bytes, x: Floats, y: Floats, columns: int, out: Collection[str] = ()
) -> Ruling:
    """Return the first of a backend's definitions of values that all outputs pass, or most inexact ones
    (`matrices.judged`).

    Args:
        backend: ggml's name.
        w: weights uint8[B, N, row bytes].
        x, y: activations float32[B, M, K], and the outputs float32[B, M, N].
        columns: number of tokens, by which the backend chose its computation.
        out: titles of definitions that are excluded.

    Raises NoDefinition if the backend has none, or none explains these outputs. Definitions that quantize activations
    are excluded: the result of a device's own quantizer cannot be read back.
    """
    (count, m), weights = x.shape[:2], np.ascontiguousarray(w)
    node = Node("MUL_MAT", (Operand.of(weights, fmt.type_id), Operand.of(x)), Operand.of(y), backend=backend)
    known = [d for d in definitions(node, fmt, columns) if d.plain and not d.semantics.encoding.quantizes]
    short = are_short(np.ascontiguousarray(y).reshape(count * m, -1))
    tried = [d for d in known if d.title not in out and not (short and _has_twin(d, known))]
    demand(bool(tried), f"products of {fmt.name} on the backend {backend}")
    of_matrix = np.arange(count * m).reshape(count, m)
    matrices = [Matrix(partial(weights.__getitem__, b), at, at) for b, at in enumerate(of_matrix)]
    found, _ = identified(node, tried, x.reshape(count * m, -1), matrices)
    if found is None:
        raise NoDefinition(f"no known definition gives this device's products of {fmt.name}")
    before = known[: known.index(found)]
    return Ruling(found.semantics, frozenset(d.title for d in before if d.semantics.encoding is not F32.encoding))


def _has_twin(definition: Definition, known: Sequence[Definition]) -> bool:
    """Return whether another definition differs from one that rounds factors only in its sums, which are halves."""
    own = definition.semantics
    alike = [d for d in known if (d.semantics.encoding, d.semantics.term) == (own.encoding, own.term)]
    return own.encoding is not F32.encoding and not definition.in_half and any(d.in_half for d in alike)


def random_product(fmt: BlockFormat, m: int, n: int, k: int) -> tuple[Bytes, Floats]:
    """Return weights uint8[N, row bytes] and activations float32[M, K] for `identified_product`.

    Random codes with finite scales, and normal values, make the definitions distinguishable.
    """
    rng = np.random.default_rng(0)
    return random_blocks(rng, fmt, (n, k)), floats(rng, (m, k), 1.0)
