"""Addresses of remote files. What is printed of one holds no password and no query, which may be a signature."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from .errors import UsageError
from .text import printable

_SCHEME = re.compile(r"(hf|https?)://", re.IGNORECASE)
#: The folder of a run's own one in which copies of remote files are.
FETCHED = "fetched"
_MOST_NAME = 200  # bytes, which every file system holds


@dataclass(frozen=True)
class Address:
    """`hf://OWNER/REPO/FILE`, `https://HOST/FILE` or `http://HOST/FILE`.

    Args:
        url: as it was given, secrets included. Only what connects to the server may see it.
    """

    url: str

    @classmethod
    def of(cls, text: str) -> Self | None:
        """The address that a text is; None where it is a path. Raises UsageError for one that names no file."""
        if not _SCHEME.match(text):
            return None
        made = cls(text)
        try:
            named = made.name
            there = made.scheme == "hf" or (bool(urlsplit(text).hostname) and urlsplit(text).port != 0)
        except ValueError:
            named, there = "", False
        if not there or not named or named in (".", "..") or "/" in named or "\0" in named:
            raise UsageError(f"{printable(_without_secrets(text), 200)}: the address names no file", "no-such-file")
        if len(named.encode()) > _MOST_NAME:
            raise UsageError(f"{printable(named, 60)}: the name is longer than {_MOST_NAME} bytes", "no-such-file")
        return made

    @property
    def scheme(self) -> str:
        return self.url.partition("://")[0].lower()

    @property
    def name(self) -> str:
        """The file's name, not escaped."""
        return unquote(_path_of(self.url).rpartition("/")[2])

    def beside(self, name: str) -> Address:
        """The address of another file in the same place."""
        parts = urlsplit(self.url)
        folder = parts.path.rpartition("/")[0]
        return Address(urlunsplit(parts._replace(path=f"{folder}/{quote(name, safe='!$&()*+,;=:@~')}")))

    def __str__(self) -> str:
        return _without_secrets(self.url)

    def __repr__(self) -> str:
        return f"Address({str(self)!r})"


def _path_of(url: str) -> str:
    return urlsplit(url).path


def _without_secrets(url: str) -> str:
    try:
        parts = urlsplit(url)
        host = parts.netloc if parts.scheme == "hf" else parts.netloc.rpartition("@")[2]
        return urlunsplit((parts.scheme, host, parts.path, "", "")) + ("?…" if parts.query else "")
    except ValueError:
        return url.partition("://")[0] + "://…"


def located(text: str | Path) -> Path | Address:
    """What a command line names: an address, or a path. Raises UsageError as `Address.of`."""
    return (Address.of(text) if isinstance(text, str) else None) or Path(text)
