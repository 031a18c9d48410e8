"""Addresses of remote files. Printed addresses hold no password and no query: a query may be a signature."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from .errors import UsageError
from .text import printable

_SCHEME = re.compile(r"(hf|https?)://", re.IGNORECASE)
#: Subfolder of a run's private folder that holds copies of remote files.
FETCHED = "fetched"
_MOST_NAME = 200  # bytes; every file system allows that


@dataclass(frozen=True)
class Address:
    """`hf://OWNER/REPO/FILE`, `https://HOST/FILE` or `http://HOST/FILE`.

    Args:
        url: the address as given, secrets included. Show it only to code that connects to the server.
    """

    url: str

    @classmethod
    def of(cls, text: str) -> Self | None:
        """Parse an address; returns None if the text is a path. Raises UsageError if the address names no file."""
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
        """The file's name, unquoted."""
        return unquote(urlsplit(self.url).path.rpartition("/")[2])

    def beside(self, name: str) -> Address:
        """Return the address of another file in the same folder."""
        parts = urlsplit(self.url)
        folder = parts.path.rpartition("/")[0]
        return Address(urlunsplit(parts._replace(path=f"{folder}/{quote(name, safe='!$&()*+,;=:@~')}")))

    def __str__(self) -> str:
        return _without_secrets(self.url)

    def __repr__(self) -> str:
        return f"Address({str(self)!r})"


def _without_secrets(url: str) -> str:
    try:
        parts = urlsplit(url)
        host = parts.netloc if parts.scheme == "hf" else parts.netloc.rpartition("@")[2]
        return urlunsplit((parts.scheme, host, parts.path, "", "")) + ("?…" if parts.query else "")
    except ValueError:
        return url.partition("://")[0] + "://…"


def located(text: str | Path) -> Path | Address:
    """Parse a command-line word as an address or a path. Raises UsageError as `Address.of`."""
    return (Address.of(text) if isinstance(text, str) else None) or Path(text)
