"""The taps of a kernel: which outputs read which inputs.

Output o of a convolution reads the input o·stride + k·dilation - padding at tap k of the kernel, if it exists: values
beyond an edge are zero. A transposed convolution uses the same pairs in reverse.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from gguf_verify.llama.node import demand


@dataclass(frozen=True)
class Axis:
    """One spatial axis: sizes of the input and the kernel, and the kernel's stride, padding and dilation."""

    size: int
    kernel: int
    stride: int = 1
    padding: int = 0
    dilation: int = 1

    def __post_init__(self) -> None:
        demand(self.stride > 0 and self.dilation > 0, "a convolution whose stride or dilation is not positive")

    @property
    def outputs(self) -> int:
        """Return the number of outputs of a convolution (`ggml_calc_conv_output_size`)."""
        reach = self.size + 2 * self.padding - self.dilation * (self.kernel - 1) - 1
        return max(0, reach // self.stride + 1)

    def pairs(self, k: int) -> tuple[slice, slice]:
        """Return the outputs that tap k contributes to, and the inputs that they read."""
        shift = k * self.dilation - self.padding
        first = max(0, -(shift // self.stride))
        last = min(self.outputs - 1, (self.size - 1 - shift) // self.stride)
        count = max(0, last - first + 1)
        start, end = (i * self.stride + shift for i in (first, first + count))
        return slice(first, first + count), slice(start, min(end, self.size), self.stride)


Slices = tuple[slice, ...]


def taps(axes: Sequence[Axis]) -> Iterator[tuple[tuple[int, ...], Slices, Slices]]:
    """Yield each tap of a kernel that reads any input, with the outputs and the inputs of all axes."""
    for at in product(*(range(axis.kernel) for axis in axes)):
        pairs = [axis.pairs(k) for axis, k in zip(axes, at, strict=True)]
        if all(out.stop > out.start for out, _ in pairs):
            yield at, tuple(out for out, _ in pairs), tuple(into for _, into in pairs)
