"""Faults of integer sums that are too narrow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt

from ..fault import Case, LazyVariants, Variants, fault
from ..operands import Doubles, Predicted

Places = npt.NDArray[np.intp]


def _wrapped(v: Doubles, bits: int) -> Doubles:
    half = 2.0 ** (bits - 1)
    return np.asarray(np.mod(v + half, 2 * half) - half)


@fault(
    "integers-too-narrow",
    "integer sums overflow",
    "add products of codes in 32 bits",
    applies=lambda c: c.quantized and not c.parts.half_products,
    many=True,
)
def integers_too_narrow(case: Case) -> LazyVariants:
    """Yield sums of a few products of a term, or of all, in 8 or 16 bits.

    The kernel chooses which products an instruction adds first, and what it adds to codes to make them unsigned.
    """
    p = case.parts
    scale = p.e.T[:, :, None] * p.d.T[:, None, :]
    second = p.s.T[:, :, None] * p.m.T[:, None, :]

    def with_sums(sums: Doubles) -> Predicted:
        return Predicted((scale * sums + second).sum(axis=0), case.right.bound)

    a, values = p.a.transpose(1, 0, 2), p.q.shape[2]
    at = np.arange(values)
    groups = {f"all {values} products": at[None]}
    for few in (2, 4):
        groups[f"{few} neighbouring products"] = at.reshape(-1, few)
        groups[f"{few} products, {values // few} values apart"] = at.reshape(few, -1).T
    for shift in (0, 128) if case.fmt.bits == 8 and case.fmt.low < 0 else (0,):
        q = (p.q + shift).transpose(1, 2, 0)
        rest = shift * a.sum(axis=-1)[..., None]
        codes = f" of codes plus {shift}" if shift else ""
        for words, together in groups.items():
            largest = max(float(np.abs(np.matmul(a[..., g], q[:, g])).max(initial=0.0)) for g in together)
            for bits in (16, 8):
                high = 2.0 ** (bits - 1) - 1
                if largest <= high:
                    continue

                def made(
                    narrow: Callable[[Doubles], Doubles],
                    together: Places = together,
                    q: Doubles = q,
                    rest: Doubles = rest,
                ) -> Predicted:
                    return with_sums(sum(narrow(np.matmul(a[..., g], q[:, g])) for g in together) - rest)

                def wrapped(v: Doubles, bits: int = bits) -> Doubles:
                    return _wrapped(v, bits)

                def clipped(v: Doubles, high: float = high) -> Doubles:
                    return np.clip(v, -high - 1, high)

                yield f"sums of {words}{codes} wrap at {bits} bits", partial(made, wrapped)
                yield f"sums of {words}{codes} saturate at {bits} bits", partial(made, clipped)


@fault(
    "least-code",
    "the code -128 is read as another: a byte cannot hold its negative",
    "compute magnitudes in a wider type, or keep the sign with one operand",
    applies=lambda c: c.quantized or c.fmt.bits == 8,
)
def least_code(case: Case) -> Variants:
    p = case.parts
    for what, codes in (("weights", p.q), ("activations", p.a)):
        least = codes == -128
        if least.any() and (what == "activations" or case.fmt.bits == 8):
            for taken in (128, 127, -127, 0):
                other = np.where(least, float(taken), codes)
                made = replace(p, q=other) if what == "weights" else replace(p, a=other).with_sums()
                yield f"of {what}, for {taken}", made
            # As if signs were moved to it from the other operand: -(-128) is -128.
            a, q = (p.a, p.q * least) if what == "weights" else (p.a * least, p.q)
            meets = replace(p, a=np.where(a < 0, a, 0.0), q=np.where(q < 0, q, 0.0), m=np.zeros_like(p.m)).predicted()
            both = Predicted(case.right.exact - 2 * meets.exact, case.right.bound)
            yield f"of {what}, where it meets a negative code", both
