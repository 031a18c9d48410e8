"""Errors of llama.cpp's backends relative to exact results: every operation on random inputs, and whole graphs.

    python -m tools.measure backends --seeds 50                     # every operation on the CPU backend
    python -m tools.measure backends models/*.gguf --seeds 0        # graphs of models, with and without flash attention
    python -m tools.measure backends --device Vulkan0 --llama FOLDER models/*.gguf
    python -m tools.measure backends --seeds 0 --functions floats   # the accuracy of exp, sin, 1/x and others
    python -m tools.measure backends --from there.json              # import the results of another machine

Each operation generates random nodes of every kind that it has a definition for (docs/extending.md, "An operation").
Nodes that the device does not support are counted; nodes at which llama.cpp aborts are reported. Functions are
computed over all halves, or all floats of a range, and their largest errors in ulps are printed. The results are kept
in docs/backends.json, by device and build, and shown in docs/backend-measurements.md. The exit code is 1 if an output
is wrong and no finding in docs/backends.toml explains it.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from gguf_verify.backend_results import DeviceInfo, GraphOptions, GraphReport, LlamaBuild
from gguf_verify.support.errors import UsageError
from gguf_verify.support.output import write_lines
from gguf_verify.support.paths import CHECKOUT
from gguf_verify.support.text import printable
from gguf_verify.waivers import today
from gguf_verify_graph.verification import known_devices, verify_graph

from ..measure import Measure, add_results
from . import page
from .functions import DOMAINS, judge_functions
from .random_nodes import judge_random_nodes
from .records import GraphRow, Measured, load, merged, save

RESULTS = CHECKOUT / "docs" / "backends.json"
_FLASH: tuple[Literal["auto", "off"], ...] = ("auto", "off")


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
    add_results(parser, RESULTS)


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
            operations=judge_random_nodes(asked, options.seeds, options.only, page.findings()),
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


def judge_graphs(asked: GraphOptions, models: Sequence[Path]) -> tuple[GraphRow, ...]:
    """Return a row for each model with llama.cpp's choice of attention, and one without flash attention if that graph
    has other operations. Raises the errors of `verify_graph`."""
    rows = []
    for model in models:
        seen: set[str] = set()
        for flash in _FLASH:
            report = verify_graph(model, replace(asked, flash=flash))
            operations = {each.operation for each in report.operations} | {n.operation for n in report.not_judged}
            if operations <= seen:
                continue
            seen |= operations
            rows.append(_row(model, flash, report))
    return tuple(rows)


def _row(model: Path, flash: str, report: GraphReport) -> GraphRow:
    first: dict[str, str] = {}
    for wrong in report.wrong:
        first.setdefault(
            wrong.operation, f"{wrong.operation} {wrong.node}: {wrong.wrong} of {wrong.elements} wrong, "
            f"{wrong.utilisation:.3g} times the bound",
        )  # fmt: skip
    return GraphRow(
        model=printable(model.name, 100), architecture=report.architecture, flash=flash, nodes=report.judged,
        outputs=sum(each.elements for each in report.operations), verdict=report.verdict,
        operations={
            each.operation: float(f"{each.utilisation:.3g}") for each in report.operations
            if not each.fell_back and not each.wrong and not each.exact
        },
        wrong=tuple(first.values()), fell_back=tuple(sorted({e.operation for e in report.fallen_back})),
        not_judged=tuple(sorted({f"{n.operation}: {n.why}" for n in report.not_judged})),
    )  # fmt: skip


def _where(device: DeviceInfo) -> str:
    return f"{device.description} ({device.backend})"


def _build(build: LlamaBuild) -> str:
    return f"llama.cpp {build.llama_cpp}, ggml {build.ggml}"


MEASURE = Measure(
    "backends",
    "operations of llama.cpp's backends, for docs/backend-measurements.md",
    __doc__ or "",
    add_arguments,
    run,
)
