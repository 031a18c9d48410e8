"""Finding kernels by the names that `--kernel` takes: shipped kernels and families, and foreign kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ..hosts.base import Host
from ..hosts.choice import in_its_process, make_host
from ..results.options import Options
from ..support.errors import UsageError
from ..support.near import nearest
from .families import FAMILIES
from .family import Family, FamilyOnHost
from .foreign.names import TIME_LIMIT, Further, names_foreign
from .interface import Candidate
from .ladder import KERNELS
from .shipped import ShippedKernel
from .spec import KernelSpec

#: What `--kernel` takes besides the names of shipped kernels.
YOUR_OWN = ", and your own as FILE.py:NAME, FILE.cu:SYMBOL or FILE.toml"


def further(options: Options) -> Further:
    """Return what a run's options say about a foreign kernel."""
    return Further(options.declare, options.imports, options.loads)


def find_kernel(name: str, others: str = "") -> KernelSpec | Family:
    """Return the shipped kernel or family of this name. Raises UsageError, which lists the known names, and `others`
    that the command takes."""
    found = FAMILIES.get(name) or KERNELS.get(name)
    if found is None:
        known = [*FAMILIES, *KERNELS]
        if name.endswith(".gguf"):
            raise UsageError(
                f"{name!r} is a model, not a kernel; to verify one on it: `gguf-verify MODEL.gguf --kernel KERNEL`",
                "unknown-kernel",
            )
        there = f"there are: {', '.join(known)}{others}"
        raise UsageError(f"no kernel is called {name!r}; {nearest(name, known)}{there}", "unknown-kernel")
    return found


def on_host(found: KernelSpec | Family, host: Host) -> ShippedKernel | FamilyOnHost:
    """Return a shipped kernel or family on a host."""
    return ShippedKernel(found, host) if isinstance(found, KernelSpec) else FamilyOnHost(found, host)


@contextmanager
def open_kernel(
    kernel: Candidate | str | Callable[..., Any],
    host: Host | str,
    threads: int = 0,
    time_limit: float = TIME_LIMIT,
    verbose: bool = False,
    further: Further | None = None,
    wanted: frozenset[str] | None = None,
    progress: Callable[[str], None] | None = None,
) -> Iterator[Candidate]:
    """Open the candidate that a run verifies, as a context manager that lasts as long as the run.

    Args:
        kernel: the name of a shipped kernel or family; FILE.py:NAME or FILE.cu:SYMBOL; a function or object that
            declares itself as a kernel; or a Candidate, which is returned unchanged.
        host: the host to run on, or its name; given a name, shipped kernels run in a separate process.
        threads: number of threads of a host that is made from its name; 0: all.
        time_limit: seconds for one call of a foreign kernel, or for one launch of a shipped one.
        verbose: pass the output of a foreign kernel on to standard error.
        further: the declaration, modules and libraries of a foreign kernel, where they are given separately from its
            name.
        wanted: names of the weight types to open the kernel for; None for all. Other types need not be compiled.
        progress: called with a description of each step of opening a foreign kernel.

    Raises UsageError if there is no such kernel, EnvironmentFault if there is no such host.
    """
    if isinstance(kernel, Candidate):
        yield kernel
        return
    shipped = isinstance(kernel, str) and not names_foreign(kernel)
    found = find_kernel(kernel, YOUR_OWN) if shipped and isinstance(kernel, str) else None
    where = in_its_process(make_host(host, threads), time_limit) if isinstance(host, str) else host
    try:
        if found is not None:
            yield on_host(found, where)
            return
        from .foreign.opening import open_foreign
        from .foreign.tasks import as_task

        foreign = as_task(open_foreign(kernel, where, time_limit, verbose, further, wanted, progress))
        try:
            yield foreign
        finally:
            foreign.close()
    finally:
        if isinstance(host, str):
            where.close()
