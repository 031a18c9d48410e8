"""What stands beside a run of a hostile kernel and should not notice it: a process, and sockets."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from .tools import ROOT

BYSTANDER = ROOT / "tests" / "support" / "bystander.py"


class Bystander:
    """A process of the same user."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", BYSTANDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self.about: dict[str, int] = json.loads(self._process.stdout.readline())

    def harm(self) -> list[str]:
        """What was done to it, in words."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write("\n")
            self._process.stdin.flush()
            said = self._process.stdout.readline()
        except OSError:
            said = ""
        return json.loads(said) if said else [f"died: {self._process.wait(10)}"]

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


class Listeners:
    """Sockets that nobody should reach.

    Args:
        folder: where one of them lies as a file.
    """

    def __init__(self, folder: Path, token: str) -> None:
        self.unix, self.abstract = f"{folder}/agent", f"gguf-verify-hostile-{token}"
        self._sockets = {"tcp4": self._listen(socket.AF_INET, ("127.0.0.1", 0))}
        with contextlib.suppress(OSError):
            self._sockets["tcp6"] = self._listen(socket.AF_INET6, ("::1", 0))
        here = os.getcwd()
        os.chdir(folder)  # the path of a socket has few characters
        try:
            self._sockets["unix"] = self._listen(socket.AF_UNIX, "agent")
        finally:
            os.chdir(here)
        self._sockets["abstract"] = self._listen(socket.AF_UNIX, f"\0{self.abstract}")
        self._sockets["udp"] = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._sockets["udp"].bind(("127.0.0.1", 0))

    @staticmethod
    def _listen(family: int, name: Any) -> socket.socket:
        listening = socket.socket(family)
        listening.bind(name)
        listening.listen(64)
        return listening

    def port(self, name: str) -> int:
        return int(self._sockets[name].getsockname()[1]) if name in self._sockets else 0

    def reached(self) -> list[str]:
        """The names of those that somebody reached."""
        found = [] if "tcp6" in self._sockets else ["tcp6: none"]
        for name, listening in self._sockets.items():
            listening.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                listening.recv(100) if name == "udp" else listening.accept()[0].close()
                found.append(name)
        return found

    def close(self) -> None:
        for each in self._sockets.values():
            each.close()
