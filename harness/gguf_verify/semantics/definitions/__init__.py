"""The definitions of "quantized weights × activations" that exist: each module makes one record.

They import formats and what lies beside this room in `semantics`. Nothing lists them by name: the registry finds them.
"""

from __future__ import annotations

from ...formats import WeightFormat
from ...support.registry import members
from ..definition import Semantics


def _place(semantics: Semantics) -> tuple[bool, bool, bool, str]:
    """Those of any kernel first, then those of llama.cpp's CUDA and CPU backends; unquantized weights last."""
    of_cpu = not (semantics.any_format or semantics.cuda_path)
    return semantics.of_elements, not semantics.any_format, of_cpu, semantics.name


SEMANTICS: dict[str, Semantics] = {s.name: s for s in sorted(members(__name__, Semantics), key=_place)}


def llama_cpu_semantics(fmt: WeightFormat) -> Semantics:
    """What llama.cpp's CPU backend computes for a weight format (its `vec_dot_type`, checked against the library)."""
    return SEMANTICS[fmt.llama.cpu]


__all__ = ["SEMANTICS", "llama_cpu_semantics"]
