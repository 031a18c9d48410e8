"""The comparisons that rewritten code of a kernel in Python (`rewriting`) reports while it runs."""

from __future__ import annotations

import builtins
import contextlib
import importlib.machinery
import itertools
import json
import math
import os
import sys
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.abc import MetaPathFinder
from types import CodeType, ModuleType
from typing import Any

import numpy as np

from .rewriting import AXIS, EQUAL, KEY, MEMBER, REPORTER, Number, rewritten

#: Most comparisons of a call, operands of one of them, and elements of a container and of an array.
MOST, _MOST_TIMES, _MOST_ELEMENTS, _MOST_OF_ARRAY = 2000, 20_000, 256, 1 << 16
#: Most different operands of a comparison whose outcome is a value.
_MOST_DIFFERENT = 64
#: Most numbers of code that does not report.
_MOST_NUMBERS = 200
#: Keyword arguments of functions that compare arrays.
_LIMITS = ("min", "max", "a_min", "a_max", "other")
_CONTAINERS = (dict, tuple, list, set, frozenset, range)


class Reporter:
    """The operands of comparisons since the last answer.

    Its methods with an argument `value` are called by rewritten code, and return it.

    Args:
        own: whether a file is the author's.
    """

    def __init__(self, own: Callable[[str], bool] = lambda _: False) -> None:
        self._own = own
        #: File and line of each comparison, by number.
        self._places: list[tuple[str, int]] = []
        self._numbers: dict[tuple[str, Number], None] = {}
        self._left: dict[int, Any] = {}
        #: Comparison, and which of its alternatives → smallest and largest left and right operand and difference; and
        #: the outcomes and how often it was made, both of arrays only.
        self._made: dict[tuple[int, int], list[float]] = {}
        self._of_arrays: dict[tuple[int, int], list[int]] = {}
        #: Number → the operator of a comparison whose outcome is a value; and, beside which of its alternatives, its
        #: outcomes and digests of its operands.
        self._operators: dict[int, str] = {}
        self._values: dict[tuple[int, int], tuple[list[int], set[int]]] = {}
        self._times: dict[int, int] = {}
        self._passes = 0

    def code_of(self, source: bytes, file: str) -> CodeType:
        """Compile a source so that it reports; as it is if it cannot be rewritten. Raises SyntaxError, ValueError."""
        try:
            made = rewritten(source, len(self._places), self._is_own)
            code: CodeType = compile(made.tree, file, "exec", dont_inherit=True)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return compile(source, file, "exec", dont_inherit=True)
        self._places += [(file, line) for line in made.lines]
        self._operators |= made.operators
        self._numbers |= dict.fromkeys((file, number) for number in made.numbers if abs(number.value) < 1 << 31)
        return code

    def _is_own(self, module: str) -> bool:
        spec = importlib.machinery.PathFinder.find_spec(module)
        return spec is not None and (spec.origin is None or self._own(spec.origin))

    def passed(self) -> bool:
        """Count a pass of a loop."""
        self._passes += 1
        return True

    def left(self, number: int, value: Any) -> Any:
        """Note a left operand, or what is subscripted."""
        self._left[number] = value if isinstance(value, str) else _plain(value)
        return value

    def right(self, number: int, kind: int, value: Any, following: int = -1) -> Any:
        """Note a right operand; it is the left one of the comparison `following`."""
        left, plain = self._left.get(number), value if isinstance(value, str) else _plain(value)
        if following >= 0:
            self._left[following] = plain
        if left is not None and plain is not None and self._may_note(number):
            with contextlib.suppress(Exception):  # of the author's objects: the comparison itself raises them
                self._note_right(number, kind, left, plain)
        return value

    def _note_value(self, number: int, left: Any, right: Any, which: int = 0) -> None:
        """Note the outcome of a comparison that is a value, of two numbers or two strings."""
        kinds = {type(left), type(right)}
        fits = kinds == {str} or kinds <= {int, float}
        if number in self._operators and fits and len(self._values) < MOST:
            outcome = 1 if left < right else 2 if left == right else 4
            self._note_outcome((number, which), outcome, (left, right))

    def _note_outcome(self, key: tuple[int, int], outcomes: int, operands: object) -> None:
        """Note outcomes of a comparison that is a value, and its operands, each once."""
        noted, different = self._values.setdefault(key, ([0], set()))
        noted[0] |= outcomes
        if len(different) < _MOST_DIFFERENT:
            different.add(zlib.crc32(repr(operands).encode()))

    def _note_right(self, number: int, kind: int, left: Any, plain: Any) -> None:
        if kind == EQUAL:
            self._note_value(number, left, plain)
        if kind == MEMBER and isinstance(plain, _CONTAINERS):
            self._note_any(number, left, plain)
        elif kind == KEY and isinstance(left, dict):
            self._note_any(number, plain, left)
        elif kind >= AXIS and isinstance(left, _Array) and kind - AXIS < len(left.lengths):
            if type(plain) is int and plain > 0:
                self._note(number, left.lengths[kind - AXIS], plain, kind)
        elif kind == EQUAL and (isinstance(left, _Array) or isinstance(plain, _Array)):
            self._note_arrays(number, left, plain, 0)
        elif kind == EQUAL:
            self._note(number, left, plain, 0)

    def tested(self, number: int, value: Any) -> Any:
        """Note a number that is tested as true or false."""
        plain = _plain(value)
        if type(plain) in (int, float) and self._may_note(number):
            self._note(number, plain, 0, 0)
        return value

    def method(self, number: int, value: Any) -> Any:
        """Note the dictionary whose method looks up a key."""
        self._left[number] = _plain(getattr(value, "__self__", None))
        return value

    def matched(self, number: int, value: Any, alternatives: Callable[[], tuple[Any, ...]]) -> Any:
        """Note the subject of a `match` statement and the constants of its patterns."""
        if self._may_note(number):
            with contextlib.suppress(Exception):  # of the author's attributes: the statement itself raises them
                self._note_any(number, _plain(value), alternatives())
        return value

    def elementwise(self, number: int, function: Callable[..., Any], /, *args: Any, **named: Any) -> Any:
        """Call a function that compares arrays, or a method of one, and note its operands."""
        limits = (named.get(name) for name in _LIMITS)
        given = (_plain(each) for each in (getattr(function, "__self__", None), *args, *limits))
        operands = [each for each in given if type(each) in (int, float, _Array)]
        if any(isinstance(each, _Array) for each in operands) and self._may_note(number):
            for which, operand in enumerate(operands[1:]):
                with contextlib.suppress(Exception):  # of arrays that do not fit: the function itself raises it
                    self._note_arrays(number, operands[0], operand, which)
        return function(*args, **named)

    def _may_note(self, number: int) -> bool:
        times = self._times[number] = self._times.get(number, 0) + 1
        return times <= _MOST_TIMES

    def _note_any(self, number: int, value: Any, elements: Iterable[Any]) -> None:
        if isinstance(elements, range):
            elements = (elements.start, elements.stop)
        for element in itertools.islice(elements, _MOST_ELEMENTS):
            plain = element if isinstance(element, str) else _plain(element)
            if plain is not None:
                which = zlib.crc32(repr(plain).encode())
                self._note_value(number, value, plain, which)
                self._note(number, value, plain, which)

    def _note(self, number: int, a: Any, b: Any, which: int) -> None:
        """Note two numbers; of two tuples, each pair after equal ones."""
        if isinstance(a, tuple | list) and isinstance(b, tuple | list):
            for i, (one, other) in enumerate(zip(a, b, strict=False) if len(a) == len(b) else ()):
                if other is ...:
                    continue
                one, other = _plain(one), _plain(other)
                self._note(number, one, other, zlib.crc32(f"{which} {i}".encode()))
                if type(one) is not type(other) or one != other:
                    return
            return
        if type(a) not in (int, float) or type(b) not in (int, float):
            return
        try:
            ends = [float(a), float(b), float(a - b)]
        except OverflowError:
            return
        self._widen((number, which), [(end, end) for end in ends])

    def _note_arrays(self, number: int, a: Any, b: Any, which: int) -> None:
        """Note the elements of two arrays, or of an array and a number."""
        a, b = (_elements(each) for each in (a, b))
        if a is None or b is None:
            return
        a, b = (np.asarray(each.flat[:_MOST_OF_ARRAY], np.float64) for each in np.broadcast_arrays(a, b))
        with np.errstate(all="ignore"):
            apart = a - b
        finite = np.isfinite(apart)
        if not finite.any():
            return
        ends = [(float(each[finite].min()), float(each[finite].max())) for each in (a, b, apart)]
        self._widen((number, which), ends)
        noted = self._of_arrays.setdefault((number, which), [0, 0])
        noted[0] |= sum(1 << i for i, sign in enumerate((-1, 0, 1)) if (np.sign(apart[finite]) == sign).any())
        noted[1] += int(finite.sum())
        if number in self._operators:
            self._note_outcome((number, which), noted[0], ends)

    def _widen(self, key: tuple[int, int], ends: Sequence[tuple[float, float]]) -> None:
        if not all(math.isfinite(end) for pair in ends for end in pair):
            return
        before = self._made.get(key)
        if before is not None:
            for i, (low, high) in enumerate(ends):
                before[2 * i], before[2 * i + 1] = min(before[2 * i], low), max(before[2 * i + 1], high)
        elif len(self._made) < MOST:
            self._made[key] = [end for pair in ends for end in pair]

    def said(self) -> bytes:
        """Return what `compared.of_python` reads, as JSON, and forget it."""
        made, self._made, self._left = self._made, {}, {}
        of_arrays, self._of_arrays, self._times = self._of_arrays, {}, {}
        passes, self._passes = self._passes, 0
        values, self._values = self._values, {}
        files = {file: i for i, file in enumerate(dict.fromkeys(file for file, _ in (*self._places, *self._numbers)))}
        records = []
        for (number, which), ends in made.items():
            file, line = self._places[number]
            noted = of_arrays.get((number, which), [0, 1])
            records.append([files[file], line, number << 32 | which, *ends, *noted])
        # those of conditions first
        numbers = sorted(self._numbers, key=lambda of: not of[1].compared)[:_MOST_NUMBERS]
        listed = [[files[file], of.line, of.value, of.period] for file, of in numbers]
        outcomes = []
        for (number, which), ((seen,), different) in values.items():
            (file, line), digest = self._places[number], zlib.crc32(repr(sorted(different)).encode())
            outcomes.append([files[file], line, number << 32 | which, self._operators[number], seen, digest])
        said = {
            "files": list(files), "comparisons": records, "passes": passes, "numbers": listed, "outcomes": outcomes
        }  # fmt: skip
        return json.dumps(said).encode()


class _Array:
    """An array of a library, and the lengths of its axes."""

    def __init__(self, lengths: Sequence[int], array: Any) -> None:
        self.lengths, self.array = lengths, array


def _elements(operand: Any) -> Any:
    """Return the numbers of an array, or a number, for NumPy; None for anything else."""
    made = np.asarray(operand.array if isinstance(operand, _Array) else operand)
    return made if made.dtype.kind in "iuf" and made.size else None


def _plain(value: Any) -> Any:
    """Return a number as Python's, a container as it is, an array; None for anything else."""
    kind = type(value)
    if kind in (int, float) or isinstance(value, _CONTAINERS):
        return value
    if isinstance(value, np.integer | np.floating):
        return value.item()
    if isinstance(value, Mapping):
        with contextlib.suppress(Exception):
            return dict(itertools.islice(value.items(), _MOST_ELEMENTS))
        return None
    if isinstance(value, int) and kind is not bool:  # of an enumeration
        return int(value)
    lengths = getattr(value, "shape", None) if kind.__module__ in ("numpy", "torch", "cupy") else None
    return _Array(tuple(map(int, lengths)), value) if isinstance(lengths, tuple) else None


class _Loader(importlib.machinery.SourceFileLoader):
    """Loads a module of the author, rewritten."""

    def __init__(self, name: str, path: str, reporter: Reporter) -> None:
        super().__init__(name, path)
        self._reporter = reporter

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return self._reporter.code_of(self.get_data(path), path)


class _Finder(MetaPathFinder):
    """Finds the modules of the author."""

    def __init__(self, own: Callable[[str], bool], reporter: Reporter) -> None:
        self._own, self._reporter = own, reporter

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or not isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            return None
        file = os.path.abspath(spec.loader.path)
        if not self._own(file):
            return None
        spec.loader = _Loader(fullname, file, self._reporter)
        return spec


def report(own: Callable[[str], bool]) -> Reporter:
    """Have the files of the author report their comparisons. They are not imported yet.

    Args:
        own: whether a file is the author's.
    """
    reporter = Reporter(own)
    setattr(builtins, REPORTER, reporter)
    sys.meta_path.insert(0, _Finder(own, reporter))
    return reporter
