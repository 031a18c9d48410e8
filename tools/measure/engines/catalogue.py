"""The catalogue of engines and what was found in them: examples/engines/engines.toml and findings.toml."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

import msgspec

from gguf_verify.support.errors import UsageError
from gguf_verify.support.paths import CHECKOUT
from gguf_verify.support.toml import read_toml

FOLDER = CHECKOUT / "examples" / "engines"
#: Where a kernel runs: on the CPU host or in NumPy, or on a card.
Device = Literal["cpu", "cuda"]


class Kernel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A kernel of an engine, with the adapter that calls it.

    Args:
        name: as its authors call it.
        adapter: FILE.py:NAME or FILE.cu:SYMBOL, in the folder of the catalogue.
        types: of weights.
        hosts: where the adapter runs.
        domain: where the engine takes it, in words, if not everywhere.
        needs: files and folders below `built` without which it cannot run.
        options: more of the command line.
        seconds: the most that a run of all its types may take.
    """

    name: str
    adapter: str
    types: tuple[str, ...] = ()
    hosts: tuple[Device, ...] = ("cuda",)
    domain: str = ""
    needs: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    seconds: int = 240


class Engine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An engine.

    Args:
        version: of what was verified: a release or a commit.
        source: its address.
        built: how it was compiled, and for what; Markdown.
    """

    name: str
    version: str
    source: str
    built: str
    kernels: tuple[Kernel, ...]


class Finding(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Something that an engine's maintainers could act on.

    Args:
        id: its anchor on the page.
        engine: its name in the catalogue.
        title: in one line.
        kernels: patterns of adapters that it concerns.
        types: of weights that it concerns; empty: all.
        shows: what a user sees, and when.
        cause: with the place in the source.
        fix: in words.
        known: where it has been reported, by whomever.
        seen: where it was seen, and how. "": it was read in the source and has not run, so the page leaves it out.
        repetition: a program in Python for the folder of the catalogue, which prints what is wrong; "" where the row's
            own command repeats it.
        hosts: where the repetition runs.
        explains: whether a row that is not verified is explained by it.
    """

    id: str
    engine: str
    title: str
    shows: str
    cause: str
    fix: str
    kernels: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    known: str = ""
    seen: str = ""
    repetition: str = ""
    hosts: tuple[Device, ...] = ()
    explains: bool = True

    def concerns(self, engine: str, adapter: str, kind: str) -> bool:
        """Whether it is about a kernel with weights of a type."""
        return (
            engine == self.engine
            and any(fnmatchcase(adapter, pattern) for pattern in self.kernels)
            and (not self.types or kind in self.types)
        )


@dataclass(frozen=True)
class Catalogue:
    """Both files."""

    engines: tuple[Engine, ...]
    findings: tuple[Finding, ...]


def read(folder: Path = FOLDER) -> Catalogue:
    """The catalogue of a folder. Raises UsageError."""
    try:
        engines = msgspec.convert(
            read_toml(folder / "engines.toml", "catalogue").get("engines", []), tuple[Engine, ...]
        )
        said = read_toml(folder / "findings.toml", "list of findings").get("findings", [])
        findings = msgspec.convert(said, tuple[Finding, ...])
    except msgspec.ValidationError as error:
        raise UsageError(f"{folder.name}: {error}") from None
    unknown = {f.engine for f in findings} - {e.name for e in engines}
    if unknown:
        raise UsageError(f"findings.toml: no engine is called {min(unknown)}")
    return Catalogue(engines, findings)


def explaining(findings: Sequence[Finding], engine: str, adapter: str, kind: str) -> list[Finding]:
    """The findings about a kernel with weights of a type, of those that were seen."""
    return [f for f in findings if f.seen and f.concerns(engine, adapter, kind)]
