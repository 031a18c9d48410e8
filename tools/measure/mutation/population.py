"""The mutants of the kernels' sources, and samples of them."""

from __future__ import annotations

import argparse
import hashlib
import random
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .mutator import Mutant, mutants, sources, tokens
from .subjects import row_of

Record = dict[str, Any]

#: The reason for a survivor that the compiler proves equivalent.
SAME_CODE = "the same code, as NVRTC optimises it for sm_80 and sm_90a"


def population(root: Path) -> dict[str, list[Mutant]]:
    """File → its mutants."""
    return {file: mutants(file, (root / file).read_text()) for file in sources(root)}


#: Comments, and lines that include a file.
_IGNORED = re.compile(r"//|/\*|#\s*include\b")


def hashes(root: Path) -> dict[str, str]:
    """File → the first half of a sha256 over everything that its mutants depend on: its code and the code's positions.

    Comments and the names of included files are ignored.
    """
    found = {}
    for file in sources(root):
        code = [t for t in tokens((root / file).read_text()) if not _IGNORED.match(t.text)]
        text = "\n".join(f"{t.line}:{t.column} {t.text}" for t in code)
        found[file] = hashlib.sha256(text.encode()).hexdigest()[:32]
    return found


def _stratum(mutant: Mutant) -> tuple[str, bool]:
    """The stratum of a mutant: its file (for formats and packing, the kind of file), and whether it changes whole
    statements."""
    row = row_of(mutant.file)
    return mutant.file if row == "GEMM sources" else row, mutant.operator.startswith(("statement", "barrier"))


def sampled(some: Sequence[Mutant], count: int, seed: int) -> list[Mutant]:
    """Select about `count` mutants, in proportion from each stratum and at least one. A larger sample contains the
    smaller ones."""
    strata: dict[tuple[str, bool], list[Mutant]] = {}
    for mutant in some:
        strata.setdefault(_stratum(mutant), []).append(mutant)
    out = []
    for stratum, members in sorted(strata.items()):
        random.Random(f"{seed} {stratum}").shuffle(members)
        out += members[: max(1, round(count * len(members) / len(some)))]
    return out


def chosen(
    options: argparse.Namespace, everything: Mapping[str, list[Mutant]], before: Mapping[str, Record]
) -> list[Mutant]:  # fmt: skip
    """Return the requested mutants, judged or not.

    Args:
        before: records of earlier runs by id.
    """
    some = [m for of_file in everything.values() for m in of_file]
    if options.only:
        some = [m for m in some if any(part in m.file for part in options.only)]
    if options.again:
        some = [m for m in some if m.id in before and lives(before[m.id])]
    return sampled(some, options.sample, options.seed) if options.sample else some


def lives(record: Record) -> bool:
    """Whether a mutant survives and no compiler proves it equivalent."""
    return record["outcome"] in ("same", "missed", "passed") and record.get("by") != SAME_CODE
