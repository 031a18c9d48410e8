"""The operands and outputs of the kernel's calls with one matrix of the graph.

The shapes that depend only on the type of the weights are in `rungs.plan`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ...formats.block import NO_TYPE_ID
from ...formats.element import ElementFormat
from ...formats.q8_1 import Q8_1
from ...formats.q8_1_d4 import Q8_1_D4
from ...formats.tensor_types import ACTIVATION_FORMATS, WeightFormat
from ...kernels.interface import Kernel, Weights
from ...llama.gemms import Gemm
from ...semantics.definition import Semantics
from ...semantics.fast_math import as_q8_1
from ..generated_inputs import drawn, ties_of_codes
from ..run import Matrix, Run

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

# ---- llama.cpp's activations -----------------------------------------------------------------------------------------

#: Formats (ggml's numbers) in which a capture includes each GEMM's activations.
ACTIVATIONS = tuple(fmt.type_id for fmt in ACTIVATION_FORMATS.values())


def llama_bytes(fmt: WeightFormat, gemm: Gemm, llama: Semantics) -> Bytes:
    """llama.cpp's own activation bytes, uint8[M, row bytes], as `product` takes them for llama.cpp's definition."""
    if isinstance(fmt, ElementFormat):
        rounded = gemm.x if fmt.type_id not in gemm.quantized else fmt.decode(gemm.quantized[fmt.type_id])
        return rounded.view(np.uint8)
    if llama.activations is None:
        return llama.bytes_of(gemm.x)
    return gemm.quantized[llama.activations.type_id]


def llama_activations(semantics: Semantics, fmt: WeightFormat, gemm: Gemm, llama: Semantics) -> Bytes:
    """llama.cpp's own activation bytes, uint8[M, row bytes], in the layout that a kernel of this definition takes.

    A kernel that quantizes its activations itself gets the values of the blocks that a kernel of blocks gets: as
    float32, quantized again, they have the same codes and scale, since the largest code of a block is 127. A kernel of
    a layout that llama.cpp does not make for this product gets this project's blocks of it; so does each where
    llama.cpp multiplies values.
    """
    if isinstance(fmt, ElementFormat):
        return llama_bytes(fmt, gemm, llama)
    if semantics.inside is not None:
        blocks = llama_activations(semantics.inside, fmt, gemm, llama)
        return semantics.bytes_of(semantics.inside.values_of(blocks)[:, : gemm.x.shape[1]])
    encoding, own = semantics.encoding, llama.encoding
    if own.format is None:
        return semantics.bytes_of(gemm.x)
    if encoding.rearranges is not None:
        plain, rearranged = encoding.rearranges
        return rearranged(llama_activations(replace(semantics, encoding=plain), fmt, gemm, llama))
    if encoding.format is Q8_1:
        if own.format is Q8_1_D4:
            return as_q8_1(gemm.quantized[Q8_1_D4.type_id], gemm.x)
        return gemm.quantized[Q8_1.type_id]
    if encoding.format is None:
        return semantics.bytes_of(own.values(gemm.quantized[own.format.type_id]))
    if encoding.format is own.format or encoding.format.type_id != NO_TYPE_ID:
        there = gemm.quantized.get(encoding.format.type_id)
        if there is not None:
            return there
    return semantics.bytes_of(gemm.x)  # llama.cpp makes none of this layout here


# ---- shapes ----------------------------------------------------------------------------------------------------------

#: Numbers of tokens at which the kernel also runs, once for each shape of the weights: with the prompt's tokens, and
#: then with random ones, all different. Kernels choose their code by M, so this holds small M one by one, whole tiles,
#: and an M past tiles of 128 that is a multiple of none.
OTHER_M = (1, 2, 3, 4, 5, 6, 7, 8, 64, 128, 131)
#: Numbers of tokens at which the kernel also runs with one row and one block fewer. M·(N - 1) is then one and three
#: more than a multiple of 4.
CUT_M = (3, 5)


@dataclass(frozen=True)
class Trial:
    """A product at another shape.

    Args:
        rows: weights, uint8[N, row bytes].
        k: values in a row.
        x: activations, float32[M, K]; those of the last token are ties of codes.
        words: what is special about the weights, for a failure.
    """

    rows: Bytes
    k: int
    x: Floats
    words: str = ""


def _trial(rows: Bytes, k: int, x: Floats, words: str = "") -> Trial:
    return Trial(rows, k, np.concatenate([x, ties_of_codes(k)]), words)


def with_more_tokens(x: Floats, m: int, seed: int) -> Floats:
    """The first m of x float32[M, K], followed by random ones if there are fewer."""
    if len(x) >= m:
        return x[:m]
    return np.concatenate([x, drawn((m - len(x), x.shape[1]), x, seed)])


def cut_trials(matrix: Matrix, x: Floats) -> Iterator[Trial]:
    """The matrix with a row and a block fewer, where there are more, on the first of activations float32[M, K]."""
    n, k = max(1, len(matrix.rows) - 1), matrix.tensor.k
    k -= matrix.fmt.unit if k > matrix.fmt.unit else 0
    rows = np.ascontiguousarray(matrix.rows[:n, : matrix.rows.shape[1] * k // matrix.tensor.k])
    for m in CUT_M:
        yield _trial(rows, k, x[: m - 1, :k])


# ---- outputs ---------------------------------------------------------------------------------------------------------


class KernelCalls:
    """The run's kernel on one matrix, whose weights are uploaded once for each layout."""

    def __init__(self, run: Run, matrix: Matrix) -> None:
        self._run, self._matrix = run, matrix
        self._uploaded: dict[str, Weights] = {}

    def at(self, m: int) -> tuple[Kernel, Weights]:
        """The kernel that multiplies m tokens, and the weights as it takes them. Raises KernelFault."""
        matrix = self._matrix
        kernel = self._run.kernel.of(matrix.fmt, m, len(matrix.rows), matrix.tensor.k)
        if kernel.layout not in self._uploaded:
            self._uploaded[kernel.layout] = kernel.upload(matrix.fmt, matrix.rows)
        return kernel, self._uploaded[kernel.layout]


@dataclass(frozen=True)
class Activations:
    """Activations as a kernel quantizes them itself: values float32[M, K], and these bytes of its definition."""

    values: Floats
    encoded: Bytes

    @classmethod
    def of(cls, semantics: Semantics, values: Floats) -> Activations:
        """The values, and what the definition's encoder makes of them."""
        return cls(values, semantics.bytes_of(values))

    def first(self, m: int) -> Activations:
        """Those of the first m tokens."""
        return Activations(self.values[:m], self.encoded[:m])


@dataclass(frozen=True)
class Outputs:
    """The kernel's outputs, float32[M, N] each.

    Args:
        kernel: that multiplied the graph's own tokens.
        own: on activations that it quantized itself.
        shared: on llama.cpp's own activation bytes.
        others: the same as `own` for the first m tokens of `other`, by m.
        other: the graph's tokens, followed by random ones.
    """

    kernel: Kernel
    own: Floats
    shared: Floats
    others: dict[int, Floats]
    other: Activations
