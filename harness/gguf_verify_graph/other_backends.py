"""Devices of backends without a file of their own, such as Vulkan's: definitions are inferred from the outputs.

How such a backend multiplies depends on the device (halves, integer dot products, matrix cores) and on shapes. So each
product of the graph is examined: its definition is the first of the backend's possible ones (`operations.identified`)
that gives its outputs. If none does, or none is known for the backend, the product is not verified. Products outside
the graph have the definition of a random product with the same number of tokens.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

from gguf_verify.llama.answers import Started
from gguf_verify.llama.backends.device import Bytes, Floats
from gguf_verify.llama.backends.interface import Backend, BackendKind, Batch

if TYPE_CHECKING:
    from gguf_verify.formats.block import BlockFormat
    from gguf_verify.formats.tensor_types import WeightFormat
    from gguf_verify.llama.gemms import Gemm
    from gguf_verify.llama.library import Llama
    from gguf_verify.semantics.definition import Semantics

    from .operations.identified import Ruling

S = TypeVar("S", bound=np.generic)

#: Rows and columns of random weights.
_ROWS, _LONG = 64, 2048
#: Numbers of tokens: backends use different code for few and many. Few is up to 8 for Vulkan (`operations`) and CUDA.
_FEW, _MANY = 1, 9
_WORDS = {_FEW: "1 token", _MANY: f"{_MANY} tokens"}


class OtherBackend(Backend):
    """llama.cpp on any device of ggml's registry, with all layers that the device supports."""

    learns = True

    def __init__(self, name: str, kind: BackendKind, llama: Llama, properties: Started) -> None:
        super().__init__(name, kind, llama, properties)
        self.title = f"llama.cpp's {self._backend} backend"
        self._of_random: dict[tuple[str, int, bool], Ruling | str] = {}
        self._of_graph: dict[tuple[str, str, int, int], Ruling | str] = {}

    @property
    def _backend(self) -> str:
        return self.properties.backend

    def describe(self) -> str:
        return f"{self.properties.device} ({self._backend}) on {self.properties.name}, all layers"

    def definition(self, fmt: WeightFormat, tokens: int = 1, experts: bool = False) -> Semantics:
        return _known(self._drawn(fmt, tokens, False)).semantics

    def definition_of(self, gemm: Gemm, fmt: WeightFormat, rows: Bytes) -> Semantics:
        from gguf_verify.formats.block import BlockFormat

        if gemm.idle or not gemm.y.size or not isinstance(fmt, BlockFormat):
            return self.definition(fmt, max(1, len(gemm.x)))
        key = gemm.tensor, gemm.node, gemm.first_row, zlib.crc32(np.ascontiguousarray(gemm.y).data)
        if key not in self._of_graph:
            self._of_graph[key] = self._learned(fmt, rows[None], gemm.x[None], gemm.y[None], gemm.tokens)
        return _known(self._of_graph[key]).semantics

    def block_products(
        self, fmt: WeightFormat, rows: Bytes, x: Floats, tokens: int, threads: int
    ) -> tuple[Semantics, Floats, Bytes | None]:
        definition = _known(self._drawn(fmt, tokens, True)).semantics
        return definition, self.blocks(fmt, rows, x, tokens, threads), None

    def _drawn(self, fmt: WeightFormat, tokens: int, blocks: bool) -> Ruling | str:
        """Identify the definition of random products of this many tokens, or of each block of their rows."""
        from gguf_verify.formats.block import BlockFormat

        from .operations.identified import random_product

        if not isinstance(fmt, BlockFormat):
            return _NOT_QUANTIZED
        key = fmt.name, tokens, blocks
        if key not in self._of_random:
            w, x = random_product(fmt, tokens, _ROWS, max(_LONG, fmt.block_size))
            if blocks:
                y = self.blocks(fmt, w, x, tokens, 1)
                w_of, x_of = _by_block(w, len(y)), _by_block(x, len(y))
                longer = self._drawn(fmt, _MANY, False)
                out = frozenset[str]() if isinstance(longer, str) else longer.out
                self._of_random[key] = self._learned(fmt, w_of, x_of, y, tokens, out)
            else:
                self._of_random[key] = self._learned(fmt, w[None], x[None], self.multiply(fmt, w, x, 1)[None], tokens)
        return self._of_random[key]

    def _learned(
        self, fmt: BlockFormat, w: Bytes, x: Floats, y: Floats, tokens: int, out: frozenset[str] = frozenset()
    ) -> Ruling | str:
        """Identify the definition that gives these outputs [B, M, N], or say why it is unknown."""
        from gguf_verify.llama.node import NoDefinition

        from .operations.identified import identified_product

        try:
            return identified_product(self._backend, fmt, w, x, y, tokens, out)
        except NoDefinition as error:
            return str(error)

    def uncovered(self, fmt: WeightFormat) -> str | None:
        from gguf_verify.formats.element import ElementFormat

        return self.unsupported(f"{fmt.name}: {_NOT_QUANTIZED}") if isinstance(fmt, ElementFormat) else None

    def label(self, definition: Semantics) -> str:
        return f"llama.cpp as {definition.name}{definition.rounded_words}"

    def definitions(self, fmt: WeightFormat) -> dict[str, Semantics | None]:
        from gguf_verify.semantics.cuda import NoDefinition

        found: dict[str, Semantics | None] = {}
        for tokens, words in _WORDS.items():
            try:
                found[words] = self.definition(fmt, tokens)
            except NoDefinition:
                found[words] = None
        return found

    def token_counts(self, m: int) -> Sequence[int]:
        return (m, max(m, _MANY))

    def context_size(self, tokens: int) -> int:
        return max(tokens, 2 * _MANY)

    def batches(self, prompt: list[int], source: list[int], embeds: bool) -> Iterator[Batch]:
        """Yield the prompt, repeated until it has many tokens, and its first token alone. The source of an
        encoder-decoder model is treated in the same way."""
        many = prompt * -(-_MANY // len(prompt))
        if source:
            yield Batch(many, source=source * -(-_MANY // len(source)))
            yield Batch(prompt, source=source[:1])
            return
        yield Batch(many)
        yield Batch(prompt[:1])


_NOT_QUANTIZED = "products with unquantized weights are not judged on this device: see `gguf-verify backend`"


def _by_block(rows: npt.NDArray[S], blocks: int) -> npt.NDArray[S]:
    """Split rows [n, …] into [blocks, n, …]."""
    return rows.reshape(len(rows), blocks, -1).transpose(1, 0, 2)


def _known(found: Ruling | str) -> Ruling:
    from gguf_verify.semantics.cuda import NoDefinition

    if isinstance(found, str):
        raise NoDefinition(found)
    return found
