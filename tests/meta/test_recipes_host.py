"""The recipes "add a host" and "add a backend of llama.cpp" of docs/extending.md: one new file each is listed and
changes a verdict."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.project_copy import ProjectCopy
from tests.support.tools import FIXTURES, flat

MODEL = FIXTURES / "tiny-Q4_0.gguf"

HALF = '''"""A host of a test: the CPU, whose products are rounded to half as they are read."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..cpu_host import CpuHost
from ..kind import HostKind


class HalfHost(CpuHost):
    """The CPU host but for `download`."""

    name = "half"
    _rounds = False

    def launch(self, kernel: Any, *arguments: Any, **named: Any) -> None:
        super().launch(kernel, *arguments, **named)
        self._rounds = kernel.__name__.startswith("gemm")

    def download(self, output: Any) -> Any:
        made = super().download(output)
        return made.view(np.float32).astype(np.float16).astype(np.float32).view(np.uint8) if self._rounds else made


HALF = HostKind("half", "the CPU, rounding to half", -1, HalfHost, lambda: None, emulated=True)
'''

SCALED = '''"""A backend of a test: llama.cpp's CPU backend, whose block products are a thousandth too large."""

from __future__ import annotations

from typing import Any

import numpy as np

from .cpu import CpuBackend, CpuDevice
from .interface import BackendKind


class ScaledBackend(CpuBackend):
    """The CPU backend by another name."""

    def describe(self) -> str:
        return "CPU, scaled"


class ScaledDevice(CpuDevice):
    """The CPU but for the products of blocks."""

    def block_products(self, *arguments: Any) -> Any:
        return super().block_products(*arguments) * np.float32(1.001)


SCALED = BackendKind("CPU", "llama.cpp's CPU backend, scaled", ScaledBackend, lambda _device: ScaledDevice())
'''


def test_a_new_host_is_one_file(tmp_path: Path) -> None:
    copy = ProjectCopy(tmp_path / "project")
    layers = (MODEL, "--rungs", "layers", "--tensor", "blk.0.attn_k", "--probes", "brief")
    before = copy.cli(*layers, "--host", "half")
    assert (before.returncode, "'half'" in before.stderr) == (2, True), before.stderr
    copy.add("harness/gguf_verify/hosts/kinds/half.py", HALF)
    assert "half: the CPU, rounding to half" in " ".join(copy.cli("--help").stdout.split())
    right = copy.cli(*layers, "--host", "cpu")
    assert right.returncode == 0, right.stdout + right.stderr
    wrong = copy.cli(*layers, "--host", "half")
    assert wrong.returncode == 1, wrong.stdout + wrong.stderr
    assert "is outside the bound" in flat(wrong.stdout)
    assert "half: " in wrong.stdout


def test_a_new_backend_is_one_file(tmp_path: Path) -> None:
    """For a device that ggml has: the CPU backend, after its own file was removed."""
    copy = ProjectCopy(tmp_path / "project")
    blocks = (MODEL, "--host", "cpu", "--rungs", "blocks", "--tensor", "blk.0.attn_k", "--probes", "brief")
    file = "harness/gguf_verify/llama/backends/cpu.py"
    text, _, record = copy.take_away(file).rpartition("\nCPU = ")
    assert record.startswith("BackendKind(")
    copy.add(file, text)
    before = copy.cli(*blocks)
    assert before.returncode == 5, before.stdout + before.stderr
    copy.add("harness/gguf_verify/llama/backends/scaled.py", SCALED)
    wrong = copy.cli(*blocks)
    assert wrong.returncode == 1, wrong.stdout + wrong.stderr
    assert re.search(r"llama\.cpp \S+ on CPU, scaled", flat(wrong.stdout))
    assert "is outside the bound" in flat(wrong.stdout)
