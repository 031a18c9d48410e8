"""Command lines as text: quoted so that they can be pasted, and cut down to one failing call."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

#: A word of a shell's command line, with its quotes.
_WORD = re.compile(r"(?:\$'(?:[^'\\]|\\.)*'|'[^']*'|\"[^\"]*\"|[^\s'\"])+")


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def program() -> str:
    """How a user of this process would call the command line: `gguf-verify`, or the script of a checkout as it was
    typed. Never a module's `__main__.py`, nor the program that calls `verify`."""
    typed = Path(sys.argv[0]) if sys.argv and sys.argv[0] else Path()
    scripts = ("verify_model.py", "audit_layout.py", "nightly.py")
    return f"python {quoted(str(typed))}" if typed.name in scripts else "gguf-verify"


def quoted(word: str) -> str:
    """A word for a shell (bash, zsh): on one line, and without a character that a terminal would act on."""
    if word.isprintable():
        return shlex.quote(word)
    made = ""
    for c in word:
        if c in "\\'":
            made += "\\" + c
        elif c.isprintable():
            made += c
        else:
            made += "".join(f"\\x{byte:02x}" for byte in c.encode("utf-8", "surrogateescape"))
    return f"$'{made}'"


def command_line(model: str, flags: Mapping[str, str | None], command: str = "") -> str:
    """The command line that verifies a model.

    Args:
        command: one that is named; "" for the one of a command line that names none.
        flags: flag → its value; None for a flag that takes none.
    """
    if model.startswith("-") or Path(model).name.isidentifier():  # else taken for a flag, or for a command
        model = model if os.path.isabs(model) else os.path.join(".", model)
    words = ["gguf-verify", command] if command else [program()]
    words.append(quoted(model))
    for flag, value in flags.items():
        words += [flag] if value is None else _flag(flag, value)
    return " ".join(words)


def _flag(flag: str, value: str) -> list[str]:
    long = {"-p": "--prompt", "-f": "--file"}.get(flag, flag)
    return [f"{long}={quoted(value)}"] if value.startswith("-") or not value else [flag, quoted(value)]


def with_flags(command: str, flags: Mapping[str, str], without: Iterable[str] = ()) -> str:
    """A command line of `command_line`, with these flags in place of those of the same names."""
    gone = {*flags, *without}
    words, kept = _WORD.findall(command), list[str]()
    skip = False
    for word in words:
        if skip:
            skip = False
        elif word in gone:
            skip = True
        elif word.partition("=")[0] not in gone:
            kept.append(word)
    return " ".join([*kept, *(word for flag, value in flags.items() for word in _flag(flag, value))])


def repeat(command: str, rung: str, tensor: str, call: str) -> str:
    """The command line of a run, cut down to one call of a rung; or, where no call is known, to a tensor.

    Its budget is left out, so that it takes what it takes. The tokens rung is not cut down to a tensor: what a product
    there gets depends on the grafts before it.
    """
    if not command:
        return ""
    flags = {"--rungs": rung}
    if tensor and rung != "tokens":
        flags["--tensor"] = pattern_of(tensor)
    if call:
        flags["--only-call"] = call
    return with_flags(command, flags, ("--only-call", "--budget"))


def pattern_of(name: str) -> str:
    """A regular expression that matches this name alone; a dot is written without a backslash, for legibility."""
    return f"^{re.escape(name).replace(chr(92) + '.', '[.]')}$"


def shown(command: str) -> str:
    """A command line as it can be printed: what is not printable is escaped. Backslashes stay, so that what
    `command_line` made can be pasted."""
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in command)
