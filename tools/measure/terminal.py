"""A command at a pseudo-terminal, and what the terminal shows at its end."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

from gguf_verify.support.paths import CHECKOUT

#: Size of the terminal.
ROWS, COLUMNS = 40, 100
#: Seconds after which a command is killed.
LIMIT = 1800


def screen(text: str) -> str:
    """What a terminal shows after this text: colours are dropped; carriage returns, movements up, and erasures of lines
    are carried out."""
    lines, row, column = [""], 0, 0
    for part in re.findall(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07]*\x07|[\r\n]|[^\x1b\r\n]+|\x1b", text):
        if part == "\r":
            column = 0
        elif part == "\n":
            row += 1
            lines += [""] * (row == len(lines))
        elif part.startswith("\x1b"):
            if part[-1] == "A":
                row = max(0, row - int(part[2:-1] or 1))
            elif part[-1] == "K":
                lines[row] = "" if part[2:-1] == "2" else lines[row][:column]
        else:
            line = lines[row].ljust(column)
            lines[row] = line[:column] + part + line[column + len(part) :]
            column += len(part)
    return "\n".join(line.rstrip() for line in lines).strip("\n") + "\n"


def run_at_terminal(command: str, folder: Path) -> tuple[int, float, str]:
    """Run a command of bash in a folder; returns its exit code, its seconds, and what a pseudo-terminal shows then."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    size = ("COLUMNS", "LINES")  # those of another terminal
    variables = {name: value for name, value in os.environ.items() if name not in size}
    variables |= {"PATH": f"{sys.prefix}/bin:{os.environ['PATH']}", "XDG_CACHE_HOME": str(folder / ".cache")}
    variables["TERM"] = "xterm-256color"
    start, told = time.monotonic(), b""
    process = subprocess.Popen(
        ["bash", "-c", command], stdin=theirs, stdout=theirs, stderr=theirs, cwd=folder, env=variables,
        start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    try:
        while select.select([ours], [], [], max(0.0, start + LIMIT - time.monotonic()))[0]:
            try:
                told += os.read(ours, 1 << 16)
            except OSError:  # the end
                break
        else:
            os.killpg(process.pid, signal.SIGKILL)
        code = process.wait()
    finally:
        os.close(ours)
    shown = screen(told.decode(errors="replace")).replace(str(folder), ".").replace(str(CHECKOUT), ".")
    return code, time.monotonic() - start, shown
