"""Extensions that other packages offer: entry points, by group and name.

A package adds a command or a reference by an entry point in its pyproject.toml; one that is not installed is not
listed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .errors import EnvironmentFault, limit_reached
from .text import printable

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

#: Group of `cli.command.Command` records, by the commands' names.
COMMANDS = "gguf_verify.commands"
#: Group of classes of `llama.backends.interface.Backend`; the name "" is spelled "others".
REFERENCES = "gguf_verify.references"


def offered(group: str) -> list[str]:
    """The names in a group, sorted."""
    from importlib.metadata import entry_points  # slow to import

    return sorted({point.name for point in entry_points(group=group)})


def load(group: str, name: str) -> Any | None:
    """The object of a name in a group; None if no installed package offers it.

    Raises EnvironmentFault, which names the package and the error, if it cannot be imported.
    """
    from importlib.metadata import entry_points

    points = entry_points(group=group, name=name)
    if not points:
        return None
    point = points[name]
    try:
        return point.load()
    except Exception as error:  # the module of another package may raise anything
        if limit_reached(error) is not None:
            raise
        raise EnvironmentFault(_broken(point, error)) from error


def _broken(point: EntryPoint, error: Exception) -> str:
    package = "an unknown package" if point.dist is None else f"the package {point.dist.name} {point.dist.version}"
    what = f"{printable(point.name, 60)} ({printable(point.value, 120)}) of {printable(package, 120)}"
    return f"{what} cannot be imported: {type(error).__name__}: {printable(str(error), 300)}"
