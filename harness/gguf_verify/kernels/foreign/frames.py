"""Arrays of the libraries that kernels in Python are written with: NumPy, PyTorch, CuPy, JAX; on the CPU or on a card.

A kernel on the CPU gets the mapped operands themselves, where its library can use them. What lies on a card is a copy:
`Frame.settle` writes outputs, and inputs that the kernel changed, back to where the verifier looks for them.
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
#: Bytes of NaN behind a copy on a GPU, which begins as many bytes behind a multiple of 256 as the operand does.
_BEHIND = 4096


class Frame:
    """Operands as arrays of a library, and its arrays as NumPy's: here of NumPy, whose bfloat16 are uint16.

    Args:
        library, device: of `api.ARRAYS` and `api.DEVICES`.

    Raises EnvironmentFault where the library or the card is missing.
    """

    def __init__(self, library: str, device: str) -> None:
        self._device = device
        #: What lies on a card, and the operand that it is a copy of.
        self._copies: list[tuple[Mapped, Any]] = []

    def array(self, mapped: Mapped) -> Any:
        """An operand."""
        return mapped.array

    def stream(self) -> int:
        """The stream that the library launches on."""
        return 0

    def wait(self) -> None:
        """Until what was launched is done."""

    def write(self, mapped: Mapped, values: npt.NDArray[Any]) -> None:
        """Write an output that a function returned, after which `settle` finds it as it is."""
        mapped.array[...] = values
        self._copies = [(other, flat) for other, flat in self._copies if other is not mapped]

    def settle(self, keep: bool = False) -> None:
        """Write back what lies on a card and changed; with `keep`, only look."""
        for mapped, flat in self._copies:
            made = self._bytes(flat)[: mapped.operand.nbytes]
            if not np.array_equal(made, mapped.bytes):
                mapped.bytes[:] = made
        if not keep:
            self._copies.clear()

    def forget(self) -> None:
        """Drop the copies on the GPU without writing them back: their old places may hold other operands now."""
        self._copies.clear()

    def _bytes(self, flat: Any) -> npt.NDArray[np.uint8]:
        raise NotImplementedError


class TorchFrame(Frame):
    """PyTorch's tensors."""

    def __init__(self, library: str, device: str) -> None:
        super().__init__(library, device)
        self._torch = _imported("torch")
        if device == "cuda" and not self._torch.cuda.is_available():
            raise EnvironmentFault("the kernel wants PyTorch's tensors on a card, and PyTorch sees none")

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
    """CuPy's arrays, whose bfloat16 are uint16."""

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
    """JAX's arrays, which nobody writes into."""

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
            raise EnvironmentFault(f"the kernel wants JAX's arrays on a card: {one_line(error)}") from None
        return self._jax.device_put(array, place)


_FRAMES: dict[str, type[Frame]] = {"numpy": Frame, "torch": TorchFrame, "cupy": CupyFrame, "jax": JaxFrame}


def frame_of(library: str, device: str) -> Frame:
    """Raises EnvironmentFault where the library or the card is missing."""
    return _FRAMES[library](library, device)


def _imported(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except BaseException as error:
        words = f"the kernel takes arrays of {name}, which cannot be imported: {one_line(error)}"
        raise EnvironmentFault(words) from None


def as_array(answer: Any, wanted: str = "") -> tuple[npt.NDArray[Any], str]:
    """An answer as a NumPy array, without a copy where possible, and its dtype's name. Raises Fault.

    Args:
        wanted: the dtype that it should have: bfloat16 may come as its bits, since NumPy and CuPy have no such dtype.
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
        if name == BFLOAT16 or (wanted == BFLOAT16 and name == "uint16"):  # of the package ml_dtypes, or its bits
            return answer.view(np.uint16), BFLOAT16
        return answer, str(answer.dtype)
    except Fault:
        raise
    except BaseException as error:
        raise Fault(f"what the kernel returned cannot be read as an array: {one_line(error)}") from None


def _as_numpy(answer: Any) -> npt.NDArray[Any]:
    if hasattr(answer, "__cuda_array_interface__"):  # CuPy's, PyTorch's; JAX's and Numba's have neither method
        answer = answer.get() if hasattr(answer, "get") else answer.cpu() if hasattr(answer, "cpu") else answer
    if hasattr(answer, "__array__"):  # before DLPack, whose arrays may be read only
        return np.asarray(answer)
    if hasattr(answer, "__dlpack__"):
        return np.from_dlpack(answer)
    raise Fault(f"the kernel returned {type(answer).__name__}, not an array")


def poison_answer(answer: Any, y: npt.NDArray[Any], others: list[npt.NDArray[Any]]) -> None:
    """Overwrite an answer that was read, where possible, so that an element that is not written next time is noticed.

    Args:
        y: the answer as an array.
        others: arrays that must stay as they are.
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
