"""Domain: the numbers of tokens M, rows N and columns K, and the GPU architectures that a kernel promises to support.

A kernel is verified inside its domain; anything outside is reported as not covered. The default domain is everything.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ..support.errors import UsageError

#: Limits of `most`, and of `least` and `multiple`: a check of a single block is padded to the latter two.
_MOST, _MOST_LEAST = 1 << 48, 8192
_RANGE = re.compile(r" *([0-9]{1,15}) *- *([0-9]{1,15}) *", re.ASCII)
_KEYS = ("least", "most", "multiple")
_ARCHITECTURE = re.compile(r"sm_[1-9][0-9]{1,2}[a-z]?")


@dataclass(frozen=True)
class Extent:
    """The values that one dimension may have.

    Args:
        least, most: the smallest and the largest value; `most` is None if there is no limit.
        multiple: every value is a multiple of this.
    """

    least: int = 1
    most: int | None = None
    multiple: int = 1

    def __contains__(self, value: int) -> bool:
        return self.least <= value and (self.most is None or value <= self.most) and value % self.multiple == 0

    def up(self, value: int) -> int | None:
        """Return the smallest allowed value that is not less than `value`; None if there is none."""
        found = -(-max(value, self.least) // self.multiple) * self.multiple
        return found if found in self else None

    def down(self, value: int) -> int | None:
        """Return the largest allowed value that is not more than `value`; None if there is none."""
        found = (value if self.most is None else min(value, self.most)) // self.multiple * self.multiple
        return found if found in self else None

    def parts(self, total: int) -> Iterator[tuple[int, int]]:
        """Yield the calls that cover `total` tokens, the largest first.

        Each is a pair: the tokens that the call contributes, and the tokens that it is given, which are more where no
        smaller call is allowed.
        """
        while total > 0:
            size = self.down(total)
            if size is None or not size:
                size = self.up(total)
                assert size is not None, "an extent holds at least one value"
            yield min(size, total), size
            total -= size

    def words(self, name: str) -> str:
        """Describe the values in words; empty if there is no limit."""
        if self.most == self.least:
            return f"{name} = {self.least}"
        said = []
        if self.most is not None:
            said.append(f"{name} from {self.least} to {self.most:,}")
        elif self.least > max(1, self.multiple):
            said.append(f"{name} of at least {self.least:,}")
        if self.multiple > 1:
            said.append(f"{'in multiples' if said else f'{name} a multiple'} of {self.multiple:,}")
        return " ".join(said)


@dataclass(frozen=True)
class Domain:
    """The products that a kernel promises to compute.

    Args:
        m, n, k: allowed numbers of tokens, rows and columns.
        architectures: of GPUs, e.g. "sm_90"; empty for all.
    """

    m: Extent = field(default_factory=Extent)
    n: Extent = field(default_factory=Extent)
    k: Extent = field(default_factory=Extent)
    architectures: tuple[str, ...] = ()

    def outside(self, n: int, k: int, sm: str | None = None) -> str | None:
        """Return why a matrix of n rows and k columns is outside the domain on a GPU `sm`; None if it is inside.

        The number of tokens does not matter here: any number is split into calls that the domain allows.
        """
        if sm is not None and self.architectures and f"sm_{sm}" not in self.architectures:
            return f"its domain has no sm_{sm}: {', '.join(self.architectures)}"
        for name, value, extent in (("N", n, self.n), ("K", k, self.k)):
            if value not in extent:
                return f"{name} = {value} is outside its domain: {extent.words(name)}"
        return None

    @property
    def words(self) -> str:
        """Describe the domain in words, for reports."""
        said = [extent.words(name) for name, extent in (("M", self.m), ("N", self.n), ("K", self.k))]
        return ", ".join([*filter(None, said), *([" or ".join(self.architectures)] if self.architectures else [])])

    def plain(self) -> dict[str, Any]:
        """Return the domain as plain data, as `domain_of` reads it."""
        sizes = {
            name: {"least": e.least, "multiple": e.multiple} | ({} if e.most is None else {"most": e.most})
            for name, e in (("M", self.m), ("N", self.n), ("K", self.k))
        }
        return {**sizes, "architectures": list(self.architectures)}


EVERYTHING = Domain()


def domain_of(said: object) -> Domain:
    """Parse a declared domain.

    It is a table with any of M, N and K, each a number (only that value), a range such as "1-65535" or a table of
    `least`, `most` and `multiple`; and `architectures`, a list such as ["sm_80", "sm_90"]. Raises UsageError for
    anything else.
    """
    if not isinstance(said, dict):
        raise UsageError('domain is a table such as {"M": 1, "K": {"multiple": 256}}')
    unknown = said.keys() - {"M", "N", "K", "architectures"}
    if unknown:
        raise UsageError(f"domain knows M, N, K and architectures, not {ascii(min(map(str, unknown)))[:40]}")
    cards = said.get("architectures", [])
    if not isinstance(cards, list | tuple) or not all(isinstance(c, str) and _ARCHITECTURE.fullmatch(c) for c in cards):
        raise UsageError('the architectures of a domain are a list such as ["sm_80", "sm_90"]')
    m, n, k = (extent_of(name, said.get(name, {})) for name in ("M", "N", "K"))
    return Domain(m, n, k, tuple(cards))


def extent_of(name: str, said: object) -> Extent:
    """Parse the declared values of a dimension: a number, a table, or a range such as "1-65535". Raises UsageError."""
    if isinstance(said, str) and (ends := _RANGE.fullmatch(said)):
        said = {"least": int(ends[1]), "most": int(ends[2])}
    if isinstance(said, int) and not isinstance(said, bool):
        said = {"least": said, "most": said}
    if not isinstance(said, dict) or said.keys() - set(_KEYS):
        raise UsageError(f'{name} of a domain is a number, a range such as "1-65535", or a table of {", ".join(_KEYS)}')
    for key, value in said.items():
        if (
            isinstance(value, bool)
            or not isinstance(value, int)
            or not 1 <= value <= (_MOST if key == "most" else _MOST_LEAST)
        ):
            raise UsageError(
                f"{key} of {name} in a domain is not a number from 1 to {_MOST if key == 'most' else _MOST_LEAST:,}"
            )
    extent = Extent(said.get("least", 1), said.get("most"), said.get("multiple", 1))
    if extent.up(extent.least) is None:
        raise UsageError(f"no {name} is in the declared domain")
    return extent
