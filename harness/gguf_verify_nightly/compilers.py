"""Other versions of NVRTC: packages from PyPI, unpacked once and kept in the cache."""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from gguf_verify.processes.commands import Processes, signal_name
from gguf_verify.support.cache import cache_dir
from gguf_verify.support.errors import EnvironmentFault
from gguf_verify.support.text import printable

#: The package on PyPI for CUDA 13 and later, and for older versions.
_PACKAGE, _OLDER = "nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu{major}"
_FIRST = 13


class Compilers:
    """Fetches versions of NVRTC.

    Args:
        processes: runs pip, so that pip ends with the night.
        time_limit: time limit for one version, in seconds.
    """

    def __init__(self, processes: Processes, time_limit: float) -> None:
        self._processes, self._time_limit = processes, time_limit

    def ready(self, version: str, on_start: Callable[[], object] = lambda: None) -> Path:
        """Return the library of a version such as "13.2.78".

        Args:
            on_start: called before it is fetched.

        Raises EnvironmentFault with a message of one line, or Stopped.
        """
        folder = cache_dir() / "nvrtc" / version
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with folder.with_name(f"{version}.lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not folder.is_dir():
                    on_start()
                    self._fetch(version, folder)
        except OSError as error:
            raise EnvironmentFault(f"the cache cannot be written: {error.strerror}") from None
        found = sorted(folder.glob("nvidia/*/lib/libnvrtc.so.*"))
        if not found:
            raise EnvironmentFault(f"NVRTC {version} in the cache has no library; remove {printable(str(folder), 200)}")
        return found[0]

    def _fetch(self, version: str, folder: Path) -> None:
        major = version.partition(".")[0]
        package = _PACKAGE if int(major) >= _FIRST else _OLDER.format(major=major)
        part = folder.with_name(f"{version}.part")
        shutil.rmtree(part, ignore_errors=True)  # left by an interrupted run
        command = [
            sys.executable, "-m", "pip", "--no-input", "--disable-pip-version-check", "install", "--progress-bar",
            "off", "--no-deps", "--target", str(part), f"{package}=={version}",
        ]  # fmt: skip
        env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
        ended = self._processes.run(command, self._time_limit, env)
        if ended.exit_code != 0:
            said = [line for line in ended.said if line.startswith("ERROR")] or list(ended.said)
            how = printable(said[-1], 300) if said else "pip failed"
            if ended.exit_code is None:
                how = f"not finished within {self._time_limit:g} s"
            elif ended.exit_code < 0:
                how = f"pip died of {signal_name(ended.exit_code)}"
            raise EnvironmentFault(f"NVRTC {version} cannot be fetched: {how}")
        part.replace(folder)
