"""What two processes must have in common so that either may judge for the other: what a report says of a run."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from msgspec.structs import asdict

from ..gguf import Model
from ..kernels.foreign.opening import file_of, names_foreign
from ..processes import sandbox
from ..rungs.run import Run
from ..support.paths import PACKAGE, kernel_root
from ..support.version import project_version

_OF_LLAMA = ("llama_cpp_python", "llama_cpp", "ggml", "system")
_BOOT = Path("/proc/sys/kernel/random/boot_id")


def identity(run: Run, kernel: str) -> dict[str, str]:
    """Name → value of everything but the model: versions, code, kernel, where it runs, and how it is confined.

    Args:
        kernel: as `--kernel` names it.
    """
    of_kernel = run.kernel
    hosts = [{**asdict(info), "threads": None} for info in (of_kernel.runs_on(), of_kernel.host.info())]
    confined = of_kernel.sandbox or sandbox.current()
    return {
        "version of gguf-verify": project_version(),
        "code of gguf-verify": _digest([*PACKAGE.rglob("*.py"), *kernel_root().rglob("*.cu*")]),
        "Python": platform.python_version(),
        "NumPy": np.__version__,
        **{f"llama.cpp ({name})": str(run.versions[name]) for name in _OF_LLAMA},
        "reference": run.backend.describe(),
        "sandbox": sandbox.current().words,
        "sandbox of the kernel": confined.words,
        "device": str(hosts),
        "kernel": f"{of_kernel.name}, {of_kernel.semantics}, {of_kernel.order_in_words}, {'; '.join(of_kernel.code)}",
        "kernel's file": _digest([file_of(kernel)[0]]) if names_foreign(kernel) and _is_file(kernel) else "",
    }  # fmt: skip


def files(model: Model) -> tuple[str, list[list[int]]]:
    """Which machine this is since when, and the parts' devices, inodes, sizes and times: the same files."""
    try:
        boot = _BOOT.read_text().strip()
    except OSError:
        boot = ""
    return boot, [part.mapped.identity for part in model.parts]


def difference(mine: dict[str, str], theirs: dict[str, str]) -> str | None:
    """What another process has otherwise, in words; None where that is nothing."""
    for name, value in mine.items():
        if theirs.get(name) != value:
            return f"another {name}: {theirs.get(name)!r}, here {value!r}"
    return None


def _is_file(kernel: str) -> bool:
    return not kernel.startswith("torch.ops.") and file_of(kernel)[0].is_file()


def _digest(paths: Iterable[Path]) -> str:
    """Of the names and the contents of files."""
    made = hashlib.sha256()
    for path in sorted(paths):
        content = path.read_bytes()
        made.update(f"{path.name} {len(content)}\n".encode() + content)
    return made.hexdigest()[:16]


__all__ = ["difference", "files", "identity"]
