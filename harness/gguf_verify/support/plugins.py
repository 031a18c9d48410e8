"""Extensions that other packages offer: entry points, by group and name.

A package adds a command or a reference by an entry point in its pyproject.toml; one that is not installed is not
listed.
"""

from __future__ import annotations

from typing import Any

#: Group of `cli.command.Command` records, by the commands' names.
COMMANDS = "gguf_verify.commands"
#: Group of classes of `llama.backends.interface.Backend`; the name "" is spelled "others".
REFERENCES = "gguf_verify.references"


def offered(group: str) -> list[str]:
    """The names in a group, sorted."""
    from importlib.metadata import entry_points  # slow to import

    return sorted({point.name for point in entry_points(group=group)})


def load(group: str, name: str) -> Any | None:
    """The object that a name of a group stands for; None if no installed package offers it.

    Raises ImportError if its module cannot be imported.
    """
    from importlib.metadata import entry_points

    points = entry_points(group=group, name=name)
    return points[name].load() if points else None
