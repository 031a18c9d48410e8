"""Writers whose modules are imported when they are first used: a command needs one of many."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from importlib import import_module
from typing import Any

from . import annotations as workflow_commands
from . import junit, markdown, sarif
from .digest import Digest
from .published import public
from .writer import Form, Kind, Render, Writer


def late(module: str, function: str = "render") -> Render:
    """A function of a module that is imported when it is first called, of the result alone."""

    def render(result: Any, form: Form) -> str:
        write: Callable[[Any], str] = getattr(import_module(module), function)
        return write(result)

    return render


def late_at_terminal(module: str, function: str = "render") -> Render:
    """Likewise of the result and the form."""

    def render(result: Any, form: Form) -> str:
        write: Callable[[Any, Form], str] = getattr(import_module(module), function)
        return write(result, form)

    return render


def _late(module: str, function: str = "render") -> Render:
    return late(f"{__package__}.{module}", function)


def _at_terminal(module: str, function: str = "render") -> Render:
    return late_at_terminal(f"{__package__}.terminal.{module}", function)


#: Kind of result → the module and the function that make its digest.
_DIGESTS: dict[StrEnum, tuple[str, str]] = {
    Kind.RUN: ("run", "digest"),
    Kind.AUDIT: ("audit", "digest"),
    Kind.AUDITS: ("audit", "digest_of_many"),
    Kind.GRAPH: ("graph", "digest"),
}


def of_digest(write: Callable[[Digest], str], module: str, function: str) -> Render:
    """A format of digests, with the function of a module that makes the digest; without the folders of this machine."""

    def render(result: Any, form: Form) -> str:
        digest: Digest = public(getattr(import_module(module), function)(result))
        return write(digest)

    return render


def _listed(write: Callable[[Digest], str], *kinds: Kind) -> dict[StrEnum, Render]:
    of = {kind: _DIGESTS[kind] for kind in kinds or _DIGESTS}
    return {kind: of_digest(write, f"{__package__}.digests.{module}", name) for kind, (module, name) in of.items()}


ANNOTATIONS = Writer(
    "annotations",
    "--annotations",
    _listed(workflow_commands.render),
    ("annotations.txt",),
)
SARIF = Writer(
    "SARIF",
    "--sarif",
    _listed(sarif.render),
    (".sarif", ".sarif.json"),
)
HTML = Writer(
    "HTML", "--html",
    {
        Kind.RUN: _late("html.page", "run"),
        Kind.AUDIT: _late("html.page", "audit"), Kind.AUDITS: _late("html.page", "audit"),
        Kind.GRAPH: _late("html.page", "graph"), Kind.BISECTION: _late("html.page", "bisection"),
    },
    (".html", ".htm"),
)  # fmt: skip
JUNIT = Writer(
    "JUnit", "--junit",
    _listed(junit.render, Kind.GRAPH), (".xml",),
)  # fmt: skip
MARKDOWN = Writer(
    "Markdown", "--markdown",
    _listed(markdown.render), (".md", ".markdown"),
)  # fmt: skip
TEXT = Writer(
    "text", None,
    {
        Kind.RUN: _at_terminal("run"), Kind.AUDIT: _at_terminal("audit"),
        Kind.AUDITS: _at_terminal("audit", "render_many"), Kind.XRAY: _at_terminal("xray"),
        Kind.IDENTIFICATION: _at_terminal("identification"),
        Kind.JUDGEMENT: _at_terminal("judgement"), Kind.GRAPH: _at_terminal("graph"),
        Kind.BISECTION: _at_terminal("bisection"),
    },
)  # fmt: skip
