"""Other versions of llama.cpp are installed below the cache, which sandboxes hide: a Python there must still run."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from tests.support.needs import need
from tests.support.tools import ROOT


@pytest.mark.parametrize("sandbox", ["bubblewrap", "landlock"])
def test_it_starts_llama_in_a_sandbox(tmp_path: Path, sandbox: str) -> None:
    need(sandbox)
    place = tmp_path / "cache" / "gguf-verify" / "variants" / "one"
    venv.EnvBuilder(symlinks=True, with_pip=False).create(place)
    paths = (str(ROOT / "harness"), sysconfig.get_path("purelib"))
    done = subprocess.run(
        [place / "bin" / "python", "-m", "gguf_verify", "devices", "--sandbox", sandbox],
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "CPU" in done.stdout
    assert sys.prefix != str(place)
