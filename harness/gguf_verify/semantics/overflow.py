"""Why a product has no finite value, in words: a bare NaN sends people to the wrong place."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..formats import ElementFormat, WeightFormat
from .definition import Semantics
from .elements import round_to

Bytes = npt.NDArray[np.uint8]


def overflow_reason(semantics: Semantics, fmt: WeightFormat, w: Bytes, x: Bytes) -> str | None:
    """What is not finite first in a row of weights or of activations; None where everything is.

    Args:
        w: uint8[row bytes] of the weights.
        x: uint8[row bytes] of the activations, in the definition's format.
    """
    if isinstance(fmt, ElementFormat):
        return _of_elements(fmt, w, x.view(np.float32))
    with np.errstate(all="ignore"):
        blocks = w.reshape(-1, fmt.block_bytes)
        bad = ~fmt.finite(blocks)
    if bad.any():
        return f"the scale or minimum of weight block {int(np.argmax(bad))} is not finite"
    inside = semantics.inside
    if inside is not None:
        if not np.isfinite(x.view(np.float32)).all():
            return "an activation is not finite"
        semantics, x = inside, inside.bytes_of(x.view(np.float32)[None])[0]
    activations = semantics.activations
    if activations is None:
        return None if np.isfinite(x.view(np.float32)).all() else "an activation is not finite"
    members = activations.view(x.reshape(-1, activations.block_bytes))
    for name, meaning in (("d", "the scale d"), ("s", "s")):
        if name in (members.dtype.names or ()):
            bad = ~np.isfinite(np.atleast_1d(members[name]))
            if bad.any():
                return (
                    f"{meaning} of activation block {int(np.argmax(bad))} overflows here: it is a half, at most 65504"
                )
    return None


def _of_elements(fmt: ElementFormat, w: Bytes, x: npt.NDArray[np.float32]) -> str | None:
    bad = ~fmt.finite(w.reshape(-1, fmt.block_bytes))
    if bad.any():
        return f"weight {int(np.argmax(bad))} is not finite"
    if not np.isfinite(x).all():
        return "an activation is not finite"
    rounded = round_to(fmt.name, x)
    if not np.isfinite(rounded).all():
        at = int(np.argmin(np.isfinite(rounded)))
        limit = f", whose largest value is {fmt.largest:g}" if fmt.missing_range else ""
        return f"activation {at}, {x[at]:g}, overflows as {fmt.name}{limit}"
    return None
