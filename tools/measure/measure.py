"""`Measure`, the record that registers a module or package as `python -m tools.measure NAME …`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

from gguf_verify.support.registry import members


@dataclass(frozen=True)
class Measure:
    """A measure of the verifier.

    Args:
        name: its name on the command line.
        summary: one phrase for listings.
        description: the text of its `--help`.
        add_arguments: adds its options.
        run: takes the parsed options and returns the exit code; raises HarnessError. None if the measure has
            subcommands.
    """

    name: str
    summary: str
    description: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int] | None = None

    def add_to(self, commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
        """Add its parser to the subcommands of the command line or of a measure."""
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
