"""The parent's side of llama.cpp's process: a crash, an abort or a hang becomes one clear line."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, ClassVar, NoReturn, Self, TypeVar

import numpy.typing as npt

from ..processes.child import signal_name
from ..processes.given import Given, OpenFile
from ..support import protocol
from ..support.errors import Culprit, EnvironmentFault, LlamaFault, UsageError
from ..support.lanes import Lane
from ..support.records import record
from ..support.stages import stage
from ..support.text import printable
from . import answers
from .child import Child

#: Seconds without an answer after which llama.cpp counts as hung.
TIME_LIMIT = 900.0
_LOG_LINES, _LOG_WIDTH = 6, 200

Arrays = list[npt.NDArray[Any]]
T = TypeVar("T")
#: Exceptions raised by the checks of an answer.
_NOT_VALID = (
    protocol.ProtocolError, KeyError, TypeError, ValueError, IndexError, OverflowError, RecursionError,
)  # fmt: skip
_MOST_SAID = 2000


class LlamaRefused(Exception):
    """llama.cpp declined a call in an orderly way, for example to load a file."""

    culprit: ClassVar[Culprit] = "llama.cpp"


class FileRefused(LlamaRefused):
    """llama.cpp does not load a file: the message is its own, and the file is at fault."""

    culprit: ClassVar[Culprit] = "file"


class LlamaProcess:
    """A llama.cpp process that handles one call at a time. Use it as a context manager: leaving it ends the process.

    Its answers are of type `object`, so that the type checker allows no access before `typed` makes a record of them.

    Args:
        time_limit: seconds without an answer after which the process is killed and EnvironmentFault is raised.
        verbose: print llama.cpp's log on standard error.
        child: the process, if it was started ahead.

    Raises EnvironmentFault if llama.cpp cannot be used at all.
    """

    def __init__(self, time_limit: float = TIME_LIMIT, verbose: bool = False, child: Child | None = None) -> None:
        self._time_limit, self._verbose = time_limit, verbose
        self._child = child or Child(verbose)
        self._link, lanes = self._child.link, self._child.lanes
        self._out: Lane | None
        self._back: Lane | None
        self._out, self._back = lanes or (None, None)
        self._given = Given()
        #: Description of the graph's current node.
        self._at = ""
        try:
            header, _ = self.receive("start")
            if "error" in header:
                raise EnvironmentFault(f"llama.cpp cannot be used: {_words(header['error'])}")
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the process, whatever it is doing."""
        self._child.close()

    @property
    def pid(self) -> int:
        return self._child.pid

    def ask(
        self, call: str, arrays: dict[str, npt.NDArray[Any]] | None = None, **arguments: Any
    ) -> tuple[object, Arrays]:
        """Make a call with one answer; returns its result and its arrays.

        Raises:
            LlamaRefused: llama.cpp declined.
            EnvironmentFault: the process died, hung or failed, or sent an invalid answer.
        """
        self.send(call, arrays or {}, arguments)
        header, out = self.receive(call)
        return self.result(call, header), out

    def give(self, *groups: Sequence[OpenFile]) -> list[list[str]]:
        """Return paths of files for the arguments of the next call, as `Given.give` does."""
        return self._given.give(*groups)

    def send(self, call: str, arrays: dict[str, npt.NDArray[Any]], arguments: dict[str, Any]) -> None:
        """Begin a call; take its events and its answer by `receive`. Raises EnvironmentFault if the process died."""
        self._at = ""
        self.reply(call, {"call": call, "names": list(arrays), **arguments}, *arrays.values())

    def reply(self, call: str, header: dict[str, Any], *arrays: npt.NDArray[Any]) -> None:
        """Answer an event of a call. Raises EnvironmentFault if the process died."""
        if self._out is not None:
            self._out.all_taken()  # the process has read the last message: it handles one at a time
        try:
            protocol.send(self._link, {**header, **self._given.announced()}, *arrays, lane=self._out)
            self._given.hand_over(self._link)
        except EnvironmentFault:
            self.abandon()  # the process waits for files that will not come
            raise
        except OSError:
            with contextlib.suppress(EOFError, OSError, protocol.ProtocolError):
                while True:  # read its last messages
                    self._message(call)
            raise self._death(call) from None

    def receive(self, call: str) -> tuple[dict[str, object], Arrays]:
        """Return the next message of a call: an event (with a key "event") or the answer, which `result` takes."""
        try:
            with stage("llama.cpp"):
                while True:
                    header, arrays = self._message(call)
                    if header.get("event") != "at":
                        return header, arrays
        except TimeoutError:
            self._child.kill()
            words = f"no answer for {self._time_limit:g} s{self._last_log()}"
            raise LlamaFault(f"llama.cpp hung in {call}{self._at}: {words}") from None
        except protocol.ProtocolError as error:
            self._not_valid(call, error)
        except (EOFError, OSError):
            raise self._death(call) from None

    def _message(self, call: str) -> tuple[dict[str, object], Arrays]:
        """Return the next message, even if it only announces the next node."""
        header, arrays = protocol.receive(self._link, seconds=self._time_limit, lane=self._back)
        if header.get("event") == "at":
            self._at = f" at {printable(self.typed(call, header, answers.At).node, _LOG_WIDTH)}"
        return header, arrays

    @contextlib.contextmanager
    def valid(self, call: str) -> Iterator[None]:
        """Wrap the checks of an answer: if they fail, raise LlamaFault and end the process."""
        try:
            yield
        except protocol.ProtocolError as error:
            self._not_valid(call, error)
        except _NOT_VALID:
            self._not_valid(call)

    def typed(self, call: str, value: object, kind: type[T]) -> T:
        """Convert a part of an answer to a record of `answers`. Raises LlamaFault if it is invalid."""
        with self.valid(call):
            return record(value, kind)

    def _not_valid(self, call: str, why: object = "") -> NoReturn:
        self.abandon()
        said = f"{f' ({why})' if why else ''}{self._last_log()}"
        raise LlamaFault(f"llama.cpp's process sent an invalid answer in {call}{said}") from None

    def result(self, call: str, header: dict[str, object]) -> object:
        """Return the result in an answer. Raises LlamaRefused and EnvironmentFault as `ask` does."""
        if "refused" in header:
            words = self._words(header["refused"])
            if header.get("of_file") is True:
                raise FileRefused(words)
            raise LlamaRefused(words if "of_file" in header else words + self._last_log())
        if "error" in header:
            self._given.forget()
            raise LlamaFault(f"llama.cpp's process failed in {call}: {self._words(header['error'])}{self._last_log()}")
        if "result" not in header:
            self._not_valid(call)
        return header["result"]

    def start_backend(self, backend: str) -> dict[str, object]:
        """Start a device in this process, by ggml's name or one of `backends.SHORT`; products and models on it need
        that. Returns its report of the device, of which `backends` makes a record.

        Raises EnvironmentFault if it cannot be used here, UsageError if there is no such device.
        """
        result, _ = self.ask("start_backend", backend=backend)
        said = self.typed("start_backend", result, dict[str, str | int | float | bool | None])
        if "missing" in said:
            raise EnvironmentFault(_words(said["missing"]))
        if "unknown" in said:
            raise UsageError(f"--reference: {_words(said['unknown'])}", "device")
        self.typed("start_backend", said, answers.Started)
        return {name: printable(value, _MOST_SAID) if isinstance(value, str) else value for name, value in said.items()}

    def abandon(self) -> None:
        """End the process in the middle of a call: no later call may read this one's remaining messages."""
        self._child.kill()
        self._child.hang_up()

    def _death(self, call: str) -> LlamaFault:
        code = self._child.wait()
        assert code is not None
        how = signal_name(code) or f"exit code {code}"
        return LlamaFault(f"llama.cpp died in {call}{self._at} ({how}){self._last_log()}")

    def _last_log(self) -> str:
        """Return the last lines that llama.cpp printed, on one line."""
        said = [self._given.named(line) for line in self._child.last_lines(8192) if line.strip(" .")]
        lines = [printable(line, _LOG_WIDTH) for line in said]
        return f"; it said: {' | '.join(lines[-_LOG_LINES:])}" if lines else ""

    def _words(self, said: object) -> str:
        """Return a message of the process, with the user's file names."""
        return _words(self._given.named(str(said)[: 2 * _MOST_SAID]))


def _words(said: Any) -> str:
    """Escape a message of the process, which may come from a file, and put it on one line."""
    return printable(" ".join(str(said)[: 2 * _MOST_SAID].split()), _MOST_SAID)
