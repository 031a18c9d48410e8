"""Commands with a time limit; when one ends, none of its processes is left."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

#: Number of bytes of a command's output to keep.
_TAIL = 1 << 14
#: Seconds that a supervisor has to end before it is killed.
_PATIENCE = 20.0


class Stopped(Exception):
    """The night is ending: the command was killed, and its result is not recorded."""


@dataclass(frozen=True)
class Ended:
    """How a command ended.

    Args:
        exit_code: minus the signal's number if a signal ended it; None if it exceeded its time limit.
        seconds: wall time.
        said: last lines of its standard error, and of its standard output if that was logged too.
    """

    exit_code: int | None
    seconds: float
    said: tuple[str, ...]

    @property
    def last_line(self) -> str:
        return self.said[-1] if self.said else ""


class Processes:
    """The running commands. `stop` may be called from any thread and from a signal handler."""

    def __init__(self) -> None:
        self._stopped, self._stop = os.pipe()
        self._stopping = False

    def stop(self) -> None:
        """End all commands; every `run` raises Stopped, now and later."""
        if not self._stopping:
            self._stopping = True
            os.close(self._stop)

    def close(self) -> None:
        """Free the pipe; no thread may be in `run`."""
        self.stop()
        os.close(self._stopped)

    def run(
        self,
        command: Sequence[str],
        time_limit: float,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        log: Path | None = None,
        on_start: Callable[[int], object] = lambda _pid: None,
        grace: float = 0.0,
    ) -> Ended:
        """Run a command to its end, or for at most `time_limit` seconds.

        Args:
            grace: seconds after the time limit for the command to end by itself, after SIGTERM.
            command: found on PATH.
            log: file to append its standard output and error to; None discards its output.
            on_start: called with the supervisor's process id.

        Raises Stopped.
        """
        if self._stopping:
            raise Stopped
        lifeline, ours = os.pipe()
        program = str(Path(__file__).with_name("keeper.py"))
        supervisor = [sys.executable, "-I", "-S", program, json.dumps({"lifeline": lifeline}), *command]
        start = time.monotonic()
        try:
            process = subprocess.Popen(
                supervisor,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL if log is None else subprocess.PIPE,
                stderr=subprocess.PIPE if log is None else subprocess.STDOUT,
                pass_fds=[lifeline],
                start_new_session=True,
                env=env,
                cwd=cwd,
            )
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(lifeline)
        output = process.stderr if log is None else process.stdout
        assert output is not None
        tail = _Tail(output.fileno(), log)
        try:
            on_start(process.pid)
            over = self._wait(process, start + time_limit)
            if over == "time" and grace > 0:
                os.write(ours, b"t")
                if self._wait(process, time.monotonic() + grace) == "stopped":
                    over = "stopped"
        finally:
            os.close(ours)  # the supervisor ends what is left
            try:
                code = process.wait(_PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                code = process.wait()
            seconds = time.monotonic() - start
            said = tail.close()
            output.close()
        if over == "stopped":
            raise Stopped
        return Ended(None if over == "time" else code, seconds, said)

    def _wait(self, process: subprocess.Popen[bytes], deadline: float) -> str:
        """Wait for the end of the command; returns "ended", "time" or "stopped"."""
        pidfd = os.pidfd_open(process.pid)
        try:
            ready = select.poll()
            ready.register(pidfd, select.POLLIN)
            ready.register(self._stopped, select.POLLIN | select.POLLHUP)
            left = deadline - time.monotonic()
            found = dict(ready.poll(max(0.0, 1000 * left)))
            if pidfd in found:
                return "ended"
            return "stopped" if found else "time"
        finally:
            os.close(pidfd)


class _Tail:
    """Reads a pipe in a thread, keeps its last bytes, and copies everything to a log, if there is one."""

    def __init__(self, fd: int, log: Path | None) -> None:
        self._kept = b""
        self._thread = threading.Thread(target=self._read, args=(fd, log), daemon=True)
        self._thread.start()

    def _read(self, fd: int, log: Path | None) -> None:
        sink = None if log is None else log.open("ab", buffering=0)
        try:
            while chunk := os.read(fd, 1 << 16):
                self._kept = (self._kept + chunk)[-_TAIL:]
                if sink is not None:
                    with contextlib.suppress(OSError):  # a full disk must not hold up the command
                        sink.write(chunk)
        except OSError:
            return
        finally:
            if sink is not None:
                sink.close()

    def close(self) -> tuple[str, ...]:
        """Return the last lines, after every process that could write has ended."""
        self._thread.join(_PATIENCE)
        lines = self._kept.decode(errors="replace").replace("\r", "\n").splitlines()
        return tuple(line.strip() for line in lines[-20:] if line.strip())


def signal_name(exit_code: int) -> str:
    """Return the name of the signal of a negative exit code, such as "SIGSEGV"."""
    try:
        return signal.Signals(-exit_code).name
    except ValueError:
        return f"signal {-exit_code}"
