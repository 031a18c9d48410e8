"""What the author of a kernel writes. This is the reference; docs/ has a tutorial.

    from gguf_verify import kernel

    @kernel(formats=["Q4_0"], semantics="q8_1")
    def my_gemm(weights, activations, shape):
        ...
        return y  # float32[M, N]

`gguf-verify MODEL.gguf --kernel FILE.py:my_gemm` verifies it. The function is called with

    weights       uint8[N, row bytes], the file's rows; or what `pack(rows, format)` made of them for each matrix
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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ...formats import FORMATS
from ...formats.q8_1 import Q8_1
from ...semantics.accumulation import IN_FLOAT32
from ...semantics.declared import declared
from ...semantics.definition import OWN, Semantics
from ...semantics.definitions import SEMANTICS
from ...semantics.definitions.f32 import F32
from ...semantics.epilogues import OPERATIONS
from ...support.errors import UsageError
from ...support.near import meant, nearest
from ..domain import EVERYTHING, Domain, domain_of
from ..routing import LISTS
from .layouts import Layouts, layouts_of, no_operand
from .task_declaration import check_task

#: Definitions of which `gguf_verify.semantics.exact` states an order.
_ORDERS = ", ".join(name for name, s in SEMANTICS.items() if s.order_known) + ', and f16 with accumulates "float16"'
#: Types of values.
FLOAT32 = "float32"
HALVES = (FLOAT32, "float16", "bfloat16")


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


#: What kernels may compute, and in words.
COMPUTES = {
    "gemm": "a product of activations and quantized weights",
    "experts": "such products of the experts that each token names",
    "dequantize": "the values of quantized weights",
    "quantize": "quantized activations",
    "repack": "the same weights in another layout",
}
#: Those that multiply nothing.
TASKS = ("dequantize", "quantize", "repack")
#: Operands of experts: the experts of each token, and what engines make of that.
OF_EXPERTS = LISTS
#: What a kernel in Python may get its arrays as, and where these lie.
ARRAYS = ("numpy", "torch", "cupy", "jax")
DEVICES = ("cpu", "cuda")


@dataclass(frozen=True)
class Declaration:
    """What a kernel declares about itself.

    Args:
        formats: names of the types of weights that it takes.
        semantics: the definition that it computes, by its name; "own": an Oracle; "": that of `activations` and `term`.
        ordered: it adds terms in the order of that definition, so its bits are judged, too.
        out: it writes into an array that it is given.
        takes: its activations. "float32", "float16", "bfloat16": it gets values, and where its semantics quantizes
            them it does that itself, by IEEE arithmetic (s in any order of summation; with `ordered`, in the
            definition's). The name of a definition, with an oracle: that definition's blocks. "": as its semantics has
            them, or float32 with an oracle.
        domain: the numbers of tokens, rows and columns that it promises to multiply, and its GPUs.
        activations, term: the encoding of the activations and the formula of a block's term, of
            `gguf_verify.semantics.ENCODINGS` and `TERMS`, where no definition has a name for both.
        accumulates: how it adds: "float32", "values", "float16" or "tensor" (see `gguf_verify.semantics.declared`).
        output: the type of its outputs: "float32", "float16" or "bfloat16".
        epilogue: what is fused behind the product, in order.
        computes: one of `COMPUTES`.
        layouts: how its operands lie in memory, and memory of its own.
        arrays, device: what a kernel in Python gets its arrays as.
        deterministic: two calls give the same bits.
        more: what only some of `computes` declare.

    Raises UsageError.
    """

    formats: tuple[str, ...]
    semantics: str
    ordered: bool = False
    out: bool = False
    takes: str = ""
    domain: Domain = EVERYTHING
    activations: str = ""
    term: str = ""
    accumulates: str | tuple[tuple[str, Any], ...] = FLOAT32
    output: str = FLOAT32
    epilogue: tuple[str, ...] = ()
    computes: str = "gemm"
    layouts: Layouts = field(default_factory=Layouts)
    arrays: str = "numpy"
    device: str = "cpu"
    deterministic: bool = True
    more: tuple[tuple[str, Any], ...] = ()

    def __post_init__(self) -> None:
        """Raises UsageError."""
        if self.computes not in COMPUTES:
            scope = "; ".join(f"{name}: {words}" for name, words in COMPUTES.items())
            raise UsageError(
                f"computes {_short(self.computes)} is out of scope. In scope are {scope}; each with what is fused "
                "behind it (see docs/kernels-of-your-own.md)"
            )
        if not self.formats and self.computes != "quantize":
            raise UsageError('it declares no formats: write, for example, formats = ["Q4_0"]')
        for name in self.formats:
            if name not in FORMATS:
                raise UsageError(f"format {_short(name)} is not one of {', '.join(FORMATS)}{meant(name, FORMATS)}")
        if not all(isinstance(value, bool) for value in (self.ordered, self.out, self.deterministic)):
            raise UsageError("ordered, out and deterministic must be True or False")
        if self.ordered and not self.deterministic:
            raise UsageError("a kernel that adds in an order that is known is deterministic")
        for what, value, known in (
            ("output", self.output, HALVES), ("arrays", self.arrays, ARRAYS), ("device", self.device, DEVICES),
        ):  # fmt: skip
            if value not in known:
                raise UsageError(f"{what} {_short(value)}: {nearest(str(value), known)}it is one of {', '.join(known)}")
        if self.computes in TASKS:
            check_task(self)
        else:
            self._check_definition()
        for name in self.layouts.further:
            if name not in self.others:
                raise no_operand(name)

    def _check_definition(self) -> None:
        own = self.semantics == OWN
        # of an oracle's activations only the values of Q8_1 are known
        blocks = [name for name, s in SEMANTICS.items() if s.declarable and s.activations is Q8_1]
        may = (*HALVES, *(blocks if own else [self.semantics] if self.semantics else []))
        if self.takes not in ("", *may):
            raise UsageError(f"takes {_short(self.takes)} is not one of {', '.join(may)}{meant(self.takes, may)}")
        if own and self.ordered:
            raise UsageError(f"no order of an oracle is known: ordered goes with {_ORDERS}")
        if own and (self.activations or self.term):
            raise UsageError("activations and term are of a definition of this project, and an Oracle is in its place")
        definition = self.definition
        if own:
            return
        for name in self.formats:
            try:
                (definition.inside or definition).uses_sum(FORMATS[name])
            except ValueError as error:
                raise UsageError(str(error)) from None
        if self.ordered and not definition.order_known:
            raise UsageError(f"no order of {definition.name} is known: ordered goes with {_ORDERS}")

    @property
    def definition(self) -> Semantics:
        """The definition that it declares; with an oracle, the one whose activations, sums, output and fused
        operations it shares. Raises UsageError."""
        return self._defined(self.fused)

    @property
    def plain_definition(self) -> Semantics:
        """The same of its product alone, without what is fused behind it. Raises UsageError."""
        return self._defined(())

    @property
    def fused(self) -> tuple[str, ...]:
        """The operations behind its product; accumulation into the output is the last."""
        return (*self.epilogue, *(["accumulate"] if self.layouts.of("output").accumulate else []))

    def _defined(self, fused: tuple[str, ...]) -> Semantics:
        name, inside = self.semantics, self.takes if self.takes != self.semantics else ""
        if name == OWN:
            name, inside = (F32.name, self.given) if self.given in HALVES else (self.given, "")
        try:
            return declared(
                name, activations=self.activations, term=self.term, takes=inside,
                accumulates=self._accumulates, output=self.output, epilogue=fused,
            )  # fmt: skip
        except ValueError as error:
            raise UsageError(str(error)) from None

    @property
    def beside(self) -> tuple[str, ...]:
        """What it declares beside the name of its definition, in words, for reports."""
        words, more = [], dict(self.more)
        if self.computes not in TASKS:
            inner = self.definition.inside or self.definition
            words += [] if inner.accumulation is IN_FLOAT32 else [f"added in {inner.accumulation}"]
        words += [f"takes {self.takes}"] if self.takes else []
        words += [f"fuses {', '.join(self.fused)}"] if self.fused else []
        words += [f"with outputs of {self.output}"] if self.output != FLOAT32 else []
        words += [] if self.deterministic else ["not deterministic"]
        words += ["fast math"] if more.get("fast_math") else []
        words += [f"domain {self.domain.words}"] if self.domain.words else []
        return tuple(words)

    @property
    def kinds(self) -> tuple[str, ...]:
        """Types of weights that it has code for; "" where it takes none."""
        return self.formats or ("",)

    @property
    def others(self) -> tuple[str, ...]:
        """Operands of a call beside the matrices and its own: of what is fused, and of experts."""
        fused = tuple(OPERATIONS[name].operand if name in OPERATIONS else name for name in self.epilogue)
        return fused + (OF_EXPERTS if self.computes == "experts" else ())

    @property
    def given(self) -> str:
        """What its activations are: a type of values, or the definition whose blocks they are."""
        if self.semantics == OWN:
            return self.takes or FLOAT32
        if self.takes in HALVES:
            return self.takes
        return self.definition.encoding.dtype if self.definition.activations is None else self.definition.name

    @property
    def _accumulates(self) -> Any:
        return self.accumulates if isinstance(self.accumulates, str) else dict(self.accumulates)


def _short(value: object) -> str:
    return ascii(value)[:60]


def strings(value: object, what: str) -> tuple[str, ...]:
    """A list of strings. Raises UsageError."""
    if not isinstance(value, list | tuple | set | frozenset) or not all(isinstance(v, str) for v in value):
        example = f": write {what} = [{json.dumps(value[:60])}]" if isinstance(value, str) else ""
        raise UsageError(f"{what} is not a list of strings{example}")
    if any("\0" in v for v in value):
        raise UsageError(f"{what} holds a NUL character")
    return tuple(value)


def _named(semantics: object) -> str:
    """The name of a semantics: "own" for an Oracle. The word "own" without an Oracle becomes a name that is refused."""
    if isinstance(semantics, Oracle):
        return OWN
    return str(semantics) if semantics != OWN else f"{OWN} without an Oracle"


#: What a declaration may say, in TOML and as arguments of `kernel`: the same names.
KEYS = (
    "formats", "semantics", "ordered", "takes", "domain", "activations", "term", "accumulates", "output", "epilogue",
    "computes", "operands", "arrays", "device", "deterministic", "unpack", "packed", "arithmetic", "fast_math",
    "experts",
)  # fmt: skip
_OF_OTHERS = ("arithmetic", "fast_math", "experts")


def declaration_of_table(said: Mapping[str, Any], out: bool = False) -> Declaration:
    """What a table of `KEYS` declares. Raises UsageError."""
    accumulates = said.get("accumulates", FLOAT32)
    if isinstance(accumulates, Mapping):
        accumulates = tuple(sorted(accumulates.items()))
    elif not isinstance(accumulates, str):
        raise UsageError("accumulates is a name, or a table")
    texts = {key: str(said[key]) for key in ("takes", "activations", "term", "output", "computes", "arrays", "device")
             if key in said}  # fmt: skip
    return Declaration(
        strings(said.get("formats", []), "formats"), str(said.get("semantics", "")), said.get("ordered", False), out,
        domain=domain_of(said.get("domain", {})), accumulates=accumulates,
        epilogue=strings(said.get("epilogue", []), "epilogue"), layouts=layouts_of(said.get("operands", {})),
        more=tuple((key, said[key]) for key in _OF_OTHERS if key in said),
        deterministic=said.get("deterministic", True), **texts,
    )  # fmt: skip


def table_of(kernel: Any) -> dict[str, Any]:
    """What a kernel in Python declares by its attributes, as a table of `KEYS`. Raises UsageError."""
    if not callable(kernel):
        raise UsageError(f"it is of type {type(kernel).__name__}, which is not callable")
    computes = getattr(kernel, "computes", "gemm")
    for needed in () if computes in TASKS else ("formats", "semantics"):
        if not hasattr(kernel, needed) and not (needed == "semantics" and hasattr(kernel, "term")):
            raise UsageError(f"it declares no {needed} (see harness/gguf_verify/kernels/foreign/api.py)")
    pack = getattr(kernel, "pack", None)
    if pack is not None and not callable(pack):
        raise UsageError("its pack is not callable")
    said = {key: getattr(kernel, key) for key in KEYS if getattr(kernel, key, None) is not None and key != "unpack"}
    said["formats"] = strings(said.get("formats", ()), "formats")
    said["semantics"] = _named(said.get("semantics", ""))
    return said


def declaration_of(kernel: Any) -> Declaration:
    """What a kernel declares by its attributes. Raises UsageError."""
    return declaration_of_table(table_of(kernel), getattr(kernel, "out", False))


def kernel(
    formats: Sequence[str] = (), semantics: str | Oracle = "", ordered: bool = False, out: bool = False,
    pack: Function | None = None, takes: str = "", domain: dict[str, Any] | None = None, **more: Any,
) -> Callable[[Function], Function]:  # fmt: skip
    """Declare a function as a kernel: see this module's text and `Declaration`.

    Args:
        semantics: the name of a definition, or an Oracle.
        pack: (rows uint8[N, row bytes], format) → what the function takes as its weights.
        domain: where it promises to work, if not everywhere: see `gguf_verify.kernels.domain.domain_of`.
        more: further `KEYS`.

    Raises UsageError for a format or semantics that does not exist, a domain that is none, other keys, and a function
    that declares something else already: both names would be what was declared last.
    """
    for key in more:
        if key not in KEYS:
            raise UsageError(f"no kernel declares {_short(key)}: {nearest(key, KEYS)}there are: {', '.join(KEYS)}")
    given = {"formats": tuple(formats), "ordered": ordered, "takes": takes, "domain": domain or {}, **more}
    found = declaration_of_table({**given, "semantics": _named(semantics)}, out)
    given["domain"] = found.domain.plain()

    def declare(function: Function) -> Function:
        declared = {**given, "out": out, "semantics": semantics, "pack": pack}
        before = getattr(function, "formats", None)
        if before is not None and any(getattr(function, name, None) != value for name, value in declared.items()):
            name = getattr(function, "__name__", "the function")
            raise UsageError(
                f"{_short(name)} declares something else already: declare a function of its own, such as "
                f"lambda *given: {name}(*given)"
            )
        for name, value in declared.items():
            setattr(function, name, value)
        return function

    return declare
