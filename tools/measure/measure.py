"""The record that makes a module or package of this one a measure: `python -m tools.measure NAME …`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

from gguf_verify.support.registry import members


@dataclass(frozen=True)
class Measure:
    """A measure of the verifier.

    Args:
        name: what the command line calls it.
        summary: one phrase for listings.
        description: the text of its `--help`.
        add_arguments: adds its options.
        run: takes the parsed options and returns the exit code; raises HarnessError. None where the measure has parts,
            which its arguments choose.
    """

    name: str
    summary: str
    description: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int] | None = None

    def add_to(self, commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
        """Add its parser to those of the other measures, or to the other parts of a measure."""
        own = commands.add_parser(
            self.name, help=self.summary, description=self.description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )  # fmt: skip
        self.add_arguments(own)
        if self.run is not None:
            own.set_defaults(run=self.run)
        return own


def all_measures() -> list[Measure]:
    """Every measure, by module name."""
    return members(__package__ or "", Measure)
