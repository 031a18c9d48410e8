"""The scanner of #include: what it is asked to read may be a device, a pipe, or the source itself."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gguf_verify.hosts.includes import included


@pytest.mark.parametrize("kind", ["device", "pipe", "folder"])
def test_what_has_no_end_is_not_read(tmp_path: Path, kind: str) -> None:
    """The source is then compiled each time."""
    match kind:
        case "device":
            (tmp_path / "x.h").symlink_to("/dev/zero")
        case "pipe":
            os.mkfifo(tmp_path / "x.h")
        case _:
            (tmp_path / "x.h").mkdir()
    (tmp_path / "k.cu").write_text('#include "x.h"\n')
    assert included(tmp_path, "k.cu", (), {}) is None


def test_a_source_that_includes_itself(tmp_path: Path) -> None:
    (tmp_path / "k.cu").write_text('#include "k.cu"\n')
    assert included(tmp_path, "k.cu", (), {}) == [str(tmp_path / "k.cu")]
