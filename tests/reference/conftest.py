"""Processes that tests of this tier share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support import kept_processes
from tests.support.kept_processes import KeptLlama, KeptReaders


@pytest.fixture(scope="session")
def kept() -> Iterator[None]:
    yield
    kept_processes.end()


@pytest.fixture(autouse=True)
def processes_are_kept(request: pytest.FixtureRequest, kept: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Audits and bytes rungs in this process take over processes: without `--live`, and in tests without the marker
    `live`."""
    if not request.config.getoption("--live") and request.node.get_closest_marker("live") is None:
        monkeypatch.setattr("gguf_verify.audit.audit.Llama", KeptLlama)
        monkeypatch.setattr("gguf_verify.audit.audit.Readers", KeptReaders)
        monkeypatch.setattr("gguf_verify.rungs.bytes.Readers", KeptReaders)
