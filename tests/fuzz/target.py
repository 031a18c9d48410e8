"""The record that makes a module of `tests.fuzz.targets` a fuzz target, and the registry of all of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from gguf_verify.support.registry import members
from tests.fuzz import mutations

#: Takes an input and makes another of it.
Mutator = Callable[[bytes, random.Random], bytes]

CORPUS = Path(__file__).parent / "corpus"


@dataclass(frozen=True)
class Target:
    """One reader of foreign bytes, or writer of foreign names.

    Args:
        name: of its folder in `corpus`, and on the command line.
        takes: what an input is, in one phrase.
        seeds: makes inputs to begin with, always the same.
        check: runs the reader on an input, in a folder of its own that the inputs before have used, and asserts what is
            true of every input. What the reader documents as its errors is caught here; anything else is a finding.
        mutate: makes an input of another one, so that it is still read far.
        share: of the time of `make fuzz`, compared with the others'.
        inputs: how many mutated inputs `make test` runs: about 1 s of them.
        largest: bytes of an input.
        covered: modules of which the kept inputs must run 90 % of the lines.
    """

    name: str
    takes: str
    seeds: Callable[[], Iterable[bytes]]
    check: Callable[[Path, bytes], object]
    mutate: Mutator = mutations.of_bytes
    share: int = 1
    inputs: int = 70
    largest: int = 1 << 14
    covered: tuple[str, ...] = ()

    @property
    def kept(self) -> list[Path]:
        """The inputs that the repository keeps, by name."""
        folder = CORPUS / self.name
        return sorted(folder.iterdir()) if folder.is_dir() else []


@cache
def targets() -> dict[str, Target]:
    """Every target by name."""
    return {target.name: target for target in members("tests.fuzz.targets", Target)}
