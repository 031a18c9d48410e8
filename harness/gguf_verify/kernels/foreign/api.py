"""What the author of a kernel writes. This is the reference; docs/ has a tutorial.

    from gguf_verify import kernel

    @kernel(formats=["Q4_0"], semantics="q8_1")
    def my_gemm(weights, activations, shape):
        ...
        return y  # float32[M, N]

`gguf-verify MODEL.gguf --kernel FILE.py:my_gemm` verifies it. The function is called with

    weights       uint8[N, row bytes], the file's rows; or what `pack(rows, format)` made of them, once for a matrix
    activations   what the kernel takes: float32[M, K], or Q8_1 blocks uint8[M, K/32·36] (halves d and s, 32 codes)
    shape         Shape: format, m, n, k
    out           float32[M, N] to write into, only where the kernel declares out=True; its return value is then ignored

A kernel takes float32 activations where its semantics is "f32" or an `Oracle`, or where it quantizes them itself, which
it declares by takes="float32". Otherwise it takes Q8_1 blocks as its semantics defines them.

Arrays are NumPy's. The answer may be any array on the CPU (DLPack, `__array__`), or an array on a GPU that has
`__cuda_array_interface__` and `.get()` or `.cpu()`. The answer is read once and then overwritten. A kernel may also be
any callable object with the attributes `formats` and `semantics` and, where they are not the defaults, `ordered`,
`out`, `pack`, `takes` and `domain`.

A kernel promises to multiply any number of tokens M and rows N, and any K of whole blocks, unless it declares where it
works: domain={"M": 1} is a kernel for decoding, domain={"N": {"multiple": 64}, "K": {"multiple": 256, "most": 8192},
"architectures": ["sm_90"]} one with tiles and a card. Inside its domain it is tried at many shapes that no model has.

A kernel that computes something other than a definition of this project declares an `Oracle` as its semantics.

Public names are imported from the package: `from gguf_verify import Oracle, Shape, kernel`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ...formats import FORMATS
from ...semantics import OWN, SEMANTICS
from ...support.errors import UsageError
from ...support.near import meant, nearest
from ..domain import EVERYTHING, Domain, domain_of

#: Definitions of which `gguf_verify.semantics.exact` states an order.
_ORDERS = tuple(name for name, s in SEMANTICS.items() if s.order_known)
#: What `takes` says of activations that are not quantized.
FLOAT32 = "float32"


class Shape(NamedTuple):
    """The shape of a call: the weights' type ("Q4_0"), m tokens, n rows, k columns."""

    format: str
    m: int
    n: int
    k: int


Function = Callable[..., Any]


@dataclass(frozen=True)
class Oracle:
    """What a kernel computes where no definition of this project says it: the exact product y = a·wᵀ of two matrices.

    The author gives the matrices. gguf-verify multiplies them exactly and derives the rounding error bound itself.

    Args:
        weights: a function (rows uint8[n, bytes of any number of whole blocks], format) → float64[n, L], which treats
            each row by itself. None: the file's values, exactly.
        activations: a function (x as the kernel takes it) → float64[M, L]. None: the values that x holds.

    L is K, or up to 2·K: further columns are further terms, such as a minimum times a sum. Both functions must return
    finite values, and the same ones in a second call. They run in a process of their own, which never sees the kernel's
    outputs. Such a kernel is verified as what its author says. The report adds how far that is from each definition of
    `gguf_verify.semantics`, on the activations that the kernel takes. It is a mismatch if the oracle is far from all of
    them (NMSE above 0.01), if its terms cancel and so widen the bound, or if a few of its weights are not the file's.
    """

    weights: Function | None = None
    activations: Function | None = None

    def __post_init__(self) -> None:
        """Raises UsageError."""
        for name in ("weights", "activations"):
            value = getattr(self, name)
            if value is not None and not callable(value):
                raise UsageError(f"the oracle's {name} must be callable")


@dataclass(frozen=True)
class Declaration:
    """What a kernel declares about itself.

    Args:
        formats: names of the types of weights that it takes.
        semantics: the definition that it computes: "f32", or one whose activations are Q8_1; "own": an Oracle.
        ordered: it adds terms in the order of that definition, so its bits are judged, too.
        out: it writes into an array that it is given.
        domain: the numbers of tokens, rows and columns that it promises to multiply, and its GPUs.
        takes: its activations. "float32": a kernel of another semantics than f32 quantizes them itself, by that
            definition and IEEE arithmetic (s in any order of summation; with `ordered`, in the definition's). The name
            of a definition: that definition's blocks. "": those of its semantics, or float32 with an oracle.
    """

    formats: tuple[str, ...]
    semantics: str
    ordered: bool = False
    out: bool = False
    takes: str = ""
    domain: Domain = EVERYTHING

    def __post_init__(self) -> None:
        """Raises UsageError."""
        known = [name for name, s in SEMANTICS.items() if s.declarable]
        blocks = [name for name in known if SEMANTICS[name].activations is not None]
        own = self.semantics == OWN
        if self.semantics not in known and not own:
            raise UsageError(
                f"semantics {_short(self.semantics)} is not one of {', '.join(known)}, nor an Oracle; "
                f"{nearest(self.semantics, known)}--identify finds which definition a kernel computes"
            )
        if not self.formats:
            raise UsageError('it declares no formats: write, for example, formats = ["Q4_0"]')
        for name in self.formats:
            if name not in FORMATS:
                raise UsageError(f"format {_short(name)} is not one of {', '.join(FORMATS)}{meant(name, FORMATS)}")
            try:
                if not own:
                    SEMANTICS[self.semantics].uses_sum(FORMATS[name])
            except ValueError as error:
                raise UsageError(str(error)) from None
        if not isinstance(self.ordered, bool) or not isinstance(self.out, bool):
            raise UsageError("ordered and out must be True or False")
        if self.ordered and self.semantics not in _ORDERS:
            what = "an oracle" if own else self.semantics
            raise UsageError(f"no order of {what} is known: ordered goes with {', '.join(_ORDERS)}")
        if self.takes not in ("", FLOAT32, *(blocks if own else [self.semantics])):
            may = ", ".join((FLOAT32, *(blocks if own else [self.semantics])))
            raise UsageError(f"takes {_short(self.takes)} is not one of {may}{meant(self.takes, may.split(', '))}")

    @property
    def given(self) -> str:
        """What its activations are: "float32", or the definition whose blocks they are."""
        values = not self.takes if self.semantics == OWN else SEMANTICS[self.semantics].activations is None
        if values or self.takes == FLOAT32:
            return FLOAT32
        return self.takes or self.semantics


def _short(value: object) -> str:
    return ascii(value)[:60]


def strings(value: object, what: str) -> tuple[str, ...]:
    """A list of strings. Raises UsageError."""
    if not isinstance(value, list | tuple | set | frozenset) or not all(isinstance(v, str) for v in value):
        example = f": write {what} = [{json.dumps(value[:60])}]" if isinstance(value, str) else ""
        raise UsageError(f"{what} is not a list of strings{example}")
    return tuple(value)


def _named(semantics: object) -> str:
    """The name of a semantics: "own" for an Oracle. The word "own" without an Oracle becomes a name that is refused."""
    if isinstance(semantics, Oracle):
        return OWN
    return str(semantics) if semantics != OWN else f"{OWN} without an Oracle"


def declaration_of(kernel: Any) -> Declaration:
    """What a kernel declares by its attributes. Raises UsageError."""
    if not callable(kernel):
        raise UsageError(f"it is of type {type(kernel).__name__}, which is not callable")
    for needed in ("formats", "semantics"):
        if not hasattr(kernel, needed):
            raise UsageError(
                f'it declares no {needed}: put @gguf_verify.kernel(formats=["Q4_0"], semantics="f32") above it, with '
                "its own types and definition"
            )
    pack = getattr(kernel, "pack", None)
    if pack is not None and not callable(pack):
        raise UsageError("its pack is not callable")
    formats = strings(kernel.formats, "formats")
    ordered, out = getattr(kernel, "ordered", False), getattr(kernel, "out", False)
    domain = domain_of(getattr(kernel, "domain", {}))
    return Declaration(formats, _named(kernel.semantics), ordered, out, str(getattr(kernel, "takes", "")), domain)


def kernel(
    formats: Sequence[str], semantics: str | Oracle, ordered: bool = False, out: bool = False,
    pack: Function | None = None, takes: str = "", domain: dict[str, Any] | None = None,
) -> Callable[[Function], Function]:  # fmt: skip
    """Declare a function as a kernel: see this module's text and `Declaration`.

    Args:
        semantics: the name of a definition, or an Oracle.
        pack: (rows uint8[N, row bytes], format) → what the function takes as its weights.
        domain: where it promises to work, if not everywhere: see `gguf_verify.kernels.domain.domain_of`.

    Raises UsageError for a format or semantics that does not exist, and a domain that is none.
    """
    declared = Declaration(tuple(formats), _named(semantics), ordered, out, takes, domain_of(domain or {}))

    def declare(function: Function) -> Function:
        for name in ("formats", "ordered", "out", "takes"):
            setattr(function, name, getattr(declared, name))
        function.domain = declared.domain.plain()  # type: ignore[attr-defined]
        function.semantics = semantics  # type: ignore[attr-defined]
        function.pack = pack  # type: ignore[attr-defined]
        return function

    return declare
