"""What NVRTC makes of the kernels."""

from __future__ import annotations

from pathlib import Path

from gguf_verify.hosts import nvrtc
from gguf_verify.support.paths import kernel_root
from tests.support.kernel_inputs import stack_bytes
from tests.support.needs import need


def cards() -> list[int]:
    """The GPUs that NVRTC compiles for, e.g. 90 for sm_90."""
    need("nvrtc")
    return nvrtc.architectures()


def stack(file: str, sm: str, macros: dict[str, str], root: Path | None = None) -> int:
    """The most bytes of stack that a function of a source takes: for local arrays and spilled registers."""
    stacks = list(stack_bytes(nvrtc.compile_cubin(root or kernel_root(), file, sm, macros)))
    assert stacks, "the cubin does not say"
    return max(stacks)


def as_macros(shape: dict[str, int]) -> dict[str, str]:
    return {name: str(value) for name, value in shape.items()}
