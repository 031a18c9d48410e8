"""The existing definitions of "quantized weights × activations": each module makes one record.

A module also has the encoding and the term of its definition if no other definition shares them; shared ones are in
`encodings` and `terms`. It may import formats and the modules of `semantics` outside this package. The registries find
the records; no list names them.
"""

from __future__ import annotations

from ...formats.tensor_types import WeightFormat
from ...support.registry import members
from ..definition import Semantics
from ..encoding import Encoding
from ..term import Term

_TERM: type[Term] = Term  # type: ignore[type-abstract]  # subclasses are found, too
_ENCODINGS, _TERMS = (f"{__name__.rpartition('.')[0]}.{shared}" for shared in ("encodings", "terms"))


def _place(semantics: Semantics) -> tuple[bool, bool, bool, str]:
    """Return the sort key: definitions of any kernel, llama.cpp's CUDA and CPU backends, unquantized weights."""
    of_cpu = not (semantics.any_format or semantics.cuda_path)
    return semantics.of_elements, not semantics.any_format, of_cpu, semantics.name


SEMANTICS: dict[str, Semantics] = {s.name: s for s in sorted(members(__name__, Semantics), key=_place)}
ENCODINGS: dict[str, Encoding] = {
    e.name: e
    for e in sorted([*members(_ENCODINGS, Encoding), *members(__name__, Encoding)], key=lambda e: (e.quantizes, e.name))
}
TERMS: dict[str, Term] = {
    t.name: t
    for t in sorted(
        [*members(_TERMS, _TERM), *members(__name__, _TERM)],
        key=lambda t: (not t.of_values, t.name),
    )
}


def llama_cpu_semantics(fmt: WeightFormat) -> Semantics:
    """Return the definition of llama.cpp's CPU backend for a weight format (`vec_dot_type`, checked against the
    library).
    """
    return SEMANTICS[fmt.llama.cpu]


__all__ = ["ENCODINGS", "SEMANTICS", "TERMS", "llama_cpu_semantics"]
