"""The hosts that there are, by the names that `--host` takes, and the choice among them."""

from __future__ import annotations

from ..results import HostInfo
from ..support.errors import EnvironmentFault, UsageError
from ..support.near import nearest
from ..support.registry import members
from .base import Host, HostKind
from .process_host import ProcessHost

HOSTS: dict[str, HostKind] = {
    kind.name: kind for kind in sorted(members(__package__, HostKind), key=lambda kind: -kind.rank)
}
#: Lets this machine decide.
AUTO = "auto"
#: What `--host` takes.
HOST_CHOICES = (AUTO, *HOSTS)


def make_host(name: str, threads: int = 0) -> Host:
    """The host of this name; `auto` takes the best one that is usable on this machine.

    Raises:
        EnvironmentFault: this machine lacks what the host needs. No other host takes its place.
        UsageError: no such host.
    """
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
    """The host in a process of its own, where that is known to work: an emulated card. `time_limit` is in seconds, of a
    launch. The caller closes it."""
    return ProcessHost(host, time_limit) if HOSTS[host.name].emulated else host


def auto_host() -> tuple[str, list[str]]:
    """The name of the host that `auto` takes here, and why better ones cannot be used. Raises EnvironmentFault."""
    faults: list[str] = []
    for name, kind in HOSTS.items():
        fault = kind.fault()
        if fault is None:
            return name, faults
        faults.append(fault)
    raise EnvironmentFault(f"no host can be used: {'; '.join(faults)}")


def cards() -> list[HostInfo]:
    """The cards that kernels can run on here."""
    usable = [kind.make(0).info() for kind in HOSTS.values() if not kind.emulated and kind.fault() is None]
    return [info for info in usable if info.sm is not None]


def help_of_hosts() -> str:
    """What each host is, for a help text."""
    return "; ".join(f"{kind.name}: {kind.title}" for kind in HOSTS.values())
