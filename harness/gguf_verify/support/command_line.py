"""Command lines as text: quoted for a shell, and reduced to one failing call."""

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
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def program() -> str:
    """Return the program name to print in command lines: `gguf-verify`, or the checkout's script as it was typed.

    Never a module's `__main__.py`, nor a program that calls `verify`.
    """
    typed = Path(sys.argv[0]) if sys.argv and sys.argv[0] else Path()
    scripts = ("verify_model.py", "audit_layout.py", "nightly.py")
    return f"python {quoted(str(typed))}" if typed.name in scripts else "gguf-verify"


def quoted(word: str) -> str:
    """Quote a word for bash or zsh: on one line, without characters that a terminal would act on."""
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


def command_line(model: str, flags: Mapping[str, str | None], command: str = "", second: str = "") -> str:
    """Return the command line that verifies a model.

    Args:
        model: the first argument, such as a model or a kernel.
        flags: flag → its value; None for a flag without a value.
        command: name of the command; "" for the default command, which needs no name.
        second: the second argument; "" for none.
    """
    # otherwise a model could be parsed as a flag or as a command
    if model.startswith("-") or (not command and Path(model).name.isidentifier()):
        model = model if os.path.isabs(model) else os.path.join(".", model)
    words = ["gguf-verify", command] if command else [program()]
    words += [quoted(each) for each in (model, second) if each]
    for flag, value in flags.items():
        words += [flag] if value is None else _flag(flag, value)
    return " ".join(words)


def _flag(flag: str, value: str) -> list[str]:
    long = {"-p": "--prompt", "-f": "--file"}.get(flag, flag)
    return [f"{long}={quoted(value)}"] if value.startswith("-") or not value else [flag, quoted(value)]


def with_flags(command: str, flags: Mapping[str, str], without: Iterable[str] = ()) -> str:
    """Return a command line of `command_line` with these flags replaced or added, and those of `without` removed."""
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
    """Reduce the command line of a run to one call of a rung, or to one tensor if the call is not known.

    The budget is removed, so that the call is made however long it takes. The tokens rung is not reduced to a tensor:
    a product's input there depends on the grafts before it.
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
    """Return a regular expression that matches only this name. Dots become [.], which is easier to read than \\."""
    return f"^{re.escape(name).replace(chr(92) + '.', '[.]')}$"


def shown(command: str) -> str:
    """Return a command line for printing: unprintable characters are escaped. Backslashes stay, so that the output of
    `command_line` can be pasted."""
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in command)
