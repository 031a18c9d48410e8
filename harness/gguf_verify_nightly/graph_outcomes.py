"""The outcome of a cell from a run of `gguf-verify backend`.

A pass requires exit code 0 and a report on the requested device and build of llama.cpp. The report must say verified,
contain nothing that is wrong or not judged, and be consistent. Anything less is not a pass.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec.structs import replace

from gguf_verify.backend_results import GraphOptions, GraphReport, OperationResult
from gguf_verify.processes.commands import Ended
from gguf_verify.read_report import GraphClaims, read_graph
from gguf_verify.support.errors import EXIT_INTERRUPTED
from gguf_verify.support.text import printable

from .devices import build_in
from .outcomes import Conclusion, Judged, Problem, judged_cell, more
from .records import Cell, Failed, Key, Measure, Outcome, facts

#: Takes the place of a rung's name in the measures and times of a cell.
GRAPH = "graph"


def graph_cell_of(
    key: Key, ended: Ended, path: Path, time_limit: float, version: str | None, llama: Path | None,
    keep_all: bool = False,
) -> Cell:  # fmt: skip
    """Return the record of a run that has ended.

    Args:
        path: the JSON report of the run.
        version: the required version of llama-cpp-python; "none" for a build in a folder, None for any version.
        llama: the folder with the required build; None for any.
        keep_all: also keep the reports of passing runs.
    """

    def read(end: str) -> Judged:
        report, claims = read_graph(path)
        problem = _problem(report)
        flaw = "its report says verified and contradicts itself" if _contradicts(report, claims) else ""
        where = f", in {report.evaluations[-1]}" if report.evaluations else ""
        return Judged(
            claims.verdict,
            (Outcome.VERIFIED,),
            Conclusion(Outcome.UNVERIFIED, flaw) if flaw else Conclusion(Outcome.VERIFIED),
            Problem(problem.words + end, problem.failed),
            _another(report, key.host, version, llama),
            where if report.ended_by in EXIT_INTERRUPTED else None,
            report.verdict == claims.verdict == Outcome.MISMATCH,
            _contents(report),
        )

    return judged_cell(key, ended, time_limit, keep_all, read)


def _contents(report: GraphReport) -> dict[str, Any]:
    """The fields of the cell that the report holds."""
    return {
        "rung_seconds": {GRAPH: report.seconds},
        "versions": _versions(report),
        "host": report.device.words,
        "measures": tuple(map(_measure, report.operations)),
        "figures": {f"{GRAPH}: nodes that were judged": report.judged},
        "graph": replace(report, graph=()),  # without the long list of all nodes, which nothing reads
    }


def _contradicts(report: GraphReport, claims: GraphClaims) -> bool:
    """Whether a report that says verified contains anything else."""
    derived = report.verdict, report.exit_code, report.judged
    return (
        (claims.verdict, claims.exit_code, claims.judged) != derived
        or report.judged < 1
        or bool(report.wrong or report.ended_by)
        or any(each.nodes < 1 or each.wrong or each.first or not each.utilisation <= 1 for each in report.operations)
    )


def _another(report: GraphReport, device: str, version: str | None, llama: Path | None) -> str:
    """How the run differs from the requested one; "" if it does not."""
    options = report.options
    for name in (report.device.name, options.device):
        if name != device:
            return f"ran on {printable(name, 100)} instead of {device}"
    if (options.ops, options.node) != (GraphOptions.ops, GraphOptions.node):
        return "judged only a part of the graph"
    if version is not None and report.build.llama_cpp_python != version:
        return f"ran with llama-cpp-python {report.build.llama_cpp_python} instead of {version}"
    if llama is not None:
        found = build_in(llama)
        if isinstance(found, str):
            return found
        if report.build.folder != (wanted := printable(str(found.path), 400)):
            return f"ran with the libraries in {report.build.folder} instead of {wanted}"
    return ""


def _problem(report: GraphReport) -> Problem:
    """The first problem, and the number of others."""
    if report.wrong:
        first, n = report.wrong[0], report.wrong_nodes
        where = f"{first.node} ({first.operation} on {first.device}) in {first.evaluation}"
        value = f"{first.got:.6g} instead of {first.expected:.6g}"
        bound = f" ± {first.tolerance:.3g}" if first.tolerance else ""
        place = f", {first.place}" if first.place else ""
        failed = Failed(GRAPH, first.node, f"{first.evaluation}{place}", f"{first.operation} on {first.device}", n)
        return Problem(f"{GRAPH}: {where}{place}: {value}{bound}{more(n)}", failed)
    if report.fault:
        return Problem(f"{GRAPH}: {report.fault}", Failed(GRAPH, place=facts(report.fault), kind="broken off"))
    if report.not_judged:
        left, n = report.not_judged[0], len(report.not_judged)
        failed = Failed(GRAPH, left.operation, left.device, "not judged", n)
        return Problem(f"{GRAPH}: not judged: {left.operation} on {left.device}: {left.why}{more(n)}", failed)
    if not any(each.nodes and not each.fell_back for each in report.operations):
        words = f"{GRAPH}: {report.device.name} computed none of the judged nodes"
        return Problem(words, Failed(GRAPH, kind="nothing on the device"))
    return Problem("")


def _versions(report: GraphReport) -> dict[str, str]:
    """Name → version of everything that may affect a result, and the definitions used for each operation."""
    build, device = report.build, report.device
    python = {} if build.llama_cpp_python == "none" else {"llama-cpp-python": build.llama_cpp_python}
    return {
        "gguf-verify": report.gguf_verify, **python, "llama.cpp": build.llama_cpp, "ggml": build.ggml,
        "llama.cpp build": build.features, "device": f"{device.description} ({device.backend})",
    } | {
        f"definition of {each.operation} on {each.device}": ", ".join(sorted(each.definitions))
        for each in report.operations
    }  # fmt: skip


def _measure(each: OperationResult) -> Measure:
    nodes = f"the worst of {each.nodes:,} node{'' if each.nodes == 1 else 's'}"
    where = nodes if each.first is None else ", ".join(filter(None, (each.first.node, each.first.place)))
    who = f"{each.operation} on {each.device}" if each.fell_back else each.operation
    return Measure(GRAPH, who, each.utilisation, None, where, not each.fell_back)
