"""Where compiled kernels are kept, on machines that do not run code from everywhere."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from gguf_verify.hosts import compiler
from gguf_verify.support import cache


@pytest.fixture
def noexec(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Path]:
    """Folders whose file systems are mounted noexec."""
    found: list[Path] = []

    def statvfs(path: Path) -> SimpleNamespace:
        return SimpleNamespace(f_flag=8 if any(Path(path).is_relative_to(folder) for folder in found) else 0)

    monkeypatch.setattr(os, "statvfs", statvfs)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    return found


def test_a_folder_that_runs_code_is_taken(noexec: list[Path], tmp_path: Path) -> None:
    find = cache.cache_dir.__wrapped__
    assert find() == tmp_path / "home" / "gguf-verify"
    noexec.append(tmp_path / "home")
    assert find().parent == tmp_path / "temporary"
    noexec.append(tmp_path / "temporary")  # no better: it is kept beyond this run
    assert find() == tmp_path / "home" / "gguf-verify"


def test_what_cannot_be_loaded_from_there_is_said(
    noexec: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler, "cache_dir", lambda: tmp_path)
    refused = OSError("failed to map segment from shared object")
    assert "failed to map" in str(compiler._not_loaded(refused))
    noexec.append(tmp_path)
    said = str(compiler._not_loaded(refused))
    assert f"loaded from {tmp_path}, whose file system is mounted noexec: set XDG_CACHE_HOME to" in said
