"""The catalogue of engines and findings: examples/engines/engines.toml and findings.toml."""

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
#: Where a kernel runs: on the CPU host or in NumPy ("cpu"), or on a GPU.
Device = Literal["cpu", "cuda"]


class Kernel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A kernel of an engine, with the adapter that calls it.

    Args:
        name: its name in the engine.
        adapter: FILE.py:NAME or FILE.cu:SYMBOL, in the folder of the catalogue.
        types: of weights.
        hosts: where the adapter runs.
        domain: a description of the cases in which the engine uses it, if not all.
        needs: required files and folders below `built`.
        options: further options of the command line.
        seconds: time limit for a run of all its types.
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
        version: the verified release or commit.
        source: its address.
        built: how it was compiled, and for which targets; Markdown.
    """

    name: str
    version: str
    source: str
    built: str
    kernels: tuple[Kernel, ...]


class Finding(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A problem that an engine's maintainers could fix.

    Args:
        id: its anchor on the page.
        engine: its name in the catalogue.
        title: one line.
        kernels: patterns of the affected adapters.
        types: the affected types of weights; empty: all.
        shows: the effect for a user, and when it occurs.
        cause: with the place in the source.
        fix: a description.
        known: where it has been reported.
        seen: where and how it was observed. "": only read in the source, not run; omitted from the page.
        repetition: a Python program, run in the folder of the catalogue, that prints the wrong result; "" if the row's
            own command repeats it.
        hosts: where the repetition runs.
        explains: whether it explains a row that is not verified.
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
        """Whether it affects a kernel with weights of this type."""
        return (
            engine == self.engine
            and any(fnmatchcase(adapter, pattern) for pattern in self.kernels)
            and (not self.types or kind in self.types)
        )


@dataclass(frozen=True)
class Catalogue:
    """The content of both files."""

    engines: tuple[Engine, ...]
    findings: tuple[Finding, ...]


def read(folder: Path = FOLDER) -> Catalogue:
    """Read the catalogue in a folder. Raises UsageError."""
    try:
        engines = msgspec.convert(
            read_toml(folder / "engines.toml", "catalogue").get("engines", []), tuple[Engine, ...]
        )
        listed = read_toml(folder / "findings.toml", "list of findings").get("findings", [])
        findings = msgspec.convert(listed, tuple[Finding, ...])
    except msgspec.ValidationError as error:
        raise UsageError(f"{folder.name}: {error}") from None
    unknown = {f.engine for f in findings} - {e.name for e in engines}
    if unknown:
        raise UsageError(f"findings.toml: unknown engine {min(unknown)}")
    return Catalogue(engines, findings)


def explaining(findings: Sequence[Finding], engine: str, adapter: str, kind: str) -> list[Finding]:
    """The observed findings that affect a kernel with weights of this type."""
    return [f for f in findings if f.seen and f.concerns(engine, adapter, kind)]
