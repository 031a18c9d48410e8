"""Errors of llama.cpp's backends relative to exact results: every operation on random inputs, and whole graphs.

    python -m tools.measure backends --seeds 50                     # every operation on the CPU backend
    python -m tools.measure backends models/*.gguf --seeds 0        # graphs of models, with and without flash attention
    python -m tools.measure backends --device Vulkan0 --llama FOLDER models/*.gguf
    python -m tools.measure backends --seeds 0 --functions floats   # the accuracy of exp, sin, 1/x and others
    python -m tools.measure backends --from there.json              # import the results of another machine

Each operation generates random nodes of every kind that it has a definition for (docs/extending.md, "An operation").
Nodes that the device does not support are counted; nodes at which llama.cpp aborts are reported. Functions are
computed over all halves, or all floats of a range, and their largest errors in ulps are printed. The results are kept
in docs/backends.json, by device and build, and shown in docs/backends.md. The exit code is 1 if an output is wrong and
no finding in docs/backends.toml explains it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from gguf_verify.backend_results import DeviceInfo, GraphOptions, LlamaBuild
from gguf_verify.support.errors import UsageError
from gguf_verify.support.output import write_lines
from gguf_verify.support.paths import CHECKOUT
from gguf_verify.waivers import today
from gguf_verify_graph.verification import known_devices

from ..measure import Measure
from . import page
from .drawn import judge_drawn
from .functions import DOMAINS, judge_functions
from .graphs import judge_graphs
from .records import Measured, load, merged, save

RESULTS = CHECKOUT / "docs" / "backends.json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this measure."""
    add = parser.add_argument
    add("models", nargs="*", type=Path, metavar="MODEL.gguf", help="judge the graphs of these models")
    add("--device", default="CPU", metavar="NAME", help="ggml's name of the device (%(default)s)")
    add("--llama", type=Path, metavar="PATH", help="another build of llama.cpp")
    add("--seeds", type=int, default=4, metavar="N", help="number of random seeds per operation (%(default)s)")
    add("--only", default="", metavar="OP", help="only measure operations whose name contains this")
    add("--functions", default="", choices=DOMAINS, metavar="INPUTS",
        help="also measure functions, of all halves or of floats (halves or floats)")  # fmt: skip
    add("--results", type=Path, default=RESULTS, metavar="FILE", help="file of results (default: docs/backends.json)")
    add("--from", dest="other", type=Path, metavar="FILE", help="import another file of results; measure nothing")
    add("--no-page", action="store_true", help="do not write the page")


def run(options: argparse.Namespace) -> int:
    """Measure, write the results and the page, and return the exit code. Raises HarnessError."""
    results = load(options.results)
    if options.other is not None:
        results = merged(results, load(options.other))
    else:
        asked = GraphOptions(device=options.device, llama="" if options.llama is None else str(options.llama))
        build, devices = known_devices(asked)
        device = next((d for d in devices if d.name == options.device), None)
        if device is None:
            raise UsageError(f"unknown device {options.device[:100]!a}; choose from {[d.name for d in devices]}")
        measured = Measured(
            device=_where(device), build=_build(build), date=today().isoformat(), seeds=options.seeds,
            operations=judge_drawn(asked, options.seeds, options.only, page.findings()),
            graphs=judge_graphs(asked, options.models),
            functions=judge_functions(asked, options.functions, options.only),
        )  # fmt: skip
        results = merged(results, {measured.key: measured})
        for row in measured.functions:
            worst = f"{row.ulps:.4g} ulps at {row.at!r}, {row.utilisation:.3g} of the declared error"
            write_lines(f"{row.function}, {row.domain}: {worst}")
    save(results, options.results)
    findings = page.findings()
    if not options.no_page:
        page.write(results, findings)
    left = page.unexplained(results, findings)
    for line in left:
        write_lines(line)
    return 1 if left else 0


def _where(device: DeviceInfo) -> str:
    return f"{device.description} ({device.backend})"


def _build(build: LlamaBuild) -> str:
    return f"llama.cpp {build.llama_cpp}, ggml {build.ggml}"


MEASURE = Measure(
    "backends", "operations of llama.cpp's backends, and docs/backends.md", __doc__ or "", add_arguments, run
)
