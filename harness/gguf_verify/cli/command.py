"""What a command is, and the registry of all of them."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec

from ..support.registry import members


@dataclass(frozen=True)
class Command:
    """A command of `gguf-verify`: a module of this package that defines one such record. The module is called as the
    command is, with `_` for `-`.

    Args:
        name: as it is typed.
        summary: one line, for the list of commands.
        parser: makes the parser of its arguments.
        run: takes its arguments and returns the exit code. Raises HarnessError.
    """

    name: str
    summary: str
    parser: Callable[[], argparse.ArgumentParser]
    run: Callable[[list[str]], int]


def commands() -> dict[str, Command]:
    """Name → command, of all of them. Every module of this package is imported."""
    return {command.name: command for command in members(__package__ or "", Command)}


def find(name: str) -> Command | None:
    """The command of this name; None where there is none. No other command's module is imported."""
    module = name.replace("-", "_")
    if not module.isidentifier() or find_spec(f"{__package__}.{module}") is None:
        return None
    found = getattr(import_module(f"{__package__}.{module}"), "COMMAND", None)
    return found if isinstance(found, Command) and found.name == name else None
