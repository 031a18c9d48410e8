"""Kernels of a few lines, compiled for the CPU host."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.support.paths import kernel_root
from tests.support.cuda_functions import OnCpu
from tests.support.short_kernels import Build, with_kernel


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """source → a folder that holds it as `k.cu`, the same one for the same source. No test changes its files."""
    made: dict[str, Path] = {}
    copied = shutil.copytree(kernel_root(), tmp_path_factory.mktemp("copied") / "kernels")

    def root(source: str) -> Path:
        if source not in made:
            made[source] = with_kernel(tmp_path_factory.mktemp("root"), source, copied)
        return made[source]

    return root


@pytest.fixture
def build(roots: Callable[[str], Path]) -> Build:
    def load(source: str, host: CpuHost) -> Any:
        return host.load(roots(source), "k.cu", "k", {})

    return load


@pytest.fixture(scope="package")
def cpu(tmp_path_factory: pytest.TempPathFactory) -> OnCpu:
    """CUDA's functions."""
    return OnCpu(tmp_path_factory.mktemp("functions"))
