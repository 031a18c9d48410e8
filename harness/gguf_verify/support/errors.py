"""The errors that end a run, each with the exit code of the command line.

0: verified · 1: a mismatch · 2: wrong usage · 3: this machine cannot run the check (no such device, a failed build,
llama.cpp crashed), or SIGTERM or SIGHUP ended it · 4: the file is malformed · 5: not everything could be verified ·
130: interrupted by Ctrl-C.
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
#: Signal that ended a run → exit code; 1 where a mismatch was known already.
EXIT_INTERRUPTED = {"SIGINT": 130, "SIGTERM": EXIT_ENVIRONMENT, "SIGHUP": EXIT_ENVIRONMENT}


#: Who is at fault where something is not verified: the model's file; the declared definition, which cannot represent
#: these values; llama.cpp; the kernel under test; the oracle of its author; this project; this machine; or no one,
#: because nothing covers it.
Culprit = Literal["file", "definition", "llama.cpp", "kernel", "oracle", "verifier", "environment", "coverage"]


class HarnessError(Exception):
    """An error with one clear line for the user. Each subclass has its exit code; those that can be a part of a verdict
    say who is at fault.

    Args:
        line: what is wrong, where, why, and how to fix it.
        id: of the message, which `gguf-verify explain` knows; "" for a message that explains itself.
        details: further lines, such as a compiler's errors, which are printed below it.
    """

    exit_code = EXIT_ENVIRONMENT

    def __init__(self, line: str, id: str = "", details: Sequence[str] = ()) -> None:
        super().__init__(line)
        self.id, self.details = id, tuple(details)


class Interrupted(KeyboardInterrupt):
    """A signal other than Ctrl-C's asks the process to end."""

    def __init__(self, signal: str) -> None:
        super().__init__(signal)
        self.signal = signal


def signal_of(error: KeyboardInterrupt) -> Literal["SIGINT", "SIGTERM", "SIGHUP"]:
    """The name of the signal that an interrupt comes of."""
    for name in ("SIGTERM", "SIGHUP"):
        if isinstance(error, Interrupted) and error.signal == name:
            return name
    return "SIGINT"


class UsageError(HarnessError):
    """The command line asks for something that does not exist."""

    exit_code = EXIT_USAGE


class NoSuchFile(UsageError):
    """A path that was given names no regular file."""


class EnvironmentFault(HarnessError):
    """This machine cannot run the check: no such device, a failed build, llama.cpp crashed or hung."""

    exit_code = EXIT_ENVIRONMENT
    culprit: ClassVar[Culprit] = "environment"


class NotTried(EnvironmentFault):
    """A launch does not end in a requested order of threads and blocks, which no GPU promises. So nothing is known."""

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
    """A frame of a traceback: "FILE:LINE in FUNCTION", its line of source, and whether the kernel's author wrote it (or
    it is of an installed package)."""

    place: str
    code: str
    own: bool


class KernelFault(HarnessError):
    """A kernel broke its contract: it wrote outside its output, or left the host unusable."""

    exit_code = EXIT_MISMATCH
    culprit: ClassVar[Culprit] = "kernel"
    #: What further faults of the same cause have in common, such as the line that raised; "" where nothing does.
    cause = ""
    #: The frames of the exception that it is, outermost first, as far as they are not of this package.
    trace: tuple[TraceFrame, ...] = ()
    #: Whether the kernel did not return in time.
    late = False
    #: The `results.Call` in which it happened, where that is known.
    call: Any = None


class NotRun(KernelFault):
    """A call was not made, since others did not return, or not as a GPU makes it: nothing is known of what it would
    have given there."""

    culprit: ClassVar[Culprit] = "coverage"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.cause = message


class OracleFault(KernelFault):
    """The oracle of a kernel's author broke its contract."""

    culprit: ClassVar[Culprit] = "oracle"


#: What a kernel was seen to do.
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
]


class KernelFinding(KernelFault):
    """What a checked build or the host saw a kernel do, so that the fault has a name.

    Args:
        kind: the name.
        words: one line, which names the source lines where they are known.
        lines: the source lines, FILE:LINE.
    """

    def __init__(self, kind: str, words: str, lines: tuple[str, ...] = ()) -> None:
        super().__init__(words)
        self.kind, self.words, self.lines = kind, words, lines


class VerificationError(AssertionError):
    """What `raise_for_mismatch` raises: a result is not verified. It is an AssertionError, so that test runners take it
    for a failed test, and not for an error of the test.

    Args:
        message: at most 15 lines.
        report: the result: a `Report`, an `Audit`, an `IdentifyReport` or a `Judged`.
    """

    def __init__(self, message: str, report: Any = None) -> None:
        super().__init__(message)
        self.report = report


#: Errors of the operating system that report a limit → how the limit of a process is set, if it can be.
_LIMITS = {
    errno.EMFILE: " (ulimit -n)", errno.ENFILE: "", errno.EFBIG: " (ulimit -f)", errno.ENOSPC: "", errno.EDQUOT: "",
    errno.ENOMEM: " (ulimit -v)", errno.EAGAIN: " (ulimit -u: processes and threads)",
}  # fmt: skip


def limit_reached(error: Exception) -> str | None:
    """Which limit of this machine or of the process an error reports; None for any other error."""
    if isinstance(error, MemoryError) or (isinstance(error, ImportError) and "failed to map segment" in str(error)):
        return "out of memory"
    number, words = (error.errno, error.strerror) if isinstance(error, OSError) else (None, str(error))
    if isinstance(error, RuntimeError) and "can't start new thread" in str(error):  # Python keeps no number of it
        number = errno.EAGAIN
    if number not in _LIMITS:
        return None
    return f"a limit of this machine or of the process is reached: {words}{_LIMITS[number]}"


def say(line: str, details: Sequence[str] = ()) -> None:
    """Print one line on standard error, if the process has one, and its details below it."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            print("\n    ".join([f"gguf-verify: {line}", *details]), file=sys.stderr)
