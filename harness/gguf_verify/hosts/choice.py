"""The available hosts, by the names for `--host`, and the choice among them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..support.errors import EnvironmentFault, UsageError
from ..support.near import nearest, spelled_as
from ..support.registry import members
from .kind import HostKind

if TYPE_CHECKING:
    from ..results.environment import HostInfo
    from .base import Host

HOSTS: dict[str, HostKind] = {
    kind.name: kind for kind in sorted(members(f"{__package__}.kinds", HostKind), key=lambda kind: -kind.rank)
}
#: The name that selects a host automatically.
AUTO = "auto"
#: The choices of `--host`.
HOST_CHOICES = (AUTO, *HOSTS)


def host_named(name: str) -> str:
    """Return the choice of `--host` that a name means, in any case; "cuda" is another name of "gpu"."""
    return spelled_as(name, HOST_CHOICES, {"cuda": "gpu"})


def make_host(name: str, threads: int = 0) -> Host:
    """Return the host of this name; `auto` selects the best one that is usable on this machine.

    Raises:
        EnvironmentFault: this machine lacks a requirement of the host. No other host replaces it.
        UsageError: no such host.
    """
    name = host_named(name)
    if name == AUTO:
        name, faults = auto_host()
        host = HOSTS[name].make(threads)
        host.chosen = f"by auto: {'; '.join(faults)}" if faults else "by auto"
        return host
    if name not in HOSTS:
        known = ", ".join(HOST_CHOICES)
        raise UsageError(f"no host is called {name!r}; {nearest(name, HOST_CHOICES)}there are: {known}", "unknown-host")
    return HOSTS[name].make(threads)


def in_its_process(host: Host, time_limit: float) -> Host:
    """Return the host in a separate process, if it is emulated; other hosts unchanged.

    `time_limit` is in seconds for a launch. The caller closes the host.
    """
    if not HOSTS[host.name].emulated:
        return host
    from .process_host import ProcessHost

    return ProcessHost(host, time_limit)


def auto_host() -> tuple[str, list[str]]:
    """Return the name of the host that `auto` selects here, and why better ones cannot be used.

    Raises EnvironmentFault.
    """
    faults: list[str] = []
    for name, kind in HOSTS.items():
        fault = kind.fault()
        if fault is None:
            return name, faults
        faults.append(fault)
    raise EnvironmentFault(f"no host can be used: {'; '.join(faults)}")


def cards() -> list[HostInfo]:
    """Return the GPUs that kernels can run on here."""
    usable = [kind.make(0).info() for kind in HOSTS.values() if not kind.emulated and kind.fault() is None]
    return [info for info in usable if info.sm is not None]


def help_of_hosts() -> str:
    """Return the descriptions of the hosts, for a help text."""
    return "; ".join(f"{kind.name}: {kind.title}" for kind in HOSTS.values())
