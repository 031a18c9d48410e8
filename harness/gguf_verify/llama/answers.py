"""Schemas of the answers of llama.cpp's process.

That process parses untrusted files, so a file may have taken control of it. Wrong numbers are for the rungs to find;
but nothing it sends may index, size or name anything here before it is checked. The checks raise exceptions that
`LlamaProcess.valid` turns into a fault.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, TypedDict

import numpy as np
from msgspec import Meta, Struct

from ..support.array_types import Array
from ..support.protocol import ProtocolError

Count = Annotated[int, Meta(ge=0, le=1 << 62)]
Name = Annotated[str, Meta(max_length=1 << 12)]
#: Limit of the first blocks of a kind that a scan lists.
MAX_FIRST = 21
First = Annotated[list[Count], Meta(max_length=MAX_FIRST)]
Span = Annotated[list[float], Meta(min_length=2, max_length=2)]
Pair = Annotated[list[Count], Meta(min_length=2, max_length=2)]


class TypeSaid(TypedDict):
    """A type of ggml."""

    name: Name
    block_size: Count
    block_bytes: Count
    quantized: bool
    vec_dot_type: Annotated[int, Meta(ge=0, le=1 << 31)]


class Hello(Struct):
    """See `Llama.versions`."""

    llama_cpp_python: Name
    folder: Name
    llama_cpp: Name
    ggml: Name
    system: Name
    types: dict[int, TypeSaid]
    libraries: Annotated[list[Name], Meta(max_length=1000)]


class Started(Struct):
    """A device that was started; see `backends.Backend`. A backend whose devices report more has its own record, which
    extends this one."""

    backend: Name
    device: Name
    name: Name


class CudaStarted(Started):
    """Adds ten times the GPU's compute capability."""

    sm: Annotated[int, Meta(ge=10, le=10_000)]


class DeviceSaid(Struct):
    """A device of ggml's registry; see `ggml.devices`."""

    name: Name
    backend: Name
    description: Name
    kind: Name
    free: Count
    total: Count


class Devices(Struct):
    """See `Llama.devices`."""

    devices: Annotated[list[DeviceSaid], Meta(max_length=1000)]


class Computed(Struct):
    """See `Llama.compute_node`."""

    unsupported: bool
    backend: Name


class TensorSaid(Struct):
    """A tensor of a graph: sizes and strides as in ggml; whether its bytes are in the message, in the model's file, or
    nowhere; and their offset in the file's tensor."""

    name: Name
    type: Count
    ne: Annotated[list[Count], Meta(min_length=4, max_length=4)]
    nb: Annotated[list[Count], Meta(min_length=4, max_length=4)]
    held: Literal["here", "file", "nowhere"]
    offset: Count


class NodeSaid(Struct):
    """A node of a graph; see `worker.node_tap`."""

    number: Count
    op: Name
    variant: Name
    name: Name
    parameters: Annotated[str, Meta(pattern="^([0-9a-f]{2}){64}$")]
    sources: Annotated[list[TensorSaid | None], Meta(max_length=10)]
    output: TensorSaid
    view_of: Annotated[int, Meta(ge=0, le=9)] | None
    device: Name
    backend: Name


class Progress(Struct):
    """Number of bytes done since the last event."""

    n: Count


class Figures(Struct, frozen=True):
    """Figures of one tensor; see `files.Scan`."""

    blocks: Count
    zero_scales: Count
    zero_blocks: Count
    subnormal_scales: Count
    negative_scales: Count
    not_finite: Count
    differing: Count
    first_not_finite: First
    first_differing: First
    first_subnormal: Annotated[int, Meta(ge=-1, le=1 << 62)]
    obeying: Annotated[list[Count], Meta(max_length=8)]
    scale: Span | None
    minimum: Span | None
    duplicate_rows: Count | None
    duplicate: Pair | None
    zeros_at_start: Count
    zeros_at_end: Count
    runs: Count
    first_runs: Annotated[list[Pair], Meta(max_length=MAX_FIRST)]
    repeats: Annotated[list[Pair], Meta(max_length=MAX_FIRST)]

    def check(self, blocks: int, rows: int, rules: int, nbytes: int) -> None:
        """Check that the figures are possible for a tensor of this many blocks, rows and bytes, with this many rules.
        Raises ProtocolError."""
        stops, ends = (
            [0, *(place for run in runs for place in run), nbytes] for runs in (self.first_runs, self.repeats)
        )
        some = (
            self.zero_scales, self.zero_blocks, self.subnormal_scales, self.negative_scales, self.not_finite,
            self.differing, *self.obeying,
        )  # fmt: skip
        firsts = ((self.not_finite, self.first_not_finite), (self.differing, self.first_differing))
        if (
            self.blocks != blocks
            or len(self.obeying) != rules
            or any(n > blocks for n in some)
            or any(len(first) != min(n, MAX_FIRST) or any(b >= blocks for b in first) for n, first in firsts)
            or not (self.subnormal_scales > 0) <= (0 <= self.first_subnormal < blocks)
            or any(row >= rows for row in self.duplicate or ())
            or max(self.zeros_at_start, self.zeros_at_end, self.runs) > nbytes
            or len(self.first_runs) != min(self.runs, MAX_FIRST)
            or stops != sorted(stops)
            or ends != sorted(ends)
        ):
            raise ProtocolError("figures impossible for a tensor of this size")


class Made(Struct):
    """See `files.Requantized`."""

    differing: Count
    first: Annotated[int, Meta(ge=-1, le=1 << 62)]
    energy: float | None
    error: float | None
    made_error: float | None
    zeros: Count


class Opened(Struct):
    """See `worker.model`."""

    description: str
    n_vocab: Annotated[int, Meta(ge=0, le=1 << 31)]
    n_ctx_train: int
    encoder: bool
    decoder: bool
    decoder_start: int
    added_bos: int


class Context(Struct):
    """Whether the model computes embeddings."""

    embeds: bool


class Tokens(Struct):
    """Token ids."""

    tokens: list[Annotated[int, Meta(ge=-(1 << 31), lt=1 << 31)]]


class Pieces(Struct):
    """Texts of tokens."""

    pieces: list[Name]


class Valid(Struct):
    """Whether a row's bytes are valid."""

    valid: bool


class Seen(Struct):
    """How a graph used weights other than in products; see `evaluations.Evaluation`."""

    lookup: dict[str, str]
    unsupported: dict[str, str]
    used: dict[str, list[str]]


class Evaluated(Struct):
    """The end of an evaluation."""

    seen: Seen


class RecordedNode(Struct):
    """A recorded node: the nodes that it reads, counted from 1 without views; the last node that reads it, 0 for none;
    and the number of its graph, because an encoder has its own graph."""

    op: Name
    name: Name
    device: Name
    reads: list[Count]
    use: Count
    graph: Count


class Recorded(Struct):
    """See `model.LoadedModel.record`."""

    nodes: list[RecordedNode]


class ComparedWindows(Struct):
    """See `model.FusedEnd`."""

    compared: Count
    fused: list[Count]


class At(Struct):
    """Description of the node about to be computed; see `worker.listener`."""

    node: Name


class FusedSaid(Struct):
    """An output of a window of nodes that has other bits; see `worker.fused_tap`."""

    number: Count
    first: Count
    last: Count


class Product(Struct):
    """A product of a graph; see `gemms.Gemm`."""

    tensor: Name
    node: Name
    type: Annotated[int, Meta(ge=0, le=1 << 16)]
    first_rows: Annotated[list[Count], Meta(min_length=1)]
    on_backend: bool
    experts: bool
    tokens: Count
    activations: list[int]
    crc32: list[Count] | None = None

    def check(self, x: Array, y: Array, matrix: Array, row: Array, quantized: Sequence[Array]) -> None:
        """Check that the arrays belong together. Raises ProtocolError."""
        n, matrices = len(y), len(self.first_rows)
        if (
            len(quantized) != len(self.activations)
            or any(q.dtype != np.uint8 or q.ndim != 2 or len(q) != len(x) for q in quantized)
            or (self.crc32 is not None and len(self.crc32) != matrices)
            or (n and not (matrix.min() >= 0 and matrix.max() < matrices))
            or (n and not (row.min() >= 0 and row.max() < len(x)))
        ):
            raise ProtocolError("arrays that do not form a product")


def expect(array: Array, number: type[np.generic], *shape: int | None) -> Array:
    """Check an array's type and shape (None for any number), and return it. Raises ProtocolError."""
    fits = array.ndim == len(shape) and all(n in (None, m) for n, m in zip(shape, array.shape, strict=True))
    if array.dtype != number or not fits:
        raise ProtocolError(f"{array.dtype}{list(array.shape)} where {number.__name__}{list(shape)} was expected")
    return array
