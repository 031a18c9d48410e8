"""A kernel's declaration: what its author wrote, checked and completed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...formats.q8_1 import Q8_1
from ...formats.tensor_types import FORMATS
from ...semantics.accumulation import IN_FLOAT32
from ...semantics.declared import declared
from ...semantics.definition import OWN, Semantics
from ...semantics.definitions import SEMANTICS
from ...semantics.definitions.f32 import F32
from ...semantics.dequantization import ARITHMETICS, ONCE, applies
from ...semantics.epilogues import OPERATIONS
from ...semantics.quantization import encodings
from ...support.errors import UsageError
from ...support.near import meant, nearest
from ..domain import EVERYTHING, Domain, domain_of
from ..routing import LISTS
from .api import ARRAYS, COMPUTES, DEVICES, FLOAT32, HALVES, TASKS, shortened, strings
from .layouts import Layouts, layouts_of, no_operand

#: Definitions with an order stated in `gguf_verify.semantics.exact`.
_ORDERS = ", ".join(name for name, s in SEMANTICS.items() if s.order_known) + ', and f16 with accumulates "float16"'
#: Operands of a mixture of experts: the experts of each token, and the lists that engines derive from them.
OF_EXPERTS = LISTS
_OF_OTHERS = ("arithmetic", "fast_math", "experts")
#: The keys that each task may declare besides formats, domain, operands, arrays and device.
_OF_TASK = {
    "dequantize": ("output", "arithmetic", "fast_math"),
    "quantize": ("activations", "takes", "ordered", "fast_math"),
    "repack": ("unpack", "packed"),
}


@dataclass(frozen=True)
class Declaration:
    """The declaration of a kernel.

    Args:
        formats: names of the weight types that it takes.
        semantics: the name of its definition; "own": an Oracle; "": the definition with `activations` and `term`.
        ordered: it adds terms in the order of that definition, so its bits are compared, too.
        out: it writes into an array that it is given.
        takes: the type of its activations. "float32", "float16", "bfloat16": it gets values and, if its semantics
            quantizes activations, quantizes them itself in IEEE arithmetic (s in any order of summation; with
            `ordered`, in the definition's order). The name of a definition, with an oracle: the blocks of that
            definition. "": as its semantics defines, or float32 with an oracle.
        domain: the numbers of tokens, rows and columns that it supports, and its GPUs.
        activations, term: the encoding of the activations and the formula of a block's term
            (`gguf_verify.semantics.definitions.ENCODINGS` and `TERMS`), where no definition has a name for the pair.
        accumulates: the accumulator: "float32", "values", "float16" or "tensor" (see `gguf_verify.semantics.declared`).
        output: the type of its outputs: "float32", "float16" or "bfloat16".
        epilogue: the operations fused behind the product, in order.
        computes: one of `COMPUTES`.
        layouts: the memory layout of its operands, and scratch memory.
        arrays, device: the array library and device of a kernel in Python.
        deterministic: two calls give the same bits.
        more: keys that only some of `computes` have.

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
                f"computes {shortened(self.computes)} is out of scope. In scope are {scope}; each may have fused "
                "operations (see docs/kernels-of-your-own.md)"
            )
        if not self.formats and self.computes != "quantize":
            raise UsageError('it declares no formats: write, for example, formats = ["Q4_0"]')
        for name in self.formats:
            if name not in FORMATS:
                raise UsageError(f"format {shortened(name)} is not one of {', '.join(FORMATS)}{meant(name, FORMATS)}")
        if not all(isinstance(value, bool) for value in (self.ordered, self.out, self.deterministic)):
            raise UsageError("ordered, out and deterministic must be True or False")
        if self.ordered and not self.deterministic:
            raise UsageError("ordered = true contradicts deterministic = false")
        for what, value, known in (
            ("output", self.output, HALVES),
            ("arrays", self.arrays, ARRAYS),
            ("device", self.device, DEVICES),
        ):
            if value not in known:
                raise UsageError(
                    f"{what} {shortened(value)}: {nearest(str(value), known)}it is one of {', '.join(known)}"
                )
        if self.computes in TASKS:
            _check_task(self)
        else:
            self._check_definition()
        for name in self.layouts.further:
            if name not in self.others:
                raise no_operand(name)

    def _check_definition(self) -> None:
        own = self.semantics == OWN
        # The values of an oracle's activations are only known for Q8_1.
        blocks = [name for name, s in SEMANTICS.items() if s.declarable and s.activations is Q8_1]
        may = (*HALVES, *(blocks if own else [self.semantics] if self.semantics else []))
        if self.takes not in ("", *may):
            raise UsageError(f"takes {shortened(self.takes)} is not one of {', '.join(may)}{meant(self.takes, may)}")
        if own and self.ordered:
            raise UsageError(f"the order of an oracle is not known: ordered needs {_ORDERS}")
        if own and (self.activations or self.term):
            raise UsageError("activations and term cannot be declared with an Oracle")
        definition = self.definition
        if own:
            return
        for name in self.formats:
            try:
                (definition.inside or definition).uses_sum(FORMATS[name])
            except ValueError as error:
                raise UsageError(str(error)) from None
        if self.ordered and not definition.order_known:
            raise UsageError(f"the order of {definition.name} is not known: ordered needs {_ORDERS}")

    @property
    def definition(self) -> Semantics:
        """The declared definition; for an oracle, one with its activations, sums, output and fused operations.

        Raises UsageError.
        """
        return self._defined(self.fused)

    @property
    def plain_definition(self) -> Semantics:
        """The definition of the product alone, without fused operations. Raises UsageError."""
        return self._defined(())

    @property
    def fused(self) -> tuple[str, ...]:
        """The operations fused behind its product; accumulation into the output comes last."""
        return (*self.epilogue, *(["accumulate"] if self.layouts.of("output").accumulate else []))

    def _defined(self, fused: tuple[str, ...]) -> Semantics:
        name, inside = self.semantics, self.takes if self.takes != self.semantics else ""
        if name == OWN:
            name, inside = (F32.name, self.given) if self.given in HALVES else (self.given, "")
        try:
            return declared(
                name,
                activations=self.activations,
                term=self.term,
                takes=inside,
                accumulates=self._accumulates,
                output=self.output,
                epilogue=fused,
            )
        except ValueError as error:
            raise UsageError(str(error)) from None

    @property
    def beside(self) -> tuple[str, ...]:
        """Everything declared besides the definition's name, in words, for reports."""
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
        """Types of weights that it has code for; ("",) for a task without weights."""
        return self.formats or ("",)

    @property
    def others(self) -> tuple[str, ...]:
        """Operands of a call besides the matrices and scratch: those of fused operations and of experts."""
        fused = tuple(OPERATIONS[name].operand if name in OPERATIONS else name for name in self.epilogue)
        return fused + (OF_EXPERTS if self.computes == "experts" else ())

    @property
    def given(self) -> str:
        """The type of its activations: a type of values, or the name of the definition whose blocks it takes."""
        if self.semantics == OWN:
            return self.takes or FLOAT32
        if self.takes in HALVES:
            return self.takes
        return self.definition.encoding.dtype if self.definition.activations is None else self.definition.name

    @property
    def _accumulates(self) -> Any:
        return self.accumulates if isinstance(self.accumulates, str) else dict(self.accumulates)


def declaration_of_table(said: Mapping[str, Any], out: bool = False) -> Declaration:
    """Build a declaration from a table of `KEYS`. Raises UsageError."""
    accumulates = said.get("accumulates", FLOAT32)
    if isinstance(accumulates, Mapping):
        accumulates = tuple(sorted(accumulates.items()))
    elif not isinstance(accumulates, str):
        raise UsageError("accumulates must be a name or a table")
    texts = {
        key: str(said[key])
        for key in ("takes", "activations", "term", "output", "computes", "arrays", "device")
        if key in said
    }
    return Declaration(
        strings(said.get("formats", []), "formats"),
        str(said.get("semantics", "")),
        said.get("ordered", False),
        out,
        domain=domain_of(said.get("domain", {})),
        accumulates=accumulates,
        epilogue=strings(said.get("epilogue", []), "epilogue"),
        layouts=layouts_of(said.get("operands", {})),
        more=tuple((key, said[key]) for key in _OF_OTHERS if key in said),
        deterministic=said.get("deterministic", True), **texts,
    )  # fmt: skip


def _check_task(declared: Declaration) -> None:
    """Check that a kernel without a product declares all that it needs, and nothing else. Raises UsageError."""
    more, task = dict(declared.more), declared.computes
    given = {
        "semantics": declared.semantics, "term": declared.term, "takes": declared.takes, "ordered": declared.ordered,
        "activations": declared.activations, "epilogue": declared.epilogue, "arithmetic": more.get("arithmetic"),
        "fast_math": more.get("fast_math"), "accumulates": declared.accumulates != FLOAT32,
        "output": declared.output != FLOAT32, "deterministic": not declared.deterministic,
    }  # fmt: skip
    for key, value in given.items():
        if value and key not in _OF_TASK[task]:
            may = ", ".join(_OF_TASK[task])
            raise UsageError(f"a kernel that computes {task!r} cannot declare {key}; it may declare {may}")
    if not isinstance(more.get("fast_math", False), bool):
        raise UsageError("fast_math must be true or false")
    if task == "dequantize":
        for name in declared.formats:
            said = arithmetic_of(declared, name)
            if said not in ARITHMETICS:
                near = nearest(said, ARITHMETICS)
                raise UsageError(f"arithmetic {shortened(said)}: {near}it is one of {', '.join(ARITHMETICS)}")
            if not applies(said, FORMATS[name]):
                raise UsageError(f"arithmetic {said} needs an offset, a minimum or a superblock, and {name} has none")
    elif task == "quantize":
        known = encodings()
        if declared.activations not in known:
            near = nearest(declared.activations, known)
            raise UsageError(
                f"activations {shortened(declared.activations)}: {near}a quantizer must declare its encoding, one of "
                f"{', '.join(known)}"
            )
        if declared.takes not in ("", *HALVES):
            raise UsageError(f"takes {shortened(declared.takes)} is not one of {', '.join(HALVES)}")


def arithmetic_of(declared: Declaration, fmt: str) -> str:
    """Return the arithmetic that a dequantizer declares for a type: one name for all, or a table of types.

    Raises UsageError.
    """
    said: Any = dict(declared.more).get("arithmetic", ONCE)
    if isinstance(said, Mapping):
        if unknown := [name for name in said if name not in declared.formats]:
            raise UsageError(f"arithmetic is given for {shortened(unknown[0])}, which is not among its formats")
        said = said.get(fmt, ONCE)
    return str(said)
