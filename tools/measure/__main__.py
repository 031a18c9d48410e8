"""`python -m tools.measure MEASURE …`: measure the verifier itself, from a checkout of the project."""

from __future__ import annotations

import argparse
import os
import sys

# Measures start a process for each core, so NumPy's BLAS, which reads this when it is loaded, gets one thread in each.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from gguf_verify import cli
from gguf_verify.cli.common import Parser

from .measure import all_measures

_EPILOG = """\
exit codes: 0 measured · 1 a wrong name, a missed place, a false alarm, an input that breaks the parser, or a page that
is out of date · 2 usage · 3 this machine cannot run the measure
"""


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line, with one subcommand for each measure."""
    parser: argparse.ArgumentParser = Parser(
        prog="python -m tools.measure",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=_EPILOG,
        description="Measure the verifier itself.",
    )
    commands = parser.add_subparsers(dest="measure", required=True, metavar="MEASURE")
    for measure in all_measures():
        measure.add_to(commands)
    return parser


def run(argv: list[str]) -> int:
    """Run one measure; returns the exit code. Raises HarnessError."""
    options = build_parser().parse_args(argv)
    return int(options.run(options))


def main(argv: list[str] | None = None) -> int:
    """Run one measure as `gguf-verify` runs a command: with its handling of errors and interrupts."""
    return cli.main(argv, run)


if __name__ == "__main__":
    sys.exit(main())
