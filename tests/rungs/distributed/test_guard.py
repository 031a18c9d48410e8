"""A run that is killed takes the processes of Ray with it that it has started."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes import alive, children, gone, wait_until

STARTS = """
import subprocess, sys
from gguf_verify.distributed.guard import guarded
with guarded("MARK=" + sys.argv[1]):
    sleeps = subprocess.Popen(["sleep", "600"], start_new_session=True, stdout=subprocess.DEVNULL)
    print(sleeps.pid, flush=True)
    sys.stdin.read()
"""
CONNECTS = """
import sys
from gguf_verify.distributed import connection
with connection.connected("local"):
    print(connection._MARK, flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def started(script: str, mark: str = "") -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process that runs this, and the first line that it prints."""
    with subprocess.Popen(
        [sys.executable, "-c", script, mark], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "MARK": mark},
    ) as process:  # fmt: skip
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def marked(line: str) -> list[int]:
    """Processes that have a line in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if line.encode() in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
    return found


def test_children_of_a_killed_run_end() -> None:
    """But nothing that another run has started."""
    one, another = secrets.token_hex(8), secrets.token_hex(8)
    with started(STARTS, one) as (run, pid), started(STARTS, another) as (other, others):
        run.kill()
        assert gone([int(pid)])
        assert alive(int(others))
        other.kill()
        assert gone([int(others)])


def test_nothing_is_killed_after_a_run_that_ended() -> None:
    with started(STARTS, secrets.token_hex(8)) as (run, pid):
        run.communicate("")
        assert run.returncode == 0
        assert alive(int(pid))
        os.kill(int(pid), signal.SIGKILL)


@pytest.mark.needs("ray")
def test_no_process_of_ray_stays() -> None:
    """None is there once the guard is gone."""
    with started(CONNECTS) as (run, mark):
        assert wait_until(lambda: len(marked(mark)) >= 4)
        (guard,) = (pid for pid in children(run.pid) if b"guard.py" in Path(f"/proc/{pid}/cmdline").read_bytes())
        run.kill()
        assert gone([guard])
        assert not marked(mark)
