"""The record of a host, which each module of `kinds` defines and the registry finds.

A module of `kinds` imports its host only when it makes one, so the hosts can be listed without importing them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .base import Host


@dataclass(frozen=True)
class HostKind:
    """A choice of `--host`.

    Args:
        name: the name for `--host`.
        title: a description for help texts.
        rank: `auto` selects the usable host of the highest rank.
        make: makes the host, with this many operating-system threads (0: chosen by the host). Raises EnvironmentFault.
        fault: returns why it cannot be used on this machine, or None if it can.
        emulated: it emulates a GPU, many times slower than a real one.
    """

    name: str
    title: str
    rank: int
    make: Callable[[int], Host]
    fault: Callable[[], str | None]
    emulated: bool = False
