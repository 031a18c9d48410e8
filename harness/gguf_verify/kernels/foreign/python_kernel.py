"""Kernels in Python, functions or callable objects, in their own process."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np

from ...support.errors import EnvironmentFault, UsageError
from .api import ARRAYS, DEVICES, HALVES, Shape, table_of
from .faults import Fault, raised, unchanged
from .frames import Frame, as_array, frame_of, poison_answer
from .operands import Mapped

_MATRICES = ("weights", "activations", "output")


def plain_table(kernel: Any) -> dict[str, Any]:
    """Return the declaration of a kernel for the verifier to check. Raises UsageError if it cannot be sent."""
    table = table_of(kernel)
    if not isinstance(getattr(kernel, "out", False), bool):  # which is no key of the table
        raise UsageError("out must be True or False")
    try:
        json.dumps(table)
    except (TypeError, ValueError, RecursionError):
        raise UsageError("its declaration may only hold strings, numbers, lists and tables") from None
    return table


def frames_of(table: dict[str, Any]) -> tuple[Frame, Frame]:
    """Return two frames of the arrays that a kernel takes; NumPy's if the declaration is invalid.

    Raises EnvironmentFault.
    """
    arrays, device = table.get("arrays", "numpy"), table.get("device", "cpu")
    if arrays not in ARRAYS or device not in DEVICES:
        arrays, device = "numpy", "cpu"
    return frame_of(arrays, device), frame_of(arrays, device)


class PythonRunner:
    """A `child.Runner` for a kernel in Python.

    Raises UsageError if it has no declaration; EnvironmentFault if the library of its arrays is missing.
    """

    def __init__(self, kernel: Any) -> None:
        self._table, self._out = plain_table(kernel), bool(getattr(kernel, "out", False))
        self._kernel, self._pack = kernel, getattr(kernel, "pack", None)
        #: Frames of the loaded operands, and of one call.
        self._holding, self._calling = frames_of(self._table)

    def declared(self) -> dict[str, Any]:
        return {"declared": self._table, "packs": self._pack is not None}

    def load(self, question: dict[str, Any], operands: dict[str, Mapped]) -> dict[str, Any]:
        self._fmt = question["format"]
        self._held = operands
        self._holding.forget()
        # A pack function in NumPy may write into its argument.
        own = self._pack is not None and self._table.get("arrays", "numpy") == "numpy"
        arrays = {name: self._holding.array(mapped.copy() if own else mapped) for name, mapped in operands.items()}
        self._weights: Any = arrays.pop("weights")
        if "experts" in question:
            self._weights = self._weights.reshape(question["experts"], question["n"], -1)
        self._others = arrays
        #: A copy of packed weights, which only this process has: the verifier cannot check them.
        self._kept: Any = None
        if self._pack is not None:
            try:
                self._weights = self._pack(self._weights, self._fmt)
            except BaseException as error:
                raise raised("pack", error) from None
            self._kept = self._weights.copy() if isinstance(self._weights, np.ndarray) else None
        return {}

    def run(self, question: dict[str, Any], operands: dict[str, Mapped]) -> dict[str, Any]:
        shape, frame = Shape(self._fmt, *question["shape"]), self._calling
        output, out = operands["output"].operand, operands["output"].array
        given = {
            name: frame.array(mapped)
            for name, mapped in operands.items()
            if name != "output" or self._out or output.filled
        }
        more = self._others | {name: array for name, array in given.items() if name not in _MATRICES}
        if output.filled and not self._out:  # accumulation: the previous content is an operand
            more["output"] = given["output"]
        try:
            if self._out:
                self._kernel(self._weights, given["activations"], shape, given["output"], **more)
            else:
                answer = self._kernel(self._weights, given["activations"], shape, **more)
        except Fault:
            raise
        except BaseException as error:  # also SystemExit
            raise raised("the kernel", error) from None
        frame.settle()
        if not self._out:
            y, dtype = as_array(answer, output.dtype)
            if y.ndim == 3 and y.shape == (shape.m, question.get("top_k"), shape.n):
                y = y.reshape(out.shape)
            if dtype != output.dtype or y.shape != out.shape:
                cause = f"{dtype} for {output.dtype}" if dtype != output.dtype else ""
                raise Fault(_unexpected(y.shape, dtype, out.shape, output.dtype), cause=cause)
            out[...] = y
            inputs = [mapped.array for mapped in (*operands.values(), *self._held.values())]
            if isinstance(self._weights, np.ndarray):
                inputs.append(self._weights)
            poison_answer(answer, y, inputs)
        self._holding.settle(keep=True)
        if self._kept is not None:
            unchanged("weights", self._weights, self._kept, "the kernel")
        return {}

    def alone(self, question: dict[str, Any], operands: dict[str, Mapped]) -> dict[str, Any]:
        raise EnvironmentFault("a kernel in Python has no thread blocks to run alone")


def _unexpected(shape: tuple[int, ...], dtype: str, expected: tuple[int, ...], expected_dtype: str) -> str:
    """Return the fault for a result of another shape or type than declared, with a hint if it may be correct."""
    said = f"the kernel returned {_described(dtype, shape)}, expected {_described(expected_dtype, expected)}"
    if shape == expected and dtype in HALVES:
        return f'{said}: if that is intended, declare output = "{dtype}"'
    if shape == expected and dtype == "float64":
        return f"{said}: return it as {expected_dtype}, such as y.astype(np.{expected_dtype})"
    if shape == (math.prod(expected),):
        return f"{said}: return it in {expected[0]} rows, such as y.reshape(shape.m, shape.n)"
    if shape == expected[::-1] and shape != expected:
        return f"{said}: if it returns [N, M], declare operands.output.transposed = true"
    return said


def _described(dtype: str, shape: tuple[int, ...]) -> str:
    return f"{dtype}[{', '.join(map(str, shape))}]"
