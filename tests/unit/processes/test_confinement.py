"""What a confined process can do, and that nothing of it is left, in each way to confine that this machine has."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gguf_verify.processes import confine, sandbox
from gguf_verify.processes.child import Forked, Spawned
from gguf_verify.processes.sandbox import Confinement, Limits
from gguf_verify.support.errors import EnvironmentFault, UsageError
from gguf_verify.support.paths import CHECKOUT
from tests.support.needs import fault_of
from tests.support.processes import alive, children, gone, wait_until

LACKS = {kind: fault_of(kind) for kind in ("bwrap", "landlock")}
KINDS = [
    pytest.param(kind, marks=pytest.mark.skipif(why is not None, reason=f"{kind}: {why}"))
    for kind, why in LACKS.items()
]  # fmt: skip
#: Of these tests: what is exceeded is reached soon.
LIMITS = Limits(memory=1 << 30, processes=40, file_size=1 << 20, folder_size=8 << 20, log=1 << 20, cpu=600)
PERMISSION = {"PermissionError", "OSError"}


class Attempts:
    """A process that tries expressions."""

    kind = ""

    def __init__(self, confined: Confinement | None, **environment: str) -> None:
        variables = {"PYTHONPATH": os.pathsep.join([str(CHECKOUT), str(CHECKOUT / "harness")]), **environment}
        self.child = Spawned("tests.support.attempts", environment=variables, confined=confined)

    def says(self, expression: str) -> str:
        """What came of it; "" where the process ended."""
        try:
            self.child.link.send_bytes(expression.encode())
            return self.child.link.recv_bytes().decode()
        except (EOFError, OSError):
            return ""


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Iterator[str]:
    with sandbox.sandboxed(request.param) as found:
        assert found.kind == request.param
        yield request.param


@pytest.fixture
def attempts(kind: str, tmp_path: Path) -> Iterator[Attempts]:
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "secret").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path)
    made = Attempts(Confinement(LIMITS, hidden=(hidden,)))
    made.kind = kind
    yield made
    made.child.close()


def test_files(attempts: Attempts, tmp_path: Path) -> None:
    """It reads, and writes into its own folder alone, which is gone with it."""
    (tmp_path / "there").write_text("x")
    assert attempts.says(f"Path({str(tmp_path / 'there')!r}).read_text()") == "'x'"
    for path in (tmp_path / "new", tmp_path / "there", CHECKOUT / "pyproject.toml", Path.home() / ".gguf-verify-test"):
        assert attempts.says(f"open({str(path)!r}, 'a')") in PERMISSION
    assert (tmp_path / "there").read_text() == "x"
    there = str(tmp_path / "there")
    for call in (f"os.chmod({there!r}, 0o777)", f"os.utime({there!r}, (0, 0))", f"os.chown({there!r}, 1, 1)",
                 f"os.setxattr({there!r}, 'user.x', b'')", f"os.link({there!r}, {there + '2'!r})",
                 f"os.symlink('a', {there + '2'!r})", f"os.truncate({there!r}, 0)"):  # fmt: skip
        assert attempts.says(call) in PERMISSION, call
    assert attempts.says(f"os.unlink({str(tmp_path / 'there')!r})") in PERMISSION
    assert attempts.says(f"os.rename({str(tmp_path / 'there')!r}, {str(tmp_path / 'b')!r})") in PERMISSION
    own = attempts.child.folder
    assert own is not None
    assert attempts.says("os.environ['HOME'], os.environ['TMPDIR']") == repr((str(own), str(own)))
    assert attempts.says("(Path(os.environ['HOME']) / 'a').write_text('b')") == "1"
    attempts.child.close()
    assert not own.exists()


def test_what_is_hidden(attempts: Attempts, tmp_path: Path) -> None:
    """It can be neither read nor reached by another name."""
    secret = tmp_path / "hidden" / "secret"
    for path in (
        secret,
        tmp_path / "link/hidden/secret",
        f"/proc/self/root{secret}",
        tmp_path / "hidden/../hidden/secret",
    ):
        assert attempts.says(f"open({str(path)!r}).read()") in PERMISSION | {"FileNotFoundError"}
    assert secret.read_text() == "x"


def test_a_folder_that_is_kept(kind: str, tmp_path: Path) -> None:
    """What a compiler makes is found there."""
    made = Attempts(Confinement(LIMITS, folder=tmp_path))
    assert made.says("(Path(os.environ['TMPDIR']) / 'made').write_text('x')") == "1"
    made.child.close()
    assert (tmp_path / "made").read_text() == "x"


def test_network(attempts: Attempts, tmp_path: Path) -> None:
    """No address of a network, and no socket of another process."""
    with socket.create_server(("127.0.0.1", 0)) as there, socket.socket(socket.AF_UNIX) as named:
        named.bind(str(tmp_path / "s"))
        named.listen()
        abstract = socket.socket(socket.AF_UNIX)
        with abstract:
            abstract.bind(f"\0gguf-verify-{os.getpid()}")
            abstract.listen()
            for family, address in (
                (2, there.getsockname()), (1, str(tmp_path / "s")), (1, f"\0gguf-verify-{os.getpid()}"),
            ):  # fmt: skip
                assert attempts.says(f"connects({family}, {address!r})") in PERMISSION, (family, address)
                assert connected(family, address)  # it is there for others
    assert attempts.says("socket.socketpair() and 1") == "1"


def connected(family: int, address: Any) -> bool:
    with socket.socket(family) as link:
        link.connect(address)
    return True


def test_other_processes(attempts: Attempts) -> None:
    """No signal, no memory, no limit of the verifier or of what keeps the process."""
    assert attempts.says("resource.prlimit(0, resource.RLIMIT_CORE) and 1") == "1"
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as stranger:
        for call in (
            f"resource.prlimit({stranger.pid}, resource.RLIMIT_CORE, (0, 0))",
            f"os.setpriority(os.PRIO_PROCESS, {stranger.pid}, 19)", "os.setpriority(os.PRIO_USER, 0, 19)",
        ):  # fmt: skip
            if "USER" not in call or attempts.kind == "landlock":
                assert attempts.says(call) in PERMISSION | {"ProcessLookupError"}, call
        stranger.communicate(b"\n")
    for pid in (os.getpid(), attempts.child.pid):
        for call in (
            f"os.kill({pid}, 0)", f"os.killpg({pid}, 0)", f"open('/proc/{pid}/mem', 'r+b')",
            f"open('/proc/{pid}/fd/2', 'w')", f"resource.prlimit({pid}, resource.RLIMIT_CPU, (0, 0))",
            f"os.sched_setaffinity({pid}, {{0}})", f"os.setpriority(os.PRIO_PROCESS, {pid}, 19)",
        ):  # fmt: skip
            assert attempts.says(call) in PERMISSION | {"ProcessLookupError", "FileNotFoundError"}, call
        libc = "ctypes.CDLL(None, use_errno=True)"
        assert attempts.says(f"{libc}.ptrace(16, {pid}, 0, 0)") == "-1"
        assert attempts.says(f"{libc}.syscall(234, {pid}, {pid}, 0)") == "-1"
        assert attempts.says(f"{libc}.syscall(434, {pid}, 0)") == "-1"
    assert attempts.says("os.kill(os.getpid(), 0)") == "None"


def test_privileges(attempts: Attempts) -> None:
    """No namespace, no mount, no limit that is raised; of root's capabilities one at most."""
    libc = "ctypes.CDLL(None, use_errno=True)"
    for call in ("unshare(0x10000000)", "mount(b'none', b'/tmp', b'tmpfs', 0, 0)", "syscall(425, 1, 0)",
                 "syscall(321, 0, 0, 0)", "chroot(b'/')", "ioctl(0, 0x5412, b'x')"):  # fmt: skip
        assert attempts.says(f"{libc}.{call}") == "-1", call
    for path in ("/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/proc/self/../1/oom_score_adj"):
        assert attempts.says(f"open({path!r}, 'w')") in PERMISSION | {"FileNotFoundError"}, path
    most = "resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))"
    assert attempts.says(most) == "ValueError"
    found = eval(attempts.says("dict(line.split(':') for line in open('/proc/self/status') if ':' in line)"))
    assert int(found["CapEff"], 16) in (0, 4)
    assert found["NoNewPrivs"].strip() == "1"


def test_what_it_is_given(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable that may be a secret, and no descriptor but its socket."""
    monkeypatch.setenv("SOME_TOKEN", "secret")
    monkeypatch.setenv("LD_PRELOAD", "")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    made = Attempts(Confinement(LIMITS))
    assert made.says("[os.environ.get(n) for n in ('SOME_TOKEN', 'LD_PRELOAD', 'OMP_NUM_THREADS')]") == (
        "[None, None, '1']"
    )
    handles = "sorted(set(map(int, os.listdir('/proc/self/fd'))) - {0, 1, 2, int(sys.argv[1])})"
    # the last is of the listing itself
    assert len(eval(made.says(handles))) == 1
    made.child.close()


@pytest.mark.parametrize("sessions", [False, True])
def test_nothing_is_left(attempts: Attempts, sessions: bool) -> None:
    """However what it started hides: in sessions of its own, deaf to signals."""
    attempts.says(f"forks(5, 600, {sessions})")
    before = below(attempts.child.pid)
    assert len(before) >= 6
    attempts.child.close()
    assert gone(before)


def test_nothing_is_left_of_one_that_ends(attempts: Attempts) -> None:
    """What an ended process had started is ended, too."""
    attempts.says("forks(5, 600)")
    before = below(attempts.child.pid)
    assert attempts.says("os._exit(3)") == ""
    assert attempts.child.wait(60) == 3
    assert gone(before)


def test_a_signal_is_told(attempts: Attempts) -> None:
    assert attempts.says("os.abort()") == ""
    assert attempts.child.wait(60) == -6


def below(pid: int) -> list[int]:
    found = left = [pid]
    while left:
        left = [child for parent in left for child in children(parent)]
        found = found + left
    return found


@pytest.mark.parametrize(
    ("exceeds", "reason"),
    [
        ("prints(1 << 22)", "printed more than 1 MiB"),
        ("forks(60, 600)", "started more than 40 processes and threads"),
        ("[forks(1, 600) for _ in range(60)]", "started more than 40 processes and threads"),
    ],
)
def test_limits_of_all(attempts: Attempts, exceeds: str, reason: str) -> None:
    """What exceeds one is killed with all that it started, and the reason is known."""
    attempts.says(exceeds)
    assert wait_until(lambda: attempts.child.wait(0) is not None)
    assert attempts.child.stopped_for == reason
    assert attempts.says("1") == ""


def test_memory_of_all(kind: str) -> None:
    """Each process within the limit, together above it."""
    made = Attempts(Confinement(replace(LIMITS, memory=256 << 20)))
    try:
        line = "[os.fork() or holds(100 << 20) for _ in range(4)]"
        made.says(line)
        assert wait_until(lambda: made.child.wait(0) is not None)
        assert made.child.stopped_for == "took more than 256 MiB of memory"
    finally:
        made.child.close()


def test_limits_of_each(attempts: Attempts) -> None:
    """Memory, a file, and the folder."""
    assert attempts.says("len(bytearray(2 << 30))") == "MemoryError"
    folder = "Path(os.environ['HOME'])"
    assert attempts.says(f"signal.signal(signal.SIGXFSZ, signal.SIG_IGN) and fills({folder}, 2 << 20, 1)") == "OSError"
    said = attempts.says(f"fills({folder}, 1 << 20, 40)")
    if said != "OSError":  # where a folder is not of a limited size, it is looked at
        assert wait_until(lambda: attempts.child.wait(0) is not None)
        assert attempts.child.stopped_for == "wrote more than 8 MiB into its folder"


def test_the_last_lines(attempts: Attempts) -> None:
    """Of what it prints, the end is known."""
    attempts.says("[print(i, flush=True) for i in range(30_000)] and 0")
    assert wait_until(lambda: attempts.child.last_lines(100)[-1:] == ["29999"])
    before = attempts.child.printed
    assert attempts.child.last_lines(100, before) == []


def test_a_fork() -> None:
    """A function of this process is confined without bubblewrap, and holds no file of ours."""
    if LACKS["landlock"] is not None:
        pytest.skip(LACKS["landlock"])
    with open(os.devnull) as ours, socket.create_server(("127.0.0.1", 0)) as there:
        port, handle = there.getsockname()[1], ours.fileno()

        def run(link: Connection) -> None:
            said = []
            for attempt in (
                lambda: (CHECKOUT / "x").write_text(""), lambda: socket.create_connection(("127.0.0.1", port)),
                lambda: os.kill(os.getppid(), 0), lambda: os.readlink(f"/proc/self/fd/{handle}"),
            ):  # fmt: skip
                try:
                    said.append(str(attempt()))
                except OSError as error:
                    said.append(type(error).__name__)
            link.send_bytes(" ".join(said).encode())
            if not os.fork():
                os.setsid()
                __import__("time").sleep(600)

        ours_alone = np.ones(LIMITS.memory + (1 << 20), np.uint8)  # what a fork inherits does not count as its own
        made = Forked(run, False, 60.0, Confinement(LIMITS))
        try:
            assert made.link.recv_bytes().decode() == "PermissionError PermissionError PermissionError /dev/null"
            left = below(made.pid)
            assert made.wait(60) == 0
            assert gone(left[1:])
            assert ours_alone[-1] == 1
        finally:
            made.close()


def test_a_fork_that_takes_too_much() -> None:
    if LACKS["landlock"] is not None:
        pytest.skip(LACKS["landlock"])

    def run(link: Connection) -> None:
        try:
            np.ones(LIMITS.memory + (64 << 20), np.uint8)
        except MemoryError:
            link.send_bytes(b"refused")
        link.recv_bytes()

    made = Forked(run, False, 60.0, Confinement(LIMITS))
    try:
        assert made.link.recv_bytes() == b"refused"
    finally:
        made.close()


def test_turned_off(tmp_path: Path) -> None:
    """Nothing is confined then, but nothing is left either."""
    with sandbox.sandboxed("off"):
        made = Attempts(Confinement(LIMITS))
        assert made.says(f"Path({str(tmp_path / 'a')!r}).write_text('x')") == "1"
        made.says("forks(3, 600)")
        before = below(made.child.pid)
        assert len(before) >= 4
        made.child.close()
        assert gone(before)


def test_modes() -> None:
    """What is asked for and is not there is an error, and nothing else takes its place."""
    with pytest.raises(UsageError, match="no sandbox is called 'jail'"), sandbox.sandboxed("jail"):
        pass
    for mode, why in LACKS.items():
        if why is not None:
            with pytest.raises(EnvironmentFault, match=f"--sandbox {mode}"), sandbox.sandboxed(mode):
                pass
    with sandbox.sandboxed("off") as found:
        assert found.words == "none (turned off); not confined: may do all that you may do"
        assert sandbox.by_landlock() == found
    assert sandbox.current().kind == ("bwrap" if LACKS["bwrap"] is None else "landlock")


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of systems that have less."""
    for abi, seccomp, missing in (
        (7, True, {"see the names of other processes"}),
        (3, False, {"see the names of other processes", "signal your processes", "use the network",
                    "change modes and times of your files"}),
        (0, False, {"see the names of other processes", "signal your processes", "use the network",
                    "change modes and times of your files", "write every file that you may write",
                    "read and change the memory of your processes"}),
    ):  # fmt: skip
        monkeypatch.setattr(confine, "landlock_abi", lambda abi=abi: abi)
        monkeypatch.setattr(confine, "has_seccomp", lambda seccomp=seccomp: seccomp)
        found = sandbox._landlock("it is not installed")
        assert set(found.missing) == missing
        assert found.kind == ("off" if not abi and not seccomp else "landlock")
        assert "without bubblewrap (it is not installed)" in found.by


def test_dead_verifier(kind: str) -> None:
    """When the process that started one is killed, all of it ends."""
    program = (
        "import sys, time\n"
        "from gguf_verify.processes import sandbox\n"
        "from tests.unit.processes.test_confinement import Attempts, Confinement, LIMITS, below\n"
        f"with sandbox.sandboxed({kind!r}):\n"
        "    made = Attempts(Confinement(LIMITS))\n"
        "    made.says('forks(3, 600)')\n"
        "    print(*below(made.child.pid), made.child.folder, flush=True)\n"
        "    time.sleep(600)\n"
    )
    paths = os.pathsep.join([str(CHECKOUT), str(CHECKOUT / "harness")])
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": paths}
    ) as verifier:
        *pids, folder = verifier.stdout.readline().split()
        assert all(alive(int(pid)) for pid in pids)
        verifier.kill()
    assert gone(map(int, pids))
    Path(folder).rmdir()


def test_with_a_gpu(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What CUDA needs is there, also for processes that it starts; the system's settings stay as they are."""
    monkeypatch.setattr(sandbox, "_DEVICES", ("/dev/full",))
    made = Attempts(Confinement(LIMITS, devices=True))
    try:
        assert made.says("open('/dev/full', 'w') and 1") == "1"
        assert made.says("open('/proc/self/comm', 'w').write('x')") == "1"
        line = 'subprocess.run([sys.executable, \'-c\', \'open("/proc/self/comm", "w").write("x")\']).returncode'
        assert made.says(line) == "0"
        for path in ("/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", f"/proc/{os.getpid()}/mem"):
            assert made.says(f"open({path!r}, 'w')") in PERMISSION | {"FileNotFoundError"}, path
        assert made.says("socket.socket()") in PERMISSION
        assert made.says("connects(1, '/nothing')") in PERMISSION
    finally:
        made.child.close()
