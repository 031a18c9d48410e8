"""Launcher of a kernel in CUDA C++ in its own process: it loads the compiled kernel and launches it on a host.

Where the host allows, a kernel runs on the mapped operands themselves. A GPU has its own memory: inputs are copied to
it; outputs, and inputs that the kernel changed, are copied back to where the verifier reads them.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np

from ...hosts.base import Blocks, Host, Placed, Role, Sparse, Written
from ...hosts.choice import make_host
from ...hosts.comparisons import RECORD
from ...hosts.compiler import source_lines
from ...hosts.schedule import Schedule
from ...support.errors import EnvironmentFault, HarnessError, KernelFault, KernelFinding
from ...support.numbers import number_type
from .child import MOST_UNSET
from .faults import Fault
from .operands import Mapped, dtype_of

#: Sides of a matrix.
_SIDES = 4


class Launcher:
    """A `child.Runner` for compiled kernels.

    Args:
        asked: the first message to its process: the "host", its "threads", and the "kernels": "TYPE/SYMBOL" → the
            fields of `hosts.base.Placed`.

    Raises EnvironmentFault.
    """

    def __init__(self, asked: dict[str, Any]) -> None:
        self._host = make_host(asked["host"], asked["threads"])
        self._kernels = {key: self._host.load_placed(Placed(**placed)) for key, placed in asked["kernels"].items()}
        self._traced: dict[str, Any] = {}
        self._weights: tuple[Mapped, Any] | None = None

    def declared(self) -> dict[str, Any]:
        """Return nothing: the verifier has read the declaration itself."""
        return {}

    def load(self, question: dict[str, Any], operands: dict[str, Mapped]) -> dict[str, Any]:
        weights = operands["weights"]
        try:
            self._weights = weights, _buffer(self._host, weights)
        except HarnessError as error:
            raise Fault(str(error)) from None
        return {}

    def run(self, question: dict[str, Any], operands: dict[str, Mapped]) -> dict[str, Any]:
        if "schedule" in question:
            return self._scheduled(question, operands)
        loaded = {} if self._weights is None else {"weights": self._weights}
        try:
            held = {name: (mapped, _buffer(self._host, mapped)) for name, mapped in operands.items()}
            self._host.some = tuple(question["some"]) if "some" in question else None
            self._host.watches = self._border(held, *question["watched"]) if "watched" in question else ()
            _launched(self._host, self._kernels, question, {**held, **loaded})
        except HarnessError as error:
            if "some" in question and isinstance(error, EnvironmentFault):
                raise
            raise Fault.of(error) from None
        finally:
            self._host.some, self._host.watches = None, ()
        return {}

    def _border(self, held: dict[str, tuple[Mapped, Any]], blocks: int, seed: int) -> list[int]:
        """Return the addresses of outputs on the border of a matrix: of the first and the last row and column.

        Args:
            blocks: that run later, about half of them the writers of these; each thread may find another one.
        """
        rng, found = np.random.default_rng(seed), list[int]()
        count = max(1, blocks // (2 * _SIDES * (self._host.threads or 1)))
        for mapped, buffer in held.values():
            operand, width = mapped.operand, dtype_of(mapped.operand.dtype).itemsize
            if operand.role != "output" or len(operand.shape) != 2 or 0 in operand.shape or width < 2:
                continue
            (rows, columns), (row, column) = operand.shape, operand.strides or (operand.shape[1] * width, width)
            at_row, at_column = (
                np.array([0, size - 1, *rng.integers(0, size, count)]) * step
                for size, step in ((rows, row), (columns, column))
            )
            ends = [at_row, at_row + (columns - 1) * column, at_column, at_column + (rows - 1) * row]
            found += (buffer.address + np.concatenate(ends)).tolist()
        return found

    def _scheduled(self, question: dict[str, Any], operands: dict[str, Mapped]) -> dict[str, Any]:
        host = self._host.scheduled(Schedule(**question["schedule"]))
        try:
            host.adds_floats = question["adds_floats"]
            kernels = {key: host.load_placed(Placed(**placed)) for key, placed in question["placed"].items()}
            held = {name: (mapped, _buffer(host, mapped)) for name, mapped in operands.items()}
            _launched(host, kernels, question, held)
            host.settle()
            unset = [place[:100] for place in host.unset[:MOST_UNSET]]
            return {"adds_floats": host.adds_floats, "unset": unset}
        except KernelFault as error:
            raise Fault.of(error) from None
        finally:
            host.close()

    def executed(self, question: dict[str, Any], operands: dict[str, Mapped]) -> dict[str, Any]:
        return {"size": self._host.counters(self._kernels[question["kernel"]], operands["executed"].array)}

    def alone(self, question: dict[str, Any], operands: dict[str, Mapped]) -> dict[str, Any]:
        written = self._alone(question, operands, self._kernels)
        n = len(written.at)
        operands["at"].array[:n] = written.at
        operands["words"].array[:n] = written.words
        return {"written": n}

    def compared(self, question: dict[str, Any], operands: dict[str, Mapped]) -> dict[str, Any]:
        for key, placed in question["placed"].items():
            if key not in self._traced:
                self._traced[key] = self._host.load_placed(Placed(**placed))
        with contextlib.suppress(Fault):  # of the kernel: what it compared before counts
            self._alone(question, operands, self._traced)
        records = operands["compared"].bytes.view(RECORD)
        return {"compared": self._host.compared(self._traced[question["launches"][-1]["kernel"]], records)}

    def lines(self, question: dict[str, Any], operands: dict[str, Mapped]) -> dict[str, Any]:
        return {"lines": source_lines(Path(question["code"]), question["addresses"])}

    def _alone(self, question: dict[str, Any], operands: dict[str, Mapped], kernels: dict[str, Any]) -> Written:
        """Run single thread blocks. Raises Fault, EnvironmentFault."""
        host, scratch, zeros = self._host, question["scratch"], question["zeros"]
        roles: dict[str, Role] = {"output": "output", **dict.fromkeys(scratch, "scratch")}
        try:
            sparse = {
                what: Sparse(
                    size,
                    _buffer(host, operands[what]) if what in operands else None,
                    what,
                    roles.get(what, "input"),
                    zeros.get(what, 0),
                    question["unit"] if what == "output" else 4,
                    question["leads"].get(what, 0),
                )
                for what, size in question["sizes"].items()
            }
            launches = [
                Blocks(
                    kernels[launch["kernel"]],
                    tuple(launch["grid"]),
                    tuple(launch["block"]),
                    _arguments(launch, sparse),
                    launch["shared"],
                    launch["numbers"],
                )
                for launch in question["launches"]
            ]
            return host.launch_alone(launches)
        except EnvironmentFault:
            raise
        except HarnessError as error:
            raise Fault.of(error) from None


def _buffer(host: Host, mapped: Mapped) -> Any:
    """Return the operand as an argument of launches."""
    operand = mapped.operand
    output = operand.role != "input"
    over = host.over(mapped.bytes, operand.name, output)
    if over is not None:
        return over
    host.begins = operand.at % 256
    if not output:
        return host.upload(mapped.bytes, operand.name)
    buffer = host.output(operand.nbytes, operand.name)
    if mapped.operand.filled:
        host.begin(buffer, mapped.bytes)
    return buffer


def _launched(
    host: Host, kernels: dict[str, Any], question: dict[str, Any], held: dict[str, tuple[Mapped, Any]]
) -> None:
    """Make the launches of a message and write the results to the mapped operands."""
    buffers = {name: buffer for name, (_, buffer) in held.items()}
    for launch in question["launches"]:
        args = _arguments(launch, buffers)
        host.launch(kernels[launch["kernel"]], tuple(launch["grid"]), tuple(launch["block"]), args, launch["shared"])
    for mapped, buffer in held.values():
        if host.over(mapped.bytes, mapped.operand.name) is not None:
            continue
        output = mapped.operand.role != "input"
        made = _written(host, mapped.operand.name, buffer) if output else host.contents(buffer)
        there = mapped.bytes
        if output or not np.array_equal(made, there):
            there[:] = made


def _written(host: Host, name: str, buffer: Any) -> Any:
    """Return the bytes of an output or of scratch memory. Raises KernelFault if a guard was overwritten."""
    try:
        return host.download(buffer)
    except KernelFinding as error:  # hosts say "output" for all memory that kernels write
        raise KernelFinding(error.kind, error.words.replace("its output", f"its {name}"), error.lines) from None


def _arguments(launch: dict[str, Any], buffers: dict[str, Any]) -> list[Any]:
    """Return the arguments of a launch: buffers by name, and typed numbers."""
    return [_argument(a, buffers) for a in launch["args"]]


def _argument(said: Any, buffers: dict[str, Any]) -> Any:
    if not isinstance(said, str):
        return number_type(said[0]).type(said[1])
    return np.uint64(0) if said == "stream" else buffers[said]
