"""Lines and branches of a Python code object, derived from its bytecode.

A branch is a decision of the author: a test of `if`, `while`, `and`, `or`, a conditional expression, a comprehension, a
pattern or an `except`, or a loop's end. Each has two ways out: first the one of a true value (of `not x`, the value of
x) or into a loop, then the other. A way that ends the program is not listed: that of a failed `assert`, and that of an
exception which no `except` handles. Jumps that only the compiler knows are skipped: those of `with`, of `await` and of
re-raised exceptions.

The compiler copies code, such as the test of `while` and the body of `finally`. Copies have the same position in the
source, and are one branch.
"""

from __future__ import annotations

import ast
import dis
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import CodeType
from typing import Any

#: A branch's index in `CodeMap.branches`, and the way's in the branch.
Way = tuple[int, int]
Position = tuple[int | None, ...]

_NEVER_FALLS = {
    "RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE", "INTERPRETER_EXIT", "JUMP_FORWARD", "JUMP_BACKWARD",
    "JUMP_BACKWARD_NO_INTERRUPT",
}  # fmt: skip
_COMPARES = {"COMPARE_OP", "IS_OP", "CONTAINS_OP"}
#: Instructions between a value and the jump that tests it.
_BETWEEN = {"TO_BOOL", "COPY"}
#: Those of `async with`, between its exit and the test of the result.
_AWAITING = {
    "GET_AWAITABLE", "LOAD_CONST", "SEND", "YIELD_VALUE", "RESUME", "JUMP_BACKWARD_NO_INTERRUPT", "CLEANUP_THROW",
    "END_SEND",
}  # fmt: skip
_OF_COMPILER = {"WITH_EXCEPT_START", "PREP_RERAISE_STAR", "CALL_INTRINSIC_2"}
_JUMPS = set(dis.hasjrel) | set(dis.hasjabs)


@dataclass(frozen=True)
class Skipped:
    """Lines of a file that are not of the kernel: bodies of `if TYPE_CHECKING` and of `if __name__ == "__main__"`.

    Args:
        lines: of these bodies, and of the messages of `assert`.
        tests: lines of the conditions of these `if`.
    """

    lines: frozenset[int] = frozenset()
    tests: frozenset[int] = frozenset()


def skipped_in(source: bytes) -> Skipped:
    """Return the lines of a source to skip; none if it cannot be parsed."""
    lines, tests = set[int](), set[int]()
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return Skipped()
    for node in nodes:
        if isinstance(node, ast.If) and ast.unparse(node.test) in _NOT_RUN:
            tests |= _span(node.test, node.test)
            lines |= _span(node.body[0], node.body[-1])
        elif isinstance(node, ast.Assert) and node.msg is not None:
            lines |= _span(node.msg, node.msg) - _span(node.test, node.test)
    return Skipped(frozenset(lines), frozenset(tests))


_NOT_RUN = {"TYPE_CHECKING", "typing.TYPE_CHECKING", "__name__ == '__main__'", "'__main__' == __name__"}


def _span(first: ast.stmt | ast.expr, last: ast.stmt | ast.expr) -> set[int]:
    return set(range(first.lineno, (last.end_lineno or last.lineno) + 1))


@dataclass(frozen=True)
class Branch:
    """A branch: its line, and the number of its listed ways."""

    line: int
    ways: int


@dataclass(frozen=True)
class Jump:
    """An instruction that decides a branch.

    Args:
        target, falls: the offsets that it leads to.
        way, other: the way that each of them is; None if that is not listed.
        loop: whether it is the head of a `for` loop.
    """

    target: int
    falls: int
    way: Way | None
    other: Way | None
    loop: bool

    def way_to(self, offset: int) -> Way | None:
        """Return the way that leads to an offset. The end of a loop may skip instructions behind its target."""
        jumped = offset >= self.target if self.loop else offset == self.target
        return self.way if jumped else self.other


@dataclass(frozen=True)
class _Instruction:
    """An instruction at the offset of its first prefix, with the offset of its own."""

    offset: int
    own: int
    op: str
    line: int | None
    position: Position
    target: int | None
    argument: object


def _instructions(code: CodeType) -> list[_Instruction]:
    found, first = [], None
    for each in dis.get_instructions(code):
        first = each.offset if first is None else first
        if each.opname == "EXTENDED_ARG":
            continue
        where = each.positions
        position = (None,) * 4 if where is None else tuple(where)
        target = each.argval if each.opcode in _JUMPS else None
        found.append(_Instruction(first, each.offset, each.opname, position[0], position, target, each.argval))
        first = None
    return found


def _truth(op: str, tested: str) -> bool | None:
    """Return the value of the test with which an instruction jumps; None if it tests nothing."""
    if op == "FOR_ITER":
        return False
    if op.endswith(("_IF_NONE", "_IF_NOT_NONE")):
        # A pattern or an `except*` that does not match gives None.
        return op.endswith("_IF_NONE") != (tested.startswith("MATCH_") or tested == "CHECK_EG_MATCH")
    if "_IF_TRUE" in op:
        return True
    return False if "_IF_FALSE" in op else None


@dataclass(frozen=True)
class _Decision:
    """A jump of the author before the copies are merged."""

    at: _Instruction
    falls: _Instruction
    line: int
    position: tuple[object, ...]
    truth: bool
    unlisted: bool | None


def _decisions(instructions: Sequence[_Instruction]) -> Iterator[_Decision]:
    by_offset = {each.offset: each for each in instructions}
    chained: dict[Position, int] = {}  # position of a chain of comparisons → those before this one
    for i, at in enumerate(instructions[:-1]):
        target, falls = by_offset.get(at.target or -1), instructions[i + 1]
        nearest = max(0, i - 24)
        before = [j for j in range(nearest, i) if instructions[j].op not in _BETWEEN]
        j = before[-1] if before else i
        tested = instructions[j]
        if tested.op in _AWAITING:
            of_await = next((instructions[j] for j in reversed(before) if instructions[j].op not in _AWAITING), at)
            tested = of_await if of_await.op == "WITH_EXCEPT_START" else tested
        truth = _truth(at.op, tested.op)
        if truth is None or target is None or target is falls or tested.op in _OF_COMPILER:
            continue
        if at.op == "FOR_ITER":
            tested = falls  # its own position is the loop's, or that of all loops of a comprehension
        line = at.line if at.op == "FOR_ITER" else tested.line
        if line is None or at.line is None:
            continue
        link = 0
        if tested.op in _COMPARES:
            inner = [each.op for each in instructions[max(0, j - 2) : j]] == ["SWAP", "COPY"]
            link = chained.get(tested.position, 0)
            chained[tested.position] = link + 1 if inner else 0
        position = (at.op == "FOR_ITER", *tested.position, link) if tested.position[2] is not None else (at.offset,)
        yield _Decision(at, falls, line, position, truth, _unlisted(tested, truth, target, falls))


def _unlisted(tested: _Instruction, truth: bool, target: _Instruction, falls: _Instruction) -> bool | None:
    """Return the value of the test whose way is not listed."""
    for leads, value in ((target, truth), (falls, not truth)):
        fails = leads.op == "LOAD_ASSERTION_ERROR" or leads.argument is AssertionError
        if fails or (tested.op == "CHECK_EXC_MATCH" and leads.op == "RERAISE" and not value):
            return value
    return False if tested.op == "CHECK_EG_MATCH" else None


class CodeMap:
    """The lines and branches of one code object, without those of code inside it.

    Args:
        code: the code.
        skipped: lines of its file to skip.

    Attributes:
        lines: with code of the author.
        branches: in order of code offset.
        jumps: offset of an instruction → the branch that it decides.
    """

    def __init__(self, code: CodeType, skipped: Skipped) -> None:
        self._code = code
        self._instructions = _instructions(code)
        self.lines = frozenset(self._lines()) - skipped.lines
        found: dict[tuple[object, ...], list[_Decision]] = {}
        for each in _decisions(self._instructions):
            if each.line not in skipped.lines | skipped.tests:
                found.setdefault(each.position, []).append(each)
        branches, jumps = [], dict[int, Jump]()
        for index, copies in enumerate(found.values()):
            unlisted = {each.unlisted for each in copies} - {None}
            ways = {value: (index, n) for n, value in enumerate(v for v in (True, False) if v not in unlisted)}
            branches.append(Branch(copies[0].line, len(ways)))
            for each in copies:
                at, target = each.at, each.at.target
                assert target is not None
                jump = Jump(
                    target, each.falls.offset, ways.get(each.truth), ways.get(not each.truth), at.op == "FOR_ITER"
                )
                jumps |= {at.offset: jump, at.own: jump}
        self.branches: tuple[Branch, ...] = tuple(branches)
        self.jumps: Mapping[int, Jump] = jumps

    def _lines(self) -> Iterator[int]:
        """The lines of its instructions, without those that begin a function and that store a docstring."""
        begins = next((i for i, each in enumerate(self._instructions) if each.op == "RESUME"), -1)
        body = self._instructions[begins + 1 :]
        for each, following in zip(body, [*body[1:], None], strict=True):
            doc = "STORE_NAME" in (each.op, following and following.op) and "__doc__" in (
                each.argument,
                following and following.argument,
            )
            if each.line and not doc:
                yield each.line

    @cached_property
    def edges(self) -> Mapping[tuple[int, int], Way]:
        """Two offsets that are executed one after the other → the way that was taken."""
        found = {}
        for offset, jump in self.jumps.items():
            for to, way in ((jump.target, jump.way), (jump.falls, jump.other)):
                if way is not None:
                    found[offset, to] = way
        return found

    @cached_property
    def arcs(self) -> Mapping[tuple[int, int], Sequence[Way]]:
        """A line, and the offset at which the next line begins → the ways that were taken: no other path leads there.

        A line is entered wherever another line, a jump back or an exception leads to it.
        """
        lines = {each.offset: each.line for each in self._instructions}
        handlers = {each.target for each in self._handlers}
        entries: dict[int, set[int]] = {}
        for at, after in self._after.items():
            for to in after:
                line = lines.get(to)
                if line is not None and (to <= at or lines[at] != line or at in handlers):
                    entries.setdefault(line, set()).add(to)
        edges: dict[Way, set[tuple[int, int]]] = {}
        for edge, way in self.edges.items():
            edges.setdefault(way, set()).add(edge)
        found: dict[tuple[int, int], list[Way]] = {}
        for way, without in edges.items():
            # a jump with a prefix has edges from both, of which `lines` has the prefix
            for line in {line for at, _ in without if (line := lines.get(at)) is not None}:
                begins = entries.get(line, set()) | {self._instructions[0].offset} | handlers
                for to in self._exits(begins, line, lines) - self._exits(begins, line, lines, without):
                    found.setdefault((line, to), []).append(way)
        return found

    def _exits(
        self,
        begins: set[int],
        line: int,
        lines: Mapping[int, int | None],
        without: Collection[tuple[int, int]] = (),
    ) -> set[int]:
        """Return the offsets at which other lines begin after a line that is entered at these, without some edges."""
        seen, waiting, exits = set[int](), [at for at in begins if lines.get(at) in (line, None)], set[int]()
        while waiting:
            at = waiting.pop()
            if at in seen:
                continue
            seen.add(at)
            for to in self._after.get(at, ()):
                if (at, to) not in without:
                    (waiting.append if lines.get(to) in (line, None) else exits.add)(to)
        return exits & self._begins

    @cached_property
    def _begins(self) -> set[int]:
        return {offset for offset, _ in dis.findlinestarts(self._code)}

    @cached_property
    def _handlers(self) -> Sequence[Any]:
        """Ranges of code, and the offset of the handler of their exceptions."""
        entries: Sequence[Any] = vars(dis.Bytecode(self._code))["exception_entries"]
        return entries

    @cached_property
    def _after(self) -> Mapping[int, list[int]]:
        """Offset → the offsets that may follow it, without exceptions."""
        found = {}
        for each, following in zip(self._instructions, [*self._instructions[1:], None], strict=True):
            falls = [] if following is None or each.op in _NEVER_FALLS else [following.offset]
            found[each.offset] = [*falls, *([] if each.target is None else [each.target])]
        return found

    def reachable(
        self, offset: int, way: Way | None = None, line: int | None = None
    ) -> tuple[frozenset[int], frozenset[Way]]:
        """Return the lines and ways that a frame at an offset may still execute.

        Args:
            way, line: not taken, and not executed.
        """
        closed = {edge for edge, other in self.edges.items() if other == way}
        avoided = {each.offset for each in self._instructions if line is not None and each.line == line}
        # a frame that calls may be at a cache behind its instruction
        seen, waiting = set[int](), [max(each.offset for each in self._instructions if each.offset <= offset)]
        while waiting:
            at = waiting.pop()
            if at not in seen and at not in avoided and at in self._after:
                seen.add(at)
                waiting += [to for to in self._after[at] if (at, to) not in closed]
                waiting += [each.target for each in self._handlers if each.start <= at < each.end]
        lines = {each.line for each in self._instructions if each.offset in seen and each.line}
        ways = {way for (at, _), way in self.edges.items() if at in seen}
        return frozenset(lines), frozenset(ways)


def codes_in(code: CodeType) -> Iterator[CodeType]:
    """A code object and those inside it, in order. Code of annotations (Python 3.14) is skipped."""
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType) and each.co_name != "__annotate__":
            yield from codes_in(each)
