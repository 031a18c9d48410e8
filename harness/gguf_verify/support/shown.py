"""How a result shows itself in Python: what `bool`, `repr`, `str`, a notebook and `raise_for_mismatch` make of it.

A result is a record of a low layer, and what it looks like is decided in the room `report`, which imports the results.
So a result finds its `View` as every registry finds its members: by name, when it is first asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from .errors import VerificationError
from .registry import members

#: The package whose modules define a `View` each.
_VIEWS = "gguf_verify.report.views"


@dataclass(frozen=True)
class View:
    """How results of a class are shown; a module of `gguf_verify.report.views` defines one such record.

    Args:
        shows: the class.
        line: one line of plain text.
        text: the report as at the terminal, without colour.
        html: a fragment for a notebook, self-contained and escaped.
        plain: the result as `--json` writes it, of dicts, lists, strings, numbers, booleans and None.
        json: the text that `--json` writes.
        message: at most 15 lines: what is wrong, where, why, and how to repeat it.
    """

    shows: type
    line: Callable[[Any], str]
    text: Callable[[Any], str]
    html: Callable[[Any], str]
    plain: Callable[[Any], dict[str, Any]]
    json: Callable[[Any], str]
    message: Callable[[Any], str]


@cache
def _views() -> tuple[View, ...]:
    return tuple(members(_VIEWS, View))


def view_of(kind: type) -> View:
    """The view of results of a class."""
    return next(view for view in _views() if issubclass(kind, view.shows))


class Shown:
    """A result as a Python user meets it. Classes that derive from it have an `exit_code` and a `View`.

    `if result:` and `assert result` ask whether everything is verified.
    """

    __slots__ = ()

    exit_code: Any

    def __bool__(self) -> bool:
        """Whether everything is verified: exit code 0."""
        return bool(self.exit_code == 0)

    def __repr__(self) -> str:
        """One line: verdict, who is at fault, worst utilisation, counts."""
        return f"<{view_of(type(self)).line(self)}>"

    def __str__(self) -> str:
        """The report as at the terminal, without colour."""
        return view_of(type(self)).text(self).rstrip("\n")

    def _repr_html_(self) -> str:
        """A fragment of HTML for a notebook: verdict, diagnosis, first failure, table."""
        return view_of(type(self)).html(self)

    def to_dict(self) -> dict[str, Any]:
        """The result as `--json` writes it, of dicts, lists, strings, numbers, booleans and None. It is a copy."""
        return view_of(type(self)).plain(self)

    def to_json(self) -> str:
        """The text that `--json` writes."""
        return view_of(type(self)).json(self)

    def raise_for_mismatch(self) -> None:
        """Nothing where everything is verified.

        Raises:
            VerificationError: something is wrong, was broken off or could not be verified. Its message has at most 15
                lines, and its `report` is this result.
        """
        __tracebackhide__ = True  # pytest shows the line of the test
        if not self:
            raise VerificationError(view_of(type(self)).message(self), self)
