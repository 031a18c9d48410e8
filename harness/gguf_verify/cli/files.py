"""Check that no output of a command line overwrites one of its inputs.

An option that writes a file has the type `output`. Every other word of the command line or of a configuration is
treated as a possible input, so commands need no list of inputs and cannot forget one. `support.files` refuses
overwriting inputs that only the run discovers, such as a kernel's header, when an output is written.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import msgspec

from ..support.errors import UsageError
from ..support.text import printable

#: Names of files that are read from a folder on the command line: models, libraries, cases.
_OF_FOLDERS = ("*.safetensors", "*.index.json", "*.so", "*.so.*", "*.npy", "w.bin", "case.json")


def output(text: str) -> Path:
    """Type of an argument that names a file to write."""
    return Path(text)


def files_of(value: Any, folder: Path = Path()) -> Iterator[Path]:
    """Yield the files that a value may name, relative to `folder`.

    Words name files, also as FILE of FILE:NAME; lists and records are searched. Files that belong to such a file by
    name, such as a kernel's declaration, are included.
    """
    if isinstance(value, str | os.PathLike):
        word = os.fspath(value)
        ends = [i for i, c in enumerate(word) if c == ":"][:64]
        for name in (word, *(word[:i] for i in ends)):
            if name and "\0" not in name and len(name) < 4096:
                yield from _with_companions(folder / name)
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from files_of(each, folder)
    elif isinstance(value, Iterable):
        for each in value:
            yield from files_of(each, folder)
    elif isinstance(value, msgspec.Struct):
        yield from files_of([getattr(value, name) for name in value.__struct_fields__], folder)
    elif is_dataclass(value):
        yield from files_of([getattr(value, field.name) for field in fields(value)], folder)


def _with_companions(path: Path) -> Iterator[Path]:
    yield path
    if path.name:
        yield path.with_suffix(".toml")
        yield path.with_name(f"{path.name}.pub")


def take_files(args: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Set `args.outputs` (pairs of a flag and a path) and `args.inputs` (possible inputs). Make `--report-dir`.

    Raises UsageError as `check_outputs`, and if the folder cannot be made.
    """
    written = {a.dest: a for a in reversed([*actions_of(parser)]) if a.type is output}  # the first of each
    given = vars(args).items()
    paths = [(written[dest], each) for dest, value in given if dest in written for each in _each(value)]
    outputs = [("/".join(action.option_strings), path) for action, path in paths]
    folder: Path | None = getattr(args, "report_dir", None)
    if folder is not None:
        try:
            folder.mkdir(exist_ok=True)
        except OSError as error:
            raise UsageError(f"cannot make the folder {printable(str(folder))}: {error.strerror}") from None
        outputs += [("--report-dir", folder / name) for name in sorted(args.report_names)]
    inputs = [value for dest, value in given if dest not in written and dest != "report_dir"]
    args.outputs, args.inputs = outputs, [*files_of(inputs)] if outputs else []
    check_outputs(outputs, args.inputs)


def _each(value: Any) -> list[Path]:
    return [] if value is None else [value] if isinstance(value, Path) else [*value]


def actions_of(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield the arguments of a parser and of its subcommands."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for child in action.choices.values():
                yield from actions_of(child)


def check_outputs(outputs: Iterable[tuple[str, Path]], inputs: Iterable[Path]) -> None:
    """Check that each output can be written and overwrites no model, input or other output. Raises UsageError."""
    known, outputs = [*inputs], [*outputs]
    for flag, path in outputs:
        shown, parent = printable(str(path)), path.absolute().parent
        if path.is_dir():
            raise UsageError(f"cannot write {shown}: it is a folder")
        if not parent.is_dir():
            raise UsageError(f"cannot write {shown}: there is no folder {printable(str(path.parent))}")
        if not os.access(parent, os.W_OK) or (path.exists() and not os.access(path, os.W_OK)):
            raise UsageError(f"cannot write {shown}: permission denied")
        if path.suffix == ".gguf":
            raise UsageError(f"{flag} would overwrite a model: choose a name that does not end in .gguf")
        try:
            real = path.resolve()
        except (OSError, RuntimeError):  # a link that leads back to itself
            raise UsageError(f"cannot write {shown}: a link to itself") from None
        if overwrites(path, known) or real.suffix == ".gguf":
            raise UsageError(f"{flag} would overwrite {printable(path.name, 64)}, which is an input")
    for (one, path), (other, also) in combinations(outputs, 2):
        if path.resolve() == also.resolve():
            both = f"{one} and {other} name" if one != other else f"{one} names"
            raise UsageError(f"{both} the same file{'' if one != other else ' twice'}: {printable(path.name, 64)}")


def overwrites(path: Path, inputs: Iterable[Path]) -> bool:
    """Whether an output would overwrite one of these files, or a file that is read from one of these folders."""
    return path.exists() and any(_is_or_holds(given, path) for given in inputs)


def _is_or_holds(given: Path, path: Path) -> bool:
    try:
        if not given.is_dir():
            return given.exists() and path.samefile(given)
        real = path.resolve()
        return real.is_relative_to(given.resolve()) and any(map(real.match, _OF_FOLDERS))
    except OSError:  # not a valid path
        return False
