"""Operands as arrays of NumPy, PyTorch, CuPy and JAX, on the CPU or on a GPU.

A kernel on the CPU gets the mapped operands themselves if its library allows that. An array on a GPU is a copy:
`Frame.settle` writes outputs, and inputs that the kernel changed, back to where the verifier reads them.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from ...hosts.memory import POISON, POISON_16
from ...support.errors import EnvironmentFault
from .faults import Fault, one_line
from .operands import Mapped, dtype_of

BFLOAT16 = "bfloat16"
#: Bytes of NaN behind a copy on a GPU. The copy has the operand's address modulo 256.
_BEHIND = 4096


class Frame:
    """Operands as arrays of a library, and the library's arrays as NumPy's.

    This class is for NumPy, with bfloat16 as uint16.

    Args:
        library, device: from `api.ARRAYS` and `api.DEVICES`.

    Raises EnvironmentFault if the library or the GPU is missing.
    """

    def __init__(self, library: str, device: str) -> None:
        self._device = device
        #: Arrays on a GPU, with the operands that they copy.
        self._copies: list[tuple[Mapped, Any]] = []

    def array(self, mapped: Mapped) -> Any:
        """Return an operand as an array."""
        return mapped.array

    def stream(self) -> int:
        """Return the stream that the library launches on."""
        return 0

    def wait(self) -> None:
        """Wait for all launches to finish."""

    def write(self, mapped: Mapped, values: npt.NDArray[Any]) -> None:
        """Write an output that a function returned; `settle` does not overwrite it."""
        mapped.array[...] = values
        self._copies = [(other, flat) for other, flat in self._copies if other is not mapped]

    def settle(self, keep: bool = False) -> None:
        """Write back arrays on a GPU that changed; with `keep`, keep the copies for later calls."""
        for mapped, flat in self._copies:
            made = self._bytes(flat)[: mapped.operand.nbytes]
            if not np.array_equal(made, mapped.bytes):
                mapped.bytes[:] = made
        if not keep:
            self._copies.clear()

    def forget(self) -> None:
        """Drop the copies on the GPU without writing them back: their places may hold other operands now."""
        self._copies.clear()

    def _bytes(self, flat: Any) -> npt.NDArray[np.uint8]:
        raise NotImplementedError


class TorchFrame(Frame):
    """PyTorch tensors."""

    def __init__(self, library: str, device: str) -> None:
        super().__init__(library, device)
        self._torch = _imported("torch")
        if device == "cuda" and not self._torch.cuda.is_available():
            raise EnvironmentFault("the kernel takes PyTorch tensors on a GPU, but PyTorch finds no GPU")

    def array(self, mapped: Mapped) -> Any:
        torch, operand = self._torch, mapped.operand
        flat = torch.from_numpy(mapped.bytes)
        if self._device == "cuda":
            begins, n = operand.at % 256, len(flat)
            whole = torch.full((begins + n + _BEHIND,), 0xFF, dtype=torch.uint8, device="cuda")
            flat = whole[begins : begins + n].copy_(flat)
            self._copies.append((mapped, flat))
        name = {"uint16": "int16", "uint32": "int32", "uint64": "int64"}.get(operand.dtype, operand.dtype)
        dtype = getattr(torch, name)
        size = dtype_of(operand.dtype).itemsize
        if 0 in operand.shape:
            return torch.empty(operand.shape, dtype=dtype, device=flat.device)
        values = flat[: operand.nbytes // size * size].view(dtype)
        if operand.strides is None:
            return values[: int(np.prod(operand.shape))].reshape(operand.shape)
        return values.as_strided(operand.shape, [stride // size for stride in operand.strides])

    def stream(self) -> int:
        return int(self._torch.cuda.current_stream().cuda_stream) if self._device == "cuda" else 0

    def wait(self) -> None:
        if self._device == "cuda":
            self._torch.cuda.synchronize()

    def _bytes(self, flat: Any) -> npt.NDArray[np.uint8]:
        return np.asarray(flat.cpu().numpy())


class CupyFrame(Frame):
    """CuPy arrays, with bfloat16 as uint16."""

    def __init__(self, library: str, device: str) -> None:
        super().__init__(library, device)
        self._cupy = _imported("cupy")

    def array(self, mapped: Mapped) -> Any:
        operand, cupy = mapped.operand, self._cupy
        begins, n = operand.at % 256, operand.nbytes
        flat = cupy.full(begins + n + _BEHIND, 0xFF, np.uint8)[begins : begins + n]
        flat.set(mapped.bytes)
        self._copies.append((mapped, flat))
        return cupy.ndarray(operand.shape, dtype_of(operand.dtype), flat.data, operand.strides)

    def stream(self) -> int:
        return int(self._cupy.cuda.get_current_stream().ptr)

    def wait(self) -> None:
        self._cupy.cuda.get_current_stream().synchronize()

    def _bytes(self, flat: Any) -> npt.NDArray[np.uint8]:
        return np.asarray(self._cupy.asnumpy(flat))


class JaxFrame(Frame):
    """JAX arrays, which are immutable."""

    def __init__(self, library: str, device: str) -> None:
        super().__init__(library, device)
        self._jax = _imported("jax")

    def array(self, mapped: Mapped) -> Any:
        array = mapped.array.copy()
        if mapped.operand.dtype == BFLOAT16:
            array = array.view(_imported("ml_dtypes").bfloat16)
        try:
            place = self._jax.devices("cpu" if self._device == "cpu" else "gpu")[0]
        except RuntimeError as error:
            raise EnvironmentFault(f"the kernel takes JAX arrays on a GPU, but finds none: {one_line(error)}") from None
        return self._jax.device_put(array, place)


_FRAMES: dict[str, type[Frame]] = {"numpy": Frame, "torch": TorchFrame, "cupy": CupyFrame, "jax": JaxFrame}


def frame_of(library: str, device: str) -> Frame:
    """Return a frame. Raises EnvironmentFault if the library or the GPU is missing."""
    return _FRAMES[library](library, device)


def _imported(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except BaseException as error:
        words = f"the kernel takes arrays of {name}, which cannot be imported: {one_line(error)}"
        raise EnvironmentFault(words) from None


def as_array(answer: Any, wanted: str = "") -> tuple[npt.NDArray[Any], str]:
    """Return a kernel's result as a NumPy array, without a copy if possible, and the name of its dtype.

    Args:
        wanted: the expected dtype: bfloat16 may come as uint16 bits, since NumPy and CuPy have no such dtype.

    Raises Fault.
    """
    try:
        if hasattr(answer, "detach"):  # PyTorch: a tensor that requires a gradient
            answer = answer.detach()
            if str(answer.dtype).endswith(BFLOAT16):
                answer = answer.view(sys.modules["torch"].int16).cpu().numpy().view(np.uint16)
                return answer, BFLOAT16
        if not isinstance(answer, np.ndarray):
            answer = _as_numpy(answer)
        name = answer.dtype.name
        if name == BFLOAT16 or (wanted == BFLOAT16 and name == "uint16"):  # from the package ml_dtypes, or its bits
            return answer.view(np.uint16), BFLOAT16
        return answer, str(answer.dtype)
    except Fault:
        raise
    except BaseException as error:
        raise Fault(f"the kernel's return value cannot be read as an array: {one_line(error)}") from None


def _as_numpy(answer: Any) -> npt.NDArray[Any]:
    if hasattr(answer, "__cuda_array_interface__"):  # CuPy and PyTorch; JAX and Numba have neither method
        answer = answer.get() if hasattr(answer, "get") else answer.cpu() if hasattr(answer, "cpu") else answer
    if hasattr(answer, "__array__"):  # preferred to DLPack, whose arrays may be read-only
        return np.asarray(answer)
    if hasattr(answer, "__dlpack__"):
        return np.from_dlpack(answer)
    raise Fault(f"the kernel returned {type(answer).__name__}, not an array")


def described(dtype: str, shape: tuple[int, ...]) -> str:
    """Return type and shape of an array for a message: "float32[2, 3]"."""
    return f"{dtype}[{', '.join(map(str, shape))}]"


def poison_answer(answer: Any, y: npt.NDArray[Any], others: list[npt.NDArray[Any]]) -> None:
    """Overwrite a result after reading it, if possible, so that elements that the next call does not write are noticed.

    Args:
        y: the result as an array.
        others: arrays that must not change.
    """
    words: dict[int, Any] = {4: POISON, 2: POISON_16}
    word = words.get(y.dtype.itemsize)
    if word is None:
        return
    if hasattr(answer, "__cuda_array_interface__"):
        with contextlib.suppress(Exception):
            if hasattr(answer, "detach"):
                torch = sys.modules["torch"]
                answer.detach().view(torch.int32 if word is POISON else torch.int16).fill_(int(word))
            else:
                answer.view(word.dtype).fill(int(word))
    elif y.flags.writeable and not any(np.may_share_memory(y, other) for other in others):
        y[...] = word.view(y.dtype)
