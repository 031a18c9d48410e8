"""The Python of each llama.cpp variant: a virtual environment of its own, made once and kept in the cache.

It holds llama-cpp-python as the variant asks for it, and this project's other dependencies in the versions that are
installed here, so that nights differ by llama.cpp alone. The harness itself comes by PYTHONPATH: it is the code that
runs now.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from ..gguf import printable
from ..hosts.compiler import cpu_name
from ..llama import bindings
from ..support import paths
from ..support.cache import cache_dir
from ..support.errors import EnvironmentFault
from ..support.supervised import Processes, signal_name
from .config import Variant

PACKAGE = "llama-cpp-python"
#: Extras whose packages the GPU host needs.
_GPU_EXTRAS = ("cuda12", "cuda13")
_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9._-]+)\s*(?:\[[^]]*\])?\s*([^;]*?)\s*(?:;(.*))?$")
_EXTRA = re.compile(r"extra\s*==\s*['\"]([\w-]+)['\"]")
#: What changes a build of llama.cpp beside CMAKE_ARGS.
_BUILD_VARIABLES = ("CC", "CXX", "CFLAGS", "CXXFLAGS", "CUDACXX", "CUDAHOSTCXX", "FORCE_CMAKE")


def requirements(gpu: bool) -> tuple[str, ...]:
    """The project's dependencies but llama-cpp-python, pinned to what is installed here, sorted.

    They are read from the installed metadata, in a bare checkout from pyproject.toml; with `gpu` also those packages of
    the GPU's extras that are installed here. Raises EnvironmentFault where neither is there.
    """
    out = set()
    for name, specifier, extra in _declared():
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            version = None
        if name.lower().replace("_", "-") == PACKAGE or (extra and not (gpu and extra in _GPU_EXTRAS and version)):
            continue
        out.add(f"{name}=={version}" if version else f"{name}{specifier}")
    return tuple(sorted(out))


def _declared() -> list[tuple[str, str, str]]:
    """(name, specifier, extra or "")."""
    project = package_parent().parent / "pyproject.toml"
    try:
        if project.is_file():
            table = tomllib.loads(project.read_text())["project"]
            found = [(text, "") for text in table["dependencies"]]
            found += [(text, extra) for extra, all_ in table["optional-dependencies"].items() for text in all_]
        else:
            found = []
            for text in metadata.requires("gguf-verify") or []:
                extra = _EXTRA.search(text)
                found.append((text, extra[1] if extra else ""))
    except (metadata.PackageNotFoundError, OSError, KeyError, tomllib.TOMLDecodeError) as error:
        raise EnvironmentFault(f"the project's dependencies are not known: {printable(str(error), 100)}") from None
    parsed = [(_REQUIREMENT.match(text), extra) for text, extra in found]
    return [(m[1], m[2].replace(" ", ""), extra) for m, extra in parsed if m]


def package_parent() -> Path:
    """The folder that holds this package: `harness` of a checkout, or site-packages."""
    return paths.PACKAGE.parent


@contextlib.contextmanager
def harness_path(folder: Path) -> Iterator[str]:
    """A PYTHONPATH that gives another Python this harness and nothing else of this one's packages.

    An installed harness lies among them (with this llama-cpp-python): it is copied to `folder`, metadata included.
    """
    parent = package_parent()
    if (parent.parent / "pyproject.toml").is_file():
        yield str(parent)
        return
    shutil.copytree(parent / "gguf_verify", folder / "gguf_verify")
    for info in parent.glob("gguf_verify-*.dist-info"):
        shutil.copytree(info, folder / info.name)
    yield str(folder)


@dataclass(frozen=True)
class Ready:
    """A variant that can be used.

    Args:
        python: its interpreter.
        version: of llama-cpp-python that its runs must report.
        own: it is an environment of its own.
    """

    python: str
    version: str
    own: bool = True


class Variants:
    """Makes the variants' environments.

    Args:
        processes: what runs pip, so that it ends with the night.
        time_limit: seconds for making one.
    """

    def __init__(self, processes: Processes, time_limit: float) -> None:
        self._processes, self._time_limit = processes, time_limit

    def identity(self, variant: Variant) -> str:
        """What the variant is: the installed version, or the name of its environment."""
        if variant.installed:
            return f"installed {bindings.version()}"
        return self._folder(variant).name

    def log(self, variant: Variant) -> Path:
        """What pip and the compilers said."""
        return self._folder(variant).with_suffix(".log")

    def ready(self, variant: Variant, on_start: Callable[[], object] = lambda: None) -> Ready:
        """Its Python, made if it is not there. Raises EnvironmentFault with one line for its cells, and Stopped."""
        if variant.installed:
            return Ready(sys.executable, bindings.version(), own=False)
        folder = self._folder(variant)
        marker = folder / "complete.json"
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with folder.with_suffix(".lock").open("w") as lock:
                if not marker.is_file():
                    on_start()
                    fcntl.flock(lock, fcntl.LOCK_EX)
                if not marker.is_file():  # nobody else has made it meanwhile
                    self._make(variant, folder, marker)
        except OSError as error:
            raise EnvironmentFault(f"the cache cannot be written: {error.strerror}") from None
        try:
            version = str(json.loads(marker.read_text())["llama-cpp-python"])
        except (OSError, ValueError, KeyError, TypeError):
            raise EnvironmentFault(f"the environment {folder.name} in the cache is damaged: remove it") from None
        return Ready(str(folder / "bin" / "python"), version)

    # ---- making one -------------------------------------------------------------------------------------------------

    def _folder(self, variant: Variant) -> Path:
        return cache_dir() / "variants" / hashlib.sha256(json.dumps(self._inputs(variant)).encode()).hexdigest()[:24]

    def _inputs(self, variant: Variant) -> list[object]:
        return [
            sys.version, os.path.realpath(sys.executable), platform.machine(), cpu_name(), _asked(variant),
            variant.cmake_args, requirements(_gpu(variant)),
            [os.environ.get(name) for name in (*_BUILD_VARIABLES, *(() if variant.cmake_args else ("CMAKE_ARGS",)))],
        ]  # fmt: skip

    def _make(self, variant: Variant, folder: Path, marker: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)  # one that was interrupted
        log = self.log(variant)
        log.write_text("")
        env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
        if variant.cmake_args is not None:
            env["CMAKE_ARGS"] = variant.cmake_args
        python = str(folder / "bin" / "python")
        pip = [python, "-m", "pip", "--no-input", "--disable-pip-version-check", "install", "--progress-bar", "off"]
        # pip's cache knows a wheel by its version alone, not by how it was built
        anew = ["--no-binary", PACKAGE, "--no-cache-dir"] if variant.cmake_args is not None else []
        self._run([sys.executable, "-m", "venv", str(folder)], env, log)
        self._run([*pip, *requirements(_gpu(variant))], env, log)
        self._run([*pip, *anew, f"{PACKAGE}=={_asked(variant)}"], env, log)
        marker.with_suffix(".part").write_text(json.dumps({PACKAGE: _asked(variant), "inputs": self._inputs(variant)}))
        marker.with_suffix(".part").replace(marker)

    def _run(self, command: list[str], env: Mapping[str, str], log: Path) -> None:
        with log.open("a") as file:
            file.write(f"$ {' '.join(command)}\n")
        ended = self._processes.run(command, self._time_limit, env, log=log)
        if ended.exit_code == 0:
            return
        if ended.exit_code is None:
            how = f"was not done within {self._time_limit:g} s"
        elif ended.exit_code < 0:
            how = f"died of {signal_name(ended.exit_code)}"
        else:
            said = [line for line in ended.said if line.startswith("ERROR")] or list(ended.said)
            how = printable(said[-1], 300) if said else f"ended with exit code {ended.exit_code}"
        raise EnvironmentFault(f"its llama.cpp cannot be installed: {how} (log: {log.name} in the cache)")


def _asked(variant: Variant) -> str:
    return variant.version or bindings.version()


def _gpu(variant: Variant) -> bool:
    return variant.hosts is not None and any(host != "cpu" for host in variant.hosts)
