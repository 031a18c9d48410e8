"""Reports as one HTML file that needs nothing else: no network, no font, no other file. See `page`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..writer import Form, Kind, Writer

if TYPE_CHECKING:
    from gguf_verify_nightly.summary import NightReport

    from ...audit import Audit
    from ...audit.many import Audits
    from ...backend_results import GraphReport
    from ...bisection_results import Bisection
    from ...results.report import Report


def _run(report: Report, form: Form) -> str:
    from .page import run  # late: no other report needs templates

    return run(report)


def _night(report: NightReport, form: Form) -> str:
    from .page import night

    return night(report)


def _audit(result: Audit | Audits, form: Form) -> str:
    from .page import audit

    return audit(result)


def _graph(report: GraphReport, form: Form) -> str:
    from .page import graph

    return graph(report)


def _bisection(found: Bisection, form: Form) -> str:
    from .page import bisection

    return bisection(found)


WRITER = Writer(
    "HTML", "--html", "also write the report as one HTML file that needs no other file",
    {
        Kind.RUN: _run, Kind.NIGHT: _night, Kind.AUDIT: _audit, Kind.AUDITS: _audit, Kind.GRAPH: _graph,
        Kind.BISECTION: _bisection,
    },
)  # fmt: skip
