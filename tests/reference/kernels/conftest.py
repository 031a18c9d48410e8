"""The CPU host."""

from __future__ import annotations

import pytest

from gguf_verify.hosts.cpu_host import CpuHost


@pytest.fixture(scope="session")
def host() -> CpuHost:
    """Of two threads, so that a launch is shared out. It holds each kernel that a test before has loaded."""
    return CpuHost(2)
