"""Python code that reports its comparisons: it computes the same, and what it reports."""

from __future__ import annotations

import builtins
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from gguf_verify.kernels.foreign.expressions import Expression, names_of
from gguf_verify.kernels.foreign.reporting import Reporter
from gguf_verify.kernels.foreign.rewriting import REPORTER

#: Functions of one size, in a module that compares in every way.
SOURCE = b'''
"""A docstring."""
from __future__ import annotations
import functools
import numpy as np
TUNED = {(896, 1024): 7, 5: 1}
LIMIT: int = 40
class CFG:
    m = 777
    def __init__(self, n: dict[str, int] = {"n": 3}): self.__n = n["n"]
    def under(self, n): return self.__n < n < 9 or n
called = []
def noted(x):
    called.append(x)
    return x
def chain(n): return noted(1) < noted(n) <= noted(LIMIT) < noted(50), called
def inside(n): return n in (3, 1536), n not in {4}, "x" in "xyz", n is None
def looked_up(n): return TUNED.get((n, 1024), 0), {3: 4}[n if n == 3 else 3], TUNED.get(n)
def matched(n):
    match (n, 1):
        case (1234 | 3, 1) if n > 2: return 1
        case [CFG.m, *rest]: return rest
        case (5, k): return k
        case _: return {"a": n}
def truths(n):
    found = []
    while n: n -= 1
    for i in range(9):
        if not i % 3 and i: found.append(i)
    return found, [j for j in range(n + 4) if j % 2], (n or 5), (m := n + 1) if n else -1
def sliced(n):
    x = np.arange(12).reshape(3, 4)
    x[:, :2] = 0
    y = x[None, :2, ..., :1].copy()
    y[..., :1] += 1
    return x[1:2, ::2].tolist(), y.tolist(), list(range(9))[:n], x[np.array([0, 1])].tolist()
def extremes(n): return min(n, 8), max(3, n, 4), min([n, 2]), max(*[n, 3]), min(n, 2, key=lambda v: -v)
def of_class(n): return CFG().under(n), [CFG().under(i) for i in (2, 5, 10)]
@functools.lru_cache
def cached(n): return n == 3 if n > 2 else n >= 2
def raising(n):
    try: return n < "a"
    except TypeError as error: return str(error)
def generator(n):
    got = yield n > 2
    yield got == n
def generated(n):
    made = generator(n)
    return next(made), made.send(n)
'''
NAMES = (
    "chain", "inside", "looked_up", "matched", "truths", "sliced", "extremes", "of_class", "cached", "raising",
    "generated",
)  # fmt: skip


@pytest.fixture
def reporter() -> Iterator[Reporter]:
    made = Reporter()
    setattr(builtins, REPORTER, made)
    yield made
    delattr(builtins, REPORTER)


def module_of(reporter: Reporter | None, source: bytes) -> dict[str, Any]:
    made: dict[str, Any] = {"__name__": "k"}
    exec(compile(source, "/k.py", "exec") if reporter is None else reporter.code_of(source, "/k.py"), made)
    return made


def pairs(reporter: Reporter) -> set[tuple[int, float, float]]:
    """The line and the smallest operands of the comparisons that were reported."""
    return {(line, a, b) for _, line, _, a, _, b, *_ in json.loads(reporter.said())["comparisons"]}


@pytest.mark.parametrize("name", NAMES)
def test_rewritten_code_computes_the_same(name: str, reporter: Reporter) -> None:
    for n in (0, 1, 2, 3, 5, 777):
        assert module_of(reporter, SOURCE)[name](n) == module_of(None, SOURCE)[name](n)


REPORTED = {
    "if 1500 <= m < 1600: pass": {(1500, 3)},
    "if m > 0 and n % 192 == 64: pass": {(3, 0), (33, 64)},
    "if 1 <= m < 1600: pass": {(1, 3), (3, 1600)},
    "max(m, n, 8)": {(3, 33), (33, 8)},
    "if n in (1536, 2048): pass": {(33, 1536), (33, 2048)},
    "T = {(33, 1024): 1, (7, 8): 2}; T.get((n, k))": {(33, 33), (64, 1024), (33, 7)},
    "T = {5: 1, n: 2}; T[n]": {(33, 5), (33, 33)},
    "n in range(40, 90)": {(33, 40), (33, 90)},
    "a = [n]; a.append(a); b = [n]; b.append(b); a == 3 or n > 1": {(33, 1)},
    "class C: x = 9\n    if m == C.x: pass": {(3, 9)},
    "match n, k:\n        case (896, 1024) | (_, 512): pass": {(33, 896), (64, 512)},
    "if n % 64: pass": {(33, 0)},
    "min(k, 4096)": {(64, 4096)},
    "np.zeros((3, 70000))[:, :n]": {(70000, 33)},
    "y = np.zeros(9); y[:k] = 1": {(9, 64)},
    "(n == 896) & (k == 1024)": {(33, 896), (64, 1024)},
    "np.int64(n) > 5 or n < 1e300": {(33, 5)},
    "np.zeros(3) > 1": {(0, 1)},
    "None == 3; 'a' < 'b'; n == 10 ** 400; n > float('nan')": set(),
}


@pytest.mark.parametrize("statements", REPORTED)
def test_the_operands_of_comparisons_are_reported(statements: str, reporter: Reporter) -> None:
    made = module_of(reporter, f"import numpy as np\ndef f(m, n, k):\n    {statements}".encode())
    reporter.said()
    made["f"](3, 33, 64)
    assert {pair[1:] for pair in pairs(reporter)} == REPORTED[statements]
    assert pairs(reporter) == set()


def test_code_that_another_package_compiles_stays_as_it_is_and_its_numbers_are_listed(reporter: Reporter) -> None:
    code = b"""
import pytest as compiler
TILE = 192
def own(function): return function
@compiler.fixture
def compiled(n): return n == 1536 or n % TILE == 64 or (n, 7) in ((896, 1024),)
def given(n): return n > 4444
compiler.param(given)
@own
def called(n, least=900): return n > least
"""
    made = module_of(reporter, code)
    made["called"](3)
    said = json.loads(reporter.said())
    assert [record[1] for record in said["comparisons"]] == [10]
    assert {(line, value, period) for _, line, value, period in said["numbers"]} == {
        (3, 192, 0), (6, 1536, 0), (6, 64, 192), (6, 0, 192), (6, 896, 0), (6, 1024, 0), (6, 7, 0), (7, 4444, 0),
        (10, 900, 0),
    }  # fmt: skip


def test_a_loop_reports_its_range_and_no_more_than_there_is_room_for(reporter: Reporter) -> None:
    made = module_of(reporter, b"def f(n):\n    for i in range(n):\n        i < 7\n        i in [*range(5000)]")
    made["f"](100)
    said = json.loads(reporter.said())["comparisons"]
    assert said[0][3:] == [0, 99, 7, 7, -7, 92, 0, 1]
    assert len(said) == 1 + 256


def test_an_expression_of_a_launch_lists_what_it_compares() -> None:
    from gguf_verify.formats.q4_0 import Q4_0

    def of(source: str) -> list[tuple[int, int]]:
        return sorted(Expression(source).compared(names_of(Q4_0, 100, 50, 64)).values())

    assert of("M > 1500 and N % 192 == 64") == [(50, 64), (100, 1500)]
    assert of("min(M, 4096)") == [(100, 4096)]
    assert of("ceil(M, 48) * N") == [(4, 0)]
    assert of("(N + 63) // 64") == [(49, 0)]
    assert of("2 if K > 512 else max(N, 3)") == [(50, 3), (64, 512)]


def test_arrays_keep_their_values(reporter: Reporter) -> None:
    made = module_of(reporter, b"def f(x, y):\n    y[: len(x)] = x[: len(x)]\n    return y, x > 1")
    y, above = made["f"](np.array([1.0, 2.0]), np.zeros(3))
    assert y.tolist() == [1, 2, 0]
    assert above.tolist() == [False, True]


def test_numbers_that_are_not_finite_are_left_out(reporter: Reporter) -> None:
    source = b"""
def f(values):
    best = -float("inf")
    for x in values:
        if x > best:
            best = x
    for x in values[::-1]:
        if x < best:
            best = -float("inf")
"""
    module_of(reporter, source)["f"]([1.0, 2.0, 4.0])
    records = [[line, *record] for _, line, _, *record in json.loads(reporter.said())["comparisons"]]
    assert np.isfinite(records).all()
    assert [line for line, *_ in records] == [5, 8]


def test_arrays_report_their_elements(reporter: Reporter) -> None:
    source = b"""
import numpy as np
def f(x, y):
    a = np.where(x == 165.5, 1, 0)
    b = np.clip(x, -1, 2), x.clip(min=3), np.minimum(x, y, dtype=np.float64)
    return a, b, x[:, None] < y, 5 > y, np.maximum(*[x, y])
"""
    plain: dict[str, Any] = {}
    exec(source, plain)
    x, y = np.array([0, 165.5, np.inf]), np.array([7, -8, 9])
    got, expected = (f(x, y) for f in (module_of(reporter, source)["f"], plain["f"]))
    assert repr(got) == repr(expected)
    records = [[line, *record] for _, line, _, *record in json.loads(reporter.said())["comparisons"]]
    below, equal, above = 1, 2, 4
    assert records == [
        [4, 0, 165.5, 165.5, 165.5, -165.5, 0, below | equal, 2],
        [5, 0, 165.5, -1, -1, 1, 166.5, above, 2],
        [5, 0, 165.5, 2, 2, -2, 163.5, below | above, 2],
        [5, 0, 165.5, 3, 3, -3, 162.5, below | above, 2],
        [5, 0, 165.5, -8, 7, -7, 173.5, below | above, 2],
        [6, 0, 165.5, -8, 9, -9, 173.5, below | above, 6],
        [6, 5, 5, -8, 9, -4, 13, below | above, 3],
        [6, 0, 165.5, -8, 7, -7, 173.5, below | above, 2],
    ]


def test_passes_of_loops_are_counted(reporter: Reporter) -> None:
    source = b"for i in range(3):\n    while i: i -= 1\n    else: [j for j in range(9) for _ in {0} if j]"
    exec(reporter.code_of(source, "k.py"), {})
    assert json.loads(reporter.said())["passes"] == 3 + 3 + 3 * 18
    assert json.loads(reporter.said())["passes"] == 0
