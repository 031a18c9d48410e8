"""What gguf-py and llama.cpp see in the same file, and how their verdicts compare with ours.

Both run in child processes. A hostile file may crash a reader: that is a finding. It may also make a reader hang, or
exhaust its memory: the reader is then stopped, and what it would have seen is not compared, which is said as something
that could not be verified. Where our parser has refused the file, the readers get a short grace only: nothing that they
could say would make it readable.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, zip_longest
from multiprocessing.connection import wait
from pathlib import Path
from types import TracebackType
from typing import Literal, NamedTuple, Self

import msgspec

from ..formats import tensor_type
from ..gguf import Finding, GgufFile
from ..gguf.records import finding
from ..llama.child import CONFINED
from ..llama.reader_process import MAX_ANSWER, MAX_HELLO, MAX_PRINTED, MAX_SAID, Answer, Hello
from ..llama.reader_process import said as text_of
from ..processes.child import Spawned, signal_name
from ..support.errors import EnvironmentFault
from ..support.text import printable, quoted

#: The other readers, in the order of every report.
READERS = ("gguf-py", "llama.cpp")

#: Seconds that a reader may take for one file, and to start.
TIME_LIMIT, START_LIMIT = 60.0, 60.0
#: Seconds that a reader may take at least for a file that our parser has refused: each takes less than 0.1 s for an
#: ordinary file of 100 MB, and more than our parser took is of no use.
GRACE = 2.0
#: Bytes of memory that a reader may take for one file, besides the file's own size.
MEMORY = 2 << 30

Verdict = Literal["accepted", "refused", "broke", "stopped"]

BROKE: Verdict = "broke"
STOPPED: Verdict = "stopped"

_HELLO, _ANSWER = msgspec.json.Decoder(Hello), msgspec.json.Decoder(Answer)

#: By reader, the rules for which it refuses a file that we accept. No other finding explains a refusal.
EXPLAIN = {
    "gguf-py": ("bad-utf8",),
    "llama.cpp": ("nested-array", "offset-order", "gap", "zero-with-data", "padding-cut"),
}


class Seen(NamedTuple):
    """A tensor as a reader sees it.

    Args:
        name: as far as the reader read it; bytes that are not UTF-8 are surrogates.
        shape: row length first, without trailing ones, so () for a single value.
        type_id: ggml's number of its type.
        offset: absolute byte offset of its data.
        nbytes: of its data.
    """

    name: str
    shape: tuple[int, ...]
    type_id: int
    offset: int
    nbytes: int


@dataclass(frozen=True)
class Reading:
    """What one reader makes of one file.

    Args:
        reader: one of `READERS`.
        verdict: "broke" where it crashed; "stopped" where it hung, ran out of memory or found more than it can tell.
        said: why it refused; how it broke, such as "crashed (SIGABRT): last line of output"; why it was stopped, such
            as "hung: no answer in 60 s"; or what it left out. Escaped.
        data_offset: absolute byte offset that its tensor offsets are relative to; None where it did not accept the
            file.
        tensors: in the reader's order.
    """

    reader: str
    verdict: Verdict
    said: str = ""
    data_offset: int | None = None
    tensors: tuple[Seen, ...] = ()


class Readers:
    """gguf-py and llama.cpp, each in a process that serves many files, one after the other.

    Use it as a context manager: leaving it ends the processes, also while another thread reads. They start at the
    first file, and again after a file that broke them, or when the thread that started them has ended (the system then
    ends them).

    Args:
        time_limit: seconds for one file; a reader that takes longer counts as hung, and is stopped.
        memory: bytes that a reader may take for one file besides the file's size.
        names: of the readers, in order.
        shown: folders of this run that they may read.
    """

    def __init__(
        self, time_limit: float = TIME_LIMIT, memory: int = MEMORY, names: Sequence[str] = READERS,
        shown: tuple[Path, ...] = (),
    ) -> None:  # fmt: skip
        self._shown = shown
        self._names = tuple(names)
        self._time_limit = time_limit
        self._memory = memory
        self._children: dict[str, _Child] = {}
        self._lock = threading.Lock()
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End both processes, whatever they are doing. They are not started again."""
        self._closed = True
        self._end()

    def _end(self) -> None:
        with self._lock:
            while self._children:
                self._children.popitem()[1].close()

    @property
    def pids(self) -> dict[str, int]:
        """The processes that run now, by reader."""
        return {name: child.pid for name, child in self._children.items()}

    def versions(self) -> dict[str, str]:
        """The version of each reader. Raises EnvironmentFault where one cannot be started."""
        return {child.name: child.version for child in self._start()}

    def read(self, path: Path | str, seconds: float | None = None) -> tuple[Reading, ...]:
        """The file as both see it, in the order of `READERS`. They read at the same time, for so many seconds at most,
        if that is less than the time limit.

        What the file does to a reader is in its Reading. Raises EnvironmentFault where a reader cannot be started,
        ValueError after close().
        """
        children = self._start()
        limit = self._time_limit if seconds is None else min(seconds, self._time_limit)
        try:
            for child in children:
                child.ask(path, self._memory, limit)
            readings = self._answers(children)
        except BaseException:
            self._end()  # or an answer that comes later would be taken for the answer to the next question
            raise
        with self._lock:
            for reading in readings:
                if reading.verdict in ("broke", "stopped") and reading.reader in self._children:
                    self._children.pop(reading.reader).close()
        return readings

    def _answers(self, children: Sequence[_Child]) -> tuple[Reading, ...]:
        """The answers, received as they come, so that no reader's time limit runs on while another is waited for."""
        waiting = list(children)
        readings = {}
        while waiting:
            links = [child.link for child in waiting]
            try:
                ready = wait(links)
            except OSError:  # closed meanwhile: each child's answer will say how it ended
                ready = list(links)
            for child in [child for child in waiting if child.link in ready]:
                waiting.remove(child)
                readings[child.name] = child.answer()
        return tuple(readings[name] for name in self._names)

    def _start(self) -> tuple[_Child, ...]:
        """Both children, ready."""
        with self._lock:
            if self._closed:
                raise ValueError("the readers are closed")
            for name in self._names:
                if name in self._children and not self._children[name].alive:
                    self._children.pop(name).close()
                if name not in self._children:
                    self._children[name] = _Child(name, self._shown)
            children = tuple(self._children[name] for name in self._names)
        try:
            for child in children:
                child.greet()
        except BaseException:
            self._end()
            raise
        return children


#: What a reader's process may do.
_CONFINED = replace(CONFINED, limits=replace(CONFINED.limits, log=MAX_PRINTED))


class _Child(Spawned):
    """One reader's process, and the request that it is working on."""

    def __init__(self, name: str, shown: tuple[Path, ...] = ()) -> None:
        self.name = name
        self.version = ""
        self._timer: threading.Timer | None = None
        self._time_limit = 0.0
        self._since = 0
        self._hung = threading.Event()
        super().__init__(
            "gguf_verify.llama.reader_process",
            name,
            environment={"GGML_NO_BACKTRACE": "1"},
            confined=replace(_CONFINED, shown=shown),
        )

    @property
    def alive(self) -> bool:
        return super().alive and not self._hung.is_set()

    def close(self, seconds: float | None = None) -> None:
        self._disarm()
        super().close(seconds)

    def greet(self) -> None:
        """Wait, once, until it is ready. Raises EnvironmentFault where it does not start."""
        if self.version:
            return
        self._arm(START_LIMIT)
        try:
            hello = _HELLO.decode(self.link.recv_bytes(MAX_HELLO))
        except (EOFError, OSError):
            hello = Hello(error=self._death().said)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            hello = Hello(error="its first message is not valid")
        finally:
            self._disarm()
        if hello.version is None:
            raise EnvironmentFault(f"{self.name} cannot be used: {printable(str(hello.error), 300)}")
        self.version = printable(hello.version, 60)

    def ask(self, path: Path | str, memory: int, time_limit: float) -> None:
        request = {"path": os.path.abspath(os.fsdecode(path)), "memory": memory}
        self._arm(time_limit)
        self._since = self.printed
        with contextlib.suppress(OSError):  # dead: its answer will say so
            self.link.send_bytes(json.dumps(request).encode())

    def answer(self) -> Reading:
        """What it sees. Raises nothing: a reader that a file has taken over may send anything."""
        try:
            return self._reading(_ANSWER.decode(self.link.recv_bytes(MAX_ANSWER)))
        except (EOFError, OSError):
            return self._death()
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return Reading(self.name, "broke", "sent an answer that is not valid")
        finally:
            self._disarm()

    def _reading(self, answer: Answer) -> Reading:
        """Raises ValueError where the answer contradicts itself."""
        if answer.refused is not None:
            return Reading(self.name, "refused", printable(" ".join(text_of(answer.refused[:MAX_SAID]).split()), 200))
        if answer.stopped is not None:
            return Reading(self.name, "stopped", printable(answer.stopped, 200))
        if answer.tensors is None or answer.data_offset is None:
            raise ValueError("neither a verdict nor tensors")
        shapes: dict[tuple[int, ...], tuple[int, ...]] = {}  # few different ones, of which each is kept once

        def shape_of(sizes: tuple[int, ...]) -> tuple[int, ...]:
            return shapes.get(sizes) or shapes.setdefault(sizes, stripped(sizes))

        tensors = tuple(
            Seen(text_of(name), shape_of(sizes), kind, offset, nbytes)
            for name, kind, sizes, offset, nbytes in answer.tensors
        )
        return Reading(self.name, "accepted", printable(answer.said, 200), answer.data_offset, tensors)

    # A child may hang in the middle of an answer, where a time limit on the link would not notice it. So a timer kills
    # the child, and the thread that waits for it reads the end of the stream.

    def _arm(self, seconds: float) -> None:
        self._time_limit = seconds
        self._timer = threading.Timer(seconds, self._expire)
        self._timer.daemon = True
        self._timer.start()

    def _disarm(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
            timer.join()

    def _expire(self) -> None:
        self._hung.set()
        self.kill()

    def _death(self) -> Reading:
        """How it ended, and its last lines of output."""
        self.hang_up()  # if it is still running, it ends now
        if not self._hung.is_set():
            self.wait(5)
        self.kill()
        code = self.wait()
        assert code is not None
        if self._hung.is_set():
            return Reading(self.name, "stopped", f"hung: no answer in {self._time_limit:g} s")
        if reason := self.stopped_for:
            return Reading(self.name, "stopped", f"was killed, since it {reason}")
        words = self._last_words()
        how, verdict = f"ended (exit code {code})", BROKE
        if code < 0:
            name = signal_name(code) or f"signal {-code}"
            starved = "insufficient memory" in words or "bad_alloc" in words
            how, verdict = (f"out of memory ({name})", STOPPED) if starved else (f"crashed ({name})", BROKE)
        return Reading(self.name, verdict, f"{how}: {words}" if words else how)

    def _last_words(self) -> str:
        """The last lines that it printed about this file. Source files are named without their folders."""
        lines = [re.sub(r"\S*/(?=[^/\s]+:\d+: )", "", line) for line in self.last_lines(4096, self._since)]
        return printable(" | ".join(lines[-2:]), 200)


def stripped(shape: Iterable[int]) -> tuple[int, ...]:
    """A shape without its trailing ones, which ggml adds up to four dimensions: () for a single value."""
    out = list(shape)
    while out and out[-1] == 1:
        out.pop()
    return tuple(out)


# ---- verdicts side by side ------------------------------------------------------------------------------------------


def compare(file: GgufFile, readings: Sequence[Reading], explained: Sequence[Finding]) -> tuple[Finding, ...]:
    """Findings where the two readers' verdicts or tensors differ from ours; none where all three agree.

    Args:
        file: our own reading of the file, refused or not.
        readings: the other readers' readings of the same bytes.
        explained: our findings on the file. Those that `EXPLAIN` names are reasons for a reader's refusal.
    """
    found = [f for reading in readings for f in _beside(file, reading, explained)]
    if file.refused is not None:
        accepted = [reading for reading in readings if reading.verdict == "accepted"]
        for one, other in pairwise(accepted):
            found += _differing(file, one, other)
    return tuple(replace(f, part=file.part) for f in found)


def _beside(file: GgufFile, reading: Reading, explained: Sequence[Finding]) -> list[Finding]:
    """Our verdict compared with one reader's."""
    who, said = reading.reader, f": {reading.said}" if reading.said else ""
    refused = file.refused
    # The cause of our refusal is the likeliest cause of the reader's too; otherwise no place in the file is known.
    start, stop = (refused.start, refused.stop) if refused else (0, file.size)
    if reading.verdict == "stopped":
        return []  # nothing is known: `not_compared` says so
    if reading.verdict == "broke":
        return [finding("reader-broke", start, stop, f"{who} to accept or refuse the file", f"{who} {reading.said}")]
    if refused is not None:
        if reading.verdict == "refused":
            return []
        note = f"{who} accepts it with {_count(reading)}" + (f" ({reading.said})" if reading.said else "")
        return [finding("reader-verdict", start, stop, f"{who} to refuse the file, as {refused.id} does", note)]
    if reading.verdict == "accepted":
        return _differing(file, ours(file), reading)
    expected, found = f"a file that {who} reads", f"{who} refuses it{said}"
    reasons = [f for f in explained if f.id.split("-", 2)[-1] in EXPLAIN.get(who, ()) and f.part == file.part]
    if reasons:
        at = reasons[0]
        return [finding("reader-verdict", at.start, at.stop, expected, f"{found}; {at.id} says why")]
    return [finding("llama-refuses" if who == "llama.cpp" else "gguf-py-refuses", start, stop, expected, found)]


def not_compared(readings: Sequence[Reading]) -> list[tuple[str, str]]:
    """What could not be judged because a reader was stopped: pairs of name and reason."""
    return [(f"what {r.reader} sees", f"not compared: {r.said}") for r in readings if r.verdict == "stopped"]


def ours(file: GgufFile) -> Reading:
    """Our own reading of a file that we accept, as a Reading of "gguf-verify"."""
    tensors = tuple(Seen(t.name, stripped(t.shape), t.type.type_id, t.offset, t.nbytes) for t in file.tensors.values())
    return Reading("gguf-verify", "accepted", "", file.data_offset, tensors)


def _differing(file: GgufFile, one: Reading, other: Reading) -> list[Finding]:
    """One finding for the first difference between two readings; none where they see the same tensors."""
    differing = [(i, a, b) for i, (a, b) in enumerate(zip_longest(one.tensors, other.tensors)) if a != b]
    a_start, b_start = one.data_offset or 0, other.data_offset or 0
    if one.tensors and other.tensors and a_start != b_start:
        start, stop = sorted(min(offset, file.size) for offset in (a_start, b_start))
        expected, found, owner = f"byte {a_start}", f"{other.reader} counts offsets from byte {b_start}", ""
    elif not differing:
        return []
    else:
        i, a, b = differing[0]
        more = f" (the first of {len(differing)} that differ)" if len(differing) > 1 else ""
        if a is None or b is None:
            field = len(Seen._fields) - 1
            expected, found = _count(one), f"{other.reader} sees {_count(other)}"
        else:
            field = next(k for k in range(len(a)) if a[k] != b[k])
            expected, found = _shown(a, field), f"{other.reader} sees {_shown(b, field)} in tensor {i}{more}"
        start, stop, owner = _place(file, i, field)
    return [finding("reader-differs", start, stop, f"{expected}, as {one.reader} does", found, owner)]


def _count(reading: Reading) -> str:
    return f"{len(reading.tensors)} tensor" + "s" * (len(reading.tensors) != 1)


def _shown(seen: Seen, field: int) -> str:
    """One field of a tensor, by its place in Seen."""
    kind = tensor_type(seen.type_id)
    return (
        f"the name {quoted(seen.name)}",
        f"the shape {' x '.join(map(str, seen.shape)) or '1'}",
        f"type {kind.name if kind else seen.type_id}",
        f"data at byte {seen.offset}",
        f"{seen.nbytes} bytes of data",
    )[field]


def _place(file: GgufFile, index: int, field: int) -> tuple[int, int, str]:
    """Start, end and owner of a field of a tensor's description, by our own parse. The size belongs to all of it."""
    tensors = list(file.tensors.values())
    if index < len(tensors):
        described = tensors[index].described
        first, last = (described[field], described[field]) if field < len(described) else (described[0], described[-1])
        return first.start, last.stop, tensors[index].name
    if file.refused is not None:
        return file.refused.start, file.refused.stop, file.refused.owner
    count = next(r for r in file.byte_map if r.kind == "tensor count")
    return count.start, count.stop, ""
