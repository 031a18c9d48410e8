"""Compilation of foreign units that report the values of conversions to numbers of fewer bits (`narrow`).

GCC preprocesses the unit, lists its conversions, and compiles it with notes of them. If it rejects some of the notes,
the unit is compiled again without those.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

from ..support.errors import EnvironmentFault
from ..support.text import counted
from .foreign_sources import read_limited
from .narrow import LISTS, Noted, Preprocessed

#: Runs a command whose errors are more than is kept of one's output.
_WITH_ERRORS = ("/bin/sh", "-c", 'LC_ALL=C exec "$@" 2> "$0"')
_AS_JSON = ("-fdiagnostics-format=json", "-fdiagnostics-column-unit=byte", "-fsyntax-only")
#: Attempts to compile a unit; each omits the notes that GCC rejected in the one before.
_MOST_TRIES = 4


@dataclass(frozen=True)
class Noting:
    """The compilation of a unit with notes of its conversions.

    Args:
        command: compiles or preprocesses the unit, without its name.
        authors: the folder of the files whose conversions are noted, with a slash at its end.
        run: runs a command in the folder of the unit.
    """

    command: Sequence[str]
    authors: str
    run: Callable[[Sequence[str]], CompletedProcess[str]]

    def compile(self, source: Path, compiled: Path, listing: Sequence[str]) -> tuple[bool, str]:
        """Compile a unit; return whether it was compiled, and words for conversions that it does not report.

        Args:
            source: the unit. Other files are written beside it.
            compiled: the object.
            listing: options with which GCC lists the files that it reads.
        """
        try:
            unit = source.with_suffix(".ii")
            expands = [*self.command, "-E", "-fpch-preprocess", str(source), "-o", str(unit), *listing]
            if self.run(expands).returncode:
                return False, ""
            text = Preprocessed(read_limited(unit).decode("latin-1"), self.authors)
            diagnostics = self._diagnostics(unit, text.scanned(text.text), *LISTS)
            if any("error" in one["kind"] for one in diagnostics):
                return False, "GCC lists errors beside its conversions"
            conversions = text.conversions(diagnostics)
            left: Collection[Noted] = conversions
            for _ in range(_MOST_TRIES):
                unit.write_text(text.noting(left), "latin-1")
                compiles = [*self.command, "-fpreprocessed", "-c", str(unit), "-o", str(compiled)]
                if self.run(compiles).returncode == 0:
                    lines = {text.line_of(one) for one in conversions} - {text.line_of(one) for one in left}
                    return True, f"conversions on {counted(len(lines), 'lines')} are not observed" if lines else ""
                if not left:
                    break
                left = text.without(left, self._diagnostics(unit, text.scanned(text.noting(left))))
        except (ValueError, RecursionError, LookupError, AttributeError, TypeError):  # a version with another list
            return False, "this version of GCC does not list its conversions"
        except EnvironmentFault as error:  # GCC exceeds a limit
            return False, f"its conversions are not observed: {error}"
        return False, "the code does not compile with notes of its conversions"

    def _diagnostics(self, unit: Path, text: str, *options: str) -> list[Any]:
        """Return GCC's diagnostics of a preprocessed text."""
        unit.write_text(text, "latin-1")
        errors = unit.with_suffix(".json")
        lists = [*_WITH_ERRORS, str(errors), *self.command, "-fpreprocessed", *_AS_JSON, *options, str(unit)]
        self.run(lists)
        found = json.loads(read_limited(errors).partition(b"\n")[0])
        return found if isinstance(found, list) else []
