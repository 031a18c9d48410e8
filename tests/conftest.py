"""Fixtures that several test files share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gguf_verify.llama import Llama


@pytest.fixture(scope="session")
def llama() -> Iterator[Llama]:
    """llama.cpp's library in its own process."""
    with Llama() as process:
        yield process


@pytest.fixture(scope="session")
def shared_models() -> Path:
    """The folder of the contributors' models, beside the checkout."""
    folder = Path(__file__).resolve().parents[2] / "shared" / "models"
    if not folder.is_dir():
        pytest.skip("the shared models are not here")
    return folder
