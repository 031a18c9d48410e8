"""`gguf-verify completion SHELL`: print a completion script for a shell."""

from __future__ import annotations

import argparse
from pathlib import Path
from types import ModuleType

from ..support.errors import EnvironmentFault
from .command import Command, commands
from .common import print_lines
from .files import actions_of, output
from .parser import Parser

_SHELLS = ("bash", "zsh", "fish", "tcsh")
_EPILOG = """\
for example:
  bash  gguf-verify completion bash > ~/.local/share/bash-completion/completions/gguf-verify
  zsh   gguf-verify completion zsh > ~/.zfunc/_gguf-verify     (a folder of $fpath)
  fish  gguf-verify completion fish > ~/.config/fish/completions/gguf-verify.fish
  tcsh  gguf-verify completion tcsh > ~/.gguf-verify.tcsh      (and source it)
"""


def build_parser() -> Parser:
    """The parser of this command."""
    parser = Parser(
        prog="gguf-verify completion",
        epilog=_EPILOG,
        description="Print a completion script for gguf-verify's commands, options and files.",
    )
    parser.add_argument("shell", choices=_SHELLS, metavar="SHELL", help=", ".join(_SHELLS))
    return parser


def run(argv: list[str]) -> int:
    """`gguf-verify completion …`; returns the exit code. Raises HarnessError."""
    args = build_parser().parse_args(argv)
    try:
        import shtab
    except ImportError:
        raise EnvironmentFault("completion needs shtab, which is not installed: pip install shtab") from None
    if args.shell not in shtab.SUPPORTED_SHELLS:
        raise EnvironmentFault(f"the installed shtab does not support {args.shell}: pip install -U shtab")
    return print_lines(shtab.complete(_whole(shtab), args.shell))


def _whole(shtab: ModuleType) -> argparse.ArgumentParser:
    """Build one parser of all commands. `verify` is the default command, so its options are at the top level too."""
    found = commands()
    whole = argparse.ArgumentParser(prog="gguf-verify")
    for action in found["verify"].parser()._actions:
        if action.option_strings and not isinstance(action, argparse._HelpAction):
            whole._add_action(action)
    listed = whole.add_subparsers(dest="command", metavar="COMMAND")
    for command in found.values():
        made = command.parser()
        listed.add_parser(command.name, help=command.summary)
        made.prog = f"{whole.prog} {command.name}"
        listed.choices[command.name] = made
    for action in actions_of(whole):
        if action.type in (Path, output) and action.choices is None:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    return whole


COMMAND = Command("completion", "print a completion script for a shell", build_parser, run)
