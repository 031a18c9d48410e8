"""Compares the verdicts of `kill` with those of `gguf-verify` itself.

`gguf-verify` runs from a copy of the project with the mutant in its kernels, on the same real model.
"""

from __future__ import annotations

import argparse
import random
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from gguf_verify.support import scratch
from gguf_verify.support.paths import CHECKOUT, kernel_root

from ..inputs import model_in
from .kill import finished, lines_file, work_folder
from .mutator import PRELUDE, Mutant
from .population import Record, population
from .recording import ELEMENTS_KERNEL, TENSORS, Subject
from .subjects import subjects

_SECONDS = 120


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `check`."""
    parser.add_argument("--count", type=int, default=30, help="number of random mutants (%(default)s)")
    parser.add_argument("-s", "--seed", type=int, default=0)
    parser.add_argument("-j", "--jobs", type=int, default=1, help="number of processes (%(default)s)")
    parser.add_argument("--lines", type=Path, default=lines_file(), help="results of `kill`")
    parser.add_argument("--work", type=Path, default=work_folder(), help="models and recorded calls")


def verdict(mutant: Mutant, subject: Subject, work: Path) -> str:
    """Return the verdict of `gguf-verify` on the mutant, or its exit code; "time limit" if it does not end."""
    with scratch.temporary("mutation") as folder:
        for part in ("harness", "kernels", "scripts"):
            shutil.copytree(CHECKOUT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
        path = folder / "kernels" / mutant.file
        path.write_text(mutant.applied(path.read_text()))
        emulator = folder / "kernels" / "emulator" / "cuda_on_cpu.hpp"
        emulator.write_text(emulator.read_text() + PRELUDE)
        kernel = "q8_1_naive" if subject.kernel == ELEMENTS_KERNEL else subject.kernel
        command: list[str | Path] = [
            sys.executable, folder / "scripts" / "verify_model.py", model_in(subject.weights, work), "--host", "cpu",
            "--kernel", kernel, "--rungs", "blocks,layers", "--tensor", TENSORS, "-t", "1",
        ]  # fmt: skip
        environment = {"PATH": "/usr/bin:/bin:/usr/local/bin", "PYTHONPATH": str(folder), "XDG_CACHE_HOME": str(folder)}
        try:
            done = subprocess.run(
                command, capture_output=True, check=False, timeout=_SECONDS, env=environment, cwd=folder
            )
        except subprocess.TimeoutExpired:
            return "time limit"
        return {0: "verified", 1: "mismatch"}.get(done.returncode, f"exit code {done.returncode}")


def agrees(outcome: str, given: str) -> bool:
    """Whether both verdicts are a pass, or neither is."""
    return (outcome == "killed") == (given != "verified")


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """Return {"mutants": number, "same": number with the same verdict, "differing": [{"id", "said"}]}."""
    records = [r for r in finished(options.lines).values() if "subject" in r or r["outcome"] == "same"]
    mutants = {m.id: m for some in population(kernel_root()).values() for m in some}
    random.Random(options.seed).shuffle(records)
    chosen: list[Record] = records[: options.count]

    def one(entry: Record) -> str:
        mutant = mutants[entry["id"]]
        own = Subject(*entry["subject"].split()) if "subject" in entry else subjects(kernel_root(), mutant.file)[0]
        given = verdict(mutant, own, options.work)
        print(f"{entry['id']}: {entry['outcome']}, {given}", file=sys.stderr, flush=True)
        return given

    with ThreadPoolExecutor(options.jobs) as pool:
        differing = [
            {"id": entry["id"], "said": f"{entry['outcome']}, gguf-verify: {given}"}
            for entry, given in zip(chosen, pool.map(one, chosen), strict=True)
            if not agrees(entry["outcome"], given)
        ]
    return {"mutants": len(chosen), "same": len(chosen) - len(differing), "differing": differing}
