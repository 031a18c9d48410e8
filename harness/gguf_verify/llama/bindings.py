"""llama.cpp's C functions in this process, and the build that they belong to: llama-cpp-python's, or a chosen one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..support.partial_import import submodule
from . import installed
from .builds import Build, chosen

_foreign = chosen()
api: Any
if _foreign is None:
    api = submodule("llama_cpp.llama_cpp")
    #: The build whose libraries are used.
    BUILD = Build(Path(str(api.__file__)).parent / "lib")
else:
    from . import foreign_api

    BUILD = _foreign
    api = foreign_api.api(_foreign)


def version() -> str:
    """Return the version of llama-cpp-python; "none" if it is not used."""
    return installed.version() if _foreign is None else "none"


def name() -> str:
    """Return the build's name, for messages."""
    return f"llama-cpp-python {version()}" if _foreign is None else f"the build {BUILD.path}"
