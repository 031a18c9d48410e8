"""Integer expressions in declarations: sizes, grids, arguments and conditions of a call, as functions of its shape.

An expression consists of integers, names, `+ - * / // %` (both divisions round down), comparisons, `and`, `or`, `not`,
`A if CONDITION else B`, parentheses, min, max and ceil(a, b), which is the quotient rounded up. A comparison is 1 or 0.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

from ...formats.tensor_types import WeightFormat
from ...support.errors import KernelFault, UsageError

#: The names in expressions, with their meanings.
NAMES = {
    "M": "tokens",
    "N": "rows of the weights, of one expert where there are several",
    "K": "columns",
    "BLOCK": "values of a block of the weights",
    "BYTES": "bytes of such a block",
    "TYPE": "the number of the weights' type in ggml",
    "E": "experts",
    "TOP_K": "experts of a token",
}
_MOST_EXPRESSION, _MOST_BITS = 200, 200
_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.floordiv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip
_COMPARISONS: dict[type[ast.cmpop], Callable[[int, int], bool]] = {
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}  # fmt: skip
_FUNCTIONS: dict[str, Callable[[int, int], int]] = {"min": min, "max": max, "ceil": lambda a, b: -(-a // b)}


def names_of(fmt: WeightFormat, m: int, n: int, k: int, experts: int = 1, top_k: int = 1) -> dict[str, int]:
    """Return the values of the names in a call."""
    return {"M": m, "N": n, "K": k, "BLOCK": fmt.block_size, "BYTES": fmt.block_bytes, "TYPE": fmt.type_id,
            "E": experts, "TOP_K": top_k}  # fmt: skip


class Expression:
    """An integer expression of `NAMES`. Raises UsageError for anything else."""

    def __init__(self, source: object) -> None:
        self.source = str(source)
        try:
            if isinstance(source, bool) or not isinstance(source, int | str) or len(self.source) > _MOST_EXPRESSION:
                raise ValueError
            self._root = ast.parse(self.source.strip(), mode="eval").body
            _value(self._root, dict.fromkeys(NAMES, 1))
        except ZeroDivisionError:
            pass
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            short = ascii(self.source)[:80]
            raise UsageError(f"{short} is not an expression of M, N and K (names: {', '.join(NAMES)})") from None

    def value(self, names: Mapping[str, int]) -> int:
        """Evaluate it for the result of `names_of`. Raises KernelFault for a division by zero or an overflow."""
        try:
            return _value(self._root, names)
        except (ZeroDivisionError, ValueError):
            m, n, k = (names[name] for name in "MNK")
            raise KernelFault(f"{self.source} divides by zero or overflows at M={m}, N={n}, K={k}") from None

    def compared(self, names: Mapping[str, int]) -> dict[int, tuple[int, int]]:
        """Return the two numbers of each comparison in it, of `min` and of `max`; of a quotient, its remainder and 0.

        The keys are the same for all `names`. Raises KernelFault.
        """
        numbers = {node: number for number, node in enumerate(ast.walk(self._root))}
        found: dict[int, tuple[int, int]] = {}

        def value(node: ast.AST) -> int:
            made = _evaluated(node, value, names)
            sides = _sides(node)
            if sides is not None:
                a, b = (_value(side, names) for side in sides)
                found[numbers[node]] = (a % b, 0) if _divides(node) else (a, b)
            return made

        self.value(names)  # raises KernelFault
        value(self._root)
        return found

    def uses(self, name: str) -> bool:
        """Return whether it depends on a name."""
        return any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(self._root))


def _sides(node: ast.AST) -> tuple[ast.AST, ast.AST] | None:
    """Return the operands that a comparison, a function or a quotient compares; None for anything else."""
    match node:
        case ast.Compare(left=left, comparators=[right]):
            return left, right
        case ast.BinOp(left=left, op=ast.Div() | ast.FloorDiv(), right=right):
            return left, right
        case ast.Call(args=[left, right]):
            return left, right
    return None


def _divides(node: ast.AST) -> bool:
    ceil = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "ceil"
    return ceil or isinstance(node, ast.BinOp)


def _value(node: ast.AST, names: Mapping[str, int]) -> int:
    """Evaluate a syntax tree. Raises ValueError for unsupported syntax; ZeroDivisionError."""
    made = _evaluated(node, lambda part: _value(part, names), names)
    if made.bit_length() > _MOST_BITS:
        raise ValueError
    return made


def _evaluated(node: ast.AST, value: Callable[[ast.AST], int], names: Mapping[str, int]) -> int:
    match node:
        case ast.Constant(value=int(number)) if not isinstance(number, bool):
            return number
        case ast.Name(id=name) if name in names:
            return names[name]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](value(left), value(right))
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARISONS:
            return int(_COMPARISONS[type(op)](value(left), value(right)))
        case ast.BoolOp(op=op, values=parts):
            decides: Any = any if isinstance(op, ast.Or) else all
            return int(decides([bool(value(part)) for part in parts]))
        case ast.UnaryOp(op=ast.Not(), operand=part):
            return int(not value(part))
        case ast.IfExp(test=test, body=body, orelse=other):
            return value(body) if value(test) else value(other)
        case ast.Call(func=ast.Name(id=name), args=[first, second], keywords=[]) if name in _FUNCTIONS:
            return _FUNCTIONS[name](value(first), value(second))
    raise ValueError
