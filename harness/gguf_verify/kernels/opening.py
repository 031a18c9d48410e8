"""The kernel that a run asks for, by name or as it is, opened for as long as the run takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ..hosts import make_host
from ..hosts.base import Host
from ..rungs import Options
from .families import find_kernel
from .foreign import names_foreign, open_kernel
from .interface import Kernel


@contextmanager
def opened(kernel: Kernel | str | Callable[..., Any], host: Host | str, options: Options) -> Iterator[Kernel]:
    """A shipped kernel or family on a host, a foreign one in its process, or the Kernel itself.

    Raises UsageError where there is no such kernel, EnvironmentFault where there is no such host.
    """
    if isinstance(kernel, Kernel):
        yield kernel
        return
    where = make_host(host, options.threads) if isinstance(host, str) else host
    if isinstance(kernel, str) and not names_foreign(kernel):
        yield find_kernel(kernel).on(where)
        return
    foreign = open_kernel(kernel, where, options.kernel_time_limit, options.verbose)
    try:
        yield foreign
    finally:
        foreign.close()


__all__ = ["opened"]
