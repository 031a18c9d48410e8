"""A fixture's file and a host, for tests of single rungs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gguf_verify.gguf.model import Model, open_model
from gguf_verify.hosts.cpu_host import CpuHost
from tests.support.tools import FIXTURES


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    with open_model(FIXTURES / "tiny-Q4_0.gguf") as opened:
        yield opened


@pytest.fixture(scope="module")
def host() -> CpuHost:
    return CpuHost(1)
