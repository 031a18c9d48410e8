"""Another reader in its own process, with time limits for starting and answering; reports how it ended."""

from __future__ import annotations

import contextlib
import json
import re
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
from msgspec import Struct

from ..llama.child import confined
from ..llama.reader_process import MAX_ANSWER, MAX_HELLO, MAX_PRINTED, MAX_SAID, Load
from ..llama.reader_process import said as text_of
from ..processes.child import Spawned, signal_name
from ..processes.given import Given, OpenFile
from ..support.errors import EnvironmentFault
from ..support.text import printable
from .readings import Reading, Seen, Verdict, stripped

#: Time limit for starting a reader, in seconds.
START_LIMIT = 60.0

BROKE: Verdict = "broke"
STOPPED: Verdict = "stopped"


class Hello(Struct):
    """The first message: the reader's version, or why it cannot be used."""

    version: str | None = None
    error: str | None = None


class Answer(Struct):
    """A reader's result: why it refused the file, why it was stopped, or what it sees.

    Args:
        refused: the reason. Here and in names, each byte is one character, because JSON cannot hold bytes that are not
            UTF-8.
        tensors: name, ggml's type number, shape, absolute offset and size in bytes of each.
        said: what it skipped.
        loads: whether it loads the file; None if not tried.
        not_loaded: why not, in llama.cpp's words, or why it was not tried.
    """

    refused: str | None = None
    stopped: str | None = None
    data_offset: int | None = None
    tensors: list[tuple[str, int, tuple[int, ...], int, int]] | None = None
    said: str = ""
    loads: bool | None = None
    not_loaded: str = ""


_HELLO, _ANSWER = msgspec.json.Decoder(Hello), msgspec.json.Decoder(Answer)


class ReaderChild(Spawned):
    """One reader's process, and the request that it is working on.

    Args:
        name: of the reader.
        build: the folder of the libraries that llama.cpp's reader loads; None: those of llama-cpp-python.
    """

    def __init__(self, name: str, build: Path | None = None) -> None:
        self.name = name
        self.version = ""
        self._timer: threading.Timer | None = None
        self._time_limit = 0.0
        self._since = 0
        self._hung = threading.Event()
        self._given = Given()
        super().__init__(
            "gguf_verify.llama.reader_process",
            name,
            *([] if build is None else [str(build)]),
            environment={"GGML_NO_BACKTRACE": "1"},
            confined=replace(confined(log=MAX_PRINTED), shown=() if build is None else (build,)),
        )

    @property
    def alive(self) -> bool:
        return super().alive and not self._hung.is_set()

    def close(self, seconds: float | None = None) -> None:
        self._disarm()
        super().close(seconds)

    def greet(self) -> None:
        """Wait, once, until the reader is ready. Raises EnvironmentFault if it does not start."""
        if self.version:
            return
        self._arm(START_LIMIT)
        try:
            hello = _HELLO.decode(self.link.recv_bytes(MAX_HELLO))
        except (EOFError, OSError):
            hello = Hello(error=self._death().said)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            hello = Hello(error="its first message is invalid")
        finally:
            self._disarm()
        if hello.version is None:
            raise EnvironmentFault(f"{self.name} cannot be used: {printable(str(hello.error), 300)}")
        self.version = printable(hello.version, 60)

    def ask(self, files: Sequence[OpenFile], which: int, memory: int, time_limit: float, load: Load = "") -> None:
        """Send a request about one file of a model. Raises EnvironmentFault if the files cannot be passed on."""
        (paths,) = self._given.give(files)
        request = {"path": paths[which], "memory": memory, "load": load, **self._given.announced()}
        self._arm(time_limit)
        self._since = self.printed
        with contextlib.suppress(OSError):  # it died: `answer` reports that
            self.link.send_bytes(json.dumps(request).encode())
            self._given.hand_over(self.link)

    def answer(self) -> Reading:
        """Receive the reading. Raises nothing: a reader controlled by a hostile file may send anything."""
        try:
            return self._reading(_ANSWER.decode(self.link.recv_bytes(MAX_ANSWER)))
        except (EOFError, OSError):
            return self._death()
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return Reading(self.name, "broke", "sent an invalid answer")
        finally:
            self._disarm()

    def _reading(self, answer: Answer) -> Reading:
        """Convert an answer. Raises ValueError if it contradicts itself."""
        if answer.refused is not None:
            return Reading(self.name, "refused", self._said(answer.refused, 200))
        if answer.stopped is not None:
            self._given.forget()
            return Reading(self.name, "stopped", printable(answer.stopped, 200))
        if answer.tensors is None or answer.data_offset is None:
            raise ValueError("neither a verdict nor tensors")
        shapes: dict[tuple[int, ...], tuple[int, ...]] = {}  # deduplicates the few different shapes

        def shape_of(sizes: tuple[int, ...]) -> tuple[int, ...]:
            return shapes.get(sizes) or shapes.setdefault(sizes, stripped(sizes))

        tensors = tuple(
            Seen(text_of(name), shape_of(sizes), kind, offset, nbytes)
            for name, kind, sizes, offset, nbytes in answer.tensors
        )
        not_loaded = self._said(answer.not_loaded, 400)
        return Reading(
            self.name, "accepted", printable(answer.said, 200), answer.data_offset, tensors, answer.loads, not_loaded
        )

    def _said(self, text: str, most: int) -> str:
        """Return a reader's message on one line."""
        return printable(" ".join(self._given.named(text_of(text[:MAX_SAID])).split()), most)

    # A child may hang in the middle of an answer, which a time limit on the link would not detect. So a timer kills
    # the child, and the waiting thread reads the end of the stream.

    def _arm(self, seconds: float) -> None:
        self._time_limit = seconds
        timer = threading.Timer(seconds, self._expire)
        timer.daemon = True
        timer.start()
        self._timer = timer

    def _disarm(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
            timer.join()

    def _expire(self) -> None:
        self._hung.set()
        self.kill()

    def _death(self) -> Reading:
        """Describe how the process ended, with its last lines of output."""
        self.hang_up()  # if it is still running, it ends now
        if not self._hung.is_set():
            self.wait(5)
        self.kill()
        code = self.wait()
        assert code is not None
        if self._hung.is_set():
            return Reading(self.name, "stopped", f"hung: no answer in {self._time_limit:g} s")
        if reason := self.stopped_for:
            return Reading(self.name, "stopped", f"was killed because it {reason}")
        words = self._last_words()
        how, verdict = f"ended (exit code {code})", BROKE
        if code < 0:
            name = signal_name(code) or f"signal {-code}"
            starved = "insufficient memory" in words or "bad_alloc" in words
            how, verdict = (f"out of memory ({name})", STOPPED) if starved else (f"crashed ({name})", BROKE)
        return Reading(self.name, verdict, f"{how}: {words}" if words else how)

    def _last_words(self) -> str:
        """Return the last lines that it printed about this file. Source files are shown without their folders."""
        lines = [re.sub(r"\S*/(?=[^/\s]+:\d+: )", "", line) for line in self.last_lines(4096, self._since)]
        return printable(self._given.named(" | ".join(lines[-2:])), 200)
