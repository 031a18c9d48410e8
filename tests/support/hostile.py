"""Runs of the command line on kernels that attack it, and what is seen of them from outside.

A `Ground` is what all runs share: a copy of the project, a warm cache, the report of an honest run. An `Arena` is one
run's: a home, a cache, a folder of temporary files and one to work in, listeners, a bystander. What a run may change
there is its report and new entries of the cache; all else is a breach, and so is a process that is left.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gguf_verify.hosts.compiler import compiler

from . import hostile_kernels
from .hostile_ground import Ground, audit_command, command
from .hostile_kernels import HERE, Attack, sources
from .hostile_witnesses import Bystander, Listeners
from .tools import ROOT

WARDEN, STAND_IN = (ROOT / "tests" / "support" / f"{name}.py" for name in ("warden", "stand_in"))
#: What a run may hold in logs and in other files without a name.
MOST_LOG = 64 << 20
#: What a run may hold in memory before it is ended: far more than an honest one takes.
MOST_MEMORY = 3 << 30
MOST_PROCESSES = 600
#: Variables with secrets, which no process that is not ours should be given.
SECRETS = {
    "GITHUB_TOKEN": "ghs_secret", "AWS_SECRET_ACCESS_KEY": "secret", "HF_TOKEN": "hf_secret", "PGPASSWORD": "secret",
    "SSH_AUTH_SOCK": "/run/secret",
}  # fmt: skip
_EXIT_USAGE = 2
#: No file of a test is larger.
_MOST_FILE = 32 << 20
#: The options that confine what is not ours: none, since it is confined by default.
SANDBOX: tuple[str, ...] = ()
#: The machine that tests run on is small.
LESS_MEMORY = ("--kernel-memory", "2")
_INTERNAL = re.compile(r"Traceback|[Ii]nternal error")

Snapshot = dict[str, tuple[int, str]]


@dataclass(frozen=True)
class Watched:
    """What the warden saw of a run.

    Args:
        exit_code: the command's; minus the number of the signal that ended it; None where it had to be ended.
        over: the limit that it exceeded.
        stopped: processes that were stopped.
        left: processes that it left.
        terminal: what came to its terminal.
        most_processes, most_memory, most_unnamed: the most at once; bytes of memory, and of files without a name.
    """

    exit_code: int | None
    over: str
    stopped: list[str]
    left: list[str]
    terminal: str
    most_processes: int
    most_memory: int
    most_unnamed: int


@dataclass(frozen=True)
class Outcome:
    """What became of a run.

    Args:
        breaches: what the run did that it must not, a line each; empty for one that holds.
        report: what it wrote; None where it wrote nothing that can be read.
    """

    watched: Watched
    breaches: list[str]
    report: dict[str, Any] | None
    stdout: str
    stderr: str

    @property
    def told(self) -> str:
        """All that was seen, as the attacks' patterns expect it."""
        return "\n".join(self.breaches)

    def described(self) -> str:
        """For a test that fails."""
        return "\n".join(
            [*self.breaches, f"exit code {self.watched.exit_code}", self.stdout[-1500:], self.stderr[-1500:]]
        )


#: What a process that is taken over does first.
_POSSESSION = """
def possessed() -> None:
    import sys
    sys.path.insert(0, {work!r})
    from hostile_kernels._attack import Attacker
    Attacker({work!r} + "/kernel.py").make("worker")


if __name__ == "__main__":
    possessed()
"""

KERNEL = """\
import os
import sys

here = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = here, os.path.dirname(here)
from hostile_kernels._attack import Attacker, declared

if __name__ == "__main__":
    Attacker(__file__).make("call")
else:
    gemm = declared(__file__)
"""


class Arena:
    """One run's folders, listeners and bystander.

    Args:
        folder: where it is made; it must not exist.
        possessed: a module of the package that is taken over, as llama.cpp's process might be by a file: it makes the
            attacks whose moment is "worker" before it does its work.
    """

    def __init__(self, ground: Ground, folder: Path, possessed: str = "") -> None:
        self.ground, self.folder, self.token = ground, folder, secrets.token_hex(6)
        self.project = folder / "project"
        shutil.copytree(ground.project, self.project, symlinks=True)
        for name in ("home/victims", "home/.ssh", "tmp", "work", "outside"):
            (folder / name).mkdir(parents=True)
        self.home, self.cache, self.tmp, self.work = (folder / n for n in ("home", "cache", "tmp", "work"))
        shutil.copytree(ground.cache, self.cache)
        self.model, self.report = self.work / "model.gguf", self.work / "report.json"
        shutil.copyfile(ground.model, self.model)
        (self.tmp / "somebody.txt").write_text("of another program\n")
        (self.home / ".ssh" / "authorized_keys").write_text("of the user\n")
        shutil.copytree(
            HERE, self.work / "hostile_kernels", ignore=shutil.ignore_patterns("__pycache__", "*.c*", "*.hpp")
        )
        (self.work / "kernel.py").write_text(KERNEL)
        if possessed:
            module = self.project / "harness" / "gguf_verify" / possessed
            head, main, tail = module.read_text().rpartition('if __name__ == "__main__":\n')
            assert main
            module.write_text(head + _POSSESSION.format(work=str(self.work)).lstrip("\n") + tail)
        self._bystander, self._listeners = Bystander(), Listeners(self.home, self.token)
        self._forger = folder / "outside" / "forger.so"
        self._write_forger()

    def __enter__(self) -> Arena:
        return self

    def __exit__(self, *_: object) -> None:
        self._bystander.close()
        self._listeners.close()

    @property
    def root_file(self) -> Path:
        """Gets the number of the verifier's process, when it starts."""
        return self.work / "root.pid"

    def _write_forger(self) -> None:
        content = self.ground.forger.read_bytes()
        paths = {
            "root": self.root_file, "honest": self.ground.honest, "report": self.report,
            "ran": self.home / "ran-by-forger",
        }  # fmt: skip
        for name, path in paths.items():
            mark, text = f"@{name}@".encode(), os.fsencode(path)
            assert content.count(mark) == 1
            assert len(text) < 512
            at = content.index(mark)
            content = content[:at] + text.ljust(512, b"\0") + content[at + 512 :]
        self._forger.write_bytes(content)

    def targets(self, attacks: Sequence[str], moment: str) -> dict[str, Any]:
        paths = {
            name: str(getattr(self, name)) for name in ("home", "cache", "tmp", "work", "project", "model", "report")
        }
        return {
            **paths, "token": self.token, "attacks": list(attacks), "moment": moment, "honest": str(self.ground.honest),
            "forger": str(self._forger), "root_file": str(self.root_file), "bystander": self._bystander.about,
            "tcp4": self._listeners.port("tcp4"), "tcp6": self._listeners.port("tcp6"),
            "udp": self._listeners.port("udp"), "unix": self._listeners.unix, "abstract": self._listeners.abstract,
            "pid_namespace": os.stat("/proc/self/ns/pid").st_ino, "lock": str(self.home / "deceived"),
            "outside": str(self.folder / "outside"),
        }  # fmt: skip

    def _write_header(self) -> None:
        """targets.h, for kernels in CUDA C++."""
        texts = {
            "VICTIM": self.home / "victims" / "native", "UNIX": self._listeners.unix,
            "ABSTRACT": self._listeners.abstract, "HONEST": self.ground.honest, "REPORT": self.report,
        }  # fmt: skip
        about = self._bystander.about
        numbers = {
            "TCP4": self._listeners.port("tcp4"), "BYSTANDER": about["pid"], "MEMORY": f"{about['address']}UL",
        }  # fmt: skip
        lines = [
            *(f'#define T_{k} "{v}"' for k, v in texts.items()),
            *(f"#define T_{k} {v}" for k, v in numbers.items()),
        ]
        lines += [
            'extern "C" int open(const char*, int, ...);', 'extern "C" long read(int, void*, unsigned long);',
            "static int T_ROOT() {", "    char digits[16] = {};",
            f'    read(open("{self.root_file}", 0), digits, 15);', "    int number = 0;",
            "    for (int i = 0; digits[i]; ++i) number = 10 * number + digits[i] - '0';", "    return number;", "}",
        ]  # fmt: skip
        (self.work / "targets.h").write_text("\n".join(lines) + "\n")

    # ---- a run -------------------------------------------------------------------------------------------------------

    def run(
        self, attacks: Iterable[Attack], moment: str = "call", *more: str, kernel: str = "",
        exits: Iterable[int] | None = None,
    ) -> Outcome:  # fmt: skip
        """Verify a kernel that makes these attacks at a moment.

        Args:
            more: further options.
            kernel: the kernel, where it is none in Python that makes the attacks.
            exits: the exit codes that are right; by default those of the attacks.
        """
        made = list(attacks)
        limits = ["--kernel-time-limit", f"{min((a.limit for a in made), default=5.0):g}", *LESS_MEMORY]
        run = command(self.model, kernel or f"{self.work / 'kernel.py'}:gemm", self.report, *limits, *SANDBOX, *more)
        return self.watch(run, made, moment, exits)

    def run_source(self, name: str, *more: str) -> Outcome:
        """Verify a kernel in CUDA C++ that attacks."""
        about = of_source(name)
        shutil.copyfile(sources()[name], self.work / f"{name}.cu")
        limits = ["--kernel-time-limit", f"{about.limit:g}", *LESS_MEMORY, *more]
        run = command(self.model, f"{self.work / name}.cu:gemm", self.report, *limits, *SANDBOX)
        return self.watch(run, [about], "never")

    def audit(self, attacks: Iterable[Attack], *more: str) -> Outcome:
        """Audit the model, whose readers may be taken over."""
        self.ground.warm()
        shutil.rmtree(self.cache)
        shutil.copytree(self.ground.cache, self.cache)
        run = audit_command(self.model, self.report)
        return self.watch([*run, *SANDBOX, *more], list(attacks), "worker", (0, 1, 3, 5))

    def unprotected(self, attacks: Iterable[Attack]) -> Outcome:
        """The same attacks on a verifier that protects itself in no way: they must be seen."""
        run = [
            sys.executable,
            "-I",
            "-S",
            "-B",
            str(STAND_IN),
            str(self.work / "kernel.py"),
            str(self.report),
            str(self.cache),
        ]
        return self.watch(run, list(attacks), "call", grace=0.1)

    def unprotected_source(self, name: str) -> Outcome:
        """The same for a kernel in CUDA C++: the stand-in loads its library."""
        self._write_header()
        shutil.copyfile(sources()[name], self.work / f"{name}.cpp")
        words = ["-D__device__=", "-D__global__=", "-w", "-include", str(HERE / "stand_in.hpp")]
        library = self.work / f"{name}.so"
        source = str(self.work / f"{name}.cpp")
        subprocess.run([compiler(), *words, "-shared", "-fPIC", source, "-o", str(library)], check=True)
        run = [sys.executable, "-I", "-S", "-B", str(STAND_IN), str(library), str(self.report), str(self.cache)]
        return self.watch(run, [of_source(name)], "never", grace=0.1)

    def watch(
        self, run: list[str], attacks: Sequence[Attack], moment: str, exits: Iterable[int] | None = None,
        grace: float = 5.0, seconds: float | None = None,
    ) -> Outcome:  # fmt: skip
        """Run a command line and say what is seen of it.

        Args:
            exits: as `run` has them.
            grace: seconds that killed processes may take to go after the run's end.
            seconds: for the whole run; by default what the attacks say.
        """
        for name in (*VICTIMS, *(a.name for a in attacks)):
            (self.home / "victims" / name).write_text("of the user\n")
        (self.work / "targets.json").write_text(json.dumps(self.targets([a.name for a in attacks], moment)))
        self._write_header()
        asked = {
            "command": run, "environment": self._environment(), "folder": str(self.work),
            "stdout": str(self.said("out")),
            "stderr": str(self.said("err")), "pid": str(self.root_file),
            "seconds": seconds or max((a.seconds for a in attacks), default=60.0), "grace": grace,
            "processes": MOST_PROCESSES, "memory": MOST_MEMORY,
        }  # fmt: skip
        self.said("asked").write_text(json.dumps(asked))
        before = self._snapshot()
        warden = [sys.executable, "-I", "-S", str(WARDEN), str(self.said("watched")), str(self.said("asked"))]
        with subprocess.Popen(warden, stdin=subprocess.PIPE) as process:  # its input ends with this process
            process.wait()
        watched = Watched(**json.loads(self.said("watched").read_text()))
        assert watched.exit_code != 127, self.said("err").read_text()
        stdout, stderr = (self.said(name).read_text(errors="replace") for name in ("out", "err"))
        report = self._read_report()
        right = set(exits) if exits is not None else {code for a in attacks for code in a.exits}
        told = re.findall(r"told: [^\";]*", json.dumps(report or {}))
        breaches = [
            *(f"{a.name}: {t}" for a in attacks for t in told if a.seen.startswith("told") and re.search(a.seen, t)),
            *self._of_verdict(watched, report, stderr, right), *self._of_processes(watched),
            *self._of_files(before, self._snapshot()), *self._outside(),
            *(f"bystander: {harm}" for harm in self._bystander.harm()),
            *(f"reached: {name}" for name in self._listeners.reached()),
        ]  # fmt: skip
        if f"FORGED-{self.token}" in stdout + stderr:
            breaches.append("forged words in the verifier's output")
        return Outcome(watched, breaches, report, stdout, stderr)

    def said(self, name: str) -> Path:
        return self.folder / "outside" / name

    def _environment(self) -> dict[str, str]:
        kept = {
            k: v
            for k, v in os.environ.items()
            if k in ("LANG", "LC_ALL", "LD_LIBRARY_PATH", "CXX", "GGUF_VERIFY_CUDA_COMPILER")
        }
        path = f"{self.home}/.local/bin{os.pathsep}{os.environ['PATH']}"
        python_path = os.pathsep.join(map(str, (self.project / "harness", self.work)))
        return {
            **kept, **SECRETS, "HOME": str(self.home), "TMPDIR": str(self.tmp), "XDG_CACHE_HOME": str(self.cache),
            "PATH": path, "PYTHONPATH": python_path, "PYTHONDONTWRITEBYTECODE": "1",
            "OPENBLAS_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "TERM": "dumb",
            "GGUF_VERIFY_HOSTILE": self.token,
        }  # fmt: skip

    # ---- what is seen ------------------------------------------------------------------------------------------------

    def _read_report(self) -> dict[str, Any] | None:
        try:
            if not stat.S_ISREG(self.report.lstat().st_mode):
                return None
            report = json.loads(self.report.read_bytes())
        except (OSError, ValueError):
            return None
        return report if isinstance(report, dict) else None

    @staticmethod
    def _of_verdict(watched: Watched, report: dict[str, Any] | None, stderr: str, exits: set[int]) -> list[str]:
        found = []
        code = watched.exit_code
        if code == 0 and 0 not in exits:
            found.append("forged: exit code 0")
        elif code not in exits:
            found.append(f"exit code {code}")
        if report is None:
            # a kernel that cannot be started is an error of usage: one line, and no report
            if code != _EXIT_USAGE or len(re.findall(r"^gguf-verify: ", stderr, re.M)) != 1:
                found.append("the report is missing")
        elif (report.get("verdict") in ("verified", None) and 0 not in exits) or report.get("exit_code") != code:
            found.append(f"the report says {report.get('verdict')!r} and exit code {report.get('exit_code')}")
        if match := _INTERNAL.search(stderr):
            found.append(f"an internal error: {stderr[match.start() :][:300]!r}")
        if report is not None and "llama.cpp died" in json.dumps(report):
            found.append("llama.cpp died")
        return found

    @staticmethod
    def _of_processes(watched: Watched) -> list[str]:
        # what the kernel does to processes of its own is its own affair
        ours = [told for told in watched.stopped if "gguf_verify" in told or "stand_in" in told]
        found = [f"stopped: {told}" for told in ours if ".foreign" not in told]
        if watched.over:
            found.append(f"over: {watched.over}")
        elif watched.left:
            found.append(f"left: {len(watched.left)} processes, among them {watched.left[0]}")
        if watched.most_unnamed > MOST_LOG:
            found.append(f"log: {watched.most_unnamed:,} bytes in files without a name")
        if watched.terminal:
            found.append(f"terminal: {watched.terminal[:200]!r}")
        return found

    def _snapshot(self) -> Snapshot:
        found: Snapshot = {}
        for top in (self.home, self.cache, self.tmp, self.work, self.project):
            for path in (top, *sorted(top.rglob("*"))):
                if path not in (self.report, self.root_file):
                    found[path.relative_to(self.folder).as_posix()] = _state(path)
        return found

    @staticmethod
    def _of_files(before: Snapshot, after: Snapshot) -> list[str]:
        new = [n for n in after.keys() - before.keys() if not n.startswith("cache/") or "hostile" in n]
        changed = [n for n in before.keys() & after.keys() if before[n] != after[n]]
        gone = before.keys() - after.keys()
        return sorted([*(f"appeared: {n}" for n in new), *(f"changed: {n}" for n in (*changed, *gone))])

    def _outside(self) -> list[str]:
        """What was left where all programs write, which is then removed."""
        found = []
        for folder in ("/tmp", "/var/tmp", "/dev/shm"):
            path = Path(folder, f"gguf-verify-hostile-{self.token}")
            if path.exists():
                path.unlink()
                found.append(f"appeared: {path}")
        key = int(self.token[:7], 16)
        with contextlib.suppress(OSError):
            for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]:
                if int(line.split()[0]) == key:
                    ctypes.CDLL(None).shmctl(int(line.split()[1]), 0, None)  # IPC_RMID
                    found.append("System V shared memory is left")
        return found


#: Files of the user's that attacks name, beside one for each attack.
VICTIMS = ("removes_home", "renames_home", "opens_home", "native")


def _state(path: Path) -> tuple[int, str]:
    """What must not change of a file: its rights and its content. Of a folder only the rights."""
    try:
        about = path.lstat()
        mode = about.st_mode
        if stat.S_ISREG(mode) and about.st_size > _MOST_FILE:
            return mode, str(about.st_size)
        if stat.S_ISREG(mode):
            return mode, hashlib.sha256(path.read_bytes()).hexdigest()
        return mode, os.readlink(path) if stat.S_ISLNK(mode) else ""
    except OSError as error:
        return 0, str(error.errno)


def of_source(name: str) -> Attack:
    """What a `.cu` file says of its attack, in TOML between `// [attack]` and `// [/attack]`."""
    lines = sources()[name].read_text().splitlines()
    block = lines[lines.index("// [attack]") + 1 : lines.index("// [/attack]")]
    said = tomllib.loads("\n".join(line.removeprefix("//") for line in block))
    return Attack(
        name, lines[0].removeprefix("// "), lambda _: None, said["layer"], said["seen"], True, False,
        tuple(said["exits"]), (), said.get("limit", 5.0), said.get("seconds", 90.0),
    )  # fmt: skip


def possible(attack: Attack) -> bool:
    """Whether this machine lets anybody do that: some forbid ordinary users to type at terminals."""
    types = Path("/proc/sys/dev/tty/legacy_tiocsti")
    forbidden = os.geteuid() != 0 and types.exists() and types.read_text().strip() == "0"
    ring = Path("/proc/sys/kernel/io_uring_disabled")
    no_ring = ring.exists() and ring.read_text().strip() != "0"
    return not (forbidden and attack.function.__module__.endswith(".terminal")) and not (
        no_ring and attack.name == "connects_by_io_uring"
    )


def shown_by_stand_in(name: str) -> bool:
    """Whether the stand-in can show what a `.cu` file's attack does."""
    text = sources()[name].read_text()
    return "stand_in = false" not in text and bool(of_source(name).seen)


def shared() -> list[Attack]:
    """The attacks that one run makes together: none ends the process or hides what others do."""
    return [a for a in hostile_kernels.attacks().values() if not a.alone]


def together() -> list[Attack]:
    """These, and those that do nothing to a verifier that holds: it is attacked by all of them in one run."""
    return [*shared(), *(a for a in hostile_kernels.attacks().values() if a.harmless_if_stopped)]


def single() -> list[Attack]:
    """The attacks that get runs of their own, too."""
    return [a for a in hostile_kernels.attacks().values() if a.alone]
