"""Where kernels run. `make_host` is the only place that knows which hosts exist."""

from __future__ import annotations

from ..support.errors import UsageError
from .base import Host
from .cpu_host import CpuHost
from .cupy_host import CupyHost, gpu_fault

HOSTS = ("auto", "gpu", "cpu")


def make_host(name: str, threads: int = 0) -> Host:
    """The host of this name; `auto` takes a GPU where there is a usable one, else the CPU.

    Raises:
        EnvironmentFault: `gpu` where there is none: never a silent fallback.
        UsageError: no such host.
    """
    fault = gpu_fault() if name == "auto" else None
    if name == "gpu" or (name == "auto" and fault is None):
        host: Host = CupyHost()
    elif name in ("auto", "cpu"):
        host = CpuHost(threads)
    else:
        raise UsageError(f"no host is called {name!r}; there are: {', '.join(HOSTS)}")
    if name == "auto":
        host.chosen = f"by auto: {fault}" if fault else "by auto"
    return host


__all__ = ["HOSTS", "CpuHost", "CupyHost", "Host", "make_host"]
