"""Observation of the author's code that the processes of a foreign kernel execute.

A process tells what it has executed when it is asked, before it ends: a library that GCC compiled here has counters
(`hosts.gcov`), and a kernel in Python is traced (`tracing`). What runs in Python is also written to memory of this
process, from which it is read if the other one ended before. Code on a GPU, and code that was compiled before, tells
nothing. The answer of a hostile process can be wrong in both directions: it says what the verdict rests on, and the
verdict does not rest on it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...hosts.choice import HOSTS
from ...hosts.compiler import counts_fault
from ...hosts.gcov import MOST_COUNTERS
from ...results.coverage import Executed, Execution, Outcomes, joined
from ...support.errors import EnvironmentFault, KernelFault, UsageError
from .conversation import Conversation
from .cuda import CudaKernels, read_text
from .executed import LOG_BYTES, executed_by_python, executed_until_death
from .operands import MemoryFile, Operand, laid_out


class Executions:
    """The code that a kernel's processes have executed so far.

    Args:
        compiled: the compiler of a kernel in CUDA C++.
        traced: whether it is in Python, and its process traces it.
    """

    def __init__(self, compiled: CudaKernels | None, traced: bool) -> None:
        self._compiled, self._traced = compiled, traced
        #: File → its executed code.
        self.files: dict[str, Executed] = {}
        #: Why nothing, or not everything, can be observed.
        self.missing: dict[str, None] = {}
        #: The types that it was called with, and the key of one of their kernels, which are in one library.
        self._called: dict[str, str] = {}
        self._known: set[tuple[str, bytes]] = set()
        #: Whether a function in Python was called since its process was last asked, and whether one ever told.
        self._untold = self._told = False
        #: The logs of its processes.
        self._logs: dict[Conversation, tuple[MemoryFile, Operand]] = {}
        if compiled is None and not traced:
            self.missing["it was compiled before"] = None
        elif compiled is not None and not HOSTS[compiled.host.name].emulated:
            self.missing["it runs on a GPU; --host cpu observes it"] = None
        elif compiled is not None and (fault := counts_fault()) is not None:
            self.missing[fault] = None

    def call(self, fmt: str, launches: Sequence[Mapping[str, Any]]) -> None:
        """Note a call with weights of a type, and its launches, as in messages; a function in Python has none."""
        for launch in launches:
            self._called.setdefault(fmt, launch["kernel"])
        self._untold = self._traced

    def begun(self, conversation: Conversation) -> None:
        """Have a new process log what it executes; the log of the one before is read. Raises KernelFault."""
        if not self._traced:
            return
        self._read_log(conversation)
        with contextlib.suppress(EnvironmentFault):
            (operand,), size = laid_out([Operand("log", "output", "uint8", (LOG_BYTES,))], 0)
            file = MemoryFile(size)
            (operand,), _ = laid_out([operand], file.number)
            conversation.ask({"do": "log", "operands": [operand.plain()]}, [file])
            self._logs[conversation] = file, operand

    def _read_log(self, conversation: Conversation) -> None:
        """Read the log of a process that has ended."""
        if conversation in self._logs:
            file, operand = self._logs.pop(conversation)
            self.files = joined((self.files, executed_until_death(bytes(operand.bytes_in(file.bytes)))))
            file.close()

    def _read_logs(self) -> None:
        for conversation in [one for one in self._logs if one.process is None]:
            self._read_log(conversation)

    def look(self, conversation: Conversation) -> None:
        """Ask a process what it has executed, if it still runs."""
        if conversation.process is None or (self.missing and not self._traced):
            return
        try:
            for fmt, kernel in self._called.items() if self._compiled is not None else (("", ""),):
                told = _asked(conversation, kernel)
                self._untold, self._told = False, True
                # GCC counts some of a function's branches, from which gcov computes the others
                seen = fmt, hashlib.sha256(told).digest()
                if told and seen not in self._known:
                    self._known.add(seen)
                    self.files = joined((self.files, self._read(fmt, told)))
        except (KernelFault, EnvironmentFault) as error:
            self.missing[str(error)] = None

    def _read(self, fmt: str, told: bytes) -> Mapping[str, Executed]:
        if self._compiled is not None:
            return self._compiled.executed(fmt, told)
        files, unobserved = executed_by_python(told)
        self.missing |= dict.fromkeys(unobserved)
        return files

    def execution(self, compared: Mapping[str, Mapping[tuple[int, int], Outcomes]]) -> Execution:
        """All of it, with files under their names below the folder that holds all of them.

        Args:
            compared: file → the outcomes of its comparisons that are no branches.
        """
        self._read_logs()
        names = dict(self._names())
        missing = dict(self.missing)
        if (self._untold or self._called) and not self.files and not missing:
            missing["its process ended before it reported what it had executed"] = None
        elif self._untold and not self._told:
            missing["its process ended before it reported which functions were not executed"] = None
        of_values = {path: Executed(comparisons=of) for path, of in compared.items() if path in self.files}
        files = joined((self.files, of_values))
        return Execution({names[path]: of for path, of in files.items()}, tuple(missing))

    def texts(self) -> dict[str, str]:
        """The author's files: the same names → texts. A file that cannot be read is omitted."""
        if self._compiled is not None:
            return self._compiled.source.texts
        self._read_logs()
        found = dict[str, str]()
        for path, name in self._names():
            with contextlib.suppress(UsageError):
                found[name] = read_text(Path(path))
        return found

    def _names(self) -> Iterator[tuple[str, str]]:
        """Each file, and its name: that of a source in CUDA C++ is the author's already."""
        top = os.path.commonpath([os.path.dirname(path) for path in self.files]) if self.files else ""
        for path in self.files:
            yield path, os.path.relpath(path, top) if os.path.isabs(path) else path


def _asked(conversation: Conversation, kernel: str) -> bytes:
    """Return what a process tells; nothing if it tells more than there is room for. Raises KernelFault."""
    (operand,), size = laid_out([Operand("executed", "output", "uint8", (MOST_COUNTERS,))], 0)
    file = MemoryFile(size)
    try:
        (operand,), _ = laid_out([operand], file.number)
        question = {"do": "executed", "kernel": kernel, "operands": [operand.plain()]}
        n = conversation.ask(question, [file]).get("size")
        if type(n) is not int or n < 0:
            conversation.garbage()
        return bytes(operand.bytes_in(file.bytes)[:n]) if n <= MOST_COUNTERS else b""
    finally:
        conversation.forget(file)
        file.close()
