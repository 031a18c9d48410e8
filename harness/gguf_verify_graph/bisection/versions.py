"""Versions of llama-cpp-python: the available ones, and a Python with each of them."""

from __future__ import annotations

from gguf_verify.llama import installed
from gguf_verify.processes.commands import Processes
from gguf_verify.support.errors import say
from gguf_verify.support.text import printable
from gguf_verify_nightly.config import Variant
from gguf_verify_nightly.environments import Environments, Interpreter
from gguf_verify_nightly.requirements import LLAMA_PACKAGE

from .candidates import versions_on_index


class Versions:
    """Environments with versions of llama-cpp-python, shared with the nightly.

    Args:
        processes: runs pip.
        time_limit: seconds per installation.
    """

    def __init__(self, processes: Processes, time_limit: float) -> None:
        self._processes = processes
        self._environments = Environments(processes, time_limit)

    def identity(self, version: str) -> str:
        """Return what distinguishes an environment from others of the same version."""
        return self._environments.identity(_variant(version))

    def interpreter(self, version: str) -> Interpreter:
        """Return a Python with this version. Raises EnvironmentFault if it cannot be installed."""
        variant = _variant(version)
        log = self._environments.log(variant)

        def announce() -> None:
            say(
                f"installing {LLAMA_PACKAGE} {version}, which takes some minutes to compile; log: {printable(str(log))}"
            )

        return self._environments.ready(variant, announce)

    def all(self) -> list[str]:
        """Return the versions on the package index, oldest first. Raises EnvironmentFault."""
        return versions_on_index(self._processes, LLAMA_PACKAGE)


def _variant(version: str) -> Variant:
    """Return the variant of a version; the installed one needs no environment of its own."""
    return Variant() if version == installed.version() else Variant(version=version)
