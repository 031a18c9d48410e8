"""Check of the machine that this project runs on."""

from __future__ import annotations

import platform

from .errors import EnvironmentFault

_SYSTEMS = {"Darwin": "macOS"}
_X86_64 = ("x86_64", "amd64")
_DOCKER = "Docker with --platform linux/amd64"
#: Where the system offers one, a Linux for this very processor comes first.
_WAYS = {"Windows": "WSL2 or Docker"}


def check_machine() -> None:
    """Raise EnvironmentFault unless this is Linux on an x86-64 processor.

    The definitions of llama.cpp's CPU backend are those of its x86-64 builds; ARM builds accumulate halves in F16. The
    processes use features that only Linux has (`prctl`, `/proc`, process file descriptors).
    """
    system, machine = platform.system(), platform.machine()
    if system == "Linux" and machine.lower() in _X86_64:
        return
    here = f"{_SYSTEMS.get(system, system)} on {machine}".strip() or "an unknown system"
    way = _WAYS.get(system, _DOCKER) if machine.lower() in _X86_64 else _DOCKER
    raise EnvironmentFault(
        f"gguf-verify runs on Linux on x86-64 processors only, not on {here}; run it in {way}",
        "unsupported-machine",
    )
