"""The taps of a kernel: which outputs read which inputs.

Output o of a convolution reads the input o·stride + k·dilation - padding at tap k of the kernel, if there is one: what
is beyond an edge is zero. A transposed convolution reads the same pairs backwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from gguf_verify.llama.node import demand


@dataclass(frozen=True)
class Axis:
    """One axis of space: sizes of the input and the kernel, and how the kernel moves."""

    size: int
    kernel: int
    stride: int = 1
    padding: int = 0
    dilation: int = 1

    def __post_init__(self) -> None:
        demand(self.stride > 0 and self.dilation > 0, "a convolution whose stride or dilation is not positive")

    @property
    def outputs(self) -> int:
        """How many a convolution has (`ggml_calc_conv_output_size`)."""
        reach = self.size + 2 * self.padding - self.dilation * (self.kernel - 1) - 1
        return max(0, reach // self.stride + 1)

    def pairs(self, k: int) -> tuple[slice, slice]:
        """The outputs that tap k gives something, and the inputs that they read."""
        shift = k * self.dilation - self.padding
        first = max(0, -(shift // self.stride))
        last = min(self.outputs - 1, (self.size - 1 - shift) // self.stride)
        count = max(0, last - first + 1)
        start, end = (i * self.stride + shift for i in (first, first + count))
        return slice(first, first + count), slice(start, min(end, self.size), self.stride)


Slices = tuple[slice, ...]


def taps(axes: Sequence[Axis]) -> Iterator[tuple[tuple[int, ...], Slices, Slices]]:
    """Each tap of a kernel that reads anything, with the outputs and the inputs of all axes."""
    for at in product(*(range(axis.kernel) for axis in axes)):
        pairs = [axis.pairs(k) for axis, k in zip(axes, at, strict=True)]
        if all(out.stop > out.start for out, _ in pairs):
            yield at, tuple(out for out, _ in pairs), tuple(into for _, into in pairs)
