"""A backend's side in llama.cpp's process: products outside a model, placement of models, activations of products."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]


class NoDevice(Exception):
    """The installed llama.cpp lacks the backend, or the machine lacks a device for it."""


@dataclass(frozen=True)
class Product:
    """A product with weights in the graph.

    Args:
        type: ggml type of the weights.
        tokens: columns of a MUL_MAT, tokens of a MUL_MAT_ID.
        experts: it is a MUL_MAT_ID.
        on_backend: the device computed it.
    """

    type: int
    tokens: int
    experts: bool
    on_backend: bool


class Device(ABC):
    """A backend in llama.cpp's process. Its constructor raises NoDevice if the backend cannot be used here."""

    def properties(self) -> dict[str, Any]:
        """Return what the parent's `Backend` gets to know of the device, as JSON."""
        return {}

    @abstractmethod
    def place_model(self, params: Any) -> None:
        """Set `llama_model_params` so that all layers go to this device."""

    @abstractmethod
    def place_context(self, params: Any) -> None:
        """Set `llama_context_params` so that operations and the cache go where the weights are."""

    def computed(self, t: Any) -> bool:
        """Whether this device computed a node of the graph."""
        return True

    @abstractmethod
    def multiply(self, type: int, w: Bytes, x: Floats, threads: int) -> Floats:
        """Compute `ggml_mul_mat` of weights uint8[N, row bytes] and activations float32[M, K]: float32[M, N]."""

    @abstractmethod
    def block_products(self, type: int, w: Bytes, x: Floats, threads: int) -> Floats:
        """Compute every block × block product, float32[K/n, M, N], of weights uint8[N, row bytes] in blocks of n
        values."""

    def activations(self, definition: str, x: Floats) -> Bytes:
        """Return float32[M, K] as products of a definition use them, uint8[M, row bytes]. A device needs this for the
        definitions that its `Backend` lists in `reveals`."""
        raise NotImplementedError(f"the activations of {definition} cannot be revealed")

    @abstractmethod
    def taken(self, product: Product, x: Floats, wanted: Sequence[int]) -> dict[int, Bytes]:
        """Return activations float32[M, K] of a product as its quantizer made them, uint8[M, row bytes], by ggml type.

        Args:
            wanted: the types that the parent requests; a device that knows the product's type returns only that.
        """
