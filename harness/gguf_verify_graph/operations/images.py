"""Images: UPSCALE to other sizes, POOL_1D and POOL_2D.

    UPSCALE    nearest     y[i] = x[⌊i/s⌋] in each dimension, with the float32 s = (new size)/(old size)
               bilinear    between the four values around p = (i + ½)/s - ½ in dimensions 0 and 1, p clamped to the
                           image; with aligned corners p = i/s and s = (new size - 1)/(old size - 1)
    POOL       the largest of a window's values that lie in the row or image, or their sum divided by their number
               (POOL_1D) or by the window's size (POOL_2D). Window, step and padding are op_params.

(ggml-cpu/ops.cpp, ggml_compute_forward_upscale_f32, _pool_1d_ksp, _pool_2d; ggml-cuda/upscale.cu, pool2d.cu;
vulkan-shaders/upscale.comp, pool2d.comp; llama.cpp v0.5.0.)

    nearest     The CPU divides with one rounding, so its indices are known. Elsewhere an index is any integer part of a
                quotient within the backend's ulps; a quotient by a power of two is assumed exact.
    bilinear    Four terms, each rounded at most four times and added three times: bound 7·u·Σ|t|. The CPU's positions
                are computed here by the same steps. Elsewhere they have the ulps of the division and u of the
                subtrahend as error; the resulting change of the value is computed at the four corners of the possible
                positions, and doubled, since a value may lie beyond them if a new pair of pixels begins in between.
    averages    On the CPU one by one in float32 and one division: u·Σ|s| over the partial sums s. Elsewhere a sum of k
                products with a rounded 1/k: (k + 1)·u·Σ|x|/k, plus the ulps of the division.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import product

import numpy as np
import numpy.typing as npt

from gguf_verify.llama.node import F16, F32, Array, Doubles, Node, NoDefinition, Operand, Sizes, demand, parameters
from gguf_verify.semantics.sums import UNIT_ROUNDOFF

from .arithmetic import ULP, Arithmetic, arithmetic
from .judging import Judged, Operation, equal, within
from .random_inputs import Shape, floats

Indices = npt.NDArray[np.intp]
_NEAREST, _BILINEAR, _ALIGNED = 0, 1, 1 << 8
_MAX, _AVERAGE = 0, 1
_LOWEST = float(np.finfo(np.float32).min)


def _scales(x: Operand, out: Operand, aligned: bool) -> list[np.float32]:
    """Return new over old sizes, in the order of ggml's dimensions."""
    scales = [np.float32(m) / np.float32(n) for n, m in zip(x.ne, out.ne, strict=True)]
    for i in range(2):
        if aligned and x.ne[i] > 1 and out.ne[i] > 1:
            scales[i] = np.float32(out.ne[i] - 1) / np.float32(x.ne[i] - 1)
    return scales


def _nearest(n: int, m: int, scale: np.float32, ulps: float) -> list[Indices]:
    """Return the indices of m values among n: the least and the greatest ones for a division with this error."""
    quotient = np.arange(m, dtype=np.float32) / scale
    exact = not ulps or np.frexp(scale)[0] == 0.5  # a power of two
    ends = [quotient] if exact else [quotient * (1 + sign * (ulps + 0.5) * ULP) for sign in (-1, 1)]
    return [np.minimum(np.floor(q.astype(np.float64)).astype(np.intp), n - 1) for q in ends]


def _upscale(node: Node) -> Judged:
    node.floats(0)
    x, out, mode, a = node.source(0), node.output, node.integer(0), arithmetic(node.backend)
    demand(mode in (_NEAREST, _NEAREST | _ALIGNED, _BILINEAR, _BILINEAR | _ALIGNED), f"UPSCALE by the mode {mode}")
    demand(all(x.ne) and all(out.ne), "UPSCALE of nothing")
    scales = _scales(x, out, bool(mode & _ALIGNED))
    ulps = 0.0 if node.backend == "CPU" else a.division
    choices = [_nearest(n, m, s, ulps) for n, m, s in zip(x.ne, out.ne, scales, strict=True)]
    if not mode & _BILINEAR:
        answers = [x.data[np.ix_(*at[::-1])] for at in product(*(_distinct(each) for each in choices))]
        return equal(node, "nearest", *answers)
    planes = x.values[np.ix_(choices[3][0], choices[2][0])]
    if any(len(_distinct(each)) > 1 for each in choices[2:]):
        raise NoDefinition("UPSCALE of dimensions 2 and 3 by a quotient that may be rounded to either side")
    return _bilinear(node, planes, scales, 0.0 if mode & _ALIGNED else 0.5, ulps)


def _distinct(choices: list[Indices]) -> list[Indices]:
    return choices[:1] if all((each == choices[0]).all() for each in choices) else choices


def _bilinear(node: Node, planes: Doubles, scales: list[np.float32], offset: float, ulps: float) -> Judged:
    half = np.float32(offset)
    positions, errors = [], []
    for i in range(2):
        quotient = (np.arange(node.output.ne[i], dtype=np.float32) + half) / scales[i]
        positions.append((quotient - half).astype(np.float64))
        # this quotient has half an ulp of error, and so have the subtractions here and on the device
        errors.append((ulps + 0.5) * ULP * np.abs(quotient) + 2 * UNIT_ROUNDOFF * np.abs(quotient - half))
    with np.errstate(all="ignore"):
        exact = _between(planes, positions[1], positions[0])
        bound = 7 * UNIT_ROUNDOFF * _between(np.abs(planes), positions[1], positions[0])
        if ulps:
            corners = product(*((p - e, p + e) for p, e in zip(positions, errors, strict=True)))
            moved = [np.abs(_between(planes, y, x) - exact) for x, y in corners]
            bound = bound + 2 * np.max(moved, axis=0) + 4 * arithmetic(node.backend).tiny
    return within(node, "bilinear", exact, bound)


def _between(planes: Doubles, y: Doubles, x: Doubles) -> Doubles:
    """Return values of [..., rows, columns] at positions in rows and columns."""
    for axis, at in ((-2, y), (-1, x)):
        n = planes.shape[axis]
        low = np.floor(at)
        first = np.clip(low, 0, n - 1).astype(np.intp)
        second = np.clip(low + 1, 0, n - 1).astype(np.intp)
        share = np.clip(at - first, 0, 1)
        share = share[:, None] if axis == -2 else share
        planes = np.take(planes, first, axis) * (1 - share) + np.take(planes, second, axis) * share
    return planes


@dataclass
class _Windows:
    """Accumulated values of windows, one value at a time."""

    shape: Shape
    greatest: Doubles = field(init=False)
    total: Doubles = field(init=False)
    partial: Doubles = field(init=False)
    size: Doubles = field(init=False)
    count: Doubles = field(init=False)

    def __post_init__(self) -> None:
        self.greatest = np.full(self.shape, _LOWEST)
        self.total, self.partial, self.size, self.count = (np.zeros(self.shape) for _ in range(4))

    def take(self, x: Doubles, rows: Indices, columns: Indices) -> None:
        """Add the next value of each window; positions outside the image are skipped."""
        inside = ((rows >= 0) & (rows < x.shape[2]))[:, None] & ((columns >= 0) & (columns < x.shape[3]))
        values = x[:, :, np.clip(rows, 0, x.shape[2] - 1)[:, None], np.clip(columns, 0, x.shape[3] - 1)]
        self.greatest = np.where(inside, np.maximum(self.greatest, values), self.greatest)
        with np.errstate(all="ignore"):
            kept = np.where(inside, values, 0.0)
            self.total = self.total + kept
            self.partial += np.where(inside & (self.count > 0), np.abs(self.total), 0.0)
            self.size += np.abs(kept)
        self.count += inside


def _pooled(node: Node, window: tuple[int, int], step: tuple[int, int], around: tuple[int, int]) -> Judged:
    """Judge a pooling with a window of this number of columns and rows, its steps and paddings."""
    x, out, how, a = node.source(0), node.output, node.integer(0), arithmetic(node.backend)
    if x.type_id not in (F32, F16) or out.type_id != F32 or how not in (_MAX, _AVERAGE) or not all(x.ne):
        raise NoDefinition(f"{node.op} {how} of {x.type} into {out.type}")
    for n, k, s, p, m in zip(x.ne, window, step, around, out.ne, strict=False):
        if not (0 < k <= 2 * n and s > 0 and 0 <= p < k and n + 2 * p >= k and m == (n + 2 * p - k) // s + 1):
            raise NoDefinition(f"{node.op} of {n} values by {k}, {s}, {p} into {m}")
    demand(out.ne[2:] == x.ne[2:], f"{node.op} of {x.shape} into {out.shape}")
    values = x.values
    if how == _MAX and np.isnan(values).any():
        raise NoDefinition(f"{node.op} of NaN")
    seen = _Windows(out.shape)
    columns, rows = (np.arange(out.ne[i]) * step[i] - around[i] for i in range(2))
    for ky in range(window[1]):
        for kx in range(window[0]):
            seen.take(values, rows + ky, columns + kx)
    if how == _MAX:
        return equal(node, "greatest", seen.greatest.astype(np.float32))
    return _averaged(node, seen, window[0] * window[1], a)


def _averaged(node: Node, seen: _Windows, size: int, a: Arithmetic) -> Judged:
    count = np.maximum(seen.count, 1) if node.op == "POOL_1D" else np.float64(size)
    with np.errstate(all="ignore"):
        exact = seen.total / count
        if node.backend == "CPU":
            bound = UNIT_ROUNDOFF * (1 + size * UNIT_ROUNDOFF) * seen.partial / count + UNIT_ROUNDOFF * np.abs(exact)
        else:
            bound = ((size + 1) * UNIT_ROUNDOFF + a.division * ULP) * seen.size / count
    return within(node, "average", exact, bound + a.tiny * size)


def _pool_1d(node: Node) -> Judged:
    demand(node.source(0).ne[1] == node.output.ne[1], f"POOL_1D of {node.source(0).shape} into {node.output.shape}")
    return _pooled(node, (node.integer(1), 1), (node.integer(2), 1), (node.integer(3), 0))


def _pool_2d(node: Node) -> Judged:
    window, step, around = ((node.integer(i), node.integer(i + 1)) for i in (1, 3, 5))
    return _pooled(node, window, step, around)


def _draw_upscale(rng: np.random.Generator) -> Iterator[Node]:
    x = Operand.of(floats(rng, (2, 3, 5, 7)))
    for shape in ((2, 3, 10, 14), (2, 3, 13, 33), (2, 3, 3, 4), (4, 3, 5, 49), (2, 3, 1, 1), (2, 3, 20, 7)):
        for mode in (_NEAREST, _BILINEAR, _NEAREST | _ALIGNED, _BILINEAR | _ALIGNED):
            yield Node("UPSCALE", (x,), Operand.blank(F32, *shape), parameters(mode))
    turned = x.permuted(1, 0, 2, 3)
    for mode in (_NEAREST, _BILINEAR):
        yield Node("UPSCALE", (turned,), Operand.blank(F32, 2, 3, 14, 10), parameters(mode))


def _draw_pool(op: str, rng: np.random.Generator) -> Iterator[Node]:
    for shape in ((1, 1, 3, 33), (2, 3, 14, 17), (1, 1, 16, 512)):
        x = floats(rng, shape, 1.0)
        for k, s, p in ((2, 2, 0), (3, 1, 1), (3, 2, 2), (1, 1, 0)):
            ne: Sizes = (shape[3], shape[2], shape[1], shape[0])
            for how in (_MAX, _AVERAGE):
                yield _pool(op, x, ne, how, (k, s, p))
                yield _pool(op, x.astype(np.float16), ne, how, (k, s, p))


def _pool(op: str, x: Array, ne: Sizes, how: int, given: tuple[int, int, int]) -> Node:
    k, s, p = given
    rows, down = (k + 1, 1) if p else (k, s)  # also windows that are not square
    wide, high = (ne[0] + 2 * p - k) // s + 1, (ne[1] + 2 * p - rows) // down + 1
    if op == "POOL_1D":
        return Node(op, (Operand.of(x),), Operand.blank(F32, *ne[:1:-1], ne[1], wide), parameters(how, k, s, p))
    out = Operand.blank(F32, *ne[:1:-1], high, wide)
    return Node(op, (Operand.of(x),), out, parameters(how, k, rows, s, down, p, p))


UPSCALE = Operation(op="UPSCALE", title="images of other sizes", judge=_upscale, draw=_draw_upscale)
POOL_1D = Operation(
    op="POOL_1D", title="greatest or average of windows of rows", judge=_pool_1d, draw=partial(_draw_pool, "POOL_1D")
)
POOL_2D = Operation(
    op="POOL_2D", title="greatest or average of windows of images", judge=_pool_2d, draw=partial(_draw_pool, "POOL_2D")
)
