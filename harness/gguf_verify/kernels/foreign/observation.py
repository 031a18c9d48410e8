"""What of the author's code has run in a kernel's process: lines, and the ways that branches took.

The code of the author is the kernel's file and the modules in its folder or below, without installed packages.
"""

from __future__ import annotations

import json
import os
import struct
import sys
import sysconfig
import threading
from collections.abc import Set
from functools import cached_property
from pathlib import Path
from types import CodeType
from typing import Any

from ...support.paths import PACKAGE
from .bytecode import CodeMap, Skipped, Way, codes_in, skipped_in
from .compiled_by_others import names_in, replaced

#: Most events of one code object that are observed: while the kernel is imported, in a call, and in a call after the
#: number of those in all calls.
AT_IMPORT, PER_CALL, LATER, EARLY = 200_000, 20_000, 2_000, 500_000
_MOST_SOURCE = 1 << 22
_MOST_WORDS, _MOST_REASONS, _MOST_NAMES = 300, 50, 4
_OPTIMIZED = 1  # of functions: neither a module's code nor a class's
#: The bytes of a log that are written, and whether there was no room for more.
LOG_HEAD = struct.Struct("<QQ")
#: Entries of a log: `executed.executed_until_death`.
MET, LINE, WAY, CUT = range(4)


class Log:
    """What has run, in memory that outlives this process: entries are written as soon as something is seen first.

    Args:
        memory: of the verifier, of a fixed size.
    """

    def __init__(self, memory: memoryview) -> None:
        self._memory, self._end, self._lock = memory, LOG_HEAD.size, threading.RLock()
        LOG_HEAD.pack_into(memory, 0, self._end, 0)
        os.register_at_fork(after_in_child=self._renew)  # a thread that held the lock exists in the parent only

    def _renew(self) -> None:
        self._lock = threading.RLock()

    def add(self, *entry: Any) -> None:
        """Write an entry, a line of JSON. Any thread may do so."""
        text = json.dumps(entry).encode() + b"\n"
        with self._lock:
            end = self._end + len(text)
            if end <= len(self._memory):
                self._memory[self._end : end] = text
                self._end = end
            LOG_HEAD.pack_into(self._memory, 0, self._end, end > self._end)


class Watched:
    """A code object, and what of it has not been seen yet.

    Args:
        number: of the code object in the log.
    """

    def __init__(self, code: CodeType, skipped: Skipped, number: int) -> None:
        self.code, self.map, self._number = code, CodeMap(code, skipped), number
        self._log: Log | None = None
        self.inside = [id(each) for each in codes_in(code)]
        self.open_lines = set(self.map.lines)
        self.open_ways: set[Way] = {
            (i, way) for i, branch in enumerate(self.map.branches) for way in range(branch.ways)
        }
        #: What may have run unseen.
        self.unknown_lines, self.unknown_ways = set[int](), set[Way]()
        self.ran = self.rewritten = False
        #: Events that are left, of lines and of instructions.
        self.left = self.opcodes_left = self._allowed = AT_IMPORT
        self._used = 0

    def new_call(self) -> None:
        """Allow events of a further call."""
        self._used += 2 * self._allowed - self.left - self.opcodes_left
        self.left = self.opcodes_left = self._allowed = PER_CALL if self._used < EARLY else LATER

    @property
    def closed(self) -> bool:
        """Whether nothing new can be seen."""
        return not self.open_lines and not self.open_ways

    @property
    def needs_opcodes(self) -> bool:
        """Whether a branch is open that lines cannot tell."""
        return not self.open_ways <= self.told_by_lines

    @cached_property
    def told_by_lines(self) -> set[Way]:
        """The ways that lines tell."""
        return {way for ways in self.map.arcs.values() for way in ways}

    def log(self, log: Log | None) -> None:
        """Write everything that was seen, and will be, to a log; None: nothing any more."""
        self._log = log
        if log is not None:
            lines, branches = self.map.lines, self.map.branches
            log.add(MET, os.path.abspath(self.code.co_filename), sorted(lines), [[of.line, of.ways] for of in branches])
            for line in lines - self.open_lines:
                log.add(LINE, self._number, line)
            every = {(i, way) for i, branch in enumerate(branches) for way in range(branch.ways)}
            for way in every - self.open_ways:
                log.add(WAY, self._number, *way)
            if self.unknown_lines or self.unknown_ways:
                log.add(CUT, self._number)

    def see_line(self, line: int) -> None:
        """Note that a line ran that is open."""
        self.open_lines.discard(line)
        if self._log is not None:
            self._log.add(LINE, self._number, line)

    def see_way(self, way: Way) -> None:
        """Note that a way was taken that is open."""
        self.open_ways.discard(way)
        if self._log is not None:
            self._log.add(WAY, self._number, *way)

    def note_unknown(self, lines: Set[int], ways: Set[Way]) -> None:
        """Note what may run unseen, of the lines and ways that are open."""
        lines, ways = (lines & self.open_lines) - self.unknown_lines, (ways & self.open_ways) - self.unknown_ways
        if self._log is not None and (lines or ways) and not (self.unknown_lines or self.unknown_ways):
            self._log.add(CUT, self._number)
        self.unknown_lines |= lines
        self.unknown_ways |= ways

    def cut(self, at: int | None) -> None:
        """Note that a frame runs on unseen, from an offset; None: from the beginning."""
        self.note_unknown(*((self.open_lines, self.open_ways) if at is None else self.map.reachable(at)))

    def infer(self) -> None:
        """Note the unknown lines and ways without which no path leads to the lines that ran."""
        for line in self.open_lines & self.unknown_lines:
            if not self.map.lines - self.open_lines <= self.map.reachable(0, line=line)[0]:
                self.open_lines.discard(line)
        for way in self.open_ways & self.unknown_ways:
            if not self.map.lines - self.open_lines <= self.map.reachable(0, way)[0]:
                self.open_ways.discard(way)

    def cut_opcodes(self, at: int | None) -> None:
        """Note the same of a frame of which only the instructions are unseen."""
        ways = self.open_ways if at is None else self.map.reachable(at)[1]
        self.note_unknown(set(), ways - self.told_by_lines)


class Observer:
    """What of the author's code has run. The subclasses are for versions of Python.

    Args:
        kernel: its file.
    """

    def __init__(self, kernel: Path) -> None:
        self._kernel_file = os.path.abspath(kernel)
        folders = {os.path.dirname(self._kernel_file), os.path.dirname(os.path.realpath(kernel))}
        self._folders = tuple(folder.rstrip(os.sep) + os.sep for folder in folders)
        paths = sysconfig.get_paths()
        self._others = tuple(
            path.rstrip(os.sep) + os.sep
            for path in (str(PACKAGE), *(paths[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")))
        )
        #: Name of a file → whether it is the author's.
        self._own: dict[str, bool] = {}
        self._skipped: dict[str, Skipped] = {}
        #: Records by value; by id, which is faster; and the code objects with these ids, which may be equal.
        self._all: dict[CodeType, Watched] = {}
        self._by_id: dict[int, Watched | None] = {}
        self.codes: list[CodeType] = []
        #: Why nothing is known; None if it is.
        self._reason: str | None = None
        self._forked = False
        self._log: Log | None = None
        #: The kernel's function or object, once it is known.
        self.kernel: Any = None

    def start(self) -> None:
        """Begin."""
        raise NotImplementedError

    def stop(self) -> None:
        """End."""
        raise NotImplementedError

    def new_call(self) -> None:
        """Begin a call of the kernel."""
        for each in self._all.values():
            each.new_call()

    def check(self) -> None:
        """Note if the observation was ended by something else."""

    def forks(self) -> None:
        """Note that this process forks."""
        self._forked = True

    def log(self, memory: memoryview | None) -> None:
        """Write what has run, and will run, to memory that outlives this process; None: nothing any more."""
        self._log = None if memory is None or self._reason is not None else Log(memory)
        for each in self._all.values():
            each.log(self._log)

    def own(self, file: str) -> bool:
        """Return whether a file is the author's."""
        known = self._own.get(file)
        if known is None:
            path = os.path.abspath(file)
            inside = path.startswith(self._folders) and not path.startswith(self._others)
            installed = {"site-packages", "dist-packages"} & set(path.split(os.sep))
            is_file = not file.startswith("<") and os.path.isfile(path)
            known = self._own[file] = is_file and (path == self._kernel_file or (inside and not installed))
        return known

    def watched(self, code: CodeType) -> Watched | None:
        """Return the record of a code object that begins to run; None if it is not the author's."""
        if (key := id(code)) in self._by_id or not self.own(code.co_filename):
            return self._by_id.get(key)
        found = self._all.get(code) or self._met(code)
        self.codes.append(code)
        self._by_id[key] = found
        return found

    def _met(self, code: CodeType) -> Watched | None:
        """Return the record of a code object that is new, or that another one replaces."""
        if code.co_name != "<module>":
            for each in self._all.values():
                of = each.code
                if of.co_qualname == code.co_qualname and of.co_firstlineno == code.co_firstlineno:
                    if of.co_code == code.co_code and of.co_linetable == code.co_linetable:
                        return each  # with other flags or constants
                    each.rewritten = True  # as torch.compile does
                    each.note_unknown(each.open_lines, each.open_ways)
            return None
        file = code.co_filename
        if file not in self._skipped:
            self._skipped[file] = _skipped(file)
        for inside in codes_in(code):
            if inside not in self._all:
                self._all[inside] = Watched(inside, self._skipped[file], len(self._all))
                self._all[inside].log(self._log)
            self._by_id[id(inside)] = self._all[inside]
            self.codes.append(inside)
        return self._all[code]

    def executed(self) -> dict[str, Any]:
        """Return what has run.

        Returns: {"files": {path: {"lines": [[line, whether it ran], …], "branches": [[line, number of the branch in it,
        [whether it took each way, …]], …]}}, "unobserved": [words, …]}. A line ran if all code objects on it did, such
        as a lambda's. Without files, "unobserved" says why nothing is known.
        """
        self.check()
        if self._reason is not None:
            return {"files": {}, "unobserved": [self._reason]}
        for each in self._all.values():
            each.infer()
        reasons = self._replaced()
        words = [*self._named(reasons), *self._not_met()]
        if self._forked:
            words.append("processes that the kernel forks are not observed")
        files: dict[str, dict[str, Any]] = {}
        lines: dict[tuple[str, int], bool | None] = {}
        for each in self._all.values():
            if id(each.code) in reasons:
                continue
            file = os.path.abspath(each.code.co_filename)
            if not file.isprintable():
                words.append("a file with a name that cannot be printed")
                continue
            here = files.setdefault(file, {"lines": [], "branches": {}})
            for line in each.map.lines:
                ran = None if line in each.open_lines & each.unknown_lines else line not in each.open_lines
                before = lines.get((file, line), True)
                lines[file, line] = None if None in (ran, before) else ran and before
            for i, branch in enumerate(each.map.branches):
                on_line = here["branches"].setdefault(branch.line, [])
                ways = [(i, way) for way in range(branch.ways)]
                known = not any(way in each.open_ways & each.unknown_ways for way in ways)
                on_line.append([way not in each.open_ways for way in ways] if known else None)
        for (file, line), run in sorted(lines.items()):
            if run is not None:
                files[file]["lines"].append([line, run])
        for here in files.values():
            here["branches"] = [
                [line, number, ways]
                for line, all_of in sorted(here["branches"].items())
                for number, ways in enumerate(all_of)
                if ways is not None
            ]
        shortened = [word[:_MOST_WORDS] for word in dict.fromkeys(words) if word.isprintable()]
        return {"files": files, "unobserved": shortened[:_MOST_REASONS]}

    def _replaced(self) -> dict[int, str]:
        """Return id of a code object that cannot run here → why, in words."""
        functions = [each for each in self._all.values() if each.code.co_flags & _OPTIMIZED]
        never = {id(each.code): each for each in functions if not each.ran}
        why: dict[int, tuple[str, bool]] = {}
        if never:
            why = replaced([each.code for each in never.values()], self.kernel, self._of_author)
        why |= {id(each.code): ("compiled by another tool", True) for each in functions if each.rewritten}
        live = self._called([each for each in functions if each.ran and not each.rewritten], never)
        why = {root: reason for root, reason in why.items() if reason[1] or root not in live}
        for root, reason in list(why.items()):
            for each in self._called([self._watched_at(root)], never) - (set() if reason[1] else live):
                why.setdefault(each, reason)
        return {inner: reason for root, (reason, _) in why.items() for inner in self._watched_at(root).inside}

    def _watched_at(self, key: int) -> Watched:
        found = self._by_id[key]
        assert found is not None
        return found

    @staticmethod
    def _called(roots: list[Watched], among: dict[int, Watched]) -> set[int]:
        """Return which of these functions others refer to by name, directly or not."""
        found, waiting = set[int](), list(roots)
        while waiting:
            names = names_in(waiting.pop().code)
            new = [each for key, each in among.items() if each.code.co_name in names and key not in found]
            found |= {id(each.code) for each in new}
            waiting += new
        return found

    def _of_author(self, kind: type) -> bool:
        module = sys.modules.get(kind.__module__)
        return self.own(str(getattr(module, "__file__", None)))

    def _named(self, reasons: dict[int, str]) -> list[str]:
        """Return the reasons, each with its code; also of code of which something is unknown."""
        names: dict[str, dict[tuple[str, str], str]] = {}
        for each in self._all.values():
            cut = each.open_lines & each.unknown_lines or each.open_ways & each.unknown_ways
            reason = reasons.get(id(each.code))
            if reason is None and not cut:
                continue
            words = "runs too often to be observed throughout" if reason is None else f"not observed, {reason}"
            file, function = os.path.basename(each.code.co_filename), each.code.co_qualname.partition(".<locals>")[0]
            # the function itself comes before those inside it
            place = f"{file}:{each.code.co_firstlineno} {function}"
            names.setdefault(words, {}).setdefault((each.code.co_filename, function), place)
        return [f"{words}: {_listed(list(of.values()))}" for words, of in names.items()]

    def _not_met(self) -> list[str]:
        """Return the modules of the author that were imported unseen, or are compiled."""
        met = {each.code.co_filename for each in self._all.values()}
        files = {str(getattr(module, "__file__", None)) for module in list(sys.modules.values())}
        return [f"not observed: {os.path.basename(file)}" for file in sorted(files - met) if self.own(file)]


def _skipped(file: str) -> Skipped:
    try:
        source = Path(file).read_bytes()
    except OSError:
        return Skipped()
    return skipped_in(source) if len(source) <= _MOST_SOURCE else Skipped()


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more
