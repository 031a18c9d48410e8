"""Declarations of kernels without a product: dequantizers, quantizers and repackings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...formats import FORMATS
from ...semantics.dequantization import ARITHMETICS, ONCE, applies
from ...semantics.quantization import encodings
from ...support.errors import UsageError
from ...support.near import nearest

if TYPE_CHECKING:
    from .declaration import Declaration

#: The keys that each task may declare besides formats, domain, operands, arrays and device.
_KEYS = {
    "dequantize": ("output", "arithmetic", "fast_math"),
    "quantize": ("activations", "takes", "ordered", "fast_math"),
    "repack": ("unpack", "packed"),
}


def check_task(declared: Declaration) -> None:
    """Check that a kernel without a product declares all that it needs, and nothing else. Raises UsageError."""
    more, task = dict(declared.more), declared.computes
    said = {
        "semantics": declared.semantics, "term": declared.term, "takes": declared.takes, "ordered": declared.ordered,
        "activations": declared.activations, "epilogue": declared.epilogue, "arithmetic": more.get("arithmetic"),
        "fast_math": more.get("fast_math"), "accumulates": declared.accumulates != "float32",
        "output": declared.output != "float32", "deterministic": not declared.deterministic,
    }  # fmt: skip
    for key, value in said.items():
        if value and key not in _KEYS[task]:
            may = ", ".join(_KEYS[task])
            raise UsageError(f"a kernel that computes {task!r} cannot declare {key}; it may declare {may}")
    if not isinstance(more.get("fast_math", False), bool):
        raise UsageError("fast_math must be true or false")
    if task == "dequantize":
        for name in declared.formats:
            _check_arithmetic(name, arithmetic_of(declared, name))
    elif task == "quantize":
        known = encodings()
        if declared.activations not in known:
            near = nearest(declared.activations, known)
            raise UsageError(
                f"activations {ascii(declared.activations)[:60]}: {near}a quantizer must declare its encoding, one of "
                f"{', '.join(known)}"
            )
        if declared.takes not in ("", "float32", "float16", "bfloat16"):
            raise UsageError(f"takes {ascii(declared.takes)[:60]} is not one of float32, float16, bfloat16")


def arithmetic_of(declared: Declaration, fmt: str) -> str:
    """Return the arithmetic that a dequantizer declares for a type: one name for all, or a table of types.

    Raises UsageError.
    """
    said: Any = dict(declared.more).get("arithmetic", ONCE)
    if isinstance(said, Mapping):
        if unknown := [name for name in said if name not in declared.formats]:
            raise UsageError(f"arithmetic is given for {ascii(unknown[0])[:60]}, which is not among its formats")
        said = said.get(fmt, ONCE)
    return str(said)


def _check_arithmetic(fmt: str, said: str) -> None:
    if said not in ARITHMETICS:
        raise UsageError(
            f"arithmetic {ascii(said)[:60]}: {nearest(said, ARITHMETICS)}it is one of {', '.join(ARITHMETICS)}"
        )
    if not applies(said, FORMATS[fmt]):
        raise UsageError(f"arithmetic {said} needs an offset, a minimum or a superblock, and {fmt} has none")
