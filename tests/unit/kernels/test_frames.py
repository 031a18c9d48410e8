"""What kernels in Python return, of whatever library: arrays that lie on a card are read by the way that they have."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest

from gguf_verify.kernels.foreign.faults import Fault
from gguf_verify.kernels.foreign.frames import as_array

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
