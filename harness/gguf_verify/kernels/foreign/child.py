"""The process of a foreign kernel. It holds one kernel and one matrix of weights, and is not trusted.

This is the protocol between the two processes. Messages are JSON, framed as in `multiprocessing.connection`. Operands
are not part of them: they lie in memory files of the verifier (`operands.py`), which this process maps. The verifier
writes the inputs and poisons the outputs between guards, requests one run, and checks the memory after this process has
answered (`judge.py`). So nothing here checks guards, inputs, bits or poison.

The first message of this process is the kernel's declaration, or {"usage": one line} or {"environment": one line} on an
error. Each question then has

    of       its number, which the answer repeats
    files    numbers of memory files that this process does not have yet. Their descriptors follow the message, by
             SCM_RIGHTS, on one byte.
    forget   numbers of files that are no longer needed
    do       one of the actions below
    operands a list of `operands.Operand`: name, role (input, output, scratch), dtype, shape, strides, file, place

The answer is {"of", "ok": true, …} on success; {"of", "fault": one line, "cause"} for a fault of the kernel, with
"trace": [[place, code, whether it is its author's], …] for an exception, "finding": {"kind", "lines"} for one of a
checked build or a GPU, and "not_run" if the host cannot run it as a GPU does; or {"of", "environment": one line,
"not_tried"} if this machine cannot do it, which is only accepted for runs under a schedule and of single or some
thread blocks. "not_tried": whether blocks wait for others.

    load     load the weights: "format", "n", "k". They are used until the next load.
    run      make a product: "shape" [M, N, K]. The kernel's return value is copied to its output's place. A kernel in
             CUDA C++ gets its "launches" in order: "kernel" (a type's), "grid", "block", "shared", "args": names of
             operands, or [type, number]; and, under a "schedule" (the fields of `hosts.schedule.Schedule`), the
             "placed" kernel for it, whether it "adds_floats", and all of its operands: nothing is loaded. The answer
             reports whether it "adds_floats", and its reads of "unset" memory. "some": about how many thread blocks of
             a single launch run, and the seed of the choice; also those that wrote the border of the outputs in the
             last launch whose question had the same as "watched".
    alone    run single thread blocks of "launches" with sparse operands: "numbers" of each, one of the last; "sizes"
             of all operands in bytes, of which "scratch" are written for later launches; the bytes at their ends that
             are "zeros"; the bytes before them in their first pages ("leads"); and the bytes of a number of the output
             ("unit"). The operands of the question hold the
             repeating contents. The answer's "written" is the number of places and numbers that the last block wrote
             to the outputs "at" int64[…] and "words" uint32[…] or uint16[…].

    compared as "alone", with the "placed" kernels of a traced build, and one or more thread blocks of the last launch.
             Their comparisons lie in the operand "compared", `hosts.comparisons.RECORD`; the answer's "compared" is
             their number. What the thread blocks write, and their faults, are ignored.
    lines    the answer's "lines" has a list of FILE:LINE for each of the "addresses" in the "code" of a traced build:
             the innermost inlined function first.
    executed write what the process has executed of the author's code to the operand "executed", uint8[room]: the
             counters of the library of a "kernel", as gcov reads them; of a kernel in Python, JSON (`tracing`). The
             answer's "size" is that of all of it, even if there was no room.
    log      from now on, write what runs of the author's code in Python to the operand "log", uint8[room]: see
             `observation`. The verifier reads it if this process ends before it is asked what it has executed.
    reported as "run", in the process of a kernel in Python whose code reports its comparisons (`reporting`). They lie
             in the output "reported", uint8[room], as JSON, of the answer's "size"; what the kernel returns, and its
             faults, are ignored.

Further fields of the answers report what only this process can see. They are believed if they speak against the kernel.

The first message of an oracle's process is {"gives": names of functions}. A run names "what" to compute, with "k"
columns: "weights", with a "format", or "activations". The input is the operand "given"; the answer's "columns" L say
that float64[n, L] lies at the beginning of the operand "values".
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from multiprocessing import reduction
from multiprocessing.connection import Connection
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ...support.errors import EnvironmentFault, HarnessError, NotTried, UsageError
from .api import Oracle
from .faults import MOST_TEXT, Fault, one_line, raised, unchanged
from .frames import as_array, described
from .operands import Mapped, Operand

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

#: Most places that a message lists.
MOST_UNSET = 20


class Runner(Protocol):
    """A kernel or an oracle, ready to be called.

    It has a method for each action ("do") that it supports, which gets a question and the operands that the question
    names, and returns the answer's fields besides "ok". They raise Fault and EnvironmentFault.
    """

    def declared(self) -> dict[str, Any]:
        """Return the first message."""

    def run(self, question: dict[str, Any], operands: dict[str, Mapped]) -> dict[str, Any]: ...


class OracleRunner:
    """The oracle of a kernel, or an `Oracle` itself. Raises UsageError if there is none."""

    def __init__(self, found: Any) -> None:
        oracle = found if isinstance(found, Oracle) else getattr(found, "semantics", None)
        if not isinstance(oracle, Oracle):
            raise UsageError("its oracle is not a gguf_verify.Oracle")
        self._oracle = oracle
        self.gives = [name for name in ("weights", "activations") if getattr(oracle, name) is not None]

    def declared(self) -> dict[str, Any]:
        return {"gives": self.gives}

    def run(self, question: dict[str, Any], operands: dict[str, Mapped]) -> dict[str, Any]:
        given, values = operands["given"].array, operands["values"].array
        more = (question["format"],) if question["what"] == "weights" else ()
        made = self._once(question["what"], given, question["k"], *more)
        values.reshape(-1)[: made.size] = made.reshape(-1)
        return {"columns": made.shape[1]}

    def _once(self, what: str, given: npt.NDArray[Any], k: int, *more: str) -> Doubles:
        copy = given.copy()
        try:
            answer, _ = as_array(getattr(self._oracle, what)(copy, *more))
        except Fault:
            raise Fault(f"the kernel's oracle returned no array as its {what}") from None
        except BaseException as error:  # also SystemExit
            raise raised("the kernel's oracle", error, f" in its {what}") from None
        unchanged(f"{what}' inputs", copy.view(np.uint8), given.view(np.uint8), "the kernel's oracle")
        n = len(given)
        if answer.dtype != np.float64 or answer.ndim != 2 or len(answer) != n or not k <= answer.shape[1] <= 2 * k:
            found = described(str(answer.dtype), answer.shape)
            raise Fault(f"the kernel's oracle returned {found} as its {what}, expected float64[{n}, {k}]")
        out = np.array(answer, np.float64, order="C")
        if not np.isfinite(out).all():
            row = int(np.argmin(np.isfinite(out).all(axis=1)))
            raise Fault(f"the kernel's oracle returned {what} that are not finite, the first in row {row}")
        return out


def _compiled(source: bytes, file: str) -> CodeType:
    return compile(source, file, "exec", dont_inherit=True)


def import_kernel(path: Path, name: str, compiled: Callable[[bytes, str], CodeType] = _compiled) -> Any:
    """Import NAME from FILE.py. Raises UsageError.

    Args:
        compiled: compiles a source; the other argument is its path.
    """
    if not path.is_file():
        raise UsageError(f"{path} is not a file")
    spec = importlib.util.spec_from_file_location("gguf_verify_foreign_kernel", path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is not a Python source")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.append(str(path.resolve().parent))
    try:
        # No bytecode: Python compares it with the source by size and modification second only, so an edit could go
        # unseen.
        sys.dont_write_bytecode = True
        exec(compiled(path.read_bytes(), str(path)), module.__dict__)
    except HarnessError as error:  # of the declaration
        raise UsageError(f"{path}: {error}") from None
    except BaseException as error:
        where = f"; {sys.executable} looked for it in the kernel's folder, in PYTHONPATH and in its own packages"
        hint = where if isinstance(error, ModuleNotFoundError) else ""
        raise UsageError(f"{path} cannot be imported: {one_line(error)}{hint}") from None
    found = module
    for part in name.split("."):
        if not hasattr(found, part):
            names = [n for n, value in vars(module).items() if callable(value) and _is_of(value, module)]
            raise UsageError(f"{path} has no {name}; it has {', '.join(names[:8]) or 'no function'}")
        found = getattr(found, part)
    return found


def _is_of(value: object, module: ModuleType) -> bool:
    return bool(getattr(value, "__module__", "") == module.__name__)


def end_with_parent() -> None:
    """Have this process die with its parent, even in an endless loop, and leave Ctrl-C to the parent."""
    with contextlib.suppress(Exception):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP):  # a fork inherits the parent's handlers
        signal.signal(number, signal.SIG_DFL)


def serve(link: Connection, make: Callable[[], Runner]) -> None:
    """Answer questions until the parent is gone; `make` returns the Runner."""
    end_with_parent()
    files: dict[int, int] = {}
    with contextlib.suppress(EOFError, OSError):
        try:
            runner = make()
            _say(link, **runner.declared())
        except EnvironmentFault as error:
            return _say(link, environment=str(error))
        except HarnessError as error:
            return _say(link, usage=str(error))
        while True:
            question = json.loads(link.recv_bytes())
            number = question["of"]
            _receive(link, question, files)
            try:
                operands = {}
                for said in question["operands"]:
                    operand = Operand.of_plain(said)
                    operands[operand.name] = Mapped(operand, files[operand.file])
                do = getattr(runner, question["do"])
                _say(link, of=number, ok=True, **do(question, operands))
            except Fault as error:
                more: dict[str, Any] = {} if error.finding is None else {"finding": error.finding}
                more |= {"not_run": True} if error.not_run else {}
                more |= {"trace": [list(frame) for frame in error.trace]} if error.trace else {}
                _say(link, of=number, fault=str(error), cause=error.cause, **more)
            except EnvironmentFault as error:
                _say(link, of=number, environment=str(error), not_tried=isinstance(error, NotTried))


def _receive(link: Connection, question: dict[str, Any], files: dict[int, int]) -> None:
    """Receive the new files of a question, and close those that are no longer needed."""
    for number in question["forget"]:
        os.close(files.pop(number))  # memory that a kernel still references stays mapped
    if question["files"]:
        with socket.socket(fileno=os.dup(link.fileno())) as ours:
            handles = reduction.recvfds(ours, len(question["files"]))
        files.update(zip(question["files"], handles, strict=True))


def _say(link: Connection, **answer: Any) -> None:
    cut = {key: value[: 3 * MOST_TEXT] if isinstance(value, str) else value for key, value in answer.items()}
    link.send_bytes(json.dumps(cut).encode())
