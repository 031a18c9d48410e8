"""Which definition a backend's product of quantized weights has, by its outputs.

Definitions whose activations are the values themselves cannot be met by chance: they come first and are always tried.
Those that round factors may be met by sums in half, whose errors are of the size of that rounding. So where the outputs
have the bits of such sums (`_matrices.are_short`), a definition that has a twin with sums in half is left out: the twin
has the same exact product, and admits more. Sums of few terms tell less: `Ruling.out` names what long rows ruled out.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gguf_verify.formats import BlockFormat
from gguf_verify.llama.node import Node, NoDefinition, Operand
from gguf_verify.semantics.definition import Semantics
from gguf_verify.semantics.definitions.f32 import F32

from ._definition import Definition
from ._drawn_matrices import drawn_blocks
from ._matrices import Matrix, are_short, identified
from ._product_definitions import definitions
from .drawing import floats

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]


class Ruling(NamedTuple):
    """The definition of some outputs; titles of those before it that round factors, which they ruled out."""

    semantics: Semantics
    out: frozenset[str]


def identified_product(
    backend: str, fmt: BlockFormat, w: Bytes, x: Floats, y: Floats, columns: int, out: Collection[str] = ()
) -> Ruling:
    """The first of the definitions of values that products of a backend may have by which all outputs pass, or most of
    what is not exact (`_matrices.judged`).

    Args:
        backend: ggml's name of it.
        w: weights uint8[B, N, row bytes].
        x, y: activations float32[B, M, K], and the outputs float32[B, M, N].
        columns: the number of tokens by which the backend chose how to compute it.
        out: titles of definitions that were ruled out.

    Raises NoDefinition where none is known for the backend, or none gives these outputs. Those that quantize
    activations are left out: what a device's own quantizer makes cannot be read back.
    """
    (count, m), weights = x.shape[:2], np.ascontiguousarray(w)
    node = Node("MUL_MAT", (Operand.of(weights, fmt.type_id), Operand.of(x)), Operand.of(y), backend=backend)
    known = [d for d in definitions(node, fmt, columns) if d.plain and not d.semantics.encoding.quantizes]
    short = are_short(np.ascontiguousarray(y).reshape(count * m, -1))
    tried = [d for d in known if d.title not in out and not (short and _has_twin(d, known))]
    if not tried:
        raise NoDefinition(f"products of {fmt.name} on the backend {backend}")
    of_matrix = np.arange(count * m).reshape(count, m)
    matrices = [Matrix(partial(weights.__getitem__, b), at, at) for b, at in enumerate(of_matrix)]
    found, _ = identified(node, tried, x.reshape(count * m, -1), matrices)
    if found is None:
        raise NoDefinition(f"no known definition gives this device's products of {fmt.name}")
    before = known[: known.index(found)]
    return Ruling(found.semantics, frozenset(d.title for d in before if d.semantics.encoding is not F32.encoding))


def _has_twin(definition: Definition, known: Sequence[Definition]) -> bool:
    """Whether another definition differs from one that rounds factors in its sums alone, which are halves."""
    own = definition.semantics
    alike = [d for d in known if (d.semantics.encoding, d.semantics.term) == (own.encoding, own.term)]
    return own.encoding is not F32.encoding and not definition.in_half and any(d.in_half for d in alike)


def drawn_product(fmt: BlockFormat, m: int, n: int, k: int) -> tuple[Bytes, Floats]:
    """Weights uint8[N, row bytes] and activations float32[M, K], by which `identified_product` tells definitions apart:
    random codes under finite scales, and normal values."""
    rng = np.random.default_rng(0)
    return drawn_blocks(rng, fmt, (n, k)), floats(rng, (m, k), 1.0)
