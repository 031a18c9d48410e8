"""The identity that two processes must share so that either may judge for the other: what a report says about a run."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import asdict

from ..gguf.mapped import Mapped
from ..gguf.model import open_model
from ..kernels.foreign.names import file_of, names_foreign
from ..processes import sandbox
from ..rungs.run import Run
from ..support.errors import EnvironmentFault, HarnessError
from ..support.paths import PACKAGE, kernel_root
from ..support.text import printable
from ..support.version import project_version
from .connection import LOCAL

_OF_LLAMA = ("llama_cpp_python", "llama_cpp", "ggml", "system")
_BOOT = Path("/proc/sys/kernel/random/boot_id")
Digests = Callable[[], Sequence[str]]


@dataclass(frozen=True)
class Files:
    """The files that another process must find.

    Args:
        machine: since when this machine runs, which no other machine has in common with it; "" where it does not say.
        identities: devices, inodes, sizes and times of the files.
        digests: SHA-256 of each.
    """

    machine: str
    identities: list[list[int]]
    digests: tuple[str, ...]

    @classmethod
    def of(cls, files: Sequence[Mapped], digests: Digests) -> Files:
        """Those that this process has open."""
        return cls(_machine(), [file.identity for file in files], tuple(digests()))

    def expect(self, files: Sequence[Mapped], digests: Digests, name: str) -> None:
        """Raises EnvironmentFault where these are others: of the same machine by inode and time, else by content."""
        same = bool(self.machine) and (_machine(), [f.identity for f in files]) == (self.machine, self.identities)
        if not same and tuple(digests()) != self.digests:
            raise EnvironmentFault(
                f"it finds another file as {printable(name)}: its SHA-256 is not that of the file here"
            )


def of_code() -> dict[str, str]:
    """Name → value of what computes, but for llama.cpp."""
    return {
        "version of gguf-verify": project_version(),
        "code of gguf-verify": _digest([*PACKAGE.rglob("*.py"), *kernel_root().rglob("*.cu*"),
                                        *kernel_root().rglob("*.hpp")]),
        "Python": platform.python_version(),
        "NumPy": np.__version__,
        "sandbox": sandbox.current().words,
    }  # fmt: skip


def of_llama(versions: Mapping[str, Any]) -> dict[str, str]:
    """Likewise of llama.cpp, by `Llama.versions`."""
    return {f"llama.cpp ({name})": str(versions[name]) for name in _OF_LLAMA}


def identity(run: Run, kernel: str) -> dict[str, str]:
    """Name → value of everything but the model: versions, code, kernel, where it runs, and how it is confined.

    Args:
        kernel: as `--kernel` names it.
    """
    of_kernel = run.kernel
    hosts = [{**asdict(info), "threads": None} for info in (of_kernel.runs_on(), of_kernel.host.info())]
    confined = of_kernel.sandbox or sandbox.current()
    return {
        **of_code(),
        **of_llama(run.versions),
        "reference": run.backend.describe(),
        "sandbox of the kernel": confined.words,
        "device": str(hosts),
        "kernel": f"{of_kernel.name}, {of_kernel.semantics}, {of_kernel.order_in_words}, {'; '.join(of_kernel.code)}",
        "kernel's file": _digest([file_of(kernel)[0]]) if names_foreign(kernel) and _is_file(kernel) else "",
    }  # fmt: skip


def check(mine: Mapping[str, str], theirs: Mapping[str, str]) -> None:
    """Raises EnvironmentFault where another process has something otherwise, in words."""
    for name, value in mine.items():
        if theirs.get(name) != value:
            raise EnvironmentFault(
                f"it has another {name}: {theirs.get(name)!r}, here {value!r}; nothing was judged there"
            )


@dataclass(frozen=True)
class Expected:
    """The identity that a process must have to run an errand.

    Args:
        known: name → value of what it has in common with the one that asks, see `identity`.
        paths: files, models with all of their parts; and which they are.
    """

    known: Mapping[str, str]
    paths: tuple[Path, ...]
    files: Files

    @classmethod
    def of(cls, address: str, known: Mapping[str, str], paths: Sequence[Path]) -> Expected:
        """Of files that are on this machine no digest is needed. A file that is not there has none."""
        with ExitStack() as stack:
            mapped = _opened(paths, stack)
            digests = [] if address == LOCAL else [file.sha256() for file in mapped]
            return cls(known, tuple(paths), Files.of(mapped, lambda: digests))

    def check(self, known: Mapping[str, str]) -> None:
        """Raises EnvironmentFault where this process has something otherwise."""
        check(self.known, known)
        with ExitStack() as stack:
            mapped = _opened(self.paths, stack)
            self.files.expect(mapped, lambda: [f.sha256() for f in mapped], ", ".join(map(str, self.paths)))


def _opened(paths: Sequence[Path], stack: ExitStack) -> list[Mapped]:
    found = []
    for path in paths:
        try:
            found += [part.mapped for part in stack.enter_context(open_model(path)).parts]
        except HarnessError:  # no model, or none that can be read, which the errand will say
            try:
                found.append(Mapped(path))
                stack.callback(found[-1].close)
            except HarnessError:
                continue
    return found


def _machine() -> str:
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return ""


def _is_file(kernel: str) -> bool:
    return not kernel.startswith("torch.ops.") and file_of(kernel)[0].is_file()


def _digest(paths: Iterable[Path]) -> str:
    """Of the names and the contents of files."""
    made = hashlib.sha256()
    for path in sorted(paths):
        content = path.read_bytes()
        made.update(f"{path.name} {len(content)}\n".encode() + content)
    return made.hexdigest()[:16]
