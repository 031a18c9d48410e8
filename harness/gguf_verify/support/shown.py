"""Presentation of results in Python: `bool`, `repr`, `str`, notebooks and `raise_for_mismatch`.

A result is a record of a low layer, while its presentation belongs to the package `report`, which imports the results.
So a result finds its `View` by name, through a registry, when it is first needed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from .errors import VerificationError
from .registry import members

#: The package whose modules define a `View` each.
_VIEWS = "gguf_verify.report.digests"


@dataclass(frozen=True)
class View:
    """The presentation of a class of results; a module of `gguf_verify.report.digests` defines each.

    Args:
        shows: the class.
        line: returns one line of plain text.
        text: returns the terminal report, without colour.
        html: returns a fragment for a notebook, self-contained and escaped.
        plain: returns the result as `-o FILE.json` writes it, in dicts, lists, strings, numbers, booleans and None.
        json: returns the text that `-o FILE.json` writes.
        message: returns at most 15 lines: what is wrong, where, why, and how to repeat it.
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
    """Return the view of a class of results."""
    return next(view for view in _views() if issubclass(kind, view.shows))


class Shown:
    """A result's interface for Python users. Subclasses have an `exit_code` and a `View`.

    `if result:` and `assert result` test whether everything is verified.
    """

    __slots__ = ()

    exit_code: Any

    def __bool__(self) -> bool:
        """Whether everything is verified: exit code 0."""
        return bool(self.exit_code == 0)

    def __repr__(self) -> str:
        """One line: verdict, culprit, worst utilisation, counts."""
        return f"<{view_of(type(self)).line(self)}>"

    def __str__(self) -> str:
        """The terminal report, without colour."""
        return view_of(type(self)).text(self).rstrip("\n")

    def _repr_html_(self) -> str:
        """An HTML fragment for a notebook: verdict, diagnosis, first failure, table."""
        return view_of(type(self)).html(self)

    def to_dict(self) -> dict[str, Any]:
        """Return the result as `-o FILE.json` writes it: a new dict of lists, strings, numbers, booleans and None."""
        return view_of(type(self)).plain(self)

    def to_json(self) -> str:
        """Return the text that `-o FILE.json` writes."""
        return view_of(type(self)).json(self)

    def raise_for_mismatch(self) -> None:
        """Raise unless everything is verified.

        Raises:
            VerificationError: something is wrong, broke off or could not be verified. The message has at most 15 lines;
                the error's `report` is this result.
        """
        __tracebackhide__ = True  # makes pytest show the test's line
        if not self:
            raise VerificationError(view_of(type(self)).message(self), self)
