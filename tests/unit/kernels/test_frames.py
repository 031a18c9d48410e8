"""What kernels in Python return, of whatever library: arrays that lie on a card are read by the way that they have."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest

from gguf_verify import kernel
from gguf_verify.kernels.foreign.faults import Fault
from gguf_verify.kernels.foreign.frames import Frame, as_array
from gguf_verify.kernels.foreign.operands import Mapped, MemoryFile, Operand, laid_out
from gguf_verify.kernels.foreign.python_kernel import PythonRunner

VALUES = np.arange(6, dtype=np.float32).reshape(2, 3)


class OnCard:
    """An array on a card, as far as the verifier looks at it."""

    __cuda_array_interface__: ClassVar[dict[str, Any]] = {}


class OfCupy(OnCard):
    def get(self) -> np.ndarray:
        return VALUES

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        raise TypeError("CuPy converts nothing by itself")


class OfTorch(OnCard):
    def cpu(self) -> np.ndarray:
        return VALUES

    __array__ = OfCupy.__array__


class OfJax(OnCard):
    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        return VALUES


@pytest.mark.parametrize("made", [OfCupy, OfTorch, OfJax])
def test_arrays_on_a_card_are_read(made: type[OnCard]) -> None:
    array, dtype = as_array(made())
    assert dtype == "float32"
    assert np.array_equal(array, VALUES)


def test_what_cannot_be_read_is_a_fault() -> None:
    with pytest.raises(Fault, match="the kernel returned OnCard, not an array"):
        as_array(OnCard())


def test_bits_are_bfloat16_where_that_is_wanted() -> None:
    bits = np.array([0x3F80, 0x4000], np.uint16)
    assert as_array(bits, "bfloat16")[1] == "bfloat16"
    assert [as_array(bits, wanted)[1] for wanted in ("float16", "")] == 2 * ["uint16"]


class Copies(Frame):
    """Arrays that are copies, as on a GPU."""

    def array(self, mapped: Mapped) -> np.ndarray:
        flat = mapped.bytes.copy()
        self._copies.append((mapped, flat))
        return flat.view(mapped.operand.dtype).reshape(mapped.operand.shape)

    def _bytes(self, flat: np.ndarray) -> np.ndarray:
        return flat


def test_weights_that_are_taken_again_leave_their_old_place_alone() -> None:
    """There the verifier has laid other bytes by then: guards, or the same weights a little further."""

    @kernel(formats=["Q4_0"], semantics="f32")
    def gemm(weights: np.ndarray, activations: np.ndarray, shape: Any) -> np.ndarray:
        return np.zeros((shape.m, shape.n), np.float32)

    runner = PythonRunner(gemm)
    runner._holding = Copies("numpy", "cpu")
    wanted = [Operand("weights", "input", "uint8", (7, 54))]
    file = MemoryFile(max(laid_out(wanted, 0, wall)[1] for wall in ("before", "behind")))
    for wall in ("before", "behind"):
        (operand,), _ = laid_out(wanted, file.number, wall)
        file.bytes[:] = 0xA5
        operand.bytes_in(file.bytes)[:] = 7
        expected = file.bytes.copy()
        runner.load({"format": "Q4_0"}, {"weights": Mapped(operand, file.handle)})
        assert (runner._weights == 7).all()
        assert np.array_equal(file.bytes, expected)
    file.close()
