"""Reporting of a graph's nodes to the parent as they are computed: the common part of all taps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from multiprocessing.connection import Connection
from typing import Any, ClassVar

import numpy.typing as npt

from ...support import protocol
from ...support.lanes import Lane, Lanes
from .. import ggml
from .calls import CallFailed
from .nodes import operation


class Listener(ABC):
    """Called for each node of one evaluation.

    Args:
        lanes: for the arrays of nodes, and of answers.
        ahead: number of unanswered nodes while the graph continues.
    """

    #: Whether to announce each node before it is computed: the process may die of it.
    announces: ClassVar[bool] = False

    def __init__(self, link: Connection, lanes: Lanes | None, ahead: int) -> None:
        self._link = link
        self._out: Lane | None
        self._back: Lane | None
        self._out, self._back = lanes or (None, None)
        self._ahead, self._unanswered = ahead, 0
        #: The graph's uses of weights, for the evaluation's answer.
        self.seen: dict[str, dict[str, Any]] = {"lookup": {}, "unsupported": {}, "used": {}}
        self.failure: BaseException | None = None

    def __call__(self, t: Any, ask: bool) -> bool:
        """llama.cpp's callback: with `ask`, whether the node is wanted; without, whether the graph continues."""
        if self.failure is not None:
            return ask  # ask to be called again, to stop the graph then
        try:
            if ask:
                wanted = self._wanted(t)
                if wanted and self.announces:
                    protocol.send(self._link, {"event": "at", "node": _words(t)})
                return wanted
            while self._unanswered and self._link.poll():  # one of them may end the capture
                self._answer()
            self._told(t)
            return True
        except BaseException as error:  # must not unwind through C
            self.failure = error
            return False

    def begin(self) -> None:  # noqa: B027 - most need not know
        """Note that the next node is the first one of a graph."""

    @abstractmethod
    def _wanted(self, t: Any) -> bool:
        """Whether a node is to be reported."""

    @abstractmethod
    def _told(self, t: Any) -> None:
        """Report a computed node."""

    def _empty(self, nbytes: int) -> npt.NDArray[Any]:
        """Allocate memory for an array of the next message."""
        return ggml.empty(nbytes) if self._out is None else self._out.empty(nbytes)

    def _tell(self, header: dict[str, Any], *arrays: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
        """Report a node, and wait until at most `ahead` answers are missing; returns the arrays of the last one."""
        protocol.send(self._link, header, *arrays, lane=self._out)
        self._unanswered += 1
        given: list[npt.NDArray[Any]] = []
        while self._unanswered > self._ahead:
            given = self._answer()
        return given

    def _answer(self) -> list[npt.NDArray[Any]]:
        """Wait for the answer to the oldest unanswered node; returns its arrays. Raises CallFailed if no further answer
        will come."""
        answer, given = protocol.receive(self._link, lane=self._back)
        if answer.get("stop"):
            self._unanswered = 0
            raise CallFailed("stopped")
        self._unanswered -= 1
        if self._out is not None:
            self._out.taken()
        return given

    def settle(self) -> None:
        """Wait for the missing answers: none may be taken for the next call."""
        while self._unanswered:
            self._answer()


def _words(t: Any) -> str:
    return " ".join((*filter(None, operation(t)), t.contents.name.decode(errors="replace")))
