"""The versions of llama-cpp-python: which there are, and a Python with each of them."""

from __future__ import annotations

from gguf_verify.llama import installed
from gguf_verify.processes.commands import Processes
from gguf_verify.support.errors import say
from gguf_verify.support.text import printable
from gguf_verify_nightly.config import Variant
from gguf_verify_nightly.environments import Environments, Interpreter
from gguf_verify_nightly.requirements import LLAMA_PACKAGE

from .index import versions_on_index


class Versions:
    """The environments are those of the nightly: one that it made is used, and one that is made here serves it.

    Args:
        processes: runs pip.
        time_limit: how many seconds installing one may take.
    """

    def __init__(self, processes: Processes, time_limit: float) -> None:
        self._processes = processes
        self._environments = Environments(processes, time_limit)

    def identity(self, version: str) -> str:
        """What tells an environment from others of the same version."""
        return self._environments.identity(_variant(version))

    def interpreter(self, version: str) -> Interpreter:
        """A Python with this version. Raises EnvironmentFault where it cannot be installed."""
        variant = _variant(version)
        log = self._environments.log(variant)

        def told() -> None:
            say(f"installing {LLAMA_PACKAGE} {version}, which is compiled in some minutes; log: {printable(str(log))}")

        return self._environments.ready(variant, told)

    def all(self) -> list[str]:
        """Those that the index of packages has, the oldest first. Raises EnvironmentFault."""
        return versions_on_index(self._processes, LLAMA_PACKAGE)


def _variant(version: str) -> Variant:
    """The one that is installed needs no environment of its own."""
    return Variant() if version == installed.version() else Variant(version=version)
