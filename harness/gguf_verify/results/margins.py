"""Records of how outputs were judged: the worst ones, the ranges of numbers, and samples."""

from __future__ import annotations

import msgspec

from ..support.text import counted


class Side(msgspec.Struct, frozen=True):
    """Whose output was judged: its name in reports, and whether it is the kernel's (else it is llama.cpp's)."""

    name: str
    of_kernel: bool


class Worst(msgspec.Struct, frozen=True):
    """The worst of one side: the largest utilisation of the bound and where it was, and the largest score anywhere."""

    utilisation: float
    where: str
    score: float
    of_kernel: bool


class Headroom(msgspec.Struct, frozen=True, kw_only=True):
    """The half that came nearest to overflowing, among all activations of the graph.

    Args:
        what: "d" or "s".
        tensor, token, block: whose activations, and where.
        value, limit: the number, and the largest that its type holds.
        of_llama: llama.cpp's CUDA backend keeps this number in the same type.
    """

    what: str
    tensor: str
    token: int
    block: int
    value: float
    limit: float
    of_llama: bool = False

    @property
    def ratio(self) -> float:
        """|value| / limit: above 1 it would overflow."""
        return abs(self.value) / self.limit


class Sampled(msgspec.Struct, frozen=True):
    """The sample of large matrices that was judged element by element.

    Args:
        what: "outputs" of whole products, or "blocks" that are multiplied one by one.
        of: their number in such matrices.
        alone: the number that were judged one by one. All other outputs were checked by random combinations of rows;
            other blocks only as parts of their rows, by higher rungs.
        missed: the largest probability with which those combinations miss wrong outputs of one token whose errors have,
            as the root of the sum of their squares, more than twice `smallest`; None for blocks.
        smallest: the error from which on a single wrong output is never missed, as a share of the size of its row's
            outputs: the root mean square of its token's outputs, each divided by the norm of its row of weights, times
            that norm. The largest of any token of any product. None for blocks.
    """

    what: str
    of: int
    alone: int
    missed: float | None = None
    smallest: float | None = None

    def joined(self, other: Sampled) -> Sampled:
        """Both together, of the same kind."""
        missed = None if self.missed is None else max(self.missed, other.missed or 0.0)
        smallest = None if self.smallest is None else max(self.smallest, other.smallest or 0.0)
        return Sampled(self.what, self.of + other.of, self.alone + other.alone, missed, smallest)

    @property
    def words(self) -> str:
        """In a line."""
        said = f"{self.alone:,} of {self.of:,} {self.what} of large matrices were judged one by one"
        if self.missed is None or self.smallest is None:
            return f"{said}, the others within their rows"
        return (
            f"{said}, all by random combinations of rows: a wrong output is never missed if its error is more than "
            f"{self.smallest:.2g} of the size of its row's outputs, and several with a probability of at most "
            f"{self.missed:.1g} if the root of the sum of their squares is more than twice that"
        )


class Closer(msgspec.Struct, frozen=True):
    """Products whose bound for any order of roundings could not fail, and that were judged by the loss of correct
    kernels instead: see `semantics.closer`.

    Args:
        products: that were judged so.
        outputs: of these products.
        judged: outputs that were judged so; the others were judged by the bound alone.
        together: products of which the outputs of each token, or of all tokens, were judged together.
    """

    products: int
    outputs: int
    judged: int
    together: int

    def joined(self, other: Closer) -> Closer:
        """Both together."""
        mine, theirs = msgspec.structs.astuple(self), msgspec.structs.astuple(other)
        return Closer(*(a + b for a, b in zip(mine, theirs, strict=True)))

    @property
    def words(self) -> str:
        """In a line."""
        n = counted(self.products, "products")
        words = (
            f"{n} judged by what kernels' orders of summation lose, since the bound for any order would accept zeros: "
            f"{self.judged:,} of {self.outputs:,} outputs"
        )
        if not self.together:
            return words
        return (
            f"{words}; in {self.together:,} of them all outputs of a token, or of all tokens, together: a correct "
            "kernel fails with a probability of at most 1e-09, and errors of twice their limit are missed as seldom"
        )
