"""Results as JUnit XML: a test case for each cell of a night, or for each operation of a graph and its device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..writer import Form, Kind, Writer

if TYPE_CHECKING:
    from gguf_verify_nightly.summary import NightReport

    from ...backend_results import GraphReport


def render(report: NightReport, _form: Form | None = None) -> str:
    """The night that is reported. Raises ValueError where its `started` is no ISO 8601."""
    from . import suites  # late: no other report needs XML and what a night is made of

    return suites.render(report)


def _graph(report: GraphReport, _form: Form) -> str:
    from . import graph

    return graph.render(report)


WRITER = Writer("JUnit", "--junit", "also write the report as JUnit XML", {Kind.NIGHT: render, Kind.GRAPH: _graph})
