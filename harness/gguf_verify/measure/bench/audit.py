"""What an audit costs, beside `sha256sum` of the same file and gguf-py's `dequantize` over it.

    python scripts/bench_audit.py [--type Q4_0] [--layers 40] [--keep FILE] [--repeat 5]

It makes a llama of TinyLlama-1.1B's matrices, with so many layers that the file has more than 1 GB, or takes any GGUF
file, reads it once so that it is cached, and measures in turn, each in a process of its own, from start to exit:

    sha256sum     coreutils
    audit         everything that `gguf-verify audit` does: it hashes the file too, and asks two more readers
    scan          the audit without the other readers: container, decode check, statistics, duplicate rows, sha256
    check         the same without sha256
    dequantize    gguf.quants.dequantize of every quantized tensor (three times: it is slow)

Figures are medians, and ratios of medians of one run; the memory is what no file backs, summed over all processes, in
a run before those that are timed.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

from ...support.paths import CHECKOUT
from .common import FILES, Measured, measure, model_at

#: It is slow.
DEQUANTIZED = 3

DEQUANTIZE = """
import sys, gguf
for tensor in gguf.GGUFReader(sys.argv[1]).tensors:
    if tensor.tensor_type.name not in ("F32", "F16", "BF16"):
        gguf.quants.dequantize(tensor.data, tensor.tensor_type)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--type", choices=FILES, default="Q4_0")
    parser.add_argument("--layers", type=int, default=40)
    parser.add_argument("--keep", type=Path, help="keep (or use) the model file, or the folder that it is in")
    parser.add_argument("--repeat", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = model_at(args.keep, Path(folder), args.type, args.layers)
        audit = [sys.executable, CHECKOUT / "scripts" / "audit_layout.py", path]
        commands: dict[str, list[str | Path]] = {"audit": audit, "scan": [*audit, "--no-readers"]}
        commands["check"] = [*commands["scan"], "--no-sha256"]
        if shutil.which("sha256sum"):
            commands = {"sha256sum": ["sha256sum", path], **commands}
        runs: dict[str, list[Measured]] = {name: [] for name in commands}
        # fills the caches too: the file, the compiled scanner
        peaks = {name: measure(command, quiet=True).peak_anonymous for name, command in commands.items()}
        dequantize: list[str | Path] = [sys.executable, "-c", DEQUANTIZE, path]
        peaks["dequantize"] = measure(dequantize, quiet=True).peak_anonymous
        runs["dequantize"] = []
        for i in range(args.repeat):
            for name, command in commands.items():
                runs[name].append(measure(command, quiet=True, watched=False))
            if i < DEQUANTIZED:
                runs["dequantize"].append(measure(dequantize, quiet=True, watched=False))
        size = path.stat().st_size
    print(f"{path.name}: {size:,} bytes, {args.repeat} runs")
    medians = {name: statistics.median(run.seconds for run in of) for name, of in runs.items()}
    for name, of in runs.items():
        codes = sorted({run.code for run in of})
        times = " ".join(f"{run.seconds:.2f}" for run in of)
        print(
            f"{name:<11} {medians[name]:7.2f} s  {size / medians[name] / 1e6:7.0f} MB/s  peak "
            f"{peaks[name] / 2**20:6.0f} MiB  exit {codes}  ({times})"
        )
    for name in ("audit", "scan", "check"):
        ratios = [
            f"{other} / {name} {medians[other] / medians[name]:.2f}" for other in medians if other not in commands
        ]
        if "sha256sum" in medians:
            ratios = [f"sha256sum / {name} {medians['sha256sum'] / medians[name]:.2f}", *ratios]
        print(" · ".join(ratios))


if __name__ == "__main__":
    main()
