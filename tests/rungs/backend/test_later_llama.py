"""A llama.cpp after v0.5.0, whose graphs hold nodes that are not computed, in one library for all."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gguf_verify.backend_results import GraphOptions
from gguf_verify.llama.builds import Build, find
from gguf_verify.results.options import Options
from gguf_verify.verification import verify
from gguf_verify_graph.verification import verify_graph
from tests.support.needs import later_llama
from tests.support.tools import FIXTURES, ROOT

MODEL = FIXTURES / "tiny-Q4_0.gguf"
pytestmark = pytest.mark.needs("later-llama")


@pytest.fixture(scope="module")
def library() -> str:
    return str(later_llama())


@pytest.mark.parametrize("fused", [False, True])
def test_nodes_that_no_backend_computes_are_not_judged(library: str, fused: bool) -> None:
    report = verify_graph(MODEL, GraphOptions(llama=library, n_predict=1, threads=1, fused=fused, progress=False))
    assert (report.verdict, report.wrong, report.not_judged) == ("verified", (), ())
    assert report.build.llama_cpp == "0.6.0-dev"
    assert report.build.folder == library
    rope = next(step for step in report.graph if step.operation == "ROPE")
    assert rope.parameters["freq_base"] == "10000"


def test_a_kernel_is_verified_against_it(library: str) -> None:
    options = Options(llama=library, probes="brief", n_predict=2, threads=1, progress=False)
    report = verify(MODEL, "q8_1", "cpu", ("layers", "tokens"), replace(options, tensor="blk[.]0[.]"))
    assert report.verdict == "verified", report.rungs
    assert report.rungs[0].checked["GEMMs"] == 7


def test_llama_cpp_python_is_not_needed(library: str, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['llama_cpp'] = None\n")
    command = [
        sys.executable,
        "-m",
        "gguf_verify",
        MODEL,
        "--llama",
        Path(library).parent,
        "--tensor",
        "blk.0.attn_[qk]",
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT / "harness")])}
    done = subprocess.run(
        [*map(str, command), "--effort", "quick", "-n", "2"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "4 of 4 rungs passed" in done.stdout


@pytest.mark.parametrize("given", [Path, lambda library: Path(library).parent])
def test_one_library_identifies_its_build(library: str, given: Callable[[str], Path]) -> None:
    build = find(given(library))
    assert isinstance(build, Build)
    assert {build.library(name) for name in ("llama", "ggml", "ggml-base", "ggml-cpu")} == {Path(library)}
    assert build.libraries() == [Path(library)]
