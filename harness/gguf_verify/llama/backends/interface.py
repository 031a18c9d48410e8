"""What the rungs ask a backend of llama.cpp. A backend is one file of this package that defines a `BackendKind`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..answers import Started

if TYPE_CHECKING:
    from ...formats import WeightFormat
    from ...semantics.definition import Semantics
    from ..gemms import Gemm
    from ..library import Llama
    from .device import Device

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

#: Bytes of weights, times tokens, of a product outside the graph, for each thread that computes it.
_WORTH_A_THREAD = 1 << 22


@dataclass(frozen=True)
class BackendKind:
    """A backend of llama.cpp.

    Args:
        backend: ggml's name of it; "" for all that have no file of their own.
        title: what it is, in reports.
        started: makes the `Backend` of a device that was started in a llama.cpp process, from its name as `--reference`
            has it, and from what llama.cpp's process says of the device.
        device: makes the `Device` of one of ggml's devices in llama.cpp's process. Raises NoDevice.
        says: what llama.cpp's process must say of such a device, with `Device.properties`.
    """

    backend: str
    title: str
    started: Callable[[str, BackendKind, Llama, Any], Backend]
    device: Callable[[Any], Device]
    says: type[Started] = Started


class Batch(NamedTuple):
    """Tokens that are evaluated in one batch.

    Args:
        tokens: the tokens.
        position: of the first one; those before it were evaluated last.
        source: what an encoder-decoder model has read before; None leaves that as it is.
    """

    tokens: list[int]
    position: int = 0
    source: list[int] | None = None


class Backend(ABC):
    """A device of a backend of llama.cpp, started: what it computes and how it is asked.

    Args:
        name: of the device, as `--reference` has it.
        kind: the backend's record.
        llama: the llama.cpp process in which it was started.
        properties: ggml's names of the backend and of the device, what the device is ("name"), and what
            `Device.properties` said.
    """

    #: Whether a code of its quantizer may differ from IEEE division's by one step (`semantics.fast_math`).
    ambiguous_codes = False
    #: Whether its definitions come to be known by asking llama.cpp's process, which takes one call at a time.
    learns = False
    #: Whether it multiplies weights where they lie in the mapped file (unless they are repacked): processes share them,
    #: and a product that is replaced need not be computed.
    mapped = False
    #: Whether outputs are compared with its own; if not, nothing is asked of llama.cpp.
    compared = True
    #: What it is called beside a kernel's name.
    who = "llama.cpp"

    @property
    def reveals(self) -> Sequence[str]:
        """Names of the definitions whose activations it gives as its quantizer made them: `activations`."""
        return ()

    def __init__(self, name: str, kind: BackendKind, llama: Llama, properties: Started) -> None:
        self.name, self.title, self.llama, self.properties = name, kind.title, llama, properties

    @property
    def paths(self) -> Mapping[str, int]:
        """Its kernels that have a definition each, and for each a number of tokens that leads to it; empty if it has
        one way to multiply, whatever the number of tokens."""
        return {}

    @cached_property
    def versions(self) -> dict[str, Any]:
        """`Llama.versions`."""
        return self.llama.versions()

    @abstractmethod
    def describe(self) -> str:
        """Where llama.cpp runs, for a report's header."""

    # What it computes.

    @abstractmethod
    def definition(self, fmt: WeightFormat, tokens: int = 1, experts: bool = False) -> Semantics:
        """What it computes for weights of a format and so many tokens, in a MUL_MAT_ID or not.

        Raises:
            NoDefinition: no definition describes it; the message says why.
            EnvironmentFault: the library says that it computes something else.
        """

    def definition_of(self, gemm: Gemm, fmt: WeightFormat, rows: Bytes) -> Semantics:
        """What a product of the graph is.

        Args:
            rows: its weights, uint8[N, row bytes].

        Raises as `definition`.
        """
        return self.definition(fmt, gemm.tokens, gemm.experts)

    def uncovered(self, fmt: WeightFormat) -> str | None:
        """Why no product with such weights can be judged, or None if some can."""
        return None

    def undefined(self, gemm: Gemm, fmt: WeightFormat, rows: Bytes) -> str | None:
        """Why it is not known exactly what a product of the graph is, or None if it is known."""
        from ...semantics.cuda import NoDefinition

        if not gemm.on_backend:
            return f"{self.title} left it to the CPU"
        try:
            self.definition_of(gemm, fmt, rows)
        except NoDefinition as error:
            return self.unsupported(error)
        return None

    def unsupported(self, error: object) -> str:
        """A reason why something cannot be judged with this reference."""
        return f"unsupported with --reference {self.name}: {error}"

    def path(self, definition: Semantics) -> str | None:
        """Which of `paths` computes a definition; None if there are no paths."""
        return None

    def label(self, definition: Semantics) -> str:
        """What its outputs are called in reports: with more than one path, with the definition's name."""
        return f"llama.cpp as {definition.name}" if self.paths else "llama.cpp"

    def definitions(self, fmt: WeightFormat) -> dict[str, Semantics | None]:
        """What each path computes for a format, None if no definition describes it; if there are no paths, the one
        definition under ""."""
        from ...semantics.cuda import NoDefinition

        found: dict[str, Semantics | None] = {}
        for path, tokens in (self.paths or {"": 1}).items():
            try:
                found[path] = self.definition(fmt, tokens)
            except NoDefinition:
                found[path] = None
        return found

    def definitions_in_words(self, fmt: WeightFormat) -> str:
        """The names of its definitions for a format, for a report's header."""
        names = {path: "unsupported" if d is None else d.name for path, d in self.definitions(fmt).items()}
        if len(set(names.values())) == 1:
            return next(iter(names.values()))
        return ", ".join(f"{name} ({path})" for path, name in names.items())

    # Products outside the graph.

    def multiply(self, fmt: WeightFormat, rows: Bytes, x: Floats, threads: int) -> Floats:
        """Its product float32[M, N] of weights uint8[N, row bytes] and activations float32[M, K]."""
        return self.llama.multiply(fmt.type_id, rows, x, threads, self.name)

    def activations(self, definition: str, x: Floats) -> Bytes:
        """Activations float32[M, K] as its quantizer makes them for a definition that it `reveals`, uint8[M, row
        bytes]."""
        return self.llama.activations(definition, x, self.name)

    def quantizer(self, path: str) -> Semantics:
        """A definition that takes activations as the quantizer of a path makes them."""
        raise KeyError(path)

    def token_counts(self, m: int) -> Sequence[int]:
        """Numbers of tokens, m or more, with which block products show each path."""
        return (m,)

    def block_products(
        self, fmt: WeightFormat, rows: Bytes, x: Floats, tokens: int, threads: int
    ) -> tuple[Semantics, Floats, Bytes | None]:
        """Every product of a block with activations x float32[M, K], float32[K/32, M, N], computed with so many tokens
        (x repeated), after its definition. Also x as its quantizer made it, uint8[M, row bytes], if it reveals that.

        Raises as `definition`.
        """
        definition = self.definition(fmt, tokens)
        y = self.blocks(fmt, rows, x, tokens, threads)
        return definition, y, self.activations(definition.name, x) if definition.name in self.reveals else None

    def blocks(self, fmt: WeightFormat, rows: Bytes, x: Floats, tokens: int, threads: int) -> Floats:
        """Likewise, the products alone."""
        repeated = x if tokens == len(x) else x[np.arange(tokens) % len(x)]
        # threads of ggml spin at barriers, beside those that compute the graph meanwhile
        threads = min(threads, 1 + rows.nbytes * tokens // _WORTH_A_THREAD)
        return self.llama.block_products(fmt.type_id, rows, repeated, threads, self.name)[:, : len(x)]

    def computed(self, gemm: Gemm, definition: Semantics, fmt: WeightFormat, rows: Bytes, threads: int) -> Gemm:
        """A matrix that the graph did not use, with the product of its activations outside the graph as output."""
        gemm = replace(gemm, y=self.multiply(fmt, rows, gemm.x, threads))
        if definition.name in self.reveals and definition.activations is not None:
            taken = self.activations(definition.name, gemm.x)
            gemm = replace(gemm, quantized={definition.activations.type_id: taken})
        return gemm

    # The graph.

    def context_size(self, tokens: int) -> int:
        """How many tokens the context must take for `batches`, of a run that itself needs so many."""
        return tokens

    def batches(self, prompt: list[int], source: list[int], embeds: bool) -> Iterator[Batch]:
        """The batches whose GEMMs show all that it does with a matrix.

        Args:
            prompt: the tokens of the prompt.
            source: what an encoder-decoder model reads, else empty.
            embeds: the model has no memory of past tokens.
        """
        yield Batch(prompt)
