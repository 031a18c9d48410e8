"""The search for the first bad build, in lines of text."""

from __future__ import annotations

from collections.abc import Iterator

from ...bisection_results import Bisection, Step, Turned
from ...support.command_line import shown
from ...support.text import printable
from .. import graph_words as words
from ..graph_words import of_seen
from ..writer import Form


def render(found: Bisection, form: Form) -> str:
    """Return the candidates, the node that turned wrong, and the verdict."""
    lines = [*_lines(found)]
    return "".join(f"{shown(line)}\n" for line in (lines[-1:] if form.quiet else lines))


def _lines(found: Bisection) -> Iterator[str]:
    yield f"file      {printable(found.path, 200)}, sha256 {', '.join(found.sha256)}"
    yield f"results   {printable(found.state, 200)}"
    yield ""
    width = max((len(printable(step.name, 200)) for step in found.steps), default=0)
    for step in found.steps:
        yield f"  {printable(step.name, 200):<{width}}  {_outcome(step)}"
    yield ""
    if found.turned is not None:
        yield from _turned(found.turned)
    if (failure := found.failure) is not None:
        yield f"failed    {failure.rung}: {failure.words}"
        yield ""
    yield from (f"graph     {each}" for each in found.graph)
    if found.untested:
        yield f"untested: {', '.join(printable(name, 200) for name in found.untested)}"
    verdict = "nothing to bisect" if found.verdict == "bad end is good" else found.verdict
    yield f"{verdict.upper()}: {found.sentence}"


def _outcome(step: Step) -> str:
    tried = step.tried
    took = "from an earlier bisection" if step.taken_over else f"{tried.seconds:.1f} s"
    about = f" ({tried.build})" if tried.build else ""
    return f"{tried.outcome:<7}  {took}{about}" + (f": {tried.why}" if tried.why else "")


def _turned(turned: Turned) -> Iterator[str]:
    node, facts = turned.node, dict(words.facts(turned.node))
    yield f"wrong     {words.name(node)} {words.where(node)}"
    yield f"first     {facts['first']}"
    yield f"worst     {facts['worst']}"
    yield f"before    {turned.words}"
    if turned.was is not None and turned.became is not None:
        yield f"changed   worst utilisation of {node.operation}: {of_seen(turned.was)}, now {of_seen(turned.became)}"
    yield ""
