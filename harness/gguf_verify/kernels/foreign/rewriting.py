"""A kernel's Python source, rewritten so that its comparisons report their operands.

Each operand of a comparison is wrapped in a call that notes it and returns it: `M >= TILE` becomes
`r.right(7, r.left(7, M) …)`, in the same order of evaluation, and with the same short circuits. So the rewritten code
computes what the original does, only slower. Besides `<`, `==`, `in` and their like, these compare: a number that is
tested as true or false, `min` and `max`, functions of arrays such as `np.clip`, the keys of a dictionary that is looked
up, the constants of a `match`, and the end of a slice, with the length of the axis. Passes of loops are counted.

A function under a decorator of an installed package stays as it is: the package may compile it, as Numba and Triton
do. The numbers in it are listed in place of its comparisons.
"""

from __future__ import annotations

import ast
import itertools
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeGuard

#: The name of the `reporting.Reporter`, among the builtins.
REPORTER = "__gguf_verify_compares__"
#: Packages whose decorators call the function as it is.
_CALL = {"gguf_verify", "numpy", *sys.stdlib_module_names, *sys.builtin_module_names}
_DIGITS = re.compile("[0-9]{1,9}")
_LOOKUPS = ("get", "pop", "setdefault")
#: Functions of arrays, and their methods, that compare elements.
_ELEMENTWISE = {
    "minimum", "maximum", "fmin", "fmax", "clip", "clamp", "clamp_", "clamp_min", "clamp_max", "equal", "not_equal",
    "less", "less_equal", "greater", "greater_equal", "eq", "ne", "lt", "le", "gt", "ge", "isclose",
}  # fmt: skip

#: Python's operators, by the one of these that they or their opposites are.
_OPERATORS: dict[tuple[type[ast.cmpop], ...], str] = {
    (ast.Eq, ast.NotEq, ast.In, ast.NotIn): "==", (ast.Lt, ast.GtE): "<", (ast.LtE, ast.Gt): "<=",
}  # fmt: skip

#: The kinds of a comparison's right operand: another number or tuple; a container; a key; the end of a slice along an
#: axis, from `AXIS` on.
EQUAL, MEMBER, KEY, AXIS = 0, 1, 2, 10


@dataclass(frozen=True)
class Number:
    """A number in code that is not rewritten, or that no comparison has.

    Args:
        value, period: of a condition `… % period == value`; `period` is 0 without a remainder.
        compared: whether it is in a comparison.
    """

    line: int
    value: int
    period: int = 0
    compared: bool = False


@dataclass(frozen=True)
class Rewritten:
    """A rewritten source.

    Args:
        tree: to be compiled.
        lines: of its comparisons, by their numbers from `first` on.
        operators: number → "==", "<" or "<=": of `a operator b`, or of its opposite; only of comparisons whose outcome
            is a value. Of containers and keys it is "==", with each element.
        numbers: in code outside of them.
    """

    tree: ast.Module
    first: int
    lines: Sequence[int]
    operators: Mapping[int, str]
    numbers: Sequence[Number]


def rewritten(source: bytes, first: int, own: Callable[[str], bool]) -> Rewritten:
    """Rewrite a source. Raises SyntaxError, ValueError, RecursionError.

    Args:
        first: the number of its first comparison.
        own: whether a module is the author's.
    """
    tree = ast.parse(source)
    known = dict(_constants(tree))
    compiling = _compiling(tree, own)
    rewriter = _Rewriter(first, compiling, _given_to(tree, compiling))
    numbers = dict.fromkeys((*_compared_in(rewriter.skipped_in(tree), known), *_others(tree)))
    made = ast.fix_missing_locations(rewriter.visit(tree))
    return Rewritten(made, first, rewriter.lines, rewriter.operators, tuple(numbers))


def _compiling(tree: ast.Module, own: Callable[[str], bool]) -> set[str]:
    """Names of installed packages, and of what is imported from them."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {(alias.asname or alias.name).partition(".")[0]: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {alias.asname or alias.name: node.module for alias in node.names}
    tops = {name: module.partition(".")[0] for name, module in found.items()}
    return {name for name, top in tops.items() if top not in _CALL and not own(top)}


def _given_to(tree: ast.Module, compiling: set[str]) -> set[str]:
    """Names that are given to functions of these packages, such as `fast = numba.njit(slow)`."""
    return {
        given.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and _mentions(node.func, compiling)
        for given in node.args
        if isinstance(given, ast.Name)
    }


def _mentions(node: ast.AST, names: set[str]) -> bool:
    return any(isinstance(each, ast.Name) and each.id in names for each in ast.walk(node))


def _constants(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Names of a module that are assigned an integer, and it."""
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and (value := _integer(node.value, {})) is not None:
            for target in node.targets if isinstance(node, ast.Assign) else (node.target,):
                if isinstance(target, ast.Name):
                    yield target.id, value


def _integer(node: ast.AST | None, known: dict[str, int]) -> int | None:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    return known.get(node.id) if isinstance(node, ast.Name) else None


def _compared_in(nodes: Sequence[ast.AST], known: dict[str, int]) -> Iterator[Number]:
    """Numbers in the conditions of code, also as names of the module."""
    for node in (each for root in nodes for each in ast.walk(root)):
        sides = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
        pairs = [*itertools.pairwise(sides)]
        for side, other in (*pairs, *((b, a) for a, b in pairs)):
            period = _integer(other.right, known) if _is_remainder(other) else 0
            for part in ast.walk(side) if isinstance(side, ast.Tuple | ast.List | ast.Set) else (side,):
                value = _integer(part, known)
                if value is not None and period is not None:
                    yield Number(side.lineno, value, max(0, period), True)
        if _is_remainder(node) and (period := _integer(node.right, known)) is not None:
            yield Number(node.lineno, 0, max(0, period), True)
        if isinstance(node, ast.MatchValue) and (value := _integer(node.value, known)) is not None:
            yield Number(node.lineno, value, 0, True)


def _is_remainder(node: ast.AST) -> TypeGuard[ast.BinOp]:
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod)


def _others(tree: ast.Module) -> Iterator[Number]:
    """Integers outside of comparisons and remainders, also as strings."""
    inside = {
        id(each) for node in ast.walk(tree) if isinstance(node, ast.Compare | ast.pattern) or _is_remainder(node)
        for each in ast.walk(node)
    }  # fmt: skip
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and type(node.value) is int and id(node) not in inside:
            yield Number(node.lineno, node.value)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _DIGITS.fullmatch(node.value):
            yield Number(node.lineno, int(node.value), 0, True)  # `str(M) == "317"`


class _Rewriter(ast.NodeTransformer):
    """Wraps the operands of comparisons.

    Args:
        first: the number of the first.
        compiling: names of installed packages, and of what is imported from them.
        given: names of functions that are given to those.
    """

    def __init__(self, first: int, compiling: set[str], given: set[str]) -> None:
        self._first, self._compiling, self._given = first, compiling, given
        self.lines: list[int] = []
        self.operators: dict[int, str] = {}
        #: Comparisons that decide a branch.
        self._decide: set[int] = set()

    def _is_skipped(self, node: ast.AST) -> bool:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            return False
        return node.name in self._given or any(_mentions(each, self._compiling) for each in node.decorator_list)

    def skipped_in(self, tree: ast.AST) -> list[ast.AST]:
        """The functions and classes that stay as they are."""
        return [node for node in ast.walk(tree) if self._is_skipped(node)]

    def _number(self, node: ast.AST) -> int:
        self.lines.append(getattr(node, "lineno", 0))
        return self._first + len(self.lines) - 1

    def _call(self, method: str, *args: ast.expr | int) -> ast.Call:
        reporter = ast.Attribute(ast.Name(REPORTER, ast.Load()), method, ast.Load())
        return ast.Call(reporter, [ast.Constant(a) if isinstance(a, int) else a for a in args], [])

    # ---- what stays --------------------------------------------------------------------------------------------------

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
        if not self._is_skipped(node):
            node.body = [self.visit(each) for each in node.body]
            node.args.defaults = [self.visit(each) for each in node.args.defaults]
        return node

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self.visit_FunctionDef(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        if not self._is_skipped(node):
            node.body = [self.visit(each) for each in node.body]
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.value = None if node.value is None else self.visit(node.value)
        return node

    # ---- what compares -----------------------------------------------------------------------------------------------

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        numbers = [self._number(node) for _ in node.ops]
        operator = next((name for kinds, name in _OPERATORS.items() if isinstance(node.ops[-1], kinds)), None)
        if id(node) not in self._decide and operator is not None:  # those before the last one of a chain are branches
            self.operators[numbers[-1]] = operator
        node.left = self._call("left", numbers[0], node.left)
        for i, (op, right) in enumerate(zip(node.ops, node.comparators, strict=True)):
            kind = MEMBER if isinstance(op, ast.In | ast.NotIn) else EQUAL
            node.comparators[i] = self._call("right", numbers[i], kind, right, *numbers[i + 1 : i + 2])
        return node

    def _deciding(self, node: ast.expr | None) -> None:
        """Note that a condition, before it is visited, decides a branch."""
        match node:
            case ast.Compare():
                self._decide.add(id(node))
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                self._deciding(operand)
            case ast.BoolOp(values=values):
                for each in values:
                    self._deciding(each)

    def _tested(self, node: ast.expr) -> ast.expr:
        """A condition, after it was visited."""
        if isinstance(node, ast.Compare | ast.BoolOp | ast.Constant) or (
            isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
        ):
            return node
        return self._call("tested", self._number(node), node)

    def _visit_test(self, node: ast.If | ast.While | ast.IfExp | ast.Assert) -> ast.AST:
        self._deciding(node.test)
        self.generic_visit(node)
        node.test = self._tested(node.test)
        return node

    visit_If = visit_IfExp = visit_Assert = _visit_test

    def visit_comprehension(self, node: ast.comprehension) -> ast.AST:
        for each in node.ifs:
            self._deciding(each)
        self.generic_visit(node)
        node.ifs = [self._call("passed"), *(self._tested(each) for each in node.ifs)]
        return node

    def visit_For(self, node: ast.For | ast.AsyncFor) -> ast.AST:
        self.generic_visit(node)
        node.body.insert(0, ast.Expr(self._call("passed")))
        return node

    visit_AsyncFor = visit_For

    def visit_While(self, node: ast.While) -> ast.AST:
        self._visit_test(node)
        node.body.insert(0, ast.Expr(self._call("passed")))
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        for each in node.values[:-1]:
            self._deciding(each)
        self.generic_visit(node)
        node.values = [self._tested(each) for each in node.values]
        return node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.op, ast.Not):
            node.operand = self._tested(node.operand)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        args = node.args
        if isinstance(node.func, ast.Attribute) and node.func.attr in _ELEMENTWISE:
            made = self._call("elementwise", self._number(node), node.func)
            made.args += args
            made.keywords = node.keywords
            return made
        if any(isinstance(each, ast.Starred) for each in args):
            return node
        if isinstance(node.func, ast.Name) and node.func.id in ("min", "max") and len(args) > 1:
            numbers = [self._number(node) for _ in args[1:]]
            first = self._call("left", numbers[0], args[0])
            others = (
                self._call("right", number, EQUAL, each, *numbers[i + 1 : i + 2])
                for i, (number, each) in enumerate(zip(numbers, args[1:], strict=True))
            )
            node.args = [first, *others]
        elif isinstance(node.func, ast.Attribute) and node.func.attr in _LOOKUPS and args:
            number = self._number(node)
            self.operators[number] = "=="
            node.func = self._call("method", number, node.func)
            args[0] = self._call("right", number, KEY, args[0])
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        self.generic_visit(node)
        axes = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if not any(isinstance(axis, ast.Slice) for axis in axes):
            if isinstance(node.ctx, ast.Load) and not isinstance(node.slice, ast.Starred | ast.Constant):
                number = self._number(node)
                self.operators[number] = "=="
                node.value = self._call("left", number, node.value)
                node.slice = self._call("right", number, KEY, node.slice)
            return node
        if not any(isinstance(axis, ast.Slice) and axis.upper is not None for axis in axes):
            return node
        number = self._number(node)
        node.value = self._call("left", number, node.value)
        for i, axis in enumerate(axes):
            if isinstance(axis, ast.Constant | ast.Starred):  # of None and ..., later axes are others
                break
            if isinstance(axis, ast.Slice) and axis.upper is not None:
                axis.upper = self._call("right", number, AXIS + i, axis.upper)
        return node

    def visit_Match(self, node: ast.Match) -> ast.AST:
        alternatives = ast.Tuple([each for case in node.cases for each in _alternatives(case.pattern)], ast.Load())
        self.generic_visit(node)
        number = self._number(node)
        empty = ast.arguments([], [], None, [], [], None, [])
        node.subject = self._call("matched", number, node.subject, ast.Lambda(empty, alternatives))
        return node

    def visit_match_case(self, node: ast.match_case) -> ast.AST:
        self._deciding(node.guard)
        node.body = [self.visit(each) for each in node.body]  # a pattern may have no calls
        node.guard = None if node.guard is None else self._tested(self.visit(node.guard))
        return node


def _alternatives(pattern: ast.pattern) -> Iterator[ast.expr]:
    """Expressions of the constants that a pattern matches; `...` matches anything."""
    match pattern:
        case ast.MatchOr(patterns):
            for each in patterns:
                yield from _alternatives(each)
        case ast.MatchValue(value):
            yield value
        case ast.MatchAs(pattern=inner) if inner is not None:
            yield from _alternatives(inner)
        case ast.MatchSequence(patterns) if not any(isinstance(each, ast.MatchStar) for each in patterns):
            parts = [next(_alternatives(each), ast.Constant(...)) for each in patterns]
            yield ast.Tuple(parts, ast.Load())
