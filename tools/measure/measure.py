"""`Measure`, the record that registers a module or package as `python -m tools.measure NAME …`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

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


def add_results(
    parser: argparse.ArgumentParser, results: Path, imports: str = "import another file of results; measure nothing"
) -> None:
    """Add the options for a measure's file of results and its page.

    Args:
        results: the default file, in docs.
        imports: help for `--from`.
    """
    add = parser.add_argument
    add("--results", type=Path, default=results, metavar="FILE", help=f"file of results (default: docs/{results.name})")
    add("--from", dest="other", type=Path, metavar="FILE", help=imports)
    add("--no-page", action="store_true", help="do not write the page")


def all_measures() -> list[Measure]:
    """Every measure, by module name."""
    return members(__package__ or "", Measure)
