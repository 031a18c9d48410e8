"""Texts of files that are published: without the folders of this machine.

A page, a card or a log of code scanning leaves the machine on which it was made. The folders of its files, which may
tell a user's name or a customer's, are nothing that a reader needs.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from ..support.address import Address

#: Folders that every machine of this kind has.
_COMMON = ("/usr/", "/lib/", "/lib64/", "/bin/", "/etc/", "/proc/", "/sys/", "/dev/", "/opt/")
#: Characters before a slash that does not begin an absolute path.
_INSIDE = "._-~/\\"
#: The most characters of a folder.
_MOST = 4096


def published(text: str) -> str:
    """Return a text in which each absolute path into an existing folder of this machine is the name of its file.

    Folders that belong to the system, such as /usr/lib, stay. So does what only looks like a path: the name of a tensor
    or a word of a prompt, since no such folder exists.
    """
    if "/" not in text:
        return text
    made, at = "", 0
    while (start := text.find("/", at)) >= 0:
        inside = start > 0 and (text[start - 1].isalnum() or text[start - 1] in _INSIDE)
        stop = start if inside or text.startswith("//", start) else _folder_end(text, start)
        gone = stop > start and not text.startswith(_COMMON, start)
        made += text[at : start if gone else stop + 1]
        at = stop + 1
    return made + text[at:]


def _folder_end(text: str, start: int) -> int:
    """Return the place of the last slash behind an existing folder; `start` if there is none."""
    end = start
    while 0 <= (following := text.find("/", end + 1)) < start + _MOST and os.path.isdir(text[start:following]):
        end = following
    return end


def file_name(path: str) -> str:
    """Return the path of a file as code scanning takes it: relative to the working folder if the file is in it, else
    the name alone. Addresses stay."""
    if Address.of(path) is not None or not os.path.isabs(path):
        return path if not path.startswith("..") else os.path.basename(path)
    here = os.path.join(os.getcwd(), "")
    return path.removeprefix(here) if path.startswith(here) else os.path.basename(path)


def names(paths: Iterable[Path | Address]) -> list[str]:
    """Return the names of several files: relative to the folder that holds all of them. Addresses stay."""
    listed = [*paths]
    folders = [path.absolute().parent for path in listed if isinstance(path, Path)]
    common = os.path.commonpath(folders) if folders else ""
    return [str(p) if isinstance(p, Address) else os.path.relpath(p.absolute(), common) for p in listed]


def public(value: Any) -> Any:
    """Return plain objects, or a record of dataclasses and tuples, with all of its texts as `published` makes them."""
    if isinstance(value, str):
        return published(value)
    if isinstance(value, Mapping):
        return {key: public(each) for key, each in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(public, value))
    if isinstance(value, list | tuple):
        return type(value)(map(public, value))
    if isinstance(value, Iterator):
        return map(public, value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{field.name: public(getattr(value, field.name)) for field in fields(value)})
    return value
