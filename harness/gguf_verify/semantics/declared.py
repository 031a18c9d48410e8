"""The definition that a kernel declares: a name, or an encoding and a term, and the roundings behind them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast, get_args

from ..support.near import meant, nearest
from .accumulation import IN_FLOAT32, accumulation_of
from .definition import Output, Semantics, quantized_inside
from .definitions import ENCODINGS, SEMANTICS, TERMS
from .encoding import Encoding
from .encodings.values import BFLOAT16, FLOAT16
from .term import Term
from .terms.values import BFLOAT16_VALUES, HALF_VALUES

_OF_BLOCKS = (
    Semantics(
        name="f16",
        title="Σ half(a)·half(w), w dequantized",
        source="dequantize to half and multiply",
        encoding=FLOAT16,
        term=HALF_VALUES,
    ),
    Semantics(
        name="bf16",
        title="Σ bfloat16(a)·bfloat16(w), w dequantized",
        source="dequantize to bfloat16 and multiply",
        encoding=BFLOAT16,
        term=BFLOAT16_VALUES,
    ),
)
#: Every named definition that a kernel of quantized weights may declare.
DECLARABLE: dict[str, Semantics] = {
    **{name: s for name, s in SEMANTICS.items() if not s.of_elements},
    **{s.name: s for s in _OF_BLOCKS},
}
#: Types of values of activations.
VALUES = ("float32", "float16", "bfloat16")


def declared(
    name: str = "",
    *,
    activations: str = "",
    term: str = "",
    takes: str = "",
    accumulates: str | Mapping[str, Any] = "float32",
    output: str = "float32",
    epilogue: Sequence[str] = (),
) -> Semantics:
    """Compose the definition of a declaration.

    Args:
        name: one of DECLARABLE; or `activations` and `term`, of ENCODINGS and TERMS.
        takes: the type of the values that a kernel gets; activations are rounded to it first. If the encoding is one of
            blocks, the kernel encodes the values itself; if it is float32, the kernel multiplies them. "": the
            encoding's own type.
        accumulates: the accumulation of the terms: see `accumulation`.
        output: the type to which the result is rounded.
        epilogue: names of the operations that are fused behind the product.

    Raises ValueError, in one line, for an unknown name and for a contradiction.
    """
    if name and (activations or term):
        raise ValueError("semantics names a whole definition: leave it out, or activations and term")
    if name:
        made = DECLARABLE.get(name)
        if made is None:
            near = meant(str(name), list(DECLARABLE))
            known = ", ".join(DECLARABLE)
            raise ValueError(f"semantics {ascii(name)[:60]} is not one of {known}, nor an Oracle{near}")
    else:
        made = composed(_of("activations", activations, ENCODINGS), _of("term", term, TERMS))
    if output not in get_args(Output):
        raise ValueError(f"output {ascii(output)[:60]} is not one of {', '.join(get_args(Output))}")
    sums = accumulation_of(accumulates)
    if sums is not IN_FLOAT32 or output != "float32":
        made = replace(made, accumulation=sums, output=cast(Output, output))
    if epilogue:
        from . import epilogue as module

        fused: Any = module
        made = replace(made, epilogue=fused.Epilogue(tuple(epilogue)))
    made = _handed(made, takes)
    if fault := _accumulation_fault(made.inside or made):
        raise ValueError(fault)
    return made


def composed(encoding: Encoding, term: Term) -> Semantics:
    """Return the definition of an encoding and a term, under its own name if it has one.

    Raises ValueError if they do not fit together.
    """
    if encoding.quantizes == term.of_values:
        fitting = [t.name for t in TERMS.values() if t.of_values != encoding.quantizes]
        what = "codes" if encoding.quantizes else "values"
        others = "values" if encoding.quantizes else "codes"
        raise ValueError(
            f"term {term.name} multiplies {others} of activations and {encoding.name} has {what}: with it go "
            f"{', '.join(fitting)}"
        )
    for known in DECLARABLE.values():
        if known.encoding is encoding and known.term is term:
            return known
    return Semantics(
        name=f"{encoding.name} × {term.name}",
        title=f"{term.title}; activations: {encoding.title}",
        source="a declaration",
        encoding=encoding,
        term=term,
    )


def declaration(semantics: Semantics) -> str:
    """Return the declaration of a definition, to be pasted: `semantics = "q8_1"`, or activations and term."""
    inner = semantics.inside or semantics
    if inner.name in DECLARABLE:
        said = [f'semantics = "{inner.name}"']
    else:
        said = [f'activations = "{inner.encoding.name}"', f'term = "{inner.term.name}"']
    if semantics.inside is not None:
        said.append(f'takes = "{semantics.encoding.dtype}"')
    if inner.accumulation.fraction:
        said.append(f"accumulates = {{ L = {inner.accumulation.products}, F = {inner.accumulation.fraction} }}")
    elif inner.accumulation is not IN_FLOAT32:
        said.append(f'accumulates = "{inner.accumulation.name}"')
    if semantics.output != "float32":
        said.append(f'output = "{semantics.output}"')
    return ", ".join(said)


def _of(what: str, name: str, known: Mapping[str, Any]) -> Any:
    if name in known:
        return known[name]
    if not name:
        raise ValueError(f"a definition needs semantics, or activations and term: it declares no {what}")
    raise ValueError(f"{what} {ascii(name)[:60]}: {nearest(str(name), list(known))}it is one of {', '.join(known)}")


def _accumulation_fault(semantics: Semantics) -> str | None:
    """Return why its accumulation does not fit its operands; None if it does."""
    if semantics.accumulation.by_value and not semantics.encoding.quantizes:
        return (
            f'accumulates "values" is of kernels of quantized activations, and {semantics.name} multiplies values: '
            "omit it"
        )
    if semantics.accumulation.name != "tensor":
        return None
    if semantics.encoding.quantizes:
        return (
            'accumulates "tensor" is of tensor cores that add floating-point products; those of codes add integers, '
            "which is exact: leave it out"
        )
    if "float32" in (semantics.encoding.dtype, semantics.term.weights):
        return (
            f"tensor cores multiply values of 16 bits, and {semantics.name} has float32: with accumulates "
            '"tensor" go semantics "f16" and "bf16", or their activations with another term of values'
        )
    return None


def _handed(semantics: Semantics, takes: str) -> Semantics:
    """Return the definition of a kernel that gets values of a type. Raises ValueError."""
    encoding = semantics.encoding
    if not takes or takes == encoding.dtype or takes in (encoding.name, semantics.name):
        return semantics
    if takes not in VALUES:
        may = ", ".join(dict.fromkeys((*VALUES, semantics.name) if encoding.quantizes else (encoding.dtype,)))
        raise ValueError(f"takes {ascii(takes)[:60]} is not one of {may}")
    if encoding.dtype == "float32":  # the kernel multiplies the values that it gets
        other = composed(ENCODINGS[takes], semantics.term)
        return replace(other, accumulation=semantics.accumulation, output=semantics.output, epilogue=semantics.epilogue)
    return quantized_inside(semantics, ENCODINGS[takes])


#: `f16`, added in tensor cores of any GPU with known L and F: the definition of the shipped kernels of that name.
IN_TENSOR_CORES = declared("f16", accumulates="tensor")
