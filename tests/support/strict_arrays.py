"""A double of CuPy's arrays that needs no card: it computes by NumPy, and refuses what CuPy refuses.

As CuPy 14 does, it takes no array of NumPy for an argument and does not become one unasked; it has CuPy's functions
only (`NAMES`, which a test compares with CuPy where that is installed); it sees bytes as larger numbers only where they
are contiguous, and a card reads those only at multiples of their size; results of one number are arrays; float32
numbers below 2^-126 are zero to it. Beyond CuPy it refuses to convert to half, which CuPy may round twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib.mixins import NDArrayOperatorsMixin

from gguf_verify.hosts.kept import Kept
from gguf_verify.semantics import rounding
from gguf_verify.support.arrays import Library, register

#: Functions of NumPy that CuPy has under the same name, as far as they are used.
NAMES = frozenset((
    "absolute", "add", "argmax", "argsort", "argwhere", "bitwise_and", "bitwise_or", "bitwise_xor", "broadcast_to",
    "concatenate", "copysign", "cumsum", "divide", "einsum", "equal", "frexp", "full_like", "greater",
    "greater_equal", "invert", "isfinite", "isnan", "ldexp", "left_shift", "less", "less_equal", "matmul",
    "maximum", "minimum", "multiply", "nan_to_num", "negative", "nextafter", "not_equal", "packbits", "power", "repeat",
    "right_shift", "rint", "sqrt", "square", "stack", "subtract", "tensordot", "unpackbits", "where",
    "zeros_like",
))  # fmt: skip
_LEAST = np.float32(2.0**-126)
_SCALARS = (bool, int, float, np.generic)


def _flushed(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Without float32 numbers that are below the normal ones."""
    if array.dtype != np.float32 or not array.size:
        return array
    with np.errstate(invalid="ignore"):
        return np.where(np.abs(array) < _LEAST, np.copysign(np.float32(0), array), array)


def _out(value: Any, refused: str = "") -> Any:
    if isinstance(value, tuple):
        return tuple(_out(part) for part in value)
    return CardArray(np.asarray(value)) if isinstance(value, (np.ndarray, np.generic)) else value


def _in(value: Any) -> Any:
    """An argument as NumPy's. Raises TypeError for an array that is NumPy's already."""
    if isinstance(value, CardArray):
        return value.held
    if isinstance(value, (list, tuple)):
        return type(value)(_in(part) for part in value)
    if isinstance(value, np.ndarray):
        raise TypeError("an array of NumPy meets one of the card")
    return value


def _arithmetic(value: Any) -> Any:
    """An argument of arithmetic."""
    value = _in(value)
    return _flushed(value) if isinstance(value, np.ndarray) else value


class CardArray(NDArrayOperatorsMixin):
    """An array on a card that does not exist; `held` is its content."""

    __array_priority__ = 100
    __hash__ = None

    def __init__(self, held: npt.NDArray[Any]) -> None:
        if held.dtype.fields is not None:
            raise TypeError("no structs on a card")
        self.held = held

    # -- what NumPy's functions find -----------------------------------------------------------------------------------

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("implicit conversion to a NumPy array is not allowed")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if method != "__call__" or ufunc.__name__ not in NAMES:
            return NotImplemented
        if not all(isinstance(x, (CardArray, np.ndarray, *_SCALARS)) for x in inputs):
            return NotImplemented
        out = kwargs.pop("out", None)
        made = ufunc(*map(_arithmetic, inputs), **kwargs)
        if out is not None:
            (target,) = out
            _in(target)[...] = _flushed(made)
            return target
        if isinstance(made, tuple):
            return _out(tuple(map(_flushed, made)))
        return _out(_flushed(np.asarray(made)))

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if func.__name__ not in NAMES or not all(issubclass(kind, CardArray) for kind in types):
            return NotImplemented
        if func.__name__ == "unpackbits" and kwargs.get("axis") is not None:
            raise NotImplementedError("axis option is not supported yet")
        return _out(func(*map(_in, args), **{name: _in(value) for name, value in kwargs.items()}))

    # -- attributes and methods ----------------------------------------------------------------------------------------

    shape = property(lambda self: self.held.shape)
    dtype = property(lambda self: self.held.dtype)
    ndim = property(lambda self: self.held.ndim)
    size = property(lambda self: self.held.size)
    T = property(lambda self: CardArray(self.held.T))

    def __len__(self) -> int:
        return len(self.held)

    def __bool__(self) -> bool:
        return bool(self.held)

    def __int__(self) -> int:
        return int(self.held)

    def __float__(self) -> float:
        return float(self.held)

    def __getitem__(self, index: Any) -> CardArray:
        return CardArray(np.asarray(self.held[_in(index)]))

    def __setitem__(self, index: Any, value: Any) -> None:
        self.held[_in(index)] = _in(value)

    def astype(self, dtype: Any, copy: bool = True) -> CardArray:
        if np.dtype(dtype) == np.float16:
            raise TypeError("a conversion to half may round twice")
        if np.dtype(dtype) == self.dtype:
            return CardArray(self.held.copy()) if copy else self
        return CardArray(_flushed(_flushed(self.held).astype(dtype)))

    def view(self, dtype: Any) -> CardArray:
        dtype = np.dtype(dtype)
        if dtype.itemsize != self.dtype.itemsize:
            if not self.held.flags.c_contiguous:
                raise ValueError("to change to a dtype of a different size, the array must be C-contiguous")
            if self.held.ctypes.data % dtype.itemsize:
                raise ValueError("a card reads numbers only at multiples of their size")
        return CardArray(self.held.view(dtype))

    def copy(self) -> CardArray:
        return CardArray(self.held.copy())

    def reshape(self, *shape: Any) -> CardArray:
        return CardArray(self.held.reshape(*shape))

    def transpose(self, *axes: Any) -> CardArray:
        return CardArray(self.held.transpose(*axes))

    def swapaxes(self, one: int, other: int) -> CardArray:
        return CardArray(self.held.swapaxes(one, other))

    def sum(self, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> CardArray:
        return CardArray(_flushed(np.asarray(self.held.sum(axis=axis, dtype=dtype, keepdims=keepdims))))

    def max(self, axis: Any = None) -> CardArray:
        return CardArray(np.asarray(self.held.max(axis=axis)))

    def any(self, axis: Any = None) -> CardArray:
        return CardArray(np.asarray(self.held.any(axis=axis)))

    def all(self, axis: Any = None) -> CardArray:
        return CardArray(np.asarray(self.held.all(axis=axis)))


class StrictRounding:
    """The card's kernels, by NumPy."""

    def chain(self, streams: Sequence[CardArray], start: CardArray) -> CardArray:
        return CardArray(rounding.chain_rounded([s.held for s in streams], start.held))

    def multiply_adds(self, a: CardArray, w: CardArray) -> CardArray:
        return CardArray(rounding.multiply_adds(a.held, w.held))

    def to_float32(self, values: CardArray) -> CardArray:
        return CardArray(rounding.to_float32(values.held))

    def widened(self, values: CardArray) -> CardArray:
        return CardArray(values.held.astype(np.float64))


class StrictDevice:
    """A `Device` of such arrays. `rows_at_a_time` are taken together, `sampled` of them are computed by NumPy too."""

    def __init__(self, rows_at_a_time: int = 1 << 20, sampled: int = 2) -> None:
        self._rows, self._sampled, self._rng = rows_at_a_time, sampled, np.random.default_rng(0)
        self._kept = Kept(1 << 30)
        #: Weights that were read, or taken from others.
        self.read = 0

    def put(self, values: npt.NDArray[Any]) -> CardArray:
        assert isinstance(values, np.ndarray)
        return CardArray(values.copy())

    def faults(self) -> AbstractContextManager[None]:
        return nullcontext()

    def rows(self, values: int, outputs: int) -> int:
        return self._rows

    def kept(self, kind: str, w: npt.NDArray[np.uint8], nbytes: int, make: Callable[[], Any]) -> Any:
        def made() -> Any:
            self.read += 1
            return make()

        return self._kept.of(kind, w, nbytes, made)

    def take_from(self, rows: npt.NDArray[np.uint8], w: npt.NDArray[np.uint8], numbers: npt.NDArray[np.intp]) -> None:
        self._kept.take_from(rows, w, numbers)

    def origin(self, kind: str, rows: npt.NDArray[np.uint8]) -> Any:
        return self._kept.origin(kind, rows)

    def sample(self, rows: int, read: bool = False) -> npt.NDArray[np.intp]:
        return self._rng.choice(rows, min(rows, self._sampled), replace=False)


def _contiguous(array: CardArray) -> CardArray:
    return CardArray(np.ascontiguousarray(array.held))


_MODULE = SimpleNamespace(
    asarray=lambda values: CardArray(np.array(values)), ascontiguousarray=_contiguous, asnumpy=lambda a: a.held.copy()
)
register(CardArray, Library(_MODULE, StrictRounding()))
