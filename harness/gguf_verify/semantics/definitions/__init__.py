"""The existing definitions of "quantized weights × activations": each module makes one record.

They may import formats and the modules of `semantics` outside this package. The registry finds them; no list names
them.
"""

from __future__ import annotations

from ...formats import WeightFormat
from ...support.registry import members
from ..definition import Semantics


def _place(semantics: Semantics) -> tuple[bool, bool, bool, str]:
    """Return the sort key: definitions of any kernel, llama.cpp's CUDA and CPU backends, unquantized weights."""
    of_cpu = not (semantics.any_format or semantics.cuda_path)
    return semantics.of_elements, not semantics.any_format, of_cpu, semantics.name


SEMANTICS: dict[str, Semantics] = {s.name: s for s in sorted(members(__name__, Semantics), key=_place)}


def llama_cpu_semantics(fmt: WeightFormat) -> Semantics:
    """Return the definition of llama.cpp's CPU backend for a weight format (`vec_dot_type`, checked against the
    library).
    """
    return SEMANTICS[fmt.llama.cpu]


__all__ = ["SEMANTICS", "llama_cpu_semantics"]
