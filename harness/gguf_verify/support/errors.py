"""Errors that end a run, each with an exit code of the command line.

0: verified · 1: mismatch · 2: usage error · 3: this machine cannot run the check (no such device, a failed build,
llama.cpp crashed), or SIGTERM or SIGHUP ended the run · 4: malformed file · 5: not everything could be verified ·
130: Ctrl-C.
"""

from __future__ import annotations

import contextlib
import errno
import sys
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, NamedTuple

EXIT_VERIFIED = 0
EXIT_MISMATCH = 1
EXIT_USAGE = 2
EXIT_ENVIRONMENT = 3
EXIT_MALFORMED = 4
EXIT_UNVERIFIED = 5
#: Signal that ended a run → exit code; the code is 1 if a mismatch was found before.
EXIT_INTERRUPTED = {"SIGINT": 130, "SIGTERM": EXIT_ENVIRONMENT, "SIGHUP": EXIT_ENVIRONMENT}


#: The culprit of something that is not verified: the model's file; the declared definition, which cannot represent
#: these values; llama.cpp; the kernel under test; its author's oracle; this project; this machine; or "coverage": no
#: one, because the check was not reached.
Culprit = Literal["file", "definition", "llama.cpp", "kernel", "oracle", "verifier", "environment", "coverage"]


class HarnessError(Exception):
    """An error with one clear line for the user. Each subclass has an exit code; those that can be part of a verdict
    have a culprit.

    Args:
        line: what is wrong, where, why, and how to fix it.
        id: the message's id, for `gguf-verify explain`; "" for a message that needs no explanation.
        details: further lines to print below it, such as a compiler's errors.
    """

    exit_code = EXIT_ENVIRONMENT

    def __init__(self, line: str, id: str = "", details: Sequence[str] = ()) -> None:
        super().__init__(line)
        self.id, self.details = id, tuple(details)


class Interrupted(KeyboardInterrupt):
    """A signal other than SIGINT requested the end of the process."""

    def __init__(self, signal: str) -> None:
        super().__init__(signal)
        self.signal = signal


def signal_of(error: KeyboardInterrupt) -> Literal["SIGINT", "SIGTERM", "SIGHUP"]:
    """Return the name of the signal that raised an interrupt."""
    for name in ("SIGTERM", "SIGHUP"):
        if isinstance(error, Interrupted) and error.signal == name:
            return name
    return "SIGINT"


class UsageError(HarnessError):
    """The command line is invalid, or refers to something that does not exist."""

    exit_code = EXIT_USAGE


class NoSuchFile(UsageError):
    """A path on the command line is not a regular file."""


class EnvironmentFault(HarnessError):
    """This machine cannot run the check: no such device, a failed build, llama.cpp crashed or hung."""

    exit_code = EXIT_ENVIRONMENT
    culprit: ClassVar[Culprit] = "environment"


class NotTried(EnvironmentFault):
    """A launch cannot complete in a requested order of threads and blocks, an order that no GPU guarantees. So nothing
    is learned about the kernel."""

    culprit: ClassVar[Culprit] = "coverage"


class LlamaFault(EnvironmentFault):
    """llama.cpp crashed, hung, or ended without an answer."""

    culprit: ClassVar[Culprit] = "llama.cpp"


class MalformedFile(HarnessError):
    """The file is not a GGUF that can be read safely."""

    exit_code = EXIT_MALFORMED
    culprit: ClassVar[Culprit] = "file"


class NothingToVerify(HarnessError):
    """The file is well formed but holds nothing that any rung could check."""

    exit_code = EXIT_UNVERIFIED
    culprit: ClassVar[Culprit] = "coverage"


class TraceFrame(NamedTuple):
    """A frame of a traceback: "FILE:LINE in FUNCTION", its source line, and whether it is the kernel author's code (and
    not an installed package's)."""

    place: str
    code: str
    own: bool


class KernelFault(HarnessError):
    """A kernel broke its contract: it wrote outside its output, or left the host unusable."""

    exit_code = EXIT_MISMATCH
    culprit: ClassVar[Culprit] = "kernel"
    #: Groups faults with the same cause, for example by the line that raised; "" if nothing groups them.
    cause = ""
    #: The frames of the exception, outermost first, without those of this package.
    trace: tuple[TraceFrame, ...] = ()
    #: Whether the kernel exceeded its time limit.
    late = False
    #: The `results.Call` that failed, if known.
    call: Any = None


class NotRun(KernelFault):
    """A call was not made because others did not return, or was not made as a GPU makes it; its result is unknown."""

    culprit: ClassVar[Culprit] = "coverage"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.cause = message


class OracleFault(KernelFault):
    """The oracle of the kernel's author broke its contract."""

    culprit: ClassVar[Culprit] = "oracle"


#: Kinds of faults that checked builds and hosts observe.
FindingKind = Literal[
    "race",
    "outside",
    "unset",
    "misaligned",
    "overflow",
    "shift",
    "division",
    "divergent",
    "mask",
    "operand",
    "assumption",
    "limit",
    "input",
    "unwritten",
    "changing",
    "address",
    "count",
    "unaligned",
]


class KernelFinding(KernelFault):
    """A named fault that a checked build or the host observed in a kernel.

    Args:
        kind: its name.
        words: one line of text, with source lines if they are known.
        lines: the source lines, as FILE:LINE.
    """

    def __init__(self, kind: str, words: str, lines: tuple[str, ...] = ()) -> None:
        super().__init__(words)
        self.kind, self.words, self.lines = kind, words, lines


class VerificationError(AssertionError):
    """Raised by `raise_for_mismatch`: a result is not verified. It is an AssertionError, so that test runners report a
    failed test, not an error in the test.

    Args:
        message: at most 15 lines.
        report: the result: a `Report`, an `Audit`, an `IdentifyReport` or a `Judged`.
    """

    def __init__(self, message: str, report: Any = None) -> None:
        super().__init__(message)
        self.report = report


#: errno of a reached limit → hint on how to raise the limit for a process, if that is possible.
_LIMITS = {
    errno.EMFILE: " (ulimit -n)", errno.ENFILE: "", errno.EFBIG: " (ulimit -f)", errno.ENOSPC: "", errno.EDQUOT: "",
    errno.ENOMEM: " (ulimit -v)", errno.EAGAIN: " (ulimit -u: processes and threads)",
}  # fmt: skip


def limit_reached(error: Exception) -> str | None:
    """Describe the limit of the machine or process that an error reports; None for any other error."""
    if isinstance(error, MemoryError) or (isinstance(error, ImportError) and "failed to map segment" in str(error)):
        return "out of memory"
    number, words = (error.errno, error.strerror) if isinstance(error, OSError) else (None, str(error))
    if isinstance(error, RuntimeError) and "can't start new thread" in str(error):  # Python reports no errno here
        number = errno.EAGAIN
    if number not in _LIMITS:
        return None
    return f"a limit of this machine or process was reached: {words}{_LIMITS[number]}"


def say(line: str, details: Sequence[str] = ()) -> None:
    """Print one line on standard error, if there is one, and details below it."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            print("\n    ".join([f"gguf-verify: {line}", *details]), file=sys.stderr)
