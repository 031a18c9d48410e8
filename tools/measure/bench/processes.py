"""The time of a command and the resources of its process tree: memory, cores, disk and GPUs.

A thread samples /proc while the command runs, ten times a second. If sampling is slow, as for a large mapped file, it
does so less often, so that sampling takes at most a twentieth of the time.

    memory  the sum over all processes of the proportional set size, which counts a shared page once (of the resident
            set, if the kernel reports no other); anonymous memory is also counted separately
    cores   user and system time of each process, as last sampled, so the last moments of each are missing; divided by
            the wall time and the number of cores that the command may use
    disk    the time in which the device that holds a file had requests (/proc/diskstats, field 10) of any
            process; and the bytes that all processes read from storage (read_bytes of /proc/PID/io)
    GPUs    the mean over samples and GPUs of NVML's utilisation, four times a second: the share of the time before each
            sample in which a kernel of any process ran; and the sum over GPUs of the largest memory in use
"""

from __future__ import annotations

import contextlib
import os
import shutil
import statistics
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gguf_verify.support.command_line import cores

_TICKS, _PAGE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
_EVERY, _LOOKING = 0.1, 20


def tree(pid: int) -> list[int]:
    """Return a process and all of its descendants."""
    out = [pid]
    for task in Path(f"/proc/{pid}/task").glob("*"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            for child in (task / "children").read_text().split():
                out += tree(int(child))
    return out


def memory(pid: int) -> tuple[int, int]:
    """Return the bytes of a process's proportional set, which counts a shared page once, and of its anonymous part.
    If the kernel reports no proportional set, as in gVisor, they are those of the resident set."""
    whole = anonymous = 0
    rollup = Path(f"/proc/{pid}/smaps_rollup")
    if not rollup.exists():
        resident, shared = (int(n) * _PAGE for n in Path(f"/proc/{pid}/statm").read_text().split()[1:3])
        return resident, resident - shared
    for line in rollup.read_text().splitlines():
        key, _, value = line.partition(":")
        if key == "Pss":
            whole = int(value.split()[0]) * 1024
        elif key == "Pss_Anon":
            anonymous = int(value.split()[0]) * 1024
    return whole, anonymous


def processor_seconds(pid: int) -> float:
    """User and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def fetched(pid: int) -> int:
    """Bytes that a process had to fetch from storage; 0 if the system does not report it."""
    with contextlib.suppress(OSError, StopIteration):
        lines = Path(f"/proc/{pid}/io").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes:"))
    return 0


def visible_gpus() -> list[str]:
    """Indices or UUIDs of the GPUs that a process would see; [] without `nvidia-smi`."""
    if (chosen := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return [part.strip() for part in chosen.split(",") if part.strip()]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        command = ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.split()
    return []


def device_seconds(path: Path) -> float | None:
    """Seconds since the start of the machine in which the device that holds a file had requests; None where the kernel
    does not tell, as of a file system of several layers."""
    number = path.stat().st_dev
    with contextlib.suppress(OSError):
        for line in Path("/proc/diskstats").read_text().splitlines():
            fields = line.split()
            if fields[:2] == [str(os.major(number)), str(os.minor(number))]:
                return int(fields[12]) / 1000
    return None


class Gpus:
    """What `nvidia-smi` says of GPUs in a block: `busy`, a share, and `memory`, bytes; None of no GPU.

    Args:
        ids: indices or UUIDs.
    """

    def __init__(self, ids: Sequence[str]) -> None:
        self._ids = ids
        self._busy: list[float] = []
        self._memory: dict[str, int] = {}

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Look at them meanwhile."""
        program = shutil.which("nvidia-smi")
        if program is None or not self._ids:
            yield
            return
        query = ["--query-gpu=uuid,utilization.gpu,memory.used", "--format=csv,noheader,nounits", "-lms", "250"]
        with subprocess.Popen(
            [program, "-i", ",".join(self._ids), *query], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as child:  # fmt: skip
            reader = threading.Thread(target=self._read, args=[child.stdout])
            reader.start()
            try:
                yield
            finally:
                child.terminate()
                reader.join()

    def _read(self, lines: Iterable[str]) -> None:
        for line in lines:
            with contextlib.suppress(ValueError):  # "[N/A]", and a line that the end cut off
                of, busy, used = line.split(",")
                self._memory[of] = max(self._memory.get(of, 0), int(used) << 20)
                self._busy.append(float(busy) / 100)

    @property
    def busy(self) -> float | None:
        return statistics.mean(self._busy) if self._busy else None

    @property
    def memory(self) -> int | None:
        return sum(self._memory.values()) if self._memory else None


@dataclass(frozen=True)
class Measured:
    """A run.

    Args:
        code: its exit code.
        seconds: wall time.
        peak, peak_anonymous: bytes of memory; of the second kind, no file backs them.
        processor: share of the cores' time that was spent; None where it was not watched.
        disk: share of the time in which the disk had requests; None where that is not known.
        fetched: bytes from storage.
        gpu, gpu_memory: share of the time in which GPUs were busy, and bytes; None without one.
    """

    code: int
    seconds: float
    peak: int = 0
    peak_anonymous: int = 0
    processor: float | None = None
    disk: float | None = None
    fetched: int = 0
    gpu: float | None = None
    gpu_memory: int | None = None


@dataclass
class _Seen:
    """What was seen of the processes of a command."""

    peaks: list[int] = field(default_factory=lambda: [0, 0])
    processor: dict[int, float] = field(default_factory=dict)
    fetched: dict[int, int] = field(default_factory=dict)

    def look(self, pid: int) -> None:
        sums = [0, 0]
        for each in tree(pid):
            with contextlib.suppress(OSError):  # it ended meanwhile
                self.processor[each], self.fetched[each] = processor_seconds(each), fetched(each)
                sums = [a + b for a, b in zip(sums, memory(each), strict=True)]
        self.peaks = [max(pair) for pair in zip(self.peaks, sums, strict=True)]


def measured(
    command: Sequence[str | Path], quiet: bool = False, watched: bool = True, file: Path | None = None,
    gpus: Sequence[str] = (), variables: Mapping[str, str] | None = None,
) -> Measured:  # fmt: skip
    """Run a command, and look at what it uses if it is `watched`. Watching takes a few hundredths of the time of a run
    that lasts a second.

    Args:
        quiet: drop its standard output.
        file: on the disk that is looked at.
        gpus: that are looked at, as `Gpus` takes them.
        variables: of its environment, beside those of this process.
    """
    output = subprocess.DEVNULL if quiet else None
    # `python -m tools.measure` sets this for itself: the command gets what its user would give it
    environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    seen, on_gpus = _Seen(), Gpus(gpus)
    before = None if file is None else device_seconds(file)
    with on_gpus.watched():
        start = time.perf_counter()
        process = subprocess.Popen(
            [str(part) for part in command], stdout=output, env={**environment, **(variables or {})}
        )

        ended = threading.Event()

        def watch() -> None:
            took = 0.0
            while not ended.wait(max(_EVERY, _LOOKING * took)):
                began = time.perf_counter()
                with contextlib.suppress(OSError):  # a process ended while it was looked at
                    seen.look(process.pid)
                took = time.perf_counter() - began

        watcher = threading.Thread(target=watch)
        if watched:
            watcher.start()
        try:
            code = process.wait()
        finally:
            ended.set()
        seconds = time.perf_counter() - start
    if not watched:
        return Measured(code, seconds)
    watcher.join()
    after = None if file is None else device_seconds(file)
    return Measured(
        code, seconds, seen.peaks[0], seen.peaks[1],
        processor=sum(seen.processor.values()) / seconds / cores() if seen.processor else None,
        disk=None if before is None or after is None else (after - before) / seconds,
        fetched=sum(seen.fetched.values()), gpu=on_gpus.busy, gpu_memory=on_gpus.memory,
    )  # fmt: skip
