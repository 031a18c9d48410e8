"""Coverage of kernels in Python. The sources below say what is expected, in a comment at the end of a line:

`never` for a line that never ran, then the ways of each branch of the line, such as `10`: the test was true, never
false; `-` for a line without code of the kernel. Every other line with code has run.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gguf_verify.kernels.foreign.bytecode import Skipped
from gguf_verify.kernels.foreign.executed import executed_by_python, executed_until_death
from gguf_verify.kernels.foreign.observation import LOG_HEAD, Log, Watched
from gguf_verify.kernels.foreign.operands import Mapped, MemoryFile, Operand, laid_out
from gguf_verify.kernels.foreign.python_kernel import PythonRunner
from gguf_verify.kernels.foreign.tracing import observe
from gguf_verify.results.coverage import Executed

MONITORING = sys.version_info >= (3, 12)

pytestmark = pytest.mark.skipif(sys.gettrace() is not None, reason="another tool observes this process")


@pytest.fixture(autouse=True)
def unimported() -> Iterator[None]:
    before, path = set(sys.modules), list(sys.path)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def run(folder: Path, source: str, calls: tuple[Any, ...] = (0,), **beside: str) -> dict[str, Any]:
    """Run `main(n)` of a file for each n of the calls, beside other modules; return what was observed.

    The log of it, which is read if a process ends before it answers, says the same."""
    for name, text in beside.items():
        (folder / f"{name}.py").write_text(text)
    file = folder / "kernel_here.py"
    file.write_text(source)
    sys.path.append(str(folder))
    observer = observe(file)
    try:
        names: dict[str, Any] = {"__name__": "kernel_here"}
        exec(compile(source, str(file), "exec", dont_inherit=True), names)
        observer.kernel, log = names["main"], bytearray(1 << 16)
        observer.log(memoryview(log))
        for n in calls:
            observer.new_call()
            names["main"](n)
        logged, said = executed_until_death(bytes(log)), json.dumps(observer.executed())
    finally:  # -
        observer.stop()
    files, unobserved = executed_by_python(said.encode())
    for path, of in logged.items() if files else ():
        assert files[path].lines.items() >= of.lines.items()
        assert files[path].branches.items() >= of.branches.items()
    if not files and len(calls) > 1:  # it is noticed between two calls
        assert all(ran for of in logged.values() for ran in of.lines.values())
    if not unobserved:
        assert {(path, line) for path in files for line in files[path].lines if files[path].lines[line]} == {
            (path, line) for path in logged for line in logged[path].lines if logged[path].lines[line]
        }
    found: dict[str, Any] = json.loads(said)
    return found


def installed(folder: Path, name: str, text: str) -> None:
    """Make a module of an installed package."""
    packages = folder / "packages" / "site-packages"
    packages.mkdir(parents=True)
    (packages / f"{name}.py").write_text(text)
    sys.path.append(str(packages))


def expected(source: str, lines_with_code: set[int]) -> tuple[dict[int, bool], dict[tuple[int, int], list[bool]]]:
    lines, branches = {}, {}
    for number, text in enumerate(source.splitlines(), 1):
        words = text.partition("  # ")[2].split()
        if number in lines_with_code and "-" not in words:
            lines[number] = "never" not in words
        for i, ways in enumerate(word for word in words if re.fullmatch("[01]+", word)):
            branches[number, i] = [way == "1" for way in ways]
    return lines, branches


def check(folder: Path, source: str, calls: tuple[Any, ...] = (0,), **beside: str) -> list[str]:
    """Compare with the comments; return the code that was not observed."""
    said = run(folder, source, calls, **beside)
    assert set(said["files"]) == {str(folder / f"{name}.py") for name in ("kernel_here", *beside)}
    for name, text in {"kernel_here": source, **beside}.items():
        found = said["files"][str(folder / f"{name}.py")]
        plain = {i for i, line in enumerate(text.splitlines(), 1) if line.partition("#")[0].strip()}
        lines, branches = expected(text, plain)
        assert dict(found["lines"]) == lines, name
        assert {(line, number): ways for line, number, ways in found["branches"]} == branches, name
    return said["unobserved"]


STATEMENTS = """\
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    import numpy  # -
def one_way(n):
    if n >= 0:  # 10
        return 1
    return 2  # never
def both(n):
    if n:  # 11
        n = 1
    elif n is None:  # 01
        n = 2  # never
    else:  # -
        n = 3
    return n if n > 1 else 0  # 11
def loops(n):
    for i in range(n):  # 11
        pass
    for i in [1, 2]:  # 10
        break
    while n and 0 <= n < 5:  # 11 10 10
        n += 1
        if n == 3:  # 11
            continue
        if n == 4:  # 11
            n = 0
def values(a, b, c):
    x = a and b and c  # 10 01
    y = a or (not b)  # 10
    return [i for i in (1, 2) if i > 1 and a for j in (3,) if j > 5]  # 11 11 10 11 01
def handled(n):
    try:
        if n == 1:  # 11
            raise ValueError
        n = 2
    except ValueError as error:  # 10
        n = 3
    except KeyError:  # never 0
        n = 4  # never
    finally:  # -
        if n is not None and n > 2:  # 01 11
            n = 5
def unhandled():
    try:
        raise KeyError
    except (ValueError, IndexError):  # 0
        n = 1  # never
class Matrix:
    rows = 3
    def used(self):
        with self:
            assert self.rows and self, (  # 1 1
                "no" if self else "none")  # -
            assert self.rows, "no"  # 1
    def __enter__(self):
        return self
    def __exit__(self, *of):
        return None
    def unused(self):
        return 1  # never
def matched(value):
    match value:
        case [1, x]:  # 11 11
            return x
        case {"k": y}:  # 11
            return y
        case Matrix(rows=2):  # 01 00
            return 3  # never
        case str() | int() if value:  # 11 01 10
            return 4
        case _:
            return 5
def numbers(n):
    yield 1
    if n:  # 01
        yield 2  # never
    yield 3
def outer(n):
    def inner(m):
        return m + n
    def never(m):
        return m  # never
    return inner(1)
def factorial(n):
    return 1 if n <= 1 else n * factorial(n - 1)  # 11
def main(n):
    one_way(1)
    both(0), both(1)
    loops(1)
    values(1, 0, 2)
    handled(1), handled(0)
    try:
        unhandled()
    except KeyError:  # 1
        pass
    Matrix().used()
    matched([1, 2]), matched([2, 2]), matched({"k": 1}), matched("a")
    list(numbers(0))
    next(numbers(1))
    outer(1)
    factorial(3)
    key = lambda value: value  # never
    return n
if __name__ == "__main__":
    main(1)  # -
"""


def test_statements(tmp_path: Path) -> None:
    assert check(tmp_path, '"""A kernel."""  # -\n' + STATEMENTS) == []


def test_modules_beside_the_kernel(tmp_path: Path) -> None:
    """Those in its folder or below, but not installed packages in it."""
    installed(tmp_path, "installed_here", "VALUE = 1\n")
    beside = "def double(n):\n    if n:  # 10\n        return 2 * n\n    return 0  # never\n"
    source = "def main(n):\n    import installed_here\n    from beside_here import double\n    return double(n)\n"
    assert check(tmp_path, source, (1,), beside_here=beside) == []


def test_threads(tmp_path: Path) -> None:
    source = """\
from concurrent.futures import ThreadPoolExecutor
def work(i):
    if i > 2:  # 11
        return 1
    if i > 9:  # 01
        return 2  # never
def main(n):
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(work, range(5)))
"""
    assert check(tmp_path, source) == []


def test_calls_add_up(tmp_path: Path) -> None:
    source = "def main(n):\n    if 1500 <= n < 1600:  # 11 01\n        return 1  # never\n    return 0\n"
    assert check(tmp_path, source, (1, 1600, 2)) == []
    source = source.replace("11 01", "11 11").replace("1  # never", "1")
    assert check(tmp_path, source, (1, 1600, 1599)) == []


HOT = """\
def main(n):
    if n == 77:  # 01
        return 1  # never
    for i in range(30_000):  # 11
        x = i + 1
        if x < 0:
            x = 2
        y = [v for v in (x,) if v < 0]
    z = x
    return z
"""


def test_a_jump_over_many_instructions(tmp_path: Path) -> None:
    """It has a prefix, which is an instruction by itself."""
    body = "        x = [i, i + 1, i + 2, i + 3]\n" * 40
    check(tmp_path, f"def main(n):\n    for i in range(2):  # 11\n{body}        if i < 5:  # 10\n            x = i\n")


def test_a_loop_that_runs_often(tmp_path: Path) -> None:
    """What the loop may have run unseen is not reported as never run; what lies before it is."""
    found = run(tmp_path, HOT, (1, 2, 3))
    here = found["files"][str(tmp_path / "kernel_here.py")]
    lines, branches = dict(here["lines"]), {line: ways for line, _, ways in here["branches"]}
    assert found["unobserved"] == ["runs too often to be observed throughout: kernel_here.py:1 main"]
    assert lines[3] is False
    assert branches[2] == [False, True]
    assert branches[4] == [True, True]  # as the lines behind it ran
    assert lines[9] is lines[10] is True
    assert 6 not in branches  # whether x < 0 was ever true is unknown
    if not MONITORING:  # whose line events never end
        assert 7 not in lines
    # The way that was not seen in one call is seen in another.
    late = HOT.replace("n == 77", "n == 3").replace("x < 0", "n == 2")
    here = run(tmp_path, late, (1, 2, 3))["files"][str(tmp_path / "kernel_here.py")]
    branches = {line: ways for line, _, ways in here["branches"]}
    assert branches[2] == branches[6] == [True, True]
    assert dict(here["lines"])[7] is True


def test_a_call_with_many_calls(tmp_path: Path) -> None:
    """Before Python 3.12, nothing is seen after some hundred thousand calls: what follows in that call is unknown."""
    installed(tmp_path, "spin_here", "def one(): pass\ndef spin(calls):\n    for i in range(calls):\n        one()\n")
    source = """\
from spin_here import spin
def main(n):
    if n == 77:  # 01
        return 1  # never
    before(n)
    spin(120_000)
    if n == 78:
        return 2
    return 3
def before(n):
    if n == 79:
        return 4
def after(i):
    return 6
"""
    found = run(tmp_path, source)
    here = found["files"][str(tmp_path / "kernel_here.py")]
    lines, branches = dict(here["lines"]), {line: ways for line, _, ways in here["branches"]}
    assert lines[4] is False
    assert branches[3] == [False, True]
    unknown = {8, 12, 14}
    assert unknown & {line for line, ran in lines.items() if not ran} == (unknown if MONITORING else set())
    late = source.replace("n == 78", "n == 1").replace("n == 79", "n == 1").replace("120_000", "5")
    here = run(tmp_path, late, (0, 1))["files"][str(tmp_path / "kernel_here.py")]
    assert [line for line, ran in here["lines"] if not ran] == [4, 14]


def test_branches_that_lines_do_not_tell(tmp_path: Path) -> None:
    """Before Python 3.12, instructions tell them, of which few are observed in a call."""
    source = """\
def main(n):
    for i in range(4_000):
        x = i + 1; y = x + 2; z = 1 if i < 0 else 2
    for i in range(4_000):
        step(i)
    return 1 if n < 0 else 2
def step(i):
    x = i + 1; y = x + 2; return 1 if i < 0 else 2
"""
    found = run(tmp_path, source, (0, 1, 2))
    here = found["files"][str(tmp_path / "kernel_here.py")]
    assert all(run for _, run in here["lines"])
    branches = {line: ways for line, _, ways in here["branches"]}
    assert branches == ({6: [False, True]} if MONITORING else {}) | {2: [True, True], 4: [True, True]} | (
        {3: [False, True], 8: [False, True]} if MONITORING else {}
    )


def test_exceptions_leave_the_kernel_as_it_is(tmp_path: Path) -> None:
    source = """\
class Truthless:
    def __bool__(self):
        raise ValueError
def main(n):
    try:
        if Truthless():  # 00
            return 1  # never
    except ValueError:  # 1
        pass
    for i in numbers():  # 10
        pass
def numbers():
    yield 1
    raise OverflowError
"""
    with pytest.raises(OverflowError):
        run(tmp_path, source)
    source = source.replace("for i in numbers():", "return 3\n    for i in ():")
    found = run(tmp_path, source)["files"][str(tmp_path / "kernel_here.py")]
    assert [6, 0, [False, False]] in found["branches"]
    assert [8, 0, [True]] in found["branches"]


def test_a_trace_function_of_its_author(tmp_path: Path) -> None:
    source = """\
import sys
def main(n):
    lines = []
    sys.settrace(lambda frame, event, arg: lines.append(event))
    other()
    sys.settrace(None)
    assert lines == ["call"]
def other():
    pass
"""
    found = run(tmp_path, source, (0, 0))
    if MONITORING:
        assert found["files"]
    else:
        assert found == {"files": {}, "unobserved": ["the kernel has set a trace function of its own"]}


def test_another_tool(tmp_path: Path) -> None:
    def trace(frame: Any, event: str, arg: Any) -> None: ...

    sys.settrace(trace)
    try:
        found = run(tmp_path, "def main(n):\n    return n\n")
        assert sys.gettrace() is trace
    finally:  # -
        sys.settrace(None)
    assert found["files"] == {}
    assert found["unobserved"] == ["another tool observes this process: sys.settrace"]


COMPILER = """\
class Compiled:
    def __init__(self, function):
        self.function = function
        self.names = {"function": function}
    def __call__(self, n):
        return n
"""


def test_functions_that_are_compiled(tmp_path: Path) -> None:
    """Their bytecode never runs, nor that of functions that only they call. It is not reported as never run."""
    installed(tmp_path, "compiler_here", COMPILER)
    source = """\
import functools
from compiler_here import Compiled; from own_here import Own
@Compiled
def kernel(n):
    def inside(m):  # -
        return m  # -
    return inlined(n)  # -
def inlined(n):
    return n  # -
@Own
def held(n):
    return n  # never
@functools.lru_cache
def kept(n):
    return n  # never
def main(n):
    return kernel(n)
"""
    own = "class Own:\n    def __init__(self, function):\n        self.function = function\n"
    assert check(tmp_path, source, own_here=own) == [
        "not observed, compiled by compiler_here: kernel_here.py:3 kernel, kernel_here.py:8 inlined"
    ]


def test_code_that_a_tool_rewrites(tmp_path: Path) -> None:
    """As torch.compile does: it runs other bytecode in place of the function's."""
    source = """\
def made(n):
    return n + 1  # -
def other(n):
    return n  # never
def main(n):
    rewritten = compile("def made(n):\\n    return [n, 2]\\n", made.__code__.co_filename, "exec")
    type(made)(rewritten.co_consts[0], {})(n)
    same.__code__ = same.__code__.replace(co_flags=same.__code__.co_flags)
    return same(n)
def same(n):
    return n
"""
    assert check(tmp_path, source) == ["not observed, compiled by another tool: kernel_here.py:1 made"]


def test_what_is_not_the_kernel(tmp_path: Path) -> None:
    """Other kernels of the file, an oracle, and what only they call."""
    source = """\
from gguf_verify import Oracle, kernel
def helper(n):
    return n  # -
def shared(n):
    return n  # never
def values(rows, fmt):
    return helper(rows) + shared(rows)  # -
@kernel(formats=["Q4_0"], semantics="f32")
def another(weights, activations, shape):
    return helper(weights)  # -
@kernel(formats=["Q4_0"], semantics="f32")
def used(weights, activations, shape):
    return weights  # never
@kernel(formats=["Q4_0"], semantics=Oracle(weights=values))
def main(n):
    if n:  # 01
        return shared(n), used(n, n, n)  # never
"""
    assert sorted(check(tmp_path, source)) == [
        "not observed, another kernel: kernel_here.py:2 helper, kernel_here.py:8 another",
        "not observed, runs in the oracle's process: kernel_here.py:6 values",
    ]


def test_processes_that_it_forks(tmp_path: Path) -> None:
    source = """\
import os
def main(n):
    child = os.fork()
    if not child:  # 10
        os._exit(0)  # never
    os.waitpid(child, 0)
"""
    assert check(tmp_path, source) == ["processes that the kernel forks are not observed"]


def test_an_action_of_the_runner(tmp_path: Path) -> None:
    """It returns the whole size, and writes nothing if there is less room."""
    source = "def main(w, x, shape):\n    return 1\nmain.formats, main.semantics = ['Q4_0'], 'f32'\n"
    file = tmp_path / "kernel_here.py"
    file.write_text(source)
    observer = observe(file)
    try:
        names: dict[str, Any] = {"__name__": "kernel_here"}
        exec(compile(source, str(file), "exec"), names)
        runner = PythonRunner(names["main"], observer)
        answers = [answer(runner, room) for room in (8, 4096)]
    finally:  # -
        observer.stop()
    (size, nothing), (same, content) = answers
    assert size == same > 8
    assert set(nothing) == {0xFF}
    assert executed_by_python(content[:size]) == ({str(file): Executed({1: True, 2: False, 3: True}, {})}, ())
    size, content = answer(PythonRunner(names["main"]), 4096)
    assert executed_by_python(content[:size]) == ({}, ("the kernel was imported before its process began",))


def answer(runner: PythonRunner, room: int) -> tuple[int, bytes]:
    wanted = [Operand("executed", "output", "uint8", (room,))]
    file = MemoryFile(laid_out(wanted, 0)[1])
    (operand,), _ = laid_out(wanted, file.number)
    operand.begin_in(file.bytes, np.full(room, 0xFF, np.uint8))
    size = runner.executed({}, {"executed": Mapped(operand, file.handle)})["size"]
    content = operand.bytes_in(file.bytes).tobytes()
    file.close()
    return size, content


VALID: dict[str, Any] = {
    "files": {"/a.py": {"lines": [[1, True], [2, False]], "branches": [[1, 0, [True, False]]]}},
    "unobserved": ["b"],
}


def changed(path: tuple[Any, ...], value: Any) -> bytes:
    """The valid answer with one value replaced."""
    answer = json.loads(json.dumps(VALID))
    at = answer
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return json.dumps(answer).encode()


HERE = ("files", "/a.py")


def test_a_valid_answer() -> None:
    executed = Executed({1: True, 2: False}, {(1, 0): (True, False)})
    assert executed_by_python(json.dumps(VALID).encode()) == ({"/a.py": executed}, ("b",))


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"{}", b"[", b"\xff", b"null", b"[" * 100_000, b" " * (1 << 22) + json.dumps(VALID).encode(),
        changed(("more",), 1), changed(("files", "a.py"), VALID["files"]["/a.py"]),
        changed(("files", "/a\x1b.py"), VALID["files"]["/a.py"]), changed((*HERE, "lines", 0), [0, True]),
        changed((*HERE, "lines", 0), [10**7, True]), changed((*HERE, "lines", 0), [1, 1]),
        changed((*HERE, "lines", 0), [True, True]), changed((*HERE, "lines", 0), [1.5, True]),
        changed((*HERE, "lines", 0), [10**400, True]), changed((*HERE, "branches", 0), [1, -1, [True]]),
        changed((*HERE, "branches", 0), [1, 0, []]), changed((*HERE, "branches", 0), [1, 0, [True] * 17]),
        changed(("unobserved", 0), "\x1b[31m"), changed(("unobserved", 0), "a" * 401), changed(("unobserved",), "b"),
        changed(("unobserved",), ["b"] * 101),
    ],
)  # fmt: skip
def test_invalid_answers(raw: bytes) -> None:
    assert executed_by_python(raw) == ({}, ())


#: A file with two code objects, of which a line and a way of the first ran.
LOG = '[0,"/a.py",[1,2],[[1,2]]]\n[0,"/a.py",[3],[]]\n[1,0,1]\n[2,0,0,1]\n'


def log(text: str, beyond: int = 0, full: int = 0) -> bytes:
    return LOG_HEAD.pack(LOG_HEAD.size + len(text.encode()) + beyond, full) + text.encode()


def test_a_valid_log() -> None:
    """Code that did not run may have been compiled; of code that was cut, only what ran is known."""
    assert executed_until_death(log(LOG)) == {"/a.py": Executed({1: True, 2: False}, {(1, 0): (False, True)})}
    for cut in (log(LOG + "[3,0]\n"), log(LOG, full=1)):
        assert executed_until_death(cut) == {"/a.py": Executed({1: True}, {})}


@pytest.mark.parametrize(
    "raw",
    [
        b"", bytes(16), log(LOG, 1), log(LOG, 1 << 40), log(LOG + "["), log(LOG + "[4,0]"), log(LOG + "[1,0]"),
        log(LOG + "[1,-1,1]"), log(LOG + "[1,0,1,2]"), log(LOG + "[1,0,0]"), log(LOG + "[2,0,0,16]"),
        log(LOG + '[0,"a.py",[],[]]'), log(LOG + '[0,"/\\u001b.py",[],[]]'), log(LOG + '[0,"/b.py",[1],[[1,10000]]]'),
        log("[" * 9999), log(LOG + "\x00"),
    ],
)  # fmt: skip
def test_invalid_logs(raw: bytes) -> None:
    assert executed_until_death(raw) == {}


def test_a_log_of_code_that_was_cut_before() -> None:
    code = compile("a = 1\nb = 2\n", "/k.py", "exec", dont_inherit=True)
    watched, memory = Watched(code, Skipped(), 0), bytearray(256)
    watched.see_line(2)
    watched.cut(None)
    watched.log(Log(memoryview(memory)))
    assert executed_until_death(bytes(memory)) == {"/k.py": Executed({2: True}, {})}


def test_a_log_without_room_says_so() -> None:
    memory = bytearray(64)
    written = Log(memoryview(memory))
    for line in range(1, 9):
        written.add(1, 0, line)
    end, full = LOG_HEAD.unpack_from(memory)
    assert (end, full) == (56, 1)
    assert memory[LOG_HEAD.size : end].splitlines() == [b"[1, 0, %d]" % line for line in range(1, 5)]


class Slow(bytearray):
    """Memory in which another thread goes on during a write."""

    def __setitem__(self, at: Any, value: Any) -> None:
        time.sleep(0.001)
        super().__setitem__(at, value)


def test_threads_write_whole_entries() -> None:
    memory: Any = Slow(8192)
    written = Log(memory)
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda line: written.add(1, 0, line), range(100, 180)))
    end, full = LOG_HEAD.unpack_from(memory)
    assert full == 0
    assert sorted(bytes(memory[LOG_HEAD.size : end]).splitlines()) == [b"[1, 0, %d]" % line for line in range(100, 180)]
