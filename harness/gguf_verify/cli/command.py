"""The record of a command, and the registry of all commands."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec

from ..support.registry import members


@dataclass(frozen=True)
class Command:
    """A command of `gguf-verify`. Each module of this package defines one such record; the module has the command's
    name, with `_` for `-`.

    Args:
        name: the command as it is typed.
        summary: one line for the list of commands.
        parser: builds the argument parser.
        run: takes the arguments and returns the exit code. Raises HarnessError.
    """

    name: str
    summary: str
    parser: Callable[[], argparse.ArgumentParser]
    run: Callable[[list[str]], int]


def commands() -> dict[str, Command]:
    """Return name → command for all commands. Imports every module of this package."""
    return {command.name: command for command in members(__package__ or "", Command)}


def find(name: str) -> Command | None:
    """Return the command of this name, or None. Imports no other command's module."""
    module = name.replace("-", "_")
    if not module.isidentifier() or find_spec(f"{__package__}.{module}") is None:
        return None
    found = getattr(import_module(f"{__package__}.{module}"), "COMMAND", None)
    return found if isinstance(found, Command) and found.name == name else None
