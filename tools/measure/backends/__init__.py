"""How far outputs of llama.cpp's backends are from exact results: every operation on drawn inputs, and whole graphs.

    python -m tools.measure backends --seeds 50                     # every operation on the CPU backend
    python -m tools.measure backends models/*.gguf --seeds 0        # graphs of models, with and without flash attention
    python -m tools.measure backends --device Vulkan0 --llama FOLDER models/*.gguf
    python -m tools.measure backends --seeds 0 --functions floats   # how exact exp, sin, 1/x and others are
    python -m tools.measure backends --from there.json              # take over what another machine measured

Each operation draws nodes of every kind that it has a definition for (docs/extending.md, "An operation"). A node that
the device does not offer is counted; one at which llama.cpp ends itself is named. Functions are computed over all
halves, or all floats of a range, and their worst errors in ulps are printed. The results are kept in
docs/backends.json, by device and build, and docs/backends.md shows them. The exit code is 1 where an output is wrong
that no finding of docs/backends.toml explains.
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
    """The options."""
    add = parser.add_argument
    add("models", nargs="*", type=Path, metavar="MODEL.gguf", help="models whose graphs are judged")
    add("--device", default="CPU", metavar="NAME", help="ggml's name of the device (%(default)s)")
    add("--llama", type=Path, metavar="PATH", help="another build of llama.cpp")
    add("--seeds", type=int, default=4, metavar="N", help="how often each operation draws (%(default)s)")
    add("--only", default="", metavar="OP", help="operations with this in their name alone")
    add("--functions", default="", choices=DOMAINS, metavar="INPUTS",
        help="also measure functions: of all halves, or of floats (halves or floats)")  # fmt: skip
    add("--results", type=Path, default=RESULTS, metavar="FILE", help="(default: docs/backends.json)")
    add("--from", dest="other", type=Path, metavar="FILE", help="take over another file of results; measure nothing")
    add("--no-page", action="store_true", help="write the results alone")


def run(options: argparse.Namespace) -> int:
    """Measure, keep, and write the page; returns the exit code. Raises HarnessError."""
    results = load(options.results)
    if options.other is not None:
        results = merged(results, load(options.other))
    else:
        asked = GraphOptions(device=options.device, llama="" if options.llama is None else str(options.llama))
        build, devices = known_devices(asked)
        device = next((d for d in devices if d.name == options.device), None)
        if device is None:
            raise UsageError(f"no device is called {options.device[:100]!a}: there are {[d.name for d in devices]}")
        measured = Measured(
            device=_where(device), build=_build(build), date=today().isoformat(), seeds=options.seeds,
            operations=judge_drawn(asked, options.seeds, options.only, page.findings()),
            graphs=judge_graphs(asked, options.models),
            functions=judge_functions(asked, options.functions, options.only),
        )  # fmt: skip
        results = merged(results, {measured.key: measured})
        for row in measured.functions:
            worst = f"{row.ulps:.4g} ulps at {row.at!r}, {row.utilisation:.3g} of what is declared"
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
