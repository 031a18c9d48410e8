"""The abilities of a confined process, and that nothing of it is left, in each way to confine that this machine has."""

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

from gguf_verify.processes import boundary, guard, sandbox, syscalls
from gguf_verify.processes.child import Command, Forked, Spawned
from gguf_verify.processes.sandbox import Confinement, Limits
from gguf_verify.support.errors import EnvironmentFault, UsageError
from gguf_verify.support.paths import CHECKOUT
from tests.support.needs import fault_of, need
from tests.support.processes import alive, descendants, gone, wait_until

LACKS = {kind: fault_of(kind) for kind in ("bubblewrap", "landlock")}
KINDS = [
    pytest.param(kind, marks=pytest.mark.skipif(why is not None, reason=f"{kind}: {why}"))
    for kind, why in LACKS.items()
]  # fmt: skip
#: Small limits, which are soon exceeded.
LIMITS = Limits(memory=1 << 30, processes=40, file_size=1 << 20, folder_size=8 << 20, log=1 << 20, cpu=600)
#: Results of denied calls, and of things that are not there.
DENIED = {"PermissionError", "OSError", "FileNotFoundError", "ProcessLookupError"}


class Attempts:
    """A process that tries expressions."""

    kind = ""

    def __init__(self, confined: Confinement | None, **environment: str) -> None:
        variables = {"PYTHONPATH": os.pathsep.join([str(CHECKOUT), str(CHECKOUT / "harness")]), **environment}
        self.child = Spawned("tests.support.attempts", environment=variables, confined=confined)

    def says(self, expression: str) -> str:
        """The result; "" where the process ended."""
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
    shown = tmp_path / "shown"
    shown.mkdir()
    (shown / "there").write_text("x")
    made = Attempts(Confinement(LIMITS, shown=(shown,)))
    made.kind = kind
    yield made
    made.child.close()


def test_files(attempts: Attempts, tmp_path: Path) -> None:
    """It reads the files that it is shown, and writes only into its own folder, which is removed with it."""
    there = tmp_path / "shown" / "there"
    assert attempts.says(f"Path({str(there)!r}).read_text()") == "'x'"
    for path in (there, there.with_name("new"), CHECKOUT / "pyproject.toml", Path.home() / ".gguf-verify-test"):
        assert attempts.says(f"open({str(path)!r}, 'a')") in DENIED
    attempts.says(f"open({str(tmp_path / 'new')!r}, 'a')")
    assert not (tmp_path / "new").exists()  # it may have a /tmp of its own
    for call in ("os.chmod(there, 0o777)", "os.utime(there, (0, 0))", "os.chown(there, 1, 1)",
                 "os.setxattr(there, 'user.x', b'')", "os.link(there, there + '2')", "os.symlink('a', there + '2')",
                 "os.truncate(there, 0)", "os.unlink(there)", "os.rename(there, there + '2')"):  # fmt: skip
        assert attempts.says(call.replace("there", repr(str(there)))) in DENIED, call
    assert [path.name for path in (tmp_path / "shown").iterdir()] == ["there"]
    assert there.read_text() == "x"
    own = attempts.child.folder
    assert own is not None
    assert attempts.says("os.environ['HOME'], os.environ['TMPDIR']") == repr((str(own), str(own)))
    assert attempts.says("(Path(os.environ['HOME']) / 'a').write_text('b')") == "1"
    attempts.child.close()
    assert not own.exists()


def test_an_empty_root(tmp_path: Path) -> None:
    """Inside the boundary nothing of the user's is there: files, sockets, FIFOs, terminals, processes."""
    need("bubblewrap")
    secret, fifo, home = tmp_path / "secret", tmp_path / "fifo", Path.home()
    secret.write_text("x")
    os.mkfifo(fifo)
    (tmp_path / "shown").mkdir()
    (tmp_path / "shown" / "link").symlink_to(secret)
    with sandbox.sandboxed("bubblewrap"):
        made = Attempts(Confinement(LIMITS, shown=(tmp_path / "shown",)))
    try:
        for path in (secret, fifo, tmp_path / "shown/link", f"/proc/self/root{secret}", tmp_path / "shown/../secret",
                     "/etc/passwd", "/etc/shadow", "/var/log", "/run", "/dev/tty0", "/dev/mem",
                     f"/proc/{os.getpid()}/cmdline", f"/proc/{made.child.pid}/cmdline"):  # fmt: skip
            assert made.says(f"os.open({str(path)!r}, os.O_RDONLY | os.O_NONBLOCK)") == "FileNotFoundError", path
        bound = [path.relative_to(home) for path in (*boundary.python(), CHECKOUT) if path.is_relative_to(home)]
        said = made.says(f"os.listdir({str(home)!r})")
        assert said == "FileNotFoundError" or set(eval(said)) <= {path.parts[0] for path in bound}
        assert set(eval(made.says("os.listdir('/')"))) <= {
            "bin", "dev", "etc", "gnu", "lib", "lib32", "lib64", "libx32", "nix", "opt", "proc", "sbin", "sys", "tmp",
            "usr",
            *(path.parts[1] for path in (*boundary.python(), *boundary.project(), CHECKOUT, tmp_path)),
        }  # fmt: skip
        assert secret.read_text() == "x"
    finally:
        made.child.close()


def test_copies(tmp_path: Path) -> None:
    """Where a copy lies, the process finds it in place of the file."""
    need("bubblewrap")
    place, copy = tmp_path / "kernel", tmp_path / "copy"
    place.write_text("now")
    copy.write_text("then")
    with sandbox.sandboxed("bubblewrap"):
        made = Attempts(Confinement(LIMITS, copies={place: copy}))
    assert made.says(f"Path({str(place)!r}).read_text()") == "'then'"
    made.child.close()


def test_folders_that_are_named_by_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python, and the folders that a variable lists, are found by names that lead through missing folders."""
    need("bubblewrap")
    (tmp_path / "libraries").mkdir()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setenv("LD_LIBRARY_PATH", "../libraries")
    monkeypatch.setattr(sys, "executable", str(tmp_path / os.path.relpath(sys.executable, tmp_path)))
    with sandbox.sandboxed("bubblewrap"):
        made = Attempts(Confinement(LIMITS))
    try:
        assert made.says("os.listdir(os.environ['LD_LIBRARY_PATH'])") == "[]"
    finally:
        made.child.close()


def test_a_folder_that_is_kept(kind: str, tmp_path: Path) -> None:
    """The output of a compiler is found there."""
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
                assert attempts.says(f"connects({family}, {address!r})") in DENIED, (family, address)
                assert connected(family, address)  # it is there for others
    assert attempts.says("socket.socketpair() and 1") == "1"


def connected(family: int, address: Any) -> bool:
    with socket.socket(family) as link:
        link.connect(address)
    return True


def test_other_processes(attempts: Attempts) -> None:
    """It cannot change the verifier's memory, nor its keeper; inside the boundary they are not there."""
    for pid in (os.getpid(), attempts.child.pid):
        calls = [f"open('/proc/{pid}/mem', 'r+b')", f"open('/proc/{pid}/fd/2', 'w')",
                 f"open('/proc/{pid}/oom_score_adj', 'w')"]  # fmt: skip
        if attempts.kind == "bubblewrap" or guard.landlock_abi() >= 6:
            calls += [f"os.kill({pid}, 0)", f"os.killpg({pid}, 0)"]
        if attempts.kind == "bubblewrap":
            calls += [f"resource.prlimit({pid}, resource.RLIMIT_CPU, (0, 0))", f"os.sched_setaffinity({pid}, {{0}})",
                      f"os.setpriority(os.PRIO_PROCESS, {pid}, 19)"]  # fmt: skip
        for call in calls:
            assert attempts.says(call) in DENIED, call
    assert attempts.says("os.kill(os.getpid(), 0)") == "None"
    assert attempts.says("resource.prlimit(0, resource.RLIMIT_CORE) and 1") == "1"


@pytest.mark.parametrize(
    ("number", "what"),
    [
        (101, "ptrace"), (310, "process_vm_readv"), (434, "pidfd_open"), (29, "shmget"), (30, "shmat"), (31, "shmctl"),
        (71, "msgctl"), (66, "semctl"), (240, "mq_open"), (42, "connect"), (425, "io_uring_setup"), (321, "bpf"),
        (298, "perf_event_open"), (323, "userfaultfd"), (250, "keyctl"), (304, "open_by_handle_at"), (272, "unshare"),
        (308, "setns"), (165, "mount"), (428, "open_tree"), (161, "chroot"), (169, "reboot"), (227, "clock_settime"),
        (440, "process_madvise"), (1000, "one that does not exist yet"),
    ],
)  # fmt: skip
def test_system_calls(attempts: Attempts, number: int, what: str) -> None:
    """Calls that are not in the list fail with EPERM, whatever their arguments; no list has these."""
    if os.uname().machine != "x86_64":
        pytest.skip("these are the numbers of x86-64")
    libc = "ctypes.CDLL(None, use_errno=True)"
    assert attempts.says(f"[{libc}.syscall({number}, 0, 0, 0, 0), ctypes.get_errno()]") == "[-1, 1]", what


@pytest.mark.parametrize(
    ("allowed", "denied"),
    [
        ("fcntl.fcntl(shown, fcntl.F_GETFL) and 1", "fcntl.fcntl(shown, fcntl.F_SETLEASE, fcntl.F_RDLCK)"),
        ("fcntl.fcntl(shown, fcntl.F_DUPFD_CLOEXEC, 30) and 1", "fcntl.fcntl(shown, fcntl.F_NOTIFY, 2)"),
        ("fcntl.fcntl(os.pipe()[0], fcntl.F_GETPIPE_SZ) and 1", "fcntl.fcntl(os.pipe()[0], fcntl.F_SETOWN, 1)"),
        ("len(socket.socketpair()) - 1", "socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)"),
        ("socket.socketpair(type=socket.SOCK_SEQPACKET) and 1", "socket.socketpair(type=socket.SOCK_RAW)"),
        ("bool(resource.prlimit(0, resource.RLIMIT_CORE)) + 0", "resource.prlimit(os.getppid(), resource.RLIMIT_CORE)"),
    ],
)  # fmt: skip
def test_calls_that_reach_other_processes(attempts: Attempts, tmp_path: Path, allowed: str, denied: str) -> None:
    """No lease that makes others wait, no owner of signals, no socket that sends to any address, no other's limits."""
    shown = f"os.open({str(tmp_path / 'shown')!r}, os.O_RDONLY)"
    names = "[fcntl := __import__('fcntl'), {}][1]"
    assert attempts.says(names.format(allowed.replace("shown", shown))) == "1"
    assert attempts.says(names.format(denied.replace("shown", shown))) == "PermissionError"


def test_privileges(attempts: Attempts) -> None:
    """No namespace, no mount, no limit that is raised; of root's capabilities one at most."""
    libc = "ctypes.CDLL(None, use_errno=True)"
    assert attempts.says(f"{libc}.syscall(56, 0x10000000, 0, 0, 0, 0)") == "-1"  # clone into a namespace of users
    for path in ("/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/proc/self/../1/oom_score_adj"):
        assert attempts.says(f"open({path!r}, 'w')") in DENIED, path
    most = "resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))"
    assert attempts.says(most) == "ValueError"
    found = eval(attempts.says("dict(line.split(':') for line in open('/proc/self/status') if ':' in line)"))
    assert int(found["CapEff"], 16) in (0, 4)
    assert found["NoNewPrivs"].strip() == "1"


def test_environment_and_descriptors(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
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
    """However its children hide: in sessions of their own, deaf to signals."""
    attempts.says(f"forks(5, 600, {sessions})")
    before = below(attempts.child.pid)
    assert len(before) >= 6
    attempts.child.close()
    assert gone(before)


def test_nothing_is_left_of_one_that_ends(attempts: Attempts) -> None:
    """The children of an ended process are ended, too."""
    attempts.says("forks(5, 600)")
    before = below(attempts.child.pid)
    assert attempts.says("os._exit(3)") == ""
    assert attempts.child.wait(60) == 3
    assert gone(before)


def test_a_signal_is_reported(attempts: Attempts) -> None:
    assert attempts.says("os.abort()") == ""
    assert attempts.child.wait(60) == -6


def below(pid: int) -> list[int]:
    return [pid, *descendants(pid)]


@pytest.mark.parametrize(
    ("exceeds", "reason"),
    [
        ("prints(1 << 22)", "printed more than 1 MiB"),
        ("forks(60, 600)", "started more than 40 processes and threads"),
        ("[forks(1, 600) for _ in range(60)]", "started more than 40 processes and threads"),
    ],
)
def test_limits_of_all(attempts: Attempts, exceeds: str, reason: str) -> None:
    """A process that exceeds one is killed with all its children, and the reason is known."""
    attempts.says(exceeds)
    assert wait_until(lambda: attempts.child.wait(0) is not None)
    assert attempts.child.stopped_for == reason
    assert attempts.says("1") == ""


def stopped_for(line: str, mebibytes: int) -> str | None:
    """Why a process with this limit of memory was stopped that runs a line."""
    made = Attempts(Confinement(replace(LIMITS, memory=mebibytes << 20)))
    try:
        made.says(line)
        assert wait_until(lambda: made.child.wait(0) is not None)
        return made.child.stopped_for
    finally:
        made.child.close()


MAPPED = "(mmap := __import__('mmap')).mmap(-1, 1 << 36, 0x4000 | mmap.MAP_PRIVATE, mmap.PROT_READ)"


@pytest.mark.parametrize(
    ("mebibytes", "line"),
    [
        pytest.param(256, "[os.fork() or holds(100 << 20) for _ in range(4)]", id="of all together, each below it"),
        pytest.param(
            32, f"[(m := {MAPPED}), m.madvise(15), [m[i] for i in range(0, 1 << 36, 1 << 21)], time.sleep(60)]",
            id="of page tables, though no page holds anything",
        ),
    ],
)  # fmt: skip
def test_memory_counts(kind: str, mebibytes: int, line: str) -> None:
    """With and without a control group."""
    assert stopped_for(line, mebibytes) == f"took more than {mebibytes} MiB of memory"


@pytest.mark.parametrize("way", ["in_files()", "in_pipes()", "in_sockets()"])
def test_memory_that_is_no_process_s_own(way: str) -> None:
    """It counts where there are control groups."""
    need("bubblewrap")
    need("memory groups")
    assert stopped_for(way, 32) == "took more than 32 MiB of memory"


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
    """The end of its output is known."""
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

        limits = replace(LIMITS, memory=1 << 28)
        ours_alone = np.ones(limits.memory + (1 << 20), np.uint8)  # inherited memory does not count as a fork's own
        made = Forked(run, False, 60.0, Confinement(limits))
        try:
            assert made.link.recv_bytes().decode() == "PermissionError PermissionError PermissionError /dev/null"
            left = below(made.pid)
            assert made.wait(60) == 0
            assert gone(left[1:])
            assert ours_alone[-1] == 1
        finally:
            made.close()


def test_a_fork_that_takes_too_much() -> None:
    """It is refused the memory, or killed for it where it had freed some of what it began with, as OpenBLAS does."""
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
    except EOFError:
        assert made.stopped_for == "took more than 1 GiB of memory"
    finally:
        made.close()


def test_turned_off(tmp_path: Path) -> None:
    """Nothing is confined then, but nothing is left either."""
    with sandbox.sandboxed("none"):
        made = Attempts(Confinement(LIMITS))
        assert made.says(f"Path({str(tmp_path / 'a')!r}).write_text('x')") == "1"
        made.says("forks(3, 600)")
        before = below(made.child.pid)
        assert len(before) >= 4
        made.child.close()
        assert gone(before)


def test_modes() -> None:
    """A requested sandbox that is not there is an error, and nothing else takes its place."""
    with pytest.raises(UsageError, match="unknown sandbox 'jail'"), sandbox.sandboxed("jail"):
        pass
    for mode, why in LACKS.items():
        if why is not None:
            with pytest.raises(EnvironmentFault, match=f"--sandbox {mode}"), sandbox.sandboxed(mode):
                pass
    with sandbox.sandboxed("none") as found:
        assert found.words == "boundary: none (turned off); not confined: may do all that you may do"
        assert sandbox.of_fork() == found
    if LACKS["bubblewrap"] is None:
        assert sandbox.current().words.startswith(f"boundary: bubblewrap {boundary.version()}")
        assert sandbox.of_fork().words.startswith("accident guard: Landlock")


def test_a_boundary_without_landlock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing then keeps llama.cpp's process from writing to a file by its descriptor."""
    need("bubblewrap")
    monkeypatch.setattr(guard, "landlock_abi", lambda: 0)
    sandbox.forget()
    with sandbox.sandboxed("bubblewrap") as found:
        assert found.missing == ("change the model's file",)
        assert found.words.endswith("not confined: may change the model's file")
    monkeypatch.undo()
    sandbox.forget()


def test_missing_protection_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of systems that have less."""
    monkeypatch.setattr(boundary, "fault", lambda: "bubblewrap is not installed")
    hides = {"read your files", "see your processes"}
    for abi, filtered, missing in (
        (7, True, set()),
        (3, True, {"signal your processes"}),
        (3, False, {"signal your processes", "use the network", "change modes of your files"}),
        (0, False, {"signal your processes", "use the network", "change modes of your files", "write your files",
                    "truncate your files"}),
    ):  # fmt: skip
        monkeypatch.setattr(guard, "landlock_abi", lambda abi=abi: abi)
        monkeypatch.setattr(syscalls, "filter_fault", lambda filtered=filtered: None if filtered else "no seccomp")
        sandbox.forget()
        with sandbox.sandboxed("auto") as found:
            assert set(found.missing) == hides | missing
            assert found.kind == ("landlock" if abi or filtered else "none")
            assert "(no boundary: bubblewrap is not installed)" in found.by
    monkeypatch.undo()
    sandbox.forget()


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
    """The devices of CUDA are there; the system's settings stay as they are."""
    monkeypatch.setattr(boundary, "_DEVICES", ("/dev/full",))
    made = Attempts(Confinement(LIMITS, devices=True))
    try:
        assert made.says("open('/dev/full', 'w') and 1") == "1"
        assert made.says("open('/proc/self/comm', 'w').write('x')") == "1"
        for path in ("/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", f"/proc/{os.getpid()}/mem"):
            assert made.says(f"open({path!r}, 'w')") in DENIED, path
        assert made.says("socket.socket()") in DENIED
        assert made.says("connects(1, '/nothing')") in DENIED
    finally:
        made.child.close()


def test_echoed_output_gives_no_commands(capfd: pytest.CaptureFixture[str]) -> None:
    """To a program that keeps standard error as its log, such as GitHub's."""
    made = Command([sys.executable, "-c", r"print('one\n::notice::VERIFIED\n  ::stop-commands::x')"], verbose=True)
    assert made.wait(60) == 0
    made.close()
    assert capfd.readouterr().err == "one\n\\x3a:notice::VERIFIED\n  \\x3a:stop-commands::x\n"
