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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ...support.errors import UsageError

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


#: The name of the semantics of a kernel with an `Oracle`, as in `gguf_verify.semantics.definition`.
OWN = "own"
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
#: What a kernel in Python may get its arrays as, and where these lie.
ARRAYS = ("numpy", "torch", "cupy", "jax")
DEVICES = ("cpu", "cuda")
#: What a declaration may say, in TOML and as arguments of `kernel`: the same names.
KEYS = (
    "formats", "semantics", "ordered", "takes", "domain", "activations", "term", "accumulates", "output", "epilogue",
    "computes", "operands", "arrays", "device", "deterministic", "unpack", "packed", "arithmetic", "fast_math",
    "experts",
)  # fmt: skip


#: Whether `kernel` checks the declaration itself. In a kernel's process it does not: the verifier checks what that
#: process declares. That needs the formats and definitions, which take long to import.
checks_declarations = True


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


def shortened(value: object) -> str:
    """It as ASCII, at most 60 characters."""
    return ascii(value)[:60]


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
            from ...support.near import nearest

            raise UsageError(f"no kernel declares {shortened(key)}: {nearest(key, KEYS)}there are: {', '.join(KEYS)}")
    given = {"formats": tuple(formats), "ordered": ordered, "takes": takes, "domain": domain or {}, **more}
    if checks_declarations:
        from .declaration import declaration_of_table

        found = declaration_of_table({**given, "semantics": _named(semantics)}, out)
        given["domain"] = found.domain.plain()

    def declare(function: Function) -> Function:
        declared = {**given, "out": out, "semantics": semantics, "pack": pack}
        before = getattr(function, "formats", None)
        if before is not None and any(getattr(function, name, None) != value for name, value in declared.items()):
            name = getattr(function, "__name__", "the function")
            raise UsageError(
                f"{shortened(name)} declares something else already: declare a function of its own, such as "
                f"lambda *given: {name}(*given)"
            )
        for name, value in declared.items():
            setattr(function, name, value)
        return function

    return declare
