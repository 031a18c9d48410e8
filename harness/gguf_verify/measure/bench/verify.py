"""What a verification costs: a llama of TinyLlama-1.1B's shape with random weights, through all rungs.

    python scripts/bench_verify.py [--type Q4_0] [--layers 22] [--keep FILE] [-n 16] [--host cpu] [--kernel NAME]

The type is that of all matrices, or Q4_K_M, llama.cpp's mix of Q4_K and Q6_K. It makes the model (llama.cpp quantizes
it), verifies it in a process of its own, and prints the time of each rung and the peak memory: the sum over all
processes of the proportional set size, which counts a shared page once. The mapped file is part of it, so the figure to
look at is what lies above the file's size.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from ...support.paths import CHECKOUT
from .common import FILES, Measured, measure, model_at


def verify(model: Path, arguments: list[str]) -> tuple[dict[str, Any], Measured]:
    """The JSON report of a run, and what it cost."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "report.json"
        script = CHECKOUT / "scripts" / "verify_model.py"
        run = measure([sys.executable, script, model, "--json", out, *arguments])
        if not out.exists():
            raise SystemExit(f"the verification ended with exit code {run.code} and no report")
        return json.loads(out.read_text()), run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--type", choices=FILES, default="Q4_0")
    parser.add_argument("--layers", type=int, nargs="+", default=[22], help="one model for each number of layers")
    parser.add_argument("--keep", type=Path, help="keep (or use) the model file; with several sizes, a folder")
    parser.add_argument("-n", type=int, default=16, help="tokens to predict")
    parser.add_argument("-p", default="Once", help="prompt; every character is a token, a space three")
    parser.add_argument("--host", default="auto")
    parser.add_argument("--kernel", default="q8_1_dp4a")
    args = parser.parse_args()
    rows = []
    for n_layer in args.layers:
        with tempfile.TemporaryDirectory() as folder:
            path = model_at(args.keep, Path(folder), args.type, n_layer)
            options = ["-n", str(args.n), "-p", args.p, "--host", args.host, "--kernel", args.kernel]
            report, run = verify(path, options)
            rungs = " · ".join(f"{r['name']} {r['seconds']:.1f} s" for r in report["rungs"])
            above = (run.peak - path.stat().st_size) / 2**30
            rows.append(
                f"{n_layer} layers, {path.stat().st_size / 2**30:.2f} GiB: {report['verdict']} in {run.seconds:.1f} s "
                f"({rungs}); peak memory {run.peak / 2**30:.2f} GiB, {above:+.2f} GiB above the file"
            )
    print("\n".join(rows))


if __name__ == "__main__":
    main()
