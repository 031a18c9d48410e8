"""The machine and the project version of a night."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from pathlib import Path

from gguf_verify.hosts.choice import auto_host as host_of_auto
from gguf_verify.hosts.choice import cards
from gguf_verify.hosts.compiler import cpu_name
from gguf_verify.support.paths import CHECKOUT, PACKAGE, kernel_root
from gguf_verify.support.version import project_version

#: Times of two nights are compared only if these values are equal.
SAME_MACHINE = ("CPU", "cores", "GPU")


def hardware() -> dict[str, str]:
    """CPU, cores, memory, GPU, system: name → value."""
    found = {
        **processor(), "memory": _memory(), "GPU": _gpu(), "system": f"{platform.system()} {platform.release()}",
    }  # fmt: skip
    return {name: value for name, value in found.items() if value}


def processor() -> dict[str, str]:
    """CPU and cores: name → value. Does not access a GPU."""
    return {"CPU": cpu_name(), "cores": str(len(os.sched_getaffinity(0)))}


def _memory() -> str:
    try:
        return f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.1f} GiB"
    except (ValueError, OSError):
        return ""


def _gpu() -> str:
    return ", ".join(f"{card.device} (sm_{card.sm})" for card in cards())


def auto_host() -> str:
    """The host that `--host auto` chooses on this machine."""
    return host_of_auto()[0]


def project() -> str:
    """The project's version; in a checkout with the commit, and "with changes" if a file differs from it."""
    root = CHECKOUT
    version = project_version()
    if not (root / ".git").exists():
        return version
    commit = _git(root, "rev-parse", "--short=12", "HEAD")
    changed = _git(root, "status", "--porcelain", "--untracked-files=no")
    return version if not commit else f"{version} ({commit}{', with changes' if changed else ''})"


def _git(root: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def code_hash() -> str:
    """The sha256 of the package and the kernels; nights with the same hash ran the same code."""
    package = PACKAGE
    digest = hashlib.sha256()
    for root in (package, kernel_root()):
        for path in sorted(root.rglob("*")):
            if path.suffix in {".py", ".cu", ".cuh", ".hpp"}:
                content = path.read_bytes()
                digest.update(f"{path.relative_to(root)}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()
