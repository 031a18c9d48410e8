"""Exact results without bounds, for passes over a graph without judgement."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ..formats.block import BlockFormat
from ..formats.element import ElementFormat
from ..formats.tensor_types import WeightFormat
from ..support.arrays import get
from ..support.stages import counted
from ..support.threads import each
from .accumulation import IN_FLOAT32
from .agreement import compare_sums
from .definition import Semantics
from .device import Device
from .elements import exact_elements
from .exact import own_weights, product, unstored
from .narrow import stored_value
from .placed import parts
from .screen import Screen, screen_of
from .sums import Doubles
from .values import term_values

Bytes = npt.NDArray[np.uint8]

#: Values of weights that NumPy decodes at a time.
_VALUES = 1 << 20


@counted("exact product")
def exact_result(
    semantics: Semantics, fmt: WeightFormat, w: Bytes, x: Bytes, threads: int = 1, device: Device | None = None
) -> Doubles:
    """Compute the exact result of `product`, in the type of the definition's output, by matrix products if possible.

    Args:
        semantics, fmt, w, x, threads: as in `product`.
        device: the device that computes it; None: NumPy. A product that is not one of matrices is computed by NumPy.

    Returns:
        NumPy's float64[M, N].

    Raises EnvironmentFault if the device's numbers are not NumPy's, or its memory does not suffice; KernelFault for an
    author's oracle.
    """
    if isinstance(fmt, ElementFormat):
        return exact_elements(fmt.name, w, np.ascontiguousarray(x).view(np.float32), threads)
    if semantics.epilogue is not None:
        plain = product(replace(semantics, output="float32"), fmt, w, x, threads=threads)
        return stored_value(plain.exact, semantics.output)
    return stored_value(_exact(semantics, fmt, w, x, threads, device), semantics.output)


def _exact(semantics: Semantics, fmt: BlockFormat, w: Bytes, x: Bytes, threads: int, device: Device | None) -> Doubles:
    if semantics.inside is not None:
        inside = semantics.inside
        return _exact(inside, fmt, w, inside.bytes_of(semantics.values_of(x)), threads, device)
    if semantics.oracle is not None:
        own = semantics.oracle.activations(x)
        return np.concatenate([own @ v.T for v in own_weights(semantics.oracle, fmt, w, own.shape[1])], axis=1)
    term, fmt = semantics.term, semantics.term.reads(fmt)
    if not term.is_bilinear(fmt):
        return unstored(semantics, fmt, w, x, None, threads).exact
    plain = replace(semantics, accumulation=IN_FLOAT32, output="float32")
    with np.errstate(all="ignore"):
        screen = screen_of(plain, fmt, w.shape[1], x)
    if device is not None:
        return _on_device(screen, plain, fmt, w, device)
    step = max(1, _VALUES // screen.columns)

    def one(start: int) -> Doubles:
        with np.errstate(all="ignore"):
            return screen.exact(w[start : start + step])

    return np.concatenate(each(one, range(0, len(w), step), threads), axis=1)


def _on_device(screen: Screen, semantics: Semantics, fmt: BlockFormat, w: Bytes, device: Device) -> Doubles:
    there, k = screen.on(device), screen.columns
    out: Doubles = np.empty((len(screen.a), len(w)))
    with np.errstate(all="ignore"), device.faults():
        step = device.rows(k, 4 * len(screen.a))
        for start, part, rows in parts(device, fmt, w, step, not semantics.term.of_values):
            if rows is None:
                out[:, start : start + step] = screen.exact(part)
                continue
            made = get(there.exact(rows))
            drawn = device.sample(len(part))
            if len(drawn):
                compare_sums(semantics, fmt, made[:, drawn], screen.product(part[drawn]), k, k // term_values(fmt))
            out[:, start : start + step] = made
    return out
