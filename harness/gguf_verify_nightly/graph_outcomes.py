"""The outcome of a cell from a run of `gguf-verify backend`.

A pass requires exit code 0 and a report on the requested device and build of llama.cpp. The report must say verified,
contain nothing that is wrong or not judged, and be consistent. Anything less is not a pass.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from msgspec.structs import replace

from gguf_verify.backend_results import GraphOptions, GraphReport, OperationResult
from gguf_verify.processes.commands import Ended
from gguf_verify.read_report import GraphClaims, UnreadableReport, read_graph
from gguf_verify.support.errors import EXIT_INTERRUPTED
from gguf_verify.support.text import printable

from .devices import build_in
from .outcomes import MOST_CHARACTERS, concluded, exit_code, gated, more, out_of_time
from .records import Cell, Key, Measure, Outcome

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
    report = claims = None
    try:
        report, claims = read_graph(path)
        flaw = ""
    except UnreadableReport as error:
        flaw = str(error)
    outcome, reason = concluded(
        ended, time_limit, flaw,
        lambda how, last: _timed_out(how, report, claims, last),
        None if report is None or claims is None else partial(_with_report, report, claims),
    )  # fmt: skip
    if report is not None and (another := _another(report, key.host, version, llama)):
        outcome, reason = Outcome.BROKEN_OFF, another
    reason, code = printable(reason, MOST_CHARACTERS), exit_code(ended)
    if report is None or outcome is Outcome.TIMED_OUT:  # its measures are incomplete
        return Cell(key, outcome, reason, code, ended.seconds)
    return Cell(
        key, outcome, reason, code, ended.seconds, {GRAPH: report.seconds}, _versions(report), report.device.words,
        tuple(map(_measure, report.operations)), {f"{GRAPH}: nodes that were judged": report.judged},
        graph=replace(report, graph=()) if keep_all or outcome is not Outcome.VERIFIED else None,  # long, not read
    )  # fmt: skip


def _timed_out(how: str, report: GraphReport | None, claims: GraphClaims | None, last: str) -> tuple[Outcome, str]:
    if report is None or claims is None or report.ended_by not in EXIT_INTERRUPTED:
        return out_of_time(how, last, False, "", "")
    wrong = report.verdict == claims.verdict == Outcome.MISMATCH.value
    where = f", in {report.evaluations[-1]}" if report.evaluations else ""
    return out_of_time(how, last, True, f"{_problem(report)}; {how}" if wrong else "", where)


def _with_report(report: GraphReport, claims: GraphClaims, code: int, last: str) -> tuple[Outcome, str]:
    return gated(
        code, last, claims.verdict, (Outcome.VERIFIED,), lambda: _problem(report),
        lambda: "its report says verified and contradicts itself" if _contradicts(report, claims) else "",
    )  # fmt: skip


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


def _problem(report: GraphReport) -> str:
    """Describe the first problem, and count the others."""
    if report.wrong:
        first = report.wrong[0]
        where = f"{first.node} ({first.operation} on {first.device}) in {first.evaluation}"
        value = f"{first.got:.6g} instead of {first.expected:.6g}"
        bound = f" ± {first.tolerance:.3g}" if first.tolerance else ""
        place = f", {first.place}" if first.place else ""
        return f"{GRAPH}: {where}{place}: {value}{bound}{more(report.wrong_nodes)}"
    if report.fault:
        return f"{GRAPH}: {report.fault}"
    if report.not_judged:
        left = report.not_judged[0]
        return f"{GRAPH}: not judged: {left.operation} on {left.device}: {left.why}{more(len(report.not_judged))}"
    if not any(each.nodes and not each.fell_back for each in report.operations):
        return f"{GRAPH}: {report.device.name} computed none of the judged nodes"
    return ""


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


def _who(each: OperationResult) -> str:
    return f"{each.operation} on {each.device}" if each.fell_back else each.operation


def _measure(each: OperationResult) -> Measure:
    nodes = f"the worst of {each.nodes:,} node{'' if each.nodes == 1 else 's'}"
    where = nodes if each.first is None else ", ".join(filter(None, (each.first.node, each.first.place)))
    return Measure(GRAPH, _who(each), each.utilisation, None, where, not each.fell_back)
