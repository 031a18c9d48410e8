"""Observation of the author's code in a kernel's process.

From Python 3.12, `sys.monitoring` reports each line and each way of a branch once, and then costs nothing. Before,
`sys.settrace` reports every line of a function until all of it has run; and every instruction while a branch is open
that lines cannot tell. A loop that runs often would be slow for ever. So each code object has an allowance of events
for every call of the kernel. What may run after it is used up is unknown, unless it is seen in another call.

Not observed are processes that the kernel starts, and, before Python 3.12, threads that `threading` did not start.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from .compiled_by_others import names_in
from .observation import PER_CALL, Observer, Watched

#: Most calls of functions that `sys.settrace` reports in a call of the kernel; a twentieth after ten times as many.
MOST_CALLED = 100_000

Trace = Callable[[FrameType, str, Any], Any]
_monitoring: Any = getattr(sys, "monitoring", None)  # from Python 3.12


class Monitoring(Observer):
    """By `sys.monitoring`, from Python 3.12."""

    def __init__(self, kernel: Path) -> None:
        super().__init__(kernel)
        self._tool = -1
        #: Since the last call: id of a code object and offset of a branch that is open → its events; and the code with
        #: branches that had too many.
        self._counts: dict[tuple[int, int], int] = {}
        self._spent: dict[int, CodeType] = {}

    def start(self) -> None:
        monitoring = _monitoring
        taken = [monitoring.get_tool(i) for i in (monitoring.DEBUGGER_ID, monitoring.COVERAGE_ID)]
        free = [i for i in (3, 4, monitoring.PROFILER_ID, monitoring.OPTIMIZER_ID) if monitoring.get_tool(i) is None]
        if any(taken) or sys.gettrace() is not None or not free:
            self._reason = f"another tool observes this process: {next(filter(None, taken), 'sys.settrace')}"
            return
        self._tool, events = free[0], monitoring.events
        monitoring.use_tool_id(self._tool, "gguf-verify")
        #: Before Python 3.14, one event for both ways, which goes on until both are known.
        self._each_way = hasattr(events, "BRANCH_LEFT")
        branches = [events.BRANCH_LEFT, events.BRANCH_RIGHT] if self._each_way else [events.BRANCH]
        self._local, self._off = events.LINE | sum(branches), monitoring.DISABLE
        monitoring.register_callback(self._tool, events.PY_START, self._start)
        monitoring.register_callback(self._tool, events.LINE, self._line)
        for event in branches:
            monitoring.register_callback(self._tool, event, self._branch)
        monitoring.set_events(self._tool, events.PY_START)

    def stop(self) -> None:
        if self._tool >= 0:
            _monitoring.set_events(self._tool, 0)
            for code in self.codes:
                self._set(code, 0)
            _monitoring.free_tool_id(self._tool)
            self._tool = -1

    def new_call(self) -> None:
        for code in self._spent.values():
            self._set(code, 0)  # else the branches that were switched off would stay so
            self._set(code, self._local)
        self._counts, self._spent = {}, {}

    def _set(self, code: CodeType, events: int) -> None:
        _monitoring.set_local_events(self._tool, code, events)

    def _start(self, code: CodeType, offset: int) -> object:
        found = self.watched(code)
        if found is not None:
            found.ran = True
            self._set(code, self._local)
        return self._off

    def _line(self, code: CodeType, line: int) -> object:
        found = self._by_id.get(id(code))
        if found is not None and line in found.open_lines:
            found.see_line(line)
        return self._off

    def _branch(self, code: CodeType, offset: int, destination: int) -> object:
        found = self._by_id.get(id(code))
        jump = None if found is None else found.map.jumps.get(offset)
        if found is None or jump is None:
            return self._off
        if (way := jump.way_to(destination)) is not None and way in found.open_ways:
            found.see_way(way)
        still = found.open_ways.intersection((jump.way, jump.other))
        if self._each_way or not still:
            return self._off
        key = id(code), offset
        self._counts[key] = self._counts.get(key, 0) + 1
        if self._counts[key] < PER_CALL:
            return None
        found.note_unknown(set(), still)
        self._spent[id(code)] = code
        return self._off


class Tracing(Observer):
    """By `sys.settrace`, before Python 3.12."""

    def __init__(self, kernel: Path) -> None:
        super().__init__(kernel)
        self._trace: Trace = self._call  # one object, to be compared with
        #: What this thread's trace function should be; and whether another thread has none any more.
        self._set: Trace | None = None
        self._thread_lost = False
        #: Calls of functions, of anyone, that may still be seen in this call of the kernel; and all of them so far.
        self._left, self._used = sys.maxsize, 0  # importing PyTorch takes millions

    def start(self) -> None:
        if sys.gettrace() is not None:
            self._reason = "another tool observes this process: sys.settrace"
            return
        threading.settrace(self._trace)
        self._turn(self._trace)

    def stop(self) -> None:
        if sys.gettrace() is self._trace:
            self._turn(None)
        if threading.gettrace() is self._trace:
            threading.settrace(None)

    def _turn(self, trace: Trace | None) -> None:
        self._set = trace
        sys.settrace(trace)

    def new_call(self) -> None:
        super().new_call()
        self.check()
        trace = self._trace
        if self._reason is not None or threading.gettrace() is not self._trace:
            return
        self._used += max(0, self._allowed - self._left)
        self._left = self._allowed
        closed = bool(self._all) and all(each.closed for each in self._all.values())
        if closed == (self._set is not None):
            self._turn(None if closed else trace)

    @property
    def _allowed(self) -> int:
        return MOST_CALLED if self._used < 10 * MOST_CALLED else MOST_CALLED // 20

    def check(self) -> None:
        if self._reason is None and sys.gettrace() is not self._set:
            self._reason = "the kernel has set a trace function of its own"
        if self._thread_lost or self._reason is not None:
            for each in self._all.values():
                each.cut(None)

    def _call(self, frame: FrameType, event: str, arg: Any) -> Trace | None:
        self._left -= 1
        if self._left < 0:
            self._pause(frame)
            return None
        code = frame.f_code
        if not self._own.get(code.co_filename, True):  # known to be another's: the most frequent case
            return None
        found = self.watched(code)
        if found is None:
            return None
        found.ran = True
        if found.closed:
            return None
        if found.left <= 0:
            found.cut(None)
            return None
        if found.needs_opcodes:
            if found.opcodes_left > 0:
                frame.f_trace_opcodes = True
            else:
                found.cut_opcodes(None)
        return _of_frame(found)

    def _pause(self, frame: FrameType | None) -> None:
        """Stop for the rest of this call of the kernel, and note what may run in it."""
        if threading.current_thread() is threading.main_thread():
            self._turn(None)
        else:
            self._thread_lost = True
            sys.settrace(None)
        stack: list[tuple[Watched, int]] = []
        while frame is not None:
            found = self._by_id.get(id(frame.f_code))
            if found is not None:
                stack.append((found, frame.f_lasti))
            frame = frame.f_back
        called = {name for found, _ in stack for name in names_in(found.code)}
        for found, at in stack:
            found.cut(None if found.code.co_name in called else max(0, at))
        running = {id(found) for found, _ in stack}
        for each in self._all.values():
            if id(each) not in running:
                each.cut(None)


def _of_frame(watched: Watched) -> Trace:
    """Return the trace function of one frame."""
    open_lines, open_ways = watched.open_lines, watched.open_ways
    edges, arcs, jumps = watched.map.edges, watched.map.arcs, watched.map.jumps
    last_line, last = 0, -1

    def trace(frame: FrameType, event: str, arg: Any) -> Trace | None:
        nonlocal last_line, last
        at = frame.f_lasti
        if event == "opcode":
            if last in jumps:
                if (way := edges.get((last, at), (-1, -1))) in open_ways:
                    watched.see_way(way)
                if not watched.needs_opcodes:
                    frame.f_trace_opcodes = False
            last = at
            watched.opcodes_left -= 1
            if watched.opcodes_left <= 0 and frame.f_trace_opcodes:
                watched.cut_opcodes(at)
                frame.f_trace_opcodes = False
        elif event == "line":
            line = frame.f_lineno
            if line in open_lines:
                watched.see_line(line)
            for way in arcs.get((last_line, at), ()):
                if way in open_ways:
                    watched.see_way(way)
            last_line = line
            watched.left -= 1
            if not open_lines and not open_ways:
                frame.f_trace = None
                return None  # what is returned becomes `f_trace`
            if watched.left <= 0:
                watched.cut(at)
                frame.f_trace_opcodes = frame.f_trace_lines = False
        elif event == "return" and frame.f_lineno in open_lines:  # of a frame that was not followed to its end
            watched.see_line(frame.f_lineno)
        return trace

    return trace


def observe(kernel: Path) -> Observer:
    """Begin to observe the code of a kernel's file, which is not imported yet, and of what it imports."""
    observer: Observer = Monitoring(kernel) if _monitoring is not None else Tracing(kernel)
    os.register_at_fork(before=observer.forks, after_in_child=lambda: observer.log(None))
    observer.start()
    return observer
