"""Fuzzing of all code that reads untrusted bytes.

The targets are modules in tests/fuzz/targets: the GGUF parser, other files, messages between processes, histories,
configurations, declarations, logs, and reports with hostile names. Each has invariants that hold for every input.
Atheris (pip install atheris) keeps inputs that reach new code and mutates them further. Without it, the inputs in the
repository are mutated blindly. The exit code is 0 if nothing is found. Otherwise it is 1, the input is saved, and the
last lines of output show how to repeat the failure.
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
    """Add the options of this measure."""
    add = parser.add_argument
    add("targets", nargs="*", metavar="TARGET", help="targets to fuzz (default: all); see --list")
    add("--seconds", type=int, default=60, help="total time for all targets (%(default)s)")
    add("--corpus", type=Path, default=CHECKOUT / "build" / "fuzz",
        help="folder for interesting inputs, also read at the start (default: build/fuzz)")  # fmt: skip
    add("--found", type=Path, default=FOUND, help="folder for inputs that fail (default: in the temporary folder)")
    add("--seed", type=int, default=0, help="libFuzzer's random seed (0: a new one each time)")
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--input", type=Path, nargs="+", metavar="FILE", help="only run these inputs, for one target")
    text = "only list the lines that the inputs of the repository and of --corpus reach"
    instead.add_argument("--coverage", action="store_true", help=text)
    text = "only reduce the repository's inputs to a minimal set with the same coverage"
    instead.add_argument("--keep", action="store_true", help=text)
    instead.add_argument("--list", action="store_true", help="only list the targets")


def run(options: argparse.Namespace) -> int:
    """Run the fuzzing session in another process and return its exit code."""
    arguments = {name: getattr(options, name) for name in ("targets", "seconds", "seed", "coverage", "keep", "list")}
    arguments |= {name: str(getattr(options, name).absolute()) for name in ("corpus", "found")}
    arguments["input"] = [str(path.absolute()) for path in options.input or ()]
    # Another process, because it imports the tests' helpers, and coverage and libFuzzer must observe all imports.
    paths = [str(PACKAGE.parent), str(CHECKOUT), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [sys.executable, "-m", "tests.fuzz.session", json.dumps(arguments)]
    return subprocess.run(command, env=environment, check=False).returncode


MEASURE = Measure("fuzz", "whether an input breaks a parser", __doc__ or "", add_arguments, run)
