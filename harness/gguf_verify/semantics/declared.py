"""The definition that a kernel declares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .definition import Semantics, quantized_inside
from .definitions import SEMANTICS


def declared(
    name: str = "", *, activations: str = "", term: str = "", takes: str = "",
    accumulates: str | Mapping[str, Any] = "float32", output: str = "float32", epilogue: Sequence[str] = (),
) -> Semantics:  # fmt: skip
    """The definition of these names. Raises ValueError."""
    known = [s for s, one in SEMANTICS.items() if one.declarable]
    if name not in known:
        raise ValueError(
            f"semantics {ascii(name)[:60]} is not one of {', '.join(known)}, nor an Oracle (see "
            "harness/gguf_verify/kernels/foreign/api.py)"
        )
    found = SEMANTICS[name]
    if takes and found.activations is not None:
        found = quantized_inside(found)
    return found
