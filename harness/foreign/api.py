"""What the author of a kernel writes.

    from harness.foreign import kernel

    @kernel(formats=["Q4_0"], semantics="q8_1")
    def my_gemm(weights, activations, shape):
        ...
        return y  # float32[M, N]

The function is called with

    weights       uint8[N, row bytes], the file's rows; or what `pack(rows, format)` made of them
    activations   float32[M, K] where the semantics is f32; else Q8_1 blocks, uint8[M, K/32·36]: halves d, s, 32 codes
    shape         Shape: format, m, n, k
    out           only where it was declared with out=True: float32[M, N] to write into; what it returns is then ignored

Arrays are NumPy's. The answer may be any array on the CPU (DLPack, `__array__`), or one on a GPU that says so by
`__cuda_array_interface__` and has `.get()` or `.cpu()`; it is read once and then overwritten. A kernel may also be any
object that can be called and has the attributes `formats` and `semantics` and, where they are not the defaults,
`ordered`, `out` and `pack`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..errors import UsageError
from ..formats import FORMATS, Q8_1
from ..semantics import SEMANTICS

#: Definitions of which `harness.semantics.oracle` states an order.
_ORDERS = ("f32", "q8_1")


class Shape(NamedTuple):
    """A call: the weights' type ("Q4_0"), and M tokens, N rows, K columns."""

    format: str
    m: int
    n: int
    k: int


@dataclass(frozen=True)
class Declaration:
    """What a kernel says of itself.

    Args:
        formats: names of the types of weights that it takes.
        semantics: the definition that it computes: f32, or one of those with Q8_1 activations.
        ordered: it accumulates in the order of that definition and is judged by its bits, too.
        out: it writes into an array that it is given.
    """

    formats: tuple[str, ...]
    semantics: str
    ordered: bool = False
    out: bool = False

    def __post_init__(self) -> None:
        """Raises UsageError."""
        known = [name for name, s in SEMANTICS.items() if name == "f32" or s.activations is Q8_1]
        if self.semantics not in known:
            raise UsageError(f"semantics {_short(self.semantics)} is none of {', '.join(known)}")
        if not self.formats:
            raise UsageError("it declares no formats")
        for name in self.formats:
            if name not in FORMATS:
                raise UsageError(f"format {_short(name)} is none of {', '.join(FORMATS)}")
            try:
                SEMANTICS[self.semantics].uses_sum(FORMATS[name])
            except ValueError as error:
                raise UsageError(str(error)) from None
        if not isinstance(self.ordered, bool) or not isinstance(self.out, bool):
            raise UsageError("ordered and out are True or False")
        if self.ordered and self.semantics not in _ORDERS:
            raise UsageError(f"no order of {self.semantics} is known: ordered goes with {', '.join(_ORDERS)}")


def _short(value: object) -> str:
    return ascii(value)[:60]


def strings(value: object, what: str) -> tuple[str, ...]:
    """A list of strings. Raises UsageError."""
    if not isinstance(value, list | tuple | set | frozenset) or not all(isinstance(v, str) for v in value):
        raise UsageError(f"{what} is no list of strings")
    return tuple(value)


def declaration_of(kernel: Any) -> Declaration:
    """What a kernel declares by its attributes. Raises UsageError."""
    if not callable(kernel):
        raise UsageError(f"it is {type(kernel).__name__}, which cannot be called")
    for needed in ("formats", "semantics"):
        if not hasattr(kernel, needed):
            raise UsageError(f"it declares no {needed} (see harness/foreign/api.py)")
    pack = getattr(kernel, "pack", None)
    if pack is not None and not callable(pack):
        raise UsageError("its pack cannot be called")
    formats = strings(kernel.formats, "formats")
    semantics = str(kernel.semantics)
    return Declaration(formats, semantics, getattr(kernel, "ordered", False), getattr(kernel, "out", False))


Function = Callable[..., Any]


def kernel(
    formats: Sequence[str], semantics: str, ordered: bool = False, out: bool = False, pack: Function | None = None
) -> Callable[[Function], Function]:
    """Declare a function as a kernel: see the module and `Declaration`.

    Args:
        pack: (rows uint8[N, row bytes], format) → what the function takes as its weights.

    Raises UsageError for a format or semantics that does not exist.
    """
    declared = Declaration(tuple(formats), semantics, ordered, out)

    def declare(function: Function) -> Function:
        for name in ("formats", "semantics", "ordered", "out"):
            setattr(function, name, getattr(declared, name))
        function.pack = pack  # type: ignore[attr-defined]
        return function

    return declare
