"""The CPU as a host."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..kind import HostKind

if TYPE_CHECKING:
    from ..base import Host


def _make(threads: int) -> Host:
    from ..cpu_host import CpuHost

    return CpuHost(threads)


CPU = HostKind("cpu", "the CPU, which emulates a GPU", 0, _make, lambda: None, emulated=True)
