"""Nights whose cells are run by a stub in place of verify_model."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from gguf_verify_nightly.config import read_config
from gguf_verify_nightly.history import History
from gguf_verify_nightly.night import Settings, run_night
from gguf_verify_nightly.records import Cell, Key, Measure, Night, Outcome
from tests.support.nights import run_result
from tests.support.tools import FIXTURES, ROOT

STUB = [sys.executable, "-I", "-S", str(ROOT / "tests" / "support" / "nightly_stub.py")]


Q4_0 = FIXTURES / "tiny-Q4_0.gguf"


def write_config(folder: Path, text: str = "", models: str | None = None, **prompts: str) -> Path:
    """A configuration on the CPU in a folder of its own, with a link to a fixture as its model."""
    path = folder / "night.toml"
    link = folder / "tiny.gguf"
    if not link.exists():
        link.symlink_to(Q4_0)
    table = "\n[prompts]\n" + "".join(f"{k} = {json.dumps(v)}\n" for k, v in prompts.items()) if prompts else ""
    path.write_text(f'models = {models or json.dumps(["tiny.gguf"])}\nhosts = ["cpu"]\n{text}\n{table}')
    return path


def run_stub(folder: Path, text: str = "", said: list[str] | None = None, **prompts: str) -> Night:
    config = read_config(write_config(folder, text, **prompts))
    lines = [] if said is None else said
    return run_night(config, Settings(harness=STUB, say=lines.append))


def plain(night: Night) -> list[object]:
    """What two runs of the same have in common: all but times."""
    return [
        (cell.key, dataclasses.replace(cell, seconds=0.0, gemms=dict(cell.gemms))) for cell in night.cells.values()
    ]  # fmt: skip


def killed_and_resumed(
    folder: Path, path: Path, start: Callable[[], int], kills: int, seed: int, longest: float
) -> tuple[Night, int]:
    """Kill a night at random moments, then let it end. Returns it and how many kills met a night at work."""
    rng = random.Random(seed)
    history_path = read_config(path).history
    finished, met = False, 0
    for _ in range(kills):
        pid = start()
        time.sleep(rng.uniform(0.0, longest))
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        met += os.WIFSIGNALED(status)
        with History(history_path) as history:
            nights = history.nights()
        finished = bool(nights) and not nights[0].missing
        if finished:  # the next would begin another
            break
    if not finished or not nights[0].finished:
        _, status = os.waitpid(start(), 0)
        assert status == 0
    with History(history_path) as history:
        assert len(history.nights()) == 1
        return history.night(1), met


KEY = Key("m.gguf", "Q4_0", "q8_1", "cpu", "p", "installed")


def cell_for(key: Key = KEY, outcome: Outcome = Outcome.VERIFIED, seconds: float = 1.0, u: float = 0.1) -> Cell:
    return Cell(
        key, outcome, "" if outcome is Outcome.VERIFIED else "wrong", 0, seconds, {"bytes": 0.5}, {"llama.cpp": "1"},
        "cpu: x", (Measure("layers", "kernel", u, None, "there", True),), {"KL": 1e-3}, {"blk.0": u, "blk.1": math.inf},
        run_result(["é"]),
    )  # fmt: skip
