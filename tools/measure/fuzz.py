"""Fuzzing of everything that reads foreign bytes.

The targets are modules of tests/fuzz/targets: the GGUF parser, other files, messages between processes, histories,
configurations, declarations, logs, and reports of hostile names. Each has invariants that hold for every input.
Atheris (pip install atheris) keeps the inputs that reach new code and goes on from them; without it, inputs that the
repository keeps are mutated blindly. The exit code is 0 where nothing is found. Otherwise it is 1, the input is saved,
and the last lines say how to repeat the failure.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from gguf_verify.support.paths import CHECKOUT, PACKAGE

from .measure import Measure

FOUND = Path(tempfile.gettempdir(), "gguf-verify-found")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this measure."""
    add = parser.add_argument
    add("targets", nargs="*", metavar="TARGET", help="what to fuzz (default: every target); see --list")
    add("--seconds", type=int, default=60, help="how long to look, all targets together (%(default)s)")
    add("--corpus", type=Path, default=CHECKOUT / "build" / "fuzz",
        help="a folder to keep interesting inputs in, and to go on from (default: build/fuzz)")  # fmt: skip
    add("--found", type=Path, default=FOUND, help="where to save what is found (default: in the temporary folder)")
    add("--seed", type=int, default=0, help="of libFuzzer's random numbers (0: another one each time)")
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--input", type=Path, nargs="+", metavar="FILE", help="only run these inputs of one target")
    said = "only say which lines the inputs of the repository and of --corpus reach"
    instead.add_argument("--coverage", action="store_true", help=said)
    said = "only keep in the repository the fewest of these inputs that reach as much"
    instead.add_argument("--keep", action="store_true", help=said)
    instead.add_argument("--list", action="store_true", help="only list the targets")


def run(options: argparse.Namespace) -> int:
    """Returns the exit code."""
    said = {name: getattr(options, name) for name in ("targets", "seconds", "seed", "coverage", "keep", "list")}
    said |= {name: str(getattr(options, name).absolute()) for name in ("corpus", "found")}
    said["input"] = [str(path.absolute()) for path in options.input or ()]
    # The process can import the tests' helpers, and coverage or libFuzzer must see the package being imported.
    paths = [str(PACKAGE.parent), str(CHECKOUT), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [sys.executable, "-m", "tests.fuzz.session", json.dumps(said)]
    return subprocess.run(command, env=environment, check=False).returncode


MEASURE = Measure("fuzz", "whether an input breaks what reads it", __doc__ or "", add_arguments, run)
