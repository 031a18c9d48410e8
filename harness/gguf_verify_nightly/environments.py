"""The Python of each variant of llama.cpp: its own virtual environment, made once and kept in the cache.

It contains the variant's llama-cpp-python and the packages that `requirements` lists. This project's code is not
installed in it but found through PYTHONPATH, so that every variant runs the code of this process.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from gguf_verify.hosts.compiler import cpu_name
from gguf_verify.llama import installed
from gguf_verify.processes.commands import Processes, signal_name
from gguf_verify.support.cache import cache_dir
from gguf_verify.support.errors import EnvironmentFault
from gguf_verify.support.text import printable

from .config import Variant
from .requirements import LLAMA_PACKAGE, requirements

#: Environment variables besides CMAKE_ARGS that change how llama.cpp is built.
_BUILD_VARIABLES = ("CC", "CXX", "CFLAGS", "CXXFLAGS", "CUDACXX", "CUDAHOSTCXX", "FORCE_CMAKE")


@dataclass(frozen=True)
class Interpreter:
    """The Python of a variant.

    Args:
        python: the path of the executable.
        llama_version: the version of llama-cpp-python that its runs must report.
        separate: whether it is another Python than that of this process.
    """

    python: str
    llama_version: str
    separate: bool = True


class Environments:
    """Makes the variants' environments.

    Args:
        processes: runs pip, so that pip ends with the night.
        time_limit: time limit for each command, in seconds.
    """

    def __init__(self, processes: Processes, time_limit: float) -> None:
        self._processes, self._time_limit = processes, time_limit

    def identity(self, variant: Variant) -> str:
        """An identifier of the variant: the installed version, or the name of its environment."""
        if variant.installed:
            return f"installed {installed.version()}"
        return self._folder(variant).name

    def log(self, variant: Variant) -> Path:
        """The file with the output of pip and the compilers."""
        return self._folder(variant).with_suffix(".log")

    def ready(self, variant: Variant, on_start: Callable[[], object] = lambda: None) -> Interpreter:
        """Return the variant's Python, and make its environment if necessary.

        Args:
            on_start: called before an environment is made.

        Raises EnvironmentFault with a message of one line for the variant's cells, or Stopped.
        """
        if variant.installed:
            return Interpreter(sys.executable, installed.version(), separate=False)
        folder = self._folder(variant)
        marker = folder / "complete.json"
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with folder.with_suffix(".lock").open("w") as lock:
                if not marker.is_file():
                    on_start()
                    fcntl.flock(lock, fcntl.LOCK_EX)
                if not marker.is_file():  # another process may have made it meanwhile
                    self._make(variant, folder, marker)
        except OSError as error:
            raise EnvironmentFault(f"the cache cannot be written: {error.strerror}") from None
        try:
            version = str(json.loads(marker.read_text())[LLAMA_PACKAGE])
        except (OSError, ValueError, KeyError, TypeError):
            raise EnvironmentFault(f"the environment {folder.name} in the cache is damaged; remove it") from None
        return Interpreter(str(folder / "bin" / "python"), version)

    # ---- making one -------------------------------------------------------------------------------------------------

    def _folder(self, variant: Variant) -> Path:
        return cache_dir() / "variants" / hashlib.sha256(json.dumps(self._inputs(variant)).encode()).hexdigest()[:24]

    def _inputs(self, variant: Variant) -> list[object]:
        return [
            sys.version, os.path.realpath(sys.executable), platform.machine(), cpu_name(), _wanted_version(variant),
            variant.cmake_args, requirements(_uses_gpu(variant)),
            [os.environ.get(name) for name in (*_BUILD_VARIABLES, *(() if variant.cmake_args else ("CMAKE_ARGS",)))],
        ]  # fmt: skip

    def _make(self, variant: Variant, folder: Path, marker: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)  # left by an interrupted run
        log = self.log(variant)
        log.write_text("")
        env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
        if variant.cmake_args is not None:
            env["CMAKE_ARGS"] = variant.cmake_args
        python = str(folder / "bin" / "python")
        pip = [python, "-m", "pip", "--no-input", "--disable-pip-version-check", "install", "--progress-bar", "off"]
        # pip's cache finds a wheel by its version, whatever its build options
        rebuild = ["--no-binary", LLAMA_PACKAGE, "--no-cache-dir"] if variant.cmake_args is not None else []
        self._run([sys.executable, "-m", "venv", str(folder)], env, log)
        self._run([*pip, *requirements(_uses_gpu(variant))], env, log)
        self._run([*pip, *rebuild, f"{LLAMA_PACKAGE}=={_wanted_version(variant)}"], env, log)
        marker.with_suffix(".part").write_text(
            json.dumps({LLAMA_PACKAGE: _wanted_version(variant), "inputs": self._inputs(variant)})
        )
        marker.with_suffix(".part").replace(marker)

    def _run(self, command: list[str], env: Mapping[str, str], log: Path) -> None:
        with log.open("a") as file:
            file.write(f"$ {' '.join(command)}\n")
        ended = self._processes.run(command, self._time_limit, env, log=log)
        if ended.exit_code == 0:
            return
        if ended.exit_code is None:
            how = f"not finished within {self._time_limit:g} s"
        elif ended.exit_code < 0:
            how = f"died of {signal_name(ended.exit_code)}"
        else:
            said = [line for line in ended.said if line.startswith("ERROR")] or list(ended.said)
            how = printable(said[-1], 300) if said else f"ended with exit code {ended.exit_code}"
        raise EnvironmentFault(f"its llama.cpp cannot be installed: {how} (log: {log.name} in the cache)")


def _wanted_version(variant: Variant) -> str:
    return variant.version or installed.version()


def _uses_gpu(variant: Variant) -> bool:
    return variant.hosts is not None and any(host != "cpu" for host in variant.hosts)
