"""Kernels that are functions: of a shared library with a C interface, or operators of PyTorch.

A C function gets, in the declared order, pointers, numbers of the declared types and the stream (void*; null on the
CPU). It returns nothing or, if so declared, a status, where 0 is success. An operator of PyTorch gets tensors, and ints
and floats; its return value is the output, unless the output is one of its arguments.
"""

from __future__ import annotations

import ctypes
import importlib
import math
from collections.abc import Callable
from typing import Any

from ...support.errors import EnvironmentFault, UsageError
from .faults import Fault, one_line, raised
from .frames import as_array, described, frame_of, poison_answer
from .operands import Mapped

_C = {"int32": ctypes.c_int32, "uint32": ctypes.c_uint32, "int64": ctypes.c_int64, "uint64": ctypes.c_uint64,
      "float32": ctypes.c_float}  # fmt: skip
STREAM = "stream"


class FunctionRunner:
    """A `child.Runner` for functions.

    Args:
        asked: the first message to the process: "calls", the names of the functions; "library", the path of a shared
            library or "" for PyTorch; "import" and "load"; the "device" and the "arrays" of the functions.

    Raises UsageError if there is no such function; EnvironmentFault.
    """

    def __init__(self, asked: dict[str, Any]) -> None:
        self._of_torch = not asked["library"]
        self._frame = frame_of(asked["arrays"], asked["device"])
        self._holding = frame_of(asked["arrays"], asked["device"])
        find = _torch_operators(asked["import"], asked["load"]) if self._of_torch else _c_functions(asked["library"])
        self._held, self._operands = dict[str, Any](), dict[str, Mapped]()
        self._functions = {name: find(name) for name in asked["calls"]}

    def declared(self) -> dict[str, Any]:
        """Return nothing: the verifier has read the declaration itself."""
        return {}

    def load(self, question: dict[str, Any], operands: dict[str, Mapped]) -> dict[str, Any]:
        self._holding.forget()
        self._held, self._operands = {n: self._holding.array(m) for n, m in operands.items()}, operands
        if "experts" in question and self._of_torch:  # operators take the stride of the experts from the shape
            self._held["weights"] = self._held["weights"].reshape(question["experts"], question["n"], -1)
        return {}

    def run(self, question: dict[str, Any], operands: dict[str, Mapped]) -> dict[str, Any]:
        arrays = self._held | {name: self._frame.array(mapped) for name, mapped in operands.items()}
        for launch in question["launches"]:
            function = self._functions[launch["kernel"].partition("/")[2]]
            if self._of_torch:
                self._call_operator(function, launch["args"], arrays, operands["output"])
            else:
                self._call_c(function, launch["args"], arrays, launch.get("returns"))
        self._frame.settle()
        self._holding.settle(keep=True)
        return {}

    def alone(self, question: dict[str, Any], operands: dict[str, Mapped]) -> dict[str, Any]:
        raise EnvironmentFault("the thread blocks of a library function cannot be run alone")

    def _call_c(self, function: Any, args: list[Any], arrays: dict[str, Any], returns: str | None) -> None:
        given = [
            ctypes.c_void_p(self._frame.stream())
            if arg == STREAM
            else ctypes.c_void_p(_address(arrays[arg]))
            if isinstance(arg, str)
            else _C[arg[0]](arg[1])
            for arg in args
        ]
        function.restype = None if returns is None else _C[returns]
        code = function(*given)
        self._frame.wait()
        if code:
            raise Fault(f"the kernel's function returned {code}, but 0 means success")

    def _call_operator(self, function: Any, args: list[Any], arrays: dict[str, Any], output: Mapped) -> None:
        given = [
            self._frame.stream() if arg == STREAM else arrays[arg] if isinstance(arg, str) else arg[1] for arg in args
        ]
        try:
            answer = function(*given)
            self._frame.wait()
        except BaseException as error:  # also SystemExit
            raise raised("the kernel", error) from None
        if "output" in args or answer is None:
            return
        there, expected = output.array, output.operand.dtype
        y, dtype = as_array(answer, expected)
        if y.ndim == 3 and math.prod(y.shape[:2]) == there.shape[0]:  # slots of experts as [M, top_k, N]
            y = y.reshape(there.shape[0], -1)
        if dtype != expected or y.shape != there.shape:
            raise Fault(f"the kernel returned {described(dtype, y.shape)}, expected {described(expected, there.shape)}")
        self._frame.write(output, y)
        poison_answer(answer, y, [there])


def _address(array: Any) -> int:
    if hasattr(array, "data_ptr"):
        return int(array.data_ptr())
    return int(array.data.ptr) if hasattr(array.data, "ptr") else int(array.ctypes.data)


def _c_functions(path: str) -> Callable[[str], Any]:
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise EnvironmentFault(f"the library cannot be loaded: {one_line(error)}") from None

    def find(name: str) -> Any:
        try:
            return getattr(library, name)
        except AttributeError:
            raise UsageError(f"the library has no function {name}") from None

    return find


def _torch_operators(modules: list[str], libraries: list[str]) -> Callable[[str], Any]:
    try:
        torch = importlib.import_module("torch")
        for module in modules:
            importlib.import_module(module)
        for library in libraries:
            torch.ops.load_library(library)
    except BaseException as error:
        raise EnvironmentFault(f"PyTorch's operators cannot be loaded: {one_line(error)}") from None

    def find(name: str) -> Any:
        found = torch.ops
        for part in name.removeprefix("torch.ops.").split("."):
            try:
                found = getattr(found, part)
            except (AttributeError, RuntimeError):
                raise UsageError(f"PyTorch has no operator {name} (see import and load)") from None
        return found

    return find
