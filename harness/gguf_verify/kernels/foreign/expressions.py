"""Integer arithmetic that a declaration may hold: sizes, grids, arguments, as functions of a product's shape."""

from __future__ import annotations

import ast

from ...support.errors import KernelFault, UsageError

_MOST_EXPRESSION = 200


class Expression:
    """Integer arithmetic of M, N and K. Raises UsageError for anything else."""

    def __init__(self, source: object) -> None:
        self.source = str(source)
        try:
            if isinstance(source, bool) or not isinstance(source, int | str) or len(self.source) > _MOST_EXPRESSION:
                raise ValueError
            self._root = ast.parse(self.source.strip(), mode="eval").body
            _value(self._root, {"M": 1, "N": 1, "K": 1})
        except ZeroDivisionError:
            pass
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            raise UsageError(f"{ascii(self.source)[:80]} is not an expression of M, N and K") from None

    def value(self, m: int, n: int, k: int) -> int:
        """Raises KernelFault where it divides by zero."""
        try:
            return _value(self._root, {"M": m, "N": n, "K": k})
        except ZeroDivisionError:
            raise KernelFault(f"{self.source} divides by zero at M={m}, N={n}, K={k}") from None


def _value(node: ast.AST, names: dict[str, int]) -> int:
    """The value of a syntax tree. Raises ValueError for anything but such arithmetic; ZeroDivisionError."""
    match node:
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            return value
        case ast.Name(id=name) if name in names:
            return names[name]
        case ast.BinOp(left=left, op=op, right=right):
            a, b = _value(left, names), _value(right, names)
            match op:
                case ast.Add():
                    return a + b
                case ast.Sub():
                    return a - b
                case ast.Mult():
                    return a * b
                case ast.Div():
                    return a // b
        case ast.Call(func=ast.Name(id="min" | "max" | "ceil" as name), args=[first, second], keywords=[]):
            a, b = _value(first, names), _value(second, names)
            return -(-a // b) if name == "ceil" else min(a, b) if name == "min" else max(a, b)
    raise ValueError


__all__ = ["Expression"]
