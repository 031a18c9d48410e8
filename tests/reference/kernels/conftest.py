"""The CPU host, with every kernel compiled where many tests will ask for them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from gguf_verify.hosts import CpuHost
from gguf_verify.support.paths import kernel_root
from tests.support.kernel_inputs import sources


@pytest.fixture(scope="module")
def host(request: pytest.FixtureRequest) -> CpuHost:
    host = CpuHost(2)
    if len(request.session.items) > 50:  # all of them: compile two at a time what the cache does not hold
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda source: host.load(kernel_root(), *source), sources()))
    return host
