"""llama.cpp's CUDA backend: MMVQ computes products of few tokens, MMQ those of more, each with its own definitions.

So the graph is evaluated for the prompt in one batch, and then for its first tokens one by one. Block products are
computed twice as well. The backend is judged on its own activation bytes, which products with unit weights reveal
(`worker.cuda_device`), and these bytes against the definition of its quantizer (`semantics.fast_math`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...support.errors import EnvironmentFault
from .device import Device
from .interface import Backend, BackendKind, Batch

if TYPE_CHECKING:
    from ...formats.tensor_types import WeightFormat
    from ...semantics.definition import Semantics
    from ..answers import CudaStarted


class CudaBackend(Backend):
    """llama.cpp on a GPU of its CUDA backend, with all layers, fusion off."""

    properties: CudaStarted
    ambiguous_codes = True
    who = "llama.cpp on the GPU"

    @property
    def reveals(self) -> Sequence[str]:
        from ...semantics.definitions import SEMANTICS

        return tuple(name for name, definition in SEMANTICS.items() if definition.cuda_path)

    @property
    def paths(self) -> Mapping[str, int]:
        return {"MMVQ": 1, "MMQ": _mmvq_tokens() + 1}

    @property
    def sm(self) -> int:
        """Ten times the compute capability."""
        return self.properties.sm

    def describe(self) -> str:
        name = self.properties.name
        return f"CUDA on {name}, compute capability {self.sm / 10:.1f}, all layers, fusion off"

    def definition(self, fmt: WeightFormat, tokens: int = 1, experts: bool = False) -> Semantics:
        from ...semantics.cuda import llama_cuda_semantics

        if "FORCE_CUBLAS = 1" in self.versions["system"]:
            raise EnvironmentFault("this llama.cpp was built to multiply with cuBLAS only (GGML_CUDA_FORCE_CUBLAS)")
        return llama_cuda_semantics(fmt, tokens, self.sm, experts)

    def uncovered(self, fmt: WeightFormat) -> str | None:
        from ...formats.element import ElementFormat

        return self.unsupported(f"{fmt.name}: {fmt.llama.no_mmvq}") if isinstance(fmt, ElementFormat) else None

    def path(self, definition: Semantics) -> str | None:
        return definition.cuda_path

    def quantizer(self, path: str) -> Semantics:
        from ...semantics.definitions import SEMANTICS

        return next(definition for definition in SEMANTICS.values() if definition.cuda_path == path)

    def token_counts(self, m: int) -> Sequence[int]:
        return (m, _mmvq_tokens() + 1)

    def context_size(self, tokens: int) -> int:
        return max(tokens, 2 * _mmvq_tokens())  # room for a batch too large for MMVQ

    def batches(self, prompt: list[int], source: list[int], embeds: bool) -> Iterator[Batch]:
        """Yield the prompt, repeated until MMQ takes it, and its first tokens one at a time.

        The source of an encoder-decoder model is treated in the same way."""
        if not source:
            yield Batch(_long(prompt))
            for i, token in enumerate(prompt[: _mmvq_tokens()]):
                yield Batch([token], 0 if embeds else i)  # without a memory, each token is the first
            return
        yield Batch(_long(prompt), source=_long(source))
        for token in source[: _mmvq_tokens()]:
            yield Batch(prompt, source=[token])


def _long(tokens: list[int]) -> list[int]:
    """Repeat tokens until there are more than MMVQ takes."""
    return tokens * -(-(_mmvq_tokens() + 1) // len(tokens))


def _mmvq_tokens() -> int:
    """Return the largest number of tokens that MMVQ takes; for some formats it takes fewer."""
    from ...formats.llama_products import MMVQ_TOKENS

    return MMVQ_TOKENS


def _device(device: Any) -> Device:
    from ..worker.cuda_device import CudaDevice

    return CudaDevice(device)


def _says() -> type[CudaStarted]:
    from ..answers import CudaStarted

    return CudaStarted


CUDA = BackendKind("CUDA", "llama.cpp's CUDA backend", CudaBackend, _device, _says)
