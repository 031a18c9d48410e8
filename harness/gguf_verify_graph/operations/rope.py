"""ROPE: pairs of values are rotated by an angle that grows with a token's position. ROPE_BACK: by minus that angle.

    y1 = s·(x1·cos θ - x2·sin θ)        y2 = s·(x1·sin θ + x2·cos θ)        other columns are copied

`_angles` defines the columns of a pair, θ and s, and the error dθ of θ. Half values are widened to float32, and results
are rounded once (ggml-cpu/ops.cpp: rotate_pairs; llama.cpp v0.5.0).

    bound   An error dθ of the angle rotates (y1, y2) further: y1 moves by |y2|·sin dθ + |y1|·(1 - cos dθ), y2 likewise;
            from a quarter and a half turn on, by |y2| and 2·|y1|. Sine and cosine have an error of an ulp (glibc
            manual, "Errors in Math Functions"), or the one that the backend states; their products with s, those with x
            and their sum are rounded: s·(|x1·cos θ| + |x2·sin θ|)·(2^-23 + 2·u) + u·|y1|. The error of s is added.
            Copied columns have none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import pi

import numpy as np

from gguf_verify.llama.node import F16, F32, Array, Doubles, Node, NoDefinition, Operand, parameters
from gguf_verify.semantics.sums import UNIT_ROUNDOFF

from ._angles import IMROPE, MROPE, NEOX, NORMAL, VISION, Rotation, rotation
from .arithmetic import ULP, Arithmetic, arithmetic
from .drawing import floats
from .judging import UNDERFLOW, Judged, within
from .operation import Operation

#: Angle from which on a reduction in float32 leaves more than 1/8 beyond the quarter turns, 2·u·|θ|, for which
#: polynomials of sine and cosine are designed: their results beyond are unknown.
_REDUCED = 2.0**20


def _judge(node: Node) -> Judged:
    given, out, a = node.source(0), node.output, arithmetic(node.backend)
    if given.type_id not in (F32, F16) or out.type_id != given.type_id or out.shape != given.shape:
        raise NoDefinition(f"{node.op} of {given.type} {given.ne} with an output of {out.type} {out.ne}")
    with np.errstate(all="ignore"):
        exact, of = given.values.copy(), rotation(node)
        if not a.doubles and not np.abs(of.angle).max(initial=0.0) <= _REDUCED:
            raise NoDefinition(f"{node.op} by angles of more than {_REDUCED:g} on {node.backend}")
        bound = np.zeros(exact.shape)
        for columns, y, off in _rotated(exact[..., of.first], exact[..., of.second], of, a, node.op == "ROPE_BACK"):
            if out.type_id == F16:  # rounding to half, which does not apply to copied columns
                off = off + 2.0**-11 * (np.abs(y) + off) + 2.0**-25
                y = np.where(np.abs(y) >= 65520, np.copysign(np.inf, y), y)
            exact[..., columns], bound[..., columns] = y, off
        widened = replace(node, output=Operand.of(out.values.astype(np.float32)))
        return within(widened, out.type.lower(), exact, bound)


def _rotated(
    x1: Doubles, x2: Doubles, of: Rotation, a: Arithmetic, back: bool
) -> Iterator[tuple[Array, Doubles, Doubles]]:
    """Return the columns of the first and second values of pairs, their expected values, and their errors."""
    angle, off = of.angle[:, None], of.off[:, None]
    if not a.doubles:
        off = off + np.where(np.abs(angle) > pi, 2 * UNIT_ROUNDOFF * np.abs(angle), 0.0)
    cos, sin = of.scale * np.cos(angle), (-1 if back else 1) * of.scale * np.sin(angle)
    across, along = np.sin(np.minimum(off, pi / 2)), 1 - np.cos(np.minimum(off, pi))
    y1, y2 = x1 * cos - x2 * sin, x1 * sin + x2 * cos
    stated = a.angle * abs(of.scale) * (np.abs(x1) + np.abs(x2))
    of_first, of_second = np.abs(x1 * cos) + np.abs(x2 * sin), np.abs(x1 * sin) + np.abs(x2 * cos)
    for columns, y, other, parts in ((of.first, y1, y2, of_first), (of.second, y2, y1, of_second)):
        rounded = parts * (ULP + 2 * UNIT_ROUNDOFF) + (UNIT_ROUNDOFF + of.scale_off) * np.abs(y) + stated
        yield columns, y, np.abs(other) * across + np.abs(y) * along + rounded + 4 * max(a.tiny, UNDERFLOW)


def _parameters(
    d: int,
    mode: int,
    base: float = 10000.0,
    scale: float = 1.0,
    yarn: tuple[float, float, float, float] | None = None,
    sections: tuple[int, int, int, int] = (0, 0, 0, 0),
    context: int = 4096,
    offset: int = 0,
) -> bytes:
    """Return the parameters of a ROPE node. Args: yarn: ext_factor, attn_factor, beta_fast, beta_slow."""
    return parameters(0, d, mode, 0, context, base, scale, *(yarn or (0.0, 1.0, 32.0, 1.0)), *sections, offset)


def _draw(rng: np.random.Generator) -> Iterator[Node]:
    def node(
        shape: tuple[int, int, int, int],
        parameters: bytes,
        most: int = 4096,
        factors: int = 0,
        half: bool = False,
        each: int = 1,
    ) -> Node:
        x = floats(rng, shape, 1.0).astype(np.float16 if half else np.float32)
        positions = Operand.of(rng.integers(0, most, each * shape[1]).astype(np.int32))
        r = Operand.of(rng.uniform(0.5, 8, factors).astype(np.float32)) if factors else None
        return Node("ROPE", (Operand.of(x), positions, r), Operand.blank(F16 if half else F32, *shape), parameters)

    for mode in (NORMAL, NEOX):
        for shape, d in (((1, 1, 1, 2), 2), ((2, 3, 2, 16), 10), ((1, 7, 4, 128), 128), ((1, 5, 3, 80), 64)):
            yield node(shape, _parameters(d, mode))
            yield node(shape, _parameters(d, mode, 500000.0), 1 << 20, d // 2)
            yield node(shape, _parameters(d, mode, 10000.0, 0.25), half=True)
            for yarn in ((1.0, 1.0, 32.0, 1.0), (0.7, 0.9, 16.0, 2.0)):
                yield node(shape, _parameters(d, mode, 1e6, 0.0625, yarn), 1 << 17)
        yield node((1, 6, 2, 64), _parameters(64, mode), 2**31 - 1)
        yield node((1, 4, 2, 96), _parameters(64, mode, offset=16), half=True)
    sections = (11, 7, 9, 3)
    for mode in (MROPE, IMROPE):
        for shape, d in (((1, 4, 3, 64), 64), ((2, 3, 2, 100), 80)):
            for factors in (0, d // 2):
                yield node(shape, _parameters(d, mode, 1e6, sections=sections), 32768, factors, each=4)
            yield node(shape, _parameters(d, mode, sections=(4, 2, 3, 0)), half=True, each=4)
    for sections in ((8, 8, 8, 8), (5, 7, 0, 0)):
        yield node((1, 6, 3, 32), _parameters(16, VISION, sections=sections), 200, each=4)
    turned = Operand.of(floats(rng, (2, 5, 3, 32))).permuted(0, 2, 1, 3)
    positions = Operand.of(np.array([7, 8, 900], np.int32))
    yield Node("ROPE", (turned, positions), Operand.blank(F32, *turned.shape), _parameters(32, NEOX))


def _draw_back(rng: np.random.Generator) -> Iterator[Node]:
    for node in _draw(rng):
        yield replace(node, op="ROPE_BACK")


_AXES = ("sequence", "token", "head", "column")
ROPE = Operation(op="ROPE", title="pairs of values rotated by a token's position", judge=_judge, draw=_draw, axes=_AXES)
ROPE_BACK = Operation(op="ROPE_BACK", title="ROPE by minus its angle", judge=_judge, draw=_draw_back, axes=_AXES)
