"""What a verification costs: a llama of TinyLlama-1.1B's shape with random weights goes through all rungs.

All matrices have one type, or Q4_K_M, llama.cpp's mix of Q4_K and Q6_K. The benchmark makes the model (llama.cpp
quantizes it), verifies it in a process of its own, and prints the time of each rung and the peak memory: the sum over
all processes of the proportional set size, which counts a shared page once. This includes the mapped file, so look at
the memory above the file's size.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from ...support import scratch
from ...support.errors import EnvironmentFault
from ...support.paths import CHECKOUT
from .models import FILES, model_at
from .processes import Measured, measured


def verify(model: Path, arguments: list[str]) -> tuple[dict[str, Any], Measured]:
    """The JSON report of a run, and what it cost."""
    with scratch.temporary("measure") as folder:
        out = folder / "report.json"
        script = CHECKOUT / "scripts" / "verify_model.py"
        done = measured([sys.executable, script, model, "--json", out, *arguments])
        if not out.exists():
            raise EnvironmentFault(f"the verification ended with exit code {done.code} and no report")
        return json.loads(out.read_text()), done


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `verify`."""
    parser.add_argument("--type", choices=FILES, default="Q4_0", help="of the matrices (%(default)s)")
    parser.add_argument("--layers", type=int, nargs="+", default=[22], help="a model for each number of layers (22)")
    parser.add_argument("--keep", type=Path, help="keep (or use) the model file; with several sizes, a folder")
    parser.add_argument("-n", type=int, default=16, help="tokens to predict (%(default)s)")
    parser.add_argument("-p", default="Once", help="the prompt; every character is a token, a space is three")
    parser.add_argument("--host", default="auto", help="(%(default)s)")
    parser.add_argument("--kernel", default="q8_1_dp4a", help="(%(default)s)")


def run(args: argparse.Namespace) -> int:
    """Measure and print; returns the exit code."""
    rows = []
    for n_layer in args.layers:
        with scratch.temporary("measure") as folder:
            path = model_at(args.keep, folder, args.type, n_layer)
            options = ["-n", str(args.n), "-p", args.p, "--host", args.host, "--kernel", args.kernel]
            report, done = verify(path, options)
            rungs = " · ".join(f"{r['name']} {r['seconds']:.1f} s" for r in report["rungs"])
            above = (done.peak - path.stat().st_size) / 2**30
            rows.append(
                f"{n_layer} layers, {path.stat().st_size / 2**30:.2f} GiB: {report['verdict']} in {done.seconds:.1f} s "
                f"({rungs}); peak memory {done.peak / 2**30:.2f} GiB, {above:+.2f} GiB above the file"
            )
    print("\n".join(rows))
    return 0
