"""Comparison of each tensor with its source: are its bytes llama.cpp's quantization of the source?

If the importance matrix is given, or none was used, the answer is yes or no. If one was used but is not given,
`optimality` judges what holds for every importance matrix.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from ..formats.block import BlockFormat
from ..formats.tensor_types import FLOAT_TYPES, NO_TO_FLOAT
from ..gguf.file import Tensor
from ..gguf.model import Model
from ..gguf.origin import Origin
from ..gguf.records import Finding, finding
from ..llama.files import Requantized
from ..llama.library import Llama
from ..llama.process import LlamaRefused
from ..support.text import printable, quoted
from .exchanged import exchanged
from .importance import Importance
from .optimality import MAX_K, Judgement, Kind, judge
from .sources import Source
from .xray import XRay, llama_values, xray

#: Key that llama.cpp writes when it quantizes with an importance matrix.
IMPORTANCE_KEY = "quantize.imatrix.file"
#: An importance matrix changes nearly every block: at most 4 % stay the same (measured, every type). So if more than
#: this share of the blocks equals llama.cpp's result without a matrix, none was used.
_SAME = 0.5
_F16, _BF16 = 1, 30

#: "same": every byte. "differs": not llama.cpp's result. "possible": llama.cpp may give it with some importance matrix.
#: "impossible": it cannot with any. "missing": the source has no such tensor. "not compared": see `unverified`.
if TYPE_CHECKING:  # at run time, completion in notebooks (jedi) fails on a property of such a type
    Outcome = Literal["same", "differs", "possible", "impossible", "missing", "not compared"]


@dataclass(frozen=True)
class Comparison:
    """One tensor compared with its source.

    Args:
        tensor: the file's tensor.
        source: the source's tensor of that name and shape, or None.
        result: the comparison with llama.cpp's result; None if they could not be compared.
        unverified: why they could not be compared, or "".
        xrays: the first block that differs, in the file and in llama.cpp's result; None for a type without blocks, or
            if llama.cpp's parameters are unknown.
        judgement: the judgement for every importance matrix; None if not requested.
        with_importance: whether the given importance matrix was used.
        through: the type that the source's values were rounded to first, or "".
        instead: what the tensor was really made from, in words, if found; otherwise "".
    """

    tensor: Tensor
    source: Origin | None = None
    result: Requantized | None = None
    unverified: str = ""
    xrays: tuple[XRay, XRay] | None = None
    judgement: Judgement | None = None
    with_importance: bool = False
    through: str = ""
    instead: str = ""

    @property
    def outcome(self) -> Outcome:
        """The outcome of the comparison."""
        if self.unverified:
            return "not compared"
        if self.source is None or self.result is None:
            return "missing"
        if not self.result.differing:
            return "same"
        if self.judgement is None:
            return "differs"
        return "impossible" if self.judgement.wrong else "possible"

    @property
    def first(self) -> tuple[int, int] | None:
        """Row and block of the first difference; None if there is none."""
        if self.result is None or not self.result.differing:
            return None
        return divmod(self.result.first, self.tensor.blocks_per_row)

    @property
    def error(self) -> float | None:
        """Relative error of the decoded values: the root of Σ(x - y)² / Σx²; None if nothing was quantized."""
        return self._relative(None if self.result is None else self.result.error)

    @property
    def made_error(self) -> float | None:
        """Relative error of llama.cpp's own result, the error that the type reaches on these values."""
        return self._relative(None if self.result is None else self.result.made_error)

    def _relative(self, error: float | None) -> float | None:
        energy = None if self.result is None else self.result.energy
        return None if not energy or error is None else math.sqrt(error / energy)


def compare(
    tensor: Tensor,
    source: Source,
    llama: Llama,
    threads: int = 1,
    on_bytes: Callable[[int], object] = lambda _n: None,
    importance: Importance | None = None,
) -> Comparison:
    """Quantize the source's tensor as llama.cpp does, and compare. If an importance matrix seems to have been used but
    is not given, judge what holds for every one. Raises EnvironmentFault if llama.cpp dies."""
    if tensor.name in source.reasons:
        return Comparison(tensor, unverified=source.reasons[tensor.name])
    origin = source.tensors.get(tensor.name)
    if origin is None or origin.shape != tensor.shape:
        return Comparison(tensor)
    if not tensor.nbytes:
        return Comparison(tensor, origin, Requantized(0, -1, b""))
    same = origin.type == tensor.type
    if not same and (tensor.type.format is None and tensor.type.name not in FLOAT_TYPES):
        why = "llama.cpp does not quantize to it" if tensor.type.name in NO_TO_FLOAT else "is not covered"
        return Comparison(tensor, origin, unverified=f"type {tensor.type.name}: {why}")
    if not same and (origin.type.name in NO_TO_FLOAT and origin.type.name not in FLOAT_TYPES):
        return Comparison(
            tensor, origin, unverified=f"llama.cpp has no conversion from {origin.type.name}, the source's type"
        )
    fmt = None if same else tensor.type.format
    try:
        weights = importance.of(tensor) if importance is not None and fmt is not None else None
    except ValueError as error:
        return Comparison(tensor, origin, unverified=str(error))
    if importance is not None and weights is None and fmt is not None and fmt.not_quantized_alone:
        return Comparison(
            tensor, origin, unverified=f"the importance matrix has no entry for it, and {fmt.name} needs one"
        )
    try:
        compared = _requantized(tensor, origin, source, llama, threads, on_bytes, weights)
    except LlamaRefused as refusal:
        return Comparison(tensor, origin, unverified=str(refusal))
    if compared.first is None:
        return compared
    if importance is None and fmt is not None and _may_be_weighted(compared, fmt, llama):
        if tensor.k > MAX_K or (origin.type.format is None and origin.type.name not in FLOAT_TYPES):
            why = f"rows of more than {MAX_K:,} values" if tensor.k > MAX_K else f"a source of type {origin.type.name}"
            return replace(compared, unverified=f"{why} cannot be judged without --imatrix")
        compared = replace(compared, judgement=_judged(tensor, origin, fmt, threads))
    else:
        compared = replace(compared, xrays=_xrays(compared, llama))
    if fmt is None or compared.first is None or compared.outcome not in ("differs", "impossible"):
        return compared

    def remade(other: Origin) -> Requantized:
        found = _requantized(tensor, other, source, llama, threads, lambda _n: None, weights).result
        assert found is not None
        return found

    others = [origin, *(o for o in source.tensors.values() if o.shape == tensor.shape and o is not origin)]
    return replace(compared, instead=exchanged(tensor, fmt, compared.first[0], others, remade))


def _requantized(
    tensor: Tensor,
    origin: Origin,
    source: Source,
    llama: Llama,
    threads: int,
    on_bytes: Callable[[int], object],
    weights: np.ndarray | None,
) -> Comparison:
    """Compare with llama.cpp's result; for a converted source, also with results by way of a half-precision file."""
    first = Comparison(
        tensor,
        origin,
        llama.files.requantize(tensor, origin, threads, on_bytes, weights),
        with_importance=weights is not None,
    )
    ways = [(n, t) for n, t in (("F16", _F16), ("BF16", _BF16)) if origin.type.name == "F32" or n == "F16"]
    if not source.converted or origin.type.name == "F16" or first.first is None or not tensor.type.quantized:
        return first
    for name, number in ways:
        result = llama.files.requantize(tensor, origin, threads, importance=weights, through=number)
        if not result.differing:
            return replace(first, result=result, through=name)
    return first


def _may_be_weighted(compared: Comparison, fmt: BlockFormat, llama: Llama) -> bool:
    """Whether an importance matrix may be the reason that the tensor differs from llama.cpp's result without one."""
    result = compared.result
    assert result is not None
    blocks = compared.tensor.n_rows * compared.tensor.blocks_per_row - result.zeros
    same = compared.tensor.n_rows * compared.tensor.blocks_per_row - result.differing - result.zeros
    return same <= _SAME * blocks and uses_importance(fmt, llama)


def uses_importance(fmt: BlockFormat, llama: Llama) -> bool:
    """Whether an importance matrix changes llama.cpp's blocks of the type: llama.cpp quantizes random data with and
    without one."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((16, 256), np.float32)
    weights = np.exp(rng.standard_normal(256)).astype(np.float32)
    plain = llama.quantize(fmt.type_id, x)
    return bool((plain != llama.quantize(fmt.type_id, x, weights)).any())


def _judged(tensor: Tensor, origin: Origin, fmt: BlockFormat, threads: int) -> Judgement:
    matrices = tensor.n_rows // tensor.shape[1] if len(tensor.shape) > 2 else 1
    return judge(fmt, origin.rows, tensor.blocks, tensor.n_rows, tensor.k, matrices, threads)


def _xrays(compared: Comparison, llama: Llama) -> tuple[XRay, XRay] | None:
    tensor, result, first = compared.tensor, compared.result, compared.first
    if result is None or first is None or not tensor.type.quantized:
        return None
    made = np.frombuffer(result.block, np.uint8)
    values = llama.to_float(tensor.type.type_id, made, tensor.type.block_size)
    return (
        xray(tensor, *first, llama_values(llama, tensor, *first)),
        xray(tensor, *first, values, raw=result.block),
    )


# ---- findings --------------------------------------------------------------------------------------------------------


def comparison_findings(comparisons: Sequence[Comparison], model: Model, source: Source) -> Iterator[Finding]:
    """Yield findings of the comparisons, and of tensors that only one of the files has."""
    named = IMPORTANCE_KEY in model.metadata
    for c in comparisons:
        if c.outcome == "missing":
            yield _missing(c, source)
        elif c.instead:
            yield _exchanged(c)
        elif c.outcome == "differs":
            yield _differs(c, named)
        elif c.judgement is not None:
            yield from _broken_rules(c)
    yield from _possible([c for c in comparisons if c.outcome == "possible"], named)
    for name, other in source.tensors.items():
        if name not in model.tensors:
            yield finding(
                "source-left",
                0,
                0,
                "every tensor of the source",
                f"no {quoted(name)}, which the source ({printable(source.path.name)}) holds as {other.type.name}",
                name,
            )


def _missing(c: Comparison, source: Source) -> Finding:
    tensor, other = c.tensor, source.tensors.get(c.tensor.name)
    at = tensor.described[0]
    found = "no such tensor" if other is None else f"one of shape {_shape(other)}"
    expected = f"{quoted(tensor.name)} of shape {_shape(tensor)} in the source"
    return replace(finding("source-missing", at.start, at.stop, expected, found, tensor.name), part=tensor.part)


def _differs(c: Comparison, named: bool) -> Finding:
    assert c.source is not None
    assert c.result is not None
    assert c.first is not None
    tensor, (row, block) = c.tensor, c.first
    start = tensor.block_offset(row, block)
    stop = start + tensor.type.block_bytes
    blocks = tensor.n_rows * tensor.blocks_per_row
    unit = "block" if tensor.type.quantized else "value"
    pair = f"{tensor.mapped.read()[start:stop].tobytes().hex()} for {c.result.block.hex()}"
    because = ""
    if c.with_importance:
        because = "; with the given importance matrix"
    elif named and tensor.type.quantized:
        because = "; the metadata list an importance matrix, but too many blocks equal the result without one"
    what = f"llama.cpp's conversion of {c.source.type.name} to {tensor.type.name}"
    found = (
        f"{c.result.differing:,} of {blocks:,} {unit}s of {quoted(tensor.name)} differ, the first row {row} "
        f"{unit} {block}: {pair}{because}"
    )
    return replace(finding("source-differs", start, stop, what, found, tensor.name), part=tensor.part)


def _exchanged(c: Comparison) -> Finding:
    assert c.first is not None
    tensor = c.tensor
    start = tensor.block_offset(*c.first)
    found = f"{quoted(tensor.name)} {c.instead}"
    expected = f"llama.cpp's quantization of the source's {quoted(tensor.name)}"
    of = finding("source-exchanged", start, start + tensor.type.block_bytes, expected, found, tensor.name)
    return replace(of, part=tensor.part)


def _broken_rules(c: Comparison) -> Iterator[Finding]:
    assert c.judgement is not None
    tensor, j = c.tensor, c.judgement
    blocks = tensor.n_rows * tensor.blocks_per_row

    def at(kind: Kind, slug: str, expected: str, what: str) -> Iterator[Finding]:
        if kind.count:
            row, block = divmod(kind.first, tensor.blocks_per_row)
            start = tensor.block_offset(row, block)
            some = f"{kind.count:,} of {blocks:,} blocks of {quoted(tensor.name)} ({tensor.type.name})"
            found = f"{some} {what}, the first row {row} block {block}"
            yield replace(
                finding(slug, start, start + tensor.type.block_bytes, expected, found, tensor.name), part=tensor.part
            )

    yield from at(j.codes, "source-codes", "the nearest code of each value", "have codes that are not the nearest")
    yield from at(j.scales, "source-scale", "a scale that fits its codes", "have scales that no weights explain")
    yield from at(j.far, "source-far", "values near the source's", "are further from the source than zeros are")
    yield from at(j.outliers, "source-outlier", "blocks like the tensor's others", "are unlike its others")


def _possible(comparisons: Sequence[Comparison], named: bool) -> Iterator[Finding]:
    """Yield one note for all tensors that llama.cpp could only have made with an importance matrix."""
    if not comparisons:
        return
    tensor = comparisons[0].tensor
    n = len(comparisons)
    tensors = f"{n} tensor{'' if n == 1 else 's'}, the first {quoted(tensor.name)},"
    said = "the metadata list one" if named else "the metadata list none"
    found = f"{tensors} {'is' if n == 1 else 'are'} possible with some importance matrix ({said}); not proven"
    start = tensor.offset
    expected = "llama.cpp's bytes without one, or --imatrix"
    yield replace(
        finding("source-importance", start, start + tensor.nbytes, expected, found, tensor.name), part=tensor.part
    )


def _shape(tensor: Tensor | Origin) -> str:
    return " x ".join(map(str, tensor.shape)) or "1"
