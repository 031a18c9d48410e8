"""The interface of a kernel in Python. This is the reference; docs/ has a tutorial.

    from gguf_verify import kernel

    @kernel(formats=["Q4_0"], semantics="q8_1")
    def my_gemm(weights, activations, shape):
        ...
        return y  # float32[M, N]

`gguf-verify MODEL.gguf --kernel FILE.py:my_gemm` verifies it. The function is called with

    weights       uint8[N, row bytes], the file's rows; or the result of `pack(rows, format)` for each matrix
    activations   float32[M, K], or Q8_1 blocks uint8[M, K/32·36] (halves d and s, 32 codes), see below
    shape         Shape: format, m, n, k
    out           float32[M, N] to write into, only if the kernel declares out=True; its return value is then ignored

A kernel gets float32 activations if its semantics is "f32" or an `Oracle`, or if it declares takes="float32", which
means that it quantizes them itself. Otherwise it gets Q8_1 blocks as its semantics defines them.

Arrays are NumPy arrays. The result may be any array on the CPU (DLPack, `__array__`), or an array on a GPU that has
`__cuda_array_interface__` and `.get()` or `.cpu()`. It is read once and then overwritten. A kernel may also be any
callable object with the attributes `formats` and `semantics` and, where they are not the defaults, `ordered`, `out`,
`pack`, `takes` and `domain`.

A kernel must multiply any number of tokens M and rows N, and any K of whole blocks, unless it declares a domain:
domain={"M": 1} for a kernel that only decodes, domain={"N": {"multiple": 64}, "K": {"multiple": 256, "most": 8192},
"architectures": ["sm_90"]} for one with tiles and a given GPU. Within its domain it is tested at many shapes that no
model has.

A kernel that computes anything but a definition of this project declares an `Oracle` as its semantics.

Public names are imported from the package: `from gguf_verify import Oracle, Shape, kernel`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ...support.errors import UsageError

#: Types of activations and outputs that are plain values.
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
    """The definition of a kernel that no definition of this project fits: the exact product y = a·wᵀ of two matrices.

    The author supplies the matrices. gguf-verify multiplies them exactly and derives the rounding error bound itself.

    Args:
        weights: a function (rows uint8[n, bytes of any number of whole blocks], format) → float64[n, L], which treats
            each row on its own. None: the file's exact values.
        activations: a function (x as the kernel takes it) → float64[M, L]. None: the values that x holds.

    L is K, or up to 2·K: further columns are further terms, such as a minimum times a sum. Both functions must return
    finite values, and the same values in a second call. They run in a separate process, which never sees the kernel's
    outputs. The kernel is verified against the oracle alone. The report adds the oracle's distance from each definition
    of `gguf_verify.semantics`, on the activations that the kernel takes. It is a mismatch if the oracle is far from all
    of them (NMSE above 0.01), if its terms cancel and so widen the bound, or if a few of its weights differ from the
    file's.
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
#: The tasks that a kernel may declare, with a description for messages.
COMPUTES = {
    "gemm": "a product of activations and quantized weights",
    "experts": "products with the experts of each token",
    "dequantize": "the values of quantized weights",
    "quantize": "quantized activations",
    "repack": "the same weights in another layout",
}
#: The tasks without a product.
TASKS = ("dequantize", "quantize", "repack")
#: The array libraries and devices that a kernel in Python may choose.
ARRAYS = ("numpy", "torch", "cupy", "jax")
DEVICES = ("cpu", "cuda")
#: The keys of a declaration: the same names in TOML and as arguments of `kernel`.
KEYS = (
    "formats", "semantics", "ordered", "takes", "domain", "activations", "term", "accumulates", "output", "epilogue",
    "computes", "operands", "arrays", "device", "deterministic", "unpack", "packed", "arithmetic", "fast_math",
    "experts",
)  # fmt: skip


#: Whether `kernel` checks the declaration itself. False in a kernel's process: the verifier checks the declaration that
#: the process sends, and the check needs the formats and definitions, which are slow to import.
checks_declarations = True


def strings(value: object, what: str) -> tuple[str, ...]:
    """Return a list of strings as a tuple. Raises UsageError."""
    if not isinstance(value, list | tuple | set | frozenset) or not all(isinstance(v, str) for v in value):
        example = f": write {what} = [{json.dumps(value[:60])}]" if isinstance(value, str) else ""
        raise UsageError(f"{what} is not a list of strings{example}")
    if any("\0" in v for v in value):
        raise UsageError(f"{what} holds a NUL character")
    return tuple(value)


def _named(semantics: object) -> str:
    """Return the name of a semantics: "own" for an Oracle.

    The word "own" without an Oracle becomes a name that is refused.
    """
    if isinstance(semantics, Oracle):
        return OWN
    return str(semantics) if semantics != OWN else f"{OWN} without an Oracle"


def shortened(value: object) -> str:
    """Return a value's `repr` as ASCII, at most 60 characters."""
    return ascii(value)[:60]


def table_of(kernel: Any) -> dict[str, Any]:
    """Return the attributes that a kernel in Python declares, as a table of `KEYS`. Raises UsageError."""
    if not callable(kernel):
        raise UsageError(f"it is of type {type(kernel).__name__}, which is not callable")
    computes = getattr(kernel, "computes", "gemm")
    for needed in () if computes in TASKS else ("formats", "semantics"):
        if not hasattr(kernel, needed) and not (needed == "semantics" and hasattr(kernel, "term")):
            raise UsageError(
                f"it declares no {needed}: put `import gguf_verify` into its file, and above it the line "
                '`@gguf_verify.kernel(formats=["Q4_0"], semantics="q8_1")` with its own types and definition'
            )
    pack = getattr(kernel, "pack", None)
    if pack is not None and not callable(pack):
        raise UsageError("its pack is not callable")
    said = {key: getattr(kernel, key) for key in KEYS if getattr(kernel, key, None) is not None and key != "unpack"}
    said["formats"] = strings(said.get("formats", ()), "formats")
    said["semantics"] = _named(said.get("semantics", ""))
    return said


def kernel(
    formats: Sequence[str] = (),
    semantics: str | Oracle = "",
    ordered: bool = False,
    out: bool = False,
    pack: Function | None = None,
    takes: str = "",
    domain: dict[str, Any] | None = None,
    **more: Any,
) -> Callable[[Function], Function]:
    """Declare a function as a kernel: see the docstring of this module and `Declaration`.

    Args:
        semantics: the name of a definition, or an Oracle.
        pack: a function (rows uint8[N, row bytes], format) → the weights that the kernel gets.
        domain: the shapes that the kernel supports, if not all: see `gguf_verify.kernels.domain.domain_of`.
        more: further `KEYS`.

    Raises UsageError for formats that are not a list, an unknown format or semantics, an invalid domain, an unknown
    key, and a function that already has another declaration: the attributes are the function's, so the last declaration
    would win under both names.
    """
    if callable(formats):
        raise UsageError('a declaration has arguments, such as @kernel(formats=["Q4_0"], semantics="q8_1")')
    for key in more:
        if key not in KEYS:
            from ...support.near import nearest

            raise UsageError(
                f"{shortened(key)} is not a key of declarations: {nearest(key, KEYS)}there are: {', '.join(KEYS)}"
            )
    given = {"formats": strings(formats, "formats"), "ordered": ordered, "takes": takes, "domain": domain or {}, **more}
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
                f"{shortened(name)} already has another declaration: declare a separate function, such as "
                f"lambda *given: {name}(*given)"
            )
        for name, value in declared.items():
            setattr(function, name, value)
        return function

    return declare
