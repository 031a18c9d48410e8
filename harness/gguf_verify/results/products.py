"""Records of the tensors, products and tokens that a rung checked."""

from __future__ import annotations

import math

import msgspec


class DrawnProduct(msgspec.Struct, frozen=True, kw_only=True):
    """A product of drawn data: the weights' type, tokens, rows and columns."""

    type: str
    m: int
    n: int
    k: int


class DrawnData(msgspec.Struct, frozen=True, kw_only=True):
    """What a kernel was verified on where no model was at hand.

    Args:
        seed: of all that was drawn.
        products: that took the place of a model's graph.
        weights, activations: how they were drawn, in words.
        compared: llama.cpp computed the same products, and its outputs and the kernel's were compared.
    """

    seed: int
    products: tuple[DrawnProduct, ...] = ()
    weights: str = ""
    activations: str = ""
    compared: bool = False


class TensorBytes(msgspec.Struct, frozen=True, tag_field="record", tag="tensor bytes"):
    """A tensor of the bytes rung: `n_blocks` blocks (or values) in `nbytes` bytes from `offset` on."""

    tensor: str
    type: str
    n_blocks: int
    nbytes: int
    offset: int
    failures: int


class TensorBlocks(msgspec.Struct, frozen=True, tag_field="record", tag="tensor blocks"):
    """A tensor of the blocks rung, of which `n_blocks` blocks were multiplied."""

    tensor: str
    type: str
    n_blocks: int
    failures: int


class TensorValues(msgspec.Struct, frozen=True, tag_field="record", tag="tensor values"):
    """A tensor of the values or the packing rung, of which `n_blocks` blocks were dequantized, or repacked."""

    tensor: str
    type: str
    n_blocks: int
    failures: int


class GemmRecord(msgspec.Struct, frozen=True, kw_only=True, tag_field="record", tag="gemm"):
    """A GEMM of the layers rung, with the worst utilisation of each output that was judged.

    Args:
        tensor, matrix: the weights' name, and which of its matrices (experts) this is, where it holds several.
        node: llama.cpp's name of the node in the graph.
        type: the weights' type.
        m, n, k: tokens, rows, columns.
        kernel: the name of the kernel that multiplied.
        llama_definition: what llama.cpp computed.
        own: the kernel on activations that it quantized itself.
        shared: the kernel on llama.cpp's own activation bytes.
        other_m: the kernel with other numbers of tokens.
        other_shapes: the kernel at other N and K; None where it was not run there.
        llama: llama.cpp's own output against its own definition; None where llama.cpp was not asked.
        gap_nmse: NMSE between the two definitions' exact results.
        failures: how many outputs were wrong.
        under_test: the kernel is the one that the run verifies, not one that stands beside it.
    """

    tensor: str
    matrix: int | None
    node: str
    type: str
    m: int
    n: int
    k: int
    kernel: str
    llama_definition: str
    own: float
    shared: float
    other_m: float
    other_shapes: float | None
    llama: float | None
    gap_nmse: float
    failures: int
    under_test: bool = True

    @property
    def worst(self) -> float:
        """The kernel's largest utilisation; infinite where one is not a number."""
        values = [v for v in (self.own, self.shared, self.other_m, self.other_shapes) if v is not None]
        return math.inf if any(map(math.isnan, values)) else max(values)


class TypeEnvelope(msgspec.Struct, frozen=True, kw_only=True):
    """For which products with weights of one type a report holds, beside those of the model's graph.

    Args:
        type: of the weights.
        plan: the version of the probe plan.
        probes: "full" or "brief", as in `Options`.
        domain: what the kernel declares, in words; empty for everything.
        calls: that were made and judged.
        tokens, rows, columns: the numbers at which all outputs were right, as ranges.
        values: what the weights and activations were.
        indices: large products of which some thread blocks ran by themselves, and were right.
        grids: tokens, rows and columns whose launches CUDA would make.
        not_covered: what the plan asks for and could not be tried, and why.
        under_test: the kernel is the one that the run verifies, not one that stands beside it.
    """

    type: str
    plan: int
    probes: str
    domain: str
    calls: int
    tokens: str
    rows: str
    columns: str
    values: tuple[str, ...]
    indices: tuple[str, ...] = ()
    grids: tuple[str, ...] = ()
    not_covered: tuple[tuple[str, str], ...]
    under_test: bool


class TokenRecord(msgspec.Struct, frozen=True, kw_only=True, tag_field="record", tag="token"):
    """A predicted token: llama.cpp's, the kernel's on llama.cpp's activations and on its own, the exact product's."""

    position: int
    text: str
    llama: int
    shared: int
    own: int
    exact: int


class EmbeddingRecord(msgspec.Struct, frozen=True, kw_only=True, tag_field="record", tag="embedding"):
    """An embedding of a model that does not generate: cosines to llama.cpp's own of the same three, and the largest
    difference of an element on the kernel's own activations."""

    position: int
    text: str
    shared: float
    own: float
    exact: float
    own_difference: float


Detail = TensorBytes | TensorBlocks | TensorValues | GemmRecord | TokenRecord | EmbeddingRecord


class OutputMap(msgspec.Struct, frozen=True, kw_only=True):
    """The first wrong GEMM's output on a grid of cells.

    Args:
        tensor, where, who: which output it is: weights, their name as it is shown, whose output at which M.
        m, n: tokens and rows of the output.
        tokens_per_cell, rows_per_cell: a cell's size.
        utilisation: the largest of each cell, one list for each step of tokens.
        wrong: how many outputs of each cell are wrong.
        tile_tokens, tile_rows: outputs that one thread block of the kernel computes; 0 where that is not known.
    """

    tensor: str
    where: str
    who: str
    m: int
    n: int
    tokens_per_cell: int
    rows_per_cell: int
    utilisation: list[list[float]]
    wrong: list[list[int]]
    tile_tokens: int = 0
    tile_rows: int = 0
