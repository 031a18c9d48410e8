"""Processes that read files, taken over: the harm that a file could do that breaks into llama.cpp or gguf-py."""

from __future__ import annotations

from pathlib import Path

from tests.support.hostile import Arena, together
from tests.support.hostile_ground import Ground
from tests.support.tools import ROOT

HONEST = f"{ROOT / 'examples' / 'numpy_q4_0.py'}:gemm"


def test_the_worker_of_llama_is_taken_over(ground: Ground, tmp_path: Path) -> None:
    """It attacks, then works as it should: so the kernel is verified, and nothing else happened."""
    with Arena(ground, tmp_path / "arena", possessed="llama/worker/__main__.py") as arena:
        outcome = arena.run(together(), "worker", kernel=HONEST, exits=[0])
        assert not outcome.breaches, outcome.described()


def test_readers_are_taken_over(ground: Ground, tmp_path: Path) -> None:
    with Arena(ground, tmp_path / "arena", possessed="llama/reader_process.py") as arena:
        outcome = arena.audit(together())
        assert not outcome.breaches, outcome.described()
