"""Settings of the user's project: limits, isolation, Ray and imports, from the nearest file that has some.

Every command, the pytest plugin and the cells of a night read them. A file in a folder that someone else wrote must not
weaken a run: it has no key that skips a check, and it may require isolation, but not lower it. SECURITY.md explains.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from .errors import UsageError, say
from .files import open_regular
from .text import printable
from .toml import Mistake, parsed, typed

#: File with nothing but settings, and file with a table of them.
FILE, PROJECT = "gguf-verify.toml", "pyproject.toml"
TABLE = "gguf-verify"
_SANDBOXES = ("auto", "bubblewrap")
_MOST_BYTES = 1 << 20
#: Most characters of a value that are printed.
_MOST_SHOWN = 120
_Seconds = Annotated[float, Meta(ge=0.001, le=10**6)]


#: Names of tools in the headers of tables.
_TOOLS = re.compile(rb"^\s*\[\s*tool\s*\.\s*[\"']?([\w-]+)", re.M)
#: Least similarity of a misspelled name: of "gguf-verify-report", another program's, it is 0.76.
_NEAR = 0.85


class _Keys(Struct, frozen=True, kw_only=True, rename="kebab"):
    """The keys, named as the options of the command line."""

    sandbox: str | UnsetType = UNSET
    time_limit: _Seconds | UnsetType = UNSET
    kernel_time_limit: _Seconds | UnsetType = UNSET
    kernel_memory: Annotated[float, Meta(ge=0.25, le=10**6)] | UnsetType = UNSET
    ray: str | UnsetType = UNSET
    imports: list[str] | UnsetType = msgspec.field(name="import", default=UNSET)
    loads: list[str] | UnsetType = msgspec.field(name="load", default=UNSET)


@dataclass(frozen=True)
class Settings:
    """The settings of one file.

    Args:
        path: the file.
        values: field → value, for those that the file sets. The fields are named as the parsed arguments of the
            commands, and, but for `ray`, as those of `Options`.
        foreign: another user owns the file or may write it, so it sets nothing but a stricter sandbox.
    """

    path: Path
    values: dict[str, Any]
    foreign: bool = False

    @staticmethod
    def names() -> frozenset[str]:
        """The fields that a file may set."""
        return frozenset(_Keys.__struct_fields__)

    @property
    def of_options(self) -> dict[str, Any]:
        """The values that are fields of `Options`."""
        return {name: value for name, value in self.values.items() if name != "ray"}

    def flags(self, names: Iterable[str]) -> tuple[str, ...]:
        """The options of the command line that set these fields."""
        said = self._said()
        return tuple(f"--{key}={value}" for name, (key, value) in said.items() if name in names)

    @property
    def words(self) -> str:
        """Every key in one line; a long value is cut."""
        said = "; ".join(f"{key} {printable(value, _MOST_SHOWN)}" for key, value in self._said().values())
        return f"settings of {printable(str(self.path), 200)}: {said}"

    def _said(self) -> dict[str, tuple[str, str]]:
        """Field → key and value, as text."""
        keys = {field.name: field.encode_name for field in msgspec.structs.fields(_Keys)}
        return {n: (keys[n], ",".join(v) if isinstance(v, tuple) else f"{v}") for n, v in self.values.items()}


def read_settings(folder: Path | None = None) -> Settings | None:
    """Read the settings of a folder, or of the nearest parent that has some; None if there are none.

    Args:
        folder: the folder to begin with; None for the current one.

    A file that another user owns or may write can only require bubblewrap, also for settings of a folder above it.

    Raises UsageError if a file cannot be read, is not a regular file or no valid TOML, if a key or value is wrong, or
    if the name of the table is nearly right.
    """
    start = Path.cwd() if folder is None else folder.absolute()
    required: Settings | None = None
    for here in (start, *start.parents):
        for name in (FILE, PROJECT):
            found = _in_file(here / name)
            if found is None:
                continue
            if not found.foreign:
                return found if required is None else replace(found, values=found.values | required.values)
            required = required or found
    return required


def _in_file(path: Path) -> Settings | None:
    """The settings of one file; None if it is absent, has none, or is ignored."""
    shown = printable(str(path), 200)
    try:
        link = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise UsageError(f"cannot read the settings {shown}: {error.strerror}", "settings") from None
    content, info = _read(path, shown)
    if path.name == PROJECT and TABLE.encode() not in content:
        _expect_no_near(content, shown, others=_of_others(info, link))
        return None  # another project's file, in which an error is no concern of ours
    table = parsed(content, shown, "settings")
    place = ""
    if path.name == PROJECT:
        place, tools = f"tool.{TABLE}", table.get("tool", {})
        if not isinstance(tools, dict) or TABLE not in tools:
            return None
        table = tools[TABLE]
    if why := _of_others(info, link):
        tightens = isinstance(table, dict) and table.get("sandbox") == "bubblewrap"
        say(f"{shown} is ignored{', except for sandbox bubblewrap' if tightens else ''}: {why}")
        return Settings(path.absolute(), {"sandbox": "bubblewrap"}, foreign=True) if tightens else None
    try:
        values = _checked(typed(table, _Keys, place), place, path.absolute().parent)
    except Mistake as error:
        key, what = error.args
        raise UsageError(f"{shown}: {printable(str(key), 100)}: {what}", "settings") from None
    return Settings(path.absolute(), values) if values else None


def _of_others(info: os.stat_result, link: os.stat_result) -> str:
    """Why a file's settings are ignored: another user owns it, or may write it; "" if they are not."""
    if info.st_mode & stat.S_IWOTH:
        return "others may write it"
    return "it belongs to another user" if {info.st_uid, link.st_uid} - {os.geteuid(), 0} else ""


def _expect_no_near(content: bytes, shown: str, others: str) -> None:
    """Raises UsageError if a table has nearly our name: its author expects settings that nobody would read."""
    for name in () if others else {each.decode() for each in _TOOLS.findall(content)}:
        if SequenceMatcher(None, name[:64].lower().replace("_", "-"), TABLE).ratio() >= _NEAR:
            raise UsageError(f"{shown}: [tool.{name}] is not read; did you mean [tool.{TABLE}]?", "settings")


def _read(path: Path, shown: str) -> tuple[bytes, os.stat_result]:
    """The content of a file that exists, and its status. Raises UsageError."""
    try:
        with open_regular(path) as file:
            content, info = file.read(_MOST_BYTES + 1), os.fstat(file.fileno())
    except OSError as error:
        raise UsageError(f"cannot read the settings {shown}: {error.strerror}", "settings") from None
    if len(content) > _MOST_BYTES:
        raise UsageError(f"{shown}: the file has more than {_MOST_BYTES:,} bytes", "settings")
    return content, info


def _checked(keys: _Keys, place: str, folder: Path) -> dict[str, Any]:
    before = f"{place}." if place else ""
    values = {name: value for name in keys.__struct_fields__ if (value := getattr(keys, name)) is not UNSET}
    if (sandbox := values.get("sandbox", "auto")) not in _SANDBOXES:
        why = f"must be {' or '.join(_SANDBOXES)}, is {printable(repr(sandbox), 60)}"
        raise Mistake(f"{before}sandbox", f"{why}: a file cannot lower the isolation, only the option --sandbox can")
    if (ray := values.get("ray", "local")) != "local":
        why = f"must be local, is {printable(repr(ray), 60)}"
        raise Mistake(f"{before}ray", f"{why}: a file cannot choose a cluster, only the option --ray can")
    for name in ("imports", "loads"):
        if name in values:
            if not all(values[name]):
                raise Mistake(f"{before}{name.removesuffix('s')}", "contains an empty string")
            values[name] = tuple(values[name])
    if "loads" in values:  # paths are relative to the file
        values["loads"] = tuple(os.path.abspath(folder / each) for each in values["loads"])
    return values
