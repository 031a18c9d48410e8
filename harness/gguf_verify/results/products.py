"""Records of the tensors, products and tokens that a rung checked."""

from __future__ import annotations

import math

import msgspec


class DrawnProduct(msgspec.Struct, frozen=True, kw_only=True):
    """A product of random data: the weights' type, tokens, rows and columns."""

    type: str
    m: int
    n: int
    k: int


class DrawnData(msgspec.Struct, frozen=True, kw_only=True):
    """Random data that a kernel was verified on, without a model.

    Args:
        seed: of the random numbers.
        products: in place of those of a model's graph.
        weights, activations: how they were made, in words.
        compared: llama.cpp computed the same products, and the kernel's outputs were compared with them.
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
        llama: llama.cpp's own output against its own definition; None if llama.cpp did not compute it.
        gap_nmse: NMSE between the two definitions' exact results.
        failures: number of wrong outputs.
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
    """The products with weights of one type for which a report holds, in addition to those of the model's graph.

    Args:
        type: of the weights.
        plan: the version of the probe plan.
        probes: "full", "brief" or "planned", as in `Options`.
        domain: what the kernel declares, in words; empty for everything.
        calls: number of calls that were made and judged.
        tokens, rows, columns: the numbers at which all outputs were correct, as ranges.
        alignments: operand → bytes of which its address is a multiple, where that was less than 16 in some of these
            calls; unset if there are none.
        values: the kinds of weights and activations.
        indices: large products of which some thread blocks ran by themselves, or some outputs were judged; all correct.
        grids: tokens, rows and columns whose launches CUDA accepts.
        not_covered: parts of the plan that could not be tried, and why.
        under_test: the kernel is the one that the run verifies, not one used beside it.
    """

    type: str
    plan: int
    probes: str
    domain: str
    calls: int
    tokens: str
    rows: str
    columns: str
    alignments: dict[str, int] | msgspec.UnsetType = msgspec.UNSET
    values: tuple[str, ...]
    indices: tuple[str, ...] = ()
    grids: tuple[str, ...] = ()
    not_covered: tuple[tuple[str, str], ...]
    under_test: bool

    @property
    def addresses(self) -> str:
        """`alignments` in words; "" if there are none."""
        if self.alignments is msgspec.UNSET:
            return ""
        return ", ".join(f"{name} at multiples of {least} bytes" for name, least in self.alignments.items())


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


class OrderRecord(msgspec.Struct, frozen=True, kw_only=True, tag_field="record", tag="order"):
    """The order of summation of a kernel that declares none, of one product of the graph (`--order find`).

    Args:
        tensor: the weights' name.
        type: their type.
        m, n, k: tokens, rows, columns.
        order: the order, and the arithmetic of a term, in words; None if no order was found.
        tree: the tree of the summands, numbered along K: additions are in parentheses, from the left. None likewise.
        differing: outputs whose bits are not those of this order; None likewise.
        why: the reason why no order was found; None if one was.
    """

    tensor: str
    type: str
    m: int
    n: int
    k: int
    order: str | None = None
    tree: str | None = None
    differing: int | None = None
    why: str | None = None


Detail = TensorBytes | TensorBlocks | TensorValues | GemmRecord | TokenRecord | EmbeddingRecord | OrderRecord


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
