"""Workers in the process of a test."""

from __future__ import annotations

import pytest

from gguf_verify.support import scratch


@pytest.fixture(autouse=True)
def not_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker joins the folder of the calling process; here that is this process, which owns it."""
    monkeypatch.setattr(scratch, "_joined", None)
