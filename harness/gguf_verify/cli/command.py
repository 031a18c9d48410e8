"""The record of a command, and the registry of all commands."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec

from ..support.errors import EnvironmentFault, say
from ..support.plugins import COMMANDS, load, offered
from ..support.registry import members
from .interrupts import came


@dataclass(frozen=True)
class Command:
    """A command of `gguf-verify`.

    A module of this package, named as the command with `_` for `-`, defines it as `COMMAND`; or another package offers
    it (`support.plugins`).

    Args:
        name: the command as it is typed.
        summary: one line for the list of commands.
        parser: builds the argument parser.
        run: takes the arguments and returns the exit code. Raises HarnessError.
        parts: the words that may follow its name, if it is several commands.
    """

    name: str
    summary: str
    parser: Callable[[], argparse.ArgumentParser]
    run: Callable[[list[str]], int]
    parts: tuple[str, ...] = ()


def commands() -> dict[str, Command]:
    """Name → command, of this package and of the packages that extend it. All of their modules are imported.

    One line on standard error reports a package that cannot be imported; its command is skipped.
    """
    found = members(__package__ or "", Command)
    for name in offered(COMMANDS):
        try:
            command = _extension(name)
        except EnvironmentFault as fault:
            say(str(fault))
            continue
        found += [command] if command is not None else []
    return {each.name: each for each in sorted(found, key=lambda each: each.name)}


def find(name: str) -> Command | None:
    """The command of this name, or None. No other command's module is imported.

    Raises EnvironmentFault if it is of another package, which cannot be imported.
    """
    module = name.replace("-", "_")
    if not module.isidentifier():
        return None
    if find_spec(f"{__package__}.{module}") is None:
        return _extension(name)
    found = getattr(import_module(f"{__package__}.{module}"), "COMMAND", None)
    return found if isinstance(found, Command) and found.name == name else None


def _extension(name: str) -> Command | None:
    """The command of this name in another package, or None. Raises EnvironmentFault if it cannot be imported."""
    try:
        found = load(COMMANDS, name)
    except EnvironmentFault:
        if (interrupt := came()) is not None:
            raise interrupt from None
        raise
    return found if isinstance(found, Command) and found.name == name else None
