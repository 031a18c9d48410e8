"""The argument parser of every command: two help texts, errors in one line, old spellings and settings.

`-h` prints the options marked `basic`, one line each; `--help` prints all of them. Both show them in the groups of
`Parser.group`.
"""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn, TypeVar

from ..kernels.foreign.names import names_foreign
from ..support.command_line import quoted
from ..support.errors import UsageError, say
from ..support.near import nearest, spelled_as
from ..support.output import write, write_lines
from ..support.settings import Settings, read_settings
from ..support.text import printable
from ..support.version import project_version
from .files import actions_of, take_files

#: Titles of the groups of options.
WHAT, HOW, WHERE, REPORTS, LIMITS = "what", "how thorough", "where", "reports", "limits"
_GROUPS = (WHAT, HOW, WHERE, REPORTS, LIMITS)
#: Width in columns of the short help, and of its left column.
_WIDTH, _LEFT = 80, 25
A = TypeVar("A", bound=argparse.Action)


def basic(action: A) -> A:
    """Mark an option for the short help, which prints its help text up to the first ";" or "("."""
    action.basic = True  # type: ignore[attr-defined]
    return action


class Old(argparse.Action):
    """An option of the previous release: accepted with a line of advice, and in no help text.

    Args:
        now: its new spelling; value → spelling if that depends on the value.
        sets: the value that the flag stands for; None if it takes a value.
        replaced_by: the destination of a new option that cannot be given too; "" if it can.
    """

    def __init__(
        self,
        option_strings: Any,
        dest: str,
        *,
        now: str | Mapping[str, str],
        sets: Any = None,
        replaced_by: str = "",
        **kwargs: Any,
    ) -> None:
        kwargs |= {"help": argparse.SUPPRESS, "default": argparse.SUPPRESS, "nargs": None if sets is None else 0}
        super().__init__(option_strings, dest, **kwargs)
        self._now, self._sets, self.replaced_by = now, sets, replaced_by

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        """Set the value, and note the advice."""
        setattr(namespace, self.dest, self.value(namespace, values))
        old = str(option_string) if self.nargs == 0 else f"{option_string} {quoted(str(values))}"
        namespace.advice = {**getattr(namespace, "advice", {}), old: self.now(values)}

    def now(self, values: Any) -> str:
        """Return the new spelling of the option with its value."""
        return self._now if isinstance(self._now, str) else self._now[values]

    def value(self, namespace: Any, values: Any) -> Any:
        """Return the value to set."""
        return values if self._sets is None else self._sets


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line that suggests a correction. It raises UsageError instead of exiting.

    Args:
        late_epilog: makes the epilog of the full help, if making it is slow.
        short_epilog: makes the last lines of the short help.
    """

    def __init__(
        self,
        *args: Any,
        late_epilog: Callable[[], str] | None = None,
        short_epilog: Callable[[], str] | None = None,
        **kwargs: Any,
    ) -> None:
        kwargs = {"formatter_class": argparse.RawDescriptionHelpFormatter} | kwargs | {"add_help": False}
        super().__init__(*args, **kwargs)
        self._late_epilog, self._short_epilog = late_epilog, short_epilog
        self.add_argument("-h", action=_ShowHelp, nargs=0, help="show the most used options")
        self.add_argument("--help", action=_ShowHelp, nargs=0, help="show all options")
        self.add_argument("-V", "--version", action=_ShowVersion, nargs=0, help="show the version")

    def group(self, title: str) -> argparse._ArgumentGroup:
        """Return the group of options with this title, one of those of this module."""
        made = next((g for g in self._action_groups if g.title == title), None) or self.add_argument_group(title)
        titled = [g for g in self._action_groups if g.title in _GROUPS]
        rest = [g for g in self._action_groups if g not in titled]
        self._action_groups[:] = [*rest[:2], *sorted(titled, key=lambda g: _GROUPS.index(str(g.title))), *rest[2:]]
        return made

    def show_first(self, *names: str) -> None:
        """Mark arguments for the short help (`basic`): options by a flag, others by their destination."""
        for action in self._actions:
            if not {*action.option_strings, action.dest}.isdisjoint(names) and action.help != argparse.SUPPRESS:
                basic(action)

    def error(self, message: str) -> NoReturn:
        """Raises UsageError."""
        raise UsageError(f"{printable(message, 600)}; see {self.prog} --help", "usage")

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse like argparse, with the defaults of the settings' file; check that outputs overwrite no input, and
        print advice on old spellings.

        Raises UsageError.
        """
        try:
            settings, wrong = self._take_settings(), None
        except UsageError as error:  # raised below: -h, --help and -V work without settings
            settings, wrong = None, error
        found, unknown = self.parse_known_args(args, namespace)
        if wrong is not None:
            raise wrong
        if unknown:
            first = str(unknown[0])
            near = nearest(first.partition("=")[0], self._known_options()) if first.startswith("-") else ""
            near = near or self._misplaced(first)
            flags = "unknown option" if first.startswith("-") else "unexpected argument"
            raise UsageError(f"{flags} {printable(first, 100)}; {near}see {self.prog} --help", "usage")
        if isinstance(ray := getattr(found, "ray", None), _Setting):
            replaced = getattr(found, "jobs_replace_ray", False) and found.jobs is not None
            found.ray = None if replaced else str(ray)
        for action in actions_of(self):
            if isinstance(action, Old) and action.replaced_by and getattr(found, action.dest, None) is not None:
                new, old = action.replaced_by, action.option_strings[0]
                if getattr(found, new) is not None:
                    raise UsageError(f"--{new} replaces {old}: give one of them", "usage")
        take_files(found, self)
        advice = getattr(found, "advice", {})
        if advice:
            now = ", ".join(f"{printable(old, 200)} is now {printable(new, 200)}" for old, new in advice.items())
            say(f"{now}; this release still accepts the old spelling")
        if settings is not None:
            say(settings.words)
        return found

    def _misplaced(self, word: str) -> str:
        """Return "did you mean --kernel k.cu? " for a kernel or a model in the wrong place, otherwise ""."""
        if names_foreign(word) and "--kernel" in self._option_string_actions:
            return f"did you mean --kernel {printable(word, 100)}? "
        if word.endswith(".gguf") and any(a.dest == "kernel" and not a.option_strings for a in self._actions):
            return "on a model: `gguf-verify MODEL.gguf --kernel KERNEL`; "
        return ""

    def _known_options(self) -> list[str]:
        return [name for name, action in self._option_string_actions.items() if action.help != argparse.SUPPRESS]

    def _take_settings(self) -> Settings | None:
        """Make the values of the settings' file the defaults of this parser; None if there are none for it."""
        actions = [a for a in actions_of(self) if a.option_strings]
        if not any(a.dest in Settings.names() for a in actions):
            return None
        settings = read_settings()
        values: Mapping[str, Any] = {} if settings is None else settings.values
        for action in actions:
            if action.dest in values and not isinstance(action, Old):
                value = values[action.dest]
                action.default = _Setting(value) if action.dest == "ray" else value
        return settings

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        value = super()._get_value(action, arg_string)
        return value if action.choices is None else spelled_as(value, action.choices)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Raise our own message: argparse's has no "did you mean", and differs between versions of Python."""
        if action.choices is not None and value not in action.choices:
            known = [str(choice) for choice in action.choices]
            what = "/".join(action.option_strings) or action.metavar or action.dest
            there = f"{what} takes {', '.join(known)}"
            raise UsageError(f"{what} {printable(str(value), 100)!r}: {nearest(str(value), known)}{there}", "usage")

    # ---- help texts --------------------------------------------------------------------------------------------------

    def _print_message(self, message: str, file: Any = None) -> None:
        """Write a help text. argparse's own method hides a failed write."""
        write(message)

    def format_usage(self) -> str:
        """Return one line: the positional and the required arguments."""
        return f"usage: {self._usage()}\n"

    def _usage(self) -> str:
        if self.usage is not None:
            return self.usage % {"prog": self.prog}
        shown = [a for a in self._actions if a.help != argparse.SUPPRESS]
        required = [f"{a.option_strings[-1]} {_value_of(a)}" for a in shown if a.option_strings and a.required]
        positional = [_positional(a) for a in shown if not a.option_strings]
        return " ".join([self.prog, *positional, *required, "[options]"])

    def format_help(self) -> str:
        """Return the full help text."""
        if self._late_epilog is not None:
            self.epilog = self._late_epilog()
        formatter = self._get_formatter()
        formatter.add_usage(self._usage().replace("%", "%%"), self._actions, self._mutually_exclusive_groups)
        formatter.add_text(self.description)
        for group in [*self._action_groups[:1], *self._action_groups[2:], self._action_groups[1]]:
            formatter.start_section(group.title)
            formatter.add_text(group.description)
            formatter.add_arguments(group._group_actions)
            formatter.end_section()
        formatter.add_text(self.epilog)
        return formatter.format_help()

    def format_short_help(self) -> str:
        """Return the help text on the options that are marked `basic`; the full one if none is."""
        groups = [(g.title, [a for a in g._group_actions if hasattr(a, "basic")]) for g in self._action_groups]
        shown = [(title, actions) for title, actions in groups if actions]
        if not shown:
            return self.format_help()
        lines = [*_filled(f"usage: {self._usage()}"), "", *_filled(str(self.description))]
        for title, actions in shown:
            lines += ["", f"{title}:", *(line for action in actions for line in _short_lines(action))]
        lines += [] if self._short_epilog is None else ["", *self._short_epilog().splitlines()]
        return "\n".join([*lines, "", f"All options: {self.prog} --help", ""])


class _Setting(str):
    """The value of --ray from the settings' file, which is told from the same value on the command line."""


class _ShowHelp(argparse._HelpAction):
    """`-h`: the short help text; `--help`: all of it."""

    def __init__(self, option_strings: Any, dest: str = "help", nargs: int = 0, help: str | None = None) -> None:
        super().__init__(option_strings, dest=argparse.SUPPRESS, default=argparse.SUPPRESS, help=help)

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        """Print it, and exit."""
        write(parser.format_short_help() if option_string == "-h" else parser.format_help())
        parser.exit()


class _ShowVersion(argparse.Action):
    """Show the version. argparse's own action needs the version at once, a look-up that every command would pay for."""

    def __call__(self, parser: argparse.ArgumentParser, *_args: object) -> None:
        write_lines(f"gguf-verify {project_version()}")
        parser.exit()


def _value_of(action: argparse.Action) -> str:
    if isinstance(action.metavar, str):
        return action.metavar
    return "|".join(map(str, action.choices)) if action.choices is not None else action.dest.upper()


def _positional(action: argparse.Action) -> str:
    name = action.metavar if isinstance(action.metavar, str) else action.dest
    return {"?": f"[{name}]", "+": f"{name} …", "*": f"[{name} …]"}.get(str(action.nargs), name)


def _short_lines(action: argparse.Action) -> list[str]:
    """Return the lines of the short help: the names and the value of an argument, and its help text up to a ";"."""
    names = ", ".join(action.option_strings)
    left = _positional(action) if not names else names if action.nargs == 0 else f"{names} {_value_of(action)}"
    text = re.split(r"; | \((?!the)|: ", (action.help or "").replace("%%", "%"), maxsplit=1)[0]
    filled = textwrap.wrap(f"  {left:<{_LEFT - 1}} {text}", _WIDTH, subsequent_indent=" " * (_LEFT + 2))
    if len(left) < _LEFT:
        return filled
    return [f"  {left}", *textwrap.wrap(text, _WIDTH, initial_indent=(at := " " * (_LEFT + 2)), subsequent_indent=at)]


def _filled(text: str) -> Iterable[str]:
    return textwrap.wrap(text, _WIDTH, subsequent_indent="  " if text.startswith("usage: ") else "")
