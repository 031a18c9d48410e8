"""llama.cpp's answers, recorded once in a process of the tests and replayed.

Most tests of verifications ask llama.cpp the same questions: they load a fixture and evaluate one prompt. A process of
llama.cpp costs about 0.3 s of processor time, and each verification starts two. `RecordedLlama` needs one only when it
is asked something new, and takes over one that another left, if there is one (`kept_processes`).

An answer is found by a digest of everything that can influence it: the environment, the contents of the files that were
handed over, each message sent so far with its arrays, and the number of messages received between them. If an answer is
missing, a real process is needed. It is sent the same messages, must answer them with the same arrays, and goes on.
Refusals and faults are not recorded, since reports quote the log, and neither are scans of files, whose messages depend
on threads.

Only tests know this class: the fixture `recorded` puts it in place of `Llama` in `gguf_verify.rungs.session`.
Recordings stay in memory, so no run reads those of another version. `make test-all` starts llama.cpp each time.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt

from gguf_verify.llama.child import Child
from gguf_verify.llama.process import TIME_LIMIT
from gguf_verify.processes.given import Given, OpenFile
from tests.support import kept_processes
from tests.support.kept_processes import KeptLlama, NoProcess

Arrays = list[npt.NDArray[Any]]

#: Bytes of arrays that are kept; the answers that were used least lately are dropped.
ROOM = 512 << 20
#: The call whose answers are not recorded.
_SCAN = "scan"


class Recordings:
    """Answers by the digest of what was asked."""

    def __init__(self, room: int = ROOM) -> None:
        self._answers: OrderedDict[bytes, Answer] = OrderedDict()
        self._left = room

    def known(self) -> list[bytes]:
        return list(self._answers)

    def find(self, key: bytes) -> Answer | None:
        if key in self._answers:
            self._answers.move_to_end(key)
        return self._answers.get(key)

    def keep(self, key: bytes, answer: Answer) -> None:
        self._answers[key] = answer
        self._left -= sum(each.nbytes for each in answer.arrays)
        while self._left < 0:
            _, dropped = self._answers.popitem(last=False)
            self._left += sum(each.nbytes for each in dropped.arrays)


@dataclass(frozen=True)
class Answer:
    """A message that was received."""

    header: str
    arrays: Arrays

    @classmethod
    def of(cls, header: dict[str, object], arrays: Arrays) -> Answer:
        return cls(json.dumps(header), [each.copy() for each in arrays])

    def given(self) -> tuple[dict[str, object], Arrays]:
        """A copy, which the caller may change."""
        return json.loads(self.header), [each.copy() for each in self.arrays]

    @property
    def ends(self) -> bool:
        """Whether it is the last one of a call."""
        return "event" not in json.loads(self.header)

    def agrees(self, arrays: Arrays) -> bool:
        return [(a.dtype, a.shape, a.tobytes()) for a in self.arrays] == [
            (a.dtype, a.shape, a.tobytes()) for a in arrays
        ]


@dataclass
class HeldFile:
    """A file that was handed over, kept open until it may have to be handed over again."""

    path: Path
    identity: list[int]
    handle: int

    def fileno(self) -> int:
        return self.handle


@dataclass(frozen=True)
class Question:
    """A message that was sent, and the files that it handed over."""

    header: dict[str, Any]
    arrays: Arrays
    files: tuple[list[HeldFile], ...]


@dataclass(frozen=True)
class Said:
    """A part of a conversation.

    Args:
        call: of which it is a part.
        asked: the digest of the conversation up to its end.
    """

    call: str
    message: Question | Answer
    asked: bytes


class RecordedLlama(KeptLlama):
    """`Llama` that needs a process only where an answer is not recorded. With arguments that concern the process, it
    is `Llama`."""

    recordings = Recordings()

    def __init__(
        self,
        time_limit: float = TIME_LIMIT,
        verbose: bool = False,
        child: Child | None = None,
        build: Path | None = None,
    ) -> None:
        self._recorded = child is None and build is None and not verbose
        self._live = not self._recorded
        #: What the process will have to be sent and to answer, if it is started.
        self._said: list[Said] = []
        self._files: tuple[list[HeldFile], ...] = ()
        #: Digests of the files of the next message.
        self._contents = b""
        environment = sorted((name, value) for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST")
        self._begun = _extended(b"", repr(environment).encode())
        super().__init__(time_limit, verbose, child if self._live else NoProcess(), build)  # type: ignore[arg-type]

    @property
    def started(self) -> bool:
        """Whether there is a process."""
        return self._live

    @property
    def _asked(self) -> bytes:
        """The digest of all that was said so far. An interrupt changes it and what was said together, or neither."""
        return self._said[-1].asked if self._said else self._begun

    def give(self, *groups: Sequence[OpenFile]) -> list[list[str]]:
        self._contents = b"".join(f.path.name.encode() + _digest(f) for group in groups for f in group)
        if not self._live:
            self._files = tuple([HeldFile(f.path, f.identity, os.dup(f.fileno())) for f in group] for group in groups)
        return super().give(*groups)

    def reply(self, call: str, header: dict[str, Any], *arrays: npt.NDArray[Any]) -> None:
        contents, self._contents = self._contents, b""
        described = [(each.dtype.str, each.shape) for each in arrays]
        words = repr((call, json.dumps(header), described)).encode()
        asked = _extended(self._asked, words, contents, *(each.tobytes() for each in arrays))
        if self._live:
            super().reply(call, header, *arrays)
            self._begun = asked
        else:
            question = Question(header, [each.copy() for each in arrays], self._files)
            self._files = ()
            self._said.append(Said(call, question, asked))

    def _message(self, call: str) -> tuple[dict[str, object], Arrays]:
        key = self._asked
        asked = _extended(key, b"received")
        if not self._live and (found := self.recordings.find(key)) is not None:
            self._said.append(Said(call, found, asked))
            return found.given()
        self._start()
        # what follows an interrupt is not recorded: who was interrupted has not seen this message
        recorded, self._recorded = self._recorded, False
        header, arrays = super()._message(call)
        self._begun = asked
        fails = header.get("refused", "stopped") != "stopped" or "error" in header
        if recorded and not fails and call != _SCAN:
            self.recordings.keep(key, Answer.of(header, arrays))
        self._recorded = recorded
        return header, arrays

    def _start(self) -> None:
        """Start the process, if there is none, and bring it to where the conversation is."""
        if self._live:
            return
        self._live, self._known = True, kept_processes.conditions()
        self._taken = kept_processes.taken(self._known) if self._said else None
        self._child, self._given = self._taken or Child(), Given()
        self._link, lanes = self._child.link, self._child.lanes
        self._out, self._back = lanes or (None, None)
        try:
            self._say_again()
        except BaseException:
            super().abandon()
            raise
        self._begun = self._asked
        self._forget()

    def _say_again(self) -> None:
        stopped = False
        for call, message in ((said.call, said.message) for said in self._said[self._taken is not None :]):
            if isinstance(message, Question):
                if message.files:
                    super().give(*message.files)
                super().reply(call, message.header, *message.arrays)
                stopped = "stop" in message.header
            elif not stopped:
                _, arrays = super()._message(call)
                assert message.agrees(arrays), f"llama.cpp answers {call} otherwise than it was recorded"
            elif message.ends:  # how many products it computed before it heard of the stop is chance
                while "event" in super()._message(call)[0]:
                    pass

    def _forget(self) -> None:
        """Let go of what only a process that is not started yet would need."""
        asked = [said.message.files for said in self._said if isinstance(said.message, Question)]
        for files in (*asked, self._files):
            for file in (file for group in files for file in group):
                os.close(file.handle)
        self._said, self._files = [], ()

    def abandon(self) -> None:
        self._start()
        super().abandon()

    @property
    def pid(self) -> int:
        self._start()
        return super().pid

    def close(self) -> None:
        self._forget()
        super().close()


def _extended(digest: bytes, *parts: bytes) -> bytes:
    made = hashlib.blake2b(digest)
    for part in parts:
        made.update(len(part).to_bytes(8, "little") + part)
    return made.digest()


def _digest(file: OpenFile) -> bytes:
    """Of the content of a file, whose position stays."""
    digest, at = hashlib.blake2b(), 0
    while piece := os.pread(file.fileno(), 1 << 20, at):
        digest.update(piece)
        at += len(piece)
    return digest.digest()
