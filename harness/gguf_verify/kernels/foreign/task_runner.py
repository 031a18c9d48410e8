"""Python functions without a product, in their own process: dequantizers, quantizers and repackings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ...support.errors import EnvironmentFault
from .api import TASKS, Shape
from .child import Runner
from .faults import Fault, raised
from .frames import as_array, poison_answer
from .operands import Mapped
from .python_kernel import PythonRunner, frames_of, plain_table


def runner_of(kernel: Any) -> Runner:
    """Return the runner of a kernel. Raises UsageError if its declaration is invalid; EnvironmentFault."""
    return TaskRunner(kernel) if getattr(kernel, "computes", "gemm") in TASKS else PythonRunner(kernel)


class TaskRunner:
    """A `child.Runner` for a task.

    Raises UsageError if the kernel's declaration is invalid; EnvironmentFault if the library of its arrays is missing.
    """

    def __init__(self, kernel: Any) -> None:
        self._table, self._out = plain_table(kernel), bool(getattr(kernel, "out", False))
        self._kernel, self._unpack = kernel, getattr(kernel, "unpack", None)
        self._holding, self._calling = frames_of(self._table)
        self._fmt, self._held = "", dict[str, Mapped]()
        self._weights: Any = None
        #: A packed array that was made before the verifier had room for it.
        self._kept: npt.NDArray[Any] | None = None

    def declared(self) -> dict[str, Any]:
        return {"declared": self._table, "unpacks": callable(self._unpack)}

    def load(self, question: dict[str, Any], operands: dict[str, Mapped]) -> dict[str, Any]:
        self._fmt, self._held = question["format"], operands
        self._holding.forget()
        self._weights, self._kept = self._holding.array(operands["weights"]), None
        return {}

    def run(self, question: dict[str, Any], operands: dict[str, Mapped]) -> dict[str, Any]:
        shape = Shape(self._fmt, *question["shape"])
        if self._table["computes"] == "repack":
            if question["unpacks"]:
                unpack: Any = self._unpack
                return self._deliver(lambda: unpack(self._weights, shape), "unpack", operands)
            return self._packed(operands)
        matrices = ("weights", "activations", "output")
        given = {
            name: self._calling.array(mapped) for name, mapped in operands.items() if name != "output" or self._out
        }
        first = given["activations"] if self._table["computes"] == "quantize" else self._weights
        more = {name: array for name, array in given.items() if name not in matrices}
        out = [given["output"]] if self._out else []
        return self._deliver(lambda: self._kernel(first, shape, *out, **more), "the kernel", operands, bool(out))

    def _packed(self, operands: dict[str, Mapped]) -> dict[str, Any]:
        """Pack; return type and shape, and write the bytes if there is room for them.

        A result made without room is kept for the call that brings the room, so that no answer is lost.
        """
        packed, self._kept = self._kept, None
        if packed is None:
            packed = self._pack()
        if "output" in operands:
            raw, there = np.ascontiguousarray(packed).reshape(-1).view(np.uint8), operands["output"].array
            if raw.shape != there.shape:
                raise Fault(f"the kernel packs the same rows into {len(there)} bytes, and then into {len(raw)}")
            there[:] = raw
        else:
            self._kept = packed
        return {"dtype": packed.dtype.name, "shape": [int(n) for n in packed.shape]}

    def _pack(self) -> npt.NDArray[Any]:
        try:
            answer = self._kernel(self._weights, self._fmt)
        except BaseException as error:  # also SystemExit
            raise raised("the kernel", error) from None
        self._holding.settle(keep=True)
        packed, _ = as_array(answer)
        if packed.dtype.kind not in "biufc":
            raise Fault(f"the kernel returned an array of {packed.dtype}, which has no plain bytes")
        return packed

    def _deliver(
        self, call: Callable[[], Any], who: str, operands: dict[str, Mapped], written: bool = False
    ) -> dict[str, Any]:
        """Write a function's return value into the output, unless the function has `written` it there itself."""
        try:
            answer = call()
        except Fault:
            raise
        except BaseException as error:  # also SystemExit
            raise raised(who, error) from None
        self._calling.settle()
        if not written:
            output, out = operands["output"].operand, operands["output"].array
            y, dtype = as_array(answer, output.dtype)
            if dtype != output.dtype or y.shape != out.shape:
                found, expected = (
                    f"{name}[{', '.join(map(str, sizes))}]"
                    for name, sizes in ((dtype, y.shape), (output.dtype, out.shape))
                )
                raise Fault(f"{who} returned {found}, expected {expected}")
            out[...] = y
            poison_answer(answer, y, [mapped.array for mapped in (*operands.values(), *self._held.values())])
        self._holding.settle(keep=True)
        return {}

    def alone(self, question: dict[str, Any], operands: dict[str, Mapped]) -> dict[str, Any]:
        raise EnvironmentFault("a kernel in Python has no thread blocks to run alone")
