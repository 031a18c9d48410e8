"""Functions of a kernel's files whose bytecode never runs, because something else runs in its place.

A compiler such as Numba's or Triton's replaces a function by an object of its own, and translates its code. The
functions of an oracle run in another process, and other kernels of the same file do not run at all.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterable, Sequence
from types import CodeType, FunctionType
from typing import Any

from .api import Oracle

#: Packages whose objects call Python functions as they are.
_CALL = {"builtins", "numpy", "gguf_verify", "__main__"} | sys.stdlib_module_names


def replaced(codes: Sequence[CodeType], kernel: Any, own: Callable[[type], bool]) -> dict[int, tuple[str, bool]]:
    """Return id of a code object → why it does not run, in words, and whether that also holds for all that it calls.

    Args:
        codes: those that never ran.
        kernel: the kernel that runs.
        own: whether a class is of the kernel's author: its objects call functions as they are.
    """
    wanted = {id(code) for code in codes}
    functions = {
        id(each): each
        for each in gc.get_referrers(*codes)
        if isinstance(each, FunctionType) and id(each.__code__) in wanted
    }
    found = {
        id(each.__code__): ("another kernel", False)
        for each in functions.values()
        if "formats" in each.__dict__ and each is not kernel
    }
    for holder, held in _holders(functions):
        kind = type(holder)
        package = str(kind.__module__).partition(".")[0]
        if isinstance(holder, Oracle):
            reason = "runs in the oracle's process", False
        elif package in _CALL or kind.__module__ not in sys.modules or own(kind):
            continue
        else:
            reason = f"compiled by {package}", True
        for function in held:
            found[id(functions[function].__code__)] = reason
    return found


def _holders(functions: dict[int, FunctionType]) -> Iterable[tuple[Any, set[int]]]:
    """Objects that refer to functions, by a field or an attribute; and the ids of those functions."""
    dicts: dict[int, tuple[dict[Any, Any], set[int]]] = {}
    for each in gc.get_referrers(*functions.values()) if functions else ():
        held = {id(value) for value in gc.get_referents(each)} & set(functions)
        if each is functions or not held:
            continue
        if isinstance(each, dict):
            dicts[id(each)] = each, held
        else:
            yield each, held
    for owner in gc.get_referrers(*(each for each, _ in dicts.values())) if dicts else ():
        for value in gc.get_referents(owner):
            if id(value) in dicts and value is dicts[id(value)][0]:
                yield owner, dicts[id(value)][1]


def names_in(code: CodeType) -> set[str]:
    """Return the names that a code object and those inside it refer to."""
    inside = (names_in(each) for each in code.co_consts if isinstance(each, CodeType))
    return {*code.co_names, *code.co_freevars, *code.co_cellvars}.union(*inside)
