"""Runs of bytes that are zero or repeat, and matrices of one value: weights that were never written.

An unfinished download into a preallocated file has the right size and zeros for the missing data, and so has a file of
which a file system lost blocks. `kernels/emulator/scan.hpp` finds the runs of each tensor; here the runs of adjacent
tensors are joined, across the padding between them. A run is a finding if at least `RUN_BYTES` of it lie in matrices
and no known use explains them:

- Vectors and biases may be zero. A norm's weights may not: they would make a layer's input zero.
- The second matrix of an adapter may be zero, its initial value: an untrained adapter changes nothing.
- Up to `DEAD_ROWS` whole rows may be zero: neurons that never fire, tokens that were never trained.
- Whole rows of the vocabulary may be zero if they belong to no ordinary token, or are its last ones: padding. A few
  last rows of another matrix may be zero: its size was rounded up.

Runs of bytes that repeat after at most 64 bytes, as patterns that fill memory and text do, are judged in the same way,
each alone: equal blocks can make up whole rows too. The last bytes of the block before such a row often belong to the
pattern, so partial blocks do not count.

"Whole" means that a run starts and ends with a row; lost pieces of a file do so only by chance. Zeros in Q4_0 or Q5_0
are not zero bytes, because llama.cpp's quantizer writes -0 as their scale. So matrices are judged by their values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
import numpy.typing as npt

from ..formats.tensor_types import decode_elements
from ..gguf.file import Tensor
from ..gguf.matrices import may_be_matrix
from ..gguf.model import Model
from ..gguf.records import Finding, finding
from ..llama.worker.tensor_scan import DEAD_ROWS, RUN_BYTES
from ..support.text import quoted
from .content import Content, finding_at

#: Largest gap in bytes between two tensors whose runs are joined: padding.
_BETWEEN = 1 << 16
#: Share of a matrix's last rows that may be padding: for a vocabulary one in two, for others one in sixteen.
_PADDED_VOCABULARY, _PADDED = 2, 16
#: gguf-py's `TokenType.NORMAL`.
_ORDINARY = 1
_MOST_NAMED = 4
#: Number of bytes of a pattern to show.
_SHOWN = 16


@dataclass(frozen=True)
class Zeros:
    """A range of bytes of one tensor that are zero, or repeat, counted from its first byte."""

    tensor: Tensor
    start: int
    stop: int

    @property
    def whole(self) -> bool:
        return self.stop - self.start == self.tensor.nbytes

    @property
    def rows(self) -> tuple[int, int] | None:
        """The range of rows that it consists of; None if it starts or ends inside one."""
        first, within = divmod(self.start, self.tensor.row_bytes)
        stop, beyond = divmod(self.stop, self.tensor.row_bytes)
        return None if within or beyond else (first, stop)


def zero_findings(contents: Sequence[Content], model: Model) -> Iterator[Finding]:
    """Yield a finding for each run of bytes that are zero or repeat, and for each matrix or norm of one value that is
    not part of a reported run of zeros."""
    if model.metadata.get("general.type") == "imatrix":  # not weights: columns without activations are zero
        return
    named: set[str] = set()
    for run in _runs(contents):
        evidence = [z for z in run if not _explained(z, model)]
        if any(z.whole for z in evidence) or sum(z.stop - z.start for z in evidence) >= RUN_BYTES:
            named |= {z.tensor.name for z in run if z.whole}
            yield _run(run)
    for content in contents:
        yield from _repeats(content, model)
        if content.tensor.name not in named and (found := _constant(content)) is not None:
            yield replace(finding_at(content, 0, "one-value", "weights that differ", found), stop=_stop(content.tensor))


def _stop(tensor: Tensor) -> int:
    return tensor.offset + tensor.nbytes


# ---- runs ------------------------------------------------------------------------------------------------------------


def _runs(contents: Sequence[Content]) -> Iterator[list[Zeros]]:
    """Yield runs of zero bytes in file order, each as its pieces in consecutive tensors."""
    for _, of_part in groupby(sorted(contents, key=_place), key=lambda c: c.tensor.part):
        run: list[Zeros] = []
        for content in of_part:
            tensor, scan = content.tensor, content.scan
            if scan is None:
                continue
            start = Zeros(tensor, 0, scan.zeros_at_start)
            if run and not _touch(run[-1].tensor, tensor):
                yield run
                run = []
            if start.stop:
                run.append(start)
            if start.whole:
                continue
            if run:
                yield run
            yield from ([Zeros(tensor, first, last)] for first, last in scan.first_runs)
            run = [Zeros(tensor, tensor.nbytes - scan.zeros_at_end, tensor.nbytes)] if scan.zeros_at_end else []
        if run:
            yield run


def _place(content: Content) -> tuple[int, int]:
    return content.tensor.part, content.tensor.offset


def _touch(first: Tensor, second: Tensor) -> bool:
    """Whether only zeros lie between two tensors."""
    start, stop = _stop(first), second.offset
    return 0 <= stop - start <= _BETWEEN and not first.mapped.read()[start:stop].any()


def _explained(zeros: Zeros, model: Model) -> bool:
    """Whether a known use explains zeros of a tensor."""
    tensor, rows = zeros.tensor, zeros.rows
    if not is_weights(tensor):
        return True
    if rows is None or zeros.whole:
        return False
    n, end = rows[1] - rows[0], rows[1] == tensor.n_rows
    if n <= DEAD_ROWS:
        return True
    if is_vocabulary(tensor, model):
        return (end and n * _PADDED_VOCABULARY < tensor.n_rows) or _ordinary(model, *rows) <= DEAD_ROWS
    return end and n * _PADDED < tensor.n_rows


def is_weights(tensor: Tensor) -> bool:
    """Whether a tensor is a matrix of weights, by its shape and llama.cpp's names; others may have equal values."""
    dimensions = sum(n > 1 for n in tensor.shape)
    other = tensor.name.endswith((".bias", ".lora_b")) or "norm" in tensor.name
    return may_be_matrix(tensor) and dimensions > 1 and not other


def is_vocabulary(tensor: Tensor, model: Model) -> bool:
    """Whether the rows of a matrix belong to tokens."""
    embedding = model.tensors.get("token_embd.weight")
    return len(tensor.shape) == 2 and embedding is not None and tensor.n_rows == embedding.n_rows


def _ordinary(model: Model, first: int, stop: int) -> int:
    """Count the rows that belong to tokens which are not special, unused or bytes."""
    types = model.metadata.get("tokenizer.ggml.token_type")
    tokens = model.metadata.get("tokenizer.ggml.tokens")
    if isinstance(types, np.ndarray):
        return int((types[first:stop] == _ORDINARY).sum())
    n = len(tokens) if isinstance(tokens, Sequence) else stop
    return max(0, min(stop, n) - first)


def _run(run: Sequence[Zeros]) -> Finding:
    first, last = run[0], run[-1]
    start, stop = first.tensor.offset + first.start, last.tensor.offset + last.stop
    named = [_named(z) for z in run[:_MOST_NAMED]]
    if len(run) > _MOST_NAMED:
        named = [*named[:-1], f"{len(run) - _MOST_NAMED:,} more tensors", _named(last)]
    found = f"a run of {stop - start:,} zero bytes: {', '.join(named)}"
    of = finding("zero-bytes", start, stop, "weights", found, first.tensor.name)
    return replace(of, part=first.tensor.part)


def _named(zeros: Zeros) -> str:
    """Describe a tensor and the range of its zero bytes."""
    tensor, name = zeros.tensor, quoted(zeros.tensor.name)
    if zeros.whole:
        return f"all of {name}"
    if zeros.stop == tensor.nbytes:
        return f"{name} from byte {tensor.offset + zeros.start} on"
    if not zeros.start:
        return f"{name} up to byte {tensor.offset + zeros.stop}"
    return f"bytes {tensor.offset + zeros.start}-{tensor.offset + zeros.stop} of {name}"


# ---- bytes that repeat -----------------------------------------------------------------------------------------------


def _repeats(content: Content, model: Model) -> Iterator[Finding]:
    tensor, scan = content.tensor, content.scan
    if scan is None or is_constant(content):
        return
    block = tensor.type.block_bytes
    for start, stop in scan.repeats:
        if _explained(Zeros(tensor, -(-start // block) * block, stop // block * block), model):
            continue
        pattern = tensor.raw[start : start + _SHOWN].tobytes()
        text = "".join(chr(b) if 32 <= b < 127 else "." for b in pattern)
        found = (
            f"{stop - start:,} bytes of {quoted(tensor.name)} ({tensor.type.name}) that repeat from byte "
            f"{tensor.offset + start} on: {pattern.hex()}… ({quoted(text)})"
        )
        first, last = tensor.offset + start, tensor.offset + stop
        yield replace(finding("repeated-bytes", first, last, "weights", found, tensor.name), part=tensor.part)


# ---- matrices of one value -------------------------------------------------------------------------------------------


def is_constant(content: Content) -> bool:
    """Whether the rows of a matrix are all equal."""
    scan = content.scan
    return scan is not None and (scan.zero_blocks == scan.blocks or scan.duplicate_rows == content.tensor.n_rows - 1)


def _constant(content: Content) -> str | None:
    """Describe a matrix whose values or rows are all equal, or a norm of zeros; None for other tensors."""
    tensor, scan = content.tensor, content.scan
    if scan is None or not scan.blocks:
        return None
    name = f"{quoted(tensor.name)} ({tensor.type.name})"
    if scan.zero_blocks == scan.blocks and (is_weights(tensor) or tensor.name.endswith("norm.weight")):
        return f"every value of {name} is zero"
    if not is_weights(tensor) or scan.duplicate_rows != tensor.n_rows - 1:
        return None
    values = _first_row(tensor)
    if (values == values[0]).all():
        return f"every value of {name} is {float(values[0]):.9g}"
    return f"all {tensor.n_rows:,} rows of {name} are the same" if tensor.n_rows > DEAD_ROWS else None


def _first_row(tensor: Tensor) -> npt.NDArray[np.float32]:
    blocks, fmt = tensor.blocks(0, 1), tensor.type.format
    with np.errstate(invalid="ignore", over="ignore"):
        values = fmt.decode(blocks[0]) if fmt else decode_elements(tensor.type.name, np.array(blocks))
    return np.asarray(values, np.float32).reshape(-1)
