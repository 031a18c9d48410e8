"""Names of foreign kernels, as `--kernel` takes them. `opening` finds and starts the kernels."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from ...support.errors import UsageError

#: Begins the name of a PyTorch operator.
TORCH = "torch.ops"
#: Default time limit of a call in seconds.
TIME_LIMIT = 60.0

_FOREIGN = re.compile(r"(?s)\.(py|cu|ptx|cubin|so)(:|$)|\.toml$|^torch\.ops\.")


def names_foreign(kernel: str) -> bool:
    """Return whether `--kernel` names a foreign kernel, and not a shipped one."""
    return _FOREIGN.search(kernel) is not None


def file_of(kernel: str, declared: str = "") -> tuple[Path, str]:
    """Split a kernel's name into its file and the entry in it, which is "" for a FILE.toml.

    For an operator of PyTorch the file is the one that declares it. Raises UsageError for an operator without such a
    file.
    """
    if kernel.startswith(f"{TORCH}."):
        if not declared:
            raise UsageError('an operator has no file: declare it in a FILE.toml with code = "torch.ops", and use that')
        return Path(declared), kernel
    path, _, entry = kernel.rpartition(":")
    return (Path(path), entry) if path and not kernel.endswith(".toml") else (Path(kernel), "")


@dataclass(frozen=True)
class Further:
    """Options of the command line that describe a kernel besides its name.

    Args:
        declared: a file with its declaration, if that is neither in the kernel's file nor beside it.
        modules, libraries: modules to import and libraries to load before PyTorch's operators are looked up.
    """

    declared: str = ""
    modules: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
