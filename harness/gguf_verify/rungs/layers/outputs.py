"""What the kernel makes of one matrix: its outputs for the graph's own tokens and for others, and its quantizer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from ...gguf.matrices import label, where
from ...kernels.interface import Kernel, Weights
from ...results.calls import Call
from ...results.failures import Failure
from ...results.rungs import RungResult
from ...semantics.definition import Semantics
from ..calls import calling
from ..explain import Place, WrongBytes
from ..run import Matrix, Run

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


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


def check_quantizer(
    result: RungResult, kernel: Kernel, semantics: Semantics, matrix: Matrix, first_row: int, x: Floats,
    expected: Bytes, call: Call,
) -> WrongBytes | None:  # fmt: skip
    """Compare the kernel's quantizer on x float32[M, K] with the expected bytes uint8[M, row bytes]; record the first
    byte that differs. Returns what it gave, where one does. Raises KernelFault.

    Args:
        call: which call it is.
    """
    with calling(call):
        quantized = kernel.quantize(x)
    wrong = quantized != expected
    if not wrong.any():
        return None
    m, at = (int(i) for i in np.argwhere(wrong)[0])
    size = expected.shape[1] * matrix.fmt.unit // x.shape[1]
    result.fail(
        Failure(
            f"{where(matrix.tensor, first_row)}: the kernel's quantizer at M={len(x)}: token {m}, activation block "
            f"{at // size}, byte {at % size} is {quantized[m, at]:#04x}, expected {expected[m, at]:#04x}",
            matrix.tensor.name, token=m, culprit="kernel", call=call,
        )
    )  # fmt: skip
    name = label(matrix.tensor, first_row)
    place = Place(f"the kernel's quantizer at M={len(x)}", matrix.tensor.name, name, call)
    return WrongBytes(semantics, x, quantized, expected, place, matrix.fmt.name, m, at // size)


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
        other: the graph's tokens, followed by drawn ones.
    """

    kernel: Kernel
    own: Floats
    shared: Floats
    others: dict[int, Floats]
    other: Activations


def run_kernel(
    calls: KernelCalls, result: RungResult, matrix: Matrix, first_row: int, own: Activations, shared: Bytes,
    other: Activations, other_m: tuple[int, ...], semantics: Semantics, wrong: list[WrongBytes], call: Call,
) -> Outputs:  # fmt: skip
    """Run the kernel and check its quantizer.

    Args:
        own: the graph's activations.
        shared: llama.cpp's own bytes of them, in the kernel's layout, uint8[M, row bytes].
        other, other_m: further activations, and the numbers of them that the kernel also multiplies.
        semantics: the definition that the kernel declares.
        wrong: gets the calls of its quantizer that gave other bytes.
        call: the graph's own product, of which the calls are variants.

    Raises KernelFault.
    """
    with calling(call):
        kernel, weights = calls.at(len(own.values))
    of = replace(call, kind="quantizer")
    quantized = [check_quantizer(result, kernel, semantics, matrix, first_row, own.values, own.encoded, of)]
    with calling(call):
        y_own = kernel.product(weights, own.values)
    with calling(replace(call, kind="shared")):
        y_shared = kernel.gemm(weights, shared)
    others = {}
    for m in other_m:
        some = other.first(m)
        of = replace(call, kind="quantizer", m=m)
        quantized.append(check_quantizer(result, kernel, semantics, matrix, first_row, some.values, some.encoded, of))
        with calling(replace(call, kind="other-m", m=m)):
            kernel_of_m, weights_of_m = calls.at(m)
            others[m] = kernel_of_m.product(weights_of_m, other.values[:m])
    wrong += [found for found in quantized if found is not None]
    return Outputs(kernel, y_own, y_shared, others, other)
