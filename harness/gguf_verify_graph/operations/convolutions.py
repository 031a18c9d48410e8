"""Convolutions: CONV_2D, CONV_2D_DW, CONV_3D, CONV_TRANSPOSE_1D and CONV_TRANSPOSE_2D.

    CONV_2D, CONV_3D    y[f, o] = Σ_c Σ_k w[f, c, k]·x[c, o·stride + k·dilation - padding], 0 beyond an edge
    CONV_2D_DW          the same for each channel separately: y[c, o] = Σ_k w[c, k]·x[c, ...]
    CONV_TRANSPOSE_*    y[f, i·stride + k] = Σ_c Σ_k w[c, f, k]·x[c, i]

Sums are float32, in any order: `arithmetic.added` with one lane, whose bound is the widest. With a half kernel the CPU
backend also rounds the input to half, except for CONV_2D_DW, which widens the kernel; CUDA's transposed convolutions
also widen it (ggml-cpu/ops.cpp, ggml-cuda/conv2d-transpose.cu; llama.cpp v0.5.0).

Not defined here: CONV_2D and CONV_3D with halves on CUDA, where the GPU and the sizes decide whether the input is
rounded (conv2d.cu, conv3d.cu). On Vulkan these two and CONV_TRANSPOSE_2D are float32 throughout, but halves throughout,
including sums, where the device has cooperative matrices (vulkan-shaders/conv2d_mm.comp, conv3d_mm.comp). Such outputs
are recognised because all of them are halves; they have no definition unless float32 explains them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from gguf_verify.llama.node import F16, F32, Array, Doubles, Node, Operand, demand, parameters

from .arithmetic import arithmetic, summed
from .im2col import Axis, Slices, taps
from .judging import Judged, Operation, within
from .random_inputs import floats

#: Operations that Vulkan computes as products of matrices.
_BY_MATRICES = ("CONV_2D", "CONV_3D", "CONV_TRANSPOSE_2D")
#: Combines one tap's weights with the inputs that it reads.
Term = Callable[[Doubles, Doubles], Doubles]


def _sources(node: Node, rounds: bool = True) -> tuple[Doubles, Doubles, str]:
    """Return kernel, input and the definition's name."""
    kernel, image = node.source(0), node.source(1)
    demand(kernel.type_id in (F32, F16), f"{node.op} by a kernel of {kernel.type}")
    node.floats(1)
    x = image.values
    if kernel.type_id == F16 and rounds and node.backend == "CPU":
        with np.errstate(all="ignore"):
            return kernel.values, image.data.astype(np.float16).astype(np.float64), "f32 sums of halves"
    return kernel.values, x, "f32"


def _matrices(node: Node) -> None:
    halves = node.backend == "CUDA" and node.op != "CONV_TRANSPOSE_2D" and node.source(0).type_id == F16
    demand(not halves, f"{node.op} by a kernel of F16 on CUDA, which may round the input")


def _halves(values: Array) -> Doubles:
    rounded: Doubles = values.astype(np.float16).astype(np.float64)
    return rounded


def _mixed(weights: Doubles, read: Doubles) -> Doubles:
    """Return Σ_c w[f, c]·x[n, c, ...]."""
    flat = read.reshape(*read.shape[:2], -1)
    return (weights @ flat).reshape(read.shape[0], len(weights), *read.shape[2:])


def _own(weights: Doubles, read: Doubles) -> Doubles:
    """Return w[c, 0]·x[n, c, ...]."""
    return weights.reshape(-1, *(1 for _ in read.shape[2:])) * read


def _tap(kernel: Doubles, at: tuple[int, ...]) -> Doubles:
    place: tuple[slice | int, ...] = (slice(None), slice(None), *at)
    return kernel[place]


class _Sums:
    """Σt, Σ|t| and Σt² of products."""

    def __init__(self, shape: Sequence[int], of: Term) -> None:
        self._of = of
        self._held = [np.zeros(shape) for _ in range(3)]

    def add(self, at: Slices, weights: Doubles, read: Doubles) -> None:
        """Add products of weights and inputs to these outputs."""
        place = (slice(None), slice(None), *at)
        changes: tuple[Callable[[Doubles], Doubles], ...] = (np.positive, np.abs, np.square)
        for held, change in zip(self._held, changes, strict=True):
            held[place] += self._of(change(weights), change(read))

    def judged(self, node: Node, definition: str, terms: int) -> Judged:
        """Judge the output [image, channel, space], each a sum of this number of terms."""
        a = arithmetic(node.backend)
        total, magnitude, squares = (each.reshape(node.output.shape) for each in self._held)
        bound, spread = summed(total, magnitude, squares, terms, 1)
        made = within(node, definition, total, bound + 2 * terms * a.tiny, spread + a.tiny)
        matrices = node.backend == "Vulkan" and node.op in _BY_MATRICES
        in_halves = matrices and not made.passed and np.array_equal(node.output.values, _halves(node.output.data))
        demand(not in_halves, f"{node.op} by cooperative matrices")
        return made


def _convolved(node: Node, kernel: Doubles, x: Doubles, axes: Sequence[Axis], of: Term, definition: str) -> Judged:
    """Judge a convolution of x [image, channel, space] by a kernel [output channel, input channel, taps]."""
    shape = (len(x), len(kernel), *(axis.outputs for axis in axes))
    merged = shape if len(shape) == 4 else (shape[0] * shape[1], *shape[2:])
    demand(node.output.shape == merged, f"{node.op} of these shapes")
    sums = _Sums(shape, of)
    with np.errstate(all="ignore"):
        for at, out, into in taps(axes):
            sums.add(out, _tap(kernel, at), x[(slice(None), slice(None), *into)])
        return sums.judged(node, definition, int(np.prod(kernel.shape[1:])))


def _conv_2d(node: Node) -> Judged:
    _matrices(node)
    kernel, x, definition = _sources(node)
    demand(kernel.shape[1] == x.shape[1], "CONV_2D of these channels")
    return _convolved(node, kernel, x, _plane(node, kernel, x), _mixed, definition)


def _conv_2d_dw(node: Node) -> Judged:
    kernel, x, definition = _sources(node, rounds=False)
    demand(kernel.shape[:2] == (x.shape[1], 1), "CONV_2D_DW of these channels")
    return _convolved(node, kernel, x, _plane(node, kernel, x), _own, definition)


def _plane(node: Node, kernel: Doubles, x: Doubles) -> list[Axis]:
    s0, s1, p0, p1, d0, d1 = (node.integer(i) for i in range(6))
    return [Axis(x.shape[2], kernel.shape[2], s1, p1, d1), Axis(x.shape[3], kernel.shape[3], s0, p0, d0)]


def _conv_3d(node: Node) -> Judged:
    _matrices(node)
    kernel, x, definition = _sources(node)
    moves, (channels, images, filters) = [node.integer(i) for i in range(9)], (node.integer(i) for i in range(9, 12))
    fits = channels > 0 and len(kernel) == channels * filters and len(x) == channels * images
    demand(fits, "CONV_3D of these channels")
    axes = [Axis(x.shape[1 + i], kernel.shape[1 + i], *moves[2 - i :: 3]) for i in range(3)]
    kernel, x = kernel.reshape(filters, channels, *kernel.shape[1:]), x.reshape(images, channels, *x.shape[1:])
    return _convolved(node, kernel, x, axes, _mixed, definition)


def _transposed_2d(node: Node) -> Judged:
    _matrices(node)
    kernel, x, definition = _sources(node)
    stride = node.integer(0)
    return _transposed(node, kernel, x, (stride, stride), definition)


def _transposed_1d(node: Node) -> Judged:
    kernel, x, definition = _sources(node)
    demand(x.shape[:2] == (1, 1) and len(kernel) == 1, "CONV_TRANSPOSE_1D of these shapes")
    demand((node.integer(1), node.integer(2)) == (0, 1), "CONV_TRANSPOSE_1D with padding or dilation")
    return _transposed(node, kernel[0][:, :, None], x[0][:, :, None], (1, node.integer(0)), definition)


def _transposed(node: Node, kernel: Doubles, x: Doubles, strides: tuple[int, int], definition: str) -> Judged:
    """Judge a transposed convolution of x [image, channel, height, width].

    The kernel is [input channel, output channel, height, width].
    """
    demand(len(kernel) == x.shape[1] and min(strides) > 0, f"{node.op} of these shapes")
    sizes = [(i - 1) * s + k for i, s, k in zip(x.shape[2:], strides, kernel.shape[2:], strict=True)]
    shape = (len(x), kernel.shape[1], *sizes)
    expected = shape if node.op == "CONV_TRANSPOSE_2D" else (1, 1, shape[1], shape[3])
    demand(node.output.shape == expected, f"{node.op} of these shapes")
    axes = [Axis(n, k, s) for n, k, s in zip(sizes, kernel.shape[2:], strides, strict=True)]
    sums = _Sums(shape, _mixed)
    with np.errstate(all="ignore"):
        # a convolution of the output would read these pairs
        for at, out, into in taps(axes):
            sums.add(into, _tap(kernel, at).T, x[(slice(None), slice(None), *out)])
        overlapping = [-(-axis.kernel // axis.stride) for axis in axes]
        return sums.judged(node, definition, len(kernel) * int(np.prod(overlapping)))


# image, channels, filters, height, width, kernel; strides, paddings, dilations: width first
_PLANES = (
    (1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 1, 1), (2, 3, 4, 7, 9, 3, 3, 1, 1, 1, 1, 1, 1),
    (1, 5, 2, 11, 8, 2, 3, 2, 3, 0, 2, 2, 1), (1, 16, 9, 6, 5, 3, 5, 1, 2, 4, 3, 1, 2),
)  # fmt: skip


def _kernels(rng: np.random.Generator, shape: Sequence[int]) -> tuple[Array, Array]:
    values = floats(rng, shape, 1.0)
    return values, values.astype(np.float16)


def _draw_2d(rng: np.random.Generator) -> Iterator[Node]:
    for n, c, f, h, w, kh, kw, *moves in _PLANES:
        size = (n, f, *(Axis(*each).outputs for each in ((h, kh, *moves[1::2]), (w, kw, *moves[::2]))))
        for kernel in _kernels(rng, (f, c, kh, kw)):
            image = Operand.of(floats(rng, (n, c, h, w), 1.0))
            yield Node("CONV_2D", (Operand.of(kernel), image), Operand.blank(F32, *size), parameters(*moves))
        turned = Operand.of(floats(rng, (n, h, w, c), 1.0)).permuted(2, 0, 1, 3)
        yield Node("CONV_2D", (Operand.of(kernel), turned), Operand.blank(F32, *size), parameters(*moves))


def _draw_2d_dw(rng: np.random.Generator) -> Iterator[Node]:
    for n, c, _, h, w, kh, kw, *moves in _PLANES:
        high, wide = (Axis(*each).outputs for each in ((h, kh, *moves[1::2]), (w, kw, *moves[::2])))
        for kernel in _kernels(rng, (c, 1, kh, kw)):
            given = (Operand.of(kernel), Operand.of(floats(rng, (n, c, h, w), 1.0)))
            yield Node("CONV_2D_DW", given, Operand.blank(F32, n, c, high, wide), parameters(*moves))
        if c == 1:
            continue
        for kernel in _kernels(rng, (kh, kw, 1, c)):
            # channels first in memory; the output then has the same layout
            weights, image = Operand.of(kernel).permuted(3, 2, 0, 1), Operand.of(floats(rng, (n, h, w, c), 1.0))
            output = Operand.blank(F32, n, high, wide, c).permuted(2, 0, 1, 3)
            yield Node("CONV_2D_DW", (weights, image.permuted(2, 0, 1, 3)), output, parameters(*moves))


def _draw_3d(rng: np.random.Generator) -> Iterator[Node]:
    for n, c, f, sides, taps_, moves in (
        (1, 1, 1, (1, 1, 1), (1, 1, 1), (1, 1, 1, 0, 0, 0, 1, 1, 1)),
        (2, 3, 4, (4, 5, 7), (3, 2, 3), (1, 2, 1, 1, 0, 2, 1, 1, 1)),
        (1, 8, 3, (6, 7, 8), (2, 3, 3), (2, 1, 3, 0, 1, 1, 2, 1, 2)),
    ):
        size = [Axis(sides[i], taps_[i], *moves[2 - i :: 3]).outputs for i in range(3)]
        for kernel in _kernels(rng, (c * f, *taps_)):
            given = (Operand.of(kernel), Operand.of(floats(rng, (c * n, *sides), 1.0)))
            yield Node("CONV_3D", given, Operand.blank(F32, f * n, *size), parameters(*moves, c, n, f))


def _draw_transposed(rng: np.random.Generator) -> Iterator[Node]:
    for c, f, length, kernel, stride in ((1, 1, 1, 1, 1), (5, 3, 7, 4, 2), (33, 4, 20, 3, 5), (64, 6, 9, 8, 4)):
        for weights in _kernels(rng, (c, f, kernel)):
            given = (Operand.of(weights), Operand.of(floats(rng, (c, length), 1.0)))
            output = Operand.blank(F32, f, (length - 1) * stride + kernel)
            yield Node("CONV_TRANSPOSE_1D", given, output, parameters(stride, 0, 1))


def _draw_transposed_2d(rng: np.random.Generator) -> Iterator[Node]:
    for sizes in ((1, 1, 1, 1, 1, 1, 1, 1), (2, 5, 3, 4, 7, 2, 2, 2), (1, 40, 4, 5, 6, 3, 5, 2)):
        n, c, f, h, w, kh, kw, stride = sizes
        for weights in _kernels(rng, (c, f, kh, kw)):
            given = (Operand.of(weights), Operand.of(floats(rng, (n, c, h, w), 1.0)))
            output = Operand.blank(F32, n, f, (h - 1) * stride + kh, (w - 1) * stride + kw)
            yield Node("CONV_TRANSPOSE_2D", given, output, parameters(stride))


CONV_2D = Operation(op="CONV_2D", title="a convolution of images", judge=_conv_2d, draw=_draw_2d)
CONV_2D_DW = Operation(op="CONV_2D_DW", title="CONV_2D of each channel", judge=_conv_2d_dw, draw=_draw_2d_dw)
CONV_3D = Operation(op="CONV_3D", title="a convolution of volumes", judge=_conv_3d, draw=_draw_3d)
CONV_TRANSPOSE_1D = Operation(
    op="CONV_TRANSPOSE_1D", title="a transposed convolution of signals", judge=_transposed_1d, draw=_draw_transposed
)
CONV_TRANSPOSE_2D = Operation(
    op="CONV_TRANSPOSE_2D", title="a transposed convolution of images", judge=_transposed_2d, draw=_draw_transposed_2d
)
