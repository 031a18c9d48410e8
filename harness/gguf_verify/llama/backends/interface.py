"""Interface between the rungs and a backend of llama.cpp. Each file of this package defines a `BackendKind`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from ...formats.tensor_types import WeightFormat
    from ...semantics.definition import Semantics
    from ..answers import Started
    from ..gemms import Gemm
    from ..library import Llama
    from .device import Device

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

#: Work of a product outside the graph per thread: bytes of weights, times tokens.
_WORTH_A_THREAD = 1 << 22


def _started() -> type[Started]:
    from ..answers import Started

    return Started


@dataclass(frozen=True)
class BackendKind:
    """A backend of llama.cpp.

    Args:
        backend: ggml's name of it; "" for all without a file of their own.
        title: its name in reports.
        started: makes the `Backend` of a device that was started in a llama.cpp process, from its name for
            `--reference` and from the process's report of the device.
        device: makes the `Device` for one of ggml's devices in llama.cpp's process. Raises NoDevice.
        says: returns the schema of the process's report of such a device, with `Device.properties`.
    """

    backend: str
    title: str
    started: Callable[[str, BackendKind, Llama, Any], Backend]
    device: Callable[[Any], Device]
    says: Callable[[], type[Started]] = _started


class Batch(NamedTuple):
    """Tokens to evaluate in one batch.

    Args:
        tokens: the tokens.
        position: of the first one; the tokens before it were evaluated last.
        source: the source of an encoder-decoder model; None leaves it unchanged.
    """

    tokens: list[int]
    position: int = 0
    source: list[int] | None = None


class Backend(ABC):
    """A started device of a backend of llama.cpp: its definitions, and calls that compute on it.

    Args:
        name: the device's name, as given to `--reference`.
        kind: the backend's record.
        llama: the llama.cpp process in which it was started.
        properties: ggml's names of the backend and of the device, a description of the device ("name"), and
            `Device.properties`.
    """

    #: Whether a code of its quantizer may differ by one step from IEEE division's (`semantics.fast_math`).
    ambiguous_codes = False
    #: Whether its definitions are inferred by calls to llama.cpp's process, which handles one call at a time.
    learns = False
    #: Whether it multiplies weights in the mapped file itself (unless they are repacked). Then processes share them,
    #: and a product that is replaced need not be computed.
    mapped = False
    #: Whether outputs are compared with its own; if not, llama.cpp is not used.
    compared = True
    #: Its name beside a kernel's name.
    who = "llama.cpp"

    @property
    def reveals(self) -> Sequence[str]:
        """Names of the definitions whose activations it can return as its quantizer made them, by `activations`."""
        return ()

    def __init__(self, name: str, kind: BackendKind, llama: Llama, properties: Started) -> None:
        self.name, self.title, self.llama, self.properties = name, kind.title, llama, properties

    @property
    def paths(self) -> Mapping[str, int]:
        """Its kernels with a definition each, and for each a number of tokens that selects it; empty if there is only
        one way to multiply."""
        return {}

    @cached_property
    def versions(self) -> dict[str, Any]:
        """`Llama.versions`."""
        return self.llama.versions()

    @abstractmethod
    def describe(self) -> str:
        """Describe where llama.cpp runs, for a report's header."""

    # Definitions.

    @abstractmethod
    def definition(self, fmt: WeightFormat, tokens: int = 1, experts: bool = False) -> Semantics:
        """Return the definition for weights of a format and a number of tokens, in a MUL_MAT_ID or not.

        Raises:
            NoDefinition: no definition describes it; the message says why.
            EnvironmentFault: the library reports that it computes something else.
        """

    def definition_of(self, gemm: Gemm, fmt: WeightFormat, rows: Bytes) -> Semantics:
        """Return the definition of a product in the graph.

        Args:
            rows: its weights, uint8[N, row bytes].

        Raises as `definition`.
        """
        return self.definition(fmt, gemm.tokens, gemm.experts)

    def uncovered(self, fmt: WeightFormat) -> str | None:
        """Say why no product with such weights can be judged; None if some can."""
        return None

    def undefined(self, gemm: Gemm, fmt: WeightFormat, rows: Bytes) -> str | None:
        """Say why the definition of a product in the graph is unknown; None if it is known."""
        from ...semantics.cuda import NoDefinition

        if not gemm.on_backend:
            return f"{self.title} left it to the CPU"
        try:
            self.definition_of(gemm, fmt, rows)
        except NoDefinition as error:
            return self.unsupported(error)
        return None

    def unsupported(self, error: object) -> str:
        """Return the reason why something cannot be judged with this reference."""
        return f"unsupported with --reference {self.name}: {error}"

    def path(self, definition: Semantics) -> str | None:
        """Return the entry of `paths` that computes a definition; None if there are no paths."""
        return None

    def label(self, definition: Semantics) -> str:
        """Return the name of its outputs in reports; with more than one path, it includes the definition's name."""
        return f"llama.cpp as {definition.name}" if self.paths else "llama.cpp"

    def definitions(self, fmt: WeightFormat) -> dict[str, Semantics | None]:
        """Return path → definition for a format, None if no definition describes it; without paths, the one definition
        under ""."""
        from ...semantics.cuda import NoDefinition

        found: dict[str, Semantics | None] = {}
        for path, tokens in (self.paths or {"": 1}).items():
            try:
                found[path] = self.definition(fmt, tokens)
            except NoDefinition:
                found[path] = None
        return found

    def definitions_in_words(self, fmt: WeightFormat) -> str:
        """Return the names of its definitions for a format, for a report's header."""
        names = {path: "unsupported" if d is None else d.name for path, d in self.definitions(fmt).items()}
        if len(set(names.values())) == 1:
            return next(iter(names.values()))
        return ", ".join(f"{name} ({path})" for path, name in names.items())

    # Products outside the graph.

    def multiply(self, fmt: WeightFormat, rows: Bytes, x: Floats, threads: int) -> Floats:
        """Compute the product float32[M, N] of weights uint8[N, row bytes] and activations float32[M, K]."""
        return self.llama.multiply(fmt.type_id, rows, x, threads, self.name)

    def activations(self, definition: str, x: Floats) -> Bytes:
        """Return activations float32[M, K] as its quantizer makes them for a definition in `reveals`, uint8[M, row
        bytes]."""
        return self.llama.activations(definition, x, self.name)

    def quantizer(self, path: str) -> Semantics:
        """Return a definition that takes activations as the quantizer of a path makes them."""
        raise KeyError(path)

    def token_counts(self, m: int) -> Sequence[int]:
        """Return numbers of tokens, m or more, for which block products use each path."""
        return (m,)

    def block_products(
        self, fmt: WeightFormat, rows: Bytes, x: Floats, tokens: int, threads: int
    ) -> tuple[Semantics, Floats, Bytes | None]:
        """Compute every product of a block with activations x float32[M, K], as products of `tokens` tokens (x
        repeated). Returns the definition, float32[K/32, M, N], and x as its quantizer made it, uint8[M, row bytes], if
        it reveals that.

        Raises as `definition`.
        """
        definition = self.definition(fmt, tokens)
        y = self.blocks(fmt, rows, x, tokens, threads)
        return definition, y, self.activations(definition.name, x) if definition.name in self.reveals else None

    def blocks(self, fmt: WeightFormat, rows: Bytes, x: Floats, tokens: int, threads: int) -> Floats:
        """Compute only the block products, float32[K/32, M, N]."""
        repeated = x if tokens == len(x) else x[np.arange(tokens) % len(x)]
        # ggml's threads spin at barriers, next to those that compute the graph meanwhile
        threads = min(threads, 1 + rows.nbytes * tokens // _WORTH_A_THREAD)
        return self.llama.block_products(fmt.type_id, rows, repeated, threads, self.name)[:, : len(x)]

    def computed(self, gemm: Gemm, definition: Semantics, fmt: WeightFormat, rows: Bytes, threads: int) -> Gemm:
        """Compute the product for a matrix that the graph did not use, outside the graph, and set it as output."""
        gemm = replace(gemm, y=self.multiply(fmt, rows, gemm.x, threads))
        if definition.name in self.reveals and definition.activations is not None:
            taken = self.activations(definition.name, gemm.x)
            gemm = replace(gemm, quantized={definition.activations.type_id: taken})
        return gemm

    # The graph.

    def context_size(self, tokens: int) -> int:
        """Return the number of tokens that the context needs for `batches`, given the run's own need."""
        return tokens

    def batches(self, prompt: list[int], source: list[int], embeds: bool) -> Iterator[Batch]:
        """Yield batches whose GEMMs show every way in which it uses a matrix.

        Args:
            prompt: the tokens of the prompt.
            source: the source of an encoder-decoder model, or empty.
            embeds: the model has no memory of past tokens.
        """
        yield Batch(prompt)
