"""The values of `--reference`. This module imports little: help texts print them too."""

from __future__ import annotations

from ..support.near import spelled_as

#: Short names of devices → descriptions.
SHORT = {"cpu": "llama.cpp's CPU backend", "gpu": "the first GPU that llama.cpp has a backend for"}

#: Prefixes of ggml's device names for GPUs that Ray counts, showing each worker only one.
_CARDS = ("CUDA", "ROCm", "HIP", "MUSA", "SYCL")


def on_card(device: str) -> bool:
    """Whether a device is a GPU that Ray gives to one worker at a time. Vulkan's are not: Ray does not know them."""
    return device == "gpu" or device.startswith(_CARDS)


def reference_named(name: str) -> str:
    """Return the value of `--reference` that a name means; short names are known in any case, "cuda" as "gpu"."""
    return spelled_as(name, SHORT, {"cuda": "gpu"})


def help_of_references() -> str:
    """Return the values of `--reference`, for a help text."""
    return "; ".join([*(f"{name}: {title}" for name, title in SHORT.items()), "or a device's name, such as Vulkan0"])
