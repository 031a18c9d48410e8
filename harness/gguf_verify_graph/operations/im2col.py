"""Convolutions as products of matrices: IM2COL and IM2COL_3D gather the inputs of a kernel, COL2IM_1D adds them up.

    IM2COL[_3D]   y[output, channel and tap] = x[channel, output·stride + tap·dilation - padding], 0 beyond an edge
    COL2IM_1D     y[channel, t] = Σ x[i, channel and tap] over all i·stride + tap = t + padding

IM2COL moves float32 or float16 numbers, or rounds float32 to the nearest half, so its bytes are compared; a Vulkan
device without rounding modes may truncate (VK_KHR_shader_float_controls). COL2IM_1D adds in float32, in the order of i,
and rounds to the type of its columns (ggml-cpu/ops.cpp, ggml-cuda/im2col.cu and col2im-1d.cu,
vulkan-shaders/im2col.comp and col2im_1d.comp; llama.cpp v0.5.0).

The taps of a kernel: which outputs read which inputs.

Output o of a convolution reads the input o·stride + k·dilation - padding at tap k of the kernel, if it exists: values
beyond an edge are zero. A transposed convolution uses the same pairs in reverse.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from gguf_verify.llama.node import BF16, F16, F32, Array, Node, Operand, demand, parameters

from .arithmetic import arithmetic, summed
from .judging import Judged, Operation, equal, within
from .random_inputs import floats, typed


def _im2col(node: Node) -> Judged:
    kernel, x = node.source(0), node.source(1)
    s0, s1, p0, p1, d0, d1, flat = (node.integer(i) for i in range(7))
    *_, ic, kh, kw = kernel.shape
    batch, channels, height, width = x.shape
    if flat == 1:
        demand(ic == channels, "IM2COL of these shapes")
        axes = [Axis(height, kh, s1, p1, d1), Axis(width, kw, s0, p0, d0)]
        return _laid_out(node, x.data, axes, (batch, axes[0].outputs, axes[1].outputs))
    demand(batch == 1 and kh == height, "IM2COL of these shapes")
    axes = [Axis(1, 1), Axis(width, kw, s0, p0, d0)]
    return _laid_out(node, x.data[0][:, :, None], axes, (1, channels, axes[1].outputs))


def _im2col_3d(node: Node) -> Judged:
    kernel, x = node.source(0), node.source(1)
    s0, s1, s2, p0, p1, p2, d0, d1, d2, channels = (node.integer(i) for i in range(10))
    _, kd, kh, kw = kernel.shape
    images, depth, height, width = x.shape
    demand(channels > 0 and images % channels == 0, "IM2COL_3D of these channels")
    axes = [Axis(depth, kd, s2, p2, d2), Axis(height, kh, s1, p1, d1), Axis(width, kw, s0, p0, d0)]
    batch = images // channels
    split = x.data.reshape(batch, channels, depth, height, width)
    return _laid_out(node, split, axes, (axes[0].outputs * batch, axes[1].outputs, axes[2].outputs))


def _laid_out(node: Node, x: Array, axes: Sequence[Axis], outputs: tuple[int, int, int]) -> Judged:
    """Judge x [image, channel, spatial axes] against an output [image, outputs of the axes, channel and tap]."""
    types = (node.source(1).type_id, node.output.type_id)
    demand(types in ((F32, F32), (F32, F16), (F16, F16)), f"{node.op} of {node.source(1).type}")
    batch, channels = x.shape[:2]
    kernel = [axis.kernel for axis in axes]
    row = channels * int(np.prod(kernel))
    demand(node.output.shape == (*outputs, row), f"{node.op} of these shapes")
    whole = np.zeros((batch, *(axis.outputs for axis in axes), channels, *kernel), x.dtype)
    for at, out, into in taps(axes):
        read = x[(slice(None), slice(None), *into)]
        place: tuple[slice | int, ...] = (slice(None), *out, slice(None), *at)
        whole[place] = np.moveaxis(read, 1, -1)
    found = whole.reshape(node.output.shape)
    if types != (F32, F16):
        return equal(node, "bytes", found)
    with np.errstate(all="ignore"):
        nearest = found.astype(np.float16)
        if node.backend != "Vulkan":
            return equal(node, "halves", nearest)
        above = np.abs(nearest.astype(np.float32)) > np.abs(found)
        return equal(node, "halves", nearest, np.where(above, np.nextafter(nearest, np.float16(0)), nearest))


def _col2im(node: Node) -> Judged:
    columns = node.source(0)
    stride, channels, padding = (node.integer(i) for i in range(3))
    kept = columns.type_id in (F32, F16, BF16) and columns.type_id == node.output.type_id
    demand(kept, f"COL2IM_1D of {columns.type}")
    x = columns.values
    inputs, row = x.shape[2:]
    fits = x.shape[:2] == (1, 1) and channels > 0 and stride > 0 and padding >= 0 and row % channels == 0
    demand(fits, "COL2IM_1D of these shapes")
    kernel = row // channels
    length = (inputs - 1) * stride + kernel - 2 * padding
    demand(length > 0 and node.output.shape == (1, 1, channels, length), "COL2IM_1D of these shapes")
    a = arithmetic(node.backend)
    split = x[0, 0].reshape(inputs, channels, kernel)
    # a convolution of the output would read these pairs
    axis = Axis(length, kernel, stride, padding)
    total, magnitude, squares = (np.zeros((channels, length)) for _ in range(3))
    with np.errstate(all="ignore"):
        for (k,), (out,), (into,) in taps([axis]):
            term = split[out, :, k].T
            total[:, into] += term
            magnitude[:, into] += np.abs(term)
            squares[:, into] += term**2
        # the sum of n numbers that are not products takes n - 1 roundings
        terms = -(-kernel // stride)
        bound, spread = summed(total, magnitude, squares, max(terms - 2, 0), 1)
    return within(node, "f32 sums", total, bound + terms * a.tiny, spread + a.tiny)


def _draw_im2col(rng: np.random.Generator) -> Iterator[Node]:
    # image, channels, height, width, kernel, strides, paddings, dilations (of the width first)
    for n, c, h, w, kh, kw, *moves in (
        (1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 1, 1),
        (2, 3, 7, 9, 3, 3, 1, 1, 1, 1, 1, 1),
        (1, 5, 11, 8, 2, 3, 2, 3, 0, 2, 2, 1),
        (1, 2, 16, 16, 4, 4, 4, 4, 0, 0, 1, 1),
        (3, 1, 6, 5, 3, 5, 1, 2, 4, 3, 1, 2),
    ):
        s0, s1, p0, p1, d0, d1 = moves
        image = Operand.of(floats(rng, (n, c, h, w)))
        half = Operand.of(floats(rng, (n, c, h, w)).astype(np.float16))
        kernel = Operand.of(floats(rng, (2, c, kh, kw)).astype(np.float16))
        size = (n, Axis(h, kh, s1, p1, d1).outputs, Axis(w, kw, s0, p0, d0).outputs, c * kh * kw)
        for x, type_id in ((image, F32), (image, F16), (half, F16)):
            yield Node("IM2COL", (kernel, x), Operand.blank(type_id, *size), parameters(*moves, 1))
        line, weights = Operand.of(floats(rng, (1, n, c, w))), Operand.of(floats(rng, (1, 2, c, kw)))
        size = (1, n, Axis(w, kw, s0, p0, d0).outputs, c * kw)
        for type_id in (F32, F16):
            given = parameters(s0, 0, p0, 0, d0, 0, 0)
            yield Node("IM2COL", (weights, line), Operand.blank(type_id, *size), given)


def _draw_im2col_3d(rng: np.random.Generator) -> Iterator[Node]:
    for n, c, sides, kernel, moves in (
        (1, 1, (1, 1, 1), (1, 1, 1), (1, 1, 1, 0, 0, 0, 1, 1, 1)),
        (2, 3, (4, 5, 7), (3, 2, 3), (1, 2, 1, 1, 0, 2, 1, 1, 1)),
        (1, 2, (6, 7, 8), (2, 3, 3), (2, 1, 3, 0, 1, 1, 2, 1, 2)),
    ):
        turned = zip(sides, kernel, *(moves[i : i + 3][::-1] for i in (0, 3, 6)), strict=True)
        outputs = [Axis(*each).outputs for each in turned]
        x, w = Operand.of(floats(rng, (n * c, *sides))), Operand.of(floats(rng, (2 * c, *kernel)).astype(np.float16))
        size = (outputs[0] * n, outputs[1], outputs[2], c * int(np.prod(kernel)))
        for type_id in (F32, F16):
            yield Node("IM2COL_3D", (w, x), Operand.blank(type_id, *size), parameters(*moves, c))


def _draw_col2im(rng: np.random.Generator) -> Iterator[Node]:
    for sizes in ((1, 1, 1, 1, 0), (9, 3, 4, 2, 1), (40, 5, 16, 3, 0), (7, 2, 3, 5, 1)):
        inputs, channels, kernel, stride, padding = sizes
        values = floats(rng, (inputs, channels * kernel))
        length = (inputs - 1) * stride + kernel - 2 * padding
        given = parameters(stride, channels, padding)
        for kind in (F32, F16, BF16):
            yield Node("COL2IM_1D", (typed(values, kind),), Operand.blank(kind, channels, length), given)


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


IM2COL = Operation(op="IM2COL", title="what each output of a convolution reads", judge=_im2col, draw=_draw_im2col)
IM2COL_3D = Operation(op="IM2COL_3D", title="IM2COL of volumes", judge=_im2col_3d, draw=_draw_im2col_3d)
COL2IM_1D = Operation(op="COL2IM_1D", title="columns added up to a signal", judge=_col2im, draw=_draw_col2im)
