"""Kernels in Python, functions or callable objects, in their own process: products and tasks."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ...support.errors import EnvironmentFault, UsageError
from .api import ARRAYS, DEVICES, HALVES, TASKS, Shape, table_of
from .child import Runner
from .faults import Fault, raised, unchanged
from .frames import Frame, as_array, described, frame_of, poison_answer
from .observation import Observer
from .operands import Mapped

if TYPE_CHECKING:
    from .reporting import Reporter

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


def runner_of(kernel: Any, observer: Observer | None = None, reporter: Reporter | None = None) -> Runner:
    """Return the runner of a kernel. Raises UsageError if its declaration is invalid; EnvironmentFault.

    Args:
        observer: has observed the import of its file; None: the kernel was imported before.
        reporter: its code reports its comparisons to it; None: it does not.
    """
    kind = TaskRunner if getattr(kernel, "computes", "gemm") in TASKS else PythonRunner
    return kind(kernel, observer, reporter)


class PythonFunction:
    """A `child.Runner` for a kernel in Python.

    Raises UsageError if it has no declaration; EnvironmentFault if the library of its arrays is missing.
    """

    def __init__(self, kernel: Any, observer: Observer | None = None, reporter: Reporter | None = None) -> None:
        self._observer, self._reporter = observer, reporter
        if observer is not None:
            observer.kernel = kernel
        self._table, self._out = plain_table(kernel), bool(getattr(kernel, "out", False))
        self._kernel, self._fmt = kernel, ""
        #: Frames of the loaded operands, and of one call.
        self._holding, self._calling = frames_of(self._table)
        self._held = dict[str, Mapped]()
        self._weights: Any = None

    def declared(self) -> dict[str, Any]:
        return {"declared": self._table}

    def alone(self, question: dict[str, Any], operands: dict[str, Mapped]) -> dict[str, Any]:
        raise EnvironmentFault("a kernel in Python has no thread blocks to run alone")

    def executed(self, question: dict[str, Any], operands: dict[str, Mapped]) -> dict[str, Any]:
        """Write the code that ran to the operand "executed", uint8[room], as JSON: `Observer.executed`.

        Returns its size in bytes. Nothing is written if there is less room.
        """
        unseen = {"files": {}, "unobserved": ["the kernel was imported before its process began"]}
        said = unseen if self._observer is None else self._observer.executed()
        content, room = json.dumps(said).encode(), operands["executed"].array
        if len(content) <= len(room):
            room[: len(content)] = np.frombuffer(content, np.uint8)
        return {"size": len(content)}

    def log(self, question: dict[str, Any], operands: dict[str, Mapped]) -> dict[str, Any]:
        """Write what runs of the author's code to the operand "log", which outlives this process."""
        if self._observer is not None:
            self._logged = operands["log"]  # it stays mapped
            self._observer.log(self._logged.array.data)
        return {}

    def reported(self, question: dict[str, Any], operands: dict[str, Mapped]) -> dict[str, Any]:
        """Make a call, and write the comparisons of it and of loading to the operand "reported": `Reporter.said`.

        Returns their size in bytes. Nothing is written if there is less room.
        """
        if self._reporter is None:
            raise Fault("its code does not report its comparisons")
        room = operands.pop("reported").array
        with contextlib.suppress(Fault):
            self.run(question, operands)
        content = self._reporter.said()
        if len(content) <= len(room):
            room[: len(content)] = np.frombuffer(content, np.uint8)
        return {"size": len(content)}

    def run(self, question: dict[str, Any], operands: dict[str, Mapped]) -> dict[str, Any]:
        raise NotImplementedError

    def _begin_call(self) -> None:
        if self._observer is not None:
            self._observer.new_call()

    def _returned(self, who: str, call: Callable[[], Any]) -> Any:
        """Call a function of the author."""
        try:
            return call()
        except Fault:
            raise
        except BaseException as error:  # also SystemExit
            raise raised(who, error) from None

    def _write(self, answer: Any, y: npt.NDArray[Any], operands: dict[str, Mapped], *others: npt.NDArray[Any]) -> None:
        """Write a return value, as an array, to the output, and poison it where it is."""
        operands["output"].array[...] = y
        inputs = [mapped.array for mapped in (*operands.values(), *self._held.values())]
        poison_answer(answer, y, [*inputs, *others])


class PythonRunner(PythonFunction):
    """A kernel that multiplies."""

    def __init__(self, kernel: Any, observer: Observer | None = None, reporter: Reporter | None = None) -> None:
        super().__init__(kernel, observer, reporter)
        self._pack = getattr(kernel, "pack", None)

    def declared(self) -> dict[str, Any]:
        return {"declared": self._table, "packs": self._pack is not None}

    def load(self, question: dict[str, Any], operands: dict[str, Mapped]) -> dict[str, Any]:
        self._begin_call()
        self._fmt, self._held = question["format"], operands
        self._holding.forget()
        # A pack function in NumPy may write into its argument.
        own = self._pack is not None and self._table.get("arrays", "numpy") == "numpy"
        arrays = {name: self._holding.array(mapped.copy() if own else mapped) for name, mapped in operands.items()}
        self._weights = arrays.pop("weights")
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
        self._begin_call()
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
        args = (given["output"],) if self._out else ()
        activations = given["activations"]
        answer = self._returned("the kernel", lambda: self._kernel(self._weights, activations, shape, *args, **more))
        frame.settle()
        if not self._out:
            y, dtype = as_array(answer, output.dtype)
            if y.ndim == 3 and y.shape == (shape.m, question.get("top_k"), shape.n):
                y = y.reshape(out.shape)
            if dtype != output.dtype or y.shape != out.shape:
                cause = f"{dtype} for {output.dtype}" if dtype != output.dtype else ""
                raise Fault(_unexpected(y.shape, dtype, out.shape, output.dtype), cause=cause)
            self._write(answer, y, operands, *([self._weights] if isinstance(self._weights, np.ndarray) else []))
        self._holding.settle(keep=True)
        if self._kept is not None:
            unchanged("weights", self._weights, self._kept, "the kernel")
        return {}


class TaskRunner(PythonFunction):
    """A kernel without a product: a dequantizer, a quantizer or a repacking."""

    def __init__(self, kernel: Any, observer: Observer | None = None, reporter: Reporter | None = None) -> None:
        super().__init__(kernel, observer, reporter)
        self._unpack = getattr(kernel, "unpack", None)
        #: A packed array that was made before the verifier had room for it.
        self._kept: npt.NDArray[Any] | None = None

    def declared(self) -> dict[str, Any]:
        return {"declared": self._table, "unpacks": callable(self._unpack)}

    def load(self, question: dict[str, Any], operands: dict[str, Mapped]) -> dict[str, Any]:
        self._begin_call()
        self._fmt, self._held = question["format"], operands
        self._holding.forget()
        self._weights, self._kept = self._holding.array(operands["weights"]), None
        return {}

    def run(self, question: dict[str, Any], operands: dict[str, Mapped]) -> dict[str, Any]:
        self._begin_call()
        shape = Shape(self._fmt, *question["shape"])
        if self._table["computes"] == "repack":
            if question["unpacks"]:
                unpack: Any = self._unpack
                return self._deliver(lambda: unpack(self._weights, shape), "unpack", operands)
            return self._packed(operands)
        given = {
            name: self._calling.array(mapped) for name, mapped in operands.items() if name != "output" or self._out
        }
        first = given["activations"] if self._table["computes"] == "quantize" else self._weights
        more = {name: array for name, array in given.items() if name not in _MATRICES}
        out = [given["output"]] if self._out else []
        return self._deliver(lambda: self._kernel(first, shape, *out, **more), "the kernel", operands, bool(out))

    def _packed(self, operands: dict[str, Mapped]) -> dict[str, Any]:
        """Pack; return type and shape, and write the bytes if there is room for them.

        A result made without room is kept for the call that brings the room, so that no answer is lost.
        """
        packed, self._kept = self._kept, None
        if packed is None:
            answer = self._returned("the kernel", lambda: self._kernel(self._weights, self._fmt))
            self._holding.settle(keep=True)
            packed, _ = as_array(answer)
            if packed.dtype.kind not in "biufc":
                raise Fault(f"the kernel returned an array of {packed.dtype}, which has no plain bytes")
        if "output" in operands:
            raw, there = np.ascontiguousarray(packed).reshape(-1).view(np.uint8), operands["output"].array
            if raw.shape != there.shape:
                raise Fault(f"the kernel packs the same rows into {len(there)} bytes, and then into {len(raw)}")
            there[:] = raw
        else:
            self._kept = packed
        return {"dtype": packed.dtype.name, "shape": [int(n) for n in packed.shape]}

    def _deliver(
        self, call: Callable[[], Any], who: str, operands: dict[str, Mapped], written: bool = False
    ) -> dict[str, Any]:
        """Write a function's return value into the output, unless the function has `written` it there itself."""
        answer = self._returned(who, call)
        self._calling.settle()
        if not written:
            output, out = operands["output"].operand, operands["output"].array
            y, dtype = as_array(answer, output.dtype)
            if dtype != output.dtype or y.shape != out.shape:
                expected = described(output.dtype, out.shape)
                raise Fault(f"{who} returned {described(dtype, y.shape)}, expected {expected}")
            self._write(answer, y, operands)
        self._holding.settle(keep=True)
        return {}


def _unexpected(shape: tuple[int, ...], dtype: str, expected: tuple[int, ...], expected_dtype: str) -> str:
    """Return the fault for a result of another shape or type than declared, with a hint if it may be correct."""
    said = f"the kernel returned {described(dtype, shape)}, expected {described(expected_dtype, expected)}"
    if shape == expected and dtype in HALVES:
        return f'{said}: if that is intended, declare output = "{dtype}"'
    if shape == expected and dtype == "float64":
        return f"{said}: return it as {expected_dtype}, such as y.astype(np.{expected_dtype})"
    if shape == (math.prod(expected),):
        return f"{said}: return it in {expected[0]} rows, such as y.reshape(shape.m, shape.n)"
    if shape == expected[::-1] and shape != expected:
        return f"{said}: if it returns [N, M], declare operands.output.transposed = true"
    return said
