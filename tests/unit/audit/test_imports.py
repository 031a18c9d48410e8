"""What an audit of a file of this machine leaves unloaded: each of these takes a megabyte or more."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.support.tools import ROOT

LEFT_OUT = (
    "asyncio", "urllib.request", "numpy.random", "gguf_verify.nightly", "gguf_verify.audit.remote", "llama_cpp",
)  # fmt: skip


def test_an_audit_loads_only_what_it_uses() -> None:
    code = (
        "import json, sys; from gguf_verify.cli import audit; audit.build_parser(); import gguf_verify.audit.many\n"
        f"print(json.dumps([name for name in {LEFT_OUT} if name in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert json.loads(done.stdout) == []
