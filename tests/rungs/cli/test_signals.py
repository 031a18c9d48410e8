"""Signals at several moments of a run: it reports what it found, and leaves no process and no file."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.processes import any_works, descendants, gone, wait_until
from tests.support.shown import last_line
from tests.support.tools import FIXTURES, ROOT

SCRIPT = ROOT / "scripts" / "verify_model.py"
Q4_0 = FIXTURES / "tiny-Q4_0.gguf"
ENDS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
WAITS = """
from gguf_verify import kernel

open(PIPE).read()


@kernel(formats=["Q4_0"], semantics="q8_1")
def gemm(weights, activations, shape):
    pass
"""
#: The first call never returns.
RUNS_ON = """
// [gguf-verify]
// formats = ["Q4_0"]
// semantics = "q8_1"
// parameters = ["weights", "activations", "output", "int64 M", "int64 N", "int64 K"]
// block = 1
// grid = "1"
// [/gguf-verify]
extern "C" __global__ void gemm(const void* w, const void* x, float* y, long long M, long long N, long long K) {
    for (volatile unsigned i = 0; M > 0; ++i) {}
}
"""


def _is_probe(path: Path) -> bool:
    """Python's tempfile asks whether a folder can be written by a file of these bytes, which it removes at once, unless
    a signal comes between."""
    return (
        re.fullmatch("[a-z0-9_]{8}", path.name) is not None and path.is_file() and path.read_bytes() in (b"", b"blat")
    )


class Command:
    """A run in a process of its own, whose TMPDIR was empty."""

    def __init__(self, folder: Path, *arguments: object, ignoring: tuple[int, ...] = (), **environment: str) -> None:
        self.temporary, self.json, self.page = folder / "tmp", folder / "r.json", folder / "r.html"
        self.temporary.mkdir(exist_ok=True)
        files = ["-o", self.json, "-o", self.page] if SCRIPT in arguments else []

        def prepare() -> None:
            for number in ENDS:  # a shell's background job ignores Ctrl-C and hands that down
                signal.signal(number, signal.SIG_IGN if number in ignoring else signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.SIG_IGN if signal.SIGINT in ignoring else signal.default_int_handler)

        self.process = subprocess.Popen(
            [sys.executable, *map(str, (*arguments, *files))], text=True, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, preexec_fn=prepare, start_new_session=True,
            env={
                **os.environ, "PYTHONPATH": f"{ROOT / 'harness'}:{ROOT}", "TMPDIR": str(self.temporary), **environment
            },
        )  # fmt: skip
        self.started: set[int] = set()

    def descendants(self) -> list[int]:
        """All processes that it started and that still have a parent among them."""
        found = descendants(self.process.pid)
        self.started |= {*found}
        return found

    def runs(self, name: str) -> list[int]:
        """Those of a program, or of a Python module."""
        return [pid for pid in self.descendants() if name in _command_line(pid)]

    def ends(self, *numbers: int) -> tuple[int, str, str]:
        """Send signals; its exit code and what it printed. Nothing of it is left."""
        self.descendants()
        for number in numbers:
            self.process.send_signal(number)
        shown, errors = self.process.communicate(timeout=120)
        assert gone(self.started)
        if signal.SIGKILL not in numbers:
            assert [str(p) for p in self.temporary.rglob("*") if not _is_probe(p)] == []
        assert "Traceback" not in errors
        return self.process.returncode, shown, errors


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Command]]:
    made: list[Command] = []

    def begin(*arguments: object, **more: object) -> Command:
        made.append(Command(tmp_path, *arguments, **more))  # type: ignore[arg-type]
        return made[-1]

    yield begin
    for command in made:
        if command.process.poll() is None:
            command.process.kill()
            command.process.communicate()


def expected(number: int) -> int:
    return 130 if number == signal.SIGINT else 3


def check_report(command: Command, number: signal.Signals) -> None:
    report = json.loads(command.json.read_text())
    assert (report["verdict"], report["exit_code"]) == ("interrupted", expected(number))
    assert report["ended_by"] == number.name
    assert "tokens" in report["not_climbed"] or report["rungs"][-1]["name"] == "tokens"
    assert f"nterrupted by {number.name}" in command.page.read_text()


def opened(pipe: Path) -> int:
    """A pipe's end to write to, once the kernel's process waits at the other one."""
    held: list[int] = []

    def reads() -> bool:
        try:
            held.append(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
        except OSError:
            return False
        return True

    assert wait_until(reads)
    return held[0]


@pytest.mark.parametrize("number", ENDS)
def test_before_the_first_rung(start: Callable[..., Command], tmp_path: Path, number: signal.Signals) -> None:
    """The kernel's author waits in its file. Nothing is known, and the reports say so."""
    kernel, pipe = tmp_path / "waits.py", tmp_path / "pipe"
    kernel.write_text(WAITS.replace("PIPE", repr(str(pipe))))
    os.mkfifo(pipe)
    command = start(SCRIPT, Q4_0, "--kernel", f"{kernel}:gemm", "--sandbox", "none")  # it sees the pipe

    waited = opened(pipe)
    code, shown, errors = command.ends(number)
    os.close(waited)
    assert (code, shown) == (expected(number), "")
    assert errors == f"gguf-verify: interrupted by {number.name} before anything was verified\n"
    check_report(command, number)
    report = json.loads(command.json.read_text())
    assert report["rungs"] == []
    assert report["not_climbed"] == ["bytes", "blocks", "layers", "tokens"]
    assert report["environment"]["versions"]["llama_cpp"] == "unknown"
    assert report["environment"]["file"]["sha256"] == []


def test_while_a_kernel_is_called(start: Callable[..., Command], tmp_path: Path) -> None:
    """What it executed cannot be asked any more; its process is not blamed for that."""
    kernel = tmp_path / "runs_on.cu"
    kernel.write_text(RUNS_ON)
    command = start(SCRIPT, Q4_0, "--host", "cpu", "--kernel", f"{kernel}:gemm")
    assert any_works(lambda: command.runs("gguf_verify.kernels.foreign"), 1.5)
    assert command.ends(signal.SIGTERM)[0] == 3
    check_report(command, signal.SIGTERM)
    text = command.json.read_text()
    assert "is not valid" not in text
    assert "the kernel was interrupted in an earlier call" in text


@pytest.mark.parametrize("number", [signal.SIGTERM])
def test_while_a_kernel_is_compiled(start: Callable[..., Command], tmp_path: Path, number: signal.Signals) -> None:
    """In an empty cache. The compiler's own processes end, too, and no other compilation begins."""
    (tmp_path / "cache").mkdir(mode=0o700)
    command = start(SCRIPT, Q4_0, "--host", "cpu", XDG_CACHE_HOME=str(tmp_path / "cache"))
    if not wait_until(lambda: bool(command.runs("cc1plus") or command.runs("clang"))):
        pytest.skip("the compiler is neither GCC nor Clang")
    code, _, errors = command.ends(number)
    assert code == expected(number)
    assert f"interrupted by {number.name}" in errors
    check_report(command, number)
    assert list((tmp_path / "cache").rglob(".part-*")) == []
    assert list((tmp_path / "cache").rglob("*.o.index")) == []


@pytest.mark.parametrize("number", ENDS)
def test_while_llama_works(start: Callable[..., Command], number: signal.Signals) -> None:
    command = start(SCRIPT, Q4_0, "--host", "cpu", "--rungs", "tokens", "-n", "400", "--kernel", "q8_1_naive")
    assert any_works(lambda: command.runs("gguf_verify.llama"))
    code, shown, errors = command.ends(number)
    assert code == expected(number)
    assert errors.startswith(f"gguf-verify: interrupted by {number.name}")
    assert not shown or last_line(shown).startswith("INTERRUPTED in ")
    check_report(command, number)


def test_a_group_that_gets_the_signal(start: Callable[..., Command]) -> None:
    """As `timeout` and a closed terminal send it. It reaches no process that we started, whose end would be blamed on
    llama.cpp."""
    command = start(SCRIPT, Q4_0, "--host", "cpu", "--rungs", "tokens", "-n", "400", "--kernel", "q8_1_naive")
    assert any_works(lambda: command.runs("gguf_verify.llama"))
    group = os.getpgid(command.process.pid)
    assert all(os.getpgid(pid) != group for pid in command.descendants())
    os.killpg(group, signal.SIGHUP)
    code, _, errors = command.ends()
    assert code == 3
    assert errors.startswith("gguf-verify: interrupted by SIGHUP")
    check_report(command, signal.SIGHUP)


TWICE = """
import sys, time
from gguf_verify import cli
from gguf_verify.support import scratch

def slow(argv):
    scratch.folder("a")
    try:
        print("begun", flush=True)
        time.sleep(600)
    except KeyboardInterrupt:
        print("ending", flush=True)
        time.sleep(600)

cli._run = slow
sys.exit(cli.main([]))
"""


def test_ctrl_c_twice_ends_at_once(start: Callable[..., Command]) -> None:
    command = start("-c", TWICE)
    out = command.process.stdout
    assert out is not None
    assert out.readline() == "begun\n"
    assert len(list(command.temporary.iterdir())) == 1
    command.process.send_signal(signal.SIGTERM)
    assert out.readline() == "ending\n"

    def again() -> bool:
        command.process.send_signal(signal.SIGINT)
        return command.process.poll() is not None

    assert wait_until(again)
    assert command.ends()[0] == 3


def test_what_a_killed_run_left_goes_with_the_next(start: Callable[..., Command]) -> None:
    """What nohup ignores stays ignored in the next."""
    command = start(SCRIPT, Q4_0, "--host", "cpu", "--rungs", "tokens", "-n", "400", "--kernel", "q8_1_naive")
    assert wait_until(lambda: bool(command.runs("gguf_verify.llama")))
    command.ends(signal.SIGKILL)
    assert list(command.temporary.iterdir())
    later = start(SCRIPT, Q4_0, "--rungs", "bytes", ignoring=(signal.SIGHUP,))
    assert wait_until(lambda: bool(later.descendants()))
    code, shown, _ = later.ends(signal.SIGHUP)
    assert code == 0
    assert last_line(shown).startswith("VERIFIED")


@pytest.mark.parametrize(
    "arguments",
    [
        ("gguf_verify", "audit", Q4_0, "--no-readers"),
        ("gguf_verify", "identify", "q8_1", Q4_0, "--host", "cpu"),
        ("tools.measure", "mutation", "kill"),
    ],
)
def test_other_commands_end_as_cleanly(start: Callable[..., Command], arguments: tuple[object, ...]) -> None:
    command = start("-m", *arguments)
    assert wait_until(lambda: bool(command.descendants()) or command.process.poll() is not None)
    code, _, errors = command.ends(signal.SIGTERM)
    assert errors.splitlines()[-1] == "gguf-verify: interrupted by SIGTERM; no result"
    assert code == 3


HANDED_DOWN = """
import os, signal, sys
for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(number, signal.SIG_DFL)
for number in (signal.SIGCHLD, signal.SIGALRM, signal.SIGUSR1, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGINT, signal.SIGALRM])
"""
SHOWS = """
import signal
from gguf_verify.cli import main
main(["explain", "launch-past-limit"])
ignored = {number for number in signal.valid_signals() if signal.getsignal(number) == signal.SIG_IGN}
print(sorted(map(int, ignored - {signal.SIGPIPE, signal.SIGXFSZ})), signal.pthread_sigmask(0, ()))
"""


def after(handed_down: str, *command: str) -> subprocess.CompletedProcess[str]:
    """A process of Python whose caller left it these signals."""
    words = [sys.executable, "-c", f"{handed_down}\nos.execv(sys.argv[1], sys.argv[1:])", sys.executable, *command]
    return subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)


def test_a_caller_that_ignores_its_children_and_blocks_signals() -> None:
    """What it left to this process: children are waited for, and a signal ends it. That of nohup stays ignored."""
    done = after(HANDED_DOWN, "-c", SHOWS)
    assert done.stdout.splitlines()[-1] == f"[{int(signal.SIGHUP)}] set()", done.stderr


def test_a_signal_that_came_while_the_caller_had_it_blocked_is_handled() -> None:
    done = after(f"{HANDED_DOWN}\nos.kill(os.getpid(), signal.SIGTERM)", "-m", "gguf_verify", "explain", "mismatch")
    assert (done.returncode, done.stderr) == (3, "gguf-verify: interrupted by SIGTERM; no result\n")
