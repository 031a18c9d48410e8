"""Policy for redirects: those within a host are followed, others only if the user allowed them.

A redirect never leads from a public address to one of this machine or of a private network. Names are checked when they
are resolved for the connection, so that a name cannot change its address after the check.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any

#: The Hugging Face hub and the servers that it redirects to for large files: these domains and their subdomains.
_HUB = ("huggingface.co", "hf.co")
STATUS = (301, 302, 303, 307, 308)
#: Limit of redirects in a chain.
MOST = 10


class RefusedRedirect(Exception):
    """A redirect is not followed; `why` is the reason, as the end of a sentence "the server redirects …"."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class Redirects:
    """Decides on redirects, and resolves names for aiohttp's connections.

    Args:
        allowed: hosts that the user allows besides those of the given addresses.
    """

    def __init__(self, allowed: Sequence[str] = ()) -> None:
        self._allowed = {_plain(host) for host in allowed}
        self._given, self._led_to = set[str](), set[str]()
        self._hub = False
        #: Whether a given address belongs to this machine or a private network.
        self._internal = False

    def given(self, url: str, of_hub: bool) -> None:
        """Register an address of the user; `of_hub` if it was given as hf://."""
        from yarl import URL

        host = _plain(URL(url).raw_host)
        self._given.add(host)
        self._hub = self._hub or of_hub or _of_hub(host)
        self._internal = self._internal or is_internal(host)

    def check(self, before: Any, to: Any) -> None:
        """Check that a redirect between two addresses (`yarl.URL`) may be followed. Raises RefusedRedirect."""
        if to.scheme not in ("http", "https") or not to.host:
            raise RefusedRedirect("to an invalid address")
        if before.scheme == "https" and to.scheme != "https":
            raise RefusedRedirect("to an address without TLS")
        host = _plain(to.raw_host)
        if host in self._given:
            return
        if is_internal(host):
            self._check_internal(host)
        if host not in self._allowed and not (self._hub and _of_hub(host)):
            raise RefusedRedirect(f"to {host[:200]!a}, another host; to follow it, add --allow-redirects {host[:200]}")
        self._led_to.add(host)

    def _check_internal(self, host: str) -> None:
        if not self._internal:
            raise RefusedRedirect(f"to {host[:200]!a}, an address of this machine or of a private network")

    async def resolve(self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET) -> list[Any]:
        """Resolve a name in the form of aiohttp's resolvers. Raises OSError, RefusedRedirect."""
        from aiohttp import ThreadedResolver

        found: list[Any] = [*await ThreadedResolver().resolve(host, port, family)]
        name, internal = _plain(host), any(is_internal(each["host"]) for each in found)
        if name in self._given:
            self._internal = self._internal or internal
        elif name in self._led_to and internal:  # any other name is a proxy's
            self._check_internal(name)
        return found

    async def close(self) -> None:
        """Do nothing; part of aiohttp's interface of resolvers."""


def is_internal(host: str) -> bool:
    """Whether a host is an address of this machine or a private network, or no single public machine's address."""
    try:
        address = _address(host)
    except OSError:
        return False
    inner = (address.ipv4_mapped or address.sixtofour) if isinstance(address, IPv6Address) else None
    address = inner or address
    return not address.is_global or address.is_multicast


def _address(host: str) -> IPv4Address | IPv6Address:
    """Parse an address, also "127.1" and "0x7f000001", which sockets accept. Raises OSError for a name."""
    try:
        return ip_address(host)
    except ValueError:
        return IPv4Address(socket.inet_aton(host))


def _of_hub(host: str) -> bool:
    return any(host == domain or host.endswith(f".{domain}") for domain in _HUB)


def _plain(host: str | None) -> str:
    return (host or "").strip("[]").rstrip(".").lower()
