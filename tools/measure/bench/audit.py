"""The cost of an audit, compared with `sha256sum` and with gguf-py's `dequantize` on the same file.

The file is a llama with the matrices of TinyLlama-1.1B and enough layers for more than 1 GB, or any GGUF file. It is
read once to fill the page cache. Then these are measured, each in its own process, from start to exit:

    sha256sum     coreutils
    audit         `gguf-verify audit`, which also hashes the file and runs two more readers
    scan          the audit without the other readers: container, decode check, statistics, duplicate rows, sha256
    check         the same without sha256
    dequantize    gguf.quants.dequantize of every quantized tensor (at most three runs, because it is slow)

Times are medians, and ratios are ratios of medians. Memory is measured in a separate run: anonymous memory, summed over
all processes.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from gguf_verify.support.output import write_lines
from gguf_verify.support.paths import CHECKOUT

from .models import FILES, SHAPES, RandomModel, model_file
from .processes import Measured, measured

_DEQUANTIZED = 3

_DEQUANTIZE = """
import sys, gguf
for tensor in gguf.GGUFReader(sys.argv[1]).tensors:
    if tensor.tensor_type.name not in ("F32", "F16", "BF16"):
        gguf.quants.dequantize(tensor.data, tensor.tensor_type)
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `audit`."""
    parser.add_argument("--type", choices=FILES, default="Q4_0", metavar="TYPE", help="type of the file (%(default)s)")
    parser.add_argument("--layers", type=int, default=40, help="layers of the model (%(default)s)")
    parser.add_argument("--keep", type=Path, help="keep the model in this folder, or use this file")
    parser.add_argument("--repeat", type=int, default=5, help="number of timed runs (%(default)s)")


def run(args: argparse.Namespace) -> int:
    """Measure and print. Returns the exit code."""
    model = RandomModel(replace(SHAPES["1.1B"], layers=args.layers), args.type)
    kept = args.keep is not None and args.keep.is_file()
    with nullcontext(args.keep) if kept else model_file(args.keep, model) as path:
        audit: list[str | Path] = [sys.executable, CHECKOUT / "scripts" / "audit_layout.py", path]
        commands: dict[str, list[str | Path]] = {"audit": audit, "scan": [*audit, "--no-readers"]}
        commands["check"] = [*commands["scan"], "--no-sha256"]
        if shutil.which("sha256sum"):
            commands = {"sha256sum": ["sha256sum", path], **commands}
        commands["dequantize"] = [sys.executable, "-c", _DEQUANTIZE, path]
        # this also fills the caches: the file's, and that of the compiled scanner
        peaks = {name: measured(command, quiet=True).peak_anonymous for name, command in commands.items()}
        runs: dict[str, list[Measured]] = {name: [] for name in commands}
        for i in range(args.repeat):
            for name, command in commands.items():
                if name != "dequantize" or i < _DEQUANTIZED:
                    runs[name].append(measured(command, quiet=True, watched=False))
        size = path.stat().st_size
    write_lines(f"{path.name}: {size:,} bytes, {args.repeat} runs")
    medians = {name: statistics.median(run.seconds for run in of) for name, of in runs.items()}
    for name, of in runs.items():
        codes = sorted({run.code for run in of})
        times = " ".join(f"{run.seconds:.2f}" for run in of)
        write_lines(
            f"{name:<11} {medians[name]:7.2f} s  {size / medians[name] / 1e6:7.0f} MB/s  peak "
            f"{peaks[name] / 2**20:6.0f} MiB  exit {codes}  ({times})"
        )
    for name in ("audit", "scan", "check"):
        ratios = [
            f"{other} / {name} {medians[other] / medians[name]:.2f}"
            for other in ("sha256sum", "dequantize") if other in medians
        ]  # fmt: skip
        write_lines(" · ".join(ratios))
    return 0
